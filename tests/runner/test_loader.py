"""Datasets that are none of ours, loaded here: the same bits,
whatever the workers and wherever it begins.
"""

import multiprocessing
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain
from math import ceil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from hookflow.errors import UserError
from hookflow.runner.data.batches import DataContext, _has_objects, prefetch
from hookflow.runner.data.loader import Loader, OnDevice, may_draw
from hookflow.runner.data.loader_parts import BatchSampler
from hookflow.runner.data.source import Batches, Source, as_source, close
from hookflow.runner.device.random_state import generator_states, random_state, seed_everything
from tests.runner.same import assert_same
from tests.support.data_loaders import (
    Buckets,
    Every,
    Images,
    Numbers,
    context,
    dataset,
    with_sampler,
)
from tests.support.data_sources import HERE, source

CPU = torch.device("cpu")
PADDED = {"use": "./data_loaders.py:padded"}
BUCKETS = {"batch_size": None, "batch_sampler": "./data_loaders.py:Buckets"}


def divides(examples: list[Any]) -> Any:
    return len(examples) / 0


def names(examples: list[Any]) -> Any:
    return ["a name" for _ in examples]


def mean(examples: list[Any]) -> Any:
    return torch.stack([inputs for inputs, _ in examples]).mean(0)


class Fewer(Every):
    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data) - self.epoch))


def beyond(data: Any) -> list[int]:
    return [0, len(data)]


def in_batches(data: Any) -> list[list[int]]:
    return [[0, 1], [2, 3]]


class Shorter(Buckets):
    """A batch less in each epoch."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1]] * (4 - self.epoch))


def numbers_of_batches(data: Any) -> list[Any]:
    return [[0], 1]


def an_empty_batch(data: Any) -> list[list[int]]:
    return [[0], []]


def beyond_in_batches(data: Any) -> list[list[int]]:
    return [[0], [len(data)]]


def single_batches(data: Any) -> list[list[int]]:
    return [[k] for k in range(9)]


def epoch(of: Source, number: int = 0, start: int = 0) -> list[Any]:
    return list(of.epoch(number, start))


@pytest.fixture
def closing() -> Iterator[Callable[[Source], Source]]:
    """Close what was opened, and see that no process is left."""
    opened: list[Source] = []

    def keep(of: Source) -> Source:
        opened.append(of)
        return of

    yield keep
    for of in opened:
        close(of)
    assert not multiprocessing.active_children()


def test_workers_fetch_as_many_batches_ahead_as_the_pipeline_says(
    closing: Callable[[Source], Source],
) -> None:
    made: Any = closing(source(Images(), workers=1, prefetch_factor=3))
    assert made.loader.prefetch_factor == 3
    with pytest.raises(ValidationError, match="prefetch_factor is of workers, and workers is 0"):
        source(Images(), prefetch_factor=3)


def test_the_number_of_workers_changes_no_bit(closing: Callable[[Source], Source]) -> None:
    """The random numbers of the dataset are drawn anew for each batch."""
    alone, one, more = (
        closing(source(Images(), workers=workers, drop_last=True)) for workers in (0, 1, 2)
    )
    for number in (0, 1):
        expected = epoch(alone, number)
        assert len(expected) == 6
        assert_same(epoch(one, number), expected)
        assert_same(epoch(more, number), expected)
    assert not torch.equal(epoch(alone, 0)[0]["inputs"], epoch(alone, 1)[0]["inputs"])


class Noisy(Images):
    """Keeps generators of its own: one, and one in a transform."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)
        self.transforms = [SimpleNamespace(draws=random.Random(0))]


@pytest.mark.parametrize(
    "made", [Noisy(), Subset(Noisy(), range(8))], ids=["itself", "a subset of it"]
)
def test_generators_of_which_each_worker_has_a_copy_are_named(made: Any) -> None:
    def warnings(**section: Any) -> list[str]:
        said: list[tuple[str, ...]] = []
        source(made, say=lambda *line: said.append(line), **section)
        return [line[0] for line in said if "generators of its own" in line[0]]

    (warning,) = warnings(workers=2)
    assert "rng" in warning and "transforms.0.draws" in warning
    assert len(warnings(workers=1)) == 1
    assert warnings() == [], "here the change is seen, and named at the first checkpoint"
    assert warnings(workers=2, worker_init_fn="./data_loaders.py:begins") == []


