"""Orders of built-in hooks: right whatever the file's order,
and everything that they touch is declared.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli

from hookflow.errors import UserError
from hookflow.graph.observation import Slots, find_unseen_slots, missing, with_observed
from hookflow.graph.plan import Plan
from hookflow.graph.why import find_ambiguities
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.pipeline.registry import HOOKS
from hookflow.service.pipelines import valid_plan
from hookflow.trials import temporary_run
from hookflow.trials.temporary_run import ObservationResult, observe
from tests.conftest import TOY
from tests.hooks.stand_ins import pipeline_with, plan
from tests.support.built_in_hooks import SAMPLES


def order(compiled: Plan, point: str) -> list[str]:
    return [binding.hook for binding in compiled.at(point)]


@pytest.mark.parametrize(
    "uses", [*itertools.permutations(("checkpoint", "early_stop", "ema", "accuracy"))]
)
def test_whatever_the_files_order_data_flow_orders_them(uses: tuple[str, ...]) -> None:
    report = (
        '[hooks.report]\nuse = "builtins:print"\npoints = ["after_val_epoch"]\nreads ='
        ' ["metrics"]\n'
    )
    table = '[hooks.renormalise]\nuse = "builtins:print"\npoints = ["after_optimizer_step"]\n'
    more = f'{report}phase = "first"\n{table}reads = ["model"]\nwrites = ["model"]\n'
    compiled = plan(*uses, more=more)
    assert order(compiled, "after_val") == [
        "ema",
        "early_stop",
        "checkpoint",
    ], "the average is swapped out first"
    assert order(compiled, "after_val_epoch") == [
        "accuracy",
        "report",
    ], "data flow is stronger than a phase"
    assert order(compiled, "after_optimizer_step") == ["renormalise", "ema"]


def alarms(compiled: Plan) -> list[object]:
    return [*compiled.warnings, *compiled.notes, *find_ambiguities(compiled)]


@pytest.mark.parametrize("other", ["lr_schedule", "scheduler"])
def test_the_built_in_hooks_raise_none_in_any_order_of_the_file(other: str) -> None:
    """Two take each other's place, one has a run of its own,
    and one a metric that is given to it.
    """
    generator = random.Random(0)
    uses = [use for use in HOOKS.built_in if use not in (other, "lr_finder", "early_stop")]
    for shuffled in (
        uses,
        uses[::-1],
        generator.sample(uses, len(uses)),
        generator.sample(uses, len(uses)),
    ):
        assert alarms(plan(*shuffled)) == []


def test_two_schedules_or_averages_or_hooks_of_one_model_are_ambiguous() -> None:
    (result,) = find_ambiguities(plan("scheduler", "lr_schedule"))
    assert (result.point, result.slots) == ("before_train_iter", ("lr",))
    second = '[hooks.slow]\nuse = "ema"\n'
    result = {
        (each.point, each.first.hook, each.then.hook)
        for each in find_ambiguities(plan("ema", more=second))
    }
    assert ("before_val", "ema", "slow") in result
    assert not list(find_ambiguities(plan("ema", more=second + 'after = ["ema"]\n')))
    assert not list(find_ambiguities(plan("ema", more=second + 'ambiguous_with = ["ema"]\n')))
    of_model = ', model = "{0}" }}\n'
    clips = '[hooks.clip_{0}]\nuse = "grad_clip"\nargs = {{ max_norm = 1.0' + of_model
    both = '[hooks.both]\nuse = "grad_clip"\nargs = { max_norm = 1.0 }\n'
    compiled = plan(more="".join(map(clips.format, ("one", "other"))) + both)
    assert {
        (each.first.hook, each.then.hook, each.slots) for each in find_ambiguities(compiled)
    } == {
        ("clip_one", "both", ("grads.one",)),
        ("clip_other", "both", ("grads.other",)),
    }


def test_a_key_may_be_several_or_the_hooks_own_name_but_no_unknown_argument(tmp_path: Path) -> None:
    best = '[hooks.best]\nuse = "checkpoint"\nargs = { monitor = { psnr = "max", loss = "min" } }\n'
    compiled = plan("ema", more=best)
    (saver,) = [b for b in compiled.at("after_val") if b.hook == "best"]
    assert saver.reads == ("metrics.loss", "metrics.psnr")
    (keeps,) = [b for b in compiled.at("before_save_checkpoint") if b.hook == "ema"]
    assert keeps.writes == ("checkpoint.model_ema",)
    code = 'class It:\n    reads = ("model.{modle}",)\n    def __init__(self, model=None): ...\n'
    message = r'It has a slot "model.{modle}", and no argument "modle"\n +did you mean "model"'
    with pytest.raises(UserError, match=message):
        compile_pipeline(pipeline_with(tmp_path, f"{code}    def after_val(self): ...\n"))
    code = (
        "from hookflow.hooks.builtin.averaging import EMA\nclass It(EMA):\n    def __init__(self,"
        " every=1): ...\n"
    )
    with pytest.raises(UserError) as caught:
        compile_pipeline(pipeline_with(tmp_path, code))
    (problem,) = caught.value.problems
    assert problem.message.endswith('and no argument "model", "monitor", "decay"')


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


def observed(hooks: Sequence[str], folder: Path) -> tuple[Plan, ObservationResult]:
    """Observe the toy pipeline with these hooks and no others,
    its epoch long enough for a sweep.
    """
    tables: dict[str, Any] = tomli.loads(TOY.read_text())
    tables["hooks"] = {name: {"use": name, "args": SOON.get(name, SAMPLES[name])} for name in hooks}
    tables["run"] |= {"default_hooks": False, "threads": 1, "test": True, "dir": str(folder)}
    if "images" in hooks:
        tables["task"] = {"use": "./own_tasks.py:paints"}
    if "resize" in hooks:
        tables["model"], tables["data"]["train"] = (
            {"use": "./toy.py:Pooled"},
            {"use": "./toy.py:Squares"},
        )
    if "tta" in hooks:
        tables["model"] = {"use": "./toy.py:Pooled"}
        for split in ("val", "test"):
            tables["data"][split]["use"] = "./toy.py:Squares"
    loaded = load(tables)
    plan = valid_plan(loaded, TOY.parent)
    return plan, observe(loaded, plan, TOY.parent, lambda *said: None)


def assert_declared(plan: Plan, found: ObservationResult) -> None:
    raised = [item for item in found.silent if item.why.startswith("raised")]
    assert not raised
    assert missing(plan, found.seen) == {}
    assert not list(find_ambiguities(with_observed(plan, found.seen)))


@pytest.mark.parametrize(
    "hooks",
    [TOGETHER, pytest.param(TOGETHER[::-1], marks=pytest.mark.long)],
    ids=["in order", "backwards"],
)
def test_what_built_in_hooks_touch_is_declared_and_orders_them(
    hooks: Sequence[str], tmp_path: Path
) -> None:
    plan, found = observed(hooks, tmp_path)
    assert_declared(plan, found)
    never: Mapping[str, Slots] = find_unseen_slots(found.seen)
    assert {
        name: slots for name, slots in never.items() if name not in ("time_limit", "spike_guard")
    } == {name: slots for name, slots in UNSEEN.items() if name != "time_limit"}


@pytest.mark.parametrize("hooks", OTHERS, ids=[first for first, *_ in OTHERS])
def test_so_it_is_of_those_alone(
    hooks: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_run, "TRIAL_ITERS", 5)
    assert_declared(*observed(hooks, tmp_path))


def test_every_built_in_hook_is_observed_here() -> None:
    assert {*TOGETHER, *(name for hooks in OTHERS for name in hooks)} == HOOKS.built_in.keys() - {
        *("whiten", "comm_hook", "batch_size_finder")
    }
