"""Sources with fewer batches: `run.limit_…` and `run.overfit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from itertools import islice
from typing import Any

from hookflow.events.records import DataInfo
from hookflow.pipeline.schema import LoaderSection, Pipeline
from hookflow.pipeline.values import limited_batches
from hookflow.runner.data.source import Source, close
from hookflow.runner.data.stream import Stateful
from hookflow.runner.numerics.random_state import seeded

DATA = {"train": "training", "val": "validation", "test": "test"}


def limit(data: Mapping[str, Source], pipeline: Pipeline, say: Callable[..., None]) -> dict[str, Source]:
    """Return the sources of a run, by split, with as many batches as its `limit_…` and `overfit` leave.

    Each limit is a warning: what is measured on a part of the data is no result.
    """
    run, result = pipeline.run, dict(data)
    for split, source in data.items():
        written, key = getattr(run, f"limit_{split}"), f"run.limit_{split}"
        if written is not None and (batches := limited_batches(written, len(source))) < len(source):
            result[split] = Limited(source, batches, key)
            say(f"{key}: {batches} of {len(source)} batches of the {DATA[split]} data are used", "warn")
    if run.overfit is not None and "train" in data:
        whole = len(data["train"])
        result["train"] = same = Repeated(data["train"], min(run.overfit, whole), "run.overfit", run.seed)
        validates = " and validates" * ("val" in data)
        message = f"run.overfit: trains{validates} on the same {len(same)} of {whole} batches in each epoch"
        say(f"{message}, {_as_made(pipeline.data.train.loader)}", "warn")
        if "val" in data:
            result["val"] = same
    return result


def overfitted(section: LoaderSection) -> LoaderSection:
    """Return how examples become batches where a net is to overfit on a few: as they come, and not augmented."""
    return section.model_copy(update={"shuffle": False, "augment": None})


def _as_made(loader: LoaderSection | None) -> str:
    """Say of the batches of a net that is to overfit how they were made."""
    if loader is None:
        return "as the source gives them: whether it shuffles or augments, it alone knows"
    order = "in the order of the sampler" if loader.sampler else "unshuffled"
    return f"{order} and unaugmented; what the dataset itself draws at random is drawn once"


class Limited:
    """The first `batches` batches of each epoch of a source. It has all other abilities of the source.

    An epoch of a stream is a number of batches anyway: limited, it has fewer, and the next epoch continues after them.
    """

    def __init__(self, source: Source, batches: int, key: str) -> None:
        """`key` is what the user has limited it by, e.g. "run.limit_train"."""
        self.whole = len(source)
        """The batches of an epoch without the limit."""
        self.info = _info(source.info, batches, self.whole, key)
        self._source = source
        if isinstance(source, Stateful):
            source.info = self.info

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self.info["batches"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch (counted from 0), from batch `start` on, on the device."""
        if start < len(self):
            yield from islice(self._source.epoch(epoch, start), len(self) - start)


class Repeated:
    """The first `batches` batches of a source, the same ones in each epoch: fetched once, and kept.

    They are fetched with the global generators seeded, so that a resumed run has the same ones.
    """

    def __init__(self, source: Source, batches: int, key: str, seed: int) -> None:
        self.whole = len(source)
        self.info = _info(source.info, batches, self.whole, key)
        self._batches: list[Any] = []
        sizes: dict[str, list[int]] = {"batch_size": [], "global_batch_size": []}
        with seeded(seed):
            for index, batch in enumerate(islice(source.epoch(0), batches)):
                self._batches.append(batch)
                for name, known in sizes.items():  # the methods of a source refer to its last batch
                    if callable(size := getattr(source, name, None)):
                        known.append(size(index))
        self._sizes = {name: known for name, known in sizes.items() if known}
        self._source = source
        close(source)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self.info["batches"]

    def __getattr__(self, name: str) -> Any:
        """Return the size of a batch by its index, where the source knows it, or what the source has beyond that.

        It has no state: nothing of it changes.
        """
        if name in ("state_dict", "load_state_dict", "close"):
            raise AttributeError(name)
        if name in ("batch_size", "global_batch_size") and name in self._sizes:
            return self._sizes[name].__getitem__
        return getattr(self._source, name)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield copies of the batches from batch `start` on: a task or a hook may change one in place."""
        for batch in self._batches[start:]:
            yield deepcopy(batch)


def _info(info: DataInfo, batches: int, whole: int, key: str) -> DataInfo:
    note = f"{key}: {batches} of {whole} batches"
    return {
        **info,
        "batches": batches,
        "examples": min(info["examples"], batches * info["batch_size"]) if info["batch_size"] else info["examples"],
        "note": f"{note}; {info['note']}" if info["note"] else note,
    }
