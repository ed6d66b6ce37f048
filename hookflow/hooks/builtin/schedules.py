"""Values that follow a schedule: learning rates, other settings of the optimizer, accumulation.

Before one is chosen, `lr_finder` tests a range of rates (L. Smith, *Cyclical learning rates for
training neural networks*, 2017), and `batch_size_finder` sizes of a batch, as Lightning's
BatchSizeFinder.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from fractions import Fraction
from itertools import takewhile
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field

from hookflow.errors import Problem, UserError, nearest
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.optimizer_state import host_tensors_of, load_optimizer_state
from hookflow.hooks.run import Run
from hookflow.hooks.tensors import is_oom, local, loss_over_ranks
from hookflow.numbers import number
from hookflow.pipeline.amounts import Unit, parse_amount
from hookflow.pipeline.by_epoch import batches_by_epoch, takes_several_batches

Value = TypeVar("Value")

PROGRESS_UNITS: tuple[Unit, ...] = ("", "it", "ep", "%")
"""The units of how far the training is."""


ENDLESS = 10**12
"""Iterations that no run reaches, where it has no end."""


def _check_amount(written: Any) -> Any:
    if isinstance(written, int) and not isinstance(written, bool) and written == 0:
        return written
    parse_amount(written, PROGRESS_UNITS)
    return written


Progress = Annotated[int | str, BeforeValidator(_check_amount)]
"""How far the training is: 0, 100, "100it", "2ep", "10%" of the run.

A bare number counts iterations.
"""


def count_iterations(progress: int | str, run: Run) -> int:
    """Return how many iterations of this run an amount is. Shares are rounded.

    Raises UserError for a share of a run without an end.
    """
    if progress == 0:
        return 0
    amount = parse_amount(progress)
    if amount.unit == "%" and run.max_iters == 0:
        message = f'"{progress}" is a share of the run, and run.max_epochs = "inf" gives it no end'
        raise UserError(Problem(message, hint='write it in epochs or iterations: "2ep", 100'))
    if amount.unit == "%":
        return round(amount.value / 100 * run.max_iters)
    if amount.unit == "ep":
        return round(run.epoch_lengths.iterations(amount.value))
    return int(amount.value)


def share_of(progress: int | str, run: Run) -> Fraction:
    """Return the share of the run that an amount is, exactly: 1 is all of it."""
    if progress == 0:
        return Fraction(0)
    amount = parse_amount(progress)
    if amount.unit == "%":
        return amount.value / 100
    done = amount.value
    if amount.unit == "ep":
        done = Fraction(run.epoch_lengths.iterations(amount.value))
    return done / run.max_iters


def at_iterations(
    name: str, values: Sequence[tuple[int | str, Value]], run: Run
) -> list[tuple[int, Value]]:
    """Return values with their places in iterations.

    Raises UserError when these do not follow one another.
    """
    places = [(count_iterations(at, run), value) for at, value in values]
    for (item, _), (other, _), (written, _) in zip(places, places[1:], values[1:], strict=False):
        if other <= item:
            message = (
                f"{name}: positions must increase: {written} is iteration {other}, the one before"
                f" it {item}"
            )
            raise UserError(Problem(message))
    return places


def compute_eased_share(path: float, shape: Literal["cosine", "linear"]) -> float:
    """Return the share of the difference that is made when so much of the way is done.

    Both go from 0 to 1.
    """
    if shape == "linear":
        return path
    return (1 - math.cos(math.pi * path)) / 2


def set_rate(group: dict[str, Any], rate: Any) -> None:
    """Set the learning rate of a parameter group.

    A tensor stays that tensor, since a captured step reads it.
    """
    if hasattr(group.get("lr"), "fill_"):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


Shape = Literal["linear", "cosine", "exponential", "constant"]


@dataclass(eq=False)
class LRSchedule(Hook):
    """Sets the learning rates before every iteration: a warm-up, then down to the end.

    The warm-up is linear. The factor multiplies what the group started with, and depends on nothing
    but the share of the run that is done; so a resumed run needs no state to go on exactly, and one
    of another length goes on by the curve of that. An iteration whose optimizer step is skipped
    counts like any other. Several of these hooks may each have groups of their own.
    """

    capabilities = HookCapabilities(needs_length=True)
    reads = ("optimizer",)
    writes = ("lr",)

    shape: Annotated[Shape, Field(description="the way down after the warm-up")] = "cosine"
    warmup: Annotated[
        Progress,
        Field(
            description='how long the warm-up is: 100, "100it", "2ep", "10%" of the run',
            examples=["5%"],
        ),
    ] = 0
    start: Annotated[
        float, Field(ge=0, description="factor of the first iteration of the warm-up")
    ] = 0.0
    end: Annotated[float, Field(ge=0, description="factor of the end of the run")] = 0.0
    groups: Annotated[
        list[str] | None, Field(min_length=1, description="the groups by `name`; all if left out")
    ] = None

    def __post_init__(self) -> None:
        self.warmup_share: float | None = None
        """The share of the run that the warm-up takes, once the run's length is known."""

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if args.get("shape") == "exponential" and not args.get("end"):
            raise ValueError("an exponential way down never ends at 0: give it an end, e.g. 0.01")

    def before_train_iter(self, run: Run) -> None:
        if self.warmup_share is None:
            self._check_groups(run)
            self.warmup_share = self._compute_warmup_share(run)
        factor = self.factor(run.iter / run.max_iters, self.warmup_share)
        for optimizer in run.optimizers.values():
            for group in optimizer.param_groups:
                if self.groups is None or group.get("name") in self.groups:
                    set_rate(group, group["initial_lr"] * factor)

    def _check_groups(self, run: Run) -> None:
        """Raise UserError for a group that no optimizer has."""
        there = []
        for optimizer in run.optimizers.values():
            for group in optimizer.param_groups:
                there.append(group.get("name", ""))
        for name in self.groups or ():
            if name not in there:
                hint = (
                    nearest(name, filter(None, there))
                    or 'a group is named by its args: { name = "…" }'
                )
                raise UserError(Problem(f'no parameter group is called "{name}"', hint=hint))

    def _compute_warmup_share(self, run: Run) -> float:
        """Return the share of the run that the warm-up takes. Raises UserError for all of it."""
        share = float(share_of(self.warmup, run))
        if share >= 1:
            message = (
                f"the warm-up takes {self.warmup}, and the run has only {run.max_iters} iterations"
            )
            raise UserError(Problem(message, hint="nothing is left for the way down"))
        return share

    def factor(self, done: float, share: float) -> float:
        """Return the factor when `done` (0 to 1) of the run is over.

        The warm-up takes `share` of it.
        """
        if done < share:
            return self.start + (1 - self.start) * done / share
        path = min((done - share) / (1 - share), 1.0)
        if self.shape == "exponential":
            return float(self.end**path)
        if self.shape == "constant":
            return 1.0
        return 1 + (self.end - 1) * compute_eased_share(path, self.shape)


