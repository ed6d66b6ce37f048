"""Several training sets as one source.

It says in which order their batches come, and where each set is.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal
from zlib import crc32

import torch

from hookflow.errors import Problem, UserError
from hookflow.events.records import DataInfo
from hookflow.numbers import format_count
from hookflow.runner.data.batches import DataContext, OwnStates, SizedSource, list_own_parts
from hookflow.runner.device.random_state import RNGStream, derive_seed

EpochEnd = Literal["shortest", "longest"]
"""Which set ends an epoch of the mix: the first that is through, or the last."""

MixOrderName = Literal["turns", "random", "together"]

Step = tuple[str, ...]
"""The sets of which a step of the mix has a batch: one of them, or all."""

MAX_SET_SEED = 2**31
"""Seeds of sets are below it, so that every library takes them."""


class MixOrder(ABC):
    """The order in which the sets of a mix give their batches."""

    @abstractmethod
    def epoch_length(self, lengths: Mapping[str, int], end: EpochEnd) -> int:
        """Return how many steps an epoch has; `lengths` are the batches of each set."""

    @abstractmethod
    def steps(self, epoch: int, count: int) -> Sequence[Step]:
        """Return the first `count` steps of an epoch.

        They are the same whenever this is called, and on all ranks.
        """


class TurnOrder(MixOrder):
    """Takes as many batches of a set as its share, then of the next set.

    Each epoch begins with the first set.
    """

    def __init__(self, shares: Mapping[str, int]) -> None:
        self._shares = dict(shares)
        self._turn: list[Step] = []
        self._first_in_turn: dict[str, int] = {}
        for name, share in shares.items():
            self._first_in_turn[name] = len(self._turn)
            self._turn += [(name,)] * share

    def epoch_length(self, lengths: Mapping[str, int], end: EpochEnd) -> int:
        if end == "shortest":
            return min(self._step_of(name, length) for name, length in lengths.items())
        return max(self._step_of(name, length - 1) + 1 for name, length in lengths.items())

    def _step_of(self, name: str, number: int) -> int:
        """Return the step that has batch `number` of a set; both count from 0."""
        turns, place = divmod(number, self._shares[name])
        return turns * len(self._turn) + self._first_in_turn[name] + place

    def steps(self, epoch: int, count: int) -> Sequence[Step]:
        turns = count // len(self._turn) + 1
        return (self._turn * turns)[:count]


class RandomOrder(MixOrder):
    """Draws the set of each step, with the shares as weights.

    Each epoch is drawn from a seed of its own.
    """

    def __init__(self, shares: Mapping[str, int], seed: int) -> None:
        self._shares = dict(shares)
        self._total = sum(shares.values())
        self._seed = seed

    def epoch_length(self, lengths: Mapping[str, int], end: EpochEnd) -> int:
        """Return after how many steps a set is expected to be through."""
        if end == "shortest":
            return min(
                length * self._total // self._shares[name] for name, length in lengths.items()
            )
        return max(
            -(-length * self._total // self._shares[name]) for name, length in lengths.items()
        )

    def steps(self, epoch: int, count: int) -> Sequence[Step]:
        generator = torch.Generator().manual_seed(derive_seed(self._seed, RNGStream.MIX, epoch))
        weights = torch.tensor([*self._shares.values()], dtype=torch.float64)
        drawn = torch.multinomial(weights, count, replacement=True, generator=generator)
        choices = [(name,) for name in self._shares]
        return [choices[index] for index in drawn.tolist()]


class TogetherOrder(MixOrder):
    """Takes one batch of every set in each step."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def epoch_length(self, lengths: Mapping[str, int], end: EpochEnd) -> int:
        if end == "shortest":
            return min(lengths.values())
        return max(lengths.values())

    def steps(self, epoch: int, count: int) -> Sequence[Step]:
        return [self._names] * count


def mix_order(name: MixOrderName, shares: Mapping[str, int], seed: int) -> MixOrder:
    """Return the order of this name, over sets with these shares."""
    if name == "together":
        return TogetherOrder([*shares])
    if name == "random":
        return RandomOrder(shares, seed)
    return TurnOrder(shares)


def context_of_set(context: DataContext, name: str) -> DataContext:
    """Return the settings of one set of a mix.

    It has its own seed, so that two sets do not draw the same numbers.
    """
    seed = derive_seed(context.seed, RNGStream.MIX, crc32(name.encode())) % MAX_SET_SEED
    return replace(context, seed=seed)


class SetReader:
    """Reads the batches of one set by their numbers.

    These count on from one epoch of the set to the next.
    """

    def __init__(self, name: str, source: Any) -> None:
        self._name = name
        self._source = source
        self._batches: Iterator[Any] | None = None
        self._next: int | None = None
        """The number of the batch that `_batches` gives next; None where that is not known."""

    def read(self, number: int) -> Any:
        """Return a batch.

        Batches in a row come from one iterator, and any other one begins where it is needed. Raises
        UserError where the set has fewer batches than it has promised.
        """
        epoch, index = divmod(number, len(self._source))
        if self._batches is None or self._next != number or index == 0:
            self._batches = self._source.epoch(epoch, index)
        self._next = None  # until the batch is there
        try:
            batch = next(self._batches)
        except StopIteration:
            promised = format_count(len(self._source), "batch")
            message = f"the training data {self._name} promised {promised}, and gave {index}"
            hint = "its __len__ must be the number of batches that it yields in an epoch"
            raise UserError(Problem(message, hint=hint)) from None
        self._next = number + 1
        return batch

    def forget(self) -> None:
        """Let the next batch be fetched anew."""
        self._batches = self._next = None


