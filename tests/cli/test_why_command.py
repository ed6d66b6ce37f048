"""`hookflow why`: what puts one hook before another, in words."""

import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, invoke, refused
from tests.conftest import NewRun
from tests.golden_files import check_golden

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


CIRCLE = (("f1", "one", "two"), ("f2", "two", "one"))


@pytest.fixture(autouse=True)
def pipeline(here: Path) -> None:
    """A pipeline, the only one in the current folder."""
    (here / "p.toml").write_text(PIPELINE)
    (here / "pyproject.toml").write_text("[project]\nname = 'x'\n")


def why(*arguments: str) -> str:
    return invoke("why", *arguments)


def answers(*questions: str) -> str:
    """Return what the command answers to each question, below it."""
    return "\n".join(f"$ why {question}\n{why(*shlex.split(question))}" for question in questions)


def add(*hooks: str) -> None:
    """Add hooks to the pipeline: the name, a point, and further keys of each."""
    with Path("p.toml").open("a") as file:
        for hook in hooks:
            name, points, *more = hook.split("; ")
            at = ", ".join(f'"{point}"' for point in points.split())
            file.write("\n".join([f"[hooks.{name}]", 'use = "builtins:print"', f"points = [{at}]", *more, ""]))


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


def test_the_answers_are_golden(here: Path) -> None:
    """Edges with their sources, phases, halves, the file alone; what they overrule, and how to turn them."""
    text = answers("a c", "c a", "c d", "c d --point after_run", "c d --point before_run", "c late")
    Path("p.toml").write_text(PIPELINE.replace("max_iters = 10", "max_epochs = 10"))
    add('saver; after_val; reads = ["average"]', 'average; after_optimizer_step; writes = ["average"]')
    text += answers("b late", "saver average")
    halves = PIPELINE.replace("enabled = false\n", "").replace('"after_train", "after_run"', '"after_val"')
    Path("p.toml").write_text(halves.replace('writes = ["model"]', ""))
    text += answers("c off --point after_val")
    Path("p.toml").write_text(PIPELINE)
    flows = [f'{name}; after_run; reads = ["{read}"]; writes = ["{written}"]' for name, read, written in CIRCLE]
    add('m; after_run; after = ["c"]', 'n; after_run; after = ["m"]', 'o; after_run; writes = ["model"]', *flows)
    text += answers("c n", """c o --set 'hooks.c.reads=["model"]' --set hooks.c.writes=[] --point after_run""", "f1 f2")
    add('w; after_val after_run; writes = ["rng"]')
    with Path("p.toml").open("a") as file:
        points = 'points = ["after_val", { at = "after_run", after = ["w"] }]'
        file.write(f'[hooks.r]\nuse = "builtins:print"\n{points}\nreads = ["rng"]\n')
    add('x; before_train; before = ["d"]', 'y; before_train; writes = ["lr"]', 'z; before_train; reads = ["lr"]')
    text += answers("w r --point after_val", """y z --set 'hooks.y.before=["x"]' --set 'hooks.d.before=["z"]'""")
    (here / "mine.py").write_text(HOOKS)
    with Path("p.toml").open("a") as file:
        file.write('[hooks.around]\nuse = "./mine.py:Around"\n[hooks.s]\nuse = "./mine.py:Reads"\nafter = ["around"]\n')
    text += answers("around s", "around around --point before_val")
    check_golden("why.txt", text)
    line = (
        "at after_run, a cycle of flows, so none of them counts: f1 before f2 (writes two), f2 before f1 (writes one)"
    )
    assert invoke("check", "p.toml", columns=200).count(line) == 1


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
