"""How many examples a batch has, and how many batches a run takes."""

from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from hookflow.errors import UserError, Where
from hookflow.events.rundir import RunDir
from hookflow.pipeline.values import compute_num_batches
from hookflow.runner.data.batches import BatchSizes, data_info, size_of
from hookflow.runner.data.source import Batches, LimitedSource, RepeatedSource, as_source
from hookflow.runner.data.workers import no_loader_warnings
from hookflow.runner.loop.evaluation import WeightedMeans
from tests.cli.conftest import invoke
from tests.conftest import (
    TESTS,
    TOY,
    NewRun,
    Trained,
    hookflow,
    hookflow_here,
    messages,
    records,
    refusal,
)
from tests.support.common_hooks import Writes
from tests.support.data_loaders import context
from tests.support.detection import EveryNth, Images, collate
from tests.support.overrides import BY_HAND
from tests.support.run_results import alike

Pair = namedtuple("Pair", "inputs target")
FIVE, ONE = torch.zeros(5, 2), torch.zeros(1, 2)
IMAGES = [torch.zeros(3, 4, 4)] * 8


class NotesBatches(Writes):
    """Writes down each batch of training and validation by the numbers in it."""

    def before_train_iter(self, batch: Any) -> None:
        self.write(f"train {batch[0].tolist()}")

    def before_val_iter(self, batch: Any) -> None:
        self.write(f"val {batch[0].tolist()}")


@pytest.fixture
def detected(trained: Trained) -> Trained:
    """Train a new run of detection.toml."""
    return partial(trained, pipeline=TESTS / "support" / "detection.toml")


def sizes_told(run_dir: RunDir) -> list[int]:
    return [
        int(text.removeprefix("size ")) for text in messages(run_dir) if text.startswith("size ")
    ]


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


def test_the_task_says_it_before_the_source_before_the_tensors_and_of_all_ranks_their_sum() -> None:
    task, source = Says(batch_size=2), Says(batch_size=3, global_batch_size=7)
    assert sizes(source, task).local(0, FIVE) == 2
    assert sizes(source).local(0, FIVE) == 3
    assert sizes(Says(global_batch_size=7)).local(0, IMAGES) == 7
    assert sizes(Says()).local(0, FIVE) == 5
    assert sizes(object(), object()).local(0, IMAGES) is None
    assert sizes(SimpleNamespace(batch_size=64)).local(0, FIVE) == 5, "a number, and no method"
    both = Says(batch_size=3, global_batch_size=7)
    two = {"world": 2, "gather": lambda mine: [mine, 4]}
    assert sizes(both).total(0, FIVE) == 3
    assert sizes(both, **two).total(0, FIVE) == 7
    assert sizes(Says(batch_size=3), **two).total(0, FIVE) == 7
    assert sizes(Says(), **two).total(0, FIVE) == 9
    assert sizes(both, Says(batch_size=2), **two).total(0, FIVE) == 6, (
        "a task may count something else"
    )


@pytest.mark.parametrize(
    "options",
    [{"world": 2, "gather": lambda mine: [mine, 4]}, {"accumulate": 2}],
    ids=["ranks", "groups"],
)
def test_where_it_must_be_known_and_nobody_does_that_is_an_error(options: dict[str, Any]) -> None:
    for ask in (sizes(**options).local, sizes(**options).total):
        with pytest.raises(
            UserError, match="nothing says how many examples a batch of the train data has"
        ) as raised:
            ask(0, IMAGES)
        hint = raised.value.problems[0].hint
        assert "batch_size(batch)" in hint and "batch_size(index)" in hint and "loader" in hint
    assert sizes(**options).local(0, FIVE) == 5


def test_a_method_that_cannot_be_called_as_it_will_be_is_told_before_the_training() -> None:
    class Own:
        def batch_size(self) -> int:
            raise AssertionError("nobody calls this")

    for source, task, call in ((Own(), None, "index"), (None, Own(), "batch")):
        with pytest.raises(
            UserError, match=rf"Own.batch_size must take the {call}.*batch_size\({call}\)"
        ):
            sizes(source, task)


