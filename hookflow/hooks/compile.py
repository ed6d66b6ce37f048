"""Compile a loaded pipeline into its plan: find, inspect and check every hook, then order them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from keyword import iskeyword
from pathlib import Path
from typing import Any

from hookflow.errors import Problem, UserError, Where, by_place, nearest
from hookflow.graph.offload import APART, OFFERED, Limit, Wish, with_offloading, with_throttling
from hookflow.graph.order import Places, compile_plan
from hookflow.graph.plan import Binding, EdgeSpec, Node, Nodes, Plan
from hookflow.graph.points import POINTS, Point, Points
from hookflow.graph.slots import doubts, root
from hookflow.hooks.base import Hook
from hookflow.hooks.inspect import Inspection
from hookflow.hooks.lightning import rates_set_twice
from hookflow.hooks.mmengine import with_priorities
from hookflow.hooks.registry import find_hook, find_without_import
from hookflow.hooks.run import Run
from hookflow.hooks.table import HookTable
from hookflow.hooks.uses import (
    Source,
    calls_for_all_ranks,
    collectives,
    in_words,
    refused_calls,
    source_of,
    undeclared_slots,
    uses,
    with_scalars,
)
from hookflow.pipeline.load import Loaded, uncollected
from hookflow.pipeline.schema import HookNode, RunSection
from hookflow.pipeline.values import seconds
from hookflow.user_code import explained, is_ctrl_c, is_ours

Find = Callable[[str, Path, Where | None], Callable[..., Any]]


@contextmanager
def looking_at(use: str, where: Where | None = None, owner: str = "") -> Iterator[None]:
    """Raise UserError at `where` for what is raised by something that is only looked at; `owner` begins the message.

    UserError and KeyboardInterrupt propagate.
    """
    try:
        yield
    except BaseException as error:
        if is_ours(error) or is_ctrl_c(error):
            raise
        message, *chain = explained(error)
        raise UserError(Problem(f"{owner}looking at {use} raises {message}", where, "\n    ".join(chain))) from None


@uncollected()
def compile_pipeline(
    loaded: Loaded,
    base: Path | None = None,
    shuffle: int | None = None,
    wanted: Places | None = None,
    *,
    imports: bool = True,
) -> Plan:
    """Compile the pipeline's hooks into a plan.

    Files that the pipeline names are relative to `base`, which is its own folder if left out. `shuffle` is the seed of
    another order that the edges and phases allow; `wanted` says of every binding where it shall stand, likewise.
    Unless it `imports`, only the pipeline file's own words are known of the user's hooks.
    Raises UserError with everything that is wrong with the hooks: names, arguments, points, edges, cycles.
    """
    nodes: dict[str, Node] = {}
    tables: dict[str, HookTable] = {}
    sources: dict[str, dict[str, Source | None]] = {}
    points, problems = own_points(loaded)
    declared = loaded.pipeline.hooks
    hooks = _Hooks(find_hook if imports else find_without_import, base or loaded.source.parent, points)
    disabled = [name for name, declaration in declared.items() if not declaration.enabled]
    disabled += _replaced_defaults(declared, hooks)
    warnings: list[Problem] = []
    for name, declaration in declared.items():
        if name not in disabled:
            try:
                with looking_at(declaration.use, loaded.places.of(f"hooks.{name}.use"), f'hook "{name}": '):
                    table = HookTable(name, declaration, loaded, hooks.inspect, points)
                    node = table.node()
                    problems += table.problems
                    methods = dict.fromkeys(bound.method for bound in node.bound)
                    sources[name] = {method: source_of(table.hook, method) for method in methods}
                    warnings += refused_calls(sources[name], node)
                    warnings += calls_for_all_ranks(sources[name], node)
                    nodes[name], tables[name] = node, table
            except UserError as error:
                problems += error.problems
    problems += wrong_comm_hooks(nodes)
    problems += wrong_backward_twice(tables, loaded.pipeline.run)
    problems += rates_set_twice(nodes, {name: table.hook for name, table in tables.items()})
    nodes, without_number, misspelt = with_scalars(nodes, sources)
    problems += without_number
    try:
        ordered = with_prepended_first(nodes, {name: table.prepended for name, table in tables.items()})
        ordered = with_priorities(ordered, {name: table.hook for name, table in tables.items()})
        plan = compile_plan(loaded.pipeline.run.name, ordered, disabled, points, shuffle, wanted)
        wishes = {name: _wish(table, nodes[name], sources[name]) for name, table in tables.items()}
        plan, cannot_be = with_offloading(plan, wishes)
        limits = {name: _limit(table) for name, table in tables.items() if table.table.over_budget == "throttle"}
        plan, must_fire = with_throttling(plan, limits, nodes)
        problems += [*cannot_be, *must_fire]
    except UserError as error:
        problems += error.problems
    if problems:
        raise UserError(sorted(problems, key=by_place))
    warnings += undeclared_slots(plan, nodes, sources)
    warnings += misjudged_averages(plan, tables)
    doubtful, notes = doubts(plan, nodes, loaded.pipeline.run.validates.by_iterations)
    unknown = [problem for table in tables.values() for problem in table.unknown()]
    warnings = [*plan.warnings, *misspelt, *doubtful, *warnings]
    return replace(plan, warnings=tuple(warnings), notes=(*plan.notes, *notes), unknown=tuple(unknown))


BELONGS = (frozenset(dir(Run)) | Run.__annotations__.keys()) - OFFERED
"""The attributes of the run that belong to the training thread."""


def _wish(table: HookTable, node: Node, sources: Mapping[str, Source | None]) -> Wish:
    """Return the keys of a hook's table about its thread, and the first obstacle in its source."""
    keys, timeout = table.table, seconds(table.table.timeout) if table.table.timeout else 0.0
    wanted = {at: (offload, key) for at, (offload, key) in table.offloads.items() if offload}
    spared = {at for at, (_, key) in wanted.items() if key == "offload" and at[0] in APART}
    strength = ("auto", True, "process").index
    offload, key = max(wanted.values(), key=lambda each: strength(each[0]), default=(keys.offload, "offload"))
    at = wanted.keys() - spared
    where = table.places.of(f"hooks.{table.name}.{key}")
    bound = [each for each in node.bound if (each.point, each.half) in at]
    obstacle = next(_obstacles(table, bound, sources), "") if offload else ""
    if offload == "process":
        obstacle = obstacle or getattr(table.hook, "process_blocker", "")
    if {True, "process"} <= {each for each, _ in wanted.values()}:
        obstacle = "it fires in a thread at one point and in a process at another"
    return Wish(offload, at, keys.queue, keys.when_full, timeout, where, obstacle)


