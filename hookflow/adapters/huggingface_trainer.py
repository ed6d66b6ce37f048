"""The part of Hugging Face's Trainer that its callbacks see.

It has the state, the control with its flags, and the logs.

Source: `transformers.trainer` and `transformers.trainer_callback`, version 5.24.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from hookflow.adapters.huggingface_arguments import (
    RecordedPipeline,
    make_arguments,
    name_metric,
)
from hookflow.adapters.views import DataLoaderView, RunView, find_sets
from hookflow.errors import Problem, UserError
from hookflow.graph.schedule import Measure
from hookflow.hooks.builtin.gradients import collect_gradients, compute_norms
from hookflow.hooks.monitored import read_latest_metric
from hookflow.metric_mode import is_formula
from hookflow.pipeline.by_epoch import batches_by_epoch

if TYPE_CHECKING:
    import torch

    from hookflow.hooks.run import Run
    from hookflow.pipeline.values import Interval

STOP_FLAG = "should_training_stop"
EVALUATE_FLAG = "should_evaluate"


class LRSchedulerView(RunView):
    """The learning rates, as callbacks read them from a scheduler. hookflow's hooks step it."""

    shown = "the scheduler of Hugging Face's Trainer"

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def base_lrs(self) -> list[float]:
        return [
            float(group.get("initial_lr", group["lr"])) for group in self.optimizer.param_groups
        ]

    def get_last_lr(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]


class SeveralOptimizersView(RunView):
    """The optimizer of a run that has several; Hugging Face's Trainer has one."""

    shown = "one optimizer (this run has several)"


class EvaluationSchedule:
    """Says after which iterations and epochs the run validates by itself, at one interval."""

    def __init__(self, run: Run, every: Interval, iter_limit: int | None) -> None:
        self._run = run
        self._every = every
        self._iter_limit = iter_limit
        self._measure: Measure | None = None
        if every.by_iterations and every.unit != "s":
            self._measure = Measure.of_interval(every, run.epoch_lengths)

    def is_due_after_iteration(self, *, is_epoch_over: bool) -> bool:
        """Say whether a validation follows this iteration, before the end of its epoch."""
        is_due = self._has_entered_multiple() or self._is_run_over()
        if self._every.unit == "it":
            return is_due
        return is_due and not is_epoch_over

    def is_due_after_epoch(self) -> bool:
        """Say whether a validation follows this epoch."""
        match self._every.unit:
            case "it":
                # It has followed the iteration otherwise.
                is_measured = self._has_entered_multiple() or self._is_at_iter_limit()
                return self._is_run_over() and not is_measured
            case "ep" if self._measure is None:
                return self._run.epoch % int(self._every.value) == 0 or self._is_run_over()
        return self._has_entered_multiple() or self._is_run_over()

    def _has_entered_multiple(self) -> bool:
        if self._measure is None:
            return False
        done = self._run.iter
        return self._measure.multiple(done) != self._measure.multiple(done - 1)

    def _is_run_over(self) -> bool:
        return self._is_at_iter_limit() or self._run.epoch == self._run.max_epochs

    def _is_at_iter_limit(self) -> bool:
        return self._iter_limit is not None and self._run.iter >= self._iter_limit


