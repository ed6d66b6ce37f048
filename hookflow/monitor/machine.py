"""The machine of the dashboard: processor, memory, GPUs, and the cost of the dashboard itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil


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
