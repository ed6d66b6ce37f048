"""`hookflow why`: what puts one hook before another, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, invoke, refused
from tests.conftest import NewRun

PIPELINE = (
    SMALL
    + """\
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
)


@pytest.fixture(autouse=True)
def pipeline(here: Path) -> None:
    """A pipeline, the only one in the current folder."""
    (here / "p.toml").write_text(PIPELINE)
    (here / "pyproject.toml").write_text("[project]\nname = 'x'\n")


def why(*arguments: str) -> str:
    return invoke("why", *arguments)


def test_a_way_of_edges_has_the_source_of_each_and_what_it_has_overruled() -> None:
    assert why("a", "c") == (
        "at before_train: a fires before c\n"
        "  2 edges lead there\n"
        "    a → b  p.toml:15\n"
        "    b → c  p.toml:20\n"
        "  a is normal by itself; its edges make it early here\n"
        "  c writes model, which a reads; that would turn the order, but gives way to\n"
        "    a → b  p.toml:15\n"
        "    b → c  p.toml:20\n"
    )
    assert why("c", "a").startswith("at before_train: c fires after a\n  2 edges lead there\n")


def test_points_with_one_answer_are_told_together_and_one_point_alone_if_asked() -> None:
    alone = (
        "  nothing says so but the file\n"
        "    c  p.toml:21\n"
        "    d  p.toml:25\n"
        "  both touch model, so it may matter; to state which is right:\n"
        '    c first, as now: after = ["c"] in [hooks.d]\n'
        '    d first: after = ["d"] in [hooks.c]\n'
        '    either: ambiguous_with = ["c"] in [hooks.d]\n'
    )
    flow = (
        "at before_train: c fires after d\n"
        "  3 edges lead there\n"
        "    d → a  model: d writes, a reads\n"
        "    a → b  p.toml:15\n"
        "    b → c  p.toml:20\n"
        "  d is normal by itself; its edges make it early here\n"
        '  to fire c before d: after = ["c"] in [hooks.d]\n'
    )
    assert why("c", "d") == f"{flow}\nat after_train, after_run: c fires before d\n{alone}"
    assert why("c", "d", "--point", "after_run") == f"at after_run: c fires before d\n{alone}"
    assert why("c", "d", "--point", "before_run").startswith("c and d never meet at before_run\n")


def test_phases_and_halves_are_reasons_too() -> None:
    assert why("c", "late").endswith(
        "  no edge says so, but the phases do: c is normal, late is late\n"
        '  to fire late before c: after = ["late"] in [hooks.c]\n'
    )
    text = PIPELINE.replace("enabled = false\n", "").replace('"after_train", "after_run"', '"after_val"')
    Path("p.toml").write_text(text.replace('writes = ["model"]', ""))
    assert why("c", "off", "--point", "after_val") == (
        "at after_val: c fires before off (leaving around_val)\n"
        "  no edge says so, but around_val is left after all other hooks of phase normal\n"
        '  to fire off before c: after = ["off"] in [hooks.c]\n'
    )


def add(*hooks: str) -> None:
    """Add hooks to the pipeline: the name, a point, and further keys of each."""
    with Path("p.toml").open("a") as file:
        for hook in hooks:
            name, points, *more = hook.split("; ")
            at = ", ".join(f'"{point}"' for point in points.split())
            file.write("\n".join([f"[hooks.{name}]", 'use = "builtins:print"', f"points = [{at}]", *more, ""]))


def test_of_hooks_that_share_no_point_the_loop_decides() -> None:
    Path("p.toml").write_text(PIPELINE.replace("max_iters = 10", "max_epochs = 10"))
    assert why("b", "late") == (
        "b and late never meet: they share no point; b fires before late\n    before_train  b\n    after_train   late\n"
    )
    add('saver; after_val; reads = ["average"]', 'average; after_optimizer_step; writes = ["average"]')
    assert why("saver", "average") == (
        "saver and average never meet: they share no point; average fires before saver in every epoch\n"
        "    after_optimizer_step  average  in every iteration\n"
        "    after_val             saver    in every epoch\n"
        "  average writes average, which saver reads\n"
    )