class TrainerView(RunView):
    """The state that the callbacks of a run share.

    Any attribute of the Trainer beyond its own raises.

    Hugging Face's Trainer calls an event of all callbacks, and then looks at the flags. Here each
    callback is a hook: the flags are looked at once the last of them has been called at a point.
    """

    shown = "Hugging Face's Trainer"

    def __init__(self, run: Run) -> None:
        from transformers import TrainerControl, TrainerState

        self.run = run
        self._recorded = RecordedPipeline(run)
        self._ranking = self._recorded.find_ranking()
        self.args = make_arguments(run, self._recorded)
        self.state = TrainerState(
            is_local_process_zero=self.args.local_process_index == 0,
            is_world_process_zero=run.rank == 0,
        )
        self.control = TrainerControl()
        self.hooks: list[Any] = []
        """The hooks that call callbacks, in the order in which they have been fired first."""
        self.point = ""
        self._called: list[Any] = []
        """The hooks that have been called at this place."""
        self._silent: list[Any] = []
        """Hooks that were not called at the place before, since they are switched off."""
        self._is_settled = True
        self._epoch_is_open = False
        self._requested: set[str] = set()
        """The flags that the run has been asked to follow."""
        self._step = -1
        self._loss: torch.Tensor | None = None
        """The sum of the losses since the latest log."""
        self._total_loss = 0.0
        self._num_losses = 0
        """The steps whose losses are in the sums."""
        self._steps_logged = 0
        self._first_step = 0
        """The steps that this process has found done."""
        self._is_restored = False
        self._flops = 0.0
        self._began = time.time()
        self._pass_began = time.time()
        self._evaluations = 0
        self._metrics: dict[str, float] = {}
        self._views: dict[str, DataLoaderView] = {}

    # The objects that events are given.

    def event_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of every event."""
        begun = self.point != "before_run"
        values = dict.fromkeys(("optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"))
        if begun and self.run.optimizers:
            values["optimizer"] = self._optimizer
            values["lr_scheduler"] = self._scheduler
        if begun and "train" in self.run.data:
            values["train_dataloader"] = self._dataloader("train")
        if self._evaluations:
            values["eval_dataloader"] = self._dataloader(self._evaluated_set)
        processing_class = getattr(self.run.task, "processing_class", None)
        return {"model": self._model, "processing_class": processing_class, **values}

    @property
    def _model(self) -> Any:
        from hookflow.adapters.lightning_module import unwrap_model

        return unwrap_model(self.run.model)

    @cached_property
    def _optimizer(self) -> Any:
        if len(self.run.optimizers) > 1:
            return SeveralOptimizersView(self.run)
        return self.run.optimizer

    @cached_property
    def _scheduler(self) -> Any:
        if len(self.run.optimizers) > 1:
            return SeveralOptimizersView(self.run)
        return LRSchedulerView(self.run.optimizer)

    def _dataloader(self, split: str) -> Any:
        loader = getattr(self.run.data[split], "loader", None)
        if loader is not None:
            return loader
        if split not in self._views:  # without workers there is no loader
            self._views[split] = DataLoaderView(self, split)
        return self._views[split]

    @property
    def _evaluated_set(self) -> str:
        """The data of the evaluation under way, or of the latest one."""
        if self.point.endswith(("_val_iter", "_test_iter")) or "_predict" in self.point:
            return self.run.split
        splits = ["val", "test", "train"]
        if self.point.endswith("_test"):
            splits.remove("val")
        for split in splits:
            sets = find_sets(self.run, split)
            if sets:
                return sets[-1]
        return "train"

    # Places: the calls of all hooks at one point.

    def enter(self, hook: Any, point: str, offered: Mapping[str, Any]) -> None:
        """Note that a hook is about to be called.

        The first one at a place finds the state of this place.
        """
        if hook not in self.hooks:
            self.hooks.append(hook)
        if self._is_settled or point != self.point or hook in self._called:
            self._leave_unfinished_place()
            self.point = point
            self._called = []
            self._is_settled = False
            self._begin_place(offered)
        self._called.append(hook)
        if hook in self._silent:
            self._silent.remove(hook)

    def leave(self) -> None:
        """Follow the flags if the hook that has been called is the last one at this place."""
        for hook in self._expected_hooks():
            if hook not in self._called:
                return
        self._is_settled = True
        self._settle()

    def _expected_hooks(self) -> list[Any]:
        there = []
        for hook in self.hooks:
            if hook not in self._silent and hasattr(type(hook), self.point):
                there.append(hook)
        return there

    def _leave_unfinished_place(self) -> None:
        """Follow the flags of the place before where a hook was switched off.

        That hook is expected no more.
        """
        if self._is_settled:
            return
        missing = [hook for hook in self._expected_hooks() if hook not in self._called]
        self._silent.extend(missing)
        self._is_settled = True
        self._settle()

    def call_all(self, event: str, **arguments: Any) -> None:
        """Call an event of all callbacks that are switched on."""
        for hook in self.hooks:
            if hook not in self._silent:
                self.call(hook, event, **arguments)

    def call(self, hook: Any, event: str, **arguments: Any) -> None:
        """Call an event of one callback, which may return another control."""
        method = getattr(hook.callback, event)
        control = method(self.args, self.state, self.control, **self.event_arguments(), **arguments)
        if control is not None:
            self.control = control

    # The actions of the Trainer before the callbacks of a place are called.

    def _begin_place(self, offered: Mapping[str, Any]) -> None:  # noqa: C901  # a table: a case for each point
        match self.point:
            case "before_train":
                self._begin_training()
            case "before_train_epoch":
                self._begin_epoch()
            case "before_train_iter" | "before_optimizer_step" | "after_optimizer_step":
                self._begin_step(self.run.iter)
            case "after_train_iter":
                self._begin_step(self.run.iter - 1)
                self._end_step(offered)
            case "after_train_epoch":
                self._end_epoch()
            case "before_val" | "before_test" | "before_predict":
                self._pass_began = time.time()
                self._evaluations += 1
            case "after_val":
                self._report_evaluation(offered["metrics"])
            case "after_test":
                self._metrics = self._name_metrics(offered["metrics"], "test", "test")
            case "after_predict":
                self._metrics = self._measure_speed([self.run.split], "test")
            case "after_copy_checkpoint":
                self._begin_save()
            case "after_train":
                self._end_training()

    def _begin_training(self) -> None:
        state = self.state
        run = self.run
        state.max_steps = run.max_iters
        # Where `max_iters` ends the run, the epochs are those that it begins until then.
        state.num_train_epochs = ceil(run.epoch_lengths.epochs(run.max_iters))
        state.train_batch_size = self.args.train_batch_size
        state.compute_steps(self.args, run.max_iters)
        state.global_step = run.iter
        if run.iter == 0:
            state.epoch = 0
        self.control.should_training_stop = False
        self._requested.clear()
        self._began = time.time()
        self._first_step = run.iter
        if not self._is_restored:  # it may be new in a run that is resumed
            self._steps_logged = run.iter

    def _begin_epoch(self) -> None:
        self.control.should_epoch_stop = False
        self._requested.discard("should_epoch_stop")
        self._epoch_is_open = True

    def _begin_step(self, step: int) -> None:
        if step == self._step:
            return
        self._step = step
        self.control.should_log = False
        self.control.should_evaluate = False
        self.control.should_save = False
        self._requested.discard(EVALUATE_FLAG)

    def _count_batches_of_epoch(self) -> int:
        return batches_by_epoch(self.run.data["train"]).at(self.run.epoch)

    def _end_step(self, offered: Mapping[str, Any]) -> None:
        """Count the step, and set the flags by the schedules of the run.

        `DefaultFlowCallback` does the same.
        """
        run = self.run
        state = self.state
        control = self.control
        num_batches = self._count_batches_of_epoch()
        state.global_step = run.iter
        state.epoch = run.epoch + run.batch_idx / num_batches
        self._epoch_is_open = True
        self._add_loss(offered["outputs"])
        self._count_flops(offered["batch"])
        logs_steps = self.args.logging_strategy == "steps"
        if logs_steps and state.global_step % state.logging_steps == 0:
            control.should_log = True
        is_epoch_over = run.batch_idx >= num_batches
        if any(
            schedule.is_due_after_iteration(is_epoch_over=is_epoch_over)
            for schedule in self._evaluation_schedules
        ):
            control.should_evaluate = True
            self._requested.add(EVALUATE_FLAG)
        if state.global_step >= state.max_steps:
            control.should_training_stop = True

    def _end_epoch(self) -> None:
        self._epoch_is_open = False
        if self.args.logging_strategy == "epoch":
            self.control.should_log = True
        if any(schedule.is_due_after_epoch() for schedule in self._evaluation_schedules):
            self.control.should_evaluate = True
            self._requested.add(EVALUATE_FLAG)

    def _report_evaluation(self, metrics: Mapping[str, float]) -> None:
        self._metrics = self._name_metrics(metrics, "val", "eval")
        self._log(self._metrics)
        self.control.should_evaluate = False
        self._requested.discard(EVALUATE_FLAG)

    def _begin_save(self) -> None:
        self._store_flops()
        self.control.should_save = False
        self._requested.discard("should_save")
        if self.state.best_global_step:
            self.state.best_model_checkpoint = self._best_path()

    def _best_path(self) -> str | None:
        if self._ranking is None:
            return None
        return str(self.run.dir / "checkpoints" / self._ranking.name)

    def _end_training(self) -> None:
        """End an epoch that was left, and log what the Trainer logs of the whole training."""
        from transformers.trainer_utils import speed_metrics

        run = self.run
        state = self.state
        if self._epoch_is_open:
            self._epoch_is_open = False
            self.call_all("on_epoch_end")
            self._log_if_asked()
        self._drain_loss()
        steps = state.global_step - self._first_step
        share = steps / max(state.max_steps, 1)
        examples = int(run.data["train"].info["examples"]) * state.num_train_epochs
        if self.args.max_steps > 0:
            examples = state.max_steps * self._count_examples_per_step()
        logs = speed_metrics("train", self._began, num_samples=examples * share, num_steps=steps)
        self._store_flops()
        logs["total_flos"] = state.total_flos
        if self._num_losses:
            logs["train_loss"] = self._total_loss / self._num_losses
        self._log(logs)

    def _count_examples_per_step(self) -> int:
        args = self.args
        return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)

    # The actions of the Trainer after the callbacks of a place have been called.

    def _settle(self) -> None:
        if self.point == "after_val":
            self._compare_with_best()
        if self.point in ("after_train_iter", "after_train_epoch"):
            self._log_if_asked()
        if self.point in (
            "after_train_iter",
            "after_train_epoch",
            "after_val",
            "after_copy_checkpoint",
        ):
            self._follow_flags()

    def _follow_flags(self) -> None:
        """Ask the run for what the flags say. A request cannot be taken back."""
        run = self.run
        control = self.control
        for flag in self._requested:
            if not getattr(control, flag):
                raise UserError(_make_withdrawal_problem(flag))
        is_at_end = run.iter >= run.max_iters
        if control.should_training_stop and not is_at_end and STOP_FLAG not in self._requested:
            run.stop("a callback of Hugging Face's has set control.should_training_stop")
            self._requested.add(STOP_FLAG)
        is_in_epoch = (
            self.point == "after_train_iter" and run.batch_idx < self._count_batches_of_epoch()
        )
        if control.should_epoch_stop and is_in_epoch:
            run.stop_epoch("a callback of Hugging Face's has set control.should_epoch_stop")
            self._requested.add("should_epoch_stop")
        in_loop = self.point in ("after_train_iter", "after_train_epoch")
        if control.should_evaluate and in_loop and EVALUATE_FLAG not in self._requested:
            run.validate()
            self._requested.add(EVALUATE_FLAG)
        if control.should_save and "should_save" not in self._requested:
            run.save_checkpoint()
            self._requested.add("should_save")

    def _compare_with_best(self) -> None:
        """Note the best metric so far.

        The callbacks of the next evaluation are compared with it.
        """
        name = self.args.metric_for_best_model
        if name is None:
            return
        if not name.startswith("eval_"):
            name = f"eval_{name}"
        value = self._metrics.get(name)
        if value is None:
            return
        state = self.state
        if state.best_metric is None:
            state.best_metric = inf
            if self.args.greater_is_better:
                state.best_metric = -inf
        is_better = value < state.best_metric
        if self.args.greater_is_better:
            is_better = value > state.best_metric
        if is_better:
            state.best_metric = value
            state.best_global_step = state.global_step

    # Logs.

    def _add_loss(self, outputs: Mapping[str, Any]) -> None:
        import torch

        loss = outputs.get("loss")
        if loss is None:
            return
        if self._loss is None:
            self._loss = torch.zeros((), device=self.run.device)
        self._loss += torch.as_tensor(loss).detach()
        self._num_losses += 1

    def _drain_loss(self) -> float | None:
        """Return the sum of the losses since the latest log, and begin another one."""
        if self._loss is None:
            return None
        loss = self._loss
        if self.run.world > 1:
            loss = self.run.mean(loss)
        number = float(loss)
        self._total_loss += number
        self._loss = self._loss * 0.0
        return number

    def _log_if_asked(self) -> None:
        steps = self.state.global_step - self._steps_logged
        if not self.control.should_log or steps <= 0:
            return
        logs: dict[str, Any] = {}
        loss = self._drain_loss()
        if loss is not None:
            logs["loss"] = loss / steps
        norm = self._gradient_norm()
        if norm is not None:
            logs["grad_norm"] = norm
        if self.run.optimizers:
            optimizer = next(iter(self.run.optimizers.values()))
            logs["learning_rate"] = float(optimizer.param_groups[0]["lr"])
        self._steps_logged = self.state.global_step
        self._store_flops()
        self._log(logs)

    def _gradient_norm(self) -> float | None:
        """Return the norm of the gradients of this step.

        It is None where they have been clipped since, or are shards.
        """
        if self._recorded.clips_gradients():
            return None
        present = collect_gradients(self._model)
        if not present:
            return None
        return float(compute_norms(present)["total"])

    def _log(self, logs: dict[str, Any]) -> None:
        state = self.state
        if state.epoch is not None:
            logs["epoch"] = state.epoch
        state.log_history.append({**logs, "step": state.global_step})
        self.control.should_log = False
        self.call_all("on_log", logs=logs)

    def _name_metrics(
        self, metrics: Mapping[str, float], split: str, prefix: str
    ) -> dict[str, float]:
        """Return the metrics of a pass by Hugging Face's names, with its speed.

        A formula that ranks checkpoints is one of the metrics of a validation.
        """
        named = {}
        values = {**metrics, **self._compute_ranking_formula(split)}
        for metric, value in values.items():
            name = name_metric(self.run, split, metric)
            if not name.startswith(f"{prefix}_"):
                name = f"{prefix}_{name}"
            named[name] = float(value)
        return {**named, **self._measure_speed(self._find_measured_sets(metrics, split), prefix)}

    def _compute_ranking_formula(self, split: str) -> dict[str, float]:
        """Return the value of the formula by which checkpoints are ranked; {} where there is none.

        A formula of a set that was not validated on has none.
        """
        ranking = self._ranking
        if split != "val" or ranking is None or not is_formula(ranking.metric):
            return {}
        value = read_latest_metric(self.run, ranking.metric)
        if value is None:
            return {}
        return {ranking.metric: value}

    def _find_measured_sets(self, metrics: Mapping[str, float], split: str) -> list[str]:
        """Return the sources that a pass has measured: a set may have been left out of it."""
        sets = find_sets(self.run, split)
        if sets == [split]:
            return sets
        with_metrics = {f"{split}.{metric.partition('/')[0]}" for metric in metrics}
        return [name for name in sets if name in with_metrics]

    def _measure_speed(self, sets: Sequence[str], prefix: str) -> dict[str, float]:
        from transformers.trainer_utils import speed_metrics

        sources = [self.run.data[name] for name in sets]
        num_samples = sum(int(source.info["examples"]) for source in sources)
        num_batches = sum(len(source) for source in sources)
        measured: dict[str, float] = speed_metrics(
            prefix, self._pass_began, num_samples, num_batches
        )
        return measured

    @property
    def latest_metrics(self) -> dict[str, float]:
        """The metrics of the latest evaluation, by Hugging Face's names."""
        return self._metrics

    @cached_property
    def _evaluation_schedules(self) -> list[EvaluationSchedule]:
        """The schedules of the sets of validation data, one of each interval."""
        pipeline = self._recorded.pipeline
        intervals = dict.fromkeys(pipeline.val_intervals[name] for name in pipeline.validated_sets)
        limit = pipeline.run.max_iters
        return [EvaluationSchedule(self.run, every, limit) for every in intervals]

    def _count_flops(self, batch: Any) -> None:
        """Add the operations of a batch by Hugging Face's formula.

        They are unknown where an iteration takes several.
        """
        model = self._model
        name = getattr(model, "main_input_name", "input_ids")
        if (
            not isinstance(batch, Mapping)
            or name not in batch
            or not hasattr(model, "num_parameters")
        ):
            return
        if self.args.gradient_accumulation_steps > 1:
            self._flops = float("nan")
            return
        self._flops += 6.0 * batch[name].numel() * model.num_parameters(exclude_embeddings=True)

    def _store_flops(self) -> None:
        """Add what all ranks have computed since the last call."""
        flops = self._flops
        if self.run.world > 1:
            flops = float(self.run.sum(flops))
        self.state.total_flos += flops
        self._flops = 0.0

    # A checkpoint.

    def state_dict(self) -> dict[str, Any]:
        state = self.state
        loss = None
        if self._loss is not None:
            loss = self._loss.detach().clone()
        return {
            "epoch": state.epoch,
            "global_step": state.global_step,
            "log_history": [dict(entry) for entry in state.log_history],
            "best_metric": state.best_metric,
            "best_global_step": state.best_global_step,
            # The path is not saved, since the run may have been moved when it is resumed.
            "best_is_saved": state.best_model_checkpoint is not None,
            "total_flos": state.total_flos,
            "flops": self._flops,
            "epoch_is_open": self._epoch_is_open,
            "loss": loss,
            "total_loss": self._total_loss,
            "num_losses": self._num_losses,
            "steps_logged": self._steps_logged,
            "evaluations": self._evaluations,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        state = self.state
        for name in ("epoch", "global_step", "best_metric", "best_global_step", "total_flos"):
            setattr(state, name, saved[name])
        if saved["best_is_saved"]:
            state.best_model_checkpoint = self._best_path()
        state.log_history = [dict(entry) for entry in saved["log_history"]]
        self._flops = saved.get("flops", 0.0)
        self._epoch_is_open = saved["epoch_is_open"]
        self._loss = saved["loss"]
        if self._loss is not None:
            self._loss = self._loss.to(self.run.device)
        self._total_loss = saved["total_loss"]
        self._num_losses = saved["num_losses"]
        self._is_restored = True
        self._steps_logged = saved["steps_logged"]
        self._evaluations = saved["evaluations"]


def _make_withdrawal_problem(flag: str) -> Problem:
    message = (
        f"a callback of Hugging Face's has set control.{flag} back to False, and the run follows it"
        " already"
    )
    hints = {
        STOP_FLAG: "run.min_iters and run.min_epochs let a stop wait",
        EVALUATE_FLAG: "run.val_every says when the run validates",
        "should_save": "the hook checkpoint says when the run saves",
    }
    return Problem(message, hint=hints.get(flag, "let no callback set it"))
