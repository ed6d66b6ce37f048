"""What the commands say of hooks that fire on rank 0 alone."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import hookflow_here

PIPELINE = """
[run]
name = "p"
default_hooks = false
max_epochs = 1

[model]
use = "torch.nn:Flatten"

[optimizer]
use = "torch.optim:SGD"

[data.train]
use = "./own.py:data"

[hooks.ema]
use = "ema"
ranks = "zero"

[hooks.speaks]
use = "./own.py:Speaks"
"""

OWN = """
def data():
    return []


class Speaks:
    \"\"\"Speaks for all.\"\"\"

    ranks = "zero"

    def after_train_epoch(self, run):
        run.say("done")


class Wrong(Speaks):
    ranks = "zeor"
"""


def here(tmp_path: Path) -> Path:
    (tmp_path / "p.toml").write_text(PIPELINE)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def test_the_order_says_who_fires_on_rank_0_alone(tmp_path: Path) -> None:
    lines = hookflow_here("graph", "p.toml", cwd=here(tmp_path)).stdout.splitlines()
    assert [line.split() for line in lines if "speaks" in line] == [
        ["after_train_epoch", "speaks", "rank", "0", "alone"]
    ]


def test_what_would_let_ranks_drift_apart_is_doubtful(tmp_path: Path) -> None:
    told = hookflow_here("check", "p.toml", "--strict", cwd=here(tmp_path))
    said = told.stdout + told.stderr
    assert told.returncode == 1
    assert 'hook "ema" fires on rank 0 alone and writes model: several ranks would drift apart' in said
    assert 'ranks = "all"' in said
    assert '"speaks"' not in said


def test_a_hook_is_described_with_its_ranks(tmp_path: Path) -> None:
    told = hookflow_here("explain", "./own.py:Speaks", cwd=here(tmp_path)).stdout
    assert [line.split() for line in told.splitlines() if line.strip().startswith("ranks")] == [["ranks", "zero"]]


def test_ranks_of_another_name_are_a_mistake(tmp_path: Path) -> None:
    told = hookflow_here("check", "p.toml", "--set", "hooks.speaks.use='./own.py:Wrong'", cwd=here(tmp_path))
    assert told.returncode == 2
    assert "Wrong.ranks must be one of zero, all, not 'zeor'" in told.stderr
    assert 'did you mean "zero"?' in told.stderr
