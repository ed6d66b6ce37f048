"""Learning-rate schedules by PyTorch's own schedulers, one after another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.arguments import find_class, with_functions
from hookflow.hooks.builtin.schedules import ENDLESS, PROGRESS_UNITS, set_rate
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.monitored import monitored_mode, read_latest_metric
from hookflow.hooks.rate_schedule import RateScheduleHook
from hookflow.metric_mode import Mode
from hookflow.pipeline.amounts import parse_amount
from hookflow.pipeline.components import Component
from hookflow.pipeline.values import AmountField
from hookflow.user_code import describe_causes

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from hookflow.hooks.run import Run

Per = Literal["iter", "epoch"]

LENGTH_ARGUMENTS = ("total_iters", "T_max", "total_steps", "num_training_steps")
"""Arguments of schedulers that are their own length in steps.

They are filled in where the pipeline does not give them.
"""

INNER_STATES_KEY = "_schedulers"
"""The key of the states inside a `SequentialLR`."""


class Link(Component):
    """A scheduler of the chain."""

    use: str
    """A scheduler of torch.optim.lr_scheduler by its name, or a class or function.

    A class or function is "package.module:Name" or "./file.py:Name".
    """
    length: AmountField | None = None
    """How long it is in charge: 500, "500it", "2ep", or "10%" of the run.

    The last one stays if left out.
    """


TAKING_SCHEDULERS = {
    "SequentialLR": "list them in the chain, each with its length",
    "ChainedScheduler": "name a function that returns it, as ./file.py:name",
}
"""PyTorch's schedulers of schedulers, and what does their work here."""


def check_chain(chain: list[Link]) -> list[Link]:
    """Return the chain. Raises ValueError where its keys do not go together."""
    for k, link in enumerate(chain, 1):
        called = f"scheduler {k} of {len(chain)}"
        if link.use in TAKING_SCHEDULERS and "schedulers" not in link.args:
            raise ValueError(
                f"{called}: {link.use} takes schedulers: {TAKING_SCHEDULERS[link.use]}"
            )
        if link.length is None and k < len(chain):
            raise ValueError(
                f'{called} needs a length, e.g. "10%": only the last one may go on to the end'
            )
        parse_amount(link.length or 1, PROGRESS_UNITS)
    return chain


def find_schedulers(
    chain: Sequence[Link], args: Sequence[Mapping[str, Any]], per: Per
) -> list[Callable[..., Any]]:
    """Return the scheduler classes and functions.

    `args` are those of each, with the functions that they name. Raises UserError with all that do
    not exist or cannot be called.
    """
    from torch.optim import lr_scheduler

    kinds: list[Callable[..., Any]] = []
    problems: list[Problem] = []
    for link, known in zip(chain, args, strict=True):
        plain = {name: value for name, value in link.args.items() if known[name] == value}
        filled = ("optimizer", *LENGTH_ARGUMENTS, *(known.keys() - plain.keys()))
        try:
            shown = link.model_copy(update={"args": plain})
            kinds.append(
                find_class(
                    shown, lr_scheduler.LRScheduler, [lr_scheduler], filled=filled, functions=True
                )
            )
        except UserError as error:
            problems += error.problems
        if per == "epoch" and link.length is not None and parse_amount(link.length).unit == "it":
            message = (
                f'{link.use} has a length in iterations, "{link.length}", and the schedule goes by'
                " epochs"
            )
            problems.append(Problem(message, hint='write its length in epochs, or per = "iter"'))
    if problems:
        raise UserError(problems)
    return kinds


def compute_lengths(chain: Sequence[Link], per: Per, run: Run) -> list[int]:
    """Return for how many steps each scheduler is in charge.

    Steps are iterations or epochs, as `per` counts. Shares of the run are rounded. Raises UserError
    when nothing of the run is left for the last one.
    """
    if run.max_iters == 0:
        whole = ENDLESS
    elif per == "iter":
        whole = run.max_iters
    else:
        whole = ceil(run.epoch_lengths.epochs(run.max_iters))
    result: list[int] = []
    for link in chain:
        if link.length is None:
            result.append(whole - sum(result))
            continue
        amount = parse_amount(link.length)
        if amount.unit == "%" and whole == ENDLESS:
            message = (
                f'{link.use} has a length of "{link.length}", and run.max_epochs = "inf" gives the'
                " run no end"
            )
            raise UserError(Problem(message, hint='write it in epochs or iterations: "2ep", 100'))
        if amount.unit == "%":
            result.append(max(1, round(whole * amount.value / 100)))
        elif amount.unit == "ep" and per == "iter":
            begin = sum(result)
            end = run.epoch_lengths.iterations(run.epoch_lengths.epochs(begin) + amount.value)
            result.append(round(end) - begin)
        else:
            result.append(int(amount.value))
    if result[-1] < 1:
        unit = "epochs"
        if per == "iter":
            unit = "iterations"
        message = (
            f"nothing is left of the run for {chain[-1].use}: those before it take"
            f" {sum(result[:-1])} of {whole} "
        )
        raise UserError(Problem(message + unit))
    return result


