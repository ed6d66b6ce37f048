"""The orders that other systems' users had to find out the hard way, got right here whatever the file's order."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from hookflow.graph.ambiguity import ambiguities
from hookflow.graph.plan import Plan
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.registry import BUILT_IN
from hookflow.pipeline.load import parse

HEAD = """
run = { name = "troubles", max_epochs = 1 }
model.use = "torch.nn:Identity"
optimizer.use = "torch.optim:SGD"
data.train.use = "cifar10"
"""
ARGUMENTS = {
    "activation_checkpoint": 'args = { match = ["*"] }',
    "freeze": 'args = { params = ["*"] }',
    "grad_clip": "args = { max_norm = 1.0 }",
    "comm_hook": 'args = { algorithm = "fp16_compress" }',
    "metrics": 'args = { metrics = { f1 = { use = "MulticlassF1Score" } } }',
    "predict": 'args = { outputs = ["logits"] }',
    "tta": 'args = { transforms = ["hflip"] }',
    "scheduler": 'args = { chain = [{ use = "ConstantLR" }] }',
    "time_limit": 'args = { limit = "3h50m" }',
}


def plan(*uses: str, more: str = "") -> Plan:
    tables = "".join(f'[hooks.{use}]\nuse = "{use}"\n{ARGUMENTS.get(use, "")}\n' for use in uses)
    return compile_pipeline(parse(HEAD + tables + more, Path("troubles.toml")))


def order(compiled: Plan, point: str) -> list[str]:
    return [binding.hook for binding in compiled.at(point)]


@pytest.mark.parametrize("uses", list(itertools.permutations(("checkpoint", "early_stop", "ema", "accuracy"))))
class TestWhateverTheFilesOrder:
    def test_the_average_is_swapped_out_before_anyone_judges_or_saves(self, uses: tuple[str, ...]) -> None:
        assert order(plan(*uses), "after_val") == ["ema", "early_stop", "checkpoint"]

    def test_metrics_are_there_before_who_reads_them(self, uses: tuple[str, ...]) -> None:
        report = '[hooks.report]\nuse = "builtins:print"\npoints = ["after_val_epoch"]\nreads = ["metrics"]\n'
        compiled = plan(*uses, more=report + 'phase = "first"\n')
        assert order(compiled, "after_val_epoch") == ["accuracy", "report"], "data flow is stronger than a phase"

    def test_what_changes_the_weights_comes_before_their_average(self, uses: tuple[str, ...]) -> None:
        table = '[hooks.renormalise]\nuse = "builtins:print"\npoints = ["after_optimizer_step"]\n'
        compiled = plan(*uses, more=table + 'reads = ["model"]\nwrites = ["model"]\n')
        assert order(compiled, "after_optimizer_step") == ["renormalise", "ema"]


def test_no_two_built_in_hooks_are_ambiguous_in_any_order_of_the_file() -> None:
    lots = random.Random(0)
    for other in ("lr_schedule", "scheduler") * 10:
        uses = [use for use in BUILT_IN if use not in (other, "lr_finder")]  # which has a run of its own
        assert not list(ambiguities(plan(*lots.sample(uses, len(uses)))))


def test_two_schedules_of_one_rate_are_ambiguous() -> None:
    (found,) = ambiguities(plan("scheduler", "lr_schedule"))
    assert (found.point, found.slots) == ("before_train_iter", ("lr",))


def test_two_averages_are_ambiguous_until_they_are_ordered_or_allowed() -> None:
    second = '[hooks.slow]\nuse = "ema"\n'
    found = {(each.point, each.first.hook, each.then.hook) for each in ambiguities(plan("ema", more=second))}
    assert ("before_val", "ema", "slow") in found
    assert not list(ambiguities(plan("ema", more=second + 'after = ["ema"]\n')))
    assert not list(ambiguities(plan("ema", more=second + 'ambiguous_with = ["ema"]\n')))