@dataclass(frozen=True)
class MixPlace:
    """A place in a mix.

    So many steps of an epoch are done, and so many batches of each set since the run began.
    """

    epoch: int
    steps: int
    taken: Mapping[str, int]

    def is_before(self, epoch: int, steps: int) -> bool:
        """Say whether a place is this one, or comes later."""
        return (self.epoch, self.steps) <= (epoch, steps)


class MixedSource(SizedSource):
    """A source of the batches of several sets.

    Each set goes on where it was as an epoch of the mix ends. A set that is through begins its next
    epoch. A step has a batch of one set, whose name is in `batch_set`; or one of each, in a dict by
    the name of the set, and `batch_set` is None.

    Which batch a step has is a function of the run's seed, the epoch and the step, as long as it is
    one in each set.
    """

    dataset = sampler = loader = None  # each set has its own

    def __init__(self, sets: Mapping[str, Any], order: MixOrder, epoch_end: EpochEnd | int) -> None:
        """`epoch_end` says which set ends an epoch, or how many steps it has."""
        self.sets = dict(sets)
        self.batch_set: str | None = None
        """The set of the latest batch."""
        self._order = order
        self._readers = {name: SetReader(name, source) for name, source in sets.items()}
        self._latest: dict[str, int] = {}
        """The index of the latest batch of each set in the latest step, in the epoch of the set."""
        self._beginning = MixPlace(0, 0, dict.fromkeys(sets, 0))
        self._loaded = self._beginning
        self._latest_place = self._beginning
        self.can_refetch = all(getattr(source, "can_refetch", False) for source in sets.values())
        self.batch_size = self._sum_of_sizes("batch_size")
        self.global_batch_size = self._sum_of_sizes("global_batch_size")
        self.own_states = self._parts_of_sets()
        self.info = self._describe(epoch_end)

    def _parts_of_sets(self) -> OwnStates:
        """Return what the user has made of all sets; each set saves its own."""
        parts = {}
        for name, source in self.sets.items():
            for k, part in enumerate(list_own_parts(source)):
                parts[f"{name}_{k}"] = part
        return OwnStates(**parts)

    def _describe(self, epoch_end: EpochEnd | int) -> DataInfo:
        lengths = {}
        notes = []
        examples = 0
        is_synthetic = False
        for name, source in self.sets.items():
            lengths[name] = len(source)
            notes.append(f"{name}: {format_count(len(source), 'batch')}")
            examples += source.info["examples"]
            is_synthetic |= source.info["synthetic"]
        steps = epoch_end
        if not isinstance(steps, int):
            steps = self._order.epoch_length(lengths, steps)
        return DataInfo(
            name=" + ".join(self.sets),
            examples=examples,
            batches=steps,
            batch_size=0,  # it may differ from set to set
            synthetic=is_synthetic,
            note="; ".join(notes),
        )

    def _sum_of_sizes(self, method: str) -> Any:
        """Return the method of a mix that adds up those of its sets for the latest step.

        It is None where one set lacks it.
        """
        if not all(callable(getattr(source, method, None)) for source in self.sets.values()):
            return None

        def size(index: int) -> int:
            total = 0
            for name, index_in_set in self._latest.items():
                size_in_set = getattr(self.sets[name], method)
                total += size_in_set(index_in_set)
            return total

        return size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch (counted from 0), from step `start` on, on the device."""
        taken = self._taken_at(epoch, start)
        steps = self._order.steps(epoch, len(self))
        # A hook may read an epoch that is over, and that is no training.
        is_training = self._loaded.is_before(epoch, start)
        for index in range(start, len(steps)):
            batch = self._read(steps[index], taken)
            if is_training:
                self._latest_place = MixPlace(epoch, index + 1, dict(taken))
            yield batch
            del batch  # or it would take up memory while the next one is fetched

    def _read(self, step: Step, taken: dict[str, int]) -> Any:
        """Return what a step has, and count it in `taken`."""
        batches = {}
        latest = {}
        for name in step:
            number = taken[name]
            batches[name] = self._readers[name].read(number)
            taken[name] = number + 1
            latest[name] = number % len(self.sets[name])
        self._latest = latest
        if isinstance(self._order, TogetherOrder):
            return batches
        (self.batch_set,) = step
        return batches[self.batch_set]

    def _taken_at(self, epoch: int, steps: int) -> dict[str, int]:
        """Return how many batches of each set are before a place.

        They are counted from the latest place that is known.
        """
        known = [self._latest_place, self._loaded, self._beginning]
        begin = next(place for place in known if place.is_before(epoch, steps))
        taken = Counter(begin.taken)
        for passed in range(begin.epoch, epoch + 1):
            first = 0
            if passed == begin.epoch:
                first = begin.steps
            if passed == epoch:
                last = steps
            else:
                last = len(self)
            if first < last:
                taken.update(chain(*self._order.steps(passed, len(self))[first:last]))
        return dict(taken)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the mix, and the states of the sets that have one."""
        place = self._latest_place
        sets = {}
        for name, source in self.sets.items():
            if hasattr(source, "state_dict"):
                sets[name] = source.state_dict()
        return {
            "epoch": place.epoch,
            "steps": place.steps,
            "taken": dict(place.taken),
            "sets": sets,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take on a state; a set that it lacks is at its beginning."""
        taken = {name: state["taken"].get(name, 0) for name in self.sets}
        self._loaded = self._latest_place = MixPlace(state["epoch"], state["steps"], taken)
        for name, source in self.sets.items():
            self._readers[name].forget()
            if name in state["sets"] and hasattr(source, "load_state_dict"):
                source.load_state_dict(state["sets"][name])

    def close(self) -> None:
        """End what the sets have started."""
        for name, source in self.sets.items():
            self._readers[name].forget()
            end = getattr(source, "close", None)
            if end is not None:
                end()
