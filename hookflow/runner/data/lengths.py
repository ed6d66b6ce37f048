"""The lengths of a run's data, by which a checkpoint knows whether they are still the same."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hookflow.numbers import format_count
from hookflow.runner.data.batches import split_of
from hookflow.runner.data.loop_data import LoopData
from hookflow.runner.data.mixed import MixedSource
from hookflow.runner.data.source import LimitedSource


@dataclass(frozen=True)
class DataLength:
    """How much data a source has in an epoch; 0 examples where that is unknown."""

    examples: int
    batches: int

    def __str__(self) -> str:
        if self.examples:
            return format_count(self.examples, "example")
        return format_count(self.batches, "batch")


@dataclass(frozen=True)
class ChangedLength:
    """Data of another length than those of a checkpoint."""

    split: str
    then: DataLength
    now: DataLength

    def __str__(self) -> str:
        return (
            f"data.{self.split} had {self.then} when the checkpoint was saved, and has"
            f" {self.now} now"
        )


def is_mixed(source: Any) -> bool:
    """Say whether a source has the batches of several training sets."""
    return isinstance(_without_limit(source), MixedSource)


def iter_sources(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the sources by name.

    In the place of several training sets it is each of them, as "train.photos".
    """
    for split, source in data.items():
        whole = _without_limit(source)
        if isinstance(whole, MixedSource):
            for name, one_set in whole.sets.items():
                yield f"{split}.{name}", one_set
        else:
            yield split, source


def save_lengths(data: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the lengths of the training and validation data, as a checkpoint holds them."""
    lengths = {}
    for split, source in iter_sources(data):
        if split_of(split) != "test" and not isinstance(source, LoopData):
            lengths[split] = asdict(_length_of(source))
    return lengths


def changed_lengths(
    saved: Mapping[str, Mapping[str, int]],
    data: Mapping[str, Any],
    *,
    rank: int,
    world: int,
    world_then: int,
) -> Iterator[ChangedLength]:
    """Yield the sources that have another length than `save_lengths` noted, on `world_then` ranks.

    The lengths are those of rank 0. Where each rank has data of its own, the other ranks have
    nothing to compare, and nothing is comparable once the ranks are others.
    """
    sources = dict(iter_sources(data))
    for split, fields in saved.items():
        if split not in sources:
            continue
        source = sources[split]
        is_shared = world == 1 or getattr(source, "global_batch_size", None) is not None
        if not is_shared and (rank > 0 or world != world_then):
            continue
        then = DataLength(**fields)
        now = _length_of(source)
        if then.examples and now.examples:
            # Some examples are left out of whole batches for each rank, and another number of ranks
            # leaves out others.
            depends_on_ranks = world != world_then and not source.info["batch_size"]
            is_changed = then.examples != now.examples and not depends_on_ranks
        else:
            is_changed = then.batches != now.batches and world == world_then
        if is_changed:
            yield ChangedLength(split, then, now)


def _length_of(source: Any) -> DataLength:
    """Return the length of a source, whatever a setting of the run takes of it."""
    whole = _without_limit(source)
    return DataLength(whole.info["examples"], len(whole))


def _without_limit(source: Any) -> Any:
    while isinstance(source, LimitedSource):
        source = source._source
    return source
