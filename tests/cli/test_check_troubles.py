"""`hookflow check` where something is not as it should be: old runs, odd hook files, hooks that never fire."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner, Result

from hookflow.cli.app import app
from hookflow.errors import UserError
from hookflow.events.log import encode
from hookflow.pipeline.load import dump, load

PIPELINE = """\
[run]
name = "p"
max_iters = 40
[model]
use = "torch.nn:Flatten"
[optimizer]
use = "torch.optim:SGD"
[data.train]
use = "cifar10"
[hooks.print]
use = "builtins:print"
points = ["after_train_iter"]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with the pipeline p.toml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "p.toml").write_text(PIPELINE)
    return tmp_path


def invoke(*arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def check(*overrides: str, options: Sequence[str] = (), exit_code: int = 0) -> str:
    sets = [part for override in overrides for part in ("--set", override)]
    return invoke("check", "p.toml", *sets, *options, exit_code=exit_code).stdout


def recorded(id_: str, iters: object, *overrides: str) -> Path:
    """Write down a run of the pipeline, with so many iterations an epoch; return its folder."""
    run = Path("runs/p") / id_
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "pipeline.toml").write_text(dump(load(Path("p.toml"), overrides).pipeline))
    (run / "events.jsonl").write_text(encode({"k": "run", "t": 1.0, "iters_per_epoch": iters}) + "\n")
    return run


FROM_EPOCH_3 = "hooks.print.from='3ep'"


def test_the_newest_run_with_this_data_knows_how_long_an_epoch_is() -> None:
    recorded("20260101-000000-aaaa", 5)
    recorded("20260102-000000-bbbb", 4)
    recorded("20260103-000000-cccc", 16, "data.train.args={batch_size=2}")
    recorded("20260104-000000-dddd", 16, "run.accumulate=4")
    told = check(FROM_EPOCH_3)
    assert "print at after_train_iter: every iteration, first after iteration 12: 29 times\n" in told
    assert "             (with 4 iterations an epoch, as in the run 20260102-000000-bbbb)\n" in told
    found = json.loads(check(FROM_EPOCH_3, options=("-f", "json")))
    assert found["epoch"] == {"iters": 4, "run": "20260102-000000-bbbb"}
    assert found["firings"][0]["times"] == 29


def test_no_run_makes_a_warning() -> None:
    recorded("20260101-000000-aaaa", 16)
    told = check(FROM_EPOCH_3, options=("--strict",))
    assert "print at after_train_iter: never\n" in told
    assert "(with 16 iterations an epoch, as in the run 20260101-000000-aaaa)\n" in told


def test_a_run_that_cannot_be_read_is_passed_over() -> None:
    recorded("20260101-000000-aaaa", 4)
    for k, damage in enumerate(
        ('{"iters_per_epoch": ', '["iters_per_epoch"]\n', '{"k":"run","t":1.0,"iters_per_epoch":null}\n')
    ):
        (recorded(f"20260102-000000-aaa{k}", 5) / "events.jsonl").write_text(damage)
    recorded("20260103-000000-aaaa", 0)
    (recorded("20260104-000000-aaaa", 5) / "pipeline.toml").write_text("[data")
    (recorded("20260105-000000-aaaa", 5) / "pipeline.toml").write_text("data = 3")
    folder = recorded("20260106-000000-aaaa", 5) / "events.jsonl"
    folder.unlink()
    folder.mkdir()
    assert "(with 4 iterations an epoch, as in the run 20260101-000000-aaaa)\n" in check(FROM_EPOCH_3)


def test_what_a_hook_file_prints_is_no_part_of_the_output(here: Path) -> None:
    (here / "loud.py").write_text("print('hello')\ndef hook(run): ...\n")
    with_hook = ("p.toml", "--set", "hooks.loud={use='./loud.py:hook', points=['before_run']}", "-f", "json")
    told = invoke("check", *with_hook)
    assert json.loads(told.stdout)["valid"]
    assert told.stderr == "hello\n"


def test_a_hook_file_may_raise_whatever_it_likes(here: Path) -> None:
    (here / "odd.py").write_text("class Odd(BaseException): ...\nraise Odd('no')\n")
    with pytest.raises(UserError, match=r'"\./odd\.py" cannot be imported: odd_.*Odd: no'):
        check("hooks.odd={use='./odd.py:hook'}")


