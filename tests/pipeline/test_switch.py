"""`--without` and `--only`: switched off for one run, and told when there is no such hook."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.errors import UserError, Where
from hookflow.pipeline.load import Loaded, parse

TEXT = """\
[run]
name = "p"
default_hooks = false
max_epochs = 2
[model]
use = "m:M"
[optimizer]
use = "torch.optim:SGD"
[data.train]
use = "d:D"
[hooks.ema]
use = "ema"
[hooks.1]
use = "log"
[hooks.clip]
use = "grad_clip"
enabled = false
"""


def load(*overrides: str, without: tuple[str, ...] = (), only: tuple[str, ...] = ()) -> Loaded:
    return parse(TEXT, Path("p.toml"), overrides, without=without, only=only)


def on(loaded: Loaded) -> list[str]:
    return [name for name, hook in loaded.pipeline.hooks.items() if hook.enabled]


def test_hooks_are_switched_off_by_name() -> None:
    loaded = load("run.seed=1", without=("ema",))
    assert on(loaded) == ["1"]
    assert loaded.places.of("hooks.ema.enabled") == Where("--without ema")
    assert loaded.overrides == ("run.seed=1", "hooks.ema.enabled=false")


def test_all_but_some_are_switched_off() -> None:
    loaded = load("hooks.new={use='log'}", only=("1", "new"))
    assert on(loaded) == ["1", "new"]
    assert loaded.places.of("hooks.ema.enabled") == Where("--only 1 --only new")
    assert on(load(only=("1", "ema"), without=("ema",))) == ["1"]


def test_the_overrides_do_the_same_again() -> None:
    once = load("hooks.x={use='log'}", only=("ema", "x"), without=("x",))
    assert load(*once.overrides).pipeline == once.pipeline


def test_unknown_names_are_told_with_the_nearest() -> None:
    with pytest.raises(UserError) as caught:
        load("run.seed=-1", without=("emaa", "emaa"), only=("zz",))
    assert [str(problem) for problem in caught.value.problems] == [
        '--only zz: there is no hook "zz" in this pipeline\n    its hooks are ema, 1, clip',
        "--set run.seed=-1: run.seed must be at least 0, not -1",
        '--without emaa: there is no hook "emaa" in this pipeline\n    did you mean "ema"?',
    ]
