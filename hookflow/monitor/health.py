"""Whether a run is well: what its log says, held against whether its process lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from hookflow.events.now import NOWHERE
from hookflow.events.rundir import Life
from hookflow.graph.plan import Plan
from hookflow.monitor.state import RunState
from hookflow.monitor.why import why
from hookflow.monitor.words import span

Condition = Literal["starting", "running", "paused", "stalled", "lost", "finished", "stopped", "interrupted", "failed"]

GLYPHS: dict[Condition, str] = {
    "starting": "○",
    "running": "●",
    "paused": "‖",
    "stalled": "◐",
    "lost": "?",
    "finished": "✓",
    "stopped": "■",
    "interrupted": "■",
    "failed": "✗",
}

PATIENCE = 10.0
PATIENCE_AT_FIRST = 120.0
"""Seconds without any progress before a run counts as stalled; the first iteration may compile the model."""


@dataclass(frozen=True, slots=True)
class Health:
    """The condition in a word, and in `sentence` what is wrong; the sentence is empty when nothing is."""

    condition: Condition
    sentence: str = ""

    @property
    def glyph(self) -> str:
        return GLYPHS[self.condition]

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.condition in ("lost", "finished", "stopped", "interrupted", "failed")

    @property
    def bad(self) -> bool:
        return self.condition in ("stalled", "lost", "failed")


def examine(
    state: RunState,
    life: Life,
    clock: float,
    plan: Plan | None = None,
    inside: tuple[int, float] | None = None,
    others: Mapping[int, tuple[int, float]] = MappingProxyType({}),
) -> Health:
    """Judge a run. `clock` is the time now, `inside` what `events.now.look` says on the run's own machine.

    `others` is what it says of the ranks beside 0.
    """
    failed = state.ranks.first_failure is not None
    if state.end is not None:
        failed = failed or state.end["status"] == "failed"
        return Health("failed", why(state)[0]) if failed else Health(state.end["status"])
    if life == "gone" and failed:
        return Health("failed", why(state)[0])
    if life == "gone":
        return Health("lost", "the process is gone and left no end record: killed, or the machine went down")
    if not state.run:
        return Health("starting")
    if state.stage == "paused":
        return Health("paused")
    still = clock - state.moved
    longest = state.minute.percentile(state.now, 0.95) / 1e9
    if still > (max(PATIENCE, 5 * longest) if state.iterating else PATIENCE_AT_FIRST):
        return Health("stalled", f"no progress for {span(still)}{_where(state, plan, inside, others)}")
    return Health("starting" if state.stage == "start" else "running")


def _where(
    state: RunState, plan: Plan | None, inside: tuple[int, float] | None, others: Mapping[int, tuple[int, float]]
) -> str:
    """Return what is known of the place where it hangs; of several ranks, the one that holds up the others."""
    if state.ranks.first_failure:
        return f"; {why(state)[0]}"
    if silent := state.ranks.silent:
        number = max(silent, key=lambda rank: silent[rank])
        return f", nothing from rank {number} for {span(silent[number])}"
    if plan is None or inside is None:
        return ""
    if bound := _bound(plan, inside):
        return f", inside {bound}"
    held = {number: bound for number, place in others.items() if place[1] > PATIENCE and (bound := _bound(plan, place))}
    if held:
        number = max(held, key=lambda rank: others[rank][1])
        return f", rank {number} inside {held[number]}"
    return ", not inside a hook"


def _bound(plan: Plan, inside: tuple[int, float]) -> str:
    """Return the hook and the point of a binding that is being called; nothing when none is."""
    if not NOWHERE < inside[0] < len(plan.bindings):
        return ""
    bound = plan.bindings[inside[0]]
    return f"{bound.hook} @ {bound.point}"
