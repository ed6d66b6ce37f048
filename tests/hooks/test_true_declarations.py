"""What built-in hooks read and write in a run that is observed: all of it is declared, and no order is ambiguous."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli

from hookflow.graph.observation import Slots, missing, never_seen, with_observed
from hookflow.graph.plan import Plan
from hookflow.graph.why import ambiguities
from hookflow.hooks.registry import BUILT_IN
from hookflow.pipeline.load import load
from hookflow.service.pipelines import valid_plan
from hookflow.trials import temporary_run
from hookflow.trials.temporary_run import Observed, observe
from tests.conftest import TOY
from tests.hooks.test_contracts import SAMPLES

SOON = {
    "early_stop": {"monitor": "accuracy", "patience": 1, "mode": "min"},
    "freeze": {"params": ["body.*"], "end": 2},
    "lr_finder": {"start": 1e-4, "end": 1.0, "iters": 10},
    "spike_guard": {"window": 2, "sigmas": 1e-6, "rollback": True},
    "swa": {"begin": 0, "every": 1},
    "time_limit": {"limit": "1s"},
}
"""Arguments with which hooks do early in a run what they do."""

ALONE = ("scheduler", "lr_finder", "images", "resize", "sam")
TOGETHER = tuple(name for name in SAMPLES if name not in ALONE)
"""The hooks that can be in one pipeline; the others are each tested beside a few."""

OTHERS = (
    ("scheduler", "param_schedule", "grad_clip", "lr_monitor"),
    ("lr_finder", "ema", "log", "grad_norm"),
    ("images", "confusion_matrix", "throughput"),
    ("resize", "mixup", "log"),
    ("sam", "mixup", "grad_clip", "ema", "log"),
)

UNSEEN: dict[str, Slots] = {
    "activation_checkpoint": Slots(writes=("model",)),  # what a module calls, and no tensor of it
    "activation_stats": Slots(reads=("model",)),  # its modules by name, and no tensor of it
    "export": Slots(reads=("checkpoint", "model")),  # nothing is exported of a run that is not kept
    "freeze": Slots(reads=("grads",)),  # says where it stands
    "predict": Slots(reads=("batch",)),  # keys of a batch that is a mapping
    "sync_buffers": Slots(reads=("model",), writes=("model",)),  # over several ranks
    "time_limit": Slots(writes=("checkpoint", "control")),  # within the second
    "tta": Slots(reads=("model",)),  # it changes what calls the model
}
"""What is declared for a case that a short run on one process does not come to."""


def observed(hooks: Sequence[str], folder: Path) -> tuple[Plan, Observed]:
    """Observe the toy pipeline with these hooks and no others, its epoch long enough for a sweep."""
    tables: dict[str, Any] = tomli.loads(TOY.read_text())
    tables["hooks"] = {name: {"use": name, "args": SOON.get(name, SAMPLES[name])} for name in hooks}
    tables["run"] |= {"default_hooks": False, "threads": 1, "test": True, "dir": str(folder)}
    if "images" in hooks:
        tables["task"] = {"use": "./own_tasks.py:paints"}
    if "resize" in hooks:
        tables["model"], tables["data"]["train"] = {"use": "./toy.py:Pooled"}, {"use": "./toy.py:Squares"}
    loaded = load(tables)
    plan = valid_plan(loaded, TOY.parent)
    return plan, observe(loaded, plan, TOY.parent, lambda *said: None)


def assert_declared(plan: Plan, found: Observed) -> None:
    raised = [item for item in found.silent if item.why.startswith("raised")]
    assert not raised
    assert missing(plan, found.seen) == {}
    assert not list(ambiguities(with_observed(plan, found.seen)))


@pytest.mark.parametrize(
    "hooks", [TOGETHER, pytest.param(TOGETHER[::-1], marks=pytest.mark.long)], ids=["in order", "backwards"]
)
def test_what_built_in_hooks_touch_is_declared_and_orders_them(hooks: Sequence[str], tmp_path: Path) -> None:
    plan, found = observed(hooks, tmp_path)
    assert_declared(plan, found)
    never: Mapping[str, Slots] = never_seen(found.seen)
    assert {name: slots for name, slots in never.items() if name not in ("time_limit", "spike_guard")} == {
        name: slots for name, slots in UNSEEN.items() if name != "time_limit"
    }


@pytest.mark.parametrize("hooks", OTHERS, ids=[first for first, *_ in OTHERS])
def test_so_it_is_of_those_that_stand_alone(
    hooks: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_run, "ITERS", 5)
    assert_declared(*observed(hooks, tmp_path))


def test_every_built_in_hook_is_observed_here() -> None:
    assert {*TOGETHER, *(name for hooks in OTHERS for name in hooks)} == BUILT_IN.keys() - {
        *("whiten", "comm_hook", "batch_size_finder")
    }
