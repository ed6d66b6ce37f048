"""Whether two runs came to the same end: to the bit."""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.store import CheckpointStore, read
from tests.conftest import records

MEASURED = {"samples_per_s", "tokens_per_s", "mfu", "memory/rss"}
"""What the clock or the machine has said, and not the training."""


def final_state(run_dir: RunDir) -> dict[str, object]:
    return read(CheckpointStore(run_dir.checkpoints).names()["last"])


def curve(run_dir: RunDir) -> dict[tuple[int, object, str], float]:
    """Return what was logged and measured, by place and name;
    what was logged again after a resume counts.
    """
    logged = {
        (record["it"], record.get("split"), name): value
        for record in records(run_dir)
        if record["k"] in ("scalars", "metrics")
        for name, value in record["v"].items()  # type: ignore[attr-defined]
    }
    return {key: value for key, value in logged.items() if key[2] not in MEASURED}


def logged(run_dir: RunDir, name: str) -> dict[int, float]:
    """Return what was logged by a name, by iteration:
    numbers of offloaded hooks come among later ones.
    """
    numbers = {
        it: value
        for (it, split, of), value in curve(run_dir).items()
        if of == name and split is None
    }
    return dict(sorted(numbers.items()))


def assert_same(one: object, other: object, at: str = "state") -> None:
    """Compare two states to the bit."""
    assert type(one) is type(other), at
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), at  # type: ignore[arg-type]
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), at  # type: ignore[attr-defined]
        for key in one:
            assert_same(one[key], other[key], f"{at}.{key}")  # type: ignore[index]
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), at  # type: ignore[arg-type]
        for k, (a, b) in enumerate(zip(one, other, strict=True)):  # type: ignore[call-overload]
            assert_same(a, b, f"{at}.{k}")
    else:
        assert one == other or (one != one and other != other), at  # NaN, say


def assert_same_end(one: RunDir, other: RunDir) -> None:
    """Compare all that two runs have logged, measured and saved last."""
    assert_same(curve(one), curve(other))
    assert_same(final_state(one), final_state(other))


def rest_of(run_dir: RunDir, saved: int, folder: Path, train: Callable[..., int]) -> RunDir:
    """Train a copy of a finished run to its end again, from the checkpoint of an iteration."""
    copy = RunDir(Path(shutil.copytree(run_dir.path, folder, symlinks=True)))
    for path in CheckpointStore(copy.checkpoints).all():
        if int(path.name.removeprefix("it")) > saved:
            shutil.rmtree(path)
    assert train(copy, resume=True) == 0, records(copy, "error")
    assert any(record["resumed_from"] == f"it{saved:08d}" for record in records(copy, "run"))
    return copy


def assert_each_once(run_dir: RunDir, name: str, until: int) -> None:
    """Look whether a number that is logged at each iteration stands once for each, up to iteration
    `until`.

    What an attempt has logged after the checkpoint that a later one resumes from does not stand any
    more.
    """
    standing: list[int] = []
    for record in records(run_dir):
        if record["k"] == "run":
            begin = record["it"]
            standing = [it for it in standing if it <= begin]  # type: ignore[operator]
        elif record["k"] == "scalars" and name in record["v"]:  # type: ignore[operator]
            standing.append(record["it"])  # type: ignore[arg-type]
    assert standing == list(range(1, until + 1))
