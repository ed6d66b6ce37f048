"""Each example of an evaluation counts once, whatever the source, the workers,
the ranks and the sizes.
"""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    get_worker_info,
)

from hookflow.errors import UserError, Where
from hookflow.pipeline.components import LoaderSection
from hookflow.pipeline.source_map import SourceMap
from hookflow.runner.data.batches import BatchSizes, OverLoader
from hookflow.runner.data.loader_parts import loader_parts
from hookflow.runner.data.source import Source, as_source, close
from hookflow.runner.loop.evaluation import WeightedMeans
from tests.conftest import TOY
from tests.support.data_loaders import context

HERE = Where("test")


class Values(Dataset[Any]):
    """The examples 0.0, 1.0, …, by index."""

    def __init__(self, examples: int) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return self.examples

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


class Stream(IterableDataset[Any]):
    """The same in a row; it `shards` itself among workers, or gives all of them in each."""

    def __init__(self, examples: int, *, shards: bool = True, promised: int | None = None) -> None:
        self.examples, self.shards = examples, shards
        self.promised = examples if promised is None else promised

    def __len__(self) -> int:
        return self.promised

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = 0, 1
        if info is not None and self.shards:
            first, step = info.id, info.num_workers
        for index in range(first, self.examples, step):
            yield torch.tensor([float(index)])


class NotSharded(Stream):
    """Reads which worker it is in, and gives all examples nevertheless."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        offset = 0.0 if info is None else 100.0 * info.id
        for index in range(self.examples):
            yield torch.tensor([index + offset])


class HalfStream(Stream):
    """The share of a rank."""

    def __init__(self, examples: int, rank: int, world: int) -> None:
        super().__init__(examples)
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return len(range(self.rank, self.examples, self.world))

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(self.rank, self.examples, self.world):
            yield torch.tensor([float(index)])


def made(
    data: Any, split: str = "val", rank: int = 0, world: int = 1, say: Any = None, **section: Any
) -> Source:
    """Return the source of a split out of a dataset, as a run makes it."""
    described = LoaderSection.model_validate({"batch_size": 4, **section})
    settings = context(rank=rank, world=world, say=say or (lambda text, level: None))
    key = f"data.{split}.loader"
    training = split == "train"
    parts = loader_parts(
        described, key, SourceMap("test"), TOY.parent, settings, public=described, training=training
    )
    return as_source(data, HERE, settings, parts, evaluates=not training)


def batches_of(source: Source) -> list[Any]:
    """Return the batches of an epoch, each with how many examples
    it is said to have on this rank.
    """
    sizes = BatchSizes(source, None, "val", say=print)
    batches = []
    for index, batch in enumerate(source.epoch(0)):
        values = batch.flatten().tolist()
        assert sizes.local(index, batch) == len(values)
        batches.append(values)
    close(source)
    return batches


def mean_over(ranks: list[list[Any]]) -> float:
    """Return the mean of a validation over ranks, each with batches of its own,
    as the runner computes it.
    """
    shares = []
    for batches in ranks:
        means = WeightedMeans(exact=True)
        for values in batches:
            means.add({"loss": torch.tensor(values).mean()}, len(values))
        means.over_ranks(lambda mine: [shares.append(mine) or mine])
    return WeightedMeans(exact=True).over_ranks(lambda mine: shares)["loss"]


def assert_each_once(ranks: list[list[Any]], examples: int) -> None:
    assert len({len(batches) for batches in ranks}) == 1, "the ranks wait for one another"
    seen = Counter(value for batches in ranks for values in batches for value in values)
    assert seen == Counter(map(float, range(examples)))
    assert mean_over(ranks) == pytest.approx((examples - 1) / 2)


KINDS = {
    "by index": (Values, {}),
    "on the device": (Values, {"on_device": True}),
    "by a sampler": (Values, {"sampler": "./data_loaders.py:backwards"}),
    "a stream": (Stream, {}),
}


@pytest.mark.parametrize("kind", KINDS)
@given(
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from(["val", "val.ood", "test"]),
)
def test_each_example_counts_once_without_workers(
    kind: str, examples: int, world: int, size: int, split: str
) -> None:
    data, section = KINDS[kind]
    assume(examples >= world)
    options = {"batch_size": size * world, **section}
    sources = [made(data(examples), split, rank, world, **options) for rank in range(world)]
    ranks = [batches_of(source) for source in sources]
    assert_each_once(ranks, examples)
    assert all(len(source) == len(batches) for source, batches in zip(sources, ranks, strict=True))


@pytest.mark.parametrize("shards", [True, False])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(("examples", "world", "size"), [(7, 1, 4), (7, 2, 4), (26, 3, 6)])
def test_each_example_of_a_stream_counts_once_with_workers(
    examples: int, world: int, size: int, workers: int, shards: bool
) -> None:
    said: list[str] = []
    sources = [
        made(
            Stream(examples, shards=shards),
            "val",
            rank,
            world,
            say=lambda text, level: said.append(text),
            batch_size=size,
            workers=workers,
        )
        for rank in range(world)
    ]
    ranks = [batches_of(source) for source in sources]
    assert_each_once(ranks, examples)
    assert all(len(source) == len(batches) for source, batches in zip(sources, ranks, strict=True))
    is_divided = [text for text in said if "does not take the share of its worker" in text]
    assert len(is_divided) == (world if workers > 1 and not shards else 0)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_each_example_by_index_counts_once_with_workers(workers: int) -> None:
    ranks = [batches_of(made(Values(23), "val", rank, 2, workers=workers)) for rank in (0, 1)]
    assert_each_once(ranks, 23)


@pytest.mark.parametrize("shards", [True, False])
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_an_epoch_of_training_is_a_pass_over_the_stream(workers: int, shards: bool) -> None:
    source = made(Stream(22, shards=shards), "train", workers=workers)
    for epoch in range(2):
        seen = Counter(value for batch in source.epoch(epoch) for value in batch.flatten().tolist())
        assert seen == Counter(map(float, range(22)))
    close(source)


def test_a_part_of_a_worker_that_is_too_small_for_the_ranks_is_refused() -> None:
    """Of 5 examples, each of 3 workers has 2 at most; 3 ranks cannot share them."""
    source = made(Stream(5), "val", 0, 3, batch_size=3, workers=3)
    with pytest.raises(UserError, match="has 2 examples, and each of the 3 ranks needs one"):
        batches_of(source)


def test_workers_that_give_the_same_stream_are_refused_in_an_evaluation_and_said_in_training() -> (
    None
):
    with pytest.raises(UserError, match="has 8 examples, and gave 16 in one pass of 2 workers"):
        batches_of(made(NotSharded(8), "val", workers=2))
    said: list[str] = []
    source = made(NotSharded(8), "train", workers=2, say=lambda text, level: said.append(text))
    for epoch in range(3):
        list(source.epoch(epoch))
    close(source)
    assert len(said) == 1 and "gave 16 in one pass of 2 workers" in said[0]


def test_workers_that_begin_with_the_same_batch_are_said_at_once() -> None:
    said: list[str] = []
    plain = made(SameStart(8), "train", workers=2, say=lambda text, level: said.append(text))
    list(plain.epoch(0))
    close(plain)
    assert len(said) == 1 and "begins with the same batch" in said[0]


class Range(Stream):
    """A range of numbers, which `split_among_workers` cuts into one for each worker."""

    def __init__(self, examples: int) -> None:
        super().__init__(examples)
        self.begin, self.end = 0, examples

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([float(index)]) for index in range(self.begin, self.end))


def split_among_workers(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    data: Any = info.dataset
    size = -(-data.examples // info.num_workers)
    data.begin, data.end = worker * size, min(data.examples, (worker + 1) * size)


def test_a_function_that_begins_a_worker_gets_the_user_s_own_dataset() -> None:
    begins = "../runner/test_each_example_once.py:split_among_workers"
    assert_each_once([batches_of(made(Range(23), "val", workers=2, worker_init_fn=begins))], 23)


class SameStart(Stream):
    """Asks for its worker in vain."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        assert info is None or info.id < info.num_workers
        self.shards = False
        return super().__iter__()


