"""The protocol of `run`, the object that hooks receive.

It stands here because hooks know no runner; the runner is checked against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hookflow.events.records import Level, Stage
from hookflow.pipeline.by_epoch import EpochLengths

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from hookflow.hooks.progress import HookProgress


class Run(Protocol):
    """The run that every point offers."""

    device: torch.device
    """Where the run computes."""
    model: nn.Module
    """The network; where the pipeline has several, all of them in an `nn.ModuleDict`."""
    models: Mapping[str, nn.Module]
    """Every network by name; one that has none is "model"."""
    optimizers: Mapping[str, torch.optim.Optimizer]
    """Every optimizer by name; one that has none is "optimizer"."""
    task: Any
    """The task."""
    data: Mapping[str, Any]
    """The data sources by split: "train", "val", "test", or a set such as "val.ood".

    "val" and "test" are there where the pipeline has them. `len(run.data["train"])` is the number
    of batches of the current epoch on this rank. `run.data["train"].dataset`, `.sampler` and
    `.loader` are its parts; `hookflow.runner.data.source.Source` says what each can do.
    """
    rank: int
    """Which of the processes that train together this is; 0 where there is one."""
    world: int
    """How many processes train together."""
    repeats_previous_rank: bool
    """Whether the rank before this one has the same share of each batch."""
    hooks: Mapping[str, Any]
    """Every hook by name."""
    dir: Path
    """The run directory."""
    is_temporary: bool
    """Whether nothing of the run stays, as in a dry run.

    Nor does its directory. It is so in the evaluation of a checkpoint, too.
    """

    @property
    def is_predicting(self) -> bool:
        """Whether this is `hookflow predict`.

        Then neither outputs nor metrics of a validation or test come.
        """

    @property
    def iter(self) -> int:
        """Training iterations that are done."""

    @property
    def epoch(self) -> int:
        """Epochs of training that are done."""

    @property
    def batch_idx(self) -> int:
        """Batches of the current epoch that are done, 0 after it.

        In a validation or test it is the index of its batch.
        """

    @property
    def max_iters(self) -> int:
        """Training iterations of the whole run; 0 where it has no end."""

    @property
    def max_epochs(self) -> int | None:
        """Epochs of the whole run; None in the iteration-based loop, and where it has no end."""

    @property
    def iters_per_epoch(self) -> int:
        """Iterations in one pass over the training data.

        They are its batches, or groups of `accumulate` of them. Where epochs have different
        lengths: those of the current epoch, between two of the next one.
        """

    @property
    def epoch_lengths(self) -> EpochLengths:
        """The iterations of each epoch: `run.epoch_lengths.at(epoch)`.

        `iterations(epochs)` has those of so many epochs, and `epochs(iterations)` is the way back.
        """

    @property
    def stage(self) -> Stage:
        """The current stage: "start", "train", "val", "test", "save", "paused" or "end"."""

    @property
    def split(self) -> str:
        """The data of the current pass: "train", "val", "test", or a set by its name, "val.ood"."""

    @property
    def batch_size(self) -> int:
        """Examples in this rank's share of the current batch.

        From `before_optimizer_step` on they are those of the whole iteration. 0 where unknown:
        neither the task nor the source says it, and the batch itself could be mistaken.
        """

    @property
    def batch_set(self) -> str | None:
        """The training set that the current batch is of, "photos" of `[data.train.photos]`.

        None where there is one set without a name, or a step has a batch of each set. None also
        from `before_optimizer_step` on in an iteration with batches of several sets.
        """

    @property
    def batch_weight(self) -> float | torch.Tensor:
        """The weight of this rank's share of the current batch in means.

        From `before_optimizer_step` on it is that of the iteration. It is what the task's
        `batch_weight(batch)` returns, on another device than the CPU a tensor of one element. Where
        the task has no such method it is `batch_size`, or 1 where that is unknown.
        """

    @property
    def train_seconds(self) -> float:
        """Seconds since some moment, without validations, checkpoints and pauses that are over."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the latest validation or test."""

    @property
    def metrics_at(self) -> int:
        """The iterations that were done when the latest metrics were measured."""

    @property
    def step_skipped(self) -> bool:
        """At `after_train_iter`: whether this iteration has left a step out.

        A hook has asked for it, or something was not finite.
        """

    @property
    def handle(self) -> RemovableHandle:
        """The handle of the hook inside the network that is called; `remove()` takes it off.

        `run.handle.remove()` takes it off the module that it is called for. It is a handle as
        PyTorch's: with an `id`, and removed at the end of a `with`. Removed is for good: a resumed
        run does not register the hook again. Raises UserError anywhere else.
        """

    @property
    def handles(self) -> Mapping[str, RemovableHandle]:
        """The handle of every hook inside the network by name.

        `run.handles["probe"].remove()` takes it off all of its modules.
        """

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer.

        Raises UserError where there are several: they stand in `optimizers`, by name.
        """

    @property
    def stepping(self) -> Mapping[str, torch.optim.Optimizer]:
        """At `before_` and `after_optimizer_step`: the optimizers that step, by name."""

    def model_being_updated(self, model: str | None = None) -> nn.Module | None:
        """Return the network that the current optimizer step changes.

        With `model` it is that one, or None where the step changes another. For `before_` and
        `after_optimizer_step`. Raises UserError when there is no such model.
        """

    def log(self, name: str, value: float | torch.Tensor) -> None:
        """Record a number, or a tensor of one element.

        A tensor stays on the device until another thread fetches it. Inside an iteration it is a
        number of that iteration, which `iter` does not count yet. Hooks at `on_log` are called with
        it before this returns. Raises TypeError when it is something else.
        """

    def log_image(self, name: str, image: Any, caption: str = "") -> None:
        """Keep an image in the run directory as PNG, and record it.

        `image` is a tensor, an array or a PIL image: height × width, with 1 (grey), 3 (RGB) or 4
        (RGBA) channels first or last; uint8, floating in 0…1 (clipped), or boolean. It is copied,
        and another thread writes it. Numbers that come faster than they can be written are dropped,
        and the log says so. Raises TypeError when it is something else.
        """

    def log_figure(self, name: str, figure: Any) -> None:
        """Keep a figure of matplotlib as an image.

        It is drawn before this returns, and may then be changed or closed. Raises TypeError when it
        is something else.
        """

    def log_text(self, name: str, text: str) -> None:
        """Record a string, e.g. a sample of what the model writes; it is cut to 64 kB.

        Raises TypeError otherwise.
        """

    def log_histogram(self, name: str, values: Any, bins: int = 30) -> None:
        """Record how numbers are distributed.

        `values` is a tensor, an array or a list. Numbers that are not finite are left out. They are
        copied, and another thread counts them. Raises TypeError when they are something else.
        """

    def evaluate(self, batch: Any) -> dict[str, Any]:
        """Return the outputs of the task's evaluation of a batch, computed in the run's precision.

        The weights are as they are at the moment: of an optimizer with `train()` and `eval()`,
        within a validation or test those of `eval()`, and elsewhere those of `train()`.
        """

    def average(self, name: str | None) -> AbstractContextManager[None]:
        """Let the network have the average that a hook keeps: `with run.average("ema"): sample()`.

        With None it has its own weights, also within a validation of an average. Inside it is in
        evaluation, without gradients; afterwards it is as before, to the bit, and a backward pass
        goes on as if nothing had been. Until the average begins, it is the weights. With FSDP all
        ranks must call it. Raises UserError, which names the averages that there are, for another
        name.
        """

    def loss(self, batch: Any) -> torch.Tensor:
        """Return the loss of the task's training step on a batch, with its graph.

        It is computed in the run's precision. Hooks inside the network fire, others do not. Over
        several ranks the loss has the weight of this rank's share, so that the mean of the
        gradients is that of the whole batch. The task must not step its optimizers itself. Raises
        UserError in an iteration whose gradients are added to those of other batches.
        """

    def sum(self, value: float | torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks of a number or a tensor of any shape.

        It is a new tensor on the device. All ranks must call it, one as often as another. Each rank
        receives the same tensor, to the bit; a number becomes a float64 tensor of no dimensions. On
        CUDA the training does not wait for it. Raises UserError in a hook that fires on rank "zero"
        alone.
        """

    def mean(self, value: float | torch.Tensor) -> torch.Tensor:
        """Return the mean over all ranks, as `sum` does the sum.

        Each rank counts alike, whatever its examples.
        """

    def say(self, text: str, level: Level = "info") -> None:
        """Record a line for people: "info", "warn" or "error".

        It is signed with the name of the hook that calls.
        """

    def progress(self, name: str, total: int | None = None) -> AbstractContextManager[HookProgress]:
        """Show how far some work of a hook is, while a block lasts.

        It is a bar on the screen and in the plain lines. `with run.progress("export", total=10) as
        bar:` yields an object whose `bar.advance()` counts one more as done, and `bar.advance(5)`
        five. Without a `total` there is a count alone. Raises ValueError for a total below zero.
        """

    def fire(self, point: str, *offered: Any) -> None:
        """Fire a point that the pipeline declares for itself.

        `offered` is what it offers beside the run, in that order. Bindings of that point fire
        before this call returns; their time is theirs, not the caller's. Raises UserError with the
        nearest name when there is no such point, or when it offers more or less.
        """

    # Control flow. Each call raises UserError at a point where it is not allowed, and in a hook
    # that does not declare the slot that the call writes. Requests for the next safe point (`stop`,
    # `fail`, `stop_epoch`, `save_checkpoint`, `validate`) write no slot. `docs/reference/loops.md`
    # says which points still fire.

    def replace_batch(self, batch: Any) -> None:
        """Let the task and the hooks after this one have another batch; a write of `batch`."""

    def accumulate(self, batches: int, *, step: bool, by_examples: bool = True) -> None:
        """Add the gradients of this batch to those of `batches`; a write of `control`.

        The batches are a group, and the optimizers step where `step` says so. A loss counts by its
        examples, or as much as any other of the group.
        """

    def skip_batch(self) -> None:
        """Compute nothing of the current batch, and go on with the next; a write of `control`."""

    def skip_step(self) -> None:
        """Leave the weights as they are in this iteration; a write of `control`."""

    def stop_epoch(self, reason: str) -> None:
        """End the epoch after this iteration, as if the data were at their end."""

    def validate(self) -> None:
        """Validate at the next safe point: after this iteration, or after this epoch.

        It is after this epoch where the iteration is its last one. Nothing is
        validated twice in a place. It is allowed in an iteration and around an epoch;
        `run.val_at_start` is for the beginning. Raises UserError where the run has no validation
        data.
        """

    def stop(self, reason: str, *, this_process: bool = False) -> None:
        """End the training at the next safe point.

        That is after this iteration, or after this epoch's validation. Before the end of epoch
        `run.min_epochs` and iteration `run.min_iters` it waits, unless the reason concerns
        `this_process` alone.

        Where a signal cuts that validation short, the resumed run validates and then stops, too,
        unless the reason concerns `this_process` alone, such as the time of its job.
        """

    def fail(self, reason: str, *, checkpoint: bool = False) -> None:
        """End the training at the next safe point as failed, with exit code 1.

        The record has this reason. It is for what makes the run worthless,
        or a danger: `run.fail("memory over 10 GB")`. With `checkpoint` the state is saved before.
        It does not wait for `run.min_iters`. `after_train` and `after_run` fire, and no test
        follows. `--resume` trains on from the newest checkpoint. It is allowed wherever `stop` is.
        """

    def add_param_group(
        self, params: Iterable[nn.Parameter], optimizer: str | None = None, **settings: Any
    ) -> None:
        """Let an optimizer train parameters that this hook adds; a write of `optimizer`.

        `settings` are the group's own, such as `lr`; the optimizer's defaults hold for the others.
        Parameters that the models no longer have leave the optimizer. A resumed run has the group,
        where the model has its parameters. Raises UserError where there are several optimizers and
        none is named, and when the optimizer refuses the group. With DDP it must be called before
        the first iteration; FSDP takes no parameters after the start.
        """

    def save_checkpoint(
        self, *names: str, moved: Mapping[str, int] = ..., keep: int | None = None
    ) -> None:
        """Save the state at the next safe point, to go by `names`, and by "last" in any case.

        That is after this iteration, this epoch's validation, the end of training, or the test;
        asked for at `on_exception`, it is what stands then, and no run resumes from it. Then
        `moved` gives names to existing checkpoints, by their iteration. `keep` is how many of the
        newest whole ones stay, beside those that bear a name; all of them by default. It does not
        wait for the disk. Raises UserError with a name that no file can have.
        """

    def check_second_backward(self, hook: str) -> None:
        """Raise UserError where a hook cannot compute the gradients of each batch a second time."""

    def trace(self, first: int, iters: int) -> None:
        """Record `iters` iterations as a timeline, as the command `trace` does.

        `first` is the number of the first: of the iteration under way, of which the rest is
        recorded and counts among the `iters`, or of a later one. At `after_train_iter` the one
        under way is `run.iter`, and elsewhere `run.iter + 1`. Raises UserError for one that is
        over.
        """

    def scalar(self, name: str) -> float:
        """Return the latest number that was logged by a name, or is an output by that name.

        The output is one of the training. The hook declares that it reads the slot
        `scalars.NAME`. It waits for a number on the device. Raises UserError with the nearest name
        where none was logged.
        """

    def times_logged(self, name: str) -> int:
        """Return how often a number that `scalar` can read was logged, or was an output.

        Where the count has not changed, the number is an old one.
        """

    def metric(self, name: str) -> float:
        """Return a metric of the latest validation.

        Raises UserError with the nearest name when there is none.
        """


