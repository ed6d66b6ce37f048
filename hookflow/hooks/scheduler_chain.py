"""What a chain of schedulers says, checked without torch as far as that goes, and how long each of them is."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.hooks.amounts import PROGRESS
from hookflow.hooks.arguments import wrong_arguments
from hookflow.pipeline.schema import Component
from hookflow.pipeline.use import refer
from hookflow.pipeline.values import AmountField, parse_amount

if TYPE_CHECKING:
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
    """What is wrong with a chain, and a hint at the mend."""

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
    """Return the scheduler classes. Raises UserError with all that are not there, or cannot be made as is said."""
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
            said = f'{kind.__name__} has a length in iterations, "{link.length}", and the schedule goes by epochs'
            problems.append(Problem(said, hint='write its length in epochs, or per = "iter"'))
    if problems:
        raise UserError(problems)
    return kinds


def _wrong(kind: type, link: Link) -> Iterator[Problem]:
    filled = {"optimizer", *DERIVED}
    given = {name: value for name, value in link.args.items() if name != "optimizer"}
    yield from wrong_arguments(kind, given, kind.__name__, lambda name: Where(""), filled)


def derived(kind: type, args: Mapping[str, Any], steps: int) -> dict[str, int]:
    """Return the arguments of a scheduler that are its length, but for those that the pipeline gives.

    `total_steps` is not given to a scheduler that is told `epochs`, from which it makes its own.
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
    found: list[int] = []
    for link in chain:
        left = whole - sum(found)
        if link.length is None and left < 1:
            said = f"nothing is left of the run for {link.use}: those before it take {sum(found)} of {whole} "
            raise UserError(Problem(said + ("iterations" if per == "iter" else "epochs")))
        found.append(left if link.length is None else _steps(link.length, per, whole, run.iters_per_epoch))
    return found


def _steps(length: int | str, per: Per, whole: int, iters_per_epoch: int) -> int:
    amount = parse_amount(length)
    if amount.unit == "%":
        return max(1, round(whole * amount.value / 100))
    return int(amount.value) * (iters_per_epoch if amount.unit == "ep" and per == "iter" else 1)
