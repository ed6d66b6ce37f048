"""`hookflow check` where something is not as it should be: old runs, odd hook files, hooks that never fire."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hookflow.cli.app import app
from hookflow.errors import UserError
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
    (run / "pipeline.toml").write_text(dump(load(Path("p.toml"), overrides).pipeline))
    (run / "events.jsonl").write_text(json.dumps({"k": "run", "iters_per_epoch": iters}) + "\n")
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
    for k, damage in enumerate(('{"iters_per_epoch": ', '["iters_per_epoch"]\n', '{"iters_per_epoch": null}\n')):
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
    assert json.loads(told.stdout)["sound"]
    assert told.stderr == "hello\n"


def test_a_hook_file_may_raise_whatever_it_likes(here: Path) -> None:
    (here / "odd.py").write_text("class Odd(BaseException): ...\nraise Odd('no')\n")
    with pytest.raises(UserError, match=r'"\./odd\.py" cannot be imported: odd_.*Odd: no'):
        check("hooks.odd={use='./odd.py:hook'}")