Curve = Literal["linear", "cosine", "constant"]

Values = Annotated[list[tuple[Progress, Annotated[float, Field(ge=0)]]], Field(min_length=1)]
"""The value of a setting at a fraction of the run: [[0, 0.95], ["30%", 0.85], ["100%", 0.95]]."""

Scales = Annotated[Sequence[tuple[Progress, Annotated[float, Field(gt=0)]]], Field(min_length=1)]
"""Positive factors with their places, in the same form."""


@dataclass(eq=False)
class ParamSchedule(Hook):
    """Schedules momentum and weight decay by values at places of the run.

    A place is an iteration, an epoch or a share of the run. Between two places a value goes from
    one to the other by `shape`; before the first place and after the last it stays. Momentum is
    `betas[0]` of optimizers that have those, as with `torch.optim.lr_scheduler.OneCycleLR`. A
    parameter group that began with a weight decay of 0 keeps that: those are the biases and the
    norms. The values depend on the iteration and the length of the run alone. A resumed run needs
    no state, and one of another length goes on by its new places. An iteration whose optimizer step
    is skipped counts like any other.
    """

    reads: ClassVar[Slots] = ("optimizer",)
    writes: ClassVar[Slots] = dict.fromkeys(("before_train", "before_train_iter"), ("optimizer",))

    momentum: Annotated[
        Values | None,
        Field(
            description="its values, each at its place",
            examples=[[[0, 0.95], ["30%", 0.85], ["100%", 0.95]]],
        ),
    ] = None
    weight_decay: Annotated[
        Values | None, Field(description='its values: [[0, 0.04], ["100%", 0.4]]')
    ] = None
    shape: Annotated[Curve, Field(description="the way from one value to the next")] = "cosine"
    optimizer: Annotated[
        str | None, Field(description="which of several optimizers; all if left out")
    ] = None

    def __post_init__(self) -> None:
        if self.momentum is None and self.weight_decay is None:
            hint = 'e.g. weight_decay = [[0, 0.04], ["100%", 0.4]]'
            message = "neither momentum nor weight_decay is given"
            raise UserError(Problem(message, hint=hint))
        self.schedules: dict[str, list[tuple[int, float]]] = {}
        """The places in iterations, with their values, by setting."""

    def before_run(self, run: Run) -> None:
        for name, group in self._groups(run):
            lacks_momentum = (
                self.momentum is not None and "momentum" not in group and "betas" not in group
            )
            if lacks_momentum or (self.weight_decay is not None and "weight_decay" not in group):
                message = (
                    f'the optimizer "{name}" has no'
                    f" {'momentum' if lacks_momentum else 'weight decay'}"
                )
                raise UserError(
                    Problem(message, hint='name one that has: args = { optimizer = "…" }')
                )

    def before_train(self, run: Run) -> None:
        settings = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        self.schedules = {
            name: at_iterations(name, values, run) for name, values in settings.items() if values
        }
        if self.weight_decay:
            for _, group in self._groups(run):
                # The groups of a loaded checkpoint have the weight decay that they began with
                # already.
                group.setdefault("initial_weight_decay", group["weight_decay"])

    def before_train_iter(self, run: Run) -> None:
        now = {
            name: value_at(run.iter, places, self.shape) for name, places in self.schedules.items()
        }
        for _, group in self._groups(run):
            if "momentum" in now and "betas" in group:
                group["betas"] = (now["momentum"], *group["betas"][1:])
            elif "momentum" in now:
                group["momentum"] = now["momentum"]
            if "weight_decay" in now and group["initial_weight_decay"]:
                group["weight_decay"] = now["weight_decay"]

    def _groups(self, run: Run) -> list[tuple[str, dict[str, Any]]]:
        chosen = [*run.optimizers]
        if self.optimizer is not None:
            chosen = [self.optimizer]
        return [(name, group) for name in chosen for group in run.optimizers[name].param_groups]