def test_means_are_over_examples_or_over_batches_and_never_over_both() -> None:
    known, mixed = WeightedMeans(exact=False), WeightedMeans(exact=False)
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
    [
        {"batch_size": 5},
        {"batch_size": 5, "drop_last": True},
        {"batch_size": 23},
        {"batch_size": 50},
        {},
    ],
    ids=str,
)
def test_a_loader_of_ones_own_is_known_by_its_sampler(
    make: Callable[..., Any], options: dict[str, Any]
) -> None:
    source: Any = as_source(make(**options), Where("test"), context())
    result = [
        (source.batch_size(k), source.global_batch_size(k)) for k, _ in enumerate(source.epoch(0))
    ]
    assert result == [(len(images), len(images)) for images, _ in source.epoch(0)]


def test_a_distributed_sampler_gives_every_rank_as_many() -> None:
    def sizes_of(sampler: Any, world: int) -> tuple[list[int], list[int] | None]:
        source: Any = Batches(plain(batch_size=5, sampler=sampler), context(world=world))
        everywhere = source.global_batch_size
        return (
            [source.batch_size(k) for k in range(len(source))],
            [everywhere(k) for k in range(len(source))] if everywhere else None,
        )

    assert sizes_of(DistributedSampler(Images(23), num_replicas=2, rank=1), 2) == (
        [5, 5, 2],
        [10, 10, 4],
    )
    assert sizes_of(EveryNth(23, 1, 2), 2) == ([5, 5, 1], None), "the other rank has one more"


@pytest.mark.parametrize(
    "options", [{"batch_sampler": [[0, 1, 2], [3]]}, {"batch_size": None}], ids=str
)
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
    accumulated, big = (
        detected(*KNOWN[kind], "run.accumulate=3"),
        detected("data.train.loader.batch_size=30"),
    )
    assert sizes_told(accumulated) == [30, 13] * 2
    alike(big, accumulated, "loss", "grad_norm")


def test_a_mean_over_lists_is_one_over_examples_or_over_batches_where_nobody_knows(
    detected: Trained,
) -> None:
    small, one = detected(), detected("data.val.loader.batch_size=23")
    alike(one, small, "loss")
    unknown = detected(*(BY_HAND % (split, "Silent") for split in ("train", "val")))
    assert sizes_told(unknown) == [0] * 10
    told = [text for text in messages(unknown) if "how many examples" in text]
    assert ["train" in told[0], "val" in told[1], len(told)] == [True, True, 2]
    logged = [
        {name for record in records(run_dir, "scalars") for name in record["v"]}
        for run_dir in (unknown, small)
    ]  # type: ignore[attr-defined]
    assert ["samples_per_s" in names for names in logged] == [False, True]


def test_a_batch_in_the_place_of_another(detected: Trained) -> None:
    trims = 'hooks.trims={use="./detection.py:Trims", before=["tells?"]}'
    unsaid, said = detected(trims), detected(trims, 'task.use="./detection.py:Counts"')
    assert sizes_told(unsaid) == [10, 10, 10, 10, 3] * 2, "nothing says otherwise"
    assert sizes_told(said) == [9, 9, 9, 9, 2] * 2


@pytest.mark.parametrize(
    ("limit", "batches", "left"),
    [(3, 5, 3), (9, 5, 5), ("0.1%", 49, 1), ("10%", 49, 4), ("100%", 7, 7), ("30%", 10, 3)],
)
def test_a_limit_is_a_number_of_batches_or_a_share_of_them(
    limit: int | str, batches: int, left: int
) -> None:
    assert compute_num_batches(limit, batches) == left


@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "0.1", "true", "'120%'", "'3ep'", "'some'"])
def test_anything_else_is_refused_with_its_place(limit: str) -> None:
    assert refusal(f"run.limit_train={limit}").where == Where(f"--set run.limit_train={limit}")


@pytest.mark.parametrize("key", ["limit_train", "limit_val"])
def test_overfit_and_a_limit_are_two_words_for_one_thing(key: str) -> None:
    assert f"takes the place of {key}" in refusal("run.overfit=2", f"run.{key}=2").message


def test_an_epoch_has_so_many_batches_everywhere_but_no_more_than_there_are(
    trained: Trained,
) -> None:
    """The training data have 5 batches, validation and test 2 each."""
    run_dir = trained(
        "run.limit_train=60%", "run.limit_val=1", 'run.limit_test="50%"', "run.test=true"
    )
    (run,) = records(run_dir, "run")
    data: Any = run["data"]
    assert {split: info["batches"] for split, info in data.items()} == {
        "train": 3,
        "val": 1,
        "test": 1,
    }
    assert {split: info["examples"] for split, info in data.items()} == {
        "train": 24,
        "val": 8,
        "test": 8,
    }
    assert run["limited"] == {"train": 5, "val": 2, "test": 2}
    assert (run["iters_per_epoch"], run["max_iters"]) == (3, 9)
    assert [(r["it"], r["ep"]) for r in records(run_dir, "epoch")] == [(3, 1), (6, 2), (9, 3)]
    assert records(run_dir, "end")[0]["it"] == 9
    assert any(text.startswith("run.limit_train: 3 of 5 ") for text in messages(run_dir))
    (run,) = records(trained("run.limit_train=5", "run.limit_val='100%'"), "run")
    assert (run["limited"], run["max_iters"]) == ({}, 15)


