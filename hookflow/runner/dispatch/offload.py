"""The interface of the dispatch to the executor of offloaded hooks.

The executor is an optional part, imported on demand.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Protocol

from hookflow.graph.plan import Binding
from hookflow.runner.logging.background import BackgroundSpans

OFFLOAD_MODULE = "hookflow.offload.executor"


class BackgroundExecutor(BackgroundSpans, Protocol):
    """Fires the offloaded hooks of a run in the background.

    `hookflow.offload.executor.OffloadExecutor` is one.
    """

    copies: dict[int, tuple[int, int]]
    """By binding: the bytes that a firing copies, and the least ns in which one has."""

    def method(self, binding: Binding, method: Callable[..., object]) -> Callable[..., object]:
        """Return what a binding calls in place of its method."""

    def check(self) -> None:
        """Raise UserError where a hook cannot be offloaded."""

    def running(self) -> AbstractContextManager[None]:
        """Return a context that closes the executor in the end."""

    def raise_failures(self) -> None:
        """Report what hooks have raised; raise it where their `on_error` says so."""

    def settle(self) -> None:
        """Wait until every firing is done, and report their failures."""

    def take_times(self) -> Mapping[str, list[int]]:
        """Return by binding what has been done since the last time.

        These are firings, ns, longest ns, waiting, dropped.
        """


def import_executor() -> tuple[Callable[..., BackgroundExecutor], Callable[..., object]]:
    """Import the executor, which few runs need, and return its class and that of its reports."""
    module = import_module(OFFLOAD_MODULE)
    return module.OffloadExecutor, module.OffloadReports
