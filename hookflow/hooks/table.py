"""The table of one hook in a pipeline file, converted into a node of the graph."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.offload import Offload
from hookflow.graph.plan import PHASES, RANKS, Binding, EdgeKind, EdgeSpec, Half, Node, Phase, PlannedHook, Trigger
from hookflow.graph.points import Point, Points
from hookflow.graph.slots import Verb
from hookflow.hooks.arguments import first_names, parameters_of, wrong_arguments
from hookflow.hooks.inspect import Inspection, Issue, Method, call_at, makes_callables, places_of, points_for
from hookflow.hooks.registry import NotImported
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.schema import BindingSpec, HookNode

Inspect = Callable[[str, Where | None], Inspection]
"""Finds a hook by its `use`, and inspects it once. Raises UserError at the place if there is none."""

MODULE_KEYS = ("modules", "stages", "prepend", "always_call")
KEYS = (*MODULE_KEYS, "parameters")
"""The keys that say for which modules and parameters a hook fires, and how."""
ALLOWED = {"module": MODULE_KEYS, "state": ("modules",), "parameter": ("parameters",)}
"""The keys that a binding may have, by the kind of its point."""
EXAMPLES = {
    "modules": 'name them as a glob: modules = ["layer*.conv?"]; ["*"] is every one',
    "parameters": 'name them as a glob: parameters = ["*.weight"]; ["*"] is every one',
}

_KEY = re.compile(r"\{(\w*)(\??)\}")


def filled(
    slots: Iterable[str], hook: Callable[..., Any], name: str, args: Mapping[str, Any] | Sequence[Any]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the slots with their keys (see `Hook.slot_keys`), and those that have an unknown one, by that.

    `name` is the hook's own.
    """
    result: dict[str, None] = {}
    lacks: dict[str, str] = {}
    keys: Mapping[str, Any] = {}
    for slot in slots:
        wanted = _KEY.findall(slot)
        if wanted and not keys:
            whole = {p.name: None if p.default is p.empty else p.default for p in parameters_of(hook)}
            whole |= _by_name(hook, args)
            keys = {**whole, **getattr(hook, "slot_keys", dict)(whole), "name": name}
        if unknown := [key for key, _ in wanted if key not in keys]:
            lacks |= dict.fromkeys(unknown, f'a slot "{slot}"')
            continue
        for values in product(*(_values(keys[key], optional) for key, optional in wanted)):
            result[_fill(slot, values)] = None
    return tuple(sorted(result)), lacks


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


