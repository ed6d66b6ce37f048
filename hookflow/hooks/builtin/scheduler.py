"""Learning-rate schedules by PyTorch's own schedulers, one after another."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.hooks.arguments import wrong_arguments
from hookflow.hooks.base import Hook
from hookflow.hooks.builtin.schedules import PROGRESS
from hookflow.metric_mode import Mode, mode_of
from hookflow.pipeline.schema import Component
from hookflow.pipeline.use import refer
from hookflow.pipeline.values import AmountField, parse_amount
from hookflow.user_code import causes

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from hookflow.hooks.run import Run


Per = Literal["iter", "epoch"]

DERIVED = ("total_iters", "T_max", "total_steps")
"""Arguments of schedulers that are their own length in steps: filled in where the pipeline does not give them."""


class Link(Component):
    """A scheduler of the chain."""

    use: str
    """A scheduler of torch.optim.lr_scheduler by its name, or "package.module:Name"."""
    length: AmountField | None = None
    """How long it is in charge: 500, "500it", "2ep", or "10%" of the run; the last one stays if left out."""


class ChainError(ValueError):
    """A problem of a chain, and a hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def check_chain(written: Any) -> Any:
    """Return the chain as the file has it. Raises ChainError when it is wrong in itself; types are checked later."""
    for k, link in enumerate(written if isinstance(written, list) else ()):
        called = f"scheduler {k + 1} of {len(written)}"
        if isinstance(link, str):
            raise ChainError(f"{called} must be a table", f'write {{ use = "{link}" }}')
        if isinstance(link, dict):
            _check_link(link, called, last=k + 1 == len(written))
    return written


def _check_link(link: Mapping[str, Any], called: str, last: bool) -> None:
    for key in link:
        if key not in Link.model_fields:
            hint = nearest(key, Link.model_fields) or f"an argument of the scheduler belongs in args: {{ {key} = … }}"
            raise ChainError(f'{called} has no key "{key}"', hint)
    if not isinstance(link.get("args", {}), dict):
        raise ChainError(f"{called}: args must be a table", "write args = { … }")
    if "use" not in link:
        raise ChainError(f'{called} lacks the key "use"', 'e.g. use = "CosineAnnealingLR"')
    if isinstance(link["use"], str) and ".py:" in link["use"]:
        raise ChainError(f"{called}: a scheduler is not looked for in a file", 'write "package.module:Name"')
    if "length" in link:
        try:
            parse_amount(link["length"], PROGRESS)
        except ValueError as error:
            raise ChainError(f"{called}: length: {error}") from None
    elif not last:
        raise ChainError(f"{called} needs a length: only the last one may go on to the end", 'e.g. length = "10%"')


def found_schedulers(chain: Sequence[Link], per: Per) -> list[type]:
    """Return the scheduler classes. Raises UserError with all schedulers that do not exist or cannot be constructed."""
    from torch.optim import lr_scheduler

    base = lr_scheduler.LRScheduler
    public = {name: kind for name, kind in vars(lr_scheduler).items() if not name.startswith("_")}
    short = {
        name: f"{lr_scheduler.__name__}:{name}"
        for name, kind in public.items()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base
    }
    kinds: list[type] = []
    problems: list[Problem] = []
    for link in chain:
        try:
            kind = refer(link.use, Path(), None, short)
        except UserError as error:
            problems += error.problems
            continue
        if not (isinstance(kind, type) and issubclass(kind, base)):
            problems.append(Problem(f'"{link.use}" is no scheduler: it must be a subclass of {base.__qualname__}'))
            continue
        kinds.append(kind)
        problems += (replace(problem, where=None) for problem in _wrong(kind, link))
        if per == "epoch" and link.length is not None and parse_amount(link.length).unit == "it":
            message = f'{kind.__name__} has a length in iterations, "{link.length}", and the schedule goes by epochs'
            problems.append(Problem(message, hint='write its length in epochs, or per = "iter"'))
    if problems:
        raise UserError(problems)
    return kinds


def _wrong(kind: type, link: Link) -> Iterator[Problem]:
    filled = {"optimizer", *DERIVED}
    provided = {name: value for name, value in link.args.items() if name != "optimizer"}
    yield from wrong_arguments(kind, provided, kind.__name__, lambda name: Where(""), filled)


