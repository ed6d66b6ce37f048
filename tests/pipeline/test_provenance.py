"""Every value that a pipeline is run with says where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.errors import Where
from hookflow.pipeline.load import load
from hookflow.pipeline.provenance import Said, provenance

BASE = """\
[run]
name = "p"
max_epochs = 2
[model]
use = "m:M"
args = { width = 4 }
[optimizer]
use = "torch.optim:SGD"
[data.train]
use = "d:D"
args = "${model.args}"
[hooks.ema]
use = "ema"
[hooks.log]
use = "log"
points = ["after_val", { at = "after_train_iter", after = ["ema"] }]
"""


def test_every_value_says_where_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.toml").write_text(BASE)
    Path("p.toml").write_text('extends = "base.toml"\n[run]\nseed = 1\n[model]\nargs."a b" = 1\n')
    loaded = load(Path("p.toml"), ["run.threads=2", "hooks.x={use='x:X', args={y=1}}"], without=["ema"])
    everything = list(provenance(loaded))
    assert [said for said in everything if said.where is not None] == [
        Said("run.name", "p", Where("base.toml", 2, 1)),
        Said("run.seed", 1, Where("p.toml", 3, 1)),
        Said("run.max_epochs", 2, Where("base.toml", 3, 1)),
        Said("run.threads", 2, Where("--set run.threads=2")),
        Said("model.use", "m:M", Where("base.toml", 5, 1)),
        Said("model.args.width", 4, Where("base.toml", 6, 10)),
        Said('model.args."a b"', 1, Where("p.toml", 5, 6)),
        Said("optimizer.use", "torch.optim:SGD", Where("base.toml", 8, 1)),
        Said("data.train.use", "d:D", Where("base.toml", 10, 1)),
        Said("data.train.args.width", 4, Where("base.toml", 11, 1)),
        Said('data.train.args."a b"', 1, Where("base.toml", 11, 1)),
        Said("hooks.ema.use", "ema", Where("base.toml", 13, 1)),
        Said("hooks.ema.enabled", False, Where("--without ema")),
        Said("hooks.log.use", "log", Where("base.toml", 15, 1)),
        Said("hooks.log.points.0", "after_val", Where("base.toml", 16, 11)),
        Said("hooks.log.points.1.at", "after_train_iter", Where("base.toml", 16, 26)),
        Said("hooks.log.points.1.after", ["ema"], Where("base.toml", 16, 51)),
        Said("hooks.x.use", "x:X", Where("--set hooks.x={use='x:X', args={y=1}}")),
        Said("hooks.x.args.y", 1, Where("--set hooks.x={use='x:X', args={y=1}}")),
        Said("hooks.checkpoint.use", "checkpoint", Where("the default hooks")),
        Said("hooks.checkpoint.default", True, Where("the default hooks")),
    ]
    defaults = {said.key: said.value for said in everything if said.where is None}
    assert defaults["run.device"] == "auto"
    assert defaults["task.use"] == "hookflow.zoo.tasks:Classification"