@pytest.mark.parametrize("promised", [6, 9])
@pytest.mark.parametrize("split", ["train", "val"])
def test_a_stream_of_another_length_than_it_says_is_said(split: str, promised: int) -> None:
    said: list[str] = []
    source = made(
        Stream(8, promised=promised), split, batch_size=2, say=lambda text, level: said.append(text)
    )
    seen = Counter(
        value
        for epoch in range(3)
        for batch in source.epoch(epoch)
        for value in batch.flatten().tolist()
    )
    assert len(said) == 1
    assert f"has {promised} examples, and gave 8 " in said[0]
    if split == "val":
        assert seen == Counter({float(k): 3 for k in range(8)})


def test_an_evaluation_does_not_begin_a_stream_again() -> None:
    assert_each_once([batches_of(made(Stream(10), "val", batches=5))], 10)
    assert batches_of(made(Stream(10), "val", batches=2)) == [
        [0.0, 1.0, 2.0, 3.0],
        [4.0, 5.0, 6.0, 7.0],
    ]


def own_share(data: Any, rank: int, world: int, **keys: Any) -> Source:
    """Return the source of validation data that take rank and world."""
    settings = context(rank=rank, world=world)
    if isinstance(data, DataLoader):
        return as_source(data, HERE, settings, shards_itself=True, evaluates=True)
    described = LoaderSection.model_validate({"batch_size": 4, **keys})
    place = SourceMap("test")
    parts = loader_parts(
        described, "data.val.loader", place, TOY.parent, settings, public=described, training=False
    )
    return as_source(data, HERE, settings, parts, shards_itself=True, evaluates=True)


