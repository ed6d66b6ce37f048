"""Values that change where an epoch begins.

They are the batch size and accumulation, and with them the length of an epoch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Annotated, Any, Self

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticKnownError

from hookflow.pipeline.amounts import parse_amount


@dataclass(frozen=True, slots=True)
class ByEpoch:
    """An integer for each epoch.

    `stages` has the first epoch of each value, counted from 0, and the value.
    """

    stages: tuple[tuple[int, int], ...]

    @classmethod
    def constant(cls, value: int) -> Self:
        """Return the same integer for all epochs."""
        return cls(((0, value),))

    @property
    def changes(self) -> bool:
        """Whether there are two different values."""
        return len(self.values) > 1

    @property
    def values(self) -> set[int]:
        return {value for _, value in self.stages}

    @property
    def most(self) -> int:
        """The greatest value of any epoch."""
        return max(self.values)

    def at(self, epoch: int) -> int:
        """Return the value of an epoch."""
        result = self.stages[0][1]
        for first, value in self.stages:
            if first <= epoch:
                result = value
        return result

    def mapped(self, function: Callable[[int], int]) -> "ByEpoch":
        """Return what a function makes of each value."""
        return ByEpoch(tuple((first, function(value)) for first, value in self.stages))

    def as_toml(self) -> int | list[list[int | str]]:
        """Return the value of a key that has these integers."""
        (_, constant), *later = self.stages
        if not later:
            return constant
        pairs: list[list[int | str]] = [[0, constant]]
        for first, value in later:
            pairs.append([f"{first}ep", value])
        return pairs


@dataclass(frozen=True, slots=True)
class EpochLengths(ByEpoch):
    """The iterations of each epoch.

    An amount of epochs is a place in the run, counted in iterations.
    """

    @classmethod
    def of(cls, batches: ByEpoch, accumulate: ByEpoch) -> Self:
        """Return the lengths of epochs of so many batches, of which an iteration takes several."""
        lengths = []
        for first in first_epochs(batches, accumulate):
            exact = batches.at(first) / accumulate.at(first)
            lengths.append((first, ceil(exact)))
        return cls(tuple(lengths))

    def iterations(self, epochs: int | Fraction) -> int | Fraction:
        """Return how many iterations so many epochs are, which may be parts of one."""
        result: int | Fraction = 0
        for first, end, length in self._spans():
            if epochs <= first:
                break
            until = epochs
            if end is not None:
                until = min(epochs, end)
            result += (until - first) * length
        return result

    def epochs(self, iterations: int) -> Fraction:
        """Return how many epochs, and parts of one, so many iterations are.

        The number is 0 where epochs have no iterations.
        """
        left = iterations
        result = Fraction(0)
        for first, end, length in self._spans():
            if length == 0:
                break
            done = Fraction(left, length)
            if end is None or done < end - first:
                return result + done
            result += end - first
            left -= (end - first) * length
        return result

    def _spans(self) -> Iterator[tuple[int, int | None, int]]:
        """Yield the first epoch of each length, the epoch after its last one, and the length.

        The epoch after the last one is None where the length holds to the end.
        """
        ends: list[int | None] = [first for first, _ in self.stages[1:]]
        ends.append(None)
        for (first, length), end in zip(self.stages, ends, strict=True):
            yield first, end, length


def first_epochs(*values: ByEpoch) -> list[int]:
    """Return the epochs with which any of these values changes, and the first of all."""
    firsts = set()
    for value in values:
        for first, _ in value.stages:
            firsts.add(first)
    return sorted(firsts)


def batches_by_epoch(source: Any) -> ByEpoch:
    """Return how many batches each epoch of a source has.

    The number is the length of the source, unless the source says otherwise.
    """
    declared: ByEpoch | None = getattr(source, "batches_by_epoch", None)
    if declared is not None:
        return declared
    return ByEpoch.constant(len(source))


def takes_several_batches(lengths: EpochLengths, batches: ByEpoch) -> bool:
    """Say whether an iteration of any epoch has more than one batch."""
    return any(lengths.at(epoch) != batches.at(epoch) for epoch in first_epochs(lengths, batches))


def recorded_lengths(run: Mapping[str, Any]) -> EpochLengths:
    """Return the iterations of each epoch, as they were recorded.

    `record` is the record of the start of a run, or the position in a checkpoint.
    """
    stages = run.get("epoch_lengths")
    if stages:
        return EpochLengths(tuple(map(tuple, stages)))
    length = run.get("iters_per_epoch", 0)
    return EpochLengths.constant(length)


def parse_counts(written: object) -> ByEpoch:
    """Read an integer, or several with the epochs from which they hold.

    Raises ValueError, in words for the user.
    """
    if isinstance(written, ByEpoch):
        return written
    if not isinstance(written, list | tuple):
        return ByEpoch.constant(_count(written))
    stages: list[tuple[int, int]] = []
    for entry in written:
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            raise ValueError(f"{entry!r} is no pair of a place and a number; {_EXAMPLE}")
        place, value = entry
        if type(value) is not int or value < 1:
            raise ValueError(f"{value!r} is no integer above zero; {_EXAMPLE}")
        stages.append((_first_epoch(place), value))
    if not stages or stages[0][0] != 0:
        raise ValueError(f"the first number holds from 0 on; {_EXAMPLE}")
    _check_order(stages)
    return ByEpoch(tuple(stages))


_EXAMPLE = 'write e.g. [[0, 64], ["3ep", 256]]'


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise PydanticKnownError("int_type")
    if value < 1:
        raise PydanticKnownError("greater_than_equal", {"ge": 1})
    return int(value)


def _first_epoch(place: object) -> int:
    if place == 0 and type(place) is int:
        return 0
    try:
        return int(parse_amount(place, ("ep",)).value)
    except ValueError as error:
        raise ValueError(f"it changes where an epoch begins: {error}") from None


def _check_order(stages: Sequence[tuple[int, int]]) -> None:
    for (before, _), (first, _) in pairwise(stages):
        if first <= before:
            raise ValueError(f"the places must increase, and {first}ep follows {before}ep")


def _as_toml(counts: Any) -> Any:
    parsed = parse_counts(counts)
    return parsed.as_toml()


_PAIR = {"type": "array", "minItems": 2, "maxItems": 2}
_SCHEMA = {"type": ["integer", "array"], "minimum": 1, "minItems": 1, "items": _PAIR}

CountByEpoch = Annotated[
    ByEpoch, PlainValidator(parse_counts), PlainSerializer(_as_toml), WithJsonSchema(_SCHEMA)
]
"""An integer above zero, or several with the epochs from which they hold: [[0,
64], ["3ep", 256]].
"""
