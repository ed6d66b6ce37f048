"""How many examples a batch has: what says it counts, and where nothing does, nobody guesses."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from hookflow.errors import UserError, Where
from hookflow.events.rundir import RunDir
from hookflow.runner.data.batch_size import BatchSizes, size_of
from hookflow.runner.data.source import Batches, as_source
from hookflow.runner.data.workers import no_loader_warnings
from hookflow.runner.loop.evaluation import Means
from tests.conftest import TESTS, Trained, messages, records
from tests.detection import EveryNth, Images, collate
from tests.loaders import context
from tests.runner.same import curve

Pair = namedtuple("Pair", "inputs target")
FIVE, ONE = torch.zeros(5, 2), torch.zeros(1, 2)
IMAGES = [torch.zeros(3, 4, 4)] * 8
BY_HAND = 'data.%s={use="./detection.py:%s"}'


@pytest.fixture
def detected(trained: Trained) -> Trained:
    """Train a new run of detection.toml."""
    return partial(trained, pipeline=TESTS / "detection.toml")


def sizes_told(run_dir: RunDir) -> list[int]:
    return [int(text.removeprefix("size ")) for text in messages(run_dir) if text.startswith("size ")]


def alike(one: RunDir, other: RunDir, *names: str) -> None:
    first, second = ({key: value for key, value in curve(run).items() if key[-1] in names} for run in (one, other))
    assert first
    assert second == pytest.approx(first, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (FIVE, 5),
        ((FIVE, ["a"] * 7), 5),
        ([FIVE, torch.zeros(5)], 5),
        (Pair(FIVE, FIVE), 5),
        (UserDict(a=FIVE, b=3), 5),
        ({"names": ["x"] * 3, "inner": {"a": FIVE}}, 5),
        ((torch.tensor(1.0), {"a": FIVE}), 5),
        (range(5), 5),
        ([{"boxes": torch.zeros(2, 4), "labels": torch.zeros(2)}] * 3, None),
        (IMAGES, None),
        ((FIVE, ONE), None),
        ([FIVE, torch.zeros(4)], None),
        ((IMAGES, [FIVE] * 8), None),
        (((FIVE,), (FIVE,)), None),
        ({"images": IMAGES, "inner": ({"a": FIVE},)}, None),
        (torch.tensor(1.0), None),
        (object(), None),
        (None, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_tensors_say(batch: Any, size: int | None) -> None:
    assert size_of(batch) == size


class Says:
    def __init__(self, **says: Any) -> None:
        for name, size in says.items():
            setattr(self, name, lambda at, size=size: size)


def sizes(source: Any = None, task: Any = None, **options: Any) -> BatchSizes:
    return BatchSizes(source, task, "train", say=lambda text, level: None, **options)


def test_the_task_says_it_before_the_source_and_that_before_the_tensors() -> None:
    task, source = Says(batch_size=2), Says(batch_size=3, global_batch_size=7)
    assert sizes(source, task).local(0, FIVE) == 2
    assert sizes(source).local(0, FIVE) == 3
    assert sizes(Says(global_batch_size=7)).local(0, IMAGES) == 7
    assert sizes(Says()).local(0, FIVE) == 5
    assert sizes(object(), object()).local(0, IMAGES) is None
    assert sizes(SimpleNamespace(batch_size=64)).local(0, FIVE) == 5, "a number, and no method"


def test_the_examples_of_all_ranks_are_those_that_the_source_says_or_are_added_up() -> None:
    both = Says(batch_size=3, global_batch_size=7)
    two = {"world": 2, "gather": lambda mine: [mine, 4]}
    assert sizes(both).total(0, FIVE) == 3
    assert sizes(both, **two).total(0, FIVE) == 7
    assert sizes(Says(batch_size=3), **two).total(0, FIVE) == 7
    assert sizes(Says(), **two).total(0, FIVE) == 9
    assert sizes(both, Says(batch_size=2), **two).total(0, FIVE) == 6, "a task may count something else"


@pytest.mark.parametrize(
    "options", [{"world": 2, "gather": lambda mine: [mine, 4]}, {"accumulate": 2}], ids=["ranks", "groups"]
)
def test_where_it_must_be_known_and_nobody_does_that_is_an_error(options: dict[str, Any]) -> None:
    for ask in (sizes(**options).local, sizes(**options).total):
        with pytest.raises(UserError, match="nothing says how many examples a batch of the train data has") as raised:
            ask(0, IMAGES)
        hint = raised.value.problems[0].hint
        assert "batch_size(batch)" in hint and "batch_size(index)" in hint and "loader" in hint
    assert sizes(**options).local(0, FIVE) == 5


def test_a_method_that_cannot_be_called_as_it_will_be_is_told_before_the_training() -> None:
    class Own:
        def batch_size(self) -> int:
            raise AssertionError("nobody calls this")

    for source, task, call in ((Own(), None, "index"), (None, Own(), "batch")):
        with pytest.raises(UserError, match=rf"Own.batch_size must take the {call}.*batch_size\({call}\)"):
            sizes(source, task)


def test_means_are_over_examples_or_over_batches_and_never_over_both() -> None:
    known, mixed = Means(exact=False), Means(exact=False)
    for value, size in ((1.0, 3), (5.0, 1)):
        known.add({"loss": value}, size)
        mixed.add({"loss": value}, size if size == 3 else None)
    assert known.over_ranks(lambda mine: [mine]) == {"loss": 2.0}
    assert mixed.over_ranks(lambda mine: [mine]) == {"loss": 3.0}


def stateful(**options: Any) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    with no_loader_warnings():
        return StatefulDataLoader(Images(23), collate_fn=collate, **options)


def plain(**options: Any) -> DataLoader[Any]:
    return DataLoader(Images(23), collate_fn=collate, **options)


@pytest.mark.parametrize("make", [plain, stateful])
@pytest.mark.parametrize(
    "options",
    [{"batch_size": 5}, {"batch_size": 5, "drop_last": True}, {"batch_size": 23}, {"batch_size": 50}, {}],
    ids=str,
)
def test_a_loader_of_ones_own_is_known_by_its_sampler(make: Callable[..., Any], options: dict[str, Any]) -> None:
    source: Any = as_source(make(**options), Where("test"), context())
    result = [(source.batch_size(k), source.global_batch_size(k)) for k, _ in enumerate(source.epoch(0))]
    assert result == [(len(images), len(images)) for images, _ in source.epoch(0)]


def test_a_distributed_sampler_gives_every_rank_as_many() -> None:
    def sizes_of(sampler: Any, world: int) -> tuple[list[int], list[int] | None]:
        source: Any = Batches(plain(batch_size=5, sampler=sampler), context(world=world))
        everywhere = source.global_batch_size
        return (
            [source.batch_size(k) for k in range(len(source))],
            [everywhere(k) for k in range(len(source))] if everywhere else None,
        )

    assert sizes_of(DistributedSampler(Images(23), num_replicas=2, rank=1), 2) == ([5, 5, 2], [10, 10, 4])
    assert sizes_of(EveryNth(23, 1, 2), 2) == ([5, 5, 1], None), "the other rank has one more"


@pytest.mark.parametrize("options", [{"batch_sampler": [[0, 1, 2], [3]]}, {"batch_size": None}], ids=str)
def test_of_batches_of_any_size_a_loader_says_nothing(options: dict[str, Any]) -> None:
    source: Any = Batches(plain(**options), context())
    assert source.batch_size is source.global_batch_size is None


COUNTS = 'task.use="./detection.py:Counts"'
KNOWN = {
    "a loader": [],
    "a loader of its own": [BY_HAND % ("train", "own_loader")],
    "a source that says its own": [BY_HAND % ("train", "SaysItsOwn")],
    "a source that says both": [BY_HAND % ("train", "SaysBoth")],
    "a task": [BY_HAND % ("train", "Silent"), COUNTS],
}


@pytest.mark.parametrize("kind", KNOWN)
def test_lists_are_counted_by_who_knows(detected: Trained, kind: str) -> None:
    run_dir = detected(*KNOWN[kind])
    assert sizes_told(run_dir) == [10, 10, 10, 10, 3] * 2
    assert not [text for text in messages(run_dir) if "how many examples" in text]


@pytest.mark.parametrize("kind", ["a loader", "a task"])
def test_accumulated_lists_are_one_big_batch(detected: Trained, kind: str) -> None:
    """Of the smaller last batch, too."""
    accumulated, big = detected(*KNOWN[kind], "run.accumulate=3"), detected("data.train.loader.batch_size=30")
    assert sizes_told(accumulated) == [30, 13] * 2
    alike(big, accumulated, "loss", "grad_norm")


def test_a_mean_over_lists_is_one_over_examples(detected: Trained) -> None:
    small, one = detected(), detected("data.val.loader.batch_size=23")
    alike(one, small, "loss")


def test_where_nobody_knows_batches_count_alike_and_nothing_is_made_up(detected: Trained) -> None:
    unknown = detected(*(BY_HAND % (split, "Silent") for split in ("train", "val")))
    assert sizes_told(unknown) == [0] * 10
    told = [text for text in messages(unknown) if "how many examples" in text]
    assert ["train" in told[0], "val" in told[1], len(told)] == [True, True, 2]
    known = detected()
    logged = [{name for record in records(run_dir, "scalars") for name in record["v"]} for run_dir in (unknown, known)]  # type: ignore[attr-defined]
    assert ["samples_per_s" in names for names in logged] == [False, True]


def test_a_batch_in_the_place_of_another(detected: Trained) -> None:
    trims = 'hooks.trims={use="./detection.py:Trims", before=["tells?"]}'
    unsaid, said = detected(trims), detected(trims, 'task.use="./detection.py:Counts"')
    assert sizes_told(unsaid) == [10, 10, 10, 10, 3] * 2, "nothing says otherwise"
    assert sizes_told(said) == [9, 9, 9, 9, 2] * 2
