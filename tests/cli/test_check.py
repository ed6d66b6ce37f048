"""`hookflow check`: what a valid pipeline amounts to, in a few lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError
from hookflow.pipeline.load import load
from hookflow.service.pipelines import valid_plan

SOUND = """\
[run]
name = "small"
default_hooks = false
max_iters = 3_000
val_every = 200
[model]
use = "torch.nn:Flatten"
[optimizer]
use = "torch.optim:SGD"
[data.train]
use = "cifar10"
[data.val]
use = "cifar10"
[hooks.clip]
use = "grad_clip"
args = { max_norm = 1.0 }
[hooks.log]
use = "log"
[hooks.print]
use = "builtins:print"
args = { sep = "" }
points = ["after_train_iter"]
[hooks.ema]
use = "ema"
enabled = false
"""

SUMMARY = """\
p.toml is valid
  small      3,000 iterations, validation after every 200 iterations
  model      torch.nn:Flatten
  task       hookflow.zoo.tasks:Classification
  optimizer  torch.optim:SGD
  data       train cifar10, val cifar10, no test
  hooks      3 hooks at 2 points; switched off: ema
  order      1 pair of neighbours: ordered 1 by phase
"""


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A valid pipeline, p.toml in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "p.toml").write_text(SOUND)
    return tmp_path / "p.toml"


def check(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, ["check", "p.toml", *arguments], catch_exceptions=False)
    assert result.exit_code == exit_code
    return result.stdout


def test_a_sound_pipeline_is_summed_up(pipeline: Path) -> None:
    assert check() == SUMMARY
    assert check("--strict") == SUMMARY


CLASH = ("--set", "hooks.clip2={use='grad_clip', args={max_norm=2.0}}")


def test_an_ambiguous_order_is_named_and_is_not_strict(pipeline: Path) -> None:
    told = check(*CLASH, "--strict", exit_code=1)
    assert told == check(*CLASH)
    assert told.startswith("p.toml is valid, with 1 ambiguous pair\n")
    assert (
        "  ambiguous  clip and clip2 touch grads, at before_optimizer_step\n"
        "             (state which fires first, by after or before; or that either may, by ambiguous_with)\n"
    ) in told
    allowed = check(*CLASH, "--set", "hooks.clip.ambiguous_with=['clip2']", "--strict")
    assert allowed.startswith("p.toml is valid\n")


def test_the_hint_of_an_ambiguous_pair_takes_no_side(pipeline: Path) -> None:
    (pair,) = json.loads(check(*CLASH, "--format", "json"))["ambiguities"]
    assert pair["hint"] == (
        'state which is right. clip first, as now: after = ["clip"] in [hooks.clip2]; '
        'clip2 first: after = ["clip2"] in [hooks.clip]; either: ambiguous_with = ["clip"] in [hooks.clip2]'
    )


def test_an_edge_between_the_copy_of_a_save_and_its_end_on_disk_is_doubted(pipeline: Path) -> None:
    (pipeline.parent / "saves.py").write_text(
        "class Copies:\n    def around_save_checkpoint(self):\n        yield\n\n\n"
        "class Uploads:\n    def after_save_checkpoint(self, path): ...\n"
    )
    hooks = ("hooks.w={use='./saves.py:Copies'}", "hooks.s={use='./saves.py:Uploads', before=['w']}")
    told = check(*(part for hook in hooks for part in ("--set", hook)), "--strict", exit_code=1)
    assert 'the edge between "s" and "w" can never matter: they share no point' in told


def test_thousands_of_ambiguous_pairs_are_counted_as_far_as_anybody_reads(pipeline: Path) -> None:
    many = [f"hooks.h{k}={{use='builtins:print', points=['after_train_iter'], writes=['lr']}}" for k in range(60)]
    told = check(*(part for one in many for part in ("--set", one)))
    assert told.startswith("p.toml is valid, with at least 1,000 ambiguous pairs\n")
    assert "             and 994 or more\n" in told


def test_what_has_given_way_is_told(pipeline: Path) -> None:
    told = check("--set", "hooks.print.reads=['lr']", "--set", "hooks.print.before=['sched']",
                 "--set", "hooks.sched={use='builtins:print', points=['after_train_iter'], writes=['lr']}")  # fmt: skip
    assert "  gave way   sched → print (lr), to print → sched; at after_train_iter\n" in told


def test_a_hook_that_never_fires_is_warned_of(pipeline: Path) -> None:
    told = check(
        "--set",
        "hooks.stop={use='early_stop', args={monitor='x', mode='max'}}",
        "--set",
        "data={train={use='cifar10'}}",
    )
    assert "p.toml is valid, with 1 warning\n" in told
    assert 'hook "stop" never fires\n    there is no [data.val]\n' in told
    late = check("--set", "hooks.log.from='9000it'", "--strict", exit_code=1)
    assert 'hook "log" never fires' in late
    assert "the run ends before its trigger lets it" in late


def test_a_hook_that_is_to_choose_by_a_metric_of_no_validation_is_warned_of(pipeline: Path) -> None:
    no_val = "--set", "data={train={use='cifar10'}}"
    keeps = "--set", "hooks.keeps={use='checkpoint', args={monitor='x', mode='max', top=3}}"
    told = check(*keeps, *no_val)
    assert "p.toml is valid, with 1 warning\n" in told
    hint = "it reads metrics.x there, and there is no [data.val]"
    assert f'hook "keeps" never fires at after_val\n    {hint}\n' in told
    check(*keeps, "--strict")
    check("--set", "hooks.keeps={use='checkpoint'}", *no_val, "--strict")


def test_a_point_where_a_hook_never_fires_is_warned_of(pipeline: Path) -> None:
    often = "--set", "hooks.print.points=['after_train_epoch', 'after_val', 'after_run']"
    told = check(*often, "--set", "hooks.print.every=10", "--strict", exit_code=1)
    assert 'hook "print" never fires at after_run\n' in told
    assert "every 10: the run ends before that\n" in told
    assert "p.toml is valid, with 1 warning\n" in told, "15 validations are enough, and of epochs nobody knows"
    check(*often, "--set", "hooks.print.every=10it", "--strict")


@pytest.mark.parametrize(
    ("hook", "said", "hint"),
    [
        ('every=9, points=[{at="after_run", every=5}]', "every has no effect", "hooks.print.points.0.every"),
        ('from="2ep", points=[{at="after_run", from=5}]', "from has no effect", "hooks.print.points.0.from"),
        ('modules=["*"], points=["after_run"]', "modules has no effect", "it is at after_run"),
    ],
)
def test_a_key_of_a_hook_that_holds_nowhere_is_a_mistake(pipeline: Path, hook: str, said: str, hint: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        valid_plan(load(pipeline, [f'hooks.print={{use="builtins:print", {hook}}}']))
    assert hint in str(raised.value)
    valid_plan(load(pipeline, ['hooks.print={use="builtins:print", every=9, points=["after_run", "after_val"]}']))


def test_a_bare_hook_wide_number_counts_iterations_and_elsewhere_the_hook_fires_each_time(pipeline: Path) -> None:
    points = "hooks.print.points=['after_train_iter', 'after_val_iter', 'after_train_epoch', 'after_val', 'after_run']"
    told = json.loads(check("--set", points, "--set", "hooks.print.every=10", "--strict", "--format=json"))
    when = {one["point"]: one["trigger"] for one in told["firings"] if one["hook"] == "print"}
    assert when == {
        "after_train_iter": "every 10",
        "after_val_iter": "every 10",
        "after_train_epoch": "",
        "after_val": "",
        "after_run": "",
    }


@pytest.mark.parametrize(
    "hook",
    [
        'use="early_stop", args={monitor="score"}',
        'use="checkpoint", args=["score"]',
        'use="scheduler", args={metric="score", chain=[{use="ReduceLROnPlateau"}]}',
    ],
)
def test_a_metric_whose_name_does_not_say_what_is_better_needs_a_mode(pipeline: Path, hook: str) -> None:
    with pytest.raises(UserError, match='"score" does not say whether less or more of it is better') as raised:
        valid_plan(load(pipeline, [f"hooks.judge={{{hook}}}"]))
    assert 'write mode = "min" or mode = "max"' in str(raised.value)


def test_it_says_when_what_does_not_always_fire_does(pipeline: Path) -> None:
    told = check("--set", "hooks.print.every=500")
    assert "  fires      print at after_train_iter: every 500 iterations, first after iteration 500: 6 times\n" in told


def test_hooks_can_be_left_out_and_shuffled(pipeline: Path) -> None:
    assert "  hooks      2 hooks at 2 points; switched off: log, ema\n" in check("--without", "log")
    assert "  hooks      1 hook at 1 point; switched off: clip, print, ema\n" in check("--only", "log")
    assert "1 by the shuffle with seed 3 alone" in check("--set", "hooks.log.phase=normal", "--shuffle", "3")


def test_an_editor_is_told_in_json(pipeline: Path) -> None:
    told = json.loads(check(*CLASH, "--format", "json"))
    assert (told["valid"], told["problems"], told["warnings"]) == (True, [], [])
    (pair,) = told["ambiguities"]
    assert (pair["first"], pair["then"], pair["slots"]) == ("clip", "clip2", ["grads"])
    assert {firing["hook"] for firing in told["firings"]} == {"clip", "clip2", "log", "print"}
    wrong = json.loads(check("--set", "hooks.log.afer=[]", "--format", "json", exit_code=2))
    assert wrong["valid"] is False
    (problem,) = wrong["problems"]
    assert (problem["source"], problem["hint"]) == ("--set hooks.log.afer=[]", 'did you mean "after"?')
