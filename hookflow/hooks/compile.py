"""From a loaded pipeline to its plan: every hook looked up, looked into and checked, then ordered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.compile import compile_plan
from hookflow.graph.node import Bound, Node, Wish
from hookflow.graph.plan import EdgeKind, Plan, PlannedHook, Trigger
from hookflow.hooks.inspect import NAMES, Method, about, function_at, methods, wrong_arguments
from hookflow.hooks.registry import BUILT_IN
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.refer import refer
from hookflow.pipeline.schema import BindingSpec, HookNode


def compile_pipeline(loaded: Loaded, base: Path | None = None) -> Plan:
    """Compile the pipeline's hooks into a plan.

    Files that the pipeline names are relative to `base`, which is its own folder if left out.
    Raises UserError with everything that is wrong with the hooks: names, arguments, points, edges, cycles.
    """
    problems: list[Problem] = []
    nodes: dict[str, Node] = {}
    declared = loaded.pipeline.hooks
    for name, declaration in declared.items():
        if declaration.enabled:
            try:
                nodes[name] = _Declared(name, declaration, loaded, base or loaded.source.parent).node()
            except UserError as error:
                problems += error.problems
    if problems:
        raise UserError(problems)
    return compile_plan(loaded.pipeline.run.name, nodes, disabled=[n for n, d in declared.items() if not d.enabled])


def find_hook(use: str, base: Path, where: Where | None) -> Callable[..., Any]:
    """Return the class or function that `use` names. Raises UserError when there is none, or it cannot be called."""
    found = refer(use, base, where, BUILT_IN)
    if not callable(found):
        raise UserError(Problem(f'"{use}" is no class or function, so it cannot be a hook', where))
    return found  # type: ignore[no-any-return]


class _Declared:
    """One hook's table of the file, on its way to a node."""

    def __init__(self, name: str, declaration: HookNode, loaded: Loaded, base: Path) -> None:
        self.name = name
        self.said = declaration
        self.places = loaded.places
        self.where = self._place("use")
        self.hook = find_hook(declaration.use, base, self.where)

    def node(self) -> Node:
        found, problems = self._methods()
        filled = () if isinstance(self.hook, type) else {name for bound in found for name in bound.takes}
        problems += wrong_arguments(
            self.hook,
            self.said.args,
            f'hook "{self.name}"',
            lambda key: self._place(f"args.{key}" if key else "use"),
            filled,
        )
        if problems:
            raise UserError(problems)
        hook = PlannedHook(
            name=self.name,
            use=self.said.use,
            args=self.said.args,
            phase=self.said.phase or str(getattr(self.hook, "phase", "normal")),
            about=about(self.hook),
            where=str(self.places.of(f"hooks.{self.name}")),
            reads=tuple(getattr(self.hook, "reads", ())),
            writes=tuple(getattr(self.hook, "writes", ())),
            on_error=self.said.on_error,
        )
        return Node(
            hook=hook,
            where=self.where,
            bound=tuple(found),
            after=self._all_wishes("after"),
            before=self._all_wishes("before"),
            requires=self._all_wishes("requires"),
        )

    def _methods(self) -> tuple[list[Bound], list[Problem]]:
        """Return what is bound: the points of the file, or else every point that the class has a method for."""
        problems: list[Problem] = []
        if isinstance(self.hook, type):
            there, problems = methods(self.hook, self.where)
            if self.said.points is None:
                bound = getattr(self.hook, "points", None)
                return [self._bound(m) for m in there if bound is None or {m.point, m.name} & set(bound)], problems
        elif self.said.points is None:
            said = f'hook "{self.name}" is a plain function, which does not say where it belongs'
            return [], [Problem(said, self.where, 'name its points: points = ["after_train_epoch"]')]
        found: list[Bound] = []
        for k, item in enumerate(self.said.points):
            spec = BindingSpec(at=item) if isinstance(item, str) else item
            key = f"points.{k}" if isinstance(item, str) else f"points.{k}.at"
            where = self._place(key)
            if spec.at not in NAMES:
                problems.append(Problem(f'there is no point "{spec.at}"', where, nearest(spec.at, NAMES)))
            elif isinstance(self.hook, type):
                chosen = [m for m in there if spec.at in (m.point, m.name)]
                if not chosen:
                    has = dict.fromkeys(m.name for m in there)
                    said = f'hook "{self.name}" ({self.said.use}) has no method for {spec.at}'
                    problems.append(Problem(said, where, f"it has {', '.join(has)}"))
                found += (self._bound(method, spec, f"points.{k}") for method in chosen)
            elif spec.at.startswith("around_"):
                problems.append(Problem(f"a plain function cannot stand {spec.at}; a class can", where))
            else:
                method, wrong = function_at(self.hook, spec.at, self.said.args, where)
                problems += wrong
                found.append(self._bound(method, spec, f"points.{k}"))
        return found, problems + self._twice(found)

    def _twice(self, found: Sequence[Bound]) -> list[Problem]:
        seen = [(bound.point, bound.half) for bound in found]
        again = {point for point, half in seen if seen.count((point, half)) > 1}
        return [Problem(f'hook "{self.name}" is bound to {p} twice', self._place("points")) for p in sorted(again)]

    def _bound(self, method: Method, spec: BindingSpec | None = None, key: str = "") -> Bound:
        whole, near = self.said, spec
        trigger = Trigger(
            every=_text((near and near.every) or whole.every),
            since=_text((near and near.from_) or whole.from_),
            until=_text((near and near.until) or whole.until),
        )
        after = self._wishes(near.after if near else [], f"{key}.after", "file")
        before = self._wishes(near.before if near else [], f"{key}.before", "file")
        return Bound(method.point, method.name, method.half, method.takes, trigger, after, before)

    def _all_wishes(self, key: str) -> tuple[Wish, ...]:
        """Return the hook-wide wishes: the file's, or else those of the class."""
        stated: list[str] = getattr(self.said, key)
        if stated:
            return self._wishes(stated, key, "file")
        return self._wishes(getattr(self.hook, key, ()), "", "class")

    def _wishes(self, names: Iterable[str], key: str, kind: EdgeKind) -> tuple[Wish, ...]:
        def where(k: int) -> Where:
            return self._place(f"{key}.{k}") if kind == "file" else Where(f"class {self.hook.__name__}")

        return tuple(Wish(n.removesuffix("?"), n.endswith("?"), kind, where(k)) for k, n in enumerate(names))

    def _place(self, key: str) -> Where:
        return self.places.of(f"hooks.{self.name}.{key}")


def _text(amount: int | str | None) -> str | None:
    return None if amount is None else str(amount)
