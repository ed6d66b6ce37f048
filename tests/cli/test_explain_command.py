"""`hookflow explain`: what is declared of a key, in the usual words; and the nearest right key for a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError
from hookflow.pipeline.json_schema import all_keys, find_key


def explain(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["explain", *arguments], env={"COLUMNS": "80"})
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_key_has_a_sentence_a_type_a_default_and_an_example() -> None:
    assert (
        explain("run.accumulate")
        == """\
run.accumulate
How many batches an iteration adds up the gradients of, before the optimizer
steps.

  type     int ≥ 1
  default  1
  example  [run]
           accumulate = 1
"""
    )


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        ("run.precision", ['type     "auto" or "fp32"', 'default  "fp32"', "[run]", 'precision = "auto"']),
        ("run.name", ["type     str, required"]),
        ("run.max_epochs", ["type     int ≥ 1\n"]),
        ("hooks.*.every", ["type     int ≥ 1 or str", "[hooks.ema]", "every = 100"]),
        ("hooks.ema.every", ["int ≥ 1 or str"]),
        ("hooks.ema.args.decay", ["type     float > 0, < 1", "default  0.999", "args = { decay = 0.999 }"]),
        ("hooks.ema.args.decay", ["\nShare of the average that a step keeps.\n"]),
        ("hooks.ema.args", ["default  {}", "args = { decay = 0.999 }"]),
        ("hooks.grad_clip.args", ["args = { max_norm = "]),
        ("hooks.mine.args", ["type     table or list"]),
        ("hooks.grad_clip.args.max_norm", ["type     float > 0, required"]),
        ("model.weights", ["[model]", 'weights = "pretrained.pt"']),
        ("model.generator.weights", ["[model.generator]"]),
        ("optimizer.groups.*.match", ["str, required", "[[optimizer.groups]]"]),
        ("data.train.loader.batch_size", ["int ≥ 1, required", "[data.train.loader]"]),
        ("run", ["run.name  (required)", "run.seed", "int ≥ 0, < 2^63: Where every random generator"]),
        ("", ["hooks", "distributed"]),
    ],
)
def test_what_is_told_of_it(key: str, lines: list[str]) -> None:
    told = explain(key)
    assert all(line in told for line in lines), told


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("run.precison", 'did you mean "run.precision"?'),
        ("hooks.ema.evry", 'did you mean "hooks.ema.every"?'),
        ("hooks.ema.args.dekay", 'did you mean "decay"?'),
        ("hooks.eam.args.decay", 'did you mean "ema"?'),
        ("precision", 'did you mean "run.precision"?'),
        ("batch_size", "there are data.train.loader.batch_size, data.val.loader.batch_size"),
        ("run.seed.x", 'did you mean "run.seed"?'),
        ("rnu.seed", 'did you mean "run"?'),
    ],
)
def test_a_wrong_key_is_told_the_nearest_right_one(key: str, hint: str) -> None:
    with pytest.raises(UserError) as told:
        explain(key)
    assert hint in told.value.problems[0].hint


@pytest.mark.parametrize("key", all_keys())
def test_every_key_is_explained_and_its_example_is_toml(key: str) -> None:
    found = find_key(key)
    assert found.about
    assert found.type != "any value"
    tomli.loads(found.example)
    assert found.example or found.keys or found.type in ("table", "table or list", "tables by name")


def test_a_hook_of_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    def __init__(self, share: float) -> None: ...\n    def after_run(self): ...\n"
    )
    pipeline = tmp_path / "p.toml"
    pipeline.write_text(
        '[run]\nname="p"\nmax_iters=1\n[model]\nuse="torch.nn:Flatten"\n[optimizer]\nuse="torch.optim:SGD"\n'
        '[data.train]\nuse="cifar10"\n[hooks.own]\nuse="./mine.py:Mine"\nargs={share=0.5}\n'
    )
    assert "float, required" in explain("hooks.own.args.share", str(pipeline))
    with pytest.raises(UserError, match="none of the hooks known here"):
        explain("hooks.own.args.share")


@pytest.mark.parametrize(("what", "near"), [("emaa", "ema"), ("precision", "run.precision"), ("ema", "")])
def test_a_hook_is_explained_too(what: str, near: str) -> None:
    if near:
        with pytest.raises(UserError, match=f'did you mean "{near}"'):
            explain(what)
    else:
        assert explain(what).startswith("ema  (hookflow.hooks.builtin.averaging:EMA)")


def test_points_hooks_and_the_schema_are_explained() -> None:
    assert "before_train_iter" in explain("points")
    assert "grad_clip" in explain("hooks")
    assert '"$schema"' in explain("schema")