def test_generators_of_a_loader_of_ones_own_are_named_too() -> None:
    said: list[tuple[str, ...]] = []
    as_source(
        DataLoader(Noisy(), num_workers=2), HERE, context(say=lambda *line: said.append(line))
    )
    assert any("rng" in line[0] for line in said)


def test_it_begins_anywhere_after_it_was_left_anywhere(closing: Callable[[Source], Source]) -> None:
    whole = epoch(source(Images()), 3)
    again = closing(source(Images(), workers=2))
    left = again.epoch(0)
    next(left)
    assert_same(epoch(again, 3, start=5), whole[5:])


def test_the_trainings_own_generators_are_left_alone() -> None:
    before = random_state(CPU)
    epoch(source(Images(), sampler="./data_loaders.py:weighted", shuffle=False))
    source(Images(), on_device=True)
    after = random_state(CPU)
    assert torch.equal(before.pop("numpy")[1], after.pop("numpy")[1])
    assert_same(before, after)


def test_each_batch_rank_and_seed_has_draws_of_its_own() -> None:
    sources = (
        source(Images()),
        source(Images(), seed=6),
        *(source(Images(), rank=rank, world=2) for rank in (0, 1)),
    )
    drawn = [
        torch.cat([batch["noise"] for batch in epoch(of)]).flatten().tolist() for of in sources
    ]
    for numbers in (drawn[0], drawn[1], drawn[2] + drawn[3]):
        assert len(set(numbers)) == len(numbers)
    assert not {*drawn[0]} & {*drawn[1]}


sizes = st.integers(1, 40)
orders = st.builds(
    dict,
    examples=sizes,
    batch_size=st.integers(1, 12),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)


def batches_of(sampler: BatchSampler, epoch: int) -> list[list[int]]:
    return [batch.tolist() for batch in sampler.batches(epoch)]


@given(orders, st.integers(0, 5))
def test_an_epoch_takes_every_example_once(said: dict[str, Any], number: int) -> None:
    sampler = BatchSampler(**said)
    taken = [index for batch in batches_of(sampler, number) for index in batch]
    whole = said["examples"] // said["batch_size"] * said["batch_size"]
    assert len(taken) == len(set(taken)) == (whole if said["drop_last"] else said["examples"])
    assert all(0 <= index < said["examples"] for index in taken)
    assert all(len(batch) == said["batch_size"] for batch in batches_of(sampler, number)[:-1])
    assert batches_of(BatchSampler(**said), number) == batches_of(sampler, number)


@pytest.mark.parametrize("on_device", [False, True])
def test_an_epoch_may_have_fewer_batches_than_the_dataset(on_device: bool) -> None:
    few = source(dataset(), batch_size=7, batches=2, on_device=on_device)
    whole = source(dataset(), batch_size=7, on_device=on_device)
    assert len(few) == few.info["batches"] == 2
    for mine, theirs in zip(epoch(few), epoch(whole)[:2], strict=True):
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(UserError, match="has 4 batches, and not 5"):
        source(dataset(), batch_size=7, batches=5, on_device=on_device)


@given(orders, st.integers(1, 4), st.integers(0, 5))
def test_ranks_share_every_batch_of_one_alone(
    said: dict[str, Any], world: int, number: int
) -> None:
    said["batch_size"] += world - 1
    said["examples"] += world - 1
    samplers = [BatchSampler(**said, rank=rank, world=world) for rank in range(world)]
    shares = [batches_of(sampler, number) for sampler in samplers]
    expected = batches_of(BatchSampler(**said), number)
    if not said["drop_last"] and len(expected) > 1 and len(expected[-1]) < world:
        expected[-2:] = [expected[-2] + expected[-1]]
    assert {len(share) for share in shares} == {len(expected)}
    for index, batch in enumerate(expected):
        parts = [share[index] for share in shares]
        sizes = {len(part) for part in parts}
        assert max(sizes) - min(sizes) <= 1 <= min(sizes)
        assert [part[k] for k in range(max(sizes)) for part in parts if k < len(part)] == batch
        assert [sampler.batch_size(index) for sampler in samplers] == [len(part) for part in parts]
        assert {sampler.global_batch_size(index) for sampler in samplers} == {len(batch)}


