"""Probable mistakes in the slots that hooks declare.

These are misspelt and unwritten slots, and drifts between ranks.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from hookflow.errors import Problem, is_misspelt, nearest
from hookflow.graph.plan import Nodes
from hookflow.graph.slots import (
    REPLICATED_SLOTS,
    SLOT_DOCS,
    Verb,
    find_owner,
    iter_wider_slots,
    root,
)

SlotUsers = Mapping[str, Sequence[str]]
"""By slot, the hooks that read it, or those that write it."""

MAX_SUSPECTS = 50
"""The number of slots with one user alone that are no slips of the pen.

With so many, the pipeline is made like that.
"""


def find_doubtful_slots(nodes: Nodes, disabled: Collection[str]) -> Iterator[Problem]:
    """Yield a warning for each slot that is probably misspelt, or is read and never written.

    Slots of the runner itself (`SLOT_DOCS`) need no hook that writes
    them; what conditions name is looked at elsewhere.
    """
    readers = _users(nodes, "reads")
    writers = _users(nodes, "writes")
    siblings: dict[str, list[str]] = {}  # by the slot that they are parts of
    for slot in sorted(writers):
        siblings.setdefault(_parent(slot), []).append(slot)
    for slot, hooks in readers.items():
        if root(slot) == "hook":
            yield from _find_owner_problems(slot, hooks[0], nodes, disabled)
    written = set(writers)
    for slot in writers:
        written.update(iter_wider_slots(slot))
    unwritten = []
    for slot in readers:
        if not _is_written(slot, writers, written) and _is_suspect(
            slot, written, siblings.get(_parent(slot), [])
        ):
            unwritten.append(slot)
    if len(unwritten) < MAX_SUSPECTS:
        for slot in unwritten:
            yield _make_unwritten_problem(
                slot, readers[slot], siblings.get(_parent(slot), []), nodes
            )
    yield from _find_misspelt_writes(readers, writers, nodes)


def find_drifting_slots(nodes: Nodes) -> Iterator[Problem]:
    """Yield a warning for each hook of rank 0 that writes what must be the same on all ranks."""
    for name, node in nodes.items():
        if node.hook.ranks != "zero":
            continue
        written: set[str] = set()
        for binding in node.bound:
            written.update(root(slot) for slot in binding.writes)
        drifting = [slot for slot in REPLICATED_SLOTS if slot in written]
        if drifting:
            slots = ", ".join(drifting)
            message = (
                f'hook "{name}" fires on rank 0 alone and writes {slots}: several ranks would drift'
                " apart"
            )
            yield Problem(message, node.where, 'let it fire on all: ranks = "all"')


def _users(nodes: Nodes, verb: Verb) -> dict[str, list[str]]:
    """Return by slot the hooks that touch it, in the order of the file."""
    users: dict[str, dict[str, None]] = {}
    for name, node in nodes.items():
        for binding in node.bound:
            if verb == "reads":
                slots = binding.reads
            else:
                slots = binding.writes
            for slot in slots:
                users.setdefault(slot, {})[name] = None
    return {slot: list(names) for slot, names in users.items()}


def _parent(slot: str) -> str:
    return slot.rpartition(".")[0]


def _find_owner_problems(
    slot: str, reader: str, nodes: Nodes, disabled: Collection[str]
) -> Iterator[Problem]:
    """Yield what is wrong with a slot that names the state of a hook."""
    owner = find_owner(slot)
    if owner is None:
        message = f'hook "{reader}" names a slot "hook", which is the state of no hook'
        yield Problem(message, nodes[reader].where, 'name one: "hook.ema"')
    elif owner not in nodes and owner not in disabled:
        message = (
            f'hook "{reader}" reads the state of a hook "{owner}", which is not in this pipeline'
        )
        yield Problem(message, nodes[reader].where, nearest(owner, nodes))


def _is_written(slot: str, writers: SlotUsers, written: Collection[str]) -> bool:
    """Say whether a hook writes a slot, a part of it, or what it is a part of."""
    return slot in written or any(other in writers for other in iter_wider_slots(slot))


def _is_suspect(slot: str, written: Collection[str], siblings: Sequence[str]) -> bool:
    """Say whether it is probably a mistake that no hook writes a slot."""
    if root(slot) in ("hook", "scalars"):
        return False
    if len(siblings) < MAX_SUSPECTS and any(is_misspelt(slot, other) for other in siblings):
        return True
    return root(slot) not in SLOT_DOCS and root(slot) not in written


def _make_unwritten_problem(
    slot: str, hooks: Sequence[str], siblings: Sequence[str], nodes: Nodes
) -> Problem:
    verb = "read"
    if len(hooks) == 1:
        verb = "reads"
    subject = " and ".join(f'"{name}"' for name in hooks)
    candidates: Collection[str] = siblings
    if "." not in slot:
        candidates = {*SLOT_DOCS, *siblings}
    message = f'{subject} {verb} the slot "{slot}", which no hook writes'
    return Problem(message, nodes[hooks[0]].where, nearest(slot, candidates))


def _find_misspelt_writes(
    readers: SlotUsers, writers: SlotUsers, nodes: Nodes
) -> Iterator[Problem]:
    """Yield a warning for each slot of one hook whose name is nearly that of another slot."""
    hooks_of: dict[str, set[str]] = {}
    for users in (writers, readers):
        for slot, hooks in users.items():
            hooks_of.setdefault(root(slot), set()).update(hooks)
    lone = []
    for slot in dict.fromkeys(root(slot) for slot in writers):
        if slot not in SLOT_DOCS and len(hooks_of[slot]) == 1:
            lone.append(slot)
    if len(lone) >= MAX_SUSPECTS:
        return
    shared = [slot for slot, hooks in hooks_of.items() if len(hooks) > 1]
    for number, slot in enumerate(lone):
        for other in (*SLOT_DOCS, *lone[:number], *shared):
            if is_misspelt(slot, other):
                (hook,) = hooks_of[slot]
                message = f'hook "{hook}" alone touches a slot "{slot}"'
                yield Problem(message, nodes[hook].where, f'did you mean "{other}"?')
                break
