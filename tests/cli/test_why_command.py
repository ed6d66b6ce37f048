"""`hookflow why`: what puts one hook before another, in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError

PIPELINE = """\
[run]
name = "p"
max_iters = 10
[model]
use = "torch.nn:Flatten"
[optimizer]
use = "torch.optim:SGD"
[data.train]
use = "cifar10"
[hooks.a]
use = "builtins:print"
points = ["before_train"]
reads = ["model"]
before = ["b"]
[hooks.b]
use = "builtins:print"
points = ["before_train"]
phase = "early"
before = ["c"]
[hooks.c]
use = "builtins:print"
points = ["before_train", "after_train", "after_run"]
writes = ["model"]
[hooks.d]
use = "builtins:print"
points = ["before_train", "after_train", "after_run"]
writes = ["model"]
[hooks.late]
use = "builtins:print"
points = ["after_train"]
phase = "late"
[hooks.off]
use = "ema"
enabled = false
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the pipeline as its only one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(PIPELINE)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    return tmp_path


def why(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["why", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_way_of_edges_has_the_source_of_each_and_what_it_has_overruled() -> None:
    assert why("a", "c") == (
        "at before_train: a fires before c\n"
        "  2 edges lead there\n"
        "    a → b  p.toml:14\n"
        "    b → c  p.toml:19\n"
        "  a is normal by itself; its edges make it early here\n"
        "  c writes model, which a reads; that would turn the order, but gives way to\n"
        "    a → b  p.toml:14\n"
        "    b → c  p.toml:19\n"
    )


def test_asked_the_other_way_round_it_says_after() -> None:
    assert why("c", "a").startswith("at before_train: c fires after a\n  2 edges lead there\n")


def test_points_with_one_answer_are_told_together_and_one_point_alone_if_asked() -> None:
    alone = (
        "  nothing says so but the file\n"
        "    c  p.toml:20\n"
        "    d  p.toml:24\n"
        "  both touch model, so it may matter; to state which is right:\n"
        '    c first, as now: after = ["c"] in [hooks.d]\n'
        '    d first: after = ["d"] in [hooks.c]\n'
        '    either: ambiguous_with = ["c"] in [hooks.d]\n'
    )
    flow = (
        "at before_train: c fires after d\n"
        "  3 edges lead there\n"
        "    d → a  model: d writes, a reads\n"
        "    a → b  p.toml:14\n"
        "    b → c  p.toml:19\n"
        "  d is normal by itself; its edges make it early here\n"
    )
    assert why("c", "d") == f"{flow}\nat after_train, after_run: c fires before d\n{alone}"
    assert why("c", "d", "--point", "after_run") == f"at after_run: c fires before d\n{alone}"


def test_phases_and_halves_are_reasons_too() -> None:
    assert why("c", "late").endswith("  no edge says so, but the phases do: c is normal, late is late\n")
    text = PIPELINE.replace("enabled = false\n", "").replace('"after_train", "after_run"', '"after_val"')
    Path("p.toml").write_text(text.replace('writes = ["model"]', ""))
    assert why("c", "off", "--point", "after_val") == (
        "at after_val: c fires before off (leaving around_val)\n"
        "  no edge says so, but around_val is left after whatever else is normal\n"
    )


def test_hooks_that_never_meet_are_told_where_they_fire() -> None:
    assert why("b", "late") == (
        "b and late never meet: they share no point\n    b fires at before_train\n    late fires at after_train\n"
    )
    assert why("c", "d", "--point", "before_run").startswith("c and d never meet at before_run\n")


def test_a_hook_that_is_switched_off_fires_nowhere() -> None:
    assert why("off", "a") == "off fires nowhere: it is switched off (p.toml:34)\n"


def test_every_name_that_is_unknown_is_told() -> None:
    with pytest.raises(UserError) as caught:
        why("off", "laet", "--point", "after_trian")
    assert 'p.toml has no hook "laet"\n    did you mean "late"?' in str(caught.value)
    assert 'there is no point "after_trian"\n    did you mean "after_train"?' in str(caught.value)
    with pytest.raises(UserError, match="neither before nor after itself"):
        why("a", "a")


def test_which_pipeline_must_be_plain(here: Path) -> None:
    (here / "pipelines").mkdir()
    (here / "pipelines/q.toml").write_text(PIPELINE)
    with pytest.raises(UserError, match=r"there are 2 pipelines here with a and c\n    name one: --pipeline p\.toml"):
        why("a", "c")
    with pytest.raises(UserError, match=r"there are 2 pipelines here\n    name one: --pipeline p\.toml"):
        why("a", "nobody")
    (here / "p.toml").write_text(PIPELINE.replace("[hooks.d]", "[hooks.other]"))
    assert "pipelines/q.toml:20" in why("c", "d"), "the only one that has both"
    (here / "p.toml").write_text(PIPELINE)
    assert "pipelines/q.toml:14" in why("a", "c", "--pipeline", "pipelines/q.toml")
    (here / "p.toml").unlink()
    assert why("a", "c").startswith("at before_train: a fires before c")
    (here / "pipelines/q.toml").unlink()
    with pytest.raises(UserError, match="no pipeline file here"):
        why("a", "c")


def test_flows_in_a_circle_are_told_once_and_as_such(here: Path) -> None:
    with (here / "p.toml").open("a") as file:
        for name, read, written in (("x", "one", "two"), ("y", "two", "one")):
            uses = f'use = "builtins:print"\npoints = ["after_run"]\nreads = ["{read}"]\nwrites = ["{written}"]\n'
            file.write(f"[hooks.{name}]\n{uses}")
    circle = [
        "  these flows go in a circle, so none of them counts:",
        "    x → y  two: x writes, y reads",
        "    y → x  one: y writes, x reads",
    ]
    told = why("x", "y")
    assert told.splitlines()[-3:] == circle
    assert "would turn" not in told
    checked = CliRunner().invoke(app, ["check", "p.toml"], env={"COLUMNS": "200"}).stdout
    line = "x → y (two), y → x (one): a circle of flows, so none of them counts; at after_run"
    assert checked.count(line) == 1


HOOKS = """\
class Around:
    writes = ("model",)

    def after_val(self): ...

    def around_val(self):
        yield

    def before_val(self): ...


class Reads:
    reads = ("model",)

    def after_val(self): ...
"""


def test_a_hook_that_stands_twice_at_a_point(here: Path) -> None:
    (here / "mine.py").write_text(HOOKS)
    with (here / "p.toml").open("a") as file:
        file.write('[hooks.around]\nuse = "./mine.py:Around"\n[hooks.r]\nuse = "./mine.py:Reads"\nafter = ["around"]\n')
    assert why("around", "r") == (
        "at after_val: around (after_val) fires before r\n"
        "  an edge says so\n"
        "    around → r  p.toml:39\n"
        "\n"
        "at after_val: around (leaving around_val) fires before r\n"
        "  an edge says so\n"
        "    around → r  p.toml:39\n"
    )
    assert why("around", "around", "--point", "before_val") == (
        "at before_val: around (entering around_val) fires before around (before_val)\n"
        "  an edge says so\n"
        '    around → around  around_val of "around" encloses its own methods, and what is entered first is left last\n'
    )
