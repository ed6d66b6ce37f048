"""Times of firings and phases over the whole run: the frames merged into a bounded number of buckets."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from hookflow.events.records import PHASES, Frame
from hookflow.graph.plan import Binding, Plan

ITERATION = "iteration"
"""The name of the history of whole iterations, beside those of `PHASES`."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Firings of some neighbouring iterations, and their ns; a part of one where a frame had more than it shows."""

    count: float
    total: float

    @property
    def mean(self) -> float:
        return self.total / self.count


class History:
    """Buckets of equally many iterations; when there would be more than LIMIT of them, two neighbours become one."""

    LIMIT = 512

    def __init__(self, it: int = 0) -> None:
        self._it = it  # where the newest entry ends, and the next one begins
        self._stride = 1  # iterations of a bucket
        self._counts, self._totals = array("d"), array("d")

    def add(self, it: int, count: int, total: int) -> None:
        """Add what has fired since the last entry, up to iteration `it`, and its ns; without a firing nothing."""
        if count <= 0:
            return
        while it // self._stride >= self.LIMIT:
            self._merge()
        last = it // self._stride
        first = max(min((self._it + 1) // self._stride, last), 0)
        share = last - first + 1
        if count < share:  # it has not fired in each of them
            first, share = last, 1
        self._it = it
        if (missing := last + 1 - len(self._counts)) > 0:
            self._counts.extend([0.0] * missing)
            self._totals.extend([0.0] * missing)
        for at in range(first, last + 1):
            self._counts[at] += count / share
            self._totals[at] += total / share

    def _merge(self) -> None:
        self._stride *= 2
        for column in (self._counts, self._totals):
            column.extend([0.0] * (len(column) % 2))
        self._counts = array("d", map(sum, zip(self._counts[::2], self._counts[1::2], strict=True)))
        self._totals = array("d", map(sum, zip(self._totals[::2], self._totals[1::2], strict=True)))

    def forget_after(self, it: int) -> None:
        """Drop what lies beyond an iteration: a resumed run walks that stretch again."""
        self._it = min(self._it, it)
        for column in (self._counts, self._totals):
            del column[it // self._stride + 1 :]

    def stretches(self, first: float, last: float, count: int) -> list[Stretch | None]:
        """Return `count` equal parts of the iterations from `first` to `last`; None where nothing has fired."""
        edges = [int((first + (last - first) * k / count) // self._stride) for k in range(count + 1)]
        result: list[Stretch | None] = []
        for at, to in pairwise(edges):
            fired = sum(self._counts[at : max(to, at + 1)])
            result.append(Stretch(fired, sum(self._totals[at : max(to, at + 1)])) if fired else None)
        return result


def usual(stretches: Iterable[Stretch | None]) -> float:
    """Return the median of the means, in which spikes weigh nothing; 0.0 where nothing has fired."""
    return median([each.mean for each in stretches if each] or [0.0])


class Histories:
    """The histories of rank 0, over all attempts of the run: a binding is known again by its hook, point and method."""

    def __init__(self) -> None:
        self._of: dict[str, History] = {}
        self._by_id: dict[str, History] = {}  # those of this attempt, by the ids in its frames
        self._begin = 0

    def again(self, it: int) -> None:
        """Begin another attempt after iteration `it`."""
        self._by_id, self._begin = {}, it
        for history in self._of.values():
            history.forget_after(it)

    def frame(self, record: Frame, plan: Plan) -> None:
        count, total, *_ = record["iters"]
        for phase, ns in ((ITERATION, total), *((phase, record["phases"].get(phase, 0)) for phase in PHASES)):
            self._named(phase).add(record["it"], count, ns)
        for binding, (fired, ns, *_) in record["hooks"].items():
            if binding not in self._by_id:
                known = int(binding) < len(plan.bindings)
                self._by_id[binding] = self._named(_key(plan.bindings[int(binding)]) if known else binding)
            self._by_id[binding].add(record["it"], fired, ns)

    def _named(self, key: str) -> History:
        if key not in self._of:
            self._of[key] = History(self._begin)
        return self._of[key]

    def of(self, of: Binding | str) -> History:
        """Return the history of a binding, of a phase or of whole iterations; an empty one where there is none."""
        return self._of.get(of if isinstance(of, str) else _key(of)) or History()


def _key(binding: Binding) -> str:
    return f"{binding.hook} {binding.point} {binding.method} {binding.half}"