@given(orders, st.data())
def test_the_tail_of_an_epoch_is_what_it_would_have_been(
    said: dict[str, Any], data: st.DataObject
) -> None:
    examples = said.pop("examples")
    seed = said.pop("seed")
    made = Images(examples)
    if said["drop_last"] and examples < said["batch_size"]:
        return
    of = source(made, seed=seed, **said)
    start = data.draw(st.integers(0, len(of)))
    assert_same(epoch(of, 2, start), epoch(source(made, seed=seed, **said), 2)[start:])


def test_batches_are_collated_as_the_pipeline_says_and_may_be_given_at_once() -> None:
    first, *_ = epoch(
        source(dataset(), collate={"use": "./data_loaders.py:padded", "args": {"width": 6}})
    )
    assert first["inputs"].shape == (4, 6)
    first, *_ = epoch(
        source(dataset(), collate={"use": "./data_loaders.py:Padded", "args": {"width": 7}})
    )
    assert first["inputs"].shape == (4, 7)
    first, *_ = epoch(source(AtOnce(), shuffle=False))
    assert first.tolist() == [0, -1, -2, -3]


@pytest.mark.parametrize(
    "section", [{}, {"workers": 1}, {"on_device": True}], ids=["here", "worker", "on the device"]
)
def test_an_example_of_another_shape_is_named(
    closing: Callable[[Source], Source], section: dict[str, Any]
) -> None:
    with pytest.raises(
        ValueError,
        match=r"\[data.train\]: example 6 has shape \(5,\), and example \d shape \(4,\): they",
    ):
        epoch(closing(source(OddOne(), shuffle=False, **section)))


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (
            [0, 1, None, 0],
            r"example 2 has the types Tensor, NoneType, and example 0 the types Tensor, int: they",
        ),
        ([None] * 4, r"example 0 has the types Tensor, NoneType: it makes no batch"),
    ],
)
def test_an_example_of_a_type_that_makes_no_batch_is_named(
    targets: list[int | None], said: str
) -> None:
    examples: Any = [(torch.zeros(2), target) for target in targets]
    with pytest.raises(ValueError, match=rf"\[data.train\]: {said}"):
        epoch(source(Subset(examples, range(4)), shuffle=False))


def test_a_stream_names_the_example_too_and_an_error_of_collate_the_examples_of_its_batch() -> None:
    class Streamed(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return map(OddOne().__getitem__, range(8))

    with pytest.raises(
        ValueError,
        match=r"\[data.train\]: example 6 has shape \(5,\), and example 4 shape \(4,\): they",
    ):
        epoch(source(Streamed(), batches=2))
    for data, order in ((Streamed(), {}), (Subset(dataset(), range(8)), {"shuffle": False})):
        with pytest.raises(ZeroDivisionError) as raised:
            epoch(source(data, batches=2, collate="tests.runner.test_loader:divides", **order))
        assert raised.value.__notes__ == [
            "raised by collate of [data.train], for the examples 0, 1, 2, 3"
        ]


class OddOne:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.ones(5 if index == 6 else 4), index


class AtOnce:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        raise AssertionError("one by one")

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [-index for index in indices]


def test_a_sampler_says_the_order_is_told_seed_and_epoch_and_may_not_give_less_later() -> None:
    of = source(dataset(), sampler="./data_loaders.py:Every")
    assert of.info["examples"] == 12
    seen = [[target.tolist() for _, target in epoch(of, number)] for number in (0, 1)]
    assert seen == [
        [[1, 2, 0, 1], [2, 0, 1, 2], [0, 1, 2, 0]],
        [[2, 0, 1, 2], [0, 1, 2, 0], [1, 2, 0, 1]],
    ]
    assert len(epoch(of, 1, start=1)) == 2
    of = source(dataset(), sampler="tests.runner.test_loader:Fewer")
    assert len(epoch(of)) == 6
    with pytest.raises(UserError, match="gave 24 indices in epoch 0, and 23 in epoch 1"):
        epoch(of, 1)


class AtRandom:
    def __init__(self, data: Subset[Any]) -> None:
        self.data = data

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randint(len(self.data), (8,)).tolist())


@pytest.mark.parametrize("sampler", ["", f"{__file__}:AtRandom"], ids=["shuffled", "sampler"])
def test_examples_that_a_hook_adds_are_drawn_by_a_sampler_and_a_warning_says_so(
    sampler: str,
) -> None:
    lines: list[str] = []
    pool = Subset(torch.arange(80), range(8))  # type: ignore[arg-type]
    of = source(
        pool,
        say=lambda text, level: lines.append(text),
        **({"sampler": sampler} if sampler else {}),
    )
    epoch(of)
    pool.indices = range(80)
    drawn = [batch for number in (1, 2) for batch in epoch(of, number)]
    keeps = "80 examples now, and 8 as the run began: an epoch keeps that length"
    assert lines == (
        [] if sampler else [f"Subset has {keeps}. Let a sampler draw as many from all"]
    )
    assert bool((torch.cat(drawn) >= 8).any()) == bool(sampler)