@pytest.mark.parametrize("command", [("graph", "p.toml"), ("why", "print", "other", "q.toml")])
def test_around_a_point_is_two_points(here: Path, command: tuple[str, ...]) -> None:
    (here / "q.toml").write_text(PIPELINE + '[hooks.other]\nuse = "ema"\n')
    with pytest.raises(UserError) as raised:
        invoke(*command, "--point", "around_val")
    (problem,) = raised.value.problems
    assert (problem.message, problem.hint) == ("around_val is two points", "name one of them: before_val or after_val")
    with pytest.raises(UserError, match='there is no point "around_vale"'):
        invoke(*command, "--point", "around_vale")


def test_a_hook_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(UserError, match="it has print"):
        invoke("graph", "p.toml", "--hook", "zzz")


def hookflow(*arguments: str, stdout: int | IO[str] = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own, whose output takes nothing but ASCII."""
    command = [sys.executable, "-m", "hookflow", *arguments]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False)


def test_where_nothing_but_ascii_is_taken_the_rest_is_question_marks() -> None:
    done = hookflow("graph", "p.toml", "--set", "hooks.log.before=['print']")
    assert (done.returncode, done.stderr) == (0, "")
    assert "?" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux alone has such a device")
def test_a_full_disk_is_told_without_a_traceback() -> None:
    with Path("/dev/full").open("w") as full:
        done = hookflow("graph", "p.toml", stdout=full)
    assert (done.returncode, done.stderr) == (2, "cannot be written: No space left on device\n")


def test_no_name_steers_the_terminal(here: Path) -> None:
    written = 'writes = ["lr\\u001b[31m"]\nwhen = """value("\\u001b[31mx") > 1"""\n'
    reader = '[hooks.other]\nuse = "builtins:print"\npoints = ["after_train_iter"]\nreads = ["lr\\u001b[31m"]\n'
    (here / "p.toml").write_text(PIPELINE + written + reader)
    assert 'where value("·[31mx") > 1\n' in check()
    assert "lr·[31m: print writes, other reads" in invoke("why", "print", "other").stdout


@pytest.mark.parametrize(
    ("override", "said", "hint"),
    [
        ("hooks.print.when='1 > 2'", 'hook "print": the condition "1 > 2" never holds', "the condition is constant"),
        ("hooks.print.when='2 > 1'", 'hook "print": the condition "2 > 1" always holds', "the condition is constant"),
        ("hooks.print.when='Epoch > 5'", 'names a scalar called "Epoch"', 'did you mean "epoch"?'),
        ("hooks.print.when='run.iter > 5'", 'names a scalar called "run.iter"', 'did you mean "iter"?'),
        ("hooks.print.until='2ep'", 'hook "print" never fires at after_train_iter', "from = 5ep is not"),
        ("hooks.print.requires=['print']", 'hook "print" names itself in requires', "name another hook"),
        ("hooks.print.ambiguous_with=['print']", 'hook "print" names itself in ambiguous_with', "name another hook"),
    ],
)
def test_what_nobody_can_have_meant_is_warned_of(override: str, said: str, hint: str) -> None:
    told = check(*["hooks.print.from='5ep'"] * ("until" in override), override, options=("--strict",), exit_code=1)
    assert told.startswith("p.toml is valid, with 1 warning\n")
    assert said in told
    assert hint in told


def test_a_doubtful_condition_has_its_own_place(here: Path) -> None:
    text = PIPELINE.replace('["after_train_iter"]', '["before_run", { at = "after_train_iter", when = "ITER > 3" }]')
    (here / "p.toml").write_text(text)
    assert "warning: p.toml:12:52: " in check()


@pytest.mark.parametrize(
    "overrides",
    [
        ["hooks.print.when='value(\"Epoch\") > 5'"],
        ["hooks.print.when='metrics.epoch > 5'"],
        ["hooks.print.when='rank == 0'"],
        ["hooks.print.from='2ep'", "hooks.print.until='2ep'"],
        ["hooks.print.from='5it'", "hooks.print.until='2ep'"],
    ],
)
def test_what_may_be_meant_is_not_warned_of(overrides: list[str]) -> None:
    assert check(*overrides, options=("--strict",)).startswith("p.toml is valid\n")
