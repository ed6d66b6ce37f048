"""A hook without declarations beside one that writes what it reads: told, as far as its source says that."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.errors import Problem
from hookflow.hooks.compile import compile_pipeline
from tests.hooks.sources import pipeline_with

SAVER = "def it(run):\n    save(run.model.state_dict())\n"
EMA = '[hooks.ema]\nuse = "ema"\n'


def warned(folder: Path, code: str, point: str, others: str, table: str = "") -> list[Problem]:
    """Return what is warned of a function of this code at a point, listed ahead of `others`."""
    tables = f'points = ["{point}"]\n{table}\n{others}'
    return list(compile_pipeline(pipeline_with(folder, code, tables, "it")).warnings)


def writer(slot: str, point: str, more: str = "") -> str:
    return f'[hooks.writer]\nuse = "builtins:print"\npoints = ["{point}"]\nwrites = ["{slot}"]\n{more}\n'


def test_a_saver_beside_an_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (problem,) = warned(tmp_path, SAVER, "after_val", EMA)
    assert problem.message == (
        'hook "it" reads run.model at after_val (h0.py:2) and declares no slots: '
        'it fires before "ema" leaves around_val, which writes model'
    )
    assert problem.hint == 'declare it, and it fires after "ema": reads = ["model"] in [hooks.it], or in its class'


@pytest.mark.parametrize(
    "table", ['reads = ["model"]', 'after = ["ema"]', 'before = ["ema"]', 'phase = "last"', 'ambiguous_with = ["ema"]']
)
def test_it_is_mended_by_a_declaration_an_edge_a_phase_or_a_word_that_either_may_be_first(
    tmp_path: Path, table: str
) -> None:
    assert not warned(tmp_path, SAVER, "after_val", EMA, table)


@pytest.mark.parametrize(
    ("code", "point", "slot"),
    [
        ("def it(run): print(run.optimizer)", "before_train_iter", "lr"),
        ("def it(run): print(run.optimizer)", "before_train_iter", "optimizer"),
        ("def it(batch): print(batch)", "before_train_iter", "batch"),
        ('def it(metrics): print(metrics["accuracy"])', "after_val_epoch", "metrics.accuracy"),
        ('def it(metrics): print(metrics.get("accuracy"))', "after_val_epoch", "metrics"),
        (f'def it(metrics): print({"-" * 1500}metrics["accuracy"])', "after_val_epoch", "metrics.accuracy"),
        ('def it(checkpoint): print(checkpoint["extra"])', "before_save_checkpoint", "checkpoint.extra"),
    ],
)
def test_what_a_source_says(tmp_path: Path, code: str, point: str, slot: str) -> None:
    (problem,) = warned(tmp_path, code + "\n", point, writer(slot, point))
    assert problem.message.endswith('it fires before "writer", which writes ' + slot.partition(".")[0] + ALONE)


ALONE = ", and nothing but the file says so"


@pytest.mark.parametrize(
    ("code", "point", "slot"),
    [
        (SAVER, "before_val", "metrics"),
        ("def it(run): print(run.models)", "after_val", "model"),
        ("def it(run): run = run.task; print(run.model)", "after_val", "model"),
        ('def it(metrics): metrics["accuracy"] = 1', "after_val_epoch", "metrics.accuracy"),
        ('def it(metrics): print(metrics["loss"])', "after_val_epoch", "metrics.accuracy"),
        ('def it(metrics): metrics = {}; print(metrics["accuracy"])', "after_val_epoch", "metrics.accuracy"),
        ("def it(metrics): print(len(metrics))", "after_val_epoch", "metrics.accuracy"),
        ("it = print", "after_val_epoch", "metrics.accuracy"),
    ],
)
def test_what_no_source_says(tmp_path: Path, code: str, point: str, slot: str) -> None:
    assert not warned(tmp_path, code + "\n", point, writer(slot, point))


def test_a_hook_that_declares_a_slot_has_thought_of_them(tmp_path: Path) -> None:
    declared = writer("lr", "after_train", 'reads = ["grads"]') + "[hooks.it.args]\n"
    assert not warned(tmp_path, SAVER, "after_val", EMA + declared, 'writes = ["rng"]')