def test_batches_that_are_added_are_warned_of() -> None:
    lines: list[str] = []
    of = Batches(
        batches := [torch.ones(2)] * 2, context(say=lambda text, level: lines.append(text))
    )
    batches.append(torch.ones(2))
    epoch(of)
    assert [line.partition(":")[0] for line in lines] == [
        "list has 3 batches now, and 2 as the run began"
    ]


@pytest.mark.parametrize(
    ("section", "said", "hint"),
    [
        (
            {"sampler": "tests.runner.test_loader:beyond"},
            "gave the index 24, and the dataset has 24 examples",
            "from 0 to 23",
        ),
        (
            {"sampler": "tests.runner.test_loader:in_batches"},
            "gave a list where an index is needed",
            "one index at a time",
        ),
        (
            {"collate": "./data_loaders.py:WIDTH"},
            'collate must be a function or a class, and "./data_loaders.py:WIDTH"',
            "",
        ),
        (
            {"collate": "./data_loaders.py:paded"},
            'there is no "paded" in ./data_loaders.py',
            'did you mean "padded"?',
        ),
        (
            {"collate": PADDED | {"args": {"widht": 3}}},
            'collate takes no argument "widht"',
            'did you mean "width"?',
        ),
        (
            {"augment": "tests.runner.test_loader:mean"},
            "augment is called with a batch and a generator, and",
            "",
        ),
        (
            {"on_device": True, "collate": "tests.runner.test_loader:names"},
            "on_device needs tensors with a row for each of",
            "",
        ),
        (
            {"on_device": True, "collate": "tests.runner.test_loader:mean"},
            "collate makes a tensor of shape (4,)",
            "",
        ),
        (
            BUCKETS | {"batch_sampler": "tests.runner.test_loader:numbers_of_batches"},
            "the batch_sampler gave a int where a list of indices is needed",
            "`sampler` gives indices",
        ),
        (
            BUCKETS | {"batch_sampler": "tests.runner.test_loader:an_empty_batch"},
            "gave an empty batch in epoch 0",
            "",
        ),
        (
            BUCKETS | {"batch_sampler": "tests.runner.test_loader:beyond_in_batches"},
            "the batch_sampler gave the index 24",
            "to 23",
        ),
        (
            BUCKETS | {"batch_sampler": "tests.runner.test_loader:Shorter"},
            "the batch_sampler gave 4 batches in epoch 0, and 3 in epoch 1",
            "let `batches` be as many as the shortest has",
        ),
        (
            BUCKETS | {"batch_sampler": "tests.runner.test_loader:single_batches", "world": 2},
            "the last batch of epoch 0 cannot be sharded across 2 ranks: each needs an example",
            "leave it out: batches = 4",
        ),
        (
            BUCKETS | {"batches": 7},
            "an epoch of this dataset has 6 batches, and not 7",
            "leave it out",
        ),
        (
            {"batch_size": 25, "drop_last": True},
            "the dataset yields no batches",
            "fewer than a batch of 25",
        ),
        (
            {"batch_size": 2, "world": 3},
            "batches of 2 cannot be sharded across 3 ranks",
            "of all of them together",
        ),
        ({"batch_size": 25, "world": 25}, "24 examples cannot be sharded across 25 ranks", ""),
    ],
)
def test_mistakes_are_told(section: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(UserError) as raised:
        source(dataset(), **section)
    (problem,) = raised.value.problems
    assert said in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"on_device": True}], ids=str)
def test_a_batch_sampler_makes_pytorchs_batches(
    closing: Callable[[Source], Source], options: dict[str, Any]
) -> None:
    data, sampler = dataset(30), Buckets(dataset(30), seed=5)
    of: Any = closing(source(data, **BUCKETS, **options))
    assert (len(of), of.info["examples"], of.info["batch_size"]) == (8, 30, 0)
    assert of.info["note"].startswith("batches of 2 to 6 examples")
    for number in (1, 0, 2):
        sampler.set_epoch(number)
        expected = [tuple(batch) for batch in DataLoader(data, batch_sampler=sampler)]
        for start in (0, 4):
            seen = [
                (tuple(batch), of.batch_size(k))
                for k, batch in enumerate(of.epoch(number, start), start)
            ]
            assert_same([batch for batch, _ in seen], expected[start:])
            assert [size for _, size in seen] == [len(batch[1]) for batch in expected[start:]]
        assert [len(indices) for indices in of.indices(number)] == of.global_batch_sizes(number)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(2, 4), st.integers(0, 3))
