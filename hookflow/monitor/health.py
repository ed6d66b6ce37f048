"""The health and the pace of a run, from its log and the state of its process; and the machine of the dashboard."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import psutil

from hookflow.events import now
from hookflow.events.now import NOWHERE, stack
from hookflow.events.process_life import started_at
from hookflow.events.records import PHASES, Error
from hookflow.events.rundir import Life, RunDir, run_argument, short
from hookflow.graph.plan import Binding, Plan
from hookflow.monitor.durations import WINDOW
from hookflow.monitor.ranks import REMOTE_DELAY, named, spent
from hookflow.monitor.state import RunState
from hookflow.numbers import lasting, one_line, percent
from hookflow.text import GLYPHS

SETTLED = 10.0
"""A longer time left is unknown until so many seconds of training: the first iterations are slow."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The last minute. Shares are of `whole`, the time in training iterations; durations in ns; `eta` in seconds.

    `eta` is None while there is nothing to judge by. `samples_per_s` is of all ranks together, the rest of rank 0.
    """

    whole: float
    iters_per_s: float
    samples_per_s: float
    phases: dict[str, float]
    recorder: float
    eta: float | None
    etas: tuple[float, float]

    @property
    def left(self) -> str:
        """The time that is left, from the quickest pace to the slowest; it is empty while it is unknown."""
        if self.eta is None:
            return ""
        low, high = self.etas
        unit, seconds = ("s", 1) if high < 120 else ("min", 60) if high < 7200 else ("h", 3600)
        bounds = [f"{eta / seconds:.{int(unit == 'h')}f}" for eta in (low, high)]
        return f"{'–'.join(dict.fromkeys(bounds))} {unit}"

    @classmethod
    def of(cls, state: RunState) -> Self:
        minute = state.first.minute
        sums, booked = minute.sums, minute.booked
        seconds, whole = sums["ns"] / 1e9, sum(booked.values())
        # ranks that are not heard of take as many examples as the others
        heard = [other for rank in state.ranks.of.values() if (other := rank.minute.sums)["ns"]]
        speeds = [other["samples"] / other["ns"] * 1e9 for other in heard]
        left, eta, etas = state.total_iters - state.it, None, (0.0, 0.0)
        if state.end is None and seconds and sums["iters"] and state.iterating and left >= 0:
            rest = max(state.batches / state.batch - 1, 0.0) if state.stage == "val" and state.batch else 0.0
            active = state.active + (state.active - state.staged) * rest  # the validation under way counts as whole
            beside = max(active / (state.iterating / 1e9), 1.0)  # validation and saving, in proportion so far
            done = state.first.attempt.sums["iters"]
            each = [sums["ns"] / sums["iters"], minute.lately, state.iterating / done if done else 0.0]
            eta, *others = (left * ns / 1e9 * beside for ns in each if ns)
            etas = min(eta, *others), max(eta, *others)
            if state.active < SETTLED < eta:
                eta = None
        return cls(
            whole=whole,
            iters_per_s=sums["iters"] / seconds if seconds else 0.0,
            samples_per_s=sum(speeds) * state.ranks.world / len(speeds) if speeds else 0.0,
            phases={phase: booked[phase] / whole if whole else 0.0 for phase in PHASES},
            recorder=sums["cost"] / 1e9 / min(max(state.elapsed, 1.0), WINDOW),
            eta=eta,
            etas=etas,
        )


def share(state: RunState, plan: Plan, pace: Pace, *bindings: Binding) -> float:
    """Return the share of the last minute's iterations that these bindings took; 0 for what fires elsewhere."""
    return sum(spent(state.first, plan, binding) for binding in bindings) / pace.whole if pace.whole else 0.0


def costliest(state: RunState, plan: Plan, pace: Pace) -> list[tuple[str, float]]:
    """Return the hooks that took a share of the last minute's iterations, the costliest first."""
    shares: dict[str, float] = {}
    for binding in plan.bindings:
        shares[binding.hook] = shares.get(binding.hook, 0.0) + share(state, plan, pace, binding)
    return sorted(((hook, used) for hook, used in shares.items() if used), key=lambda item: -item[1])