def _limit(table: HookTable) -> Limit:
    where = table.places.of(f"hooks.{table.name}.over_budget")
    stateful = getattr(table.hook, "state_dict", Hook.state_dict) is not Hook.state_dict
    return Limit(table.table.budget or "", where, stateful, getattr(table.hook, "offload_blocker", ""))


def _obstacles(table: HookTable, bound: Sequence[Binding], sources: Mapping[str, Source | None]) -> Iterator[str]:
    if blocker := getattr(table.hook, "offload_blocker", ""):
        yield blocker
    if getattr(table.hook, "watches", None):
        yield "it takes in the numbers of every iteration in the training thread"
    for binding in bound:
        copied = {"model", "grads"} & {root(slot) for slot in binding.reads}
        for use in uses(sources[binding.method], BELONGS if copied else BELONGS | {"model", "models"}):
            undeclared = ", and does not declare that it reads model" * (use.name in OFFERED)
            yield f"it uses run.{use.name} ({in_words(use.where)}){undeclared}"
        for name, place in collectives(sources[binding.method]):
            yield f"it calls {name} ({in_words(place)}), which belongs to the training thread"


class _Hooks:
    """The hooks of a pipeline by their `use`: however many tables name one, it is found and inspected once."""

    def __init__(self, find: Find, base: Path, points: Points) -> None:
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


