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
    Ranks,
    Trigger,
)
from hookflow.graph.points import POINTS, Point, Points
from hookflow.graph.slots import Verb
from hookflow.hooks.arguments import first_names, parameters_of, wrong_arguments
from hookflow.hooks.base import Hook
from hookflow.hooks.inspect import (
    Inspected,
    Issue,
    Method,
    function_at,
    makes_callables,
    object_at,
    places_of,
    points_for,
)
from hookflow.hooks.module_keys import KEYS, ModuleKeys, ParameterKeys
from hookflow.hooks.not_imported import NotImported
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.schema import BindingSpec, HookNode

_KEY = re.compile(r"\{(\w*)\}")


def filled(
    slots: Iterable[str], hook: Callable[..., Any], name: str, args: Mapping[str, Any] | Sequence[Any]
) -> tuple[tuple[str, ...], list[Issue]]:
    """Return the slots with their keys, and what is wrong with those that name no argument.

    A key that is None leaves the whole slot; of several, each makes a slot. `name` is the hook's own.
    """
    result: dict[str, None] = {}
    issues: list[Issue] = []
    keys: Mapping[str, Any] | None = None
    for slot in slots:
        wanted = _KEY.findall(slot)
        if wanted and keys is None:
            keys = _keys(hook, args) | {"name": name}
        if unknown := [key for key in wanted if keys is not None and key not in keys]:
            message = f'{getattr(hook, "__name__", repr(hook))} has a slot "{slot}", and no argument "{unknown[0]}"'
            issues.append((message, nearest(unknown[0], keys or ())))
            continue
        for values in product(*(_values((keys or {})[key]) for key in wanted)):
            result[_fill(slot, values)] = None
    return tuple(sorted(result)), issues