def test_ranks_have_whole_batches_of_a_batch_sampler(
    sizes: list[int], world: int, number: int
) -> None:
    sampler, drawn = Buckets(dataset(30), 5, tuple(sizes)), {}
    for each in (0, 1, number):
        sampler.set_epoch(each)
        drawn[each] = [*sampler]
    batches = min(ceil(len(each) / world) for each in drawn.values())
    for last in (each[(batches - 1) * world : batches * world] for each in drawn.values()):
        shared = [len(range(k, world, len(last))) for k in range(len(last))]
        assume(all(len(batch) >= ranks for batch, ranks in zip(last, shared, strict=True)))
    named = {"use": "./data_loaders.py:Buckets", "args": {"sizes": sizes}}
    section = BUCKETS | {"batch_sampler": named, "batches": batches}
    ranks: list[Any] = [
        source(dataset(30), rank=rank, world=world, **section) for rank in range(world)
    ]
    shares = [[batch.tolist() for batch in of.indices(number)] for of in ranks]
    for of in ranks:
        list(of.epoch(number))
    assert {len(share) for share in shares} == {len(ranks[0])}
    for index in range(len(ranks[0])):
        parts, whole = (
            [share[index] for share in shares],
            drawn[number][index * world : (index + 1) * world],
        )
        assert all(parts)
        assert sorted(chain(*parts)) == sorted(chain(*whole))
        assert parts == whole or len(whole) < world
        assert all(any({*part} <= {*batch} for batch in whole) for part in parts), (
            "no rank mixes two batches"
        )
        for of in ranks:
            assert of.global_batch_size(index) == sum(map(len, parts))
        assert [of.batch_size(index) for of in ranks] == [len(part) for part in parts]


def test_what_gives_batches_needs_no_loader_and_what_gives_examples_does() -> None:
    for made in ([1, 2], torch.utils.data.DataLoader(dataset(), batch_size=2)):
        with pytest.raises(UserError, match="is no dataset: it needs no loader"):
            source(made)
    with pytest.raises(UserError, match="gives no examples"):
        source(object())
    for made in (dataset(), torch.eye(3), np.eye(3), Images(), AtOnce()):
        with pytest.raises(UserError, match="is a dataset: add `loader`") as raised:
            as_source(made, HERE, context())
        assert "loader = { batch_size = 64, shuffle = true }" in raised.value.problems[0].hint


def test_data_on_the_device_have_the_batches_of_data_that_are_fetched() -> None:
    fetched, held = source(dataset()), source(dataset(), on_device=True)
    assert isinstance(fetched, Loader)
    assert isinstance(held, OnDevice)
    assert held.info["note"] == "0.0 MiB on cpu"
    for number in (0, 1):
        assert_same(epoch(held, number), epoch(fetched, number))
        assert_same(epoch(held, number, start=4), epoch(fetched, number)[4:])


@pytest.mark.parametrize("on_device", [False, True])
def test_batches_are_augmented_by_a_generator_of_their_own(on_device: bool) -> None:
    augment = {"use": "./data_loaders.py:noisy", "args": {"scale": 0.5}}
    of = source(dataset(), on_device=on_device, augment=augment)
    whole = epoch(of, 1)
    plain = epoch(source(dataset(), on_device=on_device), 1)
    added = torch.cat([batch[0] - before[0] for batch, before in zip(whole, plain, strict=True)])
    assert len(added.unique()) > 90
    assert_same(epoch(of, 1, start=3), whole[3:])
    assert not torch.equal(epoch(of, 2)[0][0], whole[0][0])


class Drawing(Images):
    """Images that draw numbers of each kind for themselves."""

    def __getitem__(self, index: int) -> Any:
        random.gauss(), np.random.randn(), torch.rand(1)
        return super().__getitem__(index)