WITH_A_BATCH = ("before_train_iter", "before_val_iter", "before_test_iter", "before_predict_iter")
BEFORE_THE_GRADIENTS = ("after_forward", "before_backward")
BEFORE_THE_STEP = (*BEFORE_THE_GRADIENTS, "after_backward", "before_optimizer_step")
BETWEEN_STEPS = (
    "before_run",
    "before_train",
    "before_train_epoch",
    "before_train_iter",
    "after_train_iter",
    "after_train_epoch",
)
WRITE_CALLS = {
    "replace_batch": ("batch", WITH_A_BATCH),
    "add_param_group": ("optimizer", BETWEEN_STEPS),
    "skip_batch": ("control", WITH_A_BATCH),
    "skip_step": ("control", BEFORE_THE_STEP),
    "accumulate": ("control", BEFORE_THE_GRADIENTS),
}
"""The slot that a hook must declare to write, and the points where it may, by the call on the run.

`stop`, `fail`, `stop_epoch`, `save_checkpoint` and `validate` take effect after all hooks of their
point, so no order decides about them.
"""


def describe_declaration(slot: str, hook: str, writes: Iterable[str]) -> str:
    """Say how a hook that declares `writes` at a point declares that it writes a slot, too."""
    slots = ", ".join(f'"{item}"' for item in sorted({slot, *writes}))
    return f"declare it: writes = [{slots}] in [hooks.{hook}], or in its class"
