"""One small training by Hugging Face's Trainer, and the same by hookflow;
callbacks that see both.
"""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, SequentialSampler

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_callback import DefaultFlowCallback, EarlyStoppingCallback

__all__ = ["EarlyStoppingCallback"]

PIPELINE = """
run.name = "hf"
run.max_epochs = EPOCHS
run.default_hooks = false
run.device = "cpu"
run.precision = "fp32"
model.use = "tests.hooks.hf_training:Net"
task.use = "hookflow.zoo.tasks:OwnLoss"
optimizer = { use = "torch.optim:SGD", args = { lr = 0.1 } }
data.train = { use = "tests.hooks.hf_training:loader", args = { examples = 12 } }
data.val = { use = "tests.hooks.hf_training:loader", args = { examples = 10 } }
"""

TIMES = ("runtime", "per_second", "preparation_time")
"""Parts of the names of figures that are measured by a clock."""
FIGURES = (
    "epoch",
    "global_step",
    "max_steps",
    "num_train_epochs",
    "best_metric",
    "best_global_step",
    "total_flos",
)
"""What is recorded of the state beside its logs."""
FLAGS = ("should_training_stop", "should_epoch_stop", "should_evaluate", "should_log")


class Net(torch.nn.Module):
    """A network that computes its loss itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 3)

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class SizedNet(Net):
    """A network that says how many parameters it has, as models of transformers do:
    a Trainer counts its operations.
    """

    main_input_name = "x"

    def num_parameters(self, exclude_embeddings: bool = False) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def dataset(examples: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(examples)
    return [
        {"x": torch.randn(4, generator=generator), "labels": torch.tensor(k % 3)}
        for k in range(examples)
    ]


def loader(examples: int) -> DataLoader[Any]:
    return DataLoader(dataset(examples), batch_size=4)  # type: ignore[arg-type]


def shares(examples: int, rank: int, world: int) -> DataLoader[Any]:
    """Return the share of a rank of the batches that `loader` returns."""
    return DataLoader(dataset(examples)[rank::world], batch_size=4 // world)  # type: ignore[arg-type]


class OrderedTrainer(Trainer):
    """A Trainer that does not shuffle."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SequentialSampler(self.train_dataset)


def train_theirs(
    folder: Path,
    *callbacks: Any,
    examples: int = 12,
    resume: Any = None,
    predict: bool = False,
    **args: Any,
) -> dict[str, torch.Tensor]:
    """Train by Hugging Face's Trainer, and maybe predict; return the weights."""
    values = {
        "output_dir": str(folder),
        "use_cpu": True,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "weight_decay": 0.0,
        "max_grad_norm": 0.0,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "save_strategy": "no",
        **args,
    }
    model = Net()
    trainer = OrderedTrainer(
        model,
        TrainingArguments(**values),
        train_dataset=dataset(examples),
        eval_dataset=dataset(10),
        callbacks=[*callbacks],
    )
    trainer.pop_callback(_printer(trainer))
    trainer.train(resume_from_checkpoint=resume)
    if predict:
        trainer.predict(dataset(8))
    return {name: value.clone() for name, value in model.state_dict().items()}


def _printer(trainer: Any) -> Any:
    return next(
        each
        for each in trainer.callback_handler.callbacks
        if type(each).__name__ == "PrinterCallback"
    )


SEEN: list[tuple[Any, ...]] = []


class Recorder(TrainerCallback):
    """Record every event with the figures of the state, the flags,
    and what else the event is given.
    """


def record(event: str, state: Any, control: Any, given: dict[str, Any]) -> None:
    """Add an event to what has been seen."""
    figures = {name: getattr(state, name) for name in FIGURES}
    if state.best_metric is not None:
        figures["best_metric"] = round(state.best_metric, 5)
    flags = {name: getattr(control, name) for name in FLAGS}
    numbers = without_times(given.get("metrics") or given.get("logs") or {})
    history = [without_times(entry) for entry in state.log_history]
    optimizer, scheduler = given["optimizer"], given["lr_scheduler"]
    rate = optimizer and optimizer.param_groups[0]["lr"]
    rates = scheduler and scheduler.get_last_lr()[0]  # its Trainer makes two groups
    lengths = [
        loader and len(loader) for loader in (given["train_dataloader"], given["eval_dataloader"])
    ]
    weight = round(float(given["model"].layer.weight.sum()), 5)
    SEEN.append((event, figures, flags, numbers, history, rate, rates, lengths, weight))


def without_times(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return numbers without those of a clock, rounded to what float32 keeps."""
    kept = {}
    for name, value in numbers.items():
        if not any(part in name for part in TIMES):
            kept[name] = round(value, 5)
    return kept


def _event(name: str) -> Any:
    def event(self: Any, args: Any, state: Any, control: Any, **given: Any) -> None:
        record(name, state, control, given)

    return event


for _name in vars(TrainerCallback):
    if _name.startswith("on_") and _name not in ("on_push_begin", "on_substep_end"):
        setattr(Recorder, _name, _event(_name))


class SetsFlag(TrainerCallback):
    """Set a flag of the control at one step, in one event."""

    def __init__(self, flag: str, step: int, event: str = "on_step_end") -> None:
        self.flag, self.step, self.event = flag, step, event

    def _set(self, event: str, state: Any, control: Any) -> Any:
        if event != self.event or state.global_step != self.step:
            return None
        return dataclasses.replace(control, **{self.flag: True})

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        return self._set("on_train_begin", state, control)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        return self._set("on_step_begin", state, control)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        return self._set("on_optimizer_step", state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        return self._set("on_step_end", state, control)

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        return self._set("on_log", state, control)


class TakesBack(TrainerCallback):
    """Take a flag back that another callback has set, or the Trainer."""

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        setattr(control, self.flag, False)


class Asks(TrainerCallback):
    """Raise with the value of an expression over what an event is given."""

    def __init__(self, expression: str) -> None:
        self.expression = expression

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        names = {"args": args, "state": state, "control": control, **given}
        raise RuntimeError(f"{self.expression}: {eval(self.expression, names)}")  # noqa: S307


class TakesTrainer(TrainerCallback):
    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer


class Pushes(TrainerCallback):
    def on_push_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None: ...


class Substeps(TrainerCallback):
    def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None: ...


class Counts(TrainerCallback):
    """Count steps in place."""

    def __init__(self) -> None:
        self.seen = torch.zeros(())

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.seen += 1


class FlowOfTrainer(DefaultFlowCallback):
    """A class derived from a part of the Trainer is the user's own."""


class KeepsLosses(TrainerCallback):
    """Add up the losses that are logged."""

    def __init__(self) -> None:
        self.total = 0.0

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float], **given: Any
    ) -> None:
        self.total += logs.get("loss", 0.0)


class TellsRank(TrainerCallback):
    """Print the number of the process on its machine, and whether it logs and saves there."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        facts = (args.local_process_index, state.is_local_process_zero, state.is_world_process_zero)
        print(f"ranks: {facts} {(args.process_index, args.should_log, args.should_save)}")


class FailsOnce(TrainerCallback):
    """Raise in the second step."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step == 1:
            raise RuntimeError("as planned")
