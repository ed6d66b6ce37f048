"""The state of a run: counters, stage, and the attention flag.

The sentence below a field names its writer. Signals, commands, hooks and finished writes set
`attention`; the safe point clears it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from hookflow.errors import Problem, UserError, nearest_or_all
from hookflow.events.records import Stage
from hookflow.hooks.tensors import Weight
from hookflow.pipeline.by_epoch import ByEpoch, EpochLengths, recorded_lengths
from hookflow.text import mask_names, restore_masked


class NoMetricError(UserError, KeyError):
    """A metric that is not there, for hooks that expect a KeyError as of any dict."""


class MetricDict(dict[str, Any]):
    """The metrics of a pass.

    A name that is not there raises with the nearest one, at the hook's line.
    """

    def __missing__(self, name: str) -> Any:
        raise NoMetricError(
            Problem(
                f'there is no metric "{name}"', hint=nearest_or_all(name, self, none="none yet")
            )
        )


NO_METRICS: Mapping[str, float] = MappingProxyType(MetricDict())

NO_BATCH: Any = object()
"""Stands where there is no batch: None is one, too, of a task that makes its own."""


class RunState:
    """The position of a run. `iter`, `epoch` and `batch_idx` (in the epoch) count what is done."""

    tell_epoch: Callable[[int], None] | None = None
    """Tells training data whose batches change which epoch is the current one.

    It is None where they do not. Written before the run begins.
    """

    def __init__(self) -> None:
        self.attention = False
        """A request waits for the next safe point."""
        self.next_stop = 0
        """The iterations done at which the loop must look up by count. Written by the loop."""
        self.iter = self.epoch = self.batch_idx = 0
        """Written by the loops and by a resume.

        `batch_idx` counts the batches of an evaluation while that lasts.
        """
        self.done = memoryview(bytearray(8)).cast("q")
        """`iter` once more, where other processes see it. Written by the loops."""
        self.batch_size = 0
        """Examples of this rank in the current batch, 0 where unknown.

        Written by who takes or replaces it.
        """
        self.samples = self.tokens = 0
        """Examples and tokens of the batches that all ranks have taken.

        Counted where a trigger asks for them, by the iterations.
        """
        self.mixes_sets = False
        """Whether the current iteration has batches of several training sets.

        Written by the iteration.
        """
        self.batch_weight: Weight | None = None
        """The weight of this rank's share of the current batch in means, where the task says it;
        None: its examples.

        Written by who has the task weigh it.
        """
        self.batches = 0
        """Batches of the current pass."""
        self.split = "train"
        """The data of the current pass, as `run.data` names them. Written by the evaluation."""
        self.is_predicting = False
        """Whether the run predicts a set of data, and nothing else. Written by the trainer."""
        self.batch: Any = NO_BATCH
        """The current batch, while a self-stepping task has it, or the loop of an attached run."""
        self.epoch_ends = False
        """Whether the epoch ends after this iteration, whatever the data still has.

        Set by what hooks request; cleared by the loop once the epoch is closed.
        """
        self.validation_due: Sequence[str] = ()
        """The sets of data on which a validation is due at the next safe point.

        In a run that starts or is resumed it is due first. Set there, by the start and by a resume;
        cleared by the loop.
        """
        self.validated: dict[str, int] = {}
        """The iteration of the latest validation that began on each set of data.

        Written by the loop.
        """
        self.metrics: Mapping[str, float] = NO_METRICS
        """The metrics of the latest validation or test. Written by the evaluation."""
        self.metrics_at = 0
        """The iteration that they are of."""
        self.max_epochs: int | None = None
        self.iter_limit: int | None = None
        """The iterations after which the run ends, in whichever epoch.

        It is None where epochs alone count.
        """
        self.max_iters = self.batches_per_epoch = self.iters_per_epoch = 0
        """How long the run is, 0 where it has no end, and its current epoch.

        Written before it begins, and by `enter_epoch`.
        """
        self.epoch_lengths = EpochLengths.constant(0)
        self.batches_by_epoch, self.accumulate_by_epoch = ByEpoch.constant(0), ByEpoch.constant(1)
        """The iterations and the batches of each epoch, and the batches of an iteration.

        Written before it begins.
        """
        self.accumulate = 1
        """The batches of an iteration in the current epoch. Written by `enter_epoch`."""
        self.seconds: Callable[[], float] = time.monotonic
        """A clock; over ranks one that shows the same on all of them."""
        self.stage: Stage = "start"
        """Written by the loops and the trainer."""
        self.iterating = False
        """An iteration is under way, or has raised. Written by the loop."""

    @contextmanager
    def during(self, stage: Stage) -> Iterator[None]:
        """Be in a stage, and then in the one before.

        After an exception the run stays where it was raised.
        """
        before = self.stage
        self.stage = stage
        yield
        self.stage = before

    def set_length(
        self, max_epochs: int | None, max_iters: int | None, lengths: EpochLengths
    ) -> None:
        """Set how long the run is.

        The iterations of an epoch are 0 where the training data are not built.
        """
        self.max_epochs = max_epochs
        self.iter_limit = max_iters
        self.epoch_lengths = lengths
        self.max_iters = all_iterations(max_epochs, max_iters, lengths)
        self.enter_epoch()

    def close_epoch(self) -> None:
        """Count the current epoch as done, and enter the next one."""
        self.epoch += 1
        self.batch_idx = 0
        self.epoch_ends = False
        self.enter_epoch()

    def enter_epoch(self) -> None:
        """Take on how many batches and iterations the current epoch has."""
        self.batches_per_epoch = self.batches_by_epoch.at(self.epoch)
        self.accumulate = self.accumulate_by_epoch.at(self.epoch)
        self.iters_per_epoch = self.epoch_lengths.at(self.epoch)
        if self.tell_epoch is not None:
            self.tell_epoch(self.epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the run between two iterations."""
        kept = [
            "iter",
            "epoch",
            "batch_idx",
            "epoch_ends",
            "iters_per_epoch",
            "max_iters",
            "metrics_at",
        ]
        kept += [name for name in ("samples", "tokens") if getattr(self, name)]
        copied = {"metrics": mask_names(self.metrics), "validated": dict(self.validated)}
        if self.epoch_lengths.changes:
            copied["epoch_lengths"] = [list(stage) for stage in self.epoch_lengths.stages]
        return {name: getattr(self, name) for name in kept} | copied

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        The length of an epoch is restored only where the data are not built.
        """
        self.iter = state["iter"]
        self.epoch = state["epoch"]
        self.batch_idx = state["batch_idx"]
        self.epoch_ends = state["epoch_ends"]
        self.validation_due = state["validation_due"]
        self.validated = dict(state["validated"])
        self.metrics = MetricDict(
            {restore_masked(name): value for name, value in state["metrics"].items()}
        )
        self.metrics_at = state["metrics_at"]
        self.samples, self.tokens = state.get("samples", 0), state.get("tokens", 0)
        if not self.iters_per_epoch:
            self.set_length(self.max_epochs, self.iter_limit, recorded_lengths(state))
        self.enter_epoch()

    def place(self, it: int) -> str:
        """Return in words where an iteration is, the one done or under way.

        Between two epochs it is the one done.
        """
        evaluating = self.stage in ("val", "test")  # then `batch_idx` counts other batches
        if evaluating:
            inside = f"in {self.stage}"
        else:
            inside = f"epoch {self.epoch + (self.batch_idx > 0 or it > self.iter)}"
        return f"iteration {it}, {inside}"

    @property
    def finished(self) -> bool:
        enough_epochs = self.max_epochs is not None and self.epoch >= self.max_epochs
        return enough_epochs or (self.iter_limit is not None and self.iter >= self.iter_limit)

    @property
    def epoch_is_over(self) -> bool:
        return self.batch_idx >= self.batches_per_epoch or self.epoch_ends


def all_iterations(max_epochs: int | None, max_iters: int | None, lengths: EpochLengths) -> int:
    """Return the iterations of a run as long as its pipeline says.

    Where it states two lengths, the one counts that is reached first.
    """
    of_epochs = int(lengths.iterations(max_epochs or 0))
    if max_iters and of_epochs:
        return min(max_iters, of_epochs)
    return max_iters or of_epochs
