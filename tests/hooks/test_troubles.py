"""The orders that other systems' users had to find out the hard way, got right here whatever the file's order."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from hookflow.errors import UserError
from hookflow.graph.plan import Plan
from hookflow.graph.why import ambiguities
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.registry import BUILT_IN
from hookflow.pipeline.load import parse
from tests.hooks.sources import HEAD, pipeline_with
from tests.hooks.test_contracts import SAMPLES, inline

ARGUMENTS = {**SAMPLES, "comm_hook": {"algorithm": "fp16_compress"}}


def plan(*uses: str, more: str = "") -> Plan:
    tables = "".join(f'[hooks.{use}]\nuse = "{use}"\nargs = {inline(ARGUMENTS.get(use, {}))}\n' for use in uses)
    return compile_pipeline(parse(HEAD + tables + more, Path("troubles.toml")))


def order(compiled: Plan, point: str) -> list[str]:
    return [binding.hook for binding in compiled.at(point)]


@pytest.mark.parametrize("uses", [*itertools.permutations(("checkpoint", "early_stop", "ema", "accuracy"))])
def test_whatever_the_files_order_data_flow_orders_them(uses: tuple[str, ...]) -> None:
    report = '[hooks.report]\nuse = "builtins:print"\npoints = ["after_val_epoch"]\nreads = ["metrics"]\n'
    table = '[hooks.renormalise]\nuse = "builtins:print"\npoints = ["after_optimizer_step"]\n'
    more = f'{report}phase = "first"\n{table}reads = ["model"]\nwrites = ["model"]\n'
    compiled = plan(*uses, more=more)
    assert order(compiled, "after_val") == ["ema", "early_stop", "checkpoint"], "the average is swapped out first"
    assert order(compiled, "after_val_epoch") == ["accuracy", "report"], "data flow is stronger than a phase"
    assert order(compiled, "after_optimizer_step") == ["renormalise", "ema"]


def alarms(compiled: Plan) -> list[object]:
    return [*compiled.warnings, *compiled.notes, *ambiguities(compiled)]


@pytest.mark.parametrize("other", ["lr_schedule", "scheduler"])
def test_the_built_in_hooks_raise_none_in_any_order_of_the_file(other: str) -> None:
    """Two take each other's place, one has a run of its own, and one a metric that is given to it."""
    generator = random.Random(0)
    uses = [use for use in BUILT_IN if use not in (other, "lr_finder", "early_stop")]
    for shuffled in (uses, uses[::-1], generator.sample(uses, len(uses)), generator.sample(uses, len(uses))):
        assert alarms(plan(*shuffled)) == []


def test_two_schedules_of_one_rate_are_ambiguous() -> None:
    (result,) = ambiguities(plan("scheduler", "lr_schedule"))
    assert (result.point, result.slots) == ("before_train_iter", ("lr",))


def test_two_averages_are_ambiguous_until_they_are_ordered_or_allowed() -> None:
    second = '[hooks.slow]\nuse = "ema"\n'
    result = {(each.point, each.first.hook, each.then.hook) for each in ambiguities(plan("ema", more=second))}
    assert ("before_val", "ema", "slow") in result
    assert not list(ambiguities(plan("ema", more=second + 'after = ["ema"]\n')))
    assert not list(ambiguities(plan("ema", more=second + 'ambiguous_with = ["ema"]\n')))


def test_hooks_of_two_models_are_ambiguous_with_one_of_both_and_not_with_one_another() -> None:
    of_model = ', model = "{0}" }}\n'
    clips = '[hooks.clip_{0}]\nuse = "grad_clip"\nargs = {{ max_norm = 1.0' + of_model
    both = '[hooks.both]\nuse = "grad_clip"\nargs = { max_norm = 1.0 }\n'
    compiled = plan(more="".join(map(clips.format, ("one", "other"))) + both)
    assert {(each.first.hook, each.then.hook, each.slots) for each in ambiguities(compiled)} == {
        ("clip_one", "both", ("grads.one",)),
        ("clip_other", "both", ("grads.other",)),
    }


def test_a_key_may_be_several_or_the_hooks_own_name() -> None:
    best = '[hooks.best]\nuse = "checkpoint"\nargs = { monitor = { psnr = "max", loss = "min" } }\n'
    compiled = plan("ema", more=best)
    (saver,) = [b for b in compiled.at("after_val") if b.hook == "best"]
    assert saver.reads == ("metrics.loss", "metrics.psnr")
    (keeps,) = [b for b in compiled.at("before_save_checkpoint") if b.hook == "ema"]
    assert keeps.writes == ("checkpoint.model_ema",)


def test_a_key_that_is_no_argument_is_refused(tmp_path: Path) -> None:
    code = 'class It:\n    reads = ("model.{modle}",)\n    def __init__(self, model=None): ...\n'
    message = r'It has a slot "model.{modle}", and no argument "modle"\n +did you mean "model"'
    with pytest.raises(UserError, match=message):
        compile_pipeline(pipeline_with(tmp_path, f"{code}    def after_val(self): ...\n"))