def derived(kind: type, args: Mapping[str, Any], steps: int) -> dict[str, int]:
    """Return the arguments of a scheduler that are its length, but for those that the pipeline gives.

    `total_steps` is not given to a scheduler that receives `epochs` and derives its own.
    """
    takes = inspect.signature(kind).parameters
    return {
        name: steps
        for name in DERIVED
        if name in takes and name not in args and not (name == "total_steps" and "epochs" in args)
    }


def lengths(chain: Sequence[Link], per: Per, run: Run) -> list[int]:
    """Return how many steps each scheduler is in charge: iterations or epochs, whichever `per` counts.

    Shares of the run are rounded. Raises UserError when nothing of the run is left for the last one.
    """
    whole = run.max_iters if per == "iter" else ceil(run.max_iters / run.iters_per_epoch)
    result: list[int] = []
    for link in chain:
        left = whole - sum(result)
        if link.length is None and left < 1:
            message = f"nothing is left of the run for {link.use}: those before it take {sum(result)} of {whole} "
            raise UserError(Problem(message + ("iterations" if per == "iter" else "epochs")))
        result.append(left if link.length is None else _steps(link.length, per, whole, run.iters_per_epoch))
    return result


def _steps(length: int | str, per: Per, whole: int, iters_per_epoch: int) -> int:
    amount = parse_amount(length)
    if amount.unit == "%":
        return max(1, round(whole * amount.value / 100))
    return int(amount.value) * (iters_per_epoch if amount.unit == "ep" and per == "iter" else 1)


