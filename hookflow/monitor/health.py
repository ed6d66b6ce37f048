"""Whether a run is well: what its log says, held against whether its process lives."""

from __future__ import annotations

from dataclasses import dataclass
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
    state: RunState, life: Life, clock: float, plan: Plan | None = None, inside: tuple[int, float] | None = None
) -> Health:
    """Judge a run. `clock` is the time now, `inside` what `events.now.look` says on the run's own machine."""
    if state.end is not None:
        return Health(state.end["status"], why(state)[0] if state.end["status"] == "failed" else "")
    if life == "gone":
        return Health("lost", "the process is gone and left no end record: killed, or the machine went down")
    if not state.run:
        return Health("starting")
    if state.stage == "paused":
        return Health("paused")
    still = clock - state.moved
    longest = state.minute.percentile(state.now, 0.95) / 1e9
    if still > (max(PATIENCE, 5 * longest) if state.iterating else PATIENCE_AT_FIRST):
        return Health("stalled", f"no progress for {span(still)}{_where(plan, inside)}")
    return Health("starting" if state.stage == "start" else "running")


def _where(plan: Plan | None, inside: tuple[int, float] | None) -> str:
    if plan is None or inside is None:
        return ""
    binding, _ = inside
    if binding == NOWHERE or binding >= len(plan.bindings):
        return ", not inside a hook"
    bound = plan.bindings[binding]
    return f", inside {bound.hook} @ {bound.point}"
