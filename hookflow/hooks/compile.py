"""Compile a loaded pipeline into its plan: find, inspect and check every hook, then order them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from keyword import iskeyword
from pathlib import Path
from typing import Any

from hookflow.errors import Problem, UserError, Where, make_place_key, nearest
from hookflow.graph.completion import NodeAdditions
from hookflow.graph.groups import GroupExpander, make_planned_groups
from hookflow.graph.lifetimes import find_doubtful_lifetimes
from hookflow.graph.offload import (
    MAIN_THREAD_POINTS,
    OFFERED_ATTRIBUTES,
    OWNED_SLOTS,
    OffloadRequest,
    ThrottleRequest,
    check_throttling,
)
from hookflow.graph.order import PlanRequests, compile_plan
from hookflow.graph.plan import DeclaredBinding, EdgeSpec, Node, Nodes, Plan, WantedPlaces
from hookflow.graph.points import DEFAULT_POINTS, Point, Points
from hookflow.graph.schedule import Length, is_sure_to_fire
from hookflow.graph.slots import root
from hookflow.hooks.adapter import find_adapter_edges, find_adapter_problems, group_by_adapter
from hookflow.hooks.base import Hook
from hookflow.hooks.foreign_names import translate_point
from hookflow.hooks.inspect import Inspection
from hookflow.hooks.inspection_errors import report_inspection_errors
from hookflow.hooks.own_loop import find_unattachable
from hookflow.hooks.registry import find_hook, find_without_import
from hookflow.hooks.run import Run
from hookflow.hooks.spec import FindHook
from hookflow.hooks.table import HookTable
from hookflow.hooks.uses import (
    Source,
    find_collective_problems,
    find_collectives,
    find_refused_calls,
    find_scalars,
    find_undeclared_slots,
    find_uses,
    in_words,
    source_of,
)
from hookflow.pipeline.load import Loaded, pause_garbage_collection
from hookflow.pipeline.schema import HookNode, RunSection


@pause_garbage_collection()
def compile_pipeline(
    loaded: Loaded,
    base: Path | None = None,
    shuffle: int | None = None,
    wanted: WantedPlaces | None = None,
    *,
    imports: bool = True,
) -> Plan:
    """Compile the pipeline's hooks into a plan.

    Files that the pipeline names are relative to `base`, which is its own folder if left out.
    `shuffle` is the seed of another order that the edges and phases allow; `wanted` says of every
    binding where it shall stand, likewise. Unless it `imports`, only the pipeline file's own words
    are known of the user's hooks. Raises UserError with everything that is wrong with the hooks:
    names, arguments, points, edges, cycles.
    """
    points, problems = read_own_points(loaded)
    declared = loaded.pipeline.hooks
    if imports:
        find = find_hook
    else:
        find = find_without_import
    hooks = _HookFinder(find, base or loaded.source.parent, points)
    disabled = []
    for name, declaration in declared.items():
        if not declaration.enabled:
            disabled.append(name)
    disabled += _list_replaced_defaults(declared, hooks)
    entries = {name: group.hooks for name, group in loaded.pipeline.groups.items()}
    groups, wrong_groups = make_planned_groups(entries, list(declared), disabled, loaded.places.of)
    problems += wrong_groups
    expander = GroupExpander(groups)
    enabled = [name for name in declared if name not in disabled]
    inspected = _inspect_hooks(enabled, loaded, hooks, points, expander)
    problems += inspected.problems
    problems += expander.problems
    problems += inspected.find_joint_problems(loaded, points)
    scalars = find_scalars(inspected.nodes, inspected.sources)
    problems += scalars.problems
    additions = NodeAdditions(
        after=find_adapter_edges(inspected.nodes, inspected.classes()),
        before=find_prepended_edges(inspected.nodes, inspected.prepended()),
        reads=scalars.reads,
        writes=scalars.writes,
    )
    requests = PlanRequests(inspected.make_offload_requests(), shuffle, wanted)
    plan: Plan | None = None
    try:
        run_name = loaded.pipeline.run.name
        plan = compile_plan(
            run_name, inspected.nodes, disabled, points, groups, additions, requests
        )
        throttling = check_throttling(plan, inspected.make_throttle_requests(), inspected.nodes)
        problems += throttling.problems
    except UserError as error:
        problems += error.problems
    if problems or plan is None:
        raise UserError(sorted(problems, key=make_place_key))
    warnings = list(inspected.warnings)
    warnings += find_undeclared_slots(plan, inspected.nodes, inspected.sources)
    warnings += find_misjudged_averages(plan, inspected.tables)
    doubtful, notes = find_doubtful_lifetimes(
        plan, inspected.nodes, loaded.pipeline.run.validates.by_iterations
    )
    return replace(
        plan,
        warnings=(*plan.warnings, *throttling.warnings, *scalars.warnings, *doubtful, *warnings),
        notes=(*plan.notes, *throttling.notes, *notes),
        unknown=tuple(inspected.unknown()),
    )


@dataclass
class InspectedHooks:
    """The enabled hooks of a pipeline, by their names, and what is wrong with each by itself.

    `sources` are those of each hook's methods. A hook whose inspection has failed is in `problems`
    alone.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    tables: dict[str, HookTable] = field(default_factory=dict)
    sources: dict[str, dict[str, Source | None]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def classes(self) -> dict[str, Callable[..., Any]]:
        return {name: table.hook for name, table in self.tables.items()}

    def prepended(self) -> dict[str, Mapping[str, Where]]:
        """Return by hook the points at which it is prepended, each with its place in the file."""
        return {name: table.prepended for name, table in self.tables.items()}

    def make_offload_requests(self) -> dict[str, OffloadRequest]:
        requests = {}
        for name, table in self.tables.items():
            requests[name] = _make_offload_request(table, self.nodes[name], self.sources[name])
        return requests

    def make_throttle_requests(self) -> dict[str, ThrottleRequest]:
        requests = {}
        for name, table in self.tables.items():
            if table.table.over_budget == "throttle":
                requests[name] = _make_throttle_request(table)
        return requests

    def find_joint_problems(self, loaded: Loaded, points: Points) -> list[Problem]:
        """Return what is wrong with hooks beside one another, and with the keys of the run."""
        problems = [*find_comm_hook_problems(self.nodes)]
        problems += find_retry_problems(self.nodes, points)
        problems += find_double_backward_problems(self.tables, loaded.pipeline.run)
        problems += wrong_rate_setters(self.nodes, loaded.pipeline.run)
        if loaded.pipeline.run.is_endless and not loaded.is_attached:
            problems += wrong_without_end(self.nodes, self.tables, self.classes())
        if loaded.is_attached:
            problems += find_unattachable(self.tables, self.nodes, self.sources)
        problems += find_adapter_problems(self.nodes, self.classes())
        return problems

    def unknown(self) -> list[Problem]:
        """Return what cannot be known of hooks, their files not being imported."""
        problems: list[Problem] = []
        for table in self.tables.values():
            problems += table.unknown()
        return problems


def _inspect_hooks(
    names: Sequence[str],
    loaded: Loaded,
    hooks: "_HookFinder",
    points: Points,
    expander: GroupExpander,
) -> InspectedHooks:
    """Return what each of these hooks is; what looking at one raises becomes a problem."""
    inspected = InspectedHooks()
    comes = partial(is_sure_to_fire, points=points, length=Length.of(loaded.pipeline))
    for name in names:
        declaration = loaded.pipeline.hooks[name]
        try:
            with report_inspection_errors(
                declaration.use, loaded.places.of(f"hooks.{name}.use"), f'hook "{name}": '
            ):
                table = HookTable(name, declaration, loaded, hooks.inspect, points)
                node = table.node(expander)
                inspected.problems += table.problems
                methods = dict.fromkeys(bound.method for bound in node.bound)
                sources = {method: source_of(table.hook, method) for method in methods}
                inspected.sources[name] = sources
                refused = find_refused_calls(sources, node, comes)
                inspected.problems += refused.errors
                inspected.warnings += refused.warnings
                inspected.warnings += find_collective_problems(sources, node)
                inspected.nodes[name] = node
                inspected.tables[name] = table
        except UserError as error:
            inspected.problems += error.problems
    return inspected


TRAINING_ATTRIBUTES = (frozenset(dir(Run)) | Run.__annotations__.keys()) - OFFERED_ATTRIBUTES
"""The attributes of the run that belong to the training thread."""


def _make_offload_request(
    table: HookTable, node: Node, sources: Mapping[str, Source | None]
) -> OffloadRequest:
    """Return the keys of a hook's table about its thread, and the first obstacle in its source."""
    keys = table.table
    timeout = 0.0
    if keys.timeout is not None:
        timeout = float(keys.timeout.value)
    wanted = {at: (offload, key) for at, (offload, key) in table.offloads.items() if offload}
    spared = {
        at for at, (_, key) in wanted.items() if key == "offload" and at[0] in MAIN_THREAD_POINTS
    }
    strength = ("auto", True, "process").index
    offload, key = max(
        wanted.values(), key=lambda each: strength(each[0]), default=(keys.offload, "offload")
    )
    at = wanted.keys() - spared
    where = table.places.of(f"hooks.{table.name}.{key}")
    bound = [each for each in node.bound if (each.point, each.half) in at]
    obstacle = ""
    if offload:
        obstacle = next(_iter_obstacles(table, bound, sources), "")
    if offload == "process":
        obstacle = obstacle or table.capabilities.process_blocker
    if {True, "process"} <= {each for each, _ in wanted.values()}:
        obstacle = "it fires in a thread at one point and in a process at another"
    return OffloadRequest(offload, at, keys.queue, keys.when_full, timeout, where, obstacle)


def _make_throttle_request(table: HookTable) -> ThrottleRequest:
    where = table.places.of(f"hooks.{table.name}.over_budget")
    stateful = getattr(table.hook, "state_dict", Hook.state_dict) is not Hook.state_dict
    return ThrottleRequest(where, stateful, table.capabilities.offload_blocker)


def _iter_obstacles(
    table: HookTable, bound: Sequence[DeclaredBinding], sources: Mapping[str, Source | None]
) -> Iterator[str]:
    if table.capabilities.offload_blocker:
        yield table.capabilities.offload_blocker
    if getattr(table.hook, "watches", None):
        yield "it takes in the numbers of every iteration in the training thread"
    for binding in bound:
        copied = {"model", "grads"} & {root(slot) for slot in binding.reads}
        for use in find_uses(
            sources[binding.method],
            TRAINING_ATTRIBUTES if copied else TRAINING_ATTRIBUTES | {"model", "models"},
        ):
            undeclared = ""
            if use.name in OFFERED_ATTRIBUTES:
                undeclared = ", and does not declare that it reads model"
            yield f"it uses run.{use.name} ({in_words(use.where)}){undeclared}"
        for name, place in find_collectives(sources[binding.method]):
            yield f"it calls {name} ({in_words(place)}), which belongs to the training thread"


class _HookFinder:
    """The hooks of a pipeline by their `use`.

    A hook is found and inspected once, however many tables name it.
    """

    def __init__(self, find: FindHook, base: Path, points: Points) -> None:
        self._find = find
        self._base = base
        self._hooks: dict[str, Callable[..., Any]] = {}
        self._inspected = cache(lambda use: Inspection(self._hooks[use], points))

    def find(self, use: str, where: Where | None) -> Callable[..., Any]:
        if use not in self._hooks:
            self._hooks[use] = self._find(use, self._base, where)
        return self._hooks[use]

    def inspect(self, use: str, where: Where | None) -> Inspection:
        self.find(use, where)
        return self._inspected(use)


def _list_replaced_defaults(declared: Mapping[str, HookNode], hooks: _HookFinder) -> list[str]:
    """Return the default hooks that give way to another hook.

    Its class is theirs, or derived from it.
    """
    defaults = {name: hooks.find(hook.use, None) for name, hook in declared.items() if hook.default}
    others: list[Callable[..., Any]] = []
    if defaults:
        for hook in declared.values():
            if hook.enabled and not hook.default:
                with suppress(UserError):  # which the turn of that hook reports
                    others.append(hooks.find(hook.use, None))
    # `isinstance(other, type)` looks at `__class__`, which may raise on an object of the user's.
    classes = [other for other in others if issubclass(type(other), type)]
    overridden: list[str] = []
    for name, kind in defaults.items():
        if any(issubclass(item, kind) for item in classes):  # type: ignore[arg-type]
            overridden.append(name)
    return overridden


def read_own_points(loaded: Loaded) -> tuple[Points, list[Problem]]:
    """Return all points of the pipeline, and what is wrong with its own ones.

    Wrong points are left out.
    """
    problems: list[Problem] = []
    own: list[Point] = []
    points = DEFAULT_POINTS
    for name, declared in loaded.pipeline.points.items():
        wrong = [*_find_point_name_problems(name, points, loaded)]
        if declared.follows not in points:
            wrong.append(_unknown_followed_point(name, declared.follows, points, loaded))
        wrong += _find_offer_problems(name, declared.offers, loaded)
        if wrong:
            problems += wrong
            continue
        followed = points[declared.follows]
        inside = (
            followed.name.startswith("before_")
            and followed.name.removeprefix("before_") in points.pairs
        )
        offers = ("run", *declared.offers)
        own.append(
            Point(
                name,
                followed.depth + inside,
                offers,
                "firing",
                declared.about,
                "own",
                followed.name,
            )
        )
        points = Points(own)
    return points, problems


def _find_point_name_problems(name: str, points: Points, loaded: Loaded) -> Iterator[Problem]:
    """Yield why a point of the pipeline cannot be called so; `points` are those before it."""
    where = loaded.places.of(f"points.{name}")
    if name in points:
        message = f'every run has a point "{name}" already'
        yield Problem(message, where)
    if hasattr(Hook, name):
        yield Problem(
            f'"{name}" cannot be a point: every hook has an attribute of that name', where
        )
    elif not _can_be_name(name) or name.startswith("around_"):
        yield Problem(
            f'"{name}" cannot be a point: a hook\'s method must be able to bear the name', where
        )


def _unknown_followed_point(name: str, followed: str, points: Points, loaded: Loaded) -> Problem:
    """Return the problem of a point that follows none of `points`, which are those before it."""
    where = loaded.places.of(f"points.{name}.follows")
    message = f'there is no point "{followed}"'
    if followed in loaded.pipeline.points:
        return Problem(f"{message} above this one", where, "declare it first")
    hint = translate_point(followed) or nearest(followed, points.names)
    return Problem(message, where, hint)


def _find_offer_problems(name: str, offers: Sequence[str], loaded: Loaded) -> Iterator[Problem]:
    """Yield what is wrong with the arguments that a point of the pipeline offers."""
    for k, argument in enumerate(offers):
        where = loaded.places.of(f"points.{name}.offers.{k}")
        if argument == "run":
            yield Problem("every point offers the run already", where)
        elif argument in offers[:k]:
            yield Problem(f'"{argument}" is offered twice', where)
        elif not _can_be_name(argument) or argument == "self":
            message = (
                f'"{argument}" cannot be an argument: a hook\'s method must be able to take it by'
                " that name"
            )
            yield Problem(message, where)


def _can_be_name(text: str) -> bool:
    return text.isidentifier() and not iskeyword(text)


def find_comm_hook_problems(nodes: Nodes) -> Iterator[Problem]:
    """Yield what is wrong with the hooks at `ddp_comm`.

    There may be a second one, or one that would not act on all ranks alike.
    """
    bound = [
        node for node in nodes.values() if any(item.point == "ddp_comm" for item in node.bound)
    ]
    for node in bound:
        hook = node.hook
        if node is not bound[0]:
            both = f'"{bound[0].hook.name}" and "{hook.name}" are both at ddp_comm'
            message = f"{both}: PyTorch allows one communication hook per model"
            yield Problem(
                message,
                node.where,
                f'one hook there may call the other; or keep "{hook.name}" elsewhere',
            )
        if hook.ranks == "zero":
            message = (
                f'"{hook.name}" at ddp_comm must run on every rank: ranks = "zero" is not allowed'
            )
            yield Problem(message, node.where, 'ranks = "all"')
        if hook.on_error != "raise":
            message = f'"{hook.name}" at ddp_comm needs on_error = "raise"'
            yield Problem(
                f"{message}: after an error the other ranks would hang",
                node.where,
                'on_error = "raise"',
            )


def find_retry_problems(nodes: Nodes, points: Points) -> Iterator[Problem]:
    """Yield each hook that cannot be called again after it has raised.

    A second call has to begin as the first did.
    """
    for node in nodes.values():
        if not node.hook.retry:
            continue
        for binding in node.bound:
            obstacle = _find_retry_obstacle(binding, points[binding.point])
            if obstacle:
                message = f'"{node.hook.name}" at {binding.point} cannot have retry: {obstacle}'
                yield Problem(
                    message,
                    node.where,
                    'leave retry out; on_error = "ignore" goes on without the firing',
                )
                break


def _find_retry_obstacle(binding: DeclaredBinding, point: Point) -> str:
    """Return why a binding cannot be called again; empty where it can."""
    if binding.half != "whole":
        return "it is half of an around"
    if point.kind not in ("standard", "step", "own"):
        return "PyTorch calls it in the middle of its own work"
    changed = [slot for slot in binding.writes if root(slot) in OWNED_SLOTS]
    if changed:
        return f"it writes {changed[0]}, which its first call may have changed"
    return ""


def find_double_backward_problems(
    tables: Mapping[str, HookTable], run: RunSection
) -> Iterator[Problem]:
    """Yield each hook that computes gradients of a batch twice where [run] does not allow it."""
    obstacles = {
        "run.accumulate adds up those of several batches": run.accumulate.most > 1,
        'run.precision = "fp16" scales the loss': run.precision == "fp16",
    }
    for table in tables.values():
        if not table.capabilities.runs_backward_twice:
            continue
        for obstacle in (each for each, is_so in obstacles.items() if is_so):
            message = f"{table.called} computes the gradients of a batch twice, and {obstacle}"
            yield Problem(message, table.where)


def wrong_rate_setters(nodes: Nodes, run: RunSection) -> Iterator[Problem]:
    """Yield each hook that sets learning rates, where `run.scale_lr` sets them."""
    if run.scale_lr is None:
        return
    for node in nodes.values():
        written = [slot for binding in node.bound for slot in binding.writes]
        if any(root(slot) == "lr" for slot in written):
            message = (
                f'hook "{node.hook.name}" sets learning rates, and run.scale_lr does where the'
                " batch size changes"
            )
            yield Problem(message, node.where, "keep one of them")


LENGTHS = frozenset({"max_iters", "max_epochs"})
"""The names in conditions for the length of a run."""


def wrong_without_end(
    nodes: Nodes, tables: Mapping[str, HookTable], classes: Mapping[str, object]
) -> Iterator[Problem]:
    """Yield each hook that needs the length of the run, where it has none.

    A hook of another framework may need it, and is yielded, too.
    """
    adapted: set[str] = set()
    for hooks in group_by_adapter(classes).values():
        adapted.update(hooks)
    for name, node in nodes.items():
        why = ""
        if tables[name].capabilities.needs_length or name in adapted:
            why = "it goes by the length of the run"
        for binding in node.bound:
            trigger = binding.trigger
            for amount in trigger.amounts:
                if amount.unit == "%":
                    why = f'"{amount}" is a share of the run'
            if trigger.when is not None and LENGTHS.intersection(trigger.when.facts):
                why = f'its condition "{trigger.when.text}" names the length of the run'
        if why:
            message = f'hook "{name}": {why}, and run.max_epochs = "inf" gives it no end'
            yield Problem(
                message,
                node.where,
                "write amounts in epochs or iterations, or give the run a length",
            )


def find_misjudged_averages(plan: Plan, tables: Mapping[str, HookTable]) -> Iterator[Problem]:
    """Yield each hook that ranks checkpoints by the metrics of an average which is not its own.

    If a model has several averages, the hook that comes last at `before_val` sets the weights.
    """
    bound = dict.fromkeys(each.hook for each in plan.at("before_val"))
    averaging = []
    for name in bound:
        if tables[name].capabilities.validates_average:
            averaging.append(tables[name])
    for k, table in enumerate(averaging):
        args = _named_args(table)
        if args.get("monitor") is None:
            continue
        for inner in averaging[k + 1 :]:
            models = args.get("model"), _named_args(inner).get("model")
            if None not in models and models[0] != models[1]:
                continue
            message = (
                f'{table.called} ranks checkpoints by "{args["monitor"]}" of another average: '
            )
            message += f"{inner.called} puts its own in place of the same weights, once it has one"
            yield Problem(
                message,
                table.where,
                f"monitor by {inner.called}, or keep one of them from validating",
            )
            break


def _named_args(table: HookTable) -> Mapping[str, Any]:
    args = table.table.args
    if isinstance(args, Mapping):
        return args
    return {}


def find_prepended_edges(
    nodes: Nodes, prepended: Mapping[str, Mapping[str, Where]]
) -> dict[str, list[EdgeSpec]]:
    """Return an edge from each hook that is prepended at a point to each that is not.

    The edges are by the hook that is prepended.

    `prepended` says of each hook at which points it is, and where the file says so: the hooks that
    the model has registered itself fire between the two.
    """
    appended: dict[str, list[str]] = {}
    for name, node in nodes.items():
        for bound in node.bound:
            if bound.modules and not bound.prepend:
                appended.setdefault(bound.point, []).append(name)
    edges: dict[str, list[EdgeSpec]] = {}
    for name, node in nodes.items():
        for bound in node.bound:
            if not bound.prepend:
                continue
            where = prepended[name][bound.point]
            at = (bound.point, bound.half)
            for other in appended.get(bound.point, ()):
                edges.setdefault(name, []).append(EdgeSpec(other, False, "file", where, at))
    return edges