def _keys(hook: Callable[..., Any], args: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """Return what the keys of a hook's slots are: by default its arguments, as given or not."""
    provided = args if isinstance(args, Mapping) else dict(zip(first_names(hook, len(args)), args, strict=False))
    defaults = {p.name: None if p.default is p.empty else p.default for p in parameters_of(hook)}
    whole = {**defaults, **provided}
    return {**whole, **getattr(hook, "slot_keys", dict)(whole)}


def _values(key: Any) -> Collection[str | None]:
    if key is None:
        return (None,)
    if isinstance(key, Collection) and not isinstance(key, str):
        return [str(item) for item in key]
    return (str(key),)


def _fill(slot: str, values: Iterable[str | None]) -> str:
    """Return a slot with keys; where one is None, what stands before the part that it belongs to."""
    for value in values:
        if value is None:
            return slot[: _KEY.search(slot).start()].rpartition(".")[0]  # type: ignore[union-attr]
        slot = _KEY.sub(lambda _, value=value: value, slot, count=1)  # type: ignore[misc]
    return slot


POINT = "ddp_comm"


def wrong_comm_hooks(nodes: Nodes) -> Iterator[Problem]:
    """Yield what is wrong with the hooks at `ddp_comm`: a second one, and one that would not act on all ranks alike."""
    bound = [node for node in nodes.values() if any(item.point == POINT for item in node.bound)]
    for node in bound:
        hook = node.hook
        if node is not bound[0]:
            both = f'"{bound[0].hook.name}" and "{hook.name}" are both at {POINT}'
            message = f"{both}: PyTorch allows one communication hook per model"
            yield Problem(message, node.where, f'one hook there may call the other; or keep "{hook.name}" elsewhere')
        if hook.ranks == "zero":
            message = f'"{hook.name}" at {POINT} must run on every rank: ranks = "zero" is not allowed'
            yield Problem(message, node.where, 'ranks = "all"')
        if hook.on_error != "raise":
            message = f'"{hook.name}" at {POINT} needs on_error = "raise": after an error the other ranks would hang'
            yield Problem(message, node.where, 'on_error = "raise"')


def own_points(loaded: Loaded) -> tuple[Points, list[Problem]]:
    """Return all points of the pipeline, and what is wrong with its own ones, which are then left out."""
    problems: list[Problem] = []
    own: list[Point] = []
    points = POINTS
    for name, declared in loaded.pipeline.points.items():
        key = f"points.{name}"
        faults: list[tuple[str, str, str]] = []
        if name in points:
            faults.append((key, f'every run has a point "{name}" already', ""))
        if hasattr(Hook, name):
            faults.append((key, f'"{name}" cannot be a point: every hook has an attribute of that name', ""))
        elif not _can_be_name(name) or name.startswith("around_"):
            faults.append((key, f'"{name}" cannot be a point: a hook\'s method must be able to bear the name', ""))
        if declared.follows not in points:
            below = declared.follows in loaded.pipeline.points
            hint = "declare it first" if below else nearest(declared.follows, points.names)
            message = f'there is no point "{declared.follows}"' + " above this one" * below
            faults.append((f"{key}.follows", message, hint))
        for k, argument in enumerate(declared.offers):
            if argument == "run":
                faults.append((f"{key}.offers.{k}", "every point offers the run already", ""))
            elif argument in declared.offers[:k]:
                faults.append((f"{key}.offers.{k}", f'"{argument}" is offered twice', ""))
            elif not _can_be_name(argument) or argument == "self":
                message = f'"{argument}" cannot be an argument: a hook\'s method must be able to take it by that name'
                faults.append((f"{key}.offers.{k}", message, ""))
        if faults:
            problems += (Problem(message, loaded.places.of(at), hint) for at, message, hint in faults)
            continue
        followed = points[declared.follows]
        inside = followed.name.startswith("before_") and followed.name.removeprefix("before_") in points.pairs
        offers = ("run", *declared.offers)
        own.append(Point(name, followed.depth + inside, offers, "firing", declared.about, "own", followed.name))
        points = Points(own)
    return points, problems


def _can_be_name(text: str) -> bool:
    return text.isidentifier() and not iskeyword(text)


class _Missing:
    """Replaces a hook that does not exist, so that its points and edges are checked too."""


class HookTable:
    """The table of a hook, as it is declared; `problems` is what is wrong with it."""

    def __init__(self, name: str, declaration: HookNode, loaded: Loaded, inspected: Inspected, points: Points) -> None:
        self.name = name
        self.said = declaration
        self.public_args = loaded.public.hooks[name].args
        self.places = loaded.places
        self.points = points
        self.inspected = inspected
        self.where = self._place("use")
        self.problems: list[Problem] = []
        self.filled: set[str] = set()  # arguments of a plain function that its points give it
        self.near_after: tuple[EdgeSpec, ...] = ()  # edges that the file states at one of `points`
        self.near_before: tuple[EdgeSpec, ...] = ()
        self.hook: Callable[..., Any] = _Missing
        try:
            self.hook = inspected.find(declaration.use, self.where)
        except UserError as error:
            self.problems += error.problems
        self.methods = self._methods()
        self.reads = self._slots("reads")
        self.writes = self._slots("writes")
        in_class = None if self.hook is _Missing else inspected.names(declaration.use, "parameters")
        self.parameters = ParameterKeys(name, declaration, in_class, points, self._place)
        self.inside = ModuleKeys(
            name,
            declaration,
            None if self.hook is _Missing else inspected.names(declaration.use, "modules"),
            points,
            self._place,
            compiles=bool(loaded.pipeline.run.compile),
        )

    def node(self) -> Node:
        """Return the node, which is of use for a plan only if there are no problems."""
        bound = self._bindings()
        self.problems += (*self.inside.problems, *self._without_effect(), *self.inside.without_effect(bound))
        self.problems += self.parameters.wrong(bound)
        if self.hook is not _Missing:
            self._check_arguments()
        hook = PlannedHook(
            name=self.name,
            use=self.said.use,
            args=self.public_args,
            phase=self._phase(),
            about=self.inspected.about(self.said.use) if self.hook is not _Missing else "",
            where=self.places.of(f"hooks.{self.name}").at_line,
            on_error=self.said.on_error,
            ambiguous_with=tuple(name.removesuffix("?") for name in self.said.ambiguous_with),
            ranks=self._ranks(),
            default=self.said.default,
        )
        return Node(
            hook=hook,
            where=self.where,
            bound=tuple(bound),
            after=(*self._all_wishes("after"), *self.near_after),
            before=(*self._all_wishes("before"), *self.near_before),
            requires=self._all_wishes("requires"),
            ambiguous_with=self._wishes(self.said.ambiguous_with, "ambiguous_with", "file"),
        )

    def unknown(self) -> Iterator[Problem]:
        """Yield a problem if the hook is not imported."""
        if self.hook is NotImported:
            text = f'hook "{self.name}": {self.said.use} is not imported: only the keys of this table are known'
            yield Problem(text, self.where)

    def _phase(self) -> Phase:
        stated = self.said.phase or getattr(self.hook, "phase", "normal")
        return stated if stated in PHASES else "normal"  # the check of the class reports it

    def _ranks(self) -> Ranks:
        stated = self.said.ranks or getattr(self.hook, "ranks", "all")
        return stated if stated in RANKS else "all"  # which the check of the class reports

    def _check_arguments(self) -> None:
        filled = () if isinstance(self.hook, type) else self.filled
        wrong = list(
            wrong_arguments(
                self.hook,
                self.said.args,
                f'hook "{self.name}"',
                lambda key: self._place(f"args.{key}" if key else "use"),
                filled,
                self._offered(),
                self.public_args,
            )
        )
        self.problems += wrong or self._wrong_together()

    def _wrong_together(self) -> list[Problem]:
        """Return what a class finds wrong with arguments that are valid one by one."""
        check = getattr(self.hook, "check_arguments", None)
        if not isinstance(self.hook, type) or check is None:
            return []
        try:
            check(self._arguments())
        except UserError as error:
            return error.at(self._place("args")).problems
        except ValueError as error:
            return [Problem(f'hook "{self.name}": {error}', self._place("args"))]
        return []

    def _arguments(self) -> Mapping[str, Any]:
        """Return what the file gives to the constructor of a class, by name."""
        args = self.said.args
        return args if isinstance(args, dict) else dict(zip(first_names(self.hook, len(args)), args, strict=False))

    def _offered(self) -> set[str]:
        """Return what the points of a plain function offer it, which the file must not give; a class is made before."""
        at = [] if isinstance(self.hook, type) else [_spec(item).at for item in self.said.points or ()]
        return {name for point in at if point in self.points for name in self.points[point].offers}

    def _methods(self) -> list[Method]:
        """Return the methods of a class that are named like points; a plain function has none."""
        if self.hook is _Missing:
            return []
        there, faults = self.inspected.methods(self.said.use)
        self._described(faults, self.where)
        return there

    def _slots(self, kind: Verb) -> dict[str, tuple[str, ...]]:
        """Return the slots that each method touches, as the file says, for all of them or by method, or the class."""
        names = dict.fromkeys([method.name for method in self.methods] or [""])
        stated = self.said.reads if kind == "reads" else self.said.writes
        if isinstance(stated, list):
            return dict.fromkeys(names, tuple(sorted(stated)))
        result, faults = ({}, []) if self.hook is _Missing else self.inspected.slots(self.said.use, kind, names)
        self._described(faults, self.where)
        keyed = {name: filled(touched, self.hook, self.name, self.said.args) for name, touched in result.items()}
        self._described(dict.fromkeys(issue for _, issues in keyed.values() for issue in issues), self.where)
        return {name: touched for name, (touched, _) in keyed.items()} | self._slots_by_method(
            kind, stated or {}, names
        )

    def _slots_by_method(
        self, kind: str, stated: Mapping[str, Sequence[str]], methods: Iterable[str]
    ) -> dict[str, tuple[str, ...]]:
        """Return the slots of those methods for which the file says them."""
        for name in stated:
            if self.hook is not _Missing and name not in methods:
                message = f'hook "{self.name}" has no method "{name}"'
                hint = nearest(name, methods) if self.methods else f"a plain function has none: {kind} = [...]"
                self.problems.append(Problem(message, self._place(f"{kind}.{name}"), hint))
        return {name: tuple(sorted(slots)) for name, slots in stated.items()}

    def _without_effect(self) -> Iterator[Problem]:
        """Yield each key of the whole hook that holds at none of its points."""
        stated = [_spec(item) for item in self.said.points or ()]
        for field in ("every", "from_", "until", "when", *KEYS):
            key = field.rstrip("_")
            whole = getattr(self.said, field)
            if whole is not None and stated and all(getattr(spec, field) is not None for spec in stated):
                message = f'hook "{self.name}": {key} has no effect, since each of its points has its own'
                hint = f"change that one: hooks.{self.name}.points.0.{key}"
                yield Problem(message, self._place(key), hint)

    def _chosen(self) -> list[Method]:
        """Return the methods of a class that are bound unless the file names points."""
        points = points_for(self.hook, self._arguments())
        return [method for method in self.methods if points is None or method.name in points]

    def _every(self, point: str) -> int | str | None:
        """Return the hook-wide `every` at a point; a bare number holds at points of batches alone, if there are any."""
        every = self.said.every
        return None if isinstance(every, int) and self.of_batches and not self.points[point].of_batches else every

    @cached_property
    def of_batches(self) -> bool:
        """Whether the hook fires at any point that comes for each iteration or batch."""
        stated = self.said.points
        names = [_spec(item).at for item in stated] if stated is not None else [m.name for m in self._chosen()]
        return any(self.points[point].of_batches for name in names for point, _ in places_of(name, self.points))

    def _bindings(self) -> list[Binding]:
        """Return what is bound: the points of the file, or else every point that the class has a method for."""
        if self.said.points is not None:
            result = [bound for k, item in enumerate(self.said.points) for bound in self._stated(k, item)]
            self._refuse_twice(result)
            return result
        if not self.methods and (not isinstance(self.hook, type) or makes_callables(self.hook)):
            message = f'hook "{self.name}" is a plain function, which does not say where it belongs'
            self.problems.append(Problem(message, self.where, 'name its points: points = ["after_train_epoch"]'))
            self._fill_all()
        return [self._bound(method) for method in self._chosen()]

    def _stated(self, k: int, item: str | BindingSpec) -> Iterable[Binding]:
        """Return what one entry of the file's `points` binds."""
        spec = _spec(item)
        where = self._place(f"points.{k}" if isinstance(item, str) else f"points.{k}.at")
        if spec.at not in self.points.names:
            hint = nearest(spec.at, self.points.names)
            self.problems.append(Problem(f'there is no point "{spec.at}"', where, hint))
            self._fill_all()
        elif self.hook is _Missing or self._may_have(spec.at):
            result = [Method(point, "", half, ()) for point, half in places_of(spec.at, self.points)]
            return [self._bound(method, spec, f"points.{k}") for method in result]
        elif isinstance(self.hook, type) and (self.methods or not makes_callables(self.hook)):
            chosen = [method for method in self.methods if spec.at == method.name]
            if not chosen:
                has = dict.fromkeys(method.name for method in self.methods)
                message = f'hook "{self.name}" ({self.said.use}) has no method for {spec.at}'
                self.problems.append(Problem(message, where, f"it has {', '.join(has)}"))
            return [self._bound(method, spec, f"points.{k}") for method in chosen]
        elif spec.at.startswith("around_"):
            self.problems.append(Problem(f"a plain function cannot stand {spec.at}; a class can", where))
            self._fill_all()
        else:
            if isinstance(self.hook, type):
                method, faults = object_at(self.hook, spec.at, self.points)
            else:
                method, faults = function_at(self.hook, spec.at, self.said.args, self.points, self._offered())
            self._described(faults, where)
            return [self._bound(method, spec, f"points.{k}")]
        return []

    def _fill_all(self) -> None:
        """Take each argument of a plain function as given: at a wrong point they are unknown."""
        if self.hook is not _Missing:
            self.filled.update(parameter.name for parameter in parameters_of(self.hook))

    def _may_have(self, method: str) -> bool:
        """Say whether the hook may have a method that is not seen."""
        return self.hook is NotImported and method not in {seen.name for seen in self.methods}

    def _refuse_twice(self, result: Sequence[Binding]) -> None:
        seen = [(bound.point, bound.half) for bound in result]
        for point in sorted({point for point, half in seen if seen.count((point, half)) > 1}):
            self.problems.append(Problem(f'hook "{self.name}" is bound to {point} twice', self._place("points")))

    def _bound(self, method: Method, spec: BindingSpec | None = None, key: str = "") -> Binding:
        whole, near = self.said, spec
        self.filled.update(method.names)
        at = method.point, method.half
        self.near_after += self._wishes(near.after if near else [], f"{key}.after", "file", at)
        self.near_before += self._wishes(near.before if near else [], f"{key}.before", "file", at)
        return Binding(
            id=-1,
            hook=self.name,
            phase=self._phase(),
            point=method.point,
            method=method.name,
            half=method.half,
            takes=method.takes,
            trigger=Trigger(
                every=_text((near and near.every) or self._every(method.point)),
                since=_text((near and near.from_) or whole.from_),
                until=_text((near and near.until) or whole.until),
                when=(near and near.when) or whole.when,
            ),
            reads=self.reads.get(method.name, ()),
            writes=self.writes.get(method.name, ()),
            parameters=self.parameters.of(method.point, near, key),
            **self.inside.of(method, near, key),
        )

    def _all_wishes(self, key: str) -> tuple[EdgeSpec, ...]:
        """Return the hook-wide specs: the file's if it states any, or none; else those of the class."""
        if key in self.said.model_fields_set:
            return self._wishes(getattr(self.said, key), key, "file")
        stated = () if self.hook is _Missing else self.inspected.names(self.said.use, key)
        return self._wishes(dict.fromkeys(stated), "", "class")

    def _wishes(
        self, names: Iterable[str], key: str, kind: EdgeKind, at: tuple[str, Half] | None = None
    ) -> tuple[EdgeSpec, ...]:
        thing = self.hook if hasattr(self.hook, "__name__") else type(self.hook)
        of = f"{'class' if isinstance(thing, type) else 'function'} {thing.__name__}"

        def where(k: int) -> Where:
            return self._place(f"{key}.{k}") if kind == "file" else Where(of)

        return tuple(EdgeSpec(n.removesuffix("?"), n.endswith("?"), kind, where(k), at) for k, n in enumerate(names))

    def _described(self, faults: Iterable[Issue], where: Where) -> None:
        self.problems += (Problem(message, where, hint) for message, hint in faults)

    def _place(self, key: str) -> Where:
        return self.places.of(f"hooks.{self.name}.{key}")


def _spec(item: str | BindingSpec) -> BindingSpec:
    return _at(item) if isinstance(item, str) else item


@cache
def _at(point: str) -> BindingSpec:
    return BindingSpec(at=point)


def _text(amount: int | str | None) -> str | None:
    return None if amount is None else str(amount)
