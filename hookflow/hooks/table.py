"""The table of one hook in a pipeline file, converted into a node of the graph."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.groups import GroupExpander
from hookflow.graph.offload import Offload
from hookflow.graph.plan import (
    PHASES,
    RANK_CHOICES,
    DeclaredBinding,
    EdgeKind,
    EdgeSpec,
    Half,
    Node,
    Phase,
    PlannedHook,
    Ranks,
    Trigger,
)
from hookflow.graph.points import Point, Points
from hookflow.graph.slots import Verb
from hookflow.hooks.arguments import find_argument_problems, named_arguments, parameters_of
from hookflow.hooks.foreign_names import translate_point
from hookflow.hooks.inspect import (
    Inspection,
    Issue,
    Method,
    call_at,
    find_places_of_method,
    is_callable_class,
    points_for,
)
from hookflow.hooks.registry import NotImported
from hookflow.hooks.slot_keys import fill_slots
from hookflow.hooks.spec import make_spec
from hookflow.pipeline.amounts import Amount, parse_amount
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.schema import BindingSpec, HookNode

Inspect = Callable[[str, Where | None], Inspection]
"""Finds a hook by its `use`, and inspects it once.

Raises UserError at the place if there is none.
"""

MODULE_KEYS = ("modules", "stages", "prepend", "always_call")
PICK_KEYS = (*MODULE_KEYS, "parameters")
"""The keys that say for which modules and parameters a hook fires, and how."""
KEYS_BY_POINT_KIND = {"module": MODULE_KEYS, "state": ("modules",), "parameter": ("parameters",)}
"""The keys that a binding may have, by the kind of its point."""
KEY_HINTS = {
    "modules": 'name them as a glob: modules = ["layer*.conv?"]; ["*"] is every one',
    "parameters": 'name them as a glob: parameters = ["*.weight"]; ["*"] is every one',
}


def _list_stated_points(declaration: HookNode) -> list[BindingSpec]:
    """Return the entries of the file's `points`; a name alone is one with nothing else."""
    return [
        BindingSpec(at=item) if isinstance(item, str) else item for item in declaration.points or ()
    ]


