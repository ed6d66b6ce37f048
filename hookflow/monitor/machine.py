"""The machine of the dashboard, and its terminal: processor, memory, GPUs; clipboard, announcements, mouse, hang-up."""

from __future__ import annotations

import base64
import os
import select
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from hookflow.events.rundir import RunDir
from hookflow.monitor.health import Health
from hookflow.text import printable


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: `busy` in hundredths, memory in bytes, degrees Celsius, watts (0 where the driver does not say)."""

    index: int
    busy: int
    used: int
    total: int
    degrees: int
    watts: float


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
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        use = degrees = watts = 0
        with suppress(nvml.NVMLError):  # a slice of a GPU does not know its load
            degrees = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            watts = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
            use = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
        return Gpu(index, use, int(memory.used), int(memory.total), degrees, watts)


CLICKS, NO_MOUSE = "\x1b[?1003l\x1b[?1000h", "\x1b[?1003l\x1b[?1000l"
"""Report clicks and the wheel, and no mere motion, which Textual has asked for; or leave the mouse to the terminal."""


def exit_on_hang_up(terminal: int) -> None:
    """End this process as SIGHUP does, once the terminal is closed on the other side: the signal may come too late."""

    def wait() -> None:
        poll = select.poll()
        poll.register(terminal, 0)  # for nothing beyond the record: that it has hung up
        if any(what & select.POLLHUP for _, what in poll.poll()):
            os._exit(128 + signal.SIGHUP)

    if os.isatty(terminal):
        threading.Thread(target=wait, name="hookflow-hang-up", daemon=True).start()


def clipboard(text: str) -> str:
    """Return what puts a text into the clipboard: OSC 52."""
    return _passed_on(f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a")


def announcement(run: RunDir, health: Health) -> str:
    """Return what lets the terminal notify of the state of a run, and ring: OSC 9 and the bell."""
    text = f"hookflow {run.path.parent.name} #{run.id[-4:]}: {health.condition}  {health.sentence}"
    return _passed_on(f"\x1b]9;{printable(text.strip())}\a") + "\a"


def _passed_on(sequence: str) -> str:
    """Return a sequence, within tmux also as one that tmux hands on to its terminal if `allow-passthrough` is set."""
    wrapped = sequence.replace("\x1b", "\x1b\x1b")
    return sequence + f"\x1bPtmux;{wrapped}\x1b\\" * ("TMUX" in os.environ)