def _replaced_defaults(declared: Mapping[str, HookNode], hooks: _Hooks) -> list[str]:
    """Return the default hooks that give way: another hook's class is theirs, or derived from it."""
    defaults = {name: hooks.find(hook.use, None) for name, hook in declared.items() if hook.default}
    others: list[Callable[..., Any]] = []
    for hook in declared.values() if defaults else ():
        if hook.enabled and not hook.default:
            with suppress(UserError):  # which the turn of that hook reports
                others.append(hooks.find(hook.use, None))
    classes = tuple(other for other in others if issubclass(type(other), type))  # whose looks may raise
    return [name for name, kind in defaults.items() if any(issubclass(item, kind) for item in classes)]  # type: ignore[arg-type]


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


def wrong_comm_hooks(nodes: Nodes) -> Iterator[Problem]:
    """Yield what is wrong with the hooks at `ddp_comm`: a second one, and one that would not act on all ranks alike."""
    bound = [node for node in nodes.values() if any(item.point == "ddp_comm" for item in node.bound)]
    for node in bound:
        hook = node.hook
        if node is not bound[0]:
            both = f'"{bound[0].hook.name}" and "{hook.name}" are both at ddp_comm'
            message = f"{both}: PyTorch allows one communication hook per model"
            yield Problem(message, node.where, f'one hook there may call the other; or keep "{hook.name}" elsewhere')
        if hook.ranks == "zero":
            message = f'"{hook.name}" at ddp_comm must run on every rank: ranks = "zero" is not allowed'
            yield Problem(message, node.where, 'ranks = "all"')
        if hook.on_error != "raise":
            message = f'"{hook.name}" at ddp_comm needs on_error = "raise"'
            yield Problem(f"{message}: after an error the other ranks would hang", node.where, 'on_error = "raise"')


def wrong_backward_twice(tables: Mapping[str, HookTable], run: RunSection) -> Iterator[Problem]:
    """Yield each hook that computes the gradients of a batch twice where the keys of [run] leave no second time."""
    obstacles = {
        "run.accumulate adds up those of several batches": run.accumulate > 1,
        'run.precision = "fp16" scales the loss': run.precision == "fp16",
    }
    for table in (table for table in tables.values() if getattr(table.hook, "backward_twice", False)):
        for obstacle in (each for each, is_so in obstacles.items() if is_so):
            yield Problem(f"{table.called} computes the gradients of a batch twice, and {obstacle}", table.where)


def misjudged_averages(plan: Plan, tables: Mapping[str, HookTable]) -> Iterator[Problem]:
    """Yield each hook that ranks checkpoints by the metrics of an average which is not its own.

    Of several averages of one model, that of the hook that comes last at `before_val` is in place of the weights.
    """
    bound = dict.fromkeys(each.hook for each in plan.at("before_val"))
    averaging = [tables[name] for name in bound if getattr(tables[name].hook, "validates_average", False)]
    for k, table in enumerate(averaging):
        args = _named_args(table)
        if args.get("monitor") is None:
            continue
        for inner in averaging[k + 1 :]:
            models = args.get("model"), _named_args(inner).get("model")
            if None not in models and models[0] != models[1]:
                continue
            message = f'{table.called} ranks checkpoints by "{args["monitor"]}" of another average: '
            message += f"{inner.called} puts its own in place of the same weights, once it has one"
            yield Problem(message, table.where, f"monitor by {inner.called}, or keep one of them from validating")
            break


def _named_args(table: HookTable) -> Mapping[str, Any]:
    args = table.table.args
    return args if isinstance(args, Mapping) else {}


def with_prepended_first(nodes: Mapping[str, Node], prepended: Mapping[str, Mapping[str, Where]]) -> dict[str, Node]:
    """Return the nodes with an edge from each hook that is prepended at a point to each that is not.

    `prepended` says of each hook at which points it is, and where the file says so: the hooks that the model has
    registered itself fire between the two.
    """
    at: dict[str, list[str]] = {}
    for name, node in nodes.items():
        for bound in node.bound:
            if bound.modules and not bound.prepend:
                at.setdefault(bound.point, []).append(name)

    def edges(node: Node) -> Iterator[EdgeSpec]:
        for bound in node.bound:
            for other in at.get(bound.point, ()) if bound.prepend else ():
                where = prepended[node.hook.name][bound.point]
                yield EdgeSpec(other, False, "file", where, (bound.point, bound.half))

    return {name: replace(node, before=(*node.before, *edges(node))) for name, node in nodes.items()}
