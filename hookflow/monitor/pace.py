"""How fast a run goes and what its time goes to: numbers and sentences drawn from the state."""

from __future__ import annotations

from dataclasses import dataclass

from hookflow.events.records import PHASES
from hookflow.graph.plan import Binding, Plan
from hookflow.monitor.ranks import booked, spent
from hookflow.monitor.series import WINDOW
from hookflow.monitor.state import RunState
from hookflow.numbers import percent


@dataclass(frozen=True, slots=True)
class Pace:
    """The last minute. Shares are of `whole`, the time in training iterations; durations in ns; `eta` in seconds.

    `eta` is None while there is nothing to judge by. `samples_per_s` is of all ranks together, the rest of rank 0.
    """

    whole: float
    iters_per_s: float
    samples_per_s: float
    p50: float
    p95: float
    phases: dict[str, float]
    recorder: float
    eta: float | None

    @classmethod
    def of(cls, state: RunState, plan: Plan) -> Pace:
        sums = state.minute.sums(state.now)
        seconds = sums["ns"] / 1e9
        books = booked(state, plan)
        whole = sum(books.values())
        return cls(
            whole=whole,
            iters_per_s=sums["iters"] / seconds if seconds else 0.0,
            samples_per_s=_samples_per_s(state),
            p50=state.minute.percentile(state.now, 0.5),
            p95=state.minute.percentile(state.now, 0.95),
            phases={phase: books[phase] / whole if whole else 0.0 for phase in PHASES},
            recorder=sums["cost"] / 1e9 / min(max(state.elapsed, 1.0), WINDOW),
            eta=_eta(state, seconds / sums["iters"] if sums["iters"] else 0.0),
        )


def _samples_per_s(state: RunState) -> float:
    """Return the examples a second of all ranks; those not heard of take as many as the others."""
    heard = [sums for rank in state.ranks.of.values() if (sums := rank.minute.sums(state.now))["ns"]]
    speeds = [sums["samples"] / sums["ns"] * 1e9 for sums in heard]
    return sum(speeds) * state.ranks.world / len(speeds) if speeds else 0.0


def _eta(state: RunState, iteration: float) -> float | None:
    """Return the seconds to the end: iterations as long as lately, and as much beside them as so far."""
    left = state.total_iters - state.it
    if state.end is not None or not iteration or not state.iterating or left < 0:
        return None
    beside = max(state.active / (state.iterating / 1e9), 1.0)
    return left * iteration * beside


def share(state: RunState, plan: Plan, pace: Pace, *bindings: Binding) -> float:
    """Return the share of the last minute's iterations that these bindings took; 0 for what fires elsewhere."""
    return sum(spent(state, plan, binding) for binding in bindings) / pace.whole if pace.whole else 0.0


def costliest(state: RunState, plan: Plan, pace: Pace) -> list[tuple[str, float]]:
    """Return the hooks that took a share of the last minute's iterations, the costliest first."""
    shares: dict[str, float] = {}
    for binding in plan.bindings:
        shares[binding.hook] = shares.get(binding.hook, 0.0) + share(state, plan, pace, binding)
    return sorted(((hook, taken) for hook, taken in shares.items() if taken), key=lambda item: -item[1])


def bottleneck(state: RunState, pace: Pace) -> str:
    """Say in a word what the training waits for; nothing when it has not iterated lately."""
    if not any(pace.phases.values()):
        return ""
    if (straggler := state.ranks.straggler) and straggler.rank:
        return f"rank-{straggler.rank}-bound"
    if pace.phases["data"] > 0.3:
        return "input-bound"
    return "hook-bound" if pace.phases["hooks"] > 0.2 else "compute-bound"


def verdict(state: RunState, plan: Plan, pace: Pace) -> str:
    """Say in a few words what the training waits for, and what its hooks cost."""
    word = bottleneck(state, pace)
    if not word:
        return ""
    waits = f": {percent(pace.phases['data'])} % waits for data" if word == "input-bound" else ""
    shares = costliest(state, plan, pace)
    most = f" ({shares[0][0]} {percent(shares[0][1])} %)" if shares else ""
    return f"{word}{waits}, hooks {percent(pace.phases['hooks'])} %{most}"