LOADER = (
    (
        'data.train={use="./data_loaders.py:Clouds", args={examples=40}, loader={batch_size=8,'
        " shuffle=true, workers=%d}}"
    ),
    "run.limit_train=3",
)


@pytest.mark.parametrize(
    ("data", "point"),
    [
        pytest.param(("run.limit_train=3",), "after_backward", id="a source of one's own"),
        pytest.param((LOADER[0] % 2, LOADER[1]), "after_backward", id="a loader with workers"),
        pytest.param(
            (LOADER[0] % 0, LOADER[1]), "after_train_epoch", id="a loader, between epochs"
        ),
        pytest.param(
            ('data.train={use="./data_loaders.py:with_generator"}', "run.limit_train=2"),
            "after_backward",
            id="batches",
        ),
        pytest.param(("run.limit_train=3", "run.accumulate=2"), "after_backward", id="accumulated"),
        pytest.param(("run.overfit=2",), "after_backward", id="overfit"),
    ],
)
def test_a_resumed_run_is_the_run_that_was_left_alone(
    resumes_alike: NewRun, data: tuple[str, ...], point: str
) -> None:
    resumes_alike(*data, point=point, at=3)


class Counted:
    """A source that knows the size of the batch that it has given last."""

    info = data_info([], examples=0, batches=4, batch_size=0, note="as told")

    def __init__(self) -> None:
        self.given: list[tuple[int, int]] = []
        self.closed = False

    def __len__(self) -> int:
        return 4

    def epoch(self, epoch: int, start: int = 0) -> Iterator[torch.Tensor]:
        for index in range(start, 4):
            self.given.append((epoch, index))
            yield torch.full((index + 1,), float(epoch))

    def batch_size(self, index: int) -> int:
        assert index == self.given[-1][1], (
            "it is asked about another batch than the one that it has given"
        )
        return index + 1

    def close(self) -> None:
        self.closed = True


def test_limited_and_repeated_sources_are_what_they_were() -> None:
    source = Counted()
    limited = LimitedSource(source, 3, "run.limit_val")  # type: ignore[arg-type]
    assert [len(batch) for batch in limited.epoch(1, 1)] == [2, 3]
    assert source.given == [(1, 1), (1, 2)], "no batch is fetched that is not used"
    assert [*limited.epoch(1, 3)] == []
    assert limited.batch_size(2) == 3
    assert limited.info["note"] == "run.limit_val: 3 of 4 batches; as told"
    assert not hasattr(limited, "state_dict")
    assert not hasattr(limited, "global_batch_size")
    source = Counted()
    repeated = RepeatedSource(source, 2, "run.overfit", 0)  # type: ignore[arg-type]
    assert source.given == [(0, 0), (0, 1)]
    assert source.closed
    for epoch in range(3):
        for index, batch in enumerate(repeated.epoch(epoch)):
            assert (len(batch), repeated.batch_size(index)) == (index + 1, index + 1)
            assert not batch.any()
            batch.fill_(7)  # as a task may
    assert [len(batch) for batch in repeated.epoch(5, 1)] == [2]
    assert not hasattr(repeated, "close")


def test_a_share_of_the_batches_is_overfitted(trained: Trained) -> None:
    run_dir = trained('run.overfit="40%"')
    assert records(run_dir, "run")[0]["iters_per_epoch"] == 2
    assert [text for text in messages(run_dir, "warn") if "on the same 2 of 5 batches" in text]


def test_a_training_without_validation_does_not_build_its_data(trained: Trained) -> None:
    """`hookflow val` has them all the same."""

    run_dir = trained("run.val_every=0", "run.val_at_start=true", "hooks.early_stop.enabled=false")
    assert not records(run_dir, "metrics")
    assert [*records(run_dir, "run")[0]["data"]] == ["train"]  # type: ignore[index]
    assert '"loss"' in invoke("val", run_dir.checkpoints / "last", "--format", "json")