class HookTable:
    """The table of a hook, as it is declared; `problems` is what is wrong with it.

    `prepended` are the points where the hook is prepended, with the place in the file; `offloads`
    says by point and half whether it is to be offloaded there, and with which key.
    """

    def __init__(
        self, name: str, declaration: HookNode, loaded: Loaded, inspect: Inspect, points: Points
    ) -> None:
        self.name = name
        self.called = f'hook "{name}"'
        self.table = declaration
        self.stated = _list_stated_points(declaration)
        self.public_args = loaded.public.hooks[name].args
        self.compiles = bool(loaded.pipeline.run.compile)
        overfit = loaded.pipeline.run.overfit
        # Where `overfit` is a share, only the data know how many batches that is.
        self.overfit = overfit if isinstance(overfit, int) else None
        self.places = loaded.places
        self.points = points
        self.where = self._find_place("use")
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
        self.capabilities = self.inspection.capabilities
        """The values of the class; once the arguments are known to be sound, those with them."""
        self.methods = self.inspection.methods
        self._report(self.inspection.issues, self.where)
        # By argument that the class names but does not take: the words for where it names it.
        self.lacks: dict[str, str] = {}
        self.reads = self._read_slots("reads")
        self.writes = self._read_slots("writes")
        self._report(self._find_missing_arguments(), self.where)

    def node(self, groups: GroupExpander) -> Node:
        """Return the node, which is of use for a plan only if there are no problems.

        `groups` are put in the place of their names in edges.
        """
        bound = self._make_bindings()
        self.problems += self._without_effect(bound)
        self._check_arguments()
        after = (*self._all_edges("after"), *self.near_after)
        before = (*self._all_edges("before"), *self.near_before)
        requires = self._all_edges("requires")
        groups.report_required_groups(self.name, self.where, requires)
        ambiguous_with = self._edges(self.table.ambiguous_with, "ambiguous_with", "file")
        ambiguous_with = groups.expand(self.name, self.where, ambiguous_with)
        throttle = ""
        if self.table.over_budget == "throttle":
            throttle = str(self.table.budget or "")
        hook = PlannedHook(
            name=self.name,
            use=self.table.use,
            args=self.public_args,
            phase=self._phase(),
            about=self.inspection.about,
            where=self.places.of(f"hooks.{self.name}").at_line,
            on_error=self.table.on_error,
            ambiguous_with=tuple(spec.hook for spec in ambiguous_with),
            ranks=self._read_ranks(),
            default=self.table.default,
            settable=self._read_settable(),
            retry=self.table.retry,
            throttle=throttle,
        )
        return Node(
            hook=hook,
            where=self.where,
            bound=tuple(bound),
            after=groups.expand(self.name, self.where, after),
            before=groups.expand(self.name, self.where, before),
            requires=requires,
            ambiguous_with=ambiguous_with,
        )

    def unknown(self) -> Iterator[Problem]:
        """Yield a problem if the hook is not imported."""
        if self.hook is NotImported:
            text = (
                f"{self.called}: {self.table.use} is not imported: only the keys of this table are"
                " known"
            )
            yield Problem(text, self.where)

    def _phase(self) -> Phase:
        stated = self.table.phase or getattr(self.hook, "phase", "normal")
        if stated not in PHASES:  # the check of the class reports it
            return "normal"
        return stated

    def _read_ranks(self) -> Ranks:
        stated = self.table.ranks or getattr(self.hook, "ranks", "all")
        if stated not in RANK_CHOICES:  # the check of the class reports it
            return "all"
        return stated

    def _read_settable(self) -> tuple[str, ...]:
        if not self.is_class or self.hook is NotImported:
            return ()
        return self.inspection.names("settable")

    def _check_arguments(self) -> None:
        """Report wrong arguments.

        Where nothing is wrong with the hook, its capabilities are read with them.
        """
        if self.is_class:
            filled = set()
        else:
            filled = self.filled
        problems = list(
            find_argument_problems(
                self.hook,
                self.table.args,
                self.called,
                self._find_argument_place,
                filled,
                self._collect_offered_arguments(),
                self.public_args,
            )
        )
        args = named_arguments(self.hook, self.table.args)
        parameters = {each.name for each in parameters_of(self.hook)}
        known = {name: value for name, value in args.items() if name in parameters}
        has_only_unknown = len(problems) <= len(args) - len(known)
        if self.is_class and has_only_unknown:
            if problems:
                passed = known
            else:
                passed = args
            problems += self._find_joint_problems(passed, args)
        self.problems += problems
        if not self.problems:
            self.capabilities = make_spec(
                self.name, self.hook, self.table.args, self.where
            ).capabilities

    def _find_joint_problems(self, args: Mapping[str, Any], stated: Iterable[str]) -> list[Problem]:
        """Return what the class itself finds wrong with arguments that are valid one by one.

        Its place is that of the first of the `stated` arguments that stands in no file, or of all
        of them.
        """
        check = getattr(self.hook, "check_arguments", None)
        if check is None:
            return []
        place = self._find_place("args")
        for name in stated:
            own_place = self._find_place(f"args.{name}")
            if not own_place.line:
                place = own_place
                break
        try:
            check(args)
        except UserError as error:
            return error.at(place).problems
        except ValueError as error:
            return [Problem(f"{self.called}: {error}", place)]
        return []

    def _find_argument_place(self, key: str) -> Where:
        return self._find_place(f"args.{key}" if key else "use")

    def _collect_offered_arguments(self) -> set[str]:
        """Return the arguments that the points of a plain function offer."""
        offered: set[str] = set()
        if self.is_class:
            return offered
        for spec in self.stated:
            if spec.at in self.points:
                offered.update(self.points[spec.at].offers)
        return offered

    def _read_slots(self, verb: Verb) -> dict[str, tuple[str, ...]]:
        """Return the slots that each method touches.

        The file says them for all methods or by method, or else the class does.
        """
        names = self.inspection.method_names
        if verb == "reads":
            stated = self.table.reads
        else:
            stated = self.table.writes
        if isinstance(stated, list):
            return dict.fromkeys(names, tuple(sorted(stated)))
        result: dict[str, tuple[str, ...]] = {}
        declared, issues = self.inspection.slots(verb)
        for name, slots in declared.items():
            result[name], lacks = fill_slots(slots, self.hook, self.name, self.table.args)
            self.lacks |= lacks
        self._report(dict.fromkeys(issues), self.where)
        for name in stated or {}:
            if self.hook is not NotImported and name not in names:
                if self.methods:
                    hint = nearest(name, names)
                else:
                    hint = f"a plain function has none: {verb} = [...]"
                self._report_problem(
                    f'{self.called} has no method "{name}"', f"{verb}.{name}", hint
                )
        return result | {name: tuple(sorted(slots)) for name, slots in (stated or {}).items()}

    def _find_missing_arguments(self) -> Iterator[Issue]:
        takes = [parameter.name for parameter in parameters_of(self.hook)]
        for name in self._read_settable():
            if name not in takes:
                self.lacks[name] = f'a settable "{name}"'
        if self.lacks:
            has = ", ".join({**dict.fromkeys(self.lacks.values())})
            names = '", "'.join(self.lacks)
            hint = (
                nearest(names, takes)
                or "an __init__ of its own takes them, too, and hands them to that of the base"
            )
            yield (
                (
                    f"{getattr(self.hook, '__name__', repr(self.hook))} has {has}, and no argument"
                    f' "{names}"'
                ),
                hint,
            )

    def _choose_methods(self) -> list[Method]:
        points = points_for(self.hook, named_arguments(self.hook, self.table.args))
        return [method for method in self.methods if points is None or method.name in points]

    @cached_property
    def of_batches(self) -> bool:
        """Whether the hook fires at any point that comes for each iteration or batch."""
        if self.table.points is None:
            names = [method.name for method in self._choose_methods()]
        else:
            names = [spec.at for spec in self.stated]
        for name in names:
            for point, _ in find_places_of_method(name, self.points):
                if self.points[point].of_batches:
                    return True
        return False

    def _make_bindings(self) -> list[DeclaredBinding]:
        if self.table.points is not None:
            result: list[DeclaredBinding] = []
            for k, spec in enumerate(self.stated):
                result += self._bind_stated(k, spec)
            counts = Counter((bound.point, bound.half) for bound in result)
            twice = {point for (point, _), count in counts.items() if count > 1}
            for point in sorted(twice):
                self._report_problem(f"{self.called} is bound to {point} twice", "points")
            return result
        if not self.methods and (not isinstance(self.hook, type) or is_callable_class(self.hook)):
            message = f"{self.called} is a plain function, which does not say where it belongs"
            self._report_wrong_point(
                message, "use", 'name its points: points = ["after_train_epoch"]'
            )
        return [self._bind(method) for method in self._choose_methods()]

    def _bind_stated(self, k: int, spec: BindingSpec) -> Iterable[DeclaredBinding]:
        if isinstance((self.table.points or ())[k], str):
            key = f"points.{k}"
        else:
            key = f"points.{k}.at"
        if spec.at not in self.points.names:
            hint = translate_point(spec.at) or nearest(spec.at, self.points.names)
            self._report_wrong_point(f'there is no point "{spec.at}"', key, hint)
            return []
        has = dict.fromkeys(method.name for method in self.methods)
        if self.hook is NotImported and spec.at not in has:  # it may have a method there
            bound = [
                Method(point, "", half, ())
                for point, half in find_places_of_method(spec.at, self.points)
            ]
        elif isinstance(self.hook, type) and (self.methods or not is_callable_class(self.hook)):
            bound = [method for method in self.methods if spec.at == method.name]
            if not bound and self.methods:
                message = f"{self.called} ({self.table.use}) has no method for {spec.at}"
                self._report_problem(message, key, f"it has {', '.join(has)}")
        elif spec.at.startswith("around_"):
            self._report_wrong_point(f"a plain function cannot stand {spec.at}; a class can", key)
            return []
        else:
            method, issues = call_at(
                self.hook, spec.at, self.points, self.table.args, self._collect_offered_arguments()
            )
            self._report(issues, self._find_place(key))
            bound = [method]
        return [self._bind(method, spec, f"points.{k}") for method in bound]

    def _report_wrong_point(self, message: str, key: str, hint: str = "") -> None:
        """Report a wrong point.

        It might give a plain function any argument: none is reported as missing.
        """
        self._report_problem(message, key, hint)
        self.filled.update(parameter.name for parameter in parameters_of(self.hook))

    def _bind(
        self, method: Method, near: BindingSpec | None = None, key: str = ""
    ) -> DeclaredBinding:
        self.filled.update(method.names)
        at = method.point, method.half
        self.offloads[at] = self._read_stated("offload", near, key)
        self.near_after += self._edges(near.after if near else [], f"{key}.after", "file", at)
        self.near_before += self._edges(near.before if near else [], f"{key}.before", "file", at)
        return DeclaredBinding(
            hook=self.name,
            phase=self._phase(),
            point=method.point,
            method=method.name,
            half=method.half,
            takes=method.takes,
            trigger=self._trigger(method, near),
            reads=self.reads.get(method.name, ()),
            writes=self.writes.get(method.name, ()),
            **self._read_picks(self.points[method.point], near, key),
        )

    def _trigger(self, method: Method, near: BindingSpec | None) -> Trigger:
        every: Amount | None = self._read_stated("every", near)[0]
        is_own = near is not None and near.every is not None
        if every is not None and every.unit == "":
            is_of_batches = self.points[method.point].of_batches
            if not is_own and self.of_batches and not is_of_batches:
                every = None  # a bare number holds at points of batches alone, if there are any
            elif self.overfit and every.value > self.overfit:
                instead = self.inspection.capabilities.every_if_overfit
                if instead is not None:
                    every = parse_amount(instead)
        return Trigger(
            every=every,
            since=self._read_stated("from_", near)[0],
            until=self._read_stated("until", near)[0],
            when=self._read_stated("when", near)[0],
            once=bool(self._read_stated("once", near)[0]),
        )

    def _read_stated(self, name: str, near: BindingSpec | None, key: str = "") -> tuple[Any, str]:
        if near is not None and getattr(near, name) is not None:
            return getattr(near, name), f"{key}.{name}"
        return getattr(self.table, name), name

    def _read_picks(self, point: Point, near: BindingSpec | None, key: str) -> dict[str, Any]:
        """Return what a binding has of PICK_KEYS.

        `near` is its entry in the file's `points`, which is at `key`.
        """
        for name in PICK_KEYS:
            if (
                near
                and getattr(near, name) is not None
                and name not in KEYS_BY_POINT_KIND.get(point.kind, ())
            ):
                if name == "parameters":
                    kind = "parameter"
                else:
                    kind = "module"
                    if point.picks:
                        kind = "forward or backward"
                self._report_problem(
                    f"{name} is not allowed at {point.name}: it is not a {kind} point",
                    f"{key}.{name}",
                )
        result: dict[str, Any] = {}
        if point.picks:
            result[point.picks] = self._read_picked(point.picks, point, near, key)
        if point.kind != "module":
            return result
        prepend, prepend_at = self._read_stated("prepend", near, key)
        always, always_at = self._read_stated("always_call", near, key)
        is_forward = point.name == "forward"
        if near and near.always_call is not None and not is_forward:
            self._report_problem(
                f"{self.called}: always_call is for forward, not for {point.name}",
                f"{key}.always_call",
            )
        if always and self.compiles and is_forward:
            message = f"{self.called}: torch.compile does not honour always_call"
            self._report_problem(message, always_at, "take it out, or take run.compile out")
        if prepend:
            self.prepended[point.name] = self._find_place(prepend_at)
        stages = self._read_stages(point.name, near, key)
        return {
            **result,
            "stages": stages,
            "prepend": bool(prepend),
            "always_call": bool(always) and is_forward,
        }

    def _read_picked(
        self, picks: str, point: Point, near: BindingSpec | None, key: str
    ) -> tuple[str, ...]:
        result = tuple(self._read_stated(picks, near)[0] or self.inspection.names(picks))
        if not result and self.hook is not NotImported:
            message = f"{self.called} does not say at which {picks} {point.name} fires"
            self._report_problem(message, key or "use", KEY_HINTS[picks])
        return result

    def _read_stages(self, point: str, near: BindingSpec | None, key: str) -> tuple[str, ...]:
        """Return the stages that are stated.

        In val and test there are no gradients, and nothing goes backward.
        """
        stages, at = self._read_stated("stages", near, key)
        if not point.startswith("full_backward"):
            return tuple(dict.fromkeys(stages or ()))
        without = [stage for stage in stages or () if stage != "train"]
        if without and (at != "stages" or "train" not in stages):
            message = (
                f"{self.called} never fires at {point} in {' and '.join(without)}, where gradients"
                " are off"
            )
            self._report_problem(
                message, at, 'name the points that it has to do with: points = ["forward"]'
            )
        return ()

    def _without_effect(self, bound: Sequence[DeclaredBinding]) -> Iterator[Problem]:
        """Yield each key of the whole hook that holds at none of its points."""
        points = [self.points[item.point] for item in bound]
        if not bound:
            return
        for field in ("every", "from_", "until", "when", "once", *PICK_KEYS):
            why = ""
            hint = f"it is at {', '.join(dict.fromkeys(point.name for point in points))}"
            key = field.rstrip("_")
            holds = [
                point
                for point in points
                if key in KEYS_BY_POINT_KIND.get(point.kind, ()) or key not in PICK_KEYS
            ]
            if not holds:
                why = f"it is at no point of a {'parameter' if key == 'parameters' else 'module'}"
            elif key == "always_call" and all(point.name != "forward" for point in holds):
                why = "it is not at forward"
            elif self.stated and all(getattr(spec, field) is not None for spec in self.stated):
                why = "each of its points has its own"
                hint = f"change that one: {key} in hooks.{self.name}.points"
            if why and getattr(self.table, field) is not None:
                message = f"{self.called}: {key} has no effect, since {why}"
                yield Problem(message, self._find_place(key), hint)

    def _all_edges(self, key: str) -> tuple[EdgeSpec, ...]:
        """Return the hook-wide specs.

        They are the file's if it has the key, even with an empty list, and else those of the class.
        """
        if key in self.table.model_fields_set:
            return self._edges(getattr(self.table, key), key, "file")
        return self._edges(dict.fromkeys(self.inspection.names(key)), "", "class")

    def _edges(
        self, names: Iterable[str], key: str, kind: EdgeKind, at: tuple[str, Half] | None = None
    ) -> tuple[EdgeSpec, ...]:
        edges = []
        for k, name in enumerate(names):
            if kind == "file":
                where = self._find_place(f"{key}.{k}")
            else:
                where = self._find_place_in_code()
            is_optional = name.endswith("?")
            edges.append(EdgeSpec(name.removesuffix("?"), is_optional, kind, where, at))
        return tuple(edges)

    def _find_place_in_code(self) -> Where:
        """Return the class or function of the hook, as the source of an edge."""
        if hasattr(self.hook, "__name__"):
            thing: Any = self.hook
        else:
            thing = type(self.hook)
        kind = "function"
        if isinstance(thing, type):
            kind = "class"
        return Where(f"{kind} {thing.__name__}")

    def _report(self, issues: Iterable[Issue], where: Where) -> None:
        self.problems += (Problem(message, where, hint) for message, hint in issues)

    def _report_problem(self, message: str, key: str, hint: str = "") -> None:
        self.problems.append(Problem(message, self._find_place(key), hint))

    def _find_place(self, key: str) -> Where:
        return self.places.of(f"hooks.{self.name}.{key}")