def value_at(done: int, places: Sequence[tuple[int, float]], shape: Curve) -> float:
    """Return the value of the iteration before which `done` are done.

    It follows from the values at some places, in order.
    """
    after = bisect_right(places, done, key=lambda place: place[0])
    if after == 0:
        return places[0][1]
    begin, value = places[after - 1]
    if after == len(places) or shape == "constant":
        return value
    end, target = places[after]
    path = (done - begin) / (end - begin)
    return value + (target - value) * compute_eased_share(path, shape)


Batches = Annotated[list[tuple[Progress, Annotated[int, Field(ge=1)]]], Field(min_length=1)]
"""How many batches a step takes from so much of the run on: [["10%", 2], ["50%", 4]]."""


@dataclass(eq=False)
class AccumulationSchedule(Hook):
    """Schedules gradient accumulation: on how many batches the optimizer steps, as the run goes on.

    The gradients of a step are the mean over its batches. Before the first place it takes one. As
    in Lightning's `GradientAccumulationScheduler`, the length of the run, its schedules and its
    triggers do not depend on it: an iteration still takes one batch, and the optimizer steps in the
    last one of a group alone. `before_` and `after_optimizer_step` fire there, once for all of
    them. A group ends with its epoch, and with the run. Each batch counts by its examples, over all
    ranks. A run that is resumed with another length goes on by the places in that, from its next
    group on. For the same number throughout there is `run.accumulate`, where an iteration takes
    several batches; the two exclude each other.
    """

    capabilities = HookCapabilities(
        accumulates=True, attach_blocker="the loop itself says how many batches an iteration has"
    )
    writes: ClassVar[Slots] = {"before_backward": ("control",)}

    batches: Annotated[
        Batches,
        Field(description="batches of a step by place", examples=[[["10%", 2], ["50%", 4]]]),
    ]

    def __post_init__(self) -> None:
        self.places: list[tuple[int, int]] = []
        """The places in iterations, with their numbers of batches."""
        self.left = 0
        """The batches that the current group still takes."""

    def before_train(self, run: Run) -> None:
        if getattr(run.task, "steps_itself", False):
            message = (
                "accumulation_schedule says when the optimizer steps, and this task steps it itself"
            )
            raise UserError(Problem(message))
        if takes_several_batches(run.epoch_lengths, batches_by_epoch(run.data["train"])):
            message = (
                "accumulation_schedule and run.accumulate both say on how many batches the"
                " optimizer steps"
            )
            raise UserError(Problem(message, hint="keep one of them"))
        self.places = at_iterations("batches", self.batches, run)

    def before_backward(self, run: Run) -> None:
        if self.left == 0:
            self.left = int(value_at(run.iter, [(0, 1), *self.places], "constant"))
        in_epoch = run.iters_per_epoch - run.batch_idx
        self.left = min(self.left, in_epoch)
        if run.max_iters:
            self.left = min(self.left, run.max_iters - run.iter)
        self.left = max(self.left, 1)  # a run that is resumed may be shorter by now
        run.accumulate(self.left, step=self.left == 1)
        self.left -= 1

    def after_train_iter(self, run: Run) -> None:
        if self.left and run.step_skipped:  # another hook has had the gradients dropped
            self.left = 0

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = state["left"]


