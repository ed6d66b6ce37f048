"""However a run ends in order, its last iteration is saved and goes by `last`; and of which iteration metrics are."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.manifest import read_manifest
from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import Train, Trained, messages, records
from tests.runner.test_resume import EVERY_3, strikes

SHORT = "data.train.args={examples=24}"
STOPS = 'hooks.stops={use="./steerers.py:Steers", args={call="stop", point="after_backward", at=3}, writes=["control"]}'


def last(run_dir: RunDir) -> int:
    return int(read_manifest(CheckpointStore(run_dir.checkpoints).names()["last"])["it"])


@pytest.mark.parametrize(
    ("length", "overrides", "its"),
    [
        ("max_iters = 5", [SHORT], 5),
        ("max_iters = 2", [], 2),
        ("max_epochs = 3", [SHORT, 'hooks.checkpoint.points=[{at="after_train_epoch", every="2ep"}]'], 9),
        ("max_epochs = 3", ["hooks.checkpoint.points=['after_val']", "hooks.checkpoint.args={keep=1}"], 15),
        ("max_epochs = 3", [STOPS], 4),
        ("max_epochs = 2", ["hooks.checkpoint.points=['on_exception']"], 10),
        ("max_iters = 1", ["hooks.checkpoint.points=['on_exception']"], 1),
    ],
    ids=["a cut epoch", "less than one", "every other one", "never otherwise", "stopped", "on exception alone", "one"],
)
def test_a_run_that_ends_in_order_has_its_last_iteration(
    trained: Trained, train_here: Train, length: str, overrides: list[str], its: int
) -> None:
    run_dir = trained(*overrides, swap=("max_epochs = 3", length))
    assert records(run_dir, "end")[-1]["it"] == last(run_dir) == its
    assert records(run_dir, "checkpoint")[-1]["names"].count("last") == 1  # type: ignore[attr-defined]
    assert train_here(run_dir, resume=True) == 0
    assert f"resumed from it{its:08d}: iteration {its}" in " ".join(messages(run_dir))
    if its != 4:  # one that a hook has stopped may go on
        assert any("nothing is left to do" in text for text in messages(run_dir))
    assert records(run_dir, "end")[-1]["it"] == (15 if its == 4 else its)


def test_nothing_is_saved_where_nobody_saves(trained: Trained) -> None:
    assert not trained("hooks.checkpoint.enabled=false", "run.max_epochs=1").checkpoints.exists()


def test_nothing_is_saved_before_the_first_iteration(trained: Trained) -> None:
    run_dir = trained(STOPS.replace('point="after_backward", at=3', 'point="before_train", at=0'))
    assert records(run_dir, "end")[-1]["it"] == 0
    assert not run_dir.checkpoints.exists()


def test_last_is_never_older_than_another_one(trained: Trained) -> None:
    """The last validation is the best, and what it saves is newer than what the epoch had saved."""
    run_dir = trained(
        "run.val_every=4", 'hooks.checkpoint.points=["after_val"]', swap=("max_epochs = 3", "max_iters = 8")
    )
    names = CheckpointStore(run_dir.checkpoints).names()
    assert names["last"].name >= names["best"].name
    for record in records(run_dir, "checkpoint"):
        assert record["names"].count("last") == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("val_every", "expected"), [([], {3: 3, 6: 6, 9: 9}), (["run.val_every=5"], {5: 5, 6: 5, 9: 9})]
)
def test_a_checkpoint_says_of_which_iteration_its_metrics_are(
    trained: Trained, val_every: list[str], expected: dict[int, int]
) -> None:
    keep = "hooks.checkpoint.args.keep=9"
    run_dir = trained(EVERY_3, keep, *val_every, swap=("max_epochs = 3", "max_iters = 9"))
    manifests = map(read_manifest, CheckpointStore(run_dir.checkpoints).all())
    result = {manifest["it"]: manifest["metrics_it"] for manifest in manifests if manifest["metrics"]}
    assert {it: at for it, at in result.items() if it in expected} == expected


def test_keep_counts_after_a_signal_too(trained: Trained, tmp_path: Path) -> None:
    run_dir = trained(
        "hooks.checkpoint.args={keep=1}", *strikes(tmp_path, signal.SIGTERM, ("after_backward", 7)), code=143
    )
    (left,) = CheckpointStore(run_dir.checkpoints).all()
    assert left.name == "it00000008"


def test_a_pass_that_was_cut_short_is_entered_again_when_it_goes_on(
    trained: Trained, train_here: Train, tmp_path: Path
) -> None:
    """The run ends in the middle of an epoch, of which it saves the last iteration after it has left it."""
    marks = tmp_path / "around"
    around = f'hooks.around={{use="./watchers.py:Around", args={{file="{marks}"}}}}'
    run_dir = trained(around, swap=("max_epochs = 3", "max_iters = 7"))
    assert marks.read_text().split() == ["entered", "left"] * 2
    run_dir.pipeline.write_text(run_dir.pipeline.read_text().replace("max_iters = 7", "max_iters = 10"))
    assert train_here(run_dir, resume=True) == 0
    assert marks.read_text().split() == ["entered", "left"] * 3
