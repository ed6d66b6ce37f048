"""`run.limit_…` and `run.overfit`: a run of some batches alone, which everything that counts batches agrees with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.errors import UserError
from hookflow.pipeline.values import limited_batches
from hookflow.runner.data.base import data_info
from hookflow.runner.data.source import Limited, Repeated
from tests.conftest import TOY, NewRun, Trained, hookflow, hookflow_here, messages, records


@pytest.mark.parametrize(
    ("limit", "batches", "left"),
    [(3, 5, 3), (9, 5, 5), ("0.1%", 49, 1), ("10%", 49, 4), ("100%", 7, 7), ("30%", 10, 3)],
)
def test_a_limit_is_a_number_of_batches_or_a_share_of_them(limit: int | str, batches: int, left: int) -> None:
    assert limited_batches(limit, batches) == left


@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "0.1", "true", "'120%'", "'3ep'", "'some'"])
def test_anything_else_is_refused_with_its_place(new_run: NewRun, limit: str) -> None:
    with pytest.raises(UserError) as refused:
        new_run(f"run.limit_train={limit}")
    (problem,) = refused.value.problems
    assert problem.where is not None
    assert problem.where.source == f"--set run.limit_train={limit}"


@pytest.mark.parametrize("key", ["limit_train", "limit_val"])
def test_overfit_and_a_limit_are_two_words_for_one_thing(new_run: NewRun, key: str) -> None:
    with pytest.raises(UserError, match=f"takes the place of {key}"):
        new_run("run.overfit=2", f"run.{key}=2")


def test_an_epoch_has_so_many_batches_everywhere(trained: Trained) -> None:
    """The training data have 5 batches, validation and test 2 each."""
    run_dir = trained("run.limit_train=60%", "run.limit_val=1", 'run.limit_test="50%"', "run.test=true")
    (run,) = records(run_dir, "run")
    data: Any = run["data"]
    assert {split: info["batches"] for split, info in data.items()} == {"train": 3, "val": 1, "test": 1}
    assert {split: info["examples"] for split, info in data.items()} == {"train": 24, "val": 8, "test": 8}
    assert run["limited"] == {"train": 5, "val": 2, "test": 2}
    assert (run["iters_per_epoch"], run["max_iters"]) == (3, 9)
    assert [(r["it"], r["ep"]) for r in records(run_dir, "epoch")] == [(3, 1), (6, 2), (9, 3)]
    assert records(run_dir, "end")[0]["it"] == 9
    assert "run.limit_train: 3 of 5 batches of the training data are used" in messages(run_dir)


def test_a_limit_above_what_there_is_limits_nothing(trained: Trained) -> None:
    (run,) = records(trained("run.limit_train=5", "run.limit_val='100%'"), "run")
    assert (run["limited"], run["max_iters"]) == ({}, 15)


LOADER = (
    'data.train={use="./loaders.py:Clouds", args={examples=40}, loader={batch_size=8, shuffle=true, workers=%d}}',
    "run.limit_train=3",
)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(("run.limit_train=3",), id="a source of one's own"),
        pytest.param((LOADER[0] % 2, LOADER[1]), id="a loader with workers"),
        pytest.param(('data.train={use="./loaders.py:with_generator"}', "run.limit_train=2"), id="batches"),
        pytest.param(("run.limit_train=3", "run.accumulate=2"), id="accumulated"),
        pytest.param(("run.overfit=2",), id="overfit"),
    ],
)
def test_a_resumed_run_is_the_run_that_was_left_alone(resumes_alike: NewRun, data: tuple[str, ...]) -> None:
    resumes_alike(*data, point="after_backward", at=3)


def test_a_run_resumed_between_limited_epochs_is_the_run_that_was_left_alone(resumes_alike: NewRun) -> None:
    resumes_alike(LOADER[0] % 0, LOADER[1], point="after_train_epoch", at=1)


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
        assert index == self.given[-1][1], "it is asked about another batch than the one that it has given"
        return index + 1

    def close(self) -> None:
        self.closed = True


def test_a_limited_source_is_what_it_was_but_for_its_length() -> None:
    source = Counted()
    limited = Limited(source, 3, "run.limit_val")  # type: ignore[arg-type]
    assert [len(batch) for batch in limited.epoch(1, 1)] == [2, 3]
    assert source.given == [(1, 1), (1, 2)], "no batch is fetched that is not used"
    assert [*limited.epoch(1, 3)] == []
    assert limited.batch_size(2) == 3
    assert limited.info["note"] == "run.limit_val: 3 of 4 batches; as told"
    assert not hasattr(limited, "state_dict")
    assert not hasattr(limited, "global_batch_size")


def test_repeated_batches_are_fetched_once_and_stay_as_they_were() -> None:
    source = Counted()
    repeated = Repeated(source, 2, "run.overfit", 0)  # type: ignore[arg-type]
    assert source.given == [(0, 0), (0, 1)]
    assert source.closed
    for epoch in range(3):
        for index, batch in enumerate(repeated.epoch(epoch)):
            assert (len(batch), repeated.batch_size(index)) == (index + 1, index + 1)
            assert not batch.any()
            batch.fill_(7)  # as a task may
    assert [len(batch) for batch in repeated.epoch(5, 1)] == [2]
    assert not hasattr(repeated, "close")


def test_overfitting_goes_on_and_on_over_the_same_batches(trained: Trained, tmp_path: Path) -> None:
    batches = f'hooks.seen={{use="./watchers.py:Batches", args={{file="{tmp_path / "seen"}"}}}}'
    run_dir = trained(LOADER[0] % 0, "run.overfit=2", batches)
    seen = (tmp_path / "seen").read_text().splitlines()
    trained = [line.removeprefix("train ") for line in seen if line.startswith("train ")]
    validated = [line.removeprefix("val ") for line in seen if line.startswith("val ")]
    assert len(set(trained)) == 2
    assert trained == validated == trained[:2] * 3
    assert any("unshuffled and unaugmented" in text for text in messages(run_dir))


def test_a_stream_goes_on_where_the_shorter_epoch_ended(trained: Trained, tmp_path: Path) -> None:
    batches = f'hooks.seen={{use="./watchers.py:Batches", args={{file="{tmp_path / "seen"}"}}}}'
    stream = 'data.train={use="./loaders.py:Numbers", args={examples=96}, loader={batch_size=8}}'
    trained(stream, "run.limit_train=2", batches)
    seen = [line for line in (tmp_path / "seen").read_text().splitlines() if line.startswith("train ")]
    assert len(seen) == len(set(seen)) == 6


def test_it_is_said_by_check_and_by_every_face_of_a_run(tmp_path: Path) -> None:
    checked = hookflow_here("check", str(TOY), "--set", "run.limit_train=2", cwd=tmp_path)
    assert "run.limit_train = 2" in checked.stdout
    done = hookflow("run", str(TOY), "--overfit", "1", "--ui", "plain", cwd=tmp_path)
    assert done.returncode == 0
    assert "LIMITED data (train 1 of 5 batches, val 1 of 5 batches)" in done.stdout
