"""Pipelines in which every order is right: `check --strict` says nothing of them, with `--commute` and without.

What ships, made small; two models that each have hooks of their own; and all built-in hooks, the other way round.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hookflow.hooks.registry import BUILT_IN
from hookflow.pipeline.load import Loaded
from hookflow.service.findings import Findings
from hookflow.service.pipelines import read_pipeline, valid_plan
from hookflow.trials.commute import Commuted, commute
from tests.conftest import TESTS, TOY
from tests.hooks.test_contracts import SAMPLES, inline

SHIPPED = TESTS.parent / "pipelines"
SMALL = {
    "hello": (),
    "cifar": (
        "model.args.widths=[4, 4, 4]",
        *(
            f"data.{split}.args.{key}"
            for split in ("train", "val")
            for key in ("root='no-images'", "download=false", "limit=64", "batch_size=16")
        ),
    ),
    "chargpt": (
        "model.args.width=8",
        "model.args.layers=1",
        "hooks.sample.args.count=2",
        *(f"data.{split}.args.batch_size=2" for split in ("train", "val")),
    ),
    "gaussian2d": ("model.args.count=20", "data.train.args.side=16", "data.train.args.batch_size=64"),
}
"""What makes each shipped pipeline small, and its data synthetic."""

PAIRS = {
    "clip": ("grad_clip", 'max_norm = 0.5, model = "{}"'),
    "ema": ("ema", 'decay = 0.9, model = "{}"'),
    "schedule": ("scheduler", 'chain = [{{ use = "CosineAnnealingLR" }}], optimizer = "{}"'),
}
"""What each of two models has for itself."""


def tried(pipeline: Loaded) -> Commuted:
    """Try every pair; nothing may be doubtful, before and after."""
    result = Findings.of(pipeline, valid_plan(pipeline))
    assert not result.doubtful, "\n".join(result.lines(120))
    commuted = commute(pipeline, result.plan, pipeline.source.parent, lambda *said: None)
    result = replace(result, commuted=commuted)
    assert not result.doubtful, "\n".join(result.lines(120))
    return commuted


def names(commuted: Commuted) -> set[tuple[str, ...]]:
    return {tuple(sorted(pair.hooks)) for pair in commuted.same}


def test_every_shipped_pipeline_is_made_small() -> None:
    assert {path.stem for path in SHIPPED.glob("*.toml")} == SMALL.keys()


@pytest.mark.parametrize("name", SMALL)
def test_what_ships(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").symlink_to(SHIPPED.parent / "docs")  # which chargpt reads
    monkeypatch.chdir(tmp_path)
    pipeline = read_pipeline(SHIPPED / f"{name}.toml", ("run.threads=1", "run.device='cpu'", *SMALL[name]))
    assert not tried(pipeline).untried


def test_a_pair_of_everything() -> None:
    hooks = [
        f'hooks.{hook}_{model}={{ use = "{use}", args = {{ {args.format(model)} }} }}'
        for hook, (use, args) in PAIRS.items()
        for model in ("generator", "discriminator")
    ]
    accuracies = [f'hooks.top{k}={{ use = "accuracy", args = {{ topk = {k} }} }}' for k in (1, 2)]
    task = ["run.threads=1", 'task.use="./gan.py:Tells"']
    pipeline = read_pipeline(TESTS / "gan.toml", (*task, *hooks, *accuracies), without=["clip", "ema", "schedule"])
    same = names(tried(pipeline))
    assert {(f"{hook}_discriminator", f"{hook}_generator") for hook in PAIRS} <= same
    assert ("top1", "top2") in same


def test_all_built_in_hooks_backwards(tmp_path: Path) -> None:
    # The rates that `lr_schedule` sets, too; one that is slow and reads nothing; one that needs images; and one that
    # refuses a run with `accumulation_schedule`.
    apart = {"scheduler", "profiler", "resize", "sam"}
    others = {"whiten", "comm_hook", "batch_size_finder"}
    assert BUILT_IN.keys() - SAMPLES.keys() == others, "of one network; of several ranks; of no iteration"
    run = TOY.read_text().partition("[hooks.")[0].replace("./toy.py", str(TESTS / "toy.py"))
    tables = [
        f'[hooks.{name}]\nuse = "{name}"\nargs = {inline(SAMPLES[name])}'
        for name in reversed(SAMPLES)
        if name not in apart
    ]
    file = tmp_path / "backwards.toml"
    file.write_text("\n".join([run, f'[task]\nuse = "{TESTS / "own_tasks.py"}:paints"', *tables]))
    commuted = tried(read_pipeline(file, ("run.threads=1", "run.test=true")))
    assert len(commuted.same) > 40
    assert not commuted.untried