def bottleneck(state: RunState, pace: Pace) -> str:
    """Return in a word what the training waits for; "" when it has not iterated lately."""
    if not any(pace.phases.values()):
        return ""
    if (straggler := state.ranks.straggler) and straggler.rank:
        return f"rank-{straggler.rank}-bound"
    computes = "launch-bound" if state.first.device.launch_bound() else "compute-bound"
    compute = sum(pace.phases[phase] for phase in ("forward", "backward", "optimizer"))
    shares = {computes: compute, "input-bound": pace.phases["data"], "hook-bound": pace.phases["hooks"]}
    return max(shares, key=lambda word: shares[word])


def verdict(state: RunState, plan: Plan, pace: Pace) -> str:
    """Return in a few words what the training waits for, and what its hooks cost."""
    word = bottleneck(state, pace)
    if not word:
        return ""
    waits = f": {percent(pace.phases['data'])} % waits for data" if word == "input-bound" else ""
    shares = costliest(state, plan, pace)
    most = f" ({shares[0][0]} {percent(shares[0][1])} %)" if shares else ""
    return f"{word}{waits}, hooks {percent(pace.phases['hooks'])} %{most}"


def end_reason(state: RunState) -> list[str]:
    """Return a sentence or two; nothing for a run that goes on, is lost, or did all its iterations."""
    if state.ranks.first_failure:  # the errors of other ranks, and the signal that ended them, follow from it
        rank, error = state.ranks.first_failure
        place = ", ".join([*([f"rank {rank}"] if rank else ()), *placed(error)])
        line = ": ".join(filter(None, (_failure(state), place, error["type"], one_line(error["text"]))))
        at = [f"at {raised}"] if (raised := raised_at(error)) else []
        return [line, *at, *error["causes"].splitlines()[:6]]  # its traceback has all
    if state.end is None or not (state.end["reason"] or state.end["status"] == "failed"):
        return []
    status, reason = state.outcome, one_line(state.end["reason"])
    if status == "finished":
        return [f"stopped early: {reason}"] if state.it < state.total_iters else []
    return [reason if reason.startswith(status) and state.end["status"] != "failed" else f"{status}: {reason}"]


def _failure(state: RunState) -> Literal["failed", "refused"]:
    return "refused" if state.outcome == "refused" else "failed"  # another rank may have failed, and this one not


def placed(error: Error) -> Iterator[str]:
    """Yield the hook that raised, and the iteration where the text does not have it."""
    if error["hook"]:
        yield f'hook "{error["hook"]}" at {error["point"]}'
    if error["it"] and not re.search(rf"\biteration {error['it']}\b", error["text"]):
        yield f"iteration {error['it']}"


def raised_at(error: Error) -> str:
    """Return where in the user's own files it was raised, as people read it; nothing where that is not known."""
    file, colon, line = error["at"].rpartition(":")
    return f"{short(Path(file))}:{line}" if colon else ""


Condition = Literal[
    "starting", "running", "paused", "stalled", "lost", "finished", "stopped", "interrupted", "failed", "refused",
    "unreadable", "reading",
]  # fmt: skip

ALIVE: tuple[Condition, ...] = ("running", "starting", "paused", "stalled")

PATIENCE, PATIENCE_AT_FIRST = 10.0, 120.0
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
        return self.condition in ("lost", "finished", "stopped", "interrupted", "failed", "refused", "unreadable")

    @property
    def occasion(self) -> Literal["end", "failure", "stall"] | None:
        if self.condition == "stalled":
            return "stall"
        return None if not self.over else "failure" if self.bad else "end"

    @property
    def bad(self) -> bool:
        return self.condition in ("stalled", "lost", "failed", "refused", "unreadable")


def examine(
    state: RunState,
    life: Life,
    clock: float,
    plan: Plan | None = None,
    inside: Mapping[int, tuple[int, float]] = MappingProxyType({}),
    suspicion: str = "",
    moved: RunDir | None = None,
) -> Health:
    """Judge a run. `clock` is the time now, `inside` what `look_inside` has returned.

    `suspicion` is what may have ended a process that is gone, and `moved` the run where its directory is now.
    """
    over = state.end is not None or life == "gone"
    if over and (state.ranks.first_failure or (state.end and state.end["status"] == "failed")):
        return Health(_failure(state), end_reason(state)[0])
    if state.end is not None:
        return Health(state.end["status"], next(iter(end_reason(state)), ""))
    if life == "missing":
        return Health("lost", missing(state, moved))
    if life == "gone":
        why = "killed, out of disk space, or the machine went down"
        why += f"; now {suspicion}" if suspicion else ""
        return Health("lost", f"the process is gone and left no end record: {why}")
    if not state.run:
        return Health("starting")
    if state.stage == "paused":
        return Health("paused")
    still = clock - state.moved
    longest = state.first.minute.percentile(0.95) / 1e9
    patience = max(PATIENCE, 5 * longest) if state.iterating else PATIENCE_AT_FIRST
    if life == "remote":
        patience += REMOTE_DELAY
    if still > patience:
        return Health("stalled", _stalled(state, still, plan, inside))
    return Health("starting" if state.stage == "start" else "running")