class Scheduler(Hook):
    """Sets the learning rates by PyTorch's schedulers, each for its length, one after another.

    The rates of an iteration are those of the usual loop, which calls `scheduler.step()` after `optimizer.step()`, or
    after each epoch. The step is taken at the beginning of the next iteration, or epoch, so that in the whole of an
    iteration the rate is the one that it is trained with. `total_iters`, `T_max` and `total_steps` are the scheduler's
    length where they are not given. After the end of the chain the rates stay as they are. `ReduceLROnPlateau` may be
    the last of the chain: it looks at `metric` after each validation, once those before it are through. Its `mode`
    follows from the metric's name where it is not given.
    """

    reads = {  # noqa: RUF012  # it is read, never changed
        "before_run": ("optimizer.{optimizer}",),
        "before_train_iter": ("optimizer.{optimizer}",),
        "before_train_epoch": ("optimizer.{optimizer}",),
        "after_val": ("optimizer.{optimizer}", "metrics.{metric}"),
    }
    writes = dict.fromkeys(("before_run", "before_train_iter", "before_train_epoch", "after_val"), ("lr.{optimizer}",))

    def __init__(
        self,
        chain: Annotated[
            list[Link],
            BeforeValidator(check_chain),
            Field(
                min_length=1,
                description="the schedulers, each as { use, args, length }, in the order of their turns",
                examples=[[{"use": "CosineAnnealingLR"}]],
            ),
        ],
        per: Annotated[Per, Field(description="what counts as a step: an iteration or an epoch")] = "iter",
        metric: Annotated[str | None, Field(description="the validation metric for ReduceLROnPlateau")] = None,
        optimizer: Annotated[str | None, Field(description="which optimizer's rates, where there are several")] = None,
    ) -> None:
        from torch.optim.lr_scheduler import ReduceLROnPlateau

        self.chain = [Link.model_validate(link) for link in chain]
        self.per = per
        self.metric = metric
        self.optimizer = optimizer
        self.kinds = found_schedulers(self.chain, per)
        *early, last = [issubclass(kind, ReduceLROnPlateau) for kind in self.kinds]
        self.has_plateau = last
        if any(early):
            raise UserError(Problem("ReduceLROnPlateau has no end, so it must be the last of the chain"))
        if last and metric is None:
            raise UserError(Problem("ReduceLROnPlateau needs a metric", hint='e.g. metric = "loss"'))
        if metric is not None and not last:
            raise UserError(Problem(f'there is a metric, "{metric}", and no ReduceLROnPlateau that looks at it'))
        self.modes = {metric: _mode(metric, self.chain[-1].args)} if metric is not None else {}
        self.steps = 0
        self.end = 0
        self.made: dict[str, Any] = {}
        self.began: dict[str, Any] = {}

    @classmethod
    def points_for(cls, args: Mapping[str, Any]) -> tuple[str, ...]:
        step = "before_train_epoch" if args.get("per") == "epoch" else "before_train_iter"
        return ("before_run", step) if args.get("metric") is None else ("before_run", step, "after_val")

    @classmethod
    def slot_keys(cls, args: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**args, "metric": args.get("metric") or ()}

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if args.get("metric") is not None:
            _mode(args["metric"], args["chain"][-1].get("args", {}))

    def before_run(self, run: Run) -> None:
        from torch.optim.lr_scheduler import SequentialLR

        optimizer = run.optimizer if self.optimizer is None else run.optimizers[self.optimizer]
        steps = lengths(self.chain, self.per, run)
        schedulers = [self._make(k, optimizer, steps[k]) for k in range(len(self.chain))]
        plateau = [schedulers.pop()] if self.has_plateau else []
        *turns, self.end = accumulate(steps[: len(schedulers)], initial=0)
        if len(schedulers) > 1:
            self.made["turns"] = SequentialLR(optimizer, schedulers, turns[1:])
        elif schedulers:
            self.made["turns"] = schedulers[0]
        if plateau:
            self.made["plateau"] = plateau[0]
        elif hasattr(schedulers[-1], "total_steps"):
            self.end -= 1  # which counts the rates, where the others count the steps between them
        # A resumed run's schedule steps before this process has stepped the optimizer, and PyTorch would warn of that.
        optimizer._opt_called = True  # type: ignore[attr-defined]
        self.began = {name: deepcopy(scheduler.state_dict()) for name, scheduler in self.made.items()}

    def _make(self, k: int, optimizer: Optimizer, steps: int) -> Any:
        kind, args = self.kinds[k], self.chain[k].args
        if self.metric is not None and k + 1 == len(self.chain):
            args = {"mode": self.modes[self.metric], **args}
        try:
            return kind(optimizer, **{**derived(kind, args, steps), **args})
        except (TypeError, ValueError) as error:
            raise UserError(Problem(f"{kind.__name__}: {error}", hint="\n    ".join(causes(error)))) from error

    def before_train_iter(self, run: Run) -> None:
        while self.steps < min(self._done(run), self.end):
            self.made["turns"].step()
            self.steps += 1

    before_train_epoch = before_train_iter

    def after_val(self, run: Run) -> None:
        if self.metric is not None and self._done(run) >= self.end:
            self.before_train_iter(run)  # the last step of those before it, if it is still to be taken
            self.made["plateau"].step(run.metric(self.metric))

    def _done(self, run: Run) -> int:
        return run.iter if self.per == "iter" else run.epoch

    def state_dict(self) -> dict[str, Any]:
        states = {name: _changes(scheduler.state_dict(), self.began[name]) for name, scheduler in self.made.items()}
        return {"steps": self.steps, **states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        for name, scheduler in self.made.items():
            scheduler.load_state_dict(_whole(state[name], self.began[name]))


def _mode(metric: str, args: Mapping[str, Any]) -> Mode:
    """Return whether less or more of the metric is better, by the arguments of ReduceLROnPlateau, or by its name."""
    return mode_of(metric, args.get("mode"), beside=" in its args")


# A resumed run creates its schedulers again; what has not changed since, like a table of milestones, need not be saved.


def _changes(state: dict[str, Any], began: dict[str, Any]) -> dict[str, Any]:
    inner = "_schedulers"
    changed = {key: value for key, value in state.items() if key != inner and value != began[key]}
    if inner in state:
        changed[inner] = [_changes(*pair) for pair in zip(state[inner], began[inner], strict=True)]
    return changed


def _whole(changed: dict[str, Any], began: dict[str, Any]) -> dict[str, Any]:
    whole = {**deepcopy(began), **changed}
    if "_schedulers" in changed:
        whole["_schedulers"] = [
            _whole(*pair) for pair in zip(changed["_schedulers"], began["_schedulers"], strict=True)
        ]
    return whole
