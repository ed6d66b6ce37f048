"""The hooks that a rerun adds to a pipeline: the end, a saved batch, a debugger, a trace."""

from __future__ import annotations

import pdb
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hookflow.hooks.base import Hook, Slots
from hookflow.pipeline.source_map import as_toml

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


@dataclass(eq=False)
class RerunEnd(Hook):
    """Ends a rerun once `at` iterations are done."""

    phase = "last"
    writes: ClassVar[Slots] = {"after_train_iter": ("control",)}

    at: int

    def after_train_iter(self, run: Run) -> None:
        if run.iter >= self.at:
            run.stop("the rerun is done", this_process=True)


@dataclass(eq=False)
class BatchSaver(Hook):
    """Saves the batch of iteration `at` by `torch.save`.

    Where the iteration accumulates several batches, a list of them is saved.
    """

    phase = "last"
    ranks = "zero"

    at: int
    file: str

    def __post_init__(self) -> None:
        self.batches: list[Any] = []

    def before_train_iter(self, run: Run, batch: Any) -> None:
        if run.iter == self.at - 1 and not any(batch is each for each in self.batches):
            self.batches.append(batch)

    after_forward = before_train_iter  # of each batch that an iteration accumulates

    def after_train_iter(self, run: Run) -> None:
        self._save()

    def on_exception(self, run: Run) -> None:
        self._save()  # it may be this batch that has raised

    def _save(self) -> None:
        import torch

        if self.batches:
            torch.save(self.batches if self.batches[1:] else self.batches[0], self.file)
            self.batches = []


@dataclass(eq=False)
class IterationDebugger(Hook):
    """Stops in Python's debugger before iteration `at`, with `run` and `batch` at hand."""

    phase = "last"

    at: int

    def before_train_iter(self, run: Run, batch: Any) -> None:
        if run.iter == self.at - 1:
            debugger = pdb.Pdb(stdin=sys.__stdin__, stdout=sys.__stdout__)
            debugger.message(
                f"before iteration {self.at}; `run` and `batch` are at hand, `c` goes on"
            )
            debugger.set_trace()


@dataclass(eq=False)
class IterationTracer(Hook):
    """Records `iters` iterations from `at` on as a timeline, as the command `trace` does."""

    phase = "last"

    at: int
    iters: int

    def before_train(self, run: Run) -> None:
        self._trace(run, self.iters)

    def after_train_iter(self, run: Run) -> None:
        self._trace(run, self.iters + 1)  # with the rest of the iteration before

    def _trace(self, run: Run, iters: int) -> None:
        if run.iter == self.at - 1:
            first = self.at + self.iters - iters
            run.trace(first, iters)


HOOK_NAMES = {
    RerunEnd: "rerun_end",
    BatchSaver: "rerun_batch",
    IterationDebugger: "rerun_debugger",
    IterationTracer: "rerun_tracer",
}
"""The names of these hooks in the pipeline of a rerun."""


def override(hook: type[Hook], **args: Any) -> str:
    """Return the override that adds one of these hooks to a pipeline."""
    table = {"use": f"{hook.__module__}:{hook.__name__}", "args": args}
    return f"hooks.{HOOK_NAMES[hook]}={as_toml(table)}"
