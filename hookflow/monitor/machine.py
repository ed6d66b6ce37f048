"""The machine of the dashboard: processor, memory, GPUs, and the cost of the dashboard itself."""

from __future__ import annotations

from collections.abc import Callable
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
        return Machine(
            cpu=psutil.cpu_percent(),
            load=psutil.getloadavg()[0],
            ram=psutil.virtual_memory().percent,
            viewer=self._self.cpu_percent(),
            gpus=tuple(_gpu(self._nvml, index) for index in range(self._gpus)),
        )


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)

    def ask(question: Callable[..., Any], *args: Any) -> Any:
        """Return the answer, or 0 where this GPU has none: a slice of one knows neither load nor watts."""
        try:
            return question(handle, *args)
        except nvml.NVMLError:
            return 0

    use = ask(nvml.nvmlDeviceGetUtilizationRates)
    return Gpu(
        index=index,
        busy=use.gpu if use else 0,
        used=int(memory.used),
        total=int(memory.total),
        degrees=ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        watts=ask(nvml.nvmlDeviceGetPowerUsage) / 1000,
    )