def judge(run: RunDir, state: RunState, clock: float) -> Health:
    """Judge a run by the system's answer at this moment, and by its log."""
    life = run.life()
    return examine(state, life, clock, suspicion=run.trouble() if life == "gone" else "")


def missing(state: RunState, moved: RunDir | None) -> str:
    """Return what has become of a run whose directory is not in its place, as far as anybody can say."""
    pid, began = state.run.get("pid", 0), started_at(state.run.get("pid", 0))
    here = state.run.get("host") == socket.gethostname()
    lives = here and began is not None and began <= state.run["t"] + 1
    goes_on = f"; the training goes on (pid {pid})" if lives else "; its process is gone" if here else ""
    if moved is None:
        return f"its run directory is gone: it was moved or deleted{goes_on}"
    return f"its run directory was moved to {short(moved.path)}{goes_on}: hookflow watch {run_argument(moved)}"


@dataclass(frozen=True, slots=True)
class RanksHere:
    """What a look at the processes of a run needs of its state.

    The state changes while its log is read, and so belongs to one thread. A look takes its time and has a thread of its
    own: this is copied for it. `pids` are of the ranks on this machine, by rank; `silent` are the ranks that have
    written nothing for long; `moved` is when the training was last seen to get on.
    """

    pids: Mapping[int, int]
    silent: Sequence[int]
    moved: float

    @classmethod
    def of(cls, state: RunState) -> Self:
        here = socket.gethostname()
        pids = {}
        for number, rank in state.ranks.of.items():
            if number == 0 or rank.run.get("host") == here:
                pids[number] = rank.run.get("pid", 0)
        return cls(pids, [*state.ranks.silent], state.moved)


def look_inside(run: RunDir, ranks: Iterable[int]) -> dict[int, tuple[int, float]]:
    """Return where the training threads of these ranks are: the binding, and for how many seconds.

    The ranks are on this machine. Those whose place is not known are left out.
    """
    seen = {number: now.look(run.now_of(number)) for number in ranks}
    return {number: place for number, place in seen.items() if place}


def stacks(run: RunDir, pids: Mapping[int, int]) -> dict[int, list[str]]:
    """Return the stacks of the training threads of ranks on this machine, the innermost frame first; takes seconds."""
    return {rank: stack(pid, run.output) for rank, pid in pids.items()}


class Process:
    """The process behind a run as the dashboard has seen it last: whether it lives, where it is, and its stacks."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self.life = run.life()
        self.suspicion = ""  # what may have ended it
        self.inside: dict[int, tuple[int, float]] = {}
        self.stacks: dict[int, list[str]] = {}
        self.looked = 0.0  # when these were taken
        self.wanted = False  # stacks are, though there are some
        self._stalled = 0.0  # since when it stalled then
        self._looking = threading.Lock()

    def look(self, ranks: RanksHere) -> None:
        """Look at the process, from a thread."""
        self.life = self._run.life()
        self.suspicion = self._run.trouble() if self.life == "gone" else ""
        self.inside = look_inside(self._run, ranks.pids) if self.life == "alive" else {}

    def look_at_stacks(self, ranks: RanksHere, plan: Plan, *, is_shown: bool, stalls: bool) -> None:
        """Take the requested stacks, or those of a stall, each once; from a thread, as it takes seconds."""
        with self._looking:  # a slow look may meet the next one: no stack is taken twice
            if not (is_shown or stalls):
                self.stacks = {}
            wanted = is_shown and (self.wanted or not self.stacks)
            if self.inside and (wanted or (stalls and self._stalled != ranks.moved)):
                looked_at = [*self.inside] if wanted else guilty(ranks.silent, plan, self.inside)
                self._stalled, self.wanted = ranks.moved if stalls else 0.0, False
                self.stacks = stacks(self._run, {rank: ranks.pids.get(rank, 0) for rank in looked_at})
                self.looked = time.time()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: `busy` in hundredths, memory in bytes, degrees Celsius, watts. None is what the driver does not say."""

    index: int
    busy: int | None
    used: int | None
    total: int | None
    degrees: int | None
    watts: float | None


