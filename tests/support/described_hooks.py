"""Random hooks around a validation, described by what they declare."""

import random

from hookflow.graph.plan import PHASES, Binding
from tests.graph.oracle import CLOSING, OPENING, Described, Place

METHODS = (OPENING, CLOSING, "around_val", "around_val")
SLOTS = ("model", "model.a", "model.b", "metrics", "metrics.x", "scalars.n", "control")
STATES = ("hook.a", "hook.b")
"""What hooks of these names write, where another one reads it."""


def drawn(lots: random.Random, most: int) -> list[Described]:
    """Return some hooks around a validation: now with many edges,
    slots and phases, now with few.
    """
    edges, slots, normal = (
        lots.choice((0.05, 0.1, 0.2)),
        lots.choice((0.1, 0.2, 0.4)),
        lots.choice((0.4, 0.8, 1)),
    )
    names = "abcdefgh"[: lots.randint(2, most)]
    # Edges mostly follow a hidden order; some run against it.
    hidden = lots.sample(names, len(names))

    def others(name: str, share: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        after, before = [], []
        for other in names:
            if other != name and lots.random() < share:
                upwards = (hidden.index(other) < hidden.index(name)) != (lots.random() < 0.1)
                (after if upwards else before).append(other)
        return tuple(after), tuple(before)

    hooks = []
    for name in names:
        methods = tuple(dict.fromkeys(lots.sample(METHODS, lots.choice((1, 1, 2, 4)))))
        after, before = others(name, edges)
        near = {method: others(name, edges) for method in methods if lots.random() < 0.3}
        reads, writes = (tuple(slot for slot in SLOTS if lots.random() < slots) for _ in range(2))
        reads += tuple(state for state in STATES if lots.random() < slots / 2)
        phase = "normal" if lots.random() < normal else lots.choice(PHASES)
        hooks.append(Described(name, methods, phase, after, before, near, reads, writes))
    return hooks


def place(binding: Binding) -> Place:
    return binding.hook, binding.point, binding.half
