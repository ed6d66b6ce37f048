"""Sources with fewer batches: `run.limit_…` and `run.overfit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from itertools import islice
from typing import Any

from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.values import limited_batches
from hookflow.runner.data.base import Sized, sets_of, split_of
from hookflow.runner.data.source import Source, close
from hookflow.runner.data.stream import Stateful
from hookflow.runner.numerics.random_state import seeded

DATA = {"train": "training", "val": "validation", "test": "test"}


def called(split: str) -> str:
    """Return what messages call a source: "the validation data", "the validation data ood"."""
    name, _, own = split.partition(".")
    return f"the {DATA[name]} data{f' {own}' * bool(own)}"


def limit(data: Mapping[str, Source], pipeline: Pipeline, say: Callable[..., None]) -> dict[str, Source]:
    """Return the sources of a run, by split, with as many batches as its `limit_…` and `overfit` leave.

    Each limit is a warning: what is measured on a part of the data is no result.
    """
    run, result = pipeline.run, dict(data)
    for split, source in data.items():
        name = split_of(split)
        written, key = getattr(run, f"limit_{name}"), f"run.limit_{name}"
        if written is not None and (batches := limited_batches(written, len(source))) < len(source):
            result[split] = Limited(source, batches, key)
            say(f"{key}: {batches} of {len(source)} batches of {called(split)} are used", "warn")
    if run.overfit is not None and "train" in data:
        whole = len(data["train"])
        result["train"] = same = Repeated(data["train"], min(run.overfit, whole), "run.overfit", run.seed)
        validation = sets_of("val", data)
        result |= dict.fromkeys(validation, same)
        validates = " and validates" * bool(validation)
        loader = pipeline.data.train.loader
        made = "as the source gives them"
        if loader is not None:
            made = f"{'in the order of the sampler' if loader.sampler else 'unshuffled'} and unaugmented"
        say(f"run.overfit: trains{validates} on the same {len(same)} of {whole} batches in each epoch, {made}", "warn")
    return result


class Limited(Sized):
    """The first `batches` batches of each epoch of a source. It has all other abilities of the source.

    An epoch of a stream is a number of batches anyway: limited, it has fewer, and the next epoch continues after them.
    """

    def __init__(self, source: Source, batches: int, key: str) -> None:
        """`key` names the setting that limits the source, e.g. "run.limit_train"."""
        self._source = source
        self.whole = len(source)
        """The batches of an epoch without the limit."""
        info, note = source.info, f"{key}: {batches} of {self.whole} batches"
        self.info = {
            **info,
            "batches": batches,
            "examples": min(info["examples"], batches * info["batch_size"]) if info["batch_size"] else info["examples"],
            "note": f"{note}; {info['note']}" if info["note"] else note,
        }
        if isinstance(source, Stateful):
            source.info = self.info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        if start < self.info["batches"]:
            yield from islice(self._source.epoch(epoch, start), self.info["batches"] - start)


class Repeated(Limited):
    """The first `batches` batches of a source, the same ones in each epoch: fetched once, and kept.

    They are fetched with the global generators seeded, so that a resumed run has the same ones.
    """

    def __init__(self, source: Source, batches: int, key: str, seed: int) -> None:
        super().__init__(source, batches, key)
        self._batches: list[Any] = []
        self._sizes: dict[str, list[int]] = {}
        with seeded(seed):
            for index, batch in enumerate(super().epoch(0)):
                self._batches.append(batch)
                for name in ("batch_size", "global_batch_size"):  # these methods refer to the last batch
                    if callable(size := getattr(source, name, None)):
                        self._sizes.setdefault(name, []).append(size(index))
        close(source)

    def __getattr__(self, name: str) -> Any:
        """Return the kept sizes of the batches, or what the source has beyond its state, which does not change."""
        if name in ("state_dict", "load_state_dict", "close"):
            raise AttributeError(name)
        if name in self._sizes:
            return self._sizes[name].__getitem__
        return super().__getattr__(name)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield copies of the batches from batch `start` on: a task or a hook may change one in place."""
        yield from map(deepcopy, self._batches[start:])
