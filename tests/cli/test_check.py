"""`hookflow check`: what a sound pipeline amounts to, in a few lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app

SOUND = """\
[run]
name = "small"
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
p.toml is sound
  small      3,000 iterations, validation after every 200 iterations
  model      torch.nn:Flatten
  task       hookflow.zoo.tasks:Classification
  optimizer  torch.optim:SGD
  data       train cifar10, val cifar10, no test
  hooks      3 hooks at 2 points; switched off: ema
  order      of neighbouring hooks 1 by phase
"""


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound pipeline, p.toml in the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(SOUND)
    return tmp_path / "p.toml"


def check(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["check", "p.toml", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_sound_pipeline_is_summed_up(pipeline: Path) -> None:
    assert check() == SUMMARY


def test_what_nothing_but_the_file_orders_is_named(pipeline: Path) -> None:
    told = check("--set", "hooks.log.phase=normal", "--set", "run.max_epochs=1", "--set", "run.val_every=1")
    assert "1 epoch, validation after each epoch" in told
    assert "1 by the file alone\n             at after_train_iter: log, then print\n" in told


def test_a_hook_that_never_fires_is_warned_of(pipeline: Path) -> None:
    told = check("--set", "hooks.stop={use='early_stop', args={monitor='x'}}", "--set", "data={train={use='cifar10'}}")
    assert '  warning    hook "stop" never fires: there is no [data.val] (--set hooks.stop=' in told


@pytest.mark.parametrize("command", ["check", "graph"])
def test_nobody_needs_torch_to_look_at_a_pipeline(command: str, pipeline: Path) -> None:
    code = (
        "import sys; from hookflow.cli.app import main\n"
        f"sys.argv = ['hookflow', {command!r}, 'p.toml']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'textual', 'numpy') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.endswith("[]\n")