@pytest.mark.parametrize(("data", "workers"), [(Drawing, 0), (Images, 2), (Drawing, 2)])
def test_a_training_draws_the_same_whatever_the_dataset_draws_and_wherever(
    data: type[Images], workers: int
) -> None:
    assert drawn_between(data(), workers) == drawn_between(Images(), 0)


def drawn_between(data: Images, workers: int) -> list[tuple[float, ...]]:
    """Return what a training draws after every other batch;
    of NumPy's pairs it leaves the second, of Python's none.
    """
    loader = source(data, workers=workers)
    seed_everything(1)
    try:
        every = enumerate(loader.epoch(0))
        return [
            (random.gauss(), float(np.random.randn()), float(torch.rand(1)))
            for k, _ in every
            if k % 2
        ]
    finally:
        close(loader)


class DrawingLate(Dataset[Any]):
    """Numbers, of which one is drawn; `fetched` counts those that were fetched in this process."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        self.draw, self.fetched = draw, 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> float:
        self.fetched += 1
        return float(self.draw()) if index == 7 else float(index)


@pytest.mark.parametrize(
    "draw", [random.random, random.gauss, np.random.randn, partial(torch.rand, ())]
)
def test_a_later_batch_that_draws_is_seeded_as_well(draw: Callable[[], Any]) -> None:
    data = DrawingLate(draw)
    here = source(data, batch_size=3, shuffle=False)
    seed_everything(1)
    before = generator_states()
    batches = [*epoch(here, 0), *epoch(here, 1)]
    assert generator_states() == before
    assert data.fetched == 2 * len(data)
    workers = source(data, batch_size=3, shuffle=False, workers=1)
    try:
        assert_same(batches, [*epoch(workers, 0), *epoch(workers, 1)])
    finally:
        close(workers)


def test_data_that_draw_nothing_are_not_seeded() -> None:
    of = TensorDataset(torch.arange(20.0))
    for data, draws in (
        (of, False),
        (Subset(of, [0, 1]), False),
        (Subset(Images(), [0, 1]), True),
        (Images(), True),
    ):
        assert may_draw(data) is draws
    seed_everything(1)
    before = generator_states()
    epoch(source(of))
    assert generator_states() == before


def test_objects_with_a_move_of_their_own_move_themselves_and_on_no_other_stream() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    kept = SimpleNamespace(to=lambda device: device)
    batch = {"text": packed, "graphs": [kept], "name": "a"}
    moved = context(device=torch.device("meta")).to_device(batch)
    assert (moved["text"].data.device.type, moved["text"].batch_sizes.device.type) == (
        "meta",
        "cpu",
    )
    assert (moved["graphs"], moved["name"]) == ([torch.device("meta")], "a")
    assert context().to_device(batch)["graphs"] == [kept], "on the CPU it is where it must be"
    assert _has_objects(batch)
    assert not _has_objects({"x": [torch.ones(1), "a"]})


def test_on_cuda_a_batch_is_handed_out_before_the_next_one_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = SimpleNamespace(record_event=lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(DataContext, "to_device", lambda self, batch: batch)
    fetched: list[int] = []
    batches = (fetched.append(k) or k for k in range(3))  # type: ignore[func-returns-value]
    moved = prefetch(batches, context(device=torch.device("cuda")))
    assert (next(moved), fetched) == (0, [0])
    assert [*moved] == [1, 2]


def test_the_parts_of_a_source_are_reachable(closing: Callable[[Source], Source]) -> None:
    made, own, numbers = Images(), with_sampler(), Numbers()
    here, kept = source(made), source(dataset(), on_device=True)
    workers, streams = closing(source(made, workers=1)), source(numbers)
    batches = as_source(own, HERE, context())
    sampled = source(made, sampler="./data_loaders.py:weighted")
    assert [each.dataset for each in (here, workers, streams, batches)] == [
        made,
        made,
        numbers,
        own.dataset,
    ]  # type: ignore[attr-defined]
    assert here.sampler.indices(0).sort().values.tolist() == list(range(26))  # type: ignore[attr-defined]
    assert isinstance(sampled.sampler, WeightedRandomSampler)  # type: ignore[attr-defined]
    assert batches.sampler is own.sampler and batches.loader is own  # type: ignore[attr-defined]
    assert here.loader is kept.loader is None and isinstance(workers.loader, DataLoader)  # type: ignore[attr-defined]
    assert as_source([torch.zeros(2, 3)], HERE, context()).dataset is None  # type: ignore[attr-defined]
