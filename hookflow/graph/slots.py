"""The named pieces of run state that hooks read and write: at one point, the writer of a slot before its readers.

A hook may name slots of its own; these are the ones that the runner and the built-in hooks speak of.
"""

from __future__ import annotations

from collections.abc import Iterator

from hookflow.errors import Problem, nearest
from hookflow.graph.node import Nodes
from hookflow.graph.points import Point

SLOTS: dict[str, str] = {
    "batch": "the current batch",
    "outputs": "what the task made of the batch: the loss, scalars, predictions",
    "grads": "the gradients of the parameters",
    "model": "the parameters and buffers of the network",
    "optimizer": "the optimizer's state and settings, but for the learning rates",
    "lr": "the learning rates of the parameter groups",
    "metrics": "what a validation or test has found",
    "checkpoint": "the state that is about to be saved, or has been read; elsewhere, that it is to be saved",
    "control": "whether and how the training goes on: a skipped batch or step, the end of an epoch or of the run",
    "rng": "the random generators",
}

ALIKE = ("model", "grads", "optimizer", "lr", "metrics")
"""The slots of which every one of the processes that train together must hold the same."""


def commutes(slot: str, point: Point) -> bool:
    """Say whether writers of a slot need no order at a point: those who ask there for a stop, a skip, or a save."""
    return slot == "control" or (slot == "checkpoint" and slot not in point.offers)


MANY = 50
"""Where so many slots are touched by one hook alone, that is how the pipeline is made, and no slip of the pen."""


def doubtful_slots(nodes: Nodes) -> Iterator[Problem]:
    """Yield a warning for each slot that one hook alone touches and that is nearly called like a common one."""
    users: dict[str, set[str]] = {}
    for name, node in nodes.items():
        for bound in node.bound:
            for slot in (*bound.reads, *bound.writes):
                users.setdefault(slot, set()).add(name)
    lone = {slot: name for slot, (name, *others) in users.items() if not others and slot not in SLOTS}
    common = {*SLOTS, *(users.keys() - lone)}
    for slot, name in lone.items() if len(lone) < MANY else ():
        if hint := nearest(slot, common):
            yield Problem(f'hook "{name}" alone touches a slot "{slot}"', nodes[name].where, hint)


def drifting_slots(nodes: Nodes) -> Iterator[Problem]:
    """Yield a warning for each hook that fires on rank 0 alone and writes what must be the same on all ranks."""
    for name, node in nodes.items():
        written = {slot for bound in node.bound for slot in bound.writes}
        if node.hook.ranks == "zero" and (apart := [slot for slot in ALIKE if slot in written]):
            said = f'hook "{name}" fires on rank 0 alone and writes {", ".join(apart)}: several ranks would drift apart'
            yield Problem(said, node.where, 'let it fire on all: ranks = "all"')
