"""How fast a run trains, how long it has still to go, and what it waits for."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from hookflow.events.records import PHASES
from hookflow.graph.plan import Binding, Plan
from hookflow.monitor.durations import WINDOW_SECONDS
from hookflow.monitor.ranks import time_in_iterations
from hookflow.monitor.state import RunState

SETTLE_SECONDS = 10.0
"""A longer time left is unknown until so many seconds of training.

The first iterations are slow.
"""


class TimeLeft(NamedTuple):
    """The seconds until the end: at the last minute's pace, at the quickest and at the slowest.

    `expected` is None where the pace is not settled.
    """

    expected: float | None
    low: float
    high: float

    def __str__(self) -> str:
        """Return the quickest and the slowest; empty where the pace is not settled."""
        if self.expected is None:
            return ""
        if self.high < 120:
            bounds = [f"{seconds:.0f}" for seconds in (self.low, self.high)]
            unit = "s"
        elif self.high < 7200:
            bounds = [f"{seconds / 60:.0f}" for seconds in (self.low, self.high)]
            unit = "min"
        else:
            bounds = [f"{seconds / 3600:.1f}" for seconds in (self.low, self.high)]
            unit = "h"
        return f"{'–'.join(dict.fromkeys(bounds))} {unit}"


UNKNOWN_TIME_LEFT = TimeLeft(None, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Throughput:
    """The last minute. Shares are of `whole`, the time in training iterations; durations in ns.

    `samples_per_s` is of all ranks together, the rest of rank 0. `recorder` is the share of the
    time that recording takes.
    """

    whole: float
    iters_per_s: float
    samples_per_s: float
    phases: dict[str, float]
    recorder: float
    time_left: TimeLeft

    @property
    def eta(self) -> float | None:
        """The seconds that are left; None while there is nothing to judge by."""
        return self.time_left.expected

    @property
    def left(self) -> str:
        """The time that is left, from the quickest pace to the slowest.

        It is empty while it is unknown.
        """
        return str(self.time_left)

    @classmethod
    def of(cls, state: RunState) -> Self:
        minute = state.first.minute
        by_phase = minute.by_phase
        whole = sum(by_phase.values())
        seconds = minute.sums["ns"] / 1e9
        observed = min(max(state.elapsed, 1.0), WINDOW_SECONDS)
        return cls(
            whole=whole,
            iters_per_s=minute.sums["iters"] / seconds if seconds else 0.0,
            samples_per_s=_compute_samples_per_s(state),
            phases={phase: by_phase[phase] / whole if whole else 0.0 for phase in PHASES},
            recorder=minute.sums["cost"] / 1e9 / observed,
            time_left=_time_left(state),
        )


def _compute_samples_per_s(state: RunState) -> float:
    """Return the examples per second of all ranks.

    Ranks that are not heard of take as many as the others.
    """
    speeds = []
    for rank in state.ranks.of.values():
        sums = rank.minute.sums
        if sums["ns"]:
            speeds.append(sums["samples"] / sums["ns"] * 1e9)
    if not speeds:
        return 0.0
    return sum(speeds) * state.ranks.world / len(speeds)


def _time_left(state: RunState) -> TimeLeft:
    """Return the time that is left, with validation and saving in proportion so far."""
    minute = state.first.minute
    iters_left = state.total_iters - state.it
    is_timed = minute.sums["ns"] and minute.sums["iters"] and state.iterating
    if state.end is not None or not is_timed or iters_left < 0:
        return UNKNOWN_TIME_LEFT
    active = state.active
    if state.stage == "val" and state.batch:  # the validation under way counts as whole
        in_validation = state.active - state.staged
        active += in_validation * max(state.batches / state.batch - 1, 0.0)
    seconds_per_second = max(active / (state.iterating / 1e9), 1.0)
    expected = iters_left * minute.sums["ns"] / minute.sums["iters"] / 1e9 * seconds_per_second
    estimates = [expected]
    iters_done = state.first.attempt.sums["iters"]
    mean_of_attempt = 0.0
    if iters_done:
        mean_of_attempt = state.iterating / iters_done
    for ns in (minute.recent_iteration, mean_of_attempt):
        if ns:
            estimates.append(iters_left * ns / 1e9 * seconds_per_second)
    is_settled = state.active >= SETTLE_SECONDS or expected <= SETTLE_SECONDS
    return TimeLeft(expected if is_settled else None, min(estimates), max(estimates))


def share(state: RunState, plan: Plan, pace: Throughput, *bindings: Binding) -> float:
    """Return the share of the last minute's iterations that these bindings took.

    It is 0 for what fires elsewhere.
    """
    if not pace.whole:
        return 0.0
    return sum(time_in_iterations(state.first, plan, binding) for binding in bindings) / pace.whole


def find_costliest_hooks(state: RunState, plan: Plan, pace: Throughput) -> list[tuple[str, float]]:
    """Return the hooks that took a share of the last minute's iterations, the costliest first."""
    shares: dict[str, float] = {}
    for binding in plan.bindings:
        shares[binding.hook] = shares.get(binding.hook, 0.0) + share(state, plan, pace, binding)
    used = [(hook, part) for hook, part in shares.items() if part]
    return sorted(used, key=lambda item: -item[1])


def find_bottleneck(state: RunState, pace: Throughput) -> str:
    """Return in a word what the training waits for; "" when it has not iterated lately."""
    if not any(pace.phases.values()):
        return ""
    straggler = state.ranks.straggler
    if straggler and straggler.rank:
        return f"rank-{straggler.rank}-bound"
    computes = "compute-bound"
    if state.first.device.launch_bound():
        computes = "launch-bound"
    compute = sum(pace.phases[phase] for phase in ("forward", "backward", "optimizer"))
    shares = {
        computes: compute,
        "input-bound": pace.phases["data"],
        "hook-bound": pace.phases["hooks"],
    }
    return max(shares, key=lambda word: shares[word])
