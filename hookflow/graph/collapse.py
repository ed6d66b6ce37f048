"""Plans for drawings.

A group of hooks is one box, and points of the test may repeat those of the validation.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hookflow.graph.plan import (
    Binding,
    CollapsedBinding,
    Edge,
    Half,
    Phase,
    Plan,
    PlannedGroup,
    PlannedHook,
    Trigger,
)
from hookflow.graph.slots import select_widest_slots
from hookflow.pipeline.groups import GROUP_PREFIX


def collapse_groups(plan: Plan, groups: Iterable[PlannedGroup]) -> Plan:
    """Return the plan with one box for the members of a group that fire in a row at a point.

    Members between which another hook fires have several boxes. Halves of arounds and offloaded
    firings stay as they are. A hook of several groups is drawn in the first one.
    """
    collapser = _GroupCollapser(plan, groups)
    boxes = collapser.make_boxes()
    box_of: dict[int, CollapsedBinding] = {}  # by the id of each binding in it
    for box in boxes:
        box_of.update(dict.fromkeys((member.id for member in box.members), box))
    bindings = []
    for binding in plan.bindings:
        collapsed = box_of.get(binding.id)
        if collapsed is None:
            bindings.append(binding)
        elif collapsed.id == binding.id:
            bindings.append(_make_box_binding(collapsed, binding))
    return replace(
        plan,
        hooks=tuple(_iter_drawn_hooks(plan, bindings, boxes)),
        bindings=tuple(bindings),
        edges=tuple(_edges_between(plan.edges, box_of)),
        collapsed=tuple(boxes),
    )


class _GroupCollapser:
    """Finds the bindings of each point that become one box."""

    def __init__(self, plan: Plan, groups: Iterable[PlannedGroup]) -> None:
        self._plan = plan
        self._group_of: dict[str, str] = {}  # by hook
        for group in groups:
            for member in group.members:
                self._group_of.setdefault(member, group.name)

    def make_boxes(self) -> list[CollapsedBinding]:
        """Return the boxes of all points: rows of two bindings or more of one group."""
        boxes = []
        for point in self._plan.bound_points:
            for group, row in self._iter_rows_at(point.name):
                if group and len(row) > 1:
                    boxes.append(CollapsedBinding(row[0].id, group, tuple(row)))
        return boxes

    def _iter_rows_at(self, point: str) -> Iterator[tuple[str, list[Binding]]]:
        """Yield the bindings of a point, with those of one group together.

        The group is "" for bindings of no group.
        """
        current = ""
        row: list[Binding] = []
        for binding in self._plan.at(point):
            group = self._group_at(binding)
            if row and group != current:
                yield current, row
                row = []
            current = group
            row.append(binding)
        yield current, row

    def _group_at(self, binding: Binding) -> str:
        if binding.half != "whole" or binding.beside:
            return ""
        return self._group_of.get(binding.hook, "")


def _make_box_binding(box: CollapsedBinding, first: Binding) -> Binding:
    """Return the binding of a box: it has what all members have in common, and all their slots."""
    reads: list[str] = []
    writes: list[str] = []
    for member in box.members:
        reads += member.reads
        writes += member.writes
    triggers = {member.trigger for member in box.members}
    phases = {member.phase for member in box.members}
    return Binding(
        id=box.id,
        hook=box.hook,
        point=first.point,
        method="",
        half="whole",
        takes=(),
        trigger=first.trigger if len(triggers) == 1 else Trigger(),
        phase=first.phase if len(phases) == 1 else "normal",
        reads=select_widest_slots(reads),
        writes=select_widest_slots(writes),
        placed_by=first.placed_by,
    )


def _iter_drawn_hooks(
    plan: Plan, bindings: Collection[Binding], boxes: Iterable[CollapsedBinding]
) -> Iterator[PlannedHook]:
    """Yield the hooks that are still drawn, and one for each group."""
    drawn = {binding.hook for binding in bindings}
    for hook in plan.hooks:
        if hook.name in drawn:
            yield hook
    for name in dict.fromkeys(box.group for box in boxes):
        group = plan.groups_by_name[name]
        about = f"a group of hooks: {', '.join(group.members)}"
        yield PlannedHook(
            f"{GROUP_PREFIX}{name}", "group", group.members, "normal", about, group.where, "raise"
        )


def _edges_between(edges: Iterable[Edge], box_of: dict[int, CollapsedBinding]) -> list[Edge]:
    """Return the edges between what is drawn.

    There is none within a box, and one of each kind between two boxes.
    """
    # This import loads networkx, which the dashboard needs for folded groups alone.
    from hookflow.graph.filters import mark_implied

    kept: dict[tuple[int, int, str], Edge] = {}
    for edge in edges:
        first = box_of.get(edge.first_id)
        if first is not None:
            edge = replace(edge, first=first.hook, first_id=first.id)
        then = box_of.get(edge.then_id)
        if then is not None:
            edge = replace(edge, then=then.hook, then_id=then.id)
        if edge.first_id == edge.then_id:
            continue
        kept.setdefault((edge.first_id, edge.then_id, edge.kind), edge)
    return mark_implied(kept.values())


@dataclass(frozen=True, slots=True)
class RepeatedPoint:
    """A point of the test where the same fires as at a point of the validation, `original`.

    The hooks in `without` are the only difference.
    """

    point: str
    original: str
    without: tuple[str, ...]


def find_repeats(plan: Plan) -> list[RepeatedPoint]:
    """Return the points of the test that fire as the same points of the validation do.

    There are none where anything of the test is its own, or where there are fewer than two firings
    to leave out.
    """
    repeats = []
    num_bindings = 0
    for point in plan.bound_points:
        original = _find_original_point(point.name)
        if original is None:
            continue
        repeated = _find_repeat(plan, point.name, original)
        if repeated is None:
            return []
        num_bindings += len(plan.at(point.name))
        repeats.append(repeated)
    if num_bindings < 2:
        return []
    return repeats


def _find_original_point(point: str) -> str | None:
    """Return the point of the validation that a point of the test corresponds to.

    It is None for any other point.
    """
    words = point.split("_")
    if words[:2] not in (["before", "test"], ["after", "test"]):
        return None
    words[1] = "val"
    return "_".join(words)


def _find_repeat(plan: Plan, point: str, original: str) -> RepeatedPoint | None:
    """Return how a point repeats the original one.

    It is None if anything is its own: a hook, a mark, the order.
    """
    expected = [_FiringSignature.of(binding) for binding in plan.at(original)]
    repeated = [_FiringSignature.of(binding) for binding in plan.at(point)]
    common = [signature for signature in expected if signature in repeated]
    if common != repeated:
        return None
    without = [signature.hook for signature in expected if signature not in repeated]
    return RepeatedPoint(point, original, tuple(dict.fromkeys(without)))


@dataclass(frozen=True, slots=True)
class _FiringSignature:
    """The parts of a firing in a drawing, apart from its point and edges."""

    hook: str
    half: Half
    phase: Phase
    trigger: Trigger
    beside: bool

    @classmethod
    def of(cls, binding: Binding) -> "_FiringSignature":
        return cls(binding.hook, binding.half, binding.phase, binding.trigger, binding.beside)


def describe_repeats(repeats: Sequence[RepeatedPoint]) -> str:
    """Return a sentence about points that are left out; empty where there are none."""
    if not repeats:
        return ""
    points = ", ".join(repeat.point for repeat in repeats)
    sentence = f"the test repeats the validation at {points}"
    without: dict[str, None] = {}
    for repeat in repeats:
        without |= dict.fromkeys(repeat.without)
    if without:
        sentence += f", without {', '.join(without)}"
    return sentence


def without_points(plan: Plan, points: Collection[str]) -> Plan:
    """Return a plan without what fires at some points."""
    return replace(
        plan,
        bindings=tuple(binding for binding in plan.bindings if binding.point not in points),
        edges=tuple(edge for edge in plan.edges if edge.point not in points),
        dropped_edges=tuple(
            dropped for dropped in plan.dropped_edges if dropped.edge.point not in points
        ),
    )
