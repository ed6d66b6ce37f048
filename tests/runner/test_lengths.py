"""How long runs are and when they validate; and the settings of `[run]` that change how they compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hookflow.events.rundir import RunDir
from tests.conftest import Train, Trained, records

TRACER = 'hooks.tracer={use="./watchers.py:Tracer", phase="last", args={file="%s"}}'


def validations(run_dir: RunDir) -> list[object]:
    return [record["it"] for record in records(run_dir, "metrics")]


@pytest.mark.parametrize(
    ("length", "val_every", "iterations", "validated"),
    [
        ("max_epochs = 4", 3, 20, [15, 20]),
        ("max_iters = 12", 5, 12, [5, 10, 12]),
        ("max_iters = 10", 5, 10, [5, 10]),
    ],
)
def test_when_it_ends_and_validates(
    trained: Trained, length: str, val_every: int, iterations: int, validated: list[int]
) -> None:
    run_dir = trained(f"run.val_every={val_every}", swap=("max_epochs = 3", length))
    (end,) = records(run_dir, "end")
    assert (end["it"], end["ep"]) == (iterations, iterations // 5)
    assert validations(run_dir) == validated


def test_an_epoch_that_is_cut_by_the_end_is_left_and_not_counted_and_a_resumed_run_is_inside_of_it(
    trained: Trained, train_here: Train, tmp_path: Path
) -> None:
    trace, marks = tmp_path / "trace", tmp_path / "marks"
    around = f'hooks.around={{use="./watchers.py:Around", args={{file="{marks}"}}}}'
    each = 'hooks.checkpoint.points=["after_train_iter"]'
    run_dir = trained(TRACER % trace, around, each, swap=("max_epochs = 3", "max_iters = 7"))
    points = [line.split()[0] for line in trace.read_text().splitlines()]
    assert (points.count("before_train_epoch"), points.count("after_train_epoch")) == (2, 1)
    assert marks.read_text().split() == ["entered", "left", "entered", "left"]
    assert points.index("after_train") > points.index("after_train_epoch")
    run_dir.pipeline.write_text(run_dir.pipeline.read_text().replace("max_iters = 7", "max_iters = 10"))
    marks.unlink()
    trace.unlink()
    assert train_here(run_dir, resume=True) == 0
    assert marks.read_text().split() == ["entered", "left"]
    points = [line.split()[0] for line in trace.read_text().splitlines()]
    assert (points.count("before_train_epoch"), points.count("after_train_epoch")) == (0, 1)


def test_there_need_be_no_validation(trained: Trained) -> None:
    text = '[data.val]\nuse = "./toy.py:Points"\nargs = { split = 1, examples = 16 }\n'
    run_dir = trained(swap=(text, ""))
    assert validations(run_dir) == []
    assert records(run_dir, "checkpoint")[-1]["it"] == 15


def test_the_number_of_threads(trained: Trained) -> None:
    before = torch.get_num_threads()
    run_dir = trained(f"run.threads={before + 1}", "run.device='cpu'", "run.max_epochs=1")
    assert records(run_dir, "run")[0]["device"] == f"cpu ({before + 1} threads)"
    assert torch.get_num_threads() == before, "it is put back"


def test_pictures_with_the_channels_last(trained: Trained) -> None:
    seen = 'hooks.seen={use="./watchers.py:SeesLayout"}'
    off = [f"hooks.{name}.enabled=false" for name in ("accuracy", "early_stop", "checkpoint")]
    data = [f'data.{split}={{use="./loaders.py:images"}}' for split in ("train", "val")]
    net = 'model={use="./loaders.py:ConvNet"}'
    run_dir = trained(seen, *off, *data, net, "run.channels_last=true", "run.max_epochs=1")
    assert {record["text"] for record in records(run_dir, "message")} == {"batch True, weights True"}