def test_one_of_several_validation_sets_is_left_out(trained: Trained) -> None:
    own = '{use="./toy.py:Points", args={split=1, examples=16}'
    sets = f"data.val={{near={own}}}, far={own}, val_every=0}}}}"
    run_dir = trained(
        sets, "run.val_every=2", "hooks.early_stop.enabled=false", "hooks.checkpoint.args={}"
    )
    names = {name for record in records(run_dir, "metrics") for name in record["v"]}  # type: ignore[attr-defined]
    assert names == {"near/loss", "near/accuracy"}


def test_overfitting_goes_on_and_on_over_the_same_batches(trained: Trained, tmp_path: Path) -> None:
    batches = (
        f'hooks.seen={{use="tests.runner.test_batch_size:NotesBatches",'
        f' args={{file="{tmp_path / "seen"}"}}}}'
    )
    run_dir = trained(LOADER[0] % 0, "run.overfit=2", batches)
    seen = (tmp_path / "seen").read_text().splitlines()
    trained = [line.removeprefix("train ") for line in seen if line.startswith("train ")]
    validated = [line.removeprefix("val ") for line in seen if line.startswith("val ")]
    assert len(set(trained)) == 2
    assert trained == validated == trained[:2] * 3
    assert any("unshuffled and unaugmented" in text for text in messages(run_dir))


def test_a_stream_goes_on_where_the_shorter_epoch_ended(trained: Trained, tmp_path: Path) -> None:
    batches = (
        f'hooks.seen={{use="tests.runner.test_batch_size:NotesBatches",'
        f' args={{file="{tmp_path / "seen"}"}}}}'
    )
    stream = (
        'data.train={use="./data_loaders.py:Numbers", args={examples=96}, loader={batch_size=8}}'
    )
    trained(stream, "run.limit_train=2", batches)
    seen = [
        line for line in (tmp_path / "seen").read_text().splitlines() if line.startswith("train ")
    ]
    assert len(seen) == len(set(seen)) == 6


def test_it_is_said_by_check_and_by_every_face_of_a_run(tmp_path: Path) -> None:
    checked = hookflow_here("check", str(TOY), "--set", "run.limit_train=2", cwd=tmp_path)
    assert "run.limit_train = 2" in checked.stdout
    done = hookflow("run", str(TOY), "--overfit", "1", "--ui", "plain", cwd=tmp_path, code=0)
    assert "LIMITED data (train 1 of 5 batches, val 1 of 5 batches)" in done.stdout


def test_what_is_assigned_to_a_limited_source_is_its_source_s() -> None:
    source: Any = Counted()
    limited: Any = LimitedSource(source, 2, "run.limit_train")
    limited.difficulty = 3
    assert (source.difficulty, limited.difficulty) == (3, 3)
    assert len(limited) == 2
    limited.batch_size = lambda index: 7
    assert source.batch_size(0) == 7


def test_the_size_of_a_limited_source_of_hookflow_cannot_be_set() -> None:
    limited: Any = LimitedSource(
        as_source([FIVE, FIVE], Where("p.toml"), context()), 1, "run.limit_train"
    )
    with pytest.raises(UserError, match="batch_size of a data source cannot be set"):
        limited.batch_size = 256


def test_nothing_is_assigned_to_batches_that_are_kept() -> None:
    repeated: Any = RepeatedSource(Counted(), 2, "run.overfit", 0)
    with pytest.raises(
        UserError, match=r"difficulty of the training data cannot be set: run\.overfit keeps"
    ):
        repeated.difficulty = 3


@pytest.mark.parametrize("owner", ["source", "task"])
def test_a_method_that_tells_sizes_is_the_one_that_its_object_has_now(owner: str) -> None:
    class Task:
        def batch_size(self, batch: torch.Tensor) -> int:
            return 5

    source: Any = Counted()
    task: Any = Task() if owner == "task" else None
    sizes = BatchSizes(source, task, "train", say=print)
    source.given.append((0, 3))
    assert sizes.local(3, FIVE) == (5 if task else 4)
    changed = task or source
    changed.batch_size = lambda index: 9
    assert sizes.local(3, FIVE) == 9
    changed.batch_size = 256
    with pytest.raises(UserError, match=f"batch_size of {type(changed).__name__} cannot be set"):
        sizes.local(3, FIVE)
