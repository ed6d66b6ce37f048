"""The table of one hook in a pipeline file, converted into a node of the graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import product
from keyword import iskeyword
from typing import Any

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.plan import (
    PHASES,
    RANKS,
    Binding,
    EdgeKind,
    EdgeSpec,
    Half,
    Node,
    Nodes,
    Phase,
    PlannedHook,
    Trigger,
)
from hookflow.graph.points import POINTS, Point, Points
from hookflow.graph.slots import Verb
from hookflow.hooks.arguments import first_names, parameters_of, wrong_arguments
from hookflow.hooks.base import Hook
from hookflow.hooks.inspect import (
    Inspection,
    Issue,
    Method,
    function_at,
    makes_callables,
    object_at,
    places_of,
    points_for,
)
from hookflow.hooks.keys import PickKeys
from hookflow.hooks.registry import NotImported
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.schema import BindingSpec, HookNode

Inspect = Callable[[str, Where | None], Inspection]
"""Finds a hook by its `use`, and inspects it once. Raises UserError at the place if there is none."""

_KEY = re.compile(r"\{(\w*)(\??)\}")


def filled(
    slots: Iterable[str], hook: Callable[..., Any], name: str, args: Mapping[str, Any] | Sequence[Any]
) -> tuple[tuple[str, ...], list[Issue]]:
    """Return the slots with their keys (see `Hook.slot_keys`), and what is wrong with those that name no argument.

    `name` is the hook's own.
    """
    result: dict[str, None] = {}
    issues: list[Issue] = []
    keys: Mapping[str, Any] = {}
    for slot in slots:
        wanted = _KEY.findall(slot)
        if wanted and not keys:
            whole = {p.name: None if p.default is p.empty else p.default for p in parameters_of(hook)}
            whole |= _by_name(hook, args)
            keys = {**whole, **getattr(hook, "slot_keys", dict)(whole), "name": name}
        if unknown := [key for key, _ in wanted if key not in keys]:
            message = f'{getattr(hook, "__name__", repr(hook))} has a slot "{slot}", and no argument "{unknown[0]}"'
            issues.append((message, nearest(unknown[0], keys)))
            continue
        for values in product(*(_values(keys[key], optional) for key, optional in wanted)):
            result[_fill(slot, values)] = None
    return tuple(sorted(result)), issues


def _by_name(hook: Callable[..., Any], args: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    return dict(args if isinstance(args, Mapping) else zip(first_names(hook, len(args)), args, strict=False))


def _values(key: Any, optional: str) -> Collection[str | None]:
    if key is None:
        return () if optional else (None,)
    return [str(item) for item in key] if isinstance(key, Collection) and not isinstance(key, str) else (str(key),)


def _fill(slot: str, values: Iterable[str | None]) -> str:
    """Return a slot with keys; where one is None, what stands before the part that it belongs to."""
    for value in values:
        if value is None:
            return slot[: slot.index("{")].rpartition(".")[0]
        slot = f"{slot[: slot.index('{')]}{value}{slot[slot.index('}') + 1 :]}"
    return slot


COMM_POINT = "ddp_comm"


def wrong_comm_hooks(nodes: Nodes) -> Iterator[Problem]:
    """Yield what is wrong with the hooks at `ddp_comm`: a second one, and one that would not act on all ranks alike."""
    bound = [node for node in nodes.values() if any(item.point == COMM_POINT for item in node.bound)]
    for node in bound:
        hook = node.hook
        if node is not bound[0]:
            both = f'"{bound[0].hook.name}" and "{hook.name}" are both at {COMM_POINT}'
            message = f"{both}: PyTorch allows one communication hook per model"
            yield Problem(message, node.where, f'one hook there may call the other; or keep "{hook.name}" elsewhere')
        if hook.ranks == "zero":
            message = f'"{hook.name}" at {COMM_POINT} must run on every rank: ranks = "zero" is not allowed'
            yield Problem(message, node.where, 'ranks = "all"')
        if hook.on_error != "raise":
            message = f'"{hook.name}" at {COMM_POINT} needs on_error = "raise"'
            yield Problem(f"{message}: after an error the other ranks would hang", node.where, 'on_error = "raise"')


def own_points(loaded: Loaded) -> tuple[Points, list[Problem]]:
    """Return all points of the pipeline, and what is wrong with its own ones, which are then left out."""
    problems: list[Problem] = []
    own: list[Point] = []
    points = POINTS
    for name, declared in loaded.pipeline.points.items():
        key = f"points.{name}"
        wrong: list[tuple[str, str, str]] = []
        if name in points:
            wrong.append((key, f'every run has a point "{name}" already', ""))
        if hasattr(Hook, name):
            wrong.append((key, f'"{name}" cannot be a point: every hook has an attribute of that name', ""))
        elif not _can_be_name(name) or name.startswith("around_"):
            wrong.append((key, f'"{name}" cannot be a point: a hook\'s method must be able to bear the name', ""))
        if declared.follows not in points:
            below = declared.follows in loaded.pipeline.points
            hint = "declare it first" if below else nearest(declared.follows, points.names)
            message = f'there is no point "{declared.follows}"' + " above this one" * below
            wrong.append((f"{key}.follows", message, hint))
        for k, argument in enumerate(declared.offers):
            if argument == "run":
                wrong.append((f"{key}.offers.{k}", "every point offers the run already", ""))
            elif argument in declared.offers[:k]:
                wrong.append((f"{key}.offers.{k}", f'"{argument}" is offered twice', ""))
            elif not _can_be_name(argument) or argument == "self":
                message = f'"{argument}" cannot be an argument: a hook\'s method must be able to take it by that name'
                wrong.append((f"{key}.offers.{k}", message, ""))
        if wrong:
            problems += (Problem(message, loaded.places.of(at), hint) for at, message, hint in wrong)
            continue
        followed = points[declared.follows]
        inside = followed.name.startswith("before_") and followed.name.removeprefix("before_") in points.pairs
        offers = ("run", *declared.offers)
        own.append(Point(name, followed.depth + inside, offers, "firing", declared.about, "own", followed.name))
        points = Points(own)
    return points, problems


def _can_be_name(text: str) -> bool:
    return text.isidentifier() and not iskeyword(text)


class HookTable:
    """The table of a hook, as it is declared; `problems` is what is wrong with it."""

    def __init__(self, name: str, declaration: HookNode, loaded: Loaded, inspect: Inspect, points: Points) -> None:
        self.name = name
        self.table = declaration
        self.public_args = loaded.public.hooks[name].args
        self.places = loaded.places
        self.points = points
        self.where = self._place("use")
        self.problems: list[Problem] = []
        self.filled: set[str] = set()  # arguments of a plain function that its points give it
        self.near_after: tuple[EdgeSpec, ...] = ()  # edges that the file states at one of `points`
        self.near_before: tuple[EdgeSpec, ...] = ()
        self.inspection: Inspection | None = None
        try:
            self.inspection = inspect(declaration.use, self.where)
        except UserError as error:  # its points and edges are checked anyway
            self.problems += error.problems
        self.hook = self.inspection.hook if self.inspection else None
        self.is_class = isinstance(self.hook, type)
        self.methods = self.inspection.methods if self.inspection else []
        self._report(self.inspection.issues if self.inspection else (), self.where)
        self.reads = self._slots("reads")
        self.writes = self._slots("writes")
        in_class = self.inspection.names if self.inspection else None
        compiles = bool(loaded.pipeline.run.compile)
        self.keys = PickKeys(name, declaration, in_class, points, self._place, compiles=compiles)

    def node(self) -> Node:
        """Return the node, which is of use for a plan only if there are no problems."""
        bound = self._bindings()
        self.problems += (*self.keys.problems, *self.keys.without_effect(bound))
        if self.hook is not None:
            self._check_arguments(self.hook)
        ranks = self.table.ranks or getattr(self.hook, "ranks", "all")
        hook = PlannedHook(
            name=self.name,
            use=self.table.use,
            args=self.public_args,
            phase=self._phase(),
            about=self.inspection.about if self.inspection else "",
            where=self.places.of(f"hooks.{self.name}").at_line,
            on_error=self.table.on_error,
            ambiguous_with=tuple(name.removesuffix("?") for name in self.table.ambiguous_with),
            ranks=ranks if ranks in RANKS else "all",
            default=self.table.default,
        )
        return Node(
            hook=hook,
            where=self.where,
            bound=tuple(bound),
            after=(*self._all_edges("after"), *self.near_after),
            before=(*self._all_edges("before"), *self.near_before),
            requires=self._all_edges("requires"),
            ambiguous_with=self._edges(self.table.ambiguous_with, "ambiguous_with", "file"),
        )

    def unknown(self) -> Iterator[Problem]:
        """Yield a problem if the hook is not imported."""
        if self.hook is NotImported:
            text = f'hook "{self.name}": {self.table.use} is not imported: only the keys of this table are known'
            yield Problem(text, self.where)

    def _phase(self) -> Phase:
        stated = self.table.phase or getattr(self.hook, "phase", "normal")
        return stated if stated in PHASES else "normal"  # the check of the class reports it

    def _check_arguments(self, hook: Callable[..., Any]) -> None:
        called = f'hook "{self.name}"'
        problems = list(
            wrong_arguments(
                hook,
                self.table.args,
                called,
                lambda key: self._place(f"args.{key}" if key else "use"),
                () if self.is_class else self.filled,
                self._offered(),
                self.public_args,
            )
        )
        check = getattr(hook, "check_arguments", None)
        if self.is_class and check is not None and not problems:
            try:
                check(self._arguments())
            except UserError as error:
                problems = error.at(self._place("args")).problems
            except ValueError as error:
                problems = [Problem(f"{called}: {error}", self._place("args"))]
        self.problems += problems

    def _arguments(self) -> Mapping[str, Any]:
        return {} if self.hook is None else _by_name(self.hook, self.table.args)

    def _offered(self) -> set[str]:
        """Return the arguments of its points, which the file must not give to a plain function."""
        at = [] if self.is_class else [_spec(item).at for item in self.table.points or ()]
        return {name for point in at if point in self.points for name in self.points[point].offers}

    def _slots(self, verb: Verb) -> dict[str, tuple[str, ...]]:
        """Return the slots that each method touches, as the file says, for all of them or by method, or the class."""
        names = self.inspection.method_names if self.inspection else {"": None}
        stated = self.table.reads if verb == "reads" else self.table.writes
        if isinstance(stated, list):
            return dict.fromkeys(names, tuple(sorted(stated)))
        result: dict[str, tuple[str, ...]] = {}
        if self.inspection:
            declared, issues = self.inspection.slots(verb)
            for name, slots in declared.items():
                result[name], wrong = filled(slots, self.inspection.hook, self.name, self.table.args)
                issues = [*issues, *wrong]
            self._report(dict.fromkeys(issues), self.where)
        for name in stated or {}:
            if self.inspection and name not in names:
                hint = nearest(name, names) if self.methods else f"a plain function has none: {verb} = [...]"
                message = f'hook "{self.name}" has no method "{name}"'
                self.problems.append(Problem(message, self._place(f"{verb}.{name}"), hint))
        return result | {name: tuple(sorted(slots)) for name, slots in (stated or {}).items()}

    def _chosen(self) -> list[Method]:
        points = points_for(self.hook, self._arguments()) if self.hook is not None else None
        return [method for method in self.methods if points is None or method.name in points]

    @cached_property
    def of_batches(self) -> bool:
        """Whether the hook fires at any point that comes for each iteration or batch."""
        stated = self.table.points
        names = [_spec(item).at for item in stated] if stated is not None else [m.name for m in self._chosen()]
        return any(self.points[point].of_batches for name in names for point, _ in places_of(name, self.points))

    def _bindings(self) -> list[Binding]:
        if self.table.points is not None:
            result = [bound for k, item in enumerate(self.table.points) for bound in self._bind_stated(k, item)]
            seen = [(bound.point, bound.half) for bound in result]
            for point in sorted({point for point, half in seen if seen.count((point, half)) > 1}):
                self.problems.append(Problem(f'hook "{self.name}" is bound to {point} twice', self._place("points")))
            return result
        is_callable = self.hook is not None and (not isinstance(self.hook, type) or makes_callables(self.hook))
        if is_callable and not self.methods:
            message = f'hook "{self.name}" is a plain function, which does not say where it belongs'
            self._wrong_point(message, self.where, 'name its points: points = ["after_train_epoch"]')
        return [self._bind(method) for method in self._chosen()]

    def _bind_stated(self, k: int, item: str | BindingSpec) -> Iterable[Binding]:
        spec = _spec(item)
        where = self._place(f"points.{k}" if isinstance(item, str) else f"points.{k}.at")
        if spec.at not in self.points.names:
            self._wrong_point(f'there is no point "{spec.at}"', where, nearest(spec.at, self.points.names))
            return []
        has = dict.fromkeys(method.name for method in self.methods)
        if self.hook is None or (self.hook is NotImported and spec.at not in has):  # it may have a method there
            bound = [Method(point, "", half, ()) for point, half in places_of(spec.at, self.points)]
        elif isinstance(self.hook, type) and (self.methods or not makes_callables(self.hook)):
            bound = [method for method in self.methods if spec.at == method.name]
            if not bound and self.methods:
                message = f'hook "{self.name}" ({self.table.use}) has no method for {spec.at}'
                self.problems.append(Problem(message, where, f"it has {', '.join(has)}"))
        elif spec.at.startswith("around_"):
            self._wrong_point(f"a plain function cannot stand {spec.at}; a class can", where)
            return []
        else:
            if isinstance(self.hook, type):
                method, issues = object_at(self.hook, spec.at, self.points)
            else:
                method, issues = function_at(self.hook, spec.at, self.table.args, self.points, self._offered())
            self._report(issues, where)
            bound = [method]
        return [self._bind(method, spec, f"points.{k}") for method in bound]

    def _wrong_point(self, message: str, where: Where, hint: str = "") -> None:
        """Report a wrong point. It might give a plain function any argument: none is reported as missing."""
        self.problems.append(Problem(message, where, hint))
        if self.hook is not None:
            self.filled.update(parameter.name for parameter in parameters_of(self.hook))

    def _bind(self, method: Method, spec: BindingSpec | None = None, key: str = "") -> Binding:
        whole, near = self.table, spec
        every = whole.every
        if isinstance(every, int) and self.of_batches and not self.points[method.point].of_batches:
            every = None  # a bare number holds at points of batches alone, if there are any
        self.filled.update(method.names)
        at = method.point, method.half
        self.near_after += self._edges(near.after if near else [], f"{key}.after", "file", at)
        self.near_before += self._edges(near.before if near else [], f"{key}.before", "file", at)
        return Binding(
            id=-1,
            hook=self.name,
            phase=self._phase(),
            point=method.point,
            method=method.name,
            half=method.half,
            takes=method.takes,
            trigger=Trigger(
                every=_text((near and near.every) or every),
                since=_text((near and near.from_) or whole.from_),
                until=_text((near and near.until) or whole.until),
                when=(near and near.when) or whole.when,
            ),
            reads=self.reads.get(method.name, ()),
            writes=self.writes.get(method.name, ()),
            **self.keys.of(method, near, key),
        )

    def _all_edges(self, key: str) -> tuple[EdgeSpec, ...]:
        """Return the hook-wide specs: the file's if it states any, or none; else those of the class."""
        if key in self.table.model_fields_set:
            return self._edges(getattr(self.table, key), key, "file")
        return self._edges(dict.fromkeys(self.inspection.names(key) if self.inspection else ()), "", "class")

    def _edges(
        self, names: Iterable[str], key: str, kind: EdgeKind, at: tuple[str, Half] | None = None
    ) -> tuple[EdgeSpec, ...]:
        thing: Any = self.hook if hasattr(self.hook, "__name__") else type(self.hook)
        of = Where(f"{'class' if isinstance(thing, type) else 'function'} {thing.__name__}")
        in_file = kind == "file"
        return tuple(
            EdgeSpec(n.removesuffix("?"), n.endswith("?"), kind, self._place(f"{key}.{k}") if in_file else of, at)
            for k, n in enumerate(names)
        )

    def _report(self, issues: Iterable[Issue], where: Where) -> None:
        self.problems += (Problem(message, where, hint) for message, hint in issues)

    def _place(self, key: str) -> Where:
        return self.places.of(f"hooks.{self.name}.{key}")


def _spec(item: str | BindingSpec) -> BindingSpec:
    return _at(item) if isinstance(item, str) else item


@cache
def _at(point: str) -> BindingSpec:
    return BindingSpec(at=point)


def _text(amount: int | str | None) -> str | None:
    return None if amount is None else str(amount)
