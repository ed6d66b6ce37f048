"""What the shell is offered when Tab is pressed, asked as the shell asks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hookflow.cli.app import main

PIPELINE = """\
[run]
name = "p"
default_hooks = false
max_iters = 10
[points.after_dense]
follows = "after_train_iter"
[hooks.ema]
use = "ema"
args = { decay = 0.9 }
[hooks.early]
use = "early_stop"
"""


Tab = Callable[[str], list[str]]


@pytest.fixture
def filled(here: Path) -> Path:
    """The current folder, with a pipeline and two runs."""
    (here / "p.toml").write_text(PIPELINE)
    (here / "other").mkdir()
    (here / "other/q.toml").write_text('[run]\n[hooks.only_here]\nuse = "ema"\n')
    for id_ in ("20260101-000000-aaaa", "20260102-000000-bbbb"):
        run = here / "runs" / "cifar" / id_
        run.mkdir(parents=True)
        (run / "run.json").write_text("{}")
    return here


@pytest.fixture
def tab(filled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tab:
    """Return what bash is offered at the end of a line; nothing else may be printed."""

    def press(line: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["hookflow"])
        monkeypatch.setenv("_HOOKFLOW_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        with pytest.raises(SystemExit) as end:
            main()
        message = capsys.readouterr()
        assert (end.value.code, message.err) == (0, "")
        return message.out.split()

    return press


OFFERED = {
    "hookflow wh": ["why"],
    "hookflow why e": ["ema", "early"],
    "hookflow why ema ea": ["early"],
    "hookflow why ema early --point after_de": ["after_dense"],
    "hookflow why ema early --point after_train_e": ["after_train_epoch"],
    "hookflow graph p.toml --without ea": ["early"],
    "hookflow run p.toml --only em": ["ema"],
    "hookflow run p.toml --set hooks.ema.args.": ["hooks.ema.args.decay="],
    "hookflow graph other/q.toml --hook ": ["only_here"],
    "hookflow graph --hook only": [],
    "hookflow check other/q.toml --without o": ["only_here"],
    "hookflow run other/q.toml --set hooks.": ["hooks.only_here.use="],
    "hookflow explain grad": ["grad_clip", "grad_norm"],
    "hookflow watch 2026": ["20260102-000000-bbbb", "20260101-000000-aaaa"],
    "hookflow watch --dir runs ci": ["cifar"],
    "hookflow stop ci": ["cifar"],
    "hookflow show 20260102": ["20260102-000000-bbbb"],
    "hookflow explain run.prec": ["run.precision"],
    "hookflow compare p": ["p.toml"],
    "hookflow compare p.toml ci": ["cifar"],
}


def test_tab_offers(tab: Tab) -> None:
    assert {line: tab(line) for line in OFFERED} == OFFERED


@pytest.mark.parametrize("text", ["[hooks.ema", "hooks = 3", '[hooks]\nema = "ema"'])
def test_a_pipeline_that_is_none_yet_offers_nothing_and_says_nothing(text: str, filled: Path, tab: Tab) -> None:
    (filled / "p.toml").write_text(f"[run]\n{text}")
    assert tab("hookflow why -p p.toml e") == []
    assert tab("hookflow run p.toml --without e") == []
    assert tab("hookflow run missing.toml --without e") == []
