"""Hugging Face's `TrainingArguments` as a pipeline gives them.

Source: `transformers.training_args`, version 5.24.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hookflow.adapters.machine_ranks import MachineRanks
from hookflow.adapters.views import find_common_interval, find_sets
from hookflow.events.rundir import RunDir
from hookflow.graph.schedule import EACH_EPOCH
from hookflow.hooks.builtin.checkpoint import Checkpoint, name_best
from hookflow.hooks.builtin.gradients import GradClip
from hookflow.hooks.builtin.log import Log
from hookflow.metric_mode import is_formula
from hookflow.pipeline.amounts import Amount, parse_amount
from hookflow.pipeline.values import Interval

if TYPE_CHECKING:
    from hookflow.hooks.run import Run
    from hookflow.pipeline.schema import HookNode


def make_arguments(run: Run, recorded: RecordedPipeline) -> Any:
    """Return the arguments of a run, an instance of `TrainingArguments`.

    Values that a pipeline does not set are Hugging Face's defaults.
    """
    section = recorded.section
    values: dict[str, Any] = {
        "output_dir": str(run.dir),
        "run_name": Path(run.dir).name,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": section.seed,
        "gradient_accumulation_steps": section.accumulate.at(0),
        "per_device_train_batch_size": _batch_size_of_rank(run, "train"),
        "per_device_eval_batch_size": _batch_size_of_rank(run, "val"),
        "logging_nan_inf_filter": False,  # a loss that is not finite is shown
        "max_grad_norm": recorded.read_max_grad_norm(),
        "lr_scheduler_type": "constant",
        **_length(run),
        **_make_evaluation_arguments(run, find_common_interval(recorded.pipeline)),
        **_schedule_of_logs(run, recorded),
        **_schedule_of_saves(run, recorded),
    }
    if run.optimizers:
        first = next(iter(run.optimizers.values()))
        values["learning_rate"] = float(
            first.param_groups[0].get("initial_lr", first.param_groups[0]["lr"])
        )
        values["weight_decay"] = float(first.param_groups[0].get("weight_decay", 0.0))
    arguments = _make_arguments_class()(**values)
    arguments.view_of_run = run
    arguments.bf16 = section.precision in ("bf16", "bf16-true")
    arguments.fp16 = section.precision == "fp16"
    ranking = recorded.find_ranking()
    if ranking is not None:  # set now: the constructor would want strategies that are alike
        arguments.metric_for_best_model = name_metric(run, "val", ranking.metric)
        arguments.greater_is_better = ranking.mode == "max"
        arguments.load_best_model_at_end = ranking.restores_best
    return arguments


class RunDevice:
    """The device and the processes of a run, under the names that `TrainingArguments` has for them.

    Accelerate is not called.
    """

    view_of_run: Any = None

    @property
    def _setup_devices(self) -> Any:
        import torch

        if self.view_of_run is None:
            return torch.device("cpu")
        return self.view_of_run.device

    @property
    def n_gpu(self) -> int:
        return int(self._setup_devices.type == "cuda")

    @property
    def parallel_mode(self) -> Any:
        from transformers.training_args import ParallelMode

        if self.world_size > 1:
            return ParallelMode.DISTRIBUTED
        return ParallelMode.NOT_PARALLEL

    @property
    def world_size(self) -> int:
        if self.view_of_run is None:
            return 1
        return int(self.view_of_run.world)

    @property
    def process_index(self) -> int:
        if self.view_of_run is None:
            return 0
        return int(self.view_of_run.rank)

    @property
    def local_process_index(self) -> int:
        if self.view_of_run is None:
            return 0
        return MachineRanks.of_environment(self.view_of_run).local_rank


@cache
def _make_arguments_class() -> type[Any]:
    from transformers import TrainingArguments

    class RunArguments(RunDevice, TrainingArguments):  # type: ignore[misc]
        """Arguments whose device and processes are those of the run."""

    return RunArguments


@dataclass(frozen=True, slots=True)
class RankingSpec:
    """The metric by which the hook `checkpoint` keeps the best."""

    metric: str
    mode: str
    name: str
    """The name of the best checkpoint."""
    restores_best: bool


class RecordedPipeline:
    """The recorded pipeline of a run, as far as arguments of Hugging Face's come from it."""

    def __init__(self, run: Run) -> None:
        # The import is here because it loads pydantic, which `hookflow --help` does not need.
        from hookflow.pipeline.load import load

        self.pipeline = load(RunDir(run.dir).pipeline, recorded=True).pipeline
        self.section = self.pipeline.run

    def list_hooks_of_class(self, kind: type, name: str) -> list[HookNode]:
        """Return the tables of the hooks of a class.

        A pipeline calls the class by its short name or by its place.
        """
        uses = (name, f"{kind.__module__}:{kind.__name__}")
        return [
            table for table in self.pipeline.hooks.values() if table.enabled and table.use in uses
        ]

    def find_ranking(self) -> RankingSpec | None:
        """Return the metric of the validation by which checkpoints are the best.

        It is None if there is none.
        """
        for table in self.list_hooks_of_class(Checkpoint, "checkpoint"):
            args = dict(table.args)
            modes = Checkpoint.capabilities_for(args).monitors
            if modes and args.get("stage", "val") == "val":
                metric = next(iter(modes))
                return RankingSpec(
                    metric, modes[metric], name_best(metric, modes), args.get("restore_best", False)
                )
        return None

    def clips_gradients(self) -> bool:
        """Say whether a hook changes the gradients before the step.

        Their norm is then no more what it was.
        """
        return bool(self.list_hooks_of_class(GradClip, "grad_clip"))

    def read_max_grad_norm(self) -> float:
        """Return the largest norm that gradients may have; 0 if there is no bound."""
        for table in self.list_hooks_of_class(GradClip, "grad_clip"):
            norm = dict(table.args).get("max_norm")
            if norm is not None:
                return float(norm)
        return 0.0

    def list_amounts_at(self, kind: type, name: str, point: str) -> list[Amount]:
        """Return how often the hooks of a class fire at a point."""
        amounts = []
        for table in self.list_hooks_of_class(kind, name):
            for bound, every in _list_bindings(table, kind):
                if bound == point:
                    amounts.append(every or table.every or parse_amount(1))
        return amounts


