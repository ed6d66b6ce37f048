"""Hooks that keep an average of the weights.

A run, a validation and a command put it in place of the weights.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hookflow.errors import Problem, UserError, nearest_or_all
from hookflow.hooks.base import Hook

NO_AVERAGE = "none"
"""The name by which commands mean the weights themselves."""


class WeightAverageHook(Hook):
    """Base class of hooks that keep an average of the weights, and put it in place of them for
    validations and tests.

    `run.average` and the option `--average` know the average by the name of the hook.
    """

    is_validated: bool = True
    """Whether validations, tests and predictions have the average; a command may say otherwise."""
    placed_at: int | None = None
    """When the average was put in place of the weights, as a number that grows.

    It is None while it is not in place.
    """

    @property
    @abstractmethod
    def has_average(self) -> bool:
        """Whether the average has begun; until then it is the weights."""

    @abstractmethod
    def put_in_place(self, run: Any, *, keeps_versions: bool = False) -> None:
        """Give the network the average, if it has begun.

        With `keeps_versions` autograd does not count that as a change: a graph that was made before
        can be differentiated once the weights are back.
        """

    @abstractmethod
    def take_out(self, run: Any) -> None:
        """Give the network its weights back, if the average is in place of them."""


def find_averages(hooks: Mapping[str, Any]) -> dict[str, WeightAverageHook]:
    """Return the hooks that keep an average, by name."""
    return {name: hook for name, hook in hooks.items() if isinstance(hook, WeightAverageHook)}


def find_average(hooks: Mapping[str, Any], name: str) -> WeightAverageHook:
    """Return the hook that keeps an average by its name.

    Raises UserError, which names those that there are.
    """
    averages = find_averages(hooks)
    if name in averages:
        return averages[name]
    if not averages:
        raise UserError(
            Problem(f'there is no average "{name}"', hint="no hook keeps one; ema and swa do")
        )
    raise UserError(Problem(f'there is no average "{name}"', hint=nearest_or_all(name, averages)))


@contextmanager
def average_in_place(run: Any, name: str | None) -> Iterator[None]:
    """Give the network one average and no other, or with None its own weights.

    Afterwards it is as before.
    """
    if name is None:
        wanted = None
    else:
        wanted = find_average(run.hooks, name)
    placed = [
        average for average in find_averages(run.hooks).values() if average.placed_at is not None
    ]
    placed.sort(key=lambda average: average.placed_at or 0)
    is_there = placed == ([] if wanted is None else [wanted])
    if is_there:
        yield
        return
    for average in reversed(placed):  # each has exchanged its tensors with what was there then
        average.take_out(run)
    if wanted is not None:
        wanted.put_in_place(run, keeps_versions=True)
    try:
        yield
    finally:
        if wanted is not None:
            wanted.take_out(run)
        for average in placed:
            average.put_in_place(run, keeps_versions=True)


def validate_average(hooks: Mapping[str, Any], name: str) -> None:
    """Let validations have the average of one hook, or with NO_AVERAGE the weights themselves.

    Raises UserError where there is no such average, or it had not begun when the checkpoint was
    saved.
    """
    if name != NO_AVERAGE and not find_average(hooks, name).has_average:
        message = f'the checkpoint has no average "{name}": it had not begun'
        raise UserError(Problem(message, hint=f"--average {NO_AVERAGE}"))
    for hook_name, average in find_averages(hooks).items():
        average.is_validated = hook_name == name
