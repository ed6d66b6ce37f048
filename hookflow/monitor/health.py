"""Whether a run is well: what its log says, held against whether its process lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from hookflow.events.now import NOWHERE
from hookflow.events.rundir import Life
from hookflow.graph.plan import Plan
from hookflow.monitor.end_reason import end_reason
from hookflow.monitor.ranks import named
from hookflow.monitor.state import RunState
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
    inside: Mapping[int, tuple[int, float]] = MappingProxyType({}),
) -> Health:
    """Judge a run. `clock` is the time now, `inside` what `events.now.look` says of the ranks on this machine."""
    failed = state.ranks.first_failure is not None
    if state.end is not None:
        failed = failed or state.end["status"] == "failed"
        return Health("failed", end_reason(state)[0]) if failed else Health(state.end["status"])
    if life == "gone" and failed:
        return Health("failed", end_reason(state)[0])
    if life == "gone":
        return Health("lost", "the process is gone and left no end record: killed, or the machine went down")
    if not state.run:
        return Health("starting")
    if state.stage == "paused":
        return Health("paused")
    still = clock - state.moved
    longest = state.minute.percentile(state.now, 0.95) / 1e9
    if still > (max(PATIENCE, 5 * longest) if state.iterating else PATIENCE_AT_FIRST):
        return Health("stalled", f"no progress for {span(still)}{_where(state, plan, inside)}")
    return Health("starting" if state.stage == "start" else "running")


def _where(state: RunState, plan: Plan | None, inside: Mapping[int, tuple[int, float]]) -> str:
    """Return what is known of the place where it hangs; of several ranks, the one that holds up the others."""
    if state.ranks.first_failure:
        return f"; {end_reason(state)[0]}"
    if silent := state.ranks.silent:
        number = max(silent, key=lambda rank: silent[rank])
        return f", nothing from rank {number} for {span(silent[number])}"
    if plan is None or not inside:
        return ""
    stuck: dict[int, list[int]] = {}
    for number, (binding, _) in sorted(inside.items()):
        if NOWHERE < binding < len(plan.bindings):
            stuck.setdefault(binding, []).append(number)
    if not stuck:
        return ", not inside a hook"
    fewest = min(map(len, stuck.values()))  # most ranks are where they wait for the others
    told = [
        f", {f'{named(ranks)} ' * (state.ranks.world > 1)}inside {plan.bindings[at].hook} @ {plan.bindings[at].point}"
        for at, ranks in stuck.items()
        if len(ranks) == fewest
    ]
    return "".join(told)
