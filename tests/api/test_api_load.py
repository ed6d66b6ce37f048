"""`hookflow.load`: files, dicts, overrides and mistakes; and what `hookflow` itself offers."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import hookflow
from tests.conftest import TOY


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the toy pipeline as a dict, and be where its files are."""
    monkeypatch.chdir(TOY.parent)
    return tomllib.loads(TOY.read_text())


def test_a_dict_is_what_its_file_is(toy: dict[str, Any]) -> None:
    assert str(hookflow.load(toy)) == str(hookflow.load(TOY))
    plan = hookflow.load(toy).plan
    assert plan.order == hookflow.load(str(TOY)).plan.order
    assert plan.order["after_val"] == ("ema", "early_stop", "checkpoint")
    assert "after_train_iter        throughput → log (every 2)" in str(plan).splitlines()
    run = hookflow.load({"extends": "toy.toml", "run": {"max_iters": 4}}).loaded.pipeline.run
    assert (run.name, run.max_iters, run.max_epochs) == ("toy", 4, None)


def test_overrides_go_over_a_file_and_over_a_dict(toy: dict[str, Any]) -> None:
    values = ['C:\\new "a" é 🙂\n\x7f', 1.5, float("inf"), {"b c": [True]}]
    over = {
        "run.max_iters": 7,
        "run.name": "a-b",
        "model.args": {"a b": values},
        "hooks.log.points": [{"at": "after_train_iter", "every": "2it"}],
        "hooks.clip.args": {"max_norm": 0.5},
        "run.deterministic": True,
    }
    for source in (TOY, toy):
        pipeline = hookflow.load(source, over).loaded.pipeline
        assert (pipeline.run.max_iters, pipeline.run.max_epochs) == (7, None)
        assert (pipeline.run.name, pipeline.run.deterministic) == ("a-b", True)
        assert pipeline.models["model"].args == {"a b": values}
        assert pipeline.hooks["clip"].args == {"max_norm": 0.5}
        (point,) = pipeline.hooks["log"].points or ()
        assert not isinstance(point, str)
        assert point.every == "2it"
    assert toy["run"] == {"name": "toy", "max_epochs": 3}, "what was given is left alone"


def test_all_mistakes_are_told_with_the_part_of_the_dict_or_override_that_is_wrong(toy: dict[str, Any]) -> None:
    toy["run"]["sed"] = 1
    with pytest.raises(hookflow.UserError) as error:
        hookflow.load(toy, {"run.max_epochs": "many"})
    assert '<dict>: [run] has no key "sed"' in str(error.value)
    assert 'overrides["run.max_epochs"]: run.max_epochs must be' in str(error.value)
    with pytest.raises(hookflow.UserError, match='overrides: "run max" is not a key'):
        hookflow.load(TOY, {"run max": 1})

    def nothing(run: Any) -> None: ...

    table = {"use": nothing, "points": ["after_run", "after_vall"]}
    with pytest.raises(hookflow.UserError) as error:
        _ = hookflow.load(TOY, {"hooks.f": table, "hooks.clip.args": {"max_nrm": 1.0}}).plan
    places = {problem.message: str(problem.where) for problem in error.value.problems}
    assert places['there is no point "after_vall"'] == 'overrides["hooks.f"]["points"][1]'
    assert places['hook "clip" takes no argument "max_nrm"'] == 'overrides["hooks.clip.args"]["max_nrm"]'
    assert "object at 0x" not in str(error.value)
    assert "function" not in str(error.value)


def test_a_value_that_no_file_could_hold_is_refused(toy: dict[str, Any]) -> None:
    toy["model"]["args"] = {"width": object(), "root": Path("data")}
    with pytest.raises(hookflow.UserError) as error:
        hookflow.load(toy)
    assert [problem.message for problem in error.value.problems] == [
        "model.args.width cannot be of the type object",
        "model.args.root cannot be of the type PosixPath",
    ]


def test_check_raises_what_is_not_there_and_returns_what_is_doubtful(toy: dict[str, Any]) -> None:
    assert hookflow.load(toy).check() == []
    toy["hooks"]["late"] = {"use": "log", "when": "1 > 2"}
    toy["hooks"]["other"] = {"use": "ema"}
    pair = 'at before_{}, "ema" and "other" touch model, and no edge orders them'
    wanted = ['hook "late": the condition "1 > 2" never holds', pair.format("val"), pair.format("test")]
    assert [problem.message for problem in hookflow.load(toy).check()] == wanted
    toy["model"]["use"] = "./toy.py:Nett"
    toy["hooks"]["clip"]["after"] = ["nobody"]
    with pytest.raises(hookflow.UserError) as error:
        hookflow.load(toy).check()
    assert len(error.value.problems) == 2


NAMES = ["Hook", "Run", "Source", "Task", "UserError", "Writer", "__version__", "load", "load_run", "runs", "train"]


def test_these_are_the_public_names() -> None:
    assert NAMES == hookflow.__all__ == dir(hookflow)
    names: dict[str, object] = {}
    exec("from hookflow import *", names)
    assert {name: names[name] for name in NAMES} == {name: getattr(hookflow, name) for name in NAMES}
    with pytest.raises(AttributeError, match="no attribute 'tain'"):
        hookflow.tain  # noqa: B018


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("dir(hookflow)", {"torch", "pydantic", "textual", "rich", "numpy", "hookflow.api"}),
        (f"hookflow.load({str(TOY)!r}).check()", {"torch", "textual"}),
    ],
)
def test_importing_hookflow_and_checking_import_nothing_heavy(code: str, heavy: set[str]) -> None:
    code = f"import sys, hookflow; {code}; print(*{heavy} & sys.modules.keys(), '.')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == ".\n"
