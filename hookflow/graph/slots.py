"""Slots and their parts, such as `metrics.accuracy`.

A slot is a named piece of run state that hooks read and write.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Literal

from hookflow.graph.points import Point


def root(slot: str) -> str:
    return slot.partition(".")[0]


def iter_wider_slots(slot: str) -> Iterator[str]:
    """Yield the slots that a slot is a part of."""
    while "." in slot:
        slot = slot.rpartition(".")[0]
        yield slot


class SlotParts:
    """The slots that are touched at one point.

    Two hooks that touch the same slot share a name among the parts.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._parts: dict[str, list[str]] = {}
        for name in dict.fromkeys(names):
            for slot in (name, *iter_wider_slots(name)):
                self._parts.setdefault(slot, []).append(name)

    def of(self, slots: Iterable[str]) -> set[str]:
        """Return the slots with all of their parts that anybody touches."""
        parts: set[str] = set()
        for slot in slots:
            parts.update(self._parts[slot])
        return parts


def select_widest_slots(slots: Collection[str]) -> tuple[str, ...]:
    """Return the slots without those that are a part of another one."""
    kept = []
    for slot in sorted(slots):
        if not any(other in slots for other in iter_wider_slots(slot)):
            kept.append(slot)
    return tuple(kept)


SLOT_DOCS: dict[str, str] = {
    "batch": "the current batch",
    "outputs": "what the task made of the batch: the loss, scalars, predictions",
    "grads": "the gradients of the parameters",
    "model": "the parameters and buffers of the network",
    "optimizer": "the optimizer's state and settings, but for the learning rates",
    "lr": "the learning rates of the parameter groups",
    "metrics": "what a validation or test has found",
    "checkpoint": (
        "the state that is about to be saved, or has been read; elsewhere, that it is to be saved"
    ),
    "control": (
        "whether and how the training goes on: a skipped batch or step, the end of an epoch or of"
        " the run"
    ),
    "rng": "the random generators",
    "scalars": (
        "the numbers that conditions (`when`) name: outputs of the training, and what hooks log"
    ),
    "hook": "a hook's own state, by its name: `hook.ema`",
}

Verb = Literal["reads", "writes"]
"""The verbs of a hook and a slot."""

SLOT_VERBS: tuple[Verb, ...] = ("reads", "writes")

ARGUMENT_SLOTS = ("batch", "outputs", "metrics", "checkpoint")
"""The slots that points give to hooks as arguments."""

REPLICATED_SLOTS = ("model", "grads", "optimizer", "lr", "metrics")
"""The slots of which every one of the processes that train together must hold the same."""


def is_commuting(slot: str, point: Point) -> bool:
    """Say whether writers of a slot need no order at a point.

    They need none where they ask for a stop, a skip, or a save.
    """
    kind = root(slot)
    if kind == "checkpoint":
        return kind not in point.offers
    return kind == "control"


def find_owner(slot: str) -> str | None:
    """Return the hook whose state a slot is: "ema" of `hook.ema`, and of a part of it.

    It is None for another slot.
    """
    kind, _, rest = slot.partition(".")
    if kind != "hook" or not rest:
        return None
    return rest.partition(".")[0]