LOSS_SMOOTHING = 0.98
"""Share of the averaged loss that an iteration keeps."""

DIVERGENCE_FACTOR = 4.0
"""So many times the lowest averaged loss is the end of the sweep.

Above a negative one, such as minus a log-likelihood, it is as far as above its absolute value.
"""


@dataclass(eq=False)
class LRFinder(Hook):
    """Sweeps the learning rate in the first iterations, suggests one, and stops the run.

    It goes from `start` to `end`. The rate grows by the same factor in each iteration, with the
    ratios between parameter groups as they are. Logged are `lr_finder/lr` and `lr_finder/loss`, an
    average that has forgotten the first losses; the sweep ends early where that is four times its
    lowest. Suggested is the rate of its steepest descent; with `rule = "valley"` the rate in the
    middle third of its longest descent, as fastai does. Then weights, buffers and optimizer are as
    they were before. It is for a run of its own: it waits for the device in each iteration.
    """

    phase = "late"  # its rates replace those of a schedule
    # These hooks read the rate of the iteration, before this one restores the earlier rate.
    after = ("log?", "lr_monitor?", "spike_guard?")
    reads: ClassVar[dict[str, tuple[str, ...]]] = {
        "before_train": ("model", "optimizer", "lr"),
        "before_train_iter": ("optimizer",),
        "after_train_iter": ("batch", "outputs"),
    }
    writes: ClassVar[Slots] = {
        "before_train_iter": ("lr",),
        "after_train_iter": (*reads["before_train"], "control"),
    }

    capabilities = HookCapabilities(
        attach_blocker=(
            "it trains on trial and puts the weights back, and not what the loop itself has changed"
        )
    )

    start: Annotated[float, Field(gt=0, description="the rate of the first iteration")] = 1e-6
    end: Annotated[float, Field(gt=0, description="the rate of the last iteration")] = 10.0
    iters: Annotated[int, Field(ge=10, description="iterations of the sweep")] = 100
    rule: Annotated[Literal["steepest", "valley"], Field(description="what is suggested")] = (
        "steepest"
    )

    def __post_init__(self) -> None:
        self.steps = 0
        self.done = False
        self.average = 0.0
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.kept: dict[str, dict[str, Any]] = {}
        """The model and the optimizers as they were, until they are put back."""

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if args.get("start", 1e-6) >= args.get("end", 10.0):
            raise ValueError("start must be below end")

    def before_train(self, run: Run) -> None:
        if 0 < run.max_iters < self.iters:
            message = (
                f"lr_finder sweeps over {self.iters} iterations, and the run has only"
                f" {run.max_iters}"
            )
            raise UserError(
                Problem(message, hint="let it sweep over fewer (iters), or the run be longer")
            )
        if not self.steps:
            self.kept = copy_states(run)

    def before_train_iter(self, run: Run) -> None:
        if self.done:
            return
        groups = []
        for optimizer in run.optimizers.values():
            groups += optimizer.param_groups
        highest = max(group["initial_lr"] for group in groups)
        rate = compute_swept_rate(self.start, self.end, self.steps, self.iters)
        for group in groups:
            set_rate(group, rate * group["initial_lr"] / highest)

    def after_train_iter(self, run: Run, outputs: dict[str, Any]) -> None:
        if self.done:
            return
        loss = loss_over_ranks(run, outputs, "lr_finder")
        if loss is None:  # nothing in the batch counts: the next one is trained at this rate, too
            return
        self.average = LOSS_SMOOTHING * self.average + (1 - LOSS_SMOOTHING) * loss
        smooth = self.average / (1 - LOSS_SMOOTHING ** (self.steps + 1))
        self.rates.append(compute_swept_rate(self.start, self.end, self.steps, self.iters))
        self.losses.append(smooth)
        run.log("lr_finder/lr", self.rates[-1])
        run.log("lr_finder/loss", smooth)
        self.steps += 1
        if has_diverged(self.losses):
            self._end(run, "diverged")
        elif self.steps == self.iters:
            self._end(run, "ended")

    def _end(self, run: Run, how: str) -> None:
        """Put the weights back, say which rate the sweep suggests, and ask for the stop."""
        self.done = True
        put_back(run, self.kept)
        self.kept = {}
        message = f"{self._suggest()}; the sweep {how} at {number(self.rates[-1])}"
        run.say(message)
        run.stop(f"lr_finder: {message}")

    def _suggest(self) -> str:
        if self.rule == "valley":
            best = find_valley_rate(self.rates, self.losses)
            why = "the loss fell longest around it"
        else:
            best = find_steepest_rate(self.rates, self.losses)
            why = "there the loss fell fastest"
        if best is None:
            return "no learning rate to suggest: the loss never fell"
        return f"suggested learning rate {number(best)}: {why}"

    def state_dict(self) -> dict[str, Any]:
        names = "steps", "done", "average", "rates", "losses", "kept"
        return {name: copy(getattr(self, name)) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def copy_states(run: Run) -> dict[str, dict[str, Any]]:
    """Return copies of the states of the model and of the optimizers, for `put_back`."""
    import torch

    weights = {
        name: local(value).clone() if torch.is_tensor(value) else deepcopy(value)
        for name, value in run.model.state_dict().items()
    }
    return {
        "weights": weights,
        "optimizers": {
            name: deepcopy(optimizer.state_dict()) for name, optimizer in run.optimizers.items()
        },
    }


def put_back(run: Run, kept: dict[str, dict[str, Any]]) -> None:
    """Restore the model and the optimizers, once."""
    import torch

    with torch.no_grad():
        for name, value in run.model.state_dict().items():
            if torch.is_tensor(value):
                local(value).copy_(kept["weights"].pop(name))
    run.model.load_state_dict(kept["weights"], strict=False)  # the rest is the modules' extra state
    for name, optimizer in run.optimizers.items():
        load_optimizer_state(
            optimizer, kept["optimizers"][name], host_tensors=host_tensors_of(optimizer)
        )


def has_diverged(losses: Sequence[float]) -> bool:
    """Say whether the last loss of a sweep is too far above the lowest one, or not finite."""
    if not math.isfinite(losses[-1]):
        return True
    lowest = min(losses)
    return losses[-1] > lowest + (DIVERGENCE_FACTOR - 1) * abs(lowest)


def compute_swept_rate(start: float, end: float, step: int, steps: int) -> float:
    """Return the rate of a step of the sweep, counted from 0.

    The first rate is `start`, the last one `end`.
    """
    return float(start * (end / start) ** (step / (steps - 1)))


def find_steepest_rate(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return the rate at which the loss falls fastest over the logarithm of the rate.

    It is None where the loss never falls. Slopes are taken over a tenth of the sweep. Its first
    tenth, where an average is of few losses, does not count.
    """
    half = max(1, len(losses) // 20)
    slopes = [
        (
            (losses[k + half] - losses[k - half]) / math.log(rates[k + half] / rates[k - half]),
            rates[k],
        )
        for k in range(max(half, len(losses) // 10), len(losses) - half)
    ]
    slope, rate = min((slope for slope in slopes if math.isfinite(slope[0])), default=(0.0, 0.0))
    if slope < 0:
        return rate
    return None


def find_valley_rate(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return the rate in the middle third of the longest falling subsequence of losses.

    It is None where none falls. The first tenth and the last five of the sweep do not count.
    Source: fastai, `lr_find` and its rule "valley".
    """
    counted = slice(len(losses) // 10, max(len(losses) - 5, 0))
    rates = rates[counted]
    losses = [*takewhile(math.isfinite, losses[counted])]
    falls: list[int] = []
    for k, loss in enumerate(losses):
        falls.append(1 + max((falls[j] for j in range(k) if loss < losses[j]), default=0))
    longest = max(falls, default=1)
    if longest == 1:
        return None
    end = falls.index(longest)
    third = longest / 3
    return rates[max(end - longest + int(third) + int(third / 2), 0)]


@dataclass(eq=False)
class BatchSizeFinder(Hook):
    """Searches for the largest batch size that fits into memory, and stops the run.

    It doubles the size until the device is out of memory. Each size is tried in `steps` optimizer
    steps, at which only hooks inside the network fire. Between the last size that fits and the
    first that does not, a binary search goes on. Then weights, buffers, optimizers and PyTorch's
    random numbers are as they were before. A CPU does not run out of memory in time, so it needs a
    `limit`; elsewhere that is the number of examples of the dataset, which are repeated beyond it.
    The training data must be a dataset with a `batch_size` in its loader. It is for a run of its
    own, on one process.
    """

    capabilities = HookCapabilities(
        attach_blocker=(
            "it computes losses of batches of its own, and only the loop can compute a loss"
        )
    )

    phase = "late"
    reads: ClassVar[Slots] = {"before_train": ("model", "optimizer")}
    writes: ClassVar[Slots] = {"before_train": ("control",)}

    start: Annotated[int, Field(ge=1, description="the first size")] = 2
    limit: Annotated[int | None, Field(ge=1, description="the largest size to try")] = None
    steps: Annotated[int, Field(ge=1, description="optimizer steps with each size")] = 3

    def before_train(self, run: Run) -> None:
        if run.iter:
            return  # a run that is resumed has found it
        source = run.data["train"]
        if not hasattr(source, "batch_of") or not source.info["batch_size"]:
            message = "batch_size_finder needs a dataset whose loader has a batch_size"
            raise UserError(Problem(message))
        if run.world > 1 or getattr(run.task, "steps_itself", False):
            message = (
                "batch_size_finder needs one process, and a task that does not step its optimizers"
                " itself"
            )
            raise UserError(Problem(message))
        if self.limit is None and run.device.type == "cpu":
            message = (
                "batch_size_finder needs a limit on a CPU, which takes the memory of the whole"
                " machine"
            )
            raise UserError(Problem(message, hint="args = { limit = 512 }"))
        examples = len(source.dataset)
        before = copy_states(run)

        def is_size_fitting(size: int) -> bool:
            fit = self._is_fitting(
                run, lambda: source.batch_of([k % examples for k in range(size)])
            )
            run.say(f"batch_size_finder: {size:,} examples {'fit' if fit else 'are out of memory'}")
            return fit

        best = find_largest_size(is_size_fitting, self.start, self.limit or examples)
        put_back(run, before)
        now = f"; data.train.loader.batch_size is {source.info['batch_size']:,}"
        result = "not even one example fits into memory"
        if best:
            result = f"batches of {best:,} examples fit into memory{now}"
        run.say(result)
        run.stop(f"batch_size_finder: {result}")

    def _is_fitting(self, run: Run, make: Callable[[], Any]) -> bool:
        """Take optimizer steps on batches that `make` returns.

        Returns whether there was the memory for that.
        """
        import torch

        fits = True
        with torch.random.fork_rng([run.device] if run.device.type == "cuda" else []):
            try:
                for _ in range(self.steps):
                    run.loss(make()).backward()
                    for optimizer in run.optimizers.values():
                        optimizer.step()
                        optimizer.zero_grad()
            except Exception as error:
                if not is_oom(error):
                    raise
                fits = False
        for optimizer in run.optimizers.values():
            optimizer.zero_grad()
        if run.device.type == "cuda":
            torch.cuda.empty_cache()
        return fits


def find_largest_size(fits: Callable[[int], bool], start: int, limit: int) -> int:
    """Return the largest size up to `limit` that fits, if every smaller one does.

    It is 0 where none fits.
    """
    good = 0
    size = min(start, limit)
    while fits(size):
        good = size
        size = min(2 * size, limit)
        if good == limit:
            return good
    bad = size
    while bad - good > 1:
        size = (good + bad) // 2
        if fits(size):
            good = size
        else:
            bad = size
    return good