@dataclass(frozen=True, slots=True)
class Machine:
    """One look: processor, memory and the monitor's own processor time in hundredths; `load` as the system counts."""

    cpu: float
    load: float
    ram: float
    viewer: float
    gpus: tuple[Gpu, ...] = ()


class Sensor:
    """Takes looks. Slow (tens of milliseconds with GPUs): ask from a thread, once a second at most."""

    def __init__(self) -> None:
        import pynvml

        self._self = psutil.Process()
        self._self.cpu_percent()
        psutil.cpu_percent()
        self._nvml: Any = pynvml
        self._gpus = 0
        with suppress(pynvml.NVMLError):  # there is no driver that answers
            pynvml.nvmlInit()
            self._gpus = int(pynvml.nvmlDeviceGetCount())

    def look(self) -> Machine:
        cpu, load, ram = psutil.cpu_percent(), psutil.getloadavg()[0], psutil.virtual_memory().percent
        return Machine(cpu, load, ram, self._self.cpu_percent(), tuple(map(self._gpu, range(self._gpus))))

    def _gpu(self, index: int) -> Gpu:
        """Ask for each figure alone: a slice of a GPU knows its memory and no load, a laptop's GPU no power."""
        nvml = self._nvml
        handle = self._ask(nvml.nvmlDeviceGetHandleByIndex, index)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        load = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        degrees = self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        return Gpu(
            index,
            busy=None if load is None else int(load.gpu),
            used=None if memory is None else int(memory.used),
            total=None if memory is None else int(memory.total),
            degrees=degrees,
            watts=None if milliwatts is None else milliwatts / 1000,
        )

    def _ask(self, question: Callable[..., Any], *about: Any) -> Any:
        """Return the driver's answer; None where it has none, as about a GPU that was lost."""
        if None in about:
            return None
        try:
            return question(*about)
        except self._nvml.NVMLError:
            return None


def _stalled(state: RunState, still: float, plan: Plan | None, inside: Mapping[int, tuple[int, float]]) -> str:
    """Return for how long and where it hangs, as far as is known; of several ranks, who holds up the others."""
    nothing = f"no progress for {lasting(still)}"
    if state.ranks.first_failure:
        return f"{nothing}; {end_reason(state)[0]}"
    if silent := state.ranks.silent:
        number = max(silent, key=lambda rank: silent[rank])
        return f"{nothing}, nothing from rank {number} for {lasting(silent[number])}"
    if plan is None or not inside:
        return nothing
    if not (stuck := _stuck(plan, inside)):
        return f"{nothing}, {'waiting for the disk' if state.stage == 'save' else 'not inside a hook'}"
    lines = []
    for at, ranks in stuck.items():
        since = max(inside[rank][1] for rank in ranks)
        owner = f"{named(ranks)}: " * (state.ranks.world > 1)
        lines.append(f"{owner}{inside_of(plan, at, since)}")
    return ", ".join(lines)


def inside_of(plan: Plan, binding: int, seconds: float) -> str:
    """Return in words how long a training thread has been inside a binding; an id that the plan lacks is no hook."""
    bound = plan.bindings[binding] if 0 <= binding < len(plan.bindings) else None
    return f'{lasting(seconds)} inside "{bound.hook}" at {bound.point}' if bound else "not inside a hook"


def _stuck(plan: Plan, inside: Mapping[int, tuple[int, float]]) -> dict[int, list[int]]:
    """Return the bindings that fewest ranks are inside of, with these: most are where they wait for the others."""
    stuck: dict[int, list[int]] = {}
    for number, (binding, _) in sorted(inside.items()):
        if NOWHERE < binding < len(plan.bindings):
            stuck.setdefault(binding, []).append(number)
    fewest = min(map(len, stuck.values()), default=0)
    return {binding: ranks for binding, ranks in stuck.items() if len(ranks) == fewest}


def guilty(silent: Iterable[int], plan: Plan, inside: Mapping[int, tuple[int, float]]) -> list[int]:
    """Return the ranks on this machine that hold up a training which stalls: the silent, else the stuck, else all."""
    silent_here = [rank for rank in silent if rank in inside]
    return silent_here or [rank for ranks in _stuck(plan, inside).values() for rank in ranks] or sorted(inside)