@dataclass(eq=False)
class Scheduler(RateScheduleHook):
    """Sets the learning rates by PyTorch's schedulers, each for its length, one after another.

    The rates of an iteration are those of the usual loop, which calls `scheduler.step()` after
    `optimizer.step()`, or after each epoch. The step is taken at the beginning of the next
    iteration, or epoch: so in the whole of an iteration the rate is its own. `total_iters`, `T_max`
    and `total_steps` are the scheduler's length where they are not given. After the end of the
    chain the rates stay as they are. `ReduceLROnPlateau` may be the last of the chain: it looks at
    `metric` after each validation, once those before it are through. Its `mode` follows from the
    metric's name where it is not given.

    In a resume or a fork to another length the rates go on by the curve of the new length, as if
    the run had always had it. Rates that others have set are replaced. Lengths in steps stay as
    they are, and so do the rates once `ReduceLROnPlateau` has begun. A parameter group that a hook
    adds follows the curve from the start. An iteration whose optimizer step is skipped counts like
    any other.

    A scheduler may also be a function that is called with the optimizer and returns one, such as
    `transformers:get_scheduler`; `num_training_steps` is filled in, too. Where PyTorch takes a
    function, as `LambdaLR` does, an argument is a table: `lr_lambda = { use = "./file.py:decay" }`,
    with `args` for keyword arguments. It may name a class, whose object is called, and whose
    attributes are part of a checkpoint; a function has no state.
    """

    reads = {  # noqa: RUF012  # it is read, never changed
        "before_run": ("optimizer.{optimizer}",),
        "before_train_iter": ("optimizer.{optimizer}",),
        "before_train_epoch": ("optimizer.{optimizer}",),
        "after_val": ("optimizer.{optimizer}", "metrics.{metric?}"),
    }
    writes = dict.fromkeys(
        ("before_run", "before_train_iter", "before_train_epoch", "after_val"), ("lr.{optimizer}",)
    )

    chain: Annotated[
        list[Link],
        AfterValidator(check_chain),
        Field(
            min_length=1,
            description=(
                "the schedulers, each as { use, args, length }, in the order of their turns"
            ),
            examples=[[{"use": "CosineAnnealingLR"}]],
        ),
    ]
    per: Annotated[Per, Field(description="what counts as a step: an iteration or an epoch")] = (
        "iter"
    )
    metric: Annotated[
        str | None, Field(description="the validation metric for ReduceLROnPlateau")
    ] = None
    optimizer: Annotated[
        str | None, Field(description="which optimizer's rates, where there are several")
    ] = None

    def __post_init__(self) -> None:
        from torch.optim.lr_scheduler import ReduceLROnPlateau

        self.links = [Link.model_validate(link) for link in self.chain]
        self.args = [with_functions(link.args) for link in self.links]
        self.kinds = find_schedulers(self.links, self.args, self.per)
        *early, last = [
            isinstance(kind, type) and issubclass(kind, ReduceLROnPlateau) for kind in self.kinds
        ]
        self.has_plateau = last
        if any(early):
            message = "ReduceLROnPlateau has no end, so it must be the last of the chain"
            raise UserError(Problem(message))
        if last and self.metric is None:
            raise UserError(
                Problem("ReduceLROnPlateau needs a metric", hint='e.g. metric = "loss"')
            )
        if self.metric is not None and not last:
            message = (
                f'there is a metric, "{self.metric}", and no ReduceLROnPlateau that looks at it'
            )
            raise UserError(Problem(message))
        if self.metric is not None:
            self.modes = {self.metric: _read_mode(self.metric, self.links[-1].args)}
        else:
            self.modes = {}
        self.lengths: list[int] = []
        """How many steps each scheduler is in charge."""
        self.steps = self.end = 0
        self.done = 0
        """The iterations, or epochs, that were done when the schedule was last looked at."""
        self.made: dict[str, Any] = {}
        self.began: dict[str, Any] = {}
        """The states of the schedulers as they are made.

        The state of the hook is what has changed since.
        """
        self.first_rates: list[Any] = []
        """The rates of the first step, by parameter group."""
        self.derived: list[dict[str, int]] = []
        """By scheduler: the arguments that follow from its length.

        These may follow from the length of the run.
        """
        self.turns: list[int] = []
        """The steps after which the second scheduler, the third and so on take over."""
        self.message = ""
        """The messages for after the run has been restored."""

    @classmethod
    def points_for(cls, args: Mapping[str, Any]) -> tuple[str, ...]:
        step = "before_train_iter"
        if args.get("per") == "epoch":
            step = "before_train_epoch"
        if args.get("metric") is None:
            return ("before_run", step)
        return ("before_run", step, "after_val")

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if args.get("metric") is not None:
            _read_mode(args["metric"], args["chain"][-1].get("args", {}))

    @classmethod
    def capabilities_for(cls, args: Mapping[str, Any]) -> HookCapabilities:
        metric = args.get("metric")
        if metric is None:
            return cls.capabilities
        last_link = Link.model_validate(args["chain"][-1])
        return replace(cls.capabilities, monitors={metric: _read_mode(metric, last_link.args)})

    def before_run(self, run: Run) -> None:
        self.lengths = compute_lengths(self.links, self.per, run)
        self._make_all(run.optimizer if self.optimizer is None else run.optimizers[self.optimizer])

    def _make_all(self, optimizer: Optimizer) -> None:
        """Make the schedulers; the rates become those of the first step.

        PyTorch lets rates that are tensors share their memory with the rates that a chain begins
        with, and then changes both. It sees numbers, and the tensors take the rates over.
        """
        from torch.optim.lr_scheduler import SequentialLR

        tensors = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = float(group["lr"])
            if "initial_lr" in group:
                group["initial_lr"] = float(group["initial_lr"])
        self.derived = []
        schedulers = [self._make(k, optimizer, self.lengths[k]) for k in range(len(self.links))]
        if self.has_plateau:
            plateau = [schedulers.pop()]
        else:
            plateau = []
        *starts, self.end = accumulate(self.lengths[: len(schedulers)], initial=0)
        self.turns = starts[1:]
        if len(schedulers) > 1:
            self.made["turns"] = SequentialLR(optimizer, schedulers, self.turns)
        elif schedulers:
            self.made["turns"] = schedulers[0]
        if plateau:
            self.made["plateau"] = plateau[0]
        elif hasattr(schedulers[-1], "total_steps"):
            self.end -= 1  # which counts the rates, where the others count the steps between them
        # The schedule of a resumed run steps before this process has stepped the optimizer, and
        # PyTorch would warn of that.
        optimizer._opt_called = True  # type: ignore[attr-defined]
        self.began = {
            name: deepcopy(scheduler.state_dict()) for name, scheduler in self.made.items()
        }
        self.first_rates = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, tensors, strict=True):
            if hasattr(rate, "fill_"):
                group["lr"] = rate.fill_(group["lr"])

    def _make(self, k: int, optimizer: Optimizer, steps: int) -> Any:
        from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

        kind = self.kinds[k]
        args = dict(self.args[k])
        if self.metric is not None and k + 1 == len(self.links):
            args = {"mode": self.modes[self.metric], **args}
        takes = inspect.signature(kind).parameters
        derived = {}
        for name in LENGTH_ARGUMENTS:
            is_given = name in args or (name == "total_steps" and "epochs" in args)
            if name in takes and not is_given:
                derived[name] = steps
        if derived and steps >= ENDLESS:
            message = (
                f'{self.links[k].use} needs {" and ".join(derived)}: run.max_epochs = "inf" gives'
                " the run no end"
            )
            raise UserError(
                Problem(message, hint=f"give it in its args, or a length to {self.links[k].use}")
            )
        args |= derived
        self.derived.append(derived)
        use = self.links[k].use
        try:
            if "optimizer" in takes:
                made = kind(optimizer=optimizer, **args)
            else:
                made = kind(optimizer, **args)
        except (TypeError, ValueError) as error:
            raise UserError(
                Problem(f"{use}: {error}", hint="\n    ".join(describe_causes(error)))
            ) from error
        if not isinstance(made, LRScheduler) or isinstance(made, ReduceLROnPlateau) != (
            kind is ReduceLROnPlateau
        ):
            message = (
                f"{use} makes a {type(made).__name__}, and not a"
                " torch.optim.lr_scheduler.LRScheduler"
            )
            raise UserError(
                Problem(message, hint="ReduceLROnPlateau is named by itself, with a metric")
            )
        total = getattr(made, "total_steps", steps)
        if total < steps:
            message = (
                f"{use} ends after {total} steps, and is in charge for {steps}: PyTorch would raise"
                f" in step {total}"
            )
            raise UserError(
                Problem(message, hint=f"leave its total_steps out, or give it the length {total}")
            )
        return made

    def before_train_iter(self, run: Run) -> None:
        self.done = self._done(run)
        if self.message:
            run.say(self.message)
            self.message = ""
        self._step_to(self.done)

    before_train_epoch = before_train_iter

    def _step_to(self, done: int) -> None:
        """Take the steps that are due before the next iteration or epoch when so many are done."""
        plateau_is_in_charge = self.has_plateau and self.steps >= self.end
        if not plateau_is_in_charge and len(self._groups()) > len(self.first_rates):
            self._include_added_groups(len(self.first_rates))
        while self.steps < min(done, self.end):
            self.made["turns"].step()
            self.steps += 1

    def _groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = next(iter(self.made.values())).optimizer.param_groups
        return groups

    def _include_added_groups(self, known: int) -> None:
        """Let groups that hooks have added follow the curve from its first step on.

        PyTorch's schedulers raise for them, or go on from the rate of the moment: along another
        curve. The first groups, as many as are `known`, keep their rates.
        """
        groups = self._groups()
        steps = self.steps
        plateau = self.made.get("plateau")
        rates = [deepcopy(group["lr"]) for group in groups[:known]]
        for group in groups:
            set_rate(group, group.pop("initial_lr", group["lr"]))  # the schedulers note it again
        self._make_all(next(iter(self.made.values())).optimizer)
        if plateau is not None:
            self.made["plateau"] = plateau
        for _ in range(steps):
            self.made["turns"].step()
        for group, rate in zip(groups, rates, strict=False):
            set_rate(group, rate)

    def after_val(self, run: Run) -> None:
        if self.metric is None or (value := read_latest_metric(run, self.metric)) is None:
            return
        if self._done(run) >= self.end:
            # The schedulers before the plateau may still have their last step to take.
            self.before_train_iter(run)
            self.made["plateau"].step(value)

    def _done(self, run: Run) -> int:
        if self.per == "iter":
            return run.iter
        return run.epoch

    def state_dict(self) -> dict[str, Any]:
        states = {
            name: _find_changes(scheduler.state_dict(), self.began[name])
            for name, scheduler in self.made.items()
        }
        place = {"steps": self.steps, "done": self.done, "end": self.end}
        return {**place, "curve": self._describe_curve(), "groups": len(self.first_rates), **states}

    def _describe_curve(self) -> dict[str, Any]:
        """Return what of the curve depends on the lengths of its schedulers."""
        return {"turns": self.turns, "derived": self.derived}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back a state, which may be of a run of another length.

        Then the curve is that of this length. In a fork that sets other rates the state is only the
        place: its curve is None.
        """
        self.done = state["done"]
        if state["curve"] is None:
            self.go_to(self.done)
            return
        self.steps = state["steps"]
        if self.has_plateau and self.steps >= state["end"]:
            # The schedulers before the plateau are done, whatever their lengths would be now.
            self.end = self.steps
        elif self._describe_curve() != state["curve"] or self.steps > self.end:
            self.go_to(self.done)
            self.message = "the run has another length, and the rates follow the curve of this one"
            return
        known = state["groups"]
        has_added_groups = "turns" in self.made and known > len(self.first_rates)
        if has_added_groups:
            self._include_added_groups(known)
        for name, scheduler in self.made.items():
            if name == "plateau" or not has_added_groups:
                scheduler.load_state_dict(_restore_state(state[name], self.began[name]))

    def go_to(self, done: int) -> None:
        """Set the rates of the curve when so many iterations, or epochs, are done.

        The curve is followed from its first step on.
        """
        # The zip is not strict, since a hook may have added groups.
        for group, rate in zip(self._groups(), self.first_rates, strict=False):
            set_rate(group, rate)
        self.done = done
        self.steps = 0
        self._step_to(done)


def _read_mode(metric: str, args: Mapping[str, Any]) -> Mode:
    """Return whether less or more of the metric is better.

    The arguments of ReduceLROnPlateau say it, or the metric's name.
    """
    return monitored_mode(metric, args.get("mode"), beside=" in its args")


def _find_changes(state: dict[str, Any], began: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a scheduler's state that have changed: no table of milestones, say."""
    changed = {
        key: value
        for key, value in state.items()
        if key != INNER_STATES_KEY and value != began[key]
    }
    if INNER_STATES_KEY in state:
        changed[INNER_STATES_KEY] = [
            _find_changes(*pair)
            for pair in zip(state[INNER_STATES_KEY], began[INNER_STATES_KEY], strict=True)
        ]
    return changed


def _restore_state(changed: dict[str, Any], began: dict[str, Any]) -> dict[str, Any]:
    whole = {**deepcopy(began), **changed}
    if INNER_STATES_KEY in changed:
        whole[INNER_STATES_KEY] = [
            _restore_state(*pair)
            for pair in zip(changed[INNER_STATES_KEY], began[INNER_STATES_KEY], strict=True)
        ]
    return whole
