"""Lets each process of the tests find bf16 in its processor, or not, as HOOKFLOW_TEST_BF16 says:
"on" or "off".

And no process waits for the disk: half the time of a small training is `os.fsync`, which matters
after a power cut alone; `tests/faults/test_power_cut.py` simulates one.

Python imports a module of this name by itself when it starts; tests/conftest.py puts this folder on
PYTHONPATH. So the answer reaches command lines and ranks, too, and hookflow needs no option for it.
Without the variable the processor answers.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

VARIABLE = "HOOKFLOW_TEST_BF16"
_FORCED = {"on": lambda: True, "off": lambda: False}
ASKS = "hookflow.runner.device.precision"


class Finder:
    """Finds the module that asks the processor, and exchanges its question once it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == ASKS else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                ask = module._cpu_has_bf16
                module._cpu_has_bf16 = lambda: _FORCED.get(os.environ.get(VARIABLE, ""), ask)()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def fsync(descriptor: int) -> None:
    """Do nothing."""


os.fsync = fsync  # type: ignore[assignment]
sys.meta_path.insert(0, Finder())