def test_shares_of_the_data_s_own_give_what_they_have_promised_or_are_refused() -> None:
    ranks = [batches_of(own_share(HalfStream(15, rank, 2), rank, 2)) for rank in (0, 1)]
    assert_each_once(ranks, 15)
    liar = HalfStream(15, 0, 2)
    liar.examples = 9
    liar.__class__ = type("Liar", (HalfStream,), {"__len__": lambda self: 8})
    with pytest.raises(UserError, match="promised 4 batches on this rank, and gave 3"):
        batches_of(own_share(liar, 0, 2))
    liar.examples = 30
    with pytest.raises(UserError, match="promised 4 batches on this rank, and gave more than 4"):
        batches_of(own_share(liar, 0, 2))


class WithGenerators(Stream):
    """Adds noise of its own generators, and one of a dataset within it."""

    def __init__(self, examples: int, kind: str) -> None:
        super().__init__(examples)
        self.kind = kind
        self.python = random.Random(0)
        self.numpy = np.random.default_rng(0)
        self.legacy = np.random.RandomState(0)
        self.torch = torch.Generator().manual_seed(0)

    def noise(self) -> float:
        if self.kind == "torch":
            return float(torch.rand(1, generator=self.torch))
        return float(getattr(self, self.kind).random())

    def __iter__(self) -> Iterator[torch.Tensor]:
        for example in super().__iter__():
            yield example + self.noise()


class Around(IterableDataset[Any]):
    def __init__(self, inner: Stream) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.inner)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["python", "numpy", "legacy", "torch"])
def test_generators_of_a_stream_go_on_after_a_resume(kind: str, workers: int) -> None:
    def stream() -> Any:
        return made(Around(WithGenerators(20, kind)), "train", workers=workers)

    whole, cut, again = stream(), stream(), stream()
    expected = [batch.flatten().tolist() for epoch in range(2) for batch in whole.epoch(epoch)]
    close(whole)
    position = 7
    first, second = divmod(position, len(cut))
    walk = (batch for epoch in range(2) for batch in cut.epoch(epoch))
    for _ in range(position):
        next(walk)
    state = cut.state_dict()
    close(cut)
    again.load_state_dict(state)
    rest = [batch.flatten().tolist() for batch in again.epoch(first, second)]
    close(again)
    assert rest == expected[position:]


def shuffled(persistent: bool) -> Any:
    return DataLoader(
        Values(32),
        batch_size=4,
        shuffle=True,
        num_workers=2,
        persistent_workers=persistent,
        generator=torch.Generator().manual_seed(3),
        multiprocessing_context="fork",
    )


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("position", [3, 8, 11, 16, 21])
def test_an_own_loader_with_workers_goes_on_where_it_was(persistent: bool, position: int) -> None:
    whole, cut, again = (as_source(shuffled(persistent), HERE, context()) for _ in range(3))
    expected = [batch.flatten().tolist() for epoch in range(3) for batch in whole.epoch(epoch)]
    for begin, end in pairwise(range(0, 25, 8)):
        assert sorted(value for batch in expected[begin:end] for value in batch) == list(
            map(float, range(32))
        )
    walk = (batch for epoch in range(3) for batch in cut.epoch(epoch))
    assert [next(walk).flatten().tolist() for _ in range(position)] == expected[:position]
    epoch, index = divmod(position, 8)
    if index == 0:  # the end of an epoch, and not yet the next
        epoch, index = epoch, 0
    again.load_state_dict(cut.state_dict())
    rest = [batch.flatten().tolist() for batch in again.epoch(epoch, index)]
    rest += [batch.flatten().tolist() for k in range(epoch + 1, 3) for batch in again.epoch(k)]
    assert rest == expected[position:]


def test_an_own_loader_whose_workers_give_the_same_stream_is_said() -> None:
    for count, words in ((2, "two workers begin with the same batch"), (1, "")):
        said: list[str] = []
        loader = DataLoader(
            Stream(8, shards=False), batch_size=4, num_workers=count, multiprocessing_context="fork"
        )
        source = as_source(
            loader, HERE, context(say=lambda text, level, said=said: said.append(text))
        )
        epoch = source.epoch(0)
        for _ in range(2):
            next(epoch)
        assert len(said) == bool(words)
        assert not words or words in said[0]


def test_a_distributed_sampler_s_padding_is_no_validation() -> None:
    """It repeats examples so that every rank has as many: of 7 on 2 ranks, one counts twice."""
    for examples, kept in ((8, True), (7, False)):
        data = Values(examples)
        sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=False)
        loader = DataLoader(data, batch_size=2, sampler=sampler)
        if kept:
            assert isinstance(own_share(loader, 0, 2), OverLoader)
            continue
        with pytest.raises(UserError, match="repeats 1 of 7 examples"):
            own_share(loader, 0, 2)
