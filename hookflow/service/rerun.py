"""A rerun: iterations of a recorded run, done again from a checkpoint and held against what it has logged."""

from __future__ import annotations

import math
import pdb
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar

from hookflow.hooks.base import Hook, Slots
from hookflow.pipeline.source_map import as_toml
from hookflow.service.runs import ScalarRow

if TYPE_CHECKING:
    from hookflow.hooks.run import Run

MEASURED = ("samples_per_s", "tokens_per_s", "mfu", "memory/*")
"""The numbers that a clock or the machine has made, and not the training."""

CAUSES = {
    "torch": "PyTorch",
    "python": "Python",
    "device": "the device",
    "host": "the machine",
    "precision": "precision",
}
"""Facts in the first record of an attempt on which its bits depend."""


@dataclass(eq=False)
class End(Hook):
    """Ends a rerun once `at` iterations are done."""

    phase = "last"
    writes: ClassVar[Slots] = {"after_train_iter": ("control",)}

    at: int

    def after_train_iter(self, run: Run) -> None:
        if run.iter >= self.at:
            run.stop("the rerun is done", this_process=True)


@dataclass(eq=False)
class SaveBatch(Hook):
    """Saves the batch of iteration `at` by `torch.save`: of several batches that it accumulates, a list."""

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
class Debugger(Hook):
    """Stops in Python's debugger before iteration `at`, with `run` and `batch` at hand."""

    phase = "last"

    at: int

    def before_train_iter(self, run: Run, batch: Any) -> None:
        if run.iter == self.at - 1:
            debugger = pdb.Pdb(stdin=sys.__stdin__, stdout=sys.__stdout__)
            debugger.message(f"before iteration {self.at}; `run` and `batch` are at hand, `c` goes on")
            debugger.set_trace()


@dataclass(eq=False)
class Tracer(Hook):
    """Records `iters` iterations from `at` on as a timeline, as the command `trace` does."""

    phase = "last"

    at: int
    iters: int

    def before_train(self, run: Run) -> None:
        self._trace(run, self.iters)

    def after_train_iter(self, run: Run) -> None:
        self._trace(run, self.iters + 1)  # with the rest of the iteration before

    def _trace(self, run: Any, iters: int) -> None:
        from hookflow.runner.logging.capture import Capture

        if run.iter == self.at - 1:
            first = self.at + self.iters - iters
            run._log.trace(Capture(run._engine.plan, first, iters, time.perf_counter(), run.rank))


NAMES = {End: "rerun_end", SaveBatch: "rerun_batch", Debugger: "rerun_debugger", Tracer: "rerun_tracer"}
"""The names of these hooks in the pipeline of a rerun."""


def override(hook: type[Hook], **args: Any) -> str:
    """Return the override that adds one of these hooks to a pipeline."""
    table = {"use": f"{hook.__module__}:{hook.__name__}", "args": args}
    return f"hooks.{NAMES[hook]}={as_toml(table)}"


@dataclass(frozen=True, slots=True)
class Unlike:
    """A number that is not the recorded one; None where it was not logged again."""

    iter: int
    name: str
    recorded: float
    now: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a rerun, from the iteration after `begin` up to and including `end`."""

    begin: int
    end: int
    names: Sequence[str]
    """The names of the numbers that were held against the recording, and how many numbers: `compared`."""
    compared: int
    unlike: Sequence[Unlike]
    """The numbers that differ, the first one first."""
    measured: Sequence[str]
    """The names that were left out: a clock or the machine says them."""
    silent: Sequence[str]
    """The names that were left out since hooks were, and no other has logged them."""
    more: Mapping[str, Mapping[int, float]]
    """Numbers of the rerun beyond the recording, by name and iteration."""


def compare(
    recorded: Iterable[ScalarRow], again: Iterable[ScalarRow], begin: int, end: int, *, without: bool = False
) -> Comparison:
    """Hold what a rerun has logged after iteration `begin`, up to `end`, against the recording, to the bit.

    In a rerun `without` hooks of the run, a name that it has not logged at all was theirs.
    """
    logs = ((row for row in rows if begin < row.iter <= end) for rows in (recorded, again))
    was, now = ({(row.iter, row.name): row.value for row in rows} for rows in logs)
    measured = {name for _, name in was if any(fnmatchcase(name, pattern) for pattern in MEASURED)}
    known = {name for _, name in was}
    silent = known - measured - {name for _, name in now} if without else set()
    held = {key: value for key, value in sorted(was.items()) if key[1] not in measured | silent}
    more: dict[str, dict[int, float]] = {}
    for (it, name), value in sorted(now.items()):
        if name not in known and not any(fnmatchcase(name, pattern) for pattern in MEASURED):
            more.setdefault(name, {})[it] = value
    return Comparison(
        begin,
        end,
        names=sorted({name for _, name in held}),
        compared=len(held),
        unlike=[Unlike(*key, value, now.get(key)) for key, value in held.items() if not _alike(value, now.get(key))],
        measured=sorted(measured),
        silent=sorted(silent),
        more=more,
    )


def causes(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs between the first records of the recorded attempt and of the rerun, and may change bits."""
    for key, called in CAUSES.items():
        was, is_ = then.get(key), now.get(key)
        if was != is_:
            yield f"{called} was {was}, and is {is_}"


def _alike(one: float, other: float | None) -> bool:
    if other is None:
        return False
    return (math.isnan(one) and math.isnan(other)) or struct.pack("d", one) == struct.pack("d", other)
