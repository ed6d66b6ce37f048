"""A run that was killed and resumed ends like the run that was left alone: to the bit."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch

from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint import CheckpointStore, read
from hookflow.runner.launch import start
from tests.conftest import NewRun, records, wait_for

SLOW = 'hooks.slow={use="./watchers.py:slow", points=["after_backward"]}'


def final_state(run_dir: RunDir) -> dict[str, object]:
    return read(CheckpointStore(run_dir.checkpoints).names()["last"], torch.device("cpu"))


def curve(run_dir: RunDir) -> dict[tuple[int, str], float]:
    """Return what was logged, by iteration and name; what was logged again after a resume counts."""
    logged = {
        (record["it"], name): value
        for record in records(run_dir, "scalars")
        for name, value in record["v"].items()  # type: ignore[attr-defined]
    }
    return {key: value for key, value in logged.items() if key[1] != "samples_per_s"}  # type: ignore[misc]


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
        assert one == other, at


@pytest.mark.parametrize(
    ("length", "overrides"),
    [
        pytest.param("max_epochs = 25", [], id="epochs"),
        pytest.param(
            "max_iters = 123",
            [
                "run.val_every=7",
                'hooks.checkpoint.points=[{at="after_train_iter", every=3}, "after_val", "after_save_checkpoint"]',
            ],
            id="iterations",
        ),
    ],
)
def test_killed_at_random_moments_and_resumed(new_run: NewRun, length: str, overrides: list[str]) -> None:
    swap = ("max_epochs = 3", length)
    alone = new_run(*overrides, swap=swap)
    assert start(alone).wait() == 0
    killed = new_run(*overrides, SLOW, swap=swap)
    dice = random.Random(1)
    kills = 0
    child = start(killed)
    while kills < 3:
        before = len(records(killed, "checkpoint"))
        wait_for(lambda n=before, c=child: len(records(killed, "checkpoint")) > n or c.poll() is not None)
        time.sleep(dice.random() * 0.3)
        if child.poll() is not None:
            break
        child.kill()
        child.wait()
        kills += 1
        child = start(killed, resume=True)
    assert child.wait() == 0
    assert kills == 3
    one, other = final_state(alone), final_state(killed)
    del one["triggers"], other["triggers"]
    assert_same(one, other)
    assert curve(alone) == curve(killed)


def test_interrupted_in_the_middle_of_an_epoch_and_resumed(new_run: NewRun) -> None:
    alone = new_run("run.max_epochs=6")
    assert start(alone).wait() == 0
    broken = new_run("run.max_epochs=6", SLOW)
    child = start(broken)
    wait_for(lambda: any(r["k"] == "frame" and r["it"] >= 7 for r in records(broken)))
    child.terminate()
    assert child.wait() == 143
    (end,) = records(broken, "end")
    assert (end["status"], end["exit"]) == ("interrupted", 143)
    assert start(broken, resume=True).wait() == 0
    assert_same(final_state(alone), final_state(broken))
    assert curve(alone) == curve(broken)


def test_a_damaged_checkpoint_is_named_and_passed_over(new_run: NewRun) -> None:
    run_dir = new_run("run.max_epochs=4")
    assert start(run_dir).wait() == 0
    newest, older = CheckpointStore(run_dir.checkpoints).all()[:2]
    damaged = newest / "model.pt"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    assert start(run_dir, resume=True).wait() == 0
    said = [str(r["text"]) for r in records(run_dir, "message")]
    assert any(f"{newest.name} is damaged" in text for text in said)
    assert any(f"resumed from {older.name}" in text for text in said)


def test_the_store_names_only_what_stands(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    for it in (1, 2, 3):
        store.save({"model": {"w": torch.ones(2) * it}}, ["last"] if it != 2 else ["last", "best"], {"it": it})
    store.prune(keep=1)
    assert [path.name for path in store.all()] == ["it00000003", "it00000002"]
    assert {name: path.name for name, path in store.names().items()} == {"last": "it00000003", "best": "it00000002"}
    (store.all()[0] / "manifest.json").unlink()
    store.prune(keep=1)
    assert len(store.all()) == 2, "nothing is removed while the newest does not read back"
