"""The means of a validation or test pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from hookflow.hooks.builtin.means import WeightedSum

Sums = Mapping[str, tuple[float, int]]
"""By name: the sum, and the number of examples (or batches) that it is of."""


class Means:
    """The mean of each number over the examples of a pass; over its batches, where nobody knows the size of one.

    The sums stay on the device until the end. `exact` says that every size will be known.
    """

    def __init__(self, exact: bool) -> None:
        self._over_examples = _Sums()
        self._over_batches = None if exact else _Sums()
        self._known = True

    def add(self, numbers: Mapping[str, Any], size: int | None) -> None:
        """Take in the numbers of a batch of `size` examples, each of which is a mean over them."""
        self._known = self._known and size is not None
        if size is not None:
            self._over_examples.add(numbers, size)
        if self._over_batches is not None:
            self._over_batches.add(numbers, 1)

    def over_ranks(self, gather: Callable[[Sums], list[Sums]]) -> dict[str, float]:
        """Return the means over what all ranks have taken in: on all of them the same, to the bit."""
        sums = self._over_examples if self._known or self._over_batches is None else self._over_batches
        found = gather(sums.read())
        return {name: _mean([one[name] for one in found if name in one]) for name in dict.fromkeys(chain(*found))}


class _Sums:
    def __init__(self) -> None:
        self._sums: dict[str, WeightedSum] = {}

    def add(self, numbers: Mapping[str, Any], weight: int) -> None:
        for name, value in numbers.items():
            self._sums.setdefault(name, WeightedSum()).add(value, weight)

    def read(self) -> Sums:
        return {name: (float(one.total), one.weight) for name, one in self._sums.items()}


def _mean(parts: Sequence[tuple[float, int]]) -> float:
    """Return the mean over all examples, out of the sum over those of each rank and their number."""
    (total, seen), *others = parts
    for more, examples in others:
        total, seen = total + more, seen + examples
    return total / max(seen, 1)
