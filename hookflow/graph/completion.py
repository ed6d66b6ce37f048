"""Nodes completed by what follows from other hooks.

That is edges, slots, and whether a hook fires beside the training.

Each node is read from one table. All that depends on several tables is gathered first, and put into
the nodes at once.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hookflow.errors import Problem
from hookflow.graph.offload import OffloadRequest, find_obstacles
from hookflow.graph.plan import BindingKey, DeclaredBinding, EdgeSpec, Node, Nodes, PlannedHook
from hookflow.graph.points import Points
from hookflow.graph.slots import find_owner

SlotsByBinding = Mapping[BindingKey, Collection[str]]
"""Slots, by the binding of one hook."""


@dataclass(frozen=True, slots=True)
class NodeAdditions:
    """The additions of other hooks to those of a pipeline, by the name of the hook."""

    after: Mapping[str, Sequence[EdgeSpec]] = field(default_factory=dict)
    before: Mapping[str, Sequence[EdgeSpec]] = field(default_factory=dict)
    reads: Mapping[str, SlotsByBinding] = field(default_factory=dict)
    writes: Mapping[str, SlotsByBinding] = field(default_factory=dict)


NO_ADDITIONS = NodeAdditions()


@dataclass(frozen=True, slots=True)
class CompletedNodes:
    """The nodes of a pipeline with all that they depend on.

    `beside` are the hooks that fire beside the training, each with the bindings for which that
    holds. `problems` are hooks that are stated to do so and cannot, `notes` say why a hook of
    `offload = "auto"` does not.
    """

    nodes: Nodes
    beside: Mapping[str, Collection[BindingKey]]
    problems: Sequence[Problem]
    notes: Sequence[Problem]


def complete_nodes(
    nodes: Nodes, points: Points, additions: NodeAdditions, requests: Mapping[str, OffloadRequest]
) -> CompletedNodes:
    """Return the completed nodes, what each writes of its own state, and the offloaded hooks."""
    owners = _find_owners_read(nodes)
    bound: dict[str, tuple[DeclaredBinding, ...]] = {}
    for name, node in nodes.items():
        bound[name] = tuple(_complete_bindings(node, additions, is_read=name in owners))
    decisions = _OffloadDecisions(points, bound)
    completed: dict[str, Node] = {}
    for name, node in nodes.items():
        hook = node.hook
        if name in requests:
            hook = decisions.decide(hook, requests[name])
        completed[name] = replace(
            node,
            hook=hook,
            bound=bound[name],
            after=(*node.after, *additions.after.get(name, ())),
            before=(*node.before, *additions.before.get(name, ())),
        )
    return CompletedNodes(completed, decisions.beside, decisions.problems, decisions.notes)


def _find_owners_read(nodes: Nodes) -> set[str]:
    """Return the hooks whose state another hook reads: "ema" for a reader of `hook.ema`."""
    owners = set()
    for node in nodes.values():
        for binding in node.bound:
            for slot in binding.reads:
                owner = find_owner(slot)
                if owner is not None:
                    owners.add(owner)
    return owners


def _complete_bindings(
    node: Node, additions: NodeAdditions, *, is_read: bool
) -> Iterator[DeclaredBinding]:
    """Yield the bindings of a node with the slots that other hooks add.

    Where the state of its hook `is_read`, each binding writes that.
    """
    name = node.hook.name
    more_reads = additions.reads.get(name, {})
    more_writes = additions.writes.get(name, {})
    for binding in node.bound:
        reads = {*binding.reads, *more_reads.get(binding.key, ())}
        writes = {*binding.writes, *more_writes.get(binding.key, ())}
        if is_read:
            writes.add(f"hook.{name}")
        if len(reads) == len(binding.reads) and len(writes) == len(binding.writes):
            yield binding
        else:
            yield replace(binding, reads=tuple(sorted(reads)), writes=tuple(sorted(writes)))


class _OffloadDecisions:
    """Decides for each hook whether it fires beside the training."""

    def __init__(self, points: Points, bound: Mapping[str, Sequence[DeclaredBinding]]) -> None:
        self.beside: dict[str, Collection[BindingKey]] = {}
        self.problems: list[Problem] = []
        self.notes: list[Problem] = []
        self._points = points
        place = {point.name: number for number, point in enumerate(points)}
        self._bindings: list[DeclaredBinding] = []
        for bindings in bound.values():
            self._bindings += bindings
        self._bindings.sort(key=lambda binding: place[binding.point])

    def decide(self, hook: PlannedHook, request: OffloadRequest) -> PlannedHook:
        """Return the hook as it fires.

        It has the queue of its thread, or what keeps it in the training thread.
        """
        if not request.offload:
            if request.timeout:
                message = (
                    f'hook "{hook.name}" has a timeout, which is for a hook with offload = true'
                )
                self.problems.append(Problem(message, request.where))
            return hook
        requested = [
            each for each in self._bindings if each.hook == hook.name and each.key in request.at
        ]
        obstacles = find_obstacles(self._points, self._bindings, hook.name, requested)
        obstacle = next(obstacles, request.obstacle)
        if not obstacle:
            self.beside[hook.name] = {each.key for each in requested}
            return replace(
                hook,
                queue=request.queue,
                when_full=request.when_full,
                timeout=request.timeout,
                in_process=request.offload == "process",
            )
        if request.offload == "auto":
            message = (
                f'hook "{hook.name}" (offload = "auto") fires in the training thread: {obstacle}'
            )
            self.notes.append(Problem(message, request.where))
            return replace(hook, obstacle=obstacle)
        self.problems.append(
            Problem(f'hook "{hook.name}" cannot be offloaded: {obstacle}', request.where)
        )
        return hook