class HookTable:
    """The table of a hook, as it is declared; `problems` is what is wrong with it.

    `prepended` are the points where the hook is prepended, with the place in the file; `offloads` says by point and
    half whether it is to be offloaded there, and with which key.
    """

    def __init__(self, name: str, declaration: HookNode, loaded: Loaded, inspect: Inspect, points: Points) -> None:
        self.name = name
        self.called = f'hook "{name}"'
        self.table = declaration
        self.stated = [BindingSpec(at=item) if isinstance(item, str) else item for item in declaration.points or ()]
        self.public_args = loaded.public.hooks[name].args
        self.compiles, self.overfit = bool(loaded.pipeline.run.compile), loaded.pipeline.run.overfit
        self.places = loaded.places
        self.points = points
        self.where = self._place("use")
        self.problems: list[Problem] = []
        self.prepended: dict[str, Where] = {}
        self.offloads: dict[tuple[str, Half], tuple[Offload, str]] = {}
        self.filled: set[str] = set()  # arguments of a plain function that its points give it
        self.near_after: tuple[EdgeSpec, ...] = ()  # edges that the file states at one of `points`
        self.near_before: tuple[EdgeSpec, ...] = ()
        try:
            self.inspection = inspect(declaration.use, self.where)
        except UserError as error:  # its points and edges are checked anyway
            self.problems += error.problems
            self.inspection = Inspection(NotImported, points)
        self.hook = self.inspection.hook
        self.is_class = isinstance(self.hook, type)
        self.methods = self.inspection.methods
        self._report(self.inspection.issues, self.where)
        self.lacks: dict[str, str] = {}  # arguments that the class names and does not take, with where it does
        self.reads = self._slots("reads")
        self.writes = self._slots("writes")
        self._report(self._lacking(), self.where)

    def node(self) -> Node:
        """Return the node, which is of use for a plan only if there are no problems."""
        bound = self._bindings()
        self.problems += self._without_effect(bound)
        self._check_arguments()
        ranks = self.table.ranks or getattr(self.hook, "ranks", "all")
        hook = PlannedHook(
            name=self.name,
            use=self.table.use,
            args=self.public_args,
            phase=self._phase(),
            about=self.inspection.about,
            where=self.places.of(f"hooks.{self.name}").at_line,
            on_error=self.table.on_error,
            ambiguous_with=tuple(name.removesuffix("?") for name in self.table.ambiguous_with),
            ranks=ranks if ranks in RANKS else "all",
            default=self.table.default,
            settable=self.inspection.names("settable") if self.is_class else (),
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
            text = f"{self.called}: {self.table.use} is not imported: only the keys of this table are known"
            yield Problem(text, self.where)

    def _phase(self) -> Phase:
        stated = self.table.phase or getattr(self.hook, "phase", "normal")
        return stated if stated in PHASES else "normal"  # the check of the class reports it

    def _check_arguments(self) -> None:
        problems = list(
            wrong_arguments(
                self.hook,
                self.table.args,
                self.called,
                lambda key: self._place(f"args.{key}" if key else "use"),
                () if self.is_class else self.filled,
                self._offered(),
                self.public_args,
            )
        )
        check = getattr(self.hook, "check_arguments", None)
        args = _by_name(self.hook, self.table.args)
        known = {name: args[name] for name in args.keys() & {each.name for each in parameters_of(self.hook)}}
        if self.is_class and check is not None and len(problems) <= len(args) - len(known):  # they are the unknown ones
            overridden = (place for name in args if not (place := self._place(f"args.{name}")).line)
            try:
                check(known if problems else args)
            except UserError as error:
                problems += error.at(next(overridden, self._place("args"))).problems
            except ValueError as error:
                problems.append(Problem(f"{self.called}: {error}", next(overridden, self._place("args"))))
        self.problems += problems

    def _offered(self) -> set[str]:
        at = [] if self.is_class else [spec.at for spec in self.stated]
        return {name for point in at if point in self.points for name in self.points[point].offers}

    def _slots(self, verb: Verb) -> dict[str, tuple[str, ...]]:
        """Return the slots that each method touches, as the file says, for all of them or by method, or the class."""
        names = self.inspection.method_names
        stated = self.table.reads if verb == "reads" else self.table.writes
        if isinstance(stated, list):
            return dict.fromkeys(names, tuple(sorted(stated)))
        result: dict[str, tuple[str, ...]] = {}
        declared, issues = self.inspection.slots(verb)
        for name, slots in declared.items():
            result[name], lacks = filled(slots, self.hook, self.name, self.table.args)
            self.lacks |= lacks
        self._report(dict.fromkeys(issues), self.where)
        for name in stated or {}:
            if self.hook is not NotImported and name not in names:
                hint = nearest(name, names) if self.methods else f"a plain function has none: {verb} = [...]"
                self._wrong(f'{self.called} has no method "{name}"', f"{verb}.{name}", hint)
        return result | {name: tuple(sorted(slots)) for name, slots in (stated or {}).items()}

    def _lacking(self) -> Iterator[Issue]:
        takes = [parameter.name for parameter in parameters_of(self.hook)]
        settable = self.inspection.names("settable") if self.is_class and self.hook is not NotImported else ()
        self.lacks |= {name: f'a settable "{name}"' for name in settable if name not in takes}
        if self.lacks:
            has, names = ", ".join({**dict.fromkeys(self.lacks.values())}), '", "'.join(self.lacks)
            hint = nearest(names, takes) or "an __init__ of its own takes them, too, and hands them to that of the base"
            yield f'{getattr(self.hook, "__name__", repr(self.hook))} has {has}, and no argument "{names}"', hint

    def _chosen(self) -> list[Method]:
        points = points_for(self.hook, _by_name(self.hook, self.table.args))
        return [method for method in self.methods if points is None or method.name in points]

    @cached_property
    def of_batches(self) -> bool:
        """Whether the hook fires at any point that comes for each iteration or batch."""
        names = [m.name for m in self._chosen()] if self.table.points is None else [spec.at for spec in self.stated]
        return any(self.points[point].of_batches for name in names for point, _ in places_of(name, self.points))

    def _bindings(self) -> list[Binding]:
        if self.table.points is not None:
            result = [bound for k, spec in enumerate(self.stated) for bound in self._bind_stated(k, spec)]
            seen = [(bound.point, bound.half) for bound in result]
            for point in sorted({point for point, half in seen if seen.count((point, half)) > 1}):
                self._wrong(f"{self.called} is bound to {point} twice", "points")
            return result
        if not self.methods and (not isinstance(self.hook, type) or makes_callables(self.hook)):
            message = f"{self.called} is a plain function, which does not say where it belongs"
            self._wrong_point(message, "use", 'name its points: points = ["after_train_epoch"]')
        return [self._bind(method) for method in self._chosen()]

    def _bind_stated(self, k: int, spec: BindingSpec) -> Iterable[Binding]:
        key = f"points.{k}" if isinstance((self.table.points or ())[k], str) else f"points.{k}.at"
        if spec.at not in self.points.names:
            self._wrong_point(f'there is no point "{spec.at}"', key, nearest(spec.at, self.points.names))
            return []
        has = dict.fromkeys(method.name for method in self.methods)
        if self.hook is NotImported and spec.at not in has:  # it may have a method there
            bound = [Method(point, "", half, ()) for point, half in places_of(spec.at, self.points)]
        elif isinstance(self.hook, type) and (self.methods or not makes_callables(self.hook)):
            bound = [method for method in self.methods if spec.at == method.name]
            if not bound and self.methods:
                message = f"{self.called} ({self.table.use}) has no method for {spec.at}"
                self._wrong(message, key, f"it has {', '.join(has)}")
        elif spec.at.startswith("around_"):
            self._wrong_point(f"a plain function cannot stand {spec.at}; a class can", key)
            return []
        else:
            method, issues = call_at(self.hook, spec.at, self.points, self.table.args, self._offered())
            self._report(issues, self._place(key))
            bound = [method]
        return [self._bind(method, spec, f"points.{k}") for method in bound]

    def _wrong_point(self, message: str, key: str, hint: str = "") -> None:
        """Report a wrong point. It might give a plain function any argument: none is reported as missing."""
        self._wrong(message, key, hint)
        self.filled.update(parameter.name for parameter in parameters_of(self.hook))

    def _bind(self, method: Method, near: BindingSpec | None = None, key: str = "") -> Binding:
        every, since, until, when = (self._stated(name, near)[0] for name in ("every", "from_", "until", "when"))
        of_all = near is None or near.every is None
        if of_all and isinstance(every, int) and self.of_batches and not self.points[method.point].of_batches:
            every = None  # a bare number holds at points of batches alone, if there are any
        if self.overfit and isinstance(every, int) and every > self.overfit:
            every = getattr(self.hook, "every_if_overfit", every)
        self.filled.update(method.names)
        at = method.point, method.half
        self.offloads[at] = self._stated("offload", near, key)
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
            trigger=Trigger(every=_text(every), since=_text(since), until=_text(until), when=when),
            reads=self.reads.get(method.name, ()),
            writes=self.writes.get(method.name, ()),
            **self._picks(self.points[method.point], near, key),
        )

    def _stated(self, name: str, near: BindingSpec | None, key: str = "") -> tuple[Any, str]:
        if near is not None and getattr(near, name) is not None:
            return getattr(near, name), f"{key}.{name}"
        return getattr(self.table, name), name

    def _picks(self, point: Point, near: BindingSpec | None, key: str) -> dict[str, Any]:
        """Return what a binding has of KEYS; `near` is its entry in the file's `points`, which stands at `key`."""
        for name in KEYS:
            if near and getattr(near, name) is not None and name not in ALLOWED.get(point.kind, ()):
                kind = "parameter" if name == "parameters" else "forward or backward" if point.picks else "module"
                self._wrong(f"{name} is not allowed at {point.name}: it is not a {kind} point", f"{key}.{name}")
        result: dict[str, Any] = {point.picks: self._picked(point.picks, point, near, key)} if point.picks else {}
        if point.kind != "module":
            return result
        prepend, prepend_at = self._stated("prepend", near, key)
        always, always_at = self._stated("always_call", near, key)
        is_forward = point.name == "forward"
        if near and near.always_call is not None and not is_forward:
            self._wrong(f"{self.called}: always_call is for forward, not for {point.name}", f"{key}.always_call")
        if always and self.compiles and is_forward:
            message = f"{self.called}: torch.compile does not honour always_call"
            self._wrong(message, always_at, "take it out, or take run.compile out")
        if prepend:
            self.prepended[point.name] = self._place(prepend_at)
        stages = self._stages(point.name, near, key)
        return {**result, "stages": stages, "prepend": bool(prepend), "always_call": bool(always) and is_forward}

    def _picked(self, picks: str, point: Point, near: BindingSpec | None, key: str) -> tuple[str, ...]:
        result = tuple(self._stated(picks, near)[0] or self.inspection.names(picks))
        if not result and self.hook is not NotImported:
            message = f"{self.called} does not say at which {picks} {point.name} fires"
            self._wrong(message, key or "use", EXAMPLES[picks])
        return result

    def _stages(self, point: str, near: BindingSpec | None, key: str) -> tuple[str, ...]:
        """Return the stages that are stated. In val and test there are no gradients, and nothing goes backward."""
        stages, at = self._stated("stages", near, key)
        if not point.startswith("full_backward"):
            return tuple(dict.fromkeys(stages or ()))
        without = [stage for stage in stages or () if stage != "train"]
        if without and (at != "stages" or "train" not in stages):
            message = f"{self.called} never fires at {point} in {' and '.join(without)}, where gradients are off"
            self._wrong(message, at, 'name the points that it has to do with: points = ["forward"]')
        return ()

    def _without_effect(self, bound: Sequence[Binding]) -> Iterator[Problem]:
        """Yield each key of the whole hook that holds at none of its points."""
        points = [self.points[item.point] for item in bound]
        for field in ("every", "from_", "until", "when", *KEYS) if bound else ():
            why, hint = "", f"it is at {', '.join(dict.fromkeys(point.name for point in points))}"
            key = field.rstrip("_")
            holds = [point for point in points if key in ALLOWED.get(point.kind, ()) or key not in KEYS]
            if not holds:
                why = f"it is at no point of a {'parameter' if key == 'parameters' else 'module'}"
            elif key == "always_call" and all(point.name != "forward" for point in holds):
                why = "it is not at forward"
            elif self.stated and all(getattr(spec, field) is not None for spec in self.stated):
                why, hint = "each of its points has its own", f"change that one: {key} in hooks.{self.name}.points"
            if why and getattr(self.table, field) is not None:
                yield Problem(f"{self.called}: {key} has no effect, since {why}", self._place(key), hint)

    def _all_edges(self, key: str) -> tuple[EdgeSpec, ...]:
        """Return the hook-wide specs: the file's if it states any, or none; else those of the class."""
        if key in self.table.model_fields_set:
            return self._edges(getattr(self.table, key), key, "file")
        return self._edges(dict.fromkeys(self.inspection.names(key)), "", "class")

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

    def _wrong(self, message: str, key: str, hint: str = "") -> None:
        self.problems.append(Problem(message, self._place(key), hint))

    def _place(self, key: str) -> Where:
        return self.places.of(f"hooks.{self.name}.{key}")


def _text(amount: int | str | None) -> str | None:
    return None if amount is None else str(amount)
