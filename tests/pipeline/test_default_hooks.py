"""Where a file declares no hook of the kind, `log` and `checkpoint` are there; and nothing of that is hidden."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hookflow.errors import UserError
from hookflow.graph.plan import Plan
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import dump, load, parse
from tests.conftest import Trained, circle, hookflow_here, records

BARE = (
    circle("max_epochs = 2")
    + """\
args = { split = "train", batch_size = 256 }
[data.val]
use = "circle"
args = { split = "val", batch_size = 256 }
"""
)

OWN = """\
from hookflow.hooks.builtin.checkpoint import Checkpoint
from hookflow.hooks.builtin.log import Log

class MyLog(Log):
    \"\"\"Logs.\"\"\"

class MyCheckpoint(Checkpoint):
    \"\"\"Saves.\"\"\"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    path = tmp_path / "p.toml"
    path.write_text(BARE)
    return path


def plan(file: Path, hooks: str = "", *overrides: str, **switches: list[str]) -> Plan:
    file.write_text(BARE + hooks)
    return compile_pipeline(load(file, overrides, **switches))  # type: ignore[arg-type]


def defaults(found: Plan) -> list[str]:
    return [hook.name for hook in found.hooks if hook.default]


def test_they_come_last_in_the_order_of_the_file_and_can_be_switched_off(file: Path) -> None:
    own = "[hooks.own]\nuse = 'builtins:print'\npoints = ['after_train_epoch']\nafter = ['checkpoint']\n"
    whole = plan(file, own)
    assert [hook.name for hook in whole.hooks] == ["own", "log", "checkpoint"]
    assert [binding.hook for binding in whole.at("after_train_epoch")] == ["checkpoint", "own"]
    assert {(b.hook, b.point) for b in whole.bindings if b.hook != "own"} == {
        ("log", "after_train_iter"),
        ("checkpoint", "after_train_epoch"),
        ("checkpoint", "after_val"),
    }
    assert plan(file, "", "run.default_hooks=false").hooks == ()
    assert defaults(plan(file, "", "hooks.log.enabled=false")) == ["checkpoint"]
    assert defaults(plan(file, own, without=["checkpoint"])) == ["log"]
    assert defaults(plan(file, own, only=["own"])) == []


@pytest.mark.parametrize(
    ("hooks", "left"),
    [
        ("[hooks.mine]\nuse = 'hookflow.hooks.builtin.checkpoint:Checkpoint'\n", ["log"]),
        ("[hooks.a]\nuse = './own.py:MyLog'\n[hooks.b]\nuse = './own.py:MyCheckpoint'\n", []),
        ("[hooks.mine]\nuse = 'log'\nenabled = false\n", ["checkpoint"]),
        ("[hooks.log]\nuse = 'builtins:print'\npoints = ['after_run']\n", ["checkpoint"]),
    ],
)
def test_one_of_the_kind_or_of_the_name_takes_the_place_of_a_default(file: Path, hooks: str, left: list[str]) -> None:
    assert defaults(plan(file, hooks)) == left


def test_a_table_without_use_changes_the_default(file: Path) -> None:
    found = plan(file, "[hooks.log]\nevery = 7\n", "hooks.checkpoint.args.monitor=loss")
    assert [binding.trigger.every for binding in found.at("after_train_iter")] == ["7"]
    assert found.hook("checkpoint").args == {"monitor": "loss"}
    with pytest.raises(UserError, match='lacks the key "use"'):
        plan(file, "[hooks.other]\nevery = 7\n")


def test_a_recorded_pipeline_has_them_in_full_and_gets_no_others(file: Path) -> None:
    loaded = load(file)
    again = parse(dump(loaded.pipeline), Path("recorded.toml"), recorded=True)
    assert again.pipeline == loaded.pipeline
    assert defaults(compile_pipeline(again)) == ["log", "checkpoint"]
    assert parse(BARE, file, recorded=True).pipeline.hooks == {}, "one from before there were any"


def test_a_run_without_hooks_leaves_a_loss_and_weights(file: Path, tmp_path: Path, trained: Trained) -> None:
    printed = hookflow_here("check", "p.toml", "--strict", cwd=tmp_path).stdout
    assert "2 hooks at 3 points; by default: log, checkpoint\n" in printed
    assert json.loads(hookflow_here("check", "p.toml", "-f", "json", cwd=tmp_path).stdout)["default_hooks"]
    assert "log         late, every 0.5%, default" in hookflow_here("graph", "p.toml", cwd=tmp_path).stdout
    assert "(default)" in hookflow_here("explain", "hooks", cwd=tmp_path).stdout
    run_dir = trained(pipeline=file)
    scalars = records(run_dir, "scalars")
    assert len(scalars) >= 3
    assert {"loss", "lr"} <= scalars[0]["v"].keys()  # type: ignore[attr-defined]
    assert (run_dir.checkpoints / "last").exists()
    assert hookflow_here("val", "p:last", cwd=tmp_path).returncode == 0