def test_what_stands_against_turning_two_hooks() -> None:
    add('m; after_run; after = ["c"]', 'n; after_run; after = ["m"]', 'o; after_run; writes = ["model"]')
    assert "to fire" not in why("c", "n"), "the edges are shown"
    shown = why("c", "o", "--set", 'hooks.c.reads=["model"]', "--set", "hooks.c.writes=[]", "--point", "after_run")
    assert shown.endswith('model: o writes, c reads\n  to fire c before o: after = ["c"] in [hooks.o]\n')
    add('w; after_val after_run; writes = ["rng"]')
    with Path("p.toml").open("a") as file:
        points = 'points = ["after_val", { at = "after_run", after = ["w"] }]'
        file.write(f'[hooks.r]\nuse = "builtins:print"\n{points}\nreads = ["rng"]\n')
    here = 'to fire r before w here alone: { at = "after_val", after = ["r"] } in points of [hooks.w]\n'
    assert why("w", "r", "--point", "after_val").endswith(here)
    add('x; before_train; before = ["d"]', 'y; before_train; writes = ["lr"]', 'z; before_train; reads = ["lr"]')
    shown = why("y", "z", "--set", 'hooks.y.before=["x"]', "--set", 'hooks.d.before=["z"]')
    assert shown.endswith(
        "  to fire z before y, one of these must go:\n"
        '    "d" before "z": --set hooks.d.before=["z"]\n'
        '    "y" before "x": --set hooks.y.before=["x"]\n'
        '    "x" before "d": p.toml:59:11\n'
    )


def test_it_asks_of_another_pipeline_as_check_does() -> None:
    assert "an edge says so" in why("c", "d", "--set", 'hooks.d.after=["c"]', "--point", "after_run")
    assert why("a", "d", "--without", "a").startswith("a fires nowhere: it is switched off")
    assert why("a", "b", "--only", "a").startswith("b fires nowhere: it is switched off")
    orders = {why("c", "d", "--shuffle", str(seed), "--point", "after_run").split("\n")[0] for seed in range(9)}
    assert len(orders) == 2
    assert "nothing says so but the shuffle with seed 3" in why("c", "d", "--shuffle", "3", "--point", "after_run")


def test_the_plan_of_a_run_is_not_changed(new_run: NewRun) -> None:
    slow = 'hooks.slow={use="./watchers.py:slow", points=["after_val"]}'
    run_dir = new_run(slow, 'hooks.quick={use="./watchers.py:tells", points=["after_val"]}')
    shown = why("slow", "quick", str(run_dir.path)).splitlines()
    assert shown[1] == "  nothing says so but the file"
    assert "to fire" not in "\n".join(shown)
    assert "is a run, and its plan is recorded" in refused("why", "slow", "quick", run_dir.path, "--shuffle", "1")


def test_every_name_that_is_unknown_is_told() -> None:
    wrong = refused("why", "off", "laet", "--point", "after_trian")
    assert 'p.toml has no hook "laet"\n    did you mean "late"?' in wrong
    assert 'there is no point "after_trian"\n    did you mean "after_train"?' in wrong
    assert "neither before nor after itself" in refused("why", "a", "a")


def test_which_pipeline_must_be_plain(here: Path) -> None:
    (here / "pipelines").mkdir()
    (here / "pipelines/q.toml").write_text(PIPELINE)
    assert "there are 2 pipelines here\n    name one: p.toml" in refused("why", "a", "c")
    assert "pipelines/q.toml:15" in why("a", "c", "pipelines/q.toml")
    (here / "p.toml").unlink()
    assert why("a", "c").startswith("at before_train: a fires before c")
    (here / "pipelines/q.toml").unlink()
    assert "no pipeline file here" in refused("why", "a", "c")


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
    shown = why("x", "y")
    assert shown.splitlines()[-3:] == circle
    assert "would turn" not in shown
    checked = invoke("check", "p.toml", columns=200)
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
        "    around → r  p.toml:40\n"
        "\n"
        "at after_val: around (leaving around_val) fires before r\n"
        "  an edge says so\n"
        "    around → r  p.toml:40\n"
    )
    assert why("around", "around", "--point", "before_val") == (
        "at before_val: around (entering around_val) fires before around (before_val)\n"
        "  an edge says so\n"
        '    around → around  around_val of "around" encloses its own methods, and what is entered first is left last\n'
    )