def _list_bindings(table: HookNode, kind: Any) -> list[tuple[str, Amount | None]]:
    """Return the points of a hook, each with its own `every`."""
    if table.points is None:
        return [(point, None) for point in kind.points_for(dict(table.args))]
    bindings: list[tuple[str, Amount | None]] = []
    for item in table.points:
        if isinstance(item, str):
            bindings.append((item, None))
        else:
            bindings.append((item.at, item.every))
    return bindings


def name_metric(run: Run, split: str, metric: str) -> str:
    """Return a metric's name as Hugging Face's Trainer joins it to that of a set.

    "ood/loss" of the set `data.val.ood` becomes "ood_loss". Any other name stays, also that of a
    formula.
    """
    own_set, slash, rest = metric.partition("/")
    if slash and f"{split}.{own_set}" in run.data and not is_formula(metric):
        return f"{own_set}_{rest}"
    return metric


def _batch_size_of_rank(run: Run, split: str) -> int:
    sets = find_sets(run, split)
    if not sets:
        return 8  # the default of `TrainingArguments`
    size = int(run.data[sets[0]].info["batch_size"])
    return max(size // run.world, 1)


def _length(run: Run) -> dict[str, Any]:
    if run.max_epochs is None:
        return {"max_steps": run.max_iters}
    epochs = {"num_train_epochs": float(run.max_epochs)}
    if run.max_iters < run.epoch_lengths.iterations(run.max_epochs):
        # As in Hugging Face's Trainer the steps count where both are given.
        return {"max_steps": run.max_iters, **epochs}
    return epochs


def _make_evaluation_arguments(run: Run, interval: Interval) -> dict[str, Any]:
    if not find_sets(run, "val"):
        return {"eval_strategy": "no"}
    if interval == EACH_EPOCH:
        return {"eval_strategy": "epoch"}
    if interval.unit == "it":
        return {"eval_strategy": "steps", "eval_steps": float(interval.value)}
    if interval.unit == "ep":
        steps = int(run.epoch_lengths.iterations(interval.value))
        return {"eval_strategy": "steps", "eval_steps": float(max(steps, 1))}
    # An interval in seconds is no number of steps: the run validates at its end at the latest.
    return {"eval_strategy": "steps", "eval_steps": float(run.max_iters)}


HOOK_POINTS = ("after_train_iter", "after_train_epoch")
"""The points of the hooks that log and save, by which Hugging Face's Trainer counts, too."""


def _schedule_of_logs(run: Run, recorded: RecordedPipeline) -> dict[str, Any]:
    """Return how often the hook `log` fires; without one, what is Hugging Face's default."""
    every = _find_schedule(run, recorded, Log, "log")
    if every is None:
        return {}
    if every == "epoch":
        return {"logging_strategy": "epoch"}
    return {"logging_steps": every}


def _schedule_of_saves(run: Run, recorded: RecordedPipeline) -> dict[str, Any]:
    """Return how often the hook `checkpoint` saves."""
    every = _find_schedule(run, recorded, Checkpoint, "checkpoint")
    if every is None:
        return {"save_strategy": "no"}
    if every == "epoch":
        return {"save_strategy": "epoch"}
    return {"save_strategy": "steps", "save_steps": every}


def _find_schedule(
    run: Run, recorded: RecordedPipeline, kind: type, use: str
) -> Literal["epoch"] | float | None:
    """Return the steps between two firings of a hook, or "epoch"; None where it counts neither."""
    for point in HOOK_POINTS:
        for amount in recorded.list_amounts_at(kind, use, point):
            if _is_each_epoch(amount, point):
                return "epoch"
            steps = _count_steps(run, amount, point)
            if steps is not None:
                return float(steps)
    return None


def _is_each_epoch(amount: Amount, point: str) -> bool:
    return _find_unit(amount, point) == "ep" and amount.value == 1


def _find_unit(amount: Amount, point: str) -> str:
    """Return the unit of an amount, which is that of its point where none is written."""
    if amount.unit:
        return amount.unit
    if point == "after_train_epoch":
        return "ep"
    return "it"


def _count_steps(run: Run, amount: Amount, point: str) -> int | None:
    """Return the steps of an amount; None where it counts none, as seconds or examples do."""
    match _find_unit(amount, point):
        case "it":
            steps = int(amount.value)
        case "ep":
            steps = int(run.epoch_lengths.iterations(amount.value))
        case "%":
            steps = int(amount.value * run.max_iters / 100)
        case _:
            return None
    return max(steps, 1)
