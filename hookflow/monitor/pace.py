"""How fast a run goes and what its time goes to: numbers and sentences drawn from the state."""

from __future__ import annotations

from dataclasses import dataclass

from hookflow.events.records import PHASES
from hookflow.graph.plan import Plan
from hookflow.monitor.state import RunState
from hookflow.monitor.timing import WINDOW
from hookflow.monitor.words import percent


@dataclass(frozen=True, slots=True)
class Pace:
    """The last minute. Shares are of the time of whole training iterations; durations in ns; `eta` in seconds.

    `eta` is None while there is nothing to judge by.
    """

    iters_per_s: float
    samples_per_s: float
    p50: float
    p95: float
    phases: dict[str, float]
    recorder: float
    eta: float | None

    @classmethod
    def of(cls, state: RunState) -> Pace:
        sums = state.minute.sums(state.now)
        seconds = sums["ns"] / 1e9
        booked = sum(sums[phase] for phase in PHASES)
        return cls(
            iters_per_s=sums["iters"] / seconds if seconds else 0.0,
            samples_per_s=sums["samples"] / seconds if seconds else 0.0,
            p50=state.minute.percentile(state.now, 0.5),
            p95=state.minute.percentile(state.now, 0.95),
            phases={phase: sums[phase] / booked if booked else 0.0 for phase in PHASES},
            recorder=sums["cost"] / 1e9 / min(max(state.elapsed, 1.0), WINDOW),
            eta=_eta(state, seconds / sums["iters"] if sums["iters"] else 0.0),
        )


def _eta(state: RunState, iteration: float) -> float | None:
    """Return the seconds to the end: iterations as long as lately, and as much beside them as so far."""
    left = state.total_iters - state.it
    if state.end is not None or not iteration or not state.iterating or left < 0:
        return None
    beside = max(state.active / (state.iterating / 1e9), 1.0)
    return left * iteration * beside


def share(state: RunState, *bindings: int) -> float:
    """Return the time of these bindings in the last minute per time spent in training iterations; 0 when none ran."""
    iterating = state.minute.sums(state.now)["ns"]
    return sum(state.timing(binding).spent(state.now) for binding in bindings) / iterating if iterating else 0.0


def costliest(state: RunState, plan: Plan) -> list[tuple[str, float]]:
    """Return the hooks that fired in the last minute with their shares, over all their points, the costliest first."""
    shares: dict[str, float] = {}
    iterating = state.minute.sums(state.now)["ns"]
    for binding in plan.bindings:
        spent = state.timing(binding.id).spent(state.now)
        shares[binding.hook] = shares.get(binding.hook, 0.0) + (spent / iterating if iterating else 0.0)
    return sorted(((hook, taken) for hook, taken in shares.items() if taken), key=lambda item: -item[1])


def bottleneck(pace: Pace) -> str:
    """Say in a word what the training waits for; nothing when it has not iterated lately."""
    if not any(pace.phases.values()):
        return ""
    if pace.phases["data"] > 0.3:
        return "input-bound"
    return "hook-bound" if pace.phases["hooks"] > 0.2 else "compute-bound"


def verdict(state: RunState, plan: Plan) -> str:
    """Say in a few words what the training waits for, and what its hooks cost."""
    pace = Pace.of(state)
    word = bottleneck(pace)
    if not word:
        return ""
    waits = f": {percent(pace.phases['data'])} % waits for data" if word == "input-bound" else ""
    shares = costliest(state, plan)
    most = f" ({shares[0][0]} {percent(shares[0][1])} %)" if shares else ""
    return f"{word}{waits}, hooks {percent(sum(taken for _, taken in shares))} %{most}"
