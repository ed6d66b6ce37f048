"""Eight ordering bugs of other frameworks, by hooks that declare nothing: what finds each, and what ends it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hookflow.cli.observe_report import Report
from hookflow.pipeline.load import Loaded
from hookflow.service.findings import Findings
from hookflow.service.pipelines import read_pipeline, valid_plan
from hookflow.trials.commute import Commuted, commute
from tests.conftest import TESTS

BUGS = Path(__file__).parent / "ordering_bugs"

FOUND = {
    "mmcv_689": {
        ("after_train_iter", "saver", "average"): "the file weights-1.pt",
        ("after_train_iter", "saver", "projection"): "the file weights-1.pt",
        ("after_train_iter", "average", "projection"): "model: 4 of 15 tensors",
    },
    "nequip_590": {("after_val", "saver", "average"): "the file weights-2.pt: 5 of 9 values"},
    "lightning_1464": {("after_val", "saver", "early_stop"): "the file hooks-1.pt: early_stop.best"},
    "lightning_1592": {
        ("after_val", "saver", "patience"): "the file hooks-1.pt: patience.waited",
        ("after_val", "patience", "best"): "`patience`: seen, waited",
    },
    "lightning_9950": {
        ("before_val", "pruned", "quantized"): "`pruned`: 6 of 8 values",
        ("after_val", "pruned", "quantized"): "model: 6 of 9 tensors",
    },
    "lightning_18265": {("after_train_iter", "writer", "normalization"): "the file predictions-1.pt"},
    "ignite_706": {("after_val_epoch", "logger", "accuracy"): "logged: accuracy"},
    "llm_foundry_1515": {("after_val", "exporter", "saver"): "the file weights-2.pt: 8 of 9 values"},
}
"""The pairs that make a difference in each pipeline, and what they first differ in."""

MENDED = {
    "mmcv_689": ['hooks.average.after=["projection"]', 'hooks.saver.after=["average"]'],
    "nequip_590": ['hooks.saver.after=["average"]'],
    "lightning_1464": ['hooks.saver.after=["early_stop"]'],
    "lightning_1592": ['hooks.patience.after=["best"]', 'hooks.saver.after=["patience"]'],
    "lightning_9950": [f'hooks.{name}.use="./lightning_9950.py:Encloses"' for name in ("pruned", "quantized")],
    "lightning_18265": ['hooks.writer.after=["normalization"]'],
    "ignite_706": ['hooks.logger.after=["accuracy"]'],
    "llm_foundry_1515": ['hooks.exporter.after=["saver"]'],
}
"""What each file has to say. Exits that are not reversed are mended by `around_val`, and impossible with it."""


QUICK = {"nequip_590", "lightning_1592", "lightning_9950"}


def loaded(name: str, *overrides: str) -> Loaded:
    return read_pipeline(BUGS / f"{name}.toml", overrides)


def tried(pipeline: Loaded) -> Commuted:
    return commute(pipeline, valid_plan(pipeline), BUGS, lambda *line: None)


def found_in(name: str, commuted: Commuted) -> dict[tuple[str, str, str], str]:
    return {(pair.point, *pair.hooks): str(step.difference) for step in commuted.steps for pair in step.pairs}


def test_there_are_eight() -> None:
    assert {path.stem for path in BUGS.glob("*_*.toml")} == FOUND.keys() == MENDED.keys()


@pytest.mark.parametrize("name", FOUND)
def test_it_is_found_by_firing_the_hooks_both_ways_and_by_nothing_that_is_declared(name: str) -> None:
    pipeline = loaded(name)
    plan = valid_plan(pipeline)
    assert not any(b.reads or b.writes for b in plan.bindings if not plan.hook(b.hook).default)
    assert not plan.edges
    assert not Findings.of(pipeline, plan).doubtful
    commuted = tried(pipeline)
    differing = found_in(name, commuted)
    assert differing.keys() == FOUND[name].keys()
    for pair, what in FOUND[name].items():
        assert f"differ in {what}" in differing[pair]
    assert not commuted.untried
    assert not commuted.noise


@pytest.mark.parametrize("name", MENDED)
def test_with_the_edges_that_were_missing_no_pair_differs(name: str) -> None:
    commuted = tried(loaded(name, *MENDED[name]))
    assert not found_in(name, commuted)
    assert not commuted.untried


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in FOUND]
)
def test_after_observe_write_no_bug_stands_in_silence(name: str, tmp_path: Path) -> None:
    """What is written down decides a pair the right way, or leaves it as loud as it was."""
    for file in (*BUGS.glob("*.*"), *(TESTS).glob("*.py")):
        below = file.relative_to(TESTS)
        (tmp_path / below).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tmp_path / below)
    folder = tmp_path / BUGS.relative_to(TESTS)
    pipeline = read_pipeline(folder / f"{name}.toml", ())
    assert list(Report.of(pipeline, valid_plan(pipeline)).write())
    written = read_pipeline(folder / f"{name}.toml", ())
    plan, right = valid_plan(written), valid_plan(loaded(name, *MENDED[name]))
    loud = found_in(name, commute(written, plan, folder, lambda *line: None))
    for point, *pair in FOUND[name].keys() - loud.keys():
        orders = [[hook for hook in each.order[point] if hook in pair] for each in (plan, right)]
        assert orders[0] == orders[1]
