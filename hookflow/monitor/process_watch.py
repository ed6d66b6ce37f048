"""Looks at the processes of a run and at this machine.

A look takes its time, so it belongs in a thread. Each look returns an immutable value, and reads no
state that another thread changes.
"""

import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import psutil

from hookflow.events import now
from hookflow.events.now import stack
from hookflow.events.rundir import Life, RunDir
from hookflow.graph.plan import Plan
from hookflow.monitor.health import blocking_ranks
from hookflow.monitor.state import RunState

Place = tuple[int, float]
"""The binding that a training thread is in, and for how many seconds."""


@dataclass(frozen=True, slots=True)
class LocalRanks:
    """The state of a run for a look at its processes, copied for the thread that looks.

    `pids` are of the ranks on this machine, by rank; `silent` are the ranks that have written
    nothing for long; `moved` is when the training was last seen to get on.
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


def read_training_places(run: RunDir, ranks: Iterable[int]) -> dict[int, Place]:
    """Return where the training threads of these ranks are.

    The ranks are on this machine. Those whose place is not known are left out.
    """
    seen = {number: now.read_current_binding(run.find_now_path(number)) for number in ranks}
    return {number: place for number, place in seen.items() if place}


def read_stacks(run: RunDir, pids: Mapping[int, int]) -> dict[int, list[str]]:
    """Return the stacks of the training threads of ranks here, the innermost frame first.

    This takes seconds.
    """
    return {rank: stack(pid, run.output) for rank, pid in pids.items()}


@dataclass(frozen=True, slots=True)
class ProcessView:
    """The processes of a run as they were seen last.

    `suspicion` is what may have ended a process that is gone. `inside` is where the training
    threads are, by rank; `stacks` are theirs, taken at the moment `looked` (seconds since 1970) of
    a stall since `stalled_since`.
    """

    life: Life
    suspicion: str = ""
    inside: Mapping[int, Place] = field(default_factory=dict)
    stacks: Mapping[int, Sequence[str]] = field(default_factory=dict)
    looked: float = 0.0
    stalled_since: float = 0.0


@dataclass(frozen=True, slots=True)
class StackRequest:
    """The processes whose stacks are to be taken.

    These are all ranks where they are `shown`, and the blocking ones in a stall.

    `again`: they are taken though there are some.
    """

    ranks: LocalRanks
    plan: Plan
    shown: bool = False
    stalls: bool = False
    again: bool = False

    def find_ranks_without_stack(
        self, before: ProcessView, inside: Mapping[int, Place]
    ) -> Collection[int]:
        """Return the ranks whose stacks are missing."""
        if not inside:
            return ()
        if self.shown and (self.again or not before.stacks):
            return [*inside]
        if self.stalls and before.stalled_since != self.ranks.moved:
            return blocking_ranks(self.ranks.silent, self.plan, inside)
        return ()


def inspect_process(run: RunDir, before: ProcessView, request: StackRequest) -> ProcessView:
    """Return how the processes of a run are now; takes seconds where stacks are taken."""
    life = run.life()
    if life != "alive":
        suspicion = ""
        if life == "gone":
            suspicion = run.trouble()
        return ProcessView(life, suspicion)
    inside = read_training_places(run, request.ranks.pids)
    wanted = request.find_ranks_without_stack(before, inside)
    if wanted:
        taken = read_stacks(run, {rank: request.ranks.pids.get(rank, 0) for rank in wanted})
        stalled_since = 0.0
        if request.stalls:
            stalled_since = request.ranks.moved
        return ProcessView(life, "", inside, taken, time.time(), stalled_since)
    if request.shown or request.stalls:
        return ProcessView(life, "", inside, before.stacks, before.looked, before.stalled_since)
    return ProcessView(life, "", inside)


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU: `busy` in hundredths, memory in bytes, degrees Celsius, watts.

    None is what the driver does not say.
    """

    index: int
    busy: int | None
    used: int | None
    total: int | None
    degrees: int | None
    watts: float | None


@dataclass(frozen=True, slots=True)
class MachineState:
    """One look at the machine.

    Processor, memory and the monitor's own processor time are in hundredths. `load` is as the
    system counts.
    """

    cpu: float
    load: float
    ram: float
    viewer: float
    gpus: tuple[GpuState, ...] = ()


class MachineSensor:
    """Looks at this machine.

    Slow (tens of milliseconds with GPUs): ask from a thread, once a second at most.
    """

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

    def look(self) -> MachineState:
        cpu = psutil.cpu_percent()
        load = psutil.getloadavg()[0]
        ram = psutil.virtual_memory().percent
        gpus = tuple(self._read_gpu(index) for index in range(self._gpus))
        return MachineState(cpu, load, ram, self._self.cpu_percent(), gpus)

    def _read_gpu(self, index: int) -> GpuState:
        """Ask for each figure alone.

        A slice of a GPU knows its memory and no load, and a laptop's GPU no power.
        """
        nvml = self._nvml
        handle = self._ask(nvml.nvmlDeviceGetHandleByIndex, index)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        load = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        degrees = self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        return GpuState(
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
