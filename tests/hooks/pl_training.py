"""One small training by Lightning's Trainer, and the same by hookflow; callbacks that see both."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from pytorch_lightning import Callback, LightningModule, callbacks
    from pytorch_lightning import Trainer as Theirs
    from pytorch_lightning.loggers import TensorBoardLogger

__all__ = ["callbacks"]

PIPELINE = """
run.name = "pl"
run.max_epochs = EPOCHS
run.default_hooks = false
run.device = "cpu"
run.precision = "fp32"
run.test = true
model.use = "tests.hooks.pl_training:net"
task.use = "tests.hooks.pl_training:Task"
optimizer = { use = "torch.optim:SGD", args = { lr = 0.1, momentum = 0.9 } }
data.train = { use = "tests.hooks.pl_training:loader", args = { examples = 12 } }
data.val = { use = "tests.hooks.pl_training:loader", args = { examples = 10 } }
data.test = { use = "tests.hooks.pl_training:loader", args = { examples = 8 } }
"""


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def loader(examples: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(examples)
    data = [(torch.randn(4, generator=generator), torch.tensor(k % 3)) for k in range(examples)]
    return DataLoader(data, batch_size=4)  # type: ignore[arg-type]


TWO_SETS = (
    'data.val={near={use="tests.hooks.pl_training:loader", args={examples=10}},'
    ' far={use="tests.hooks.pl_training:loader", args={examples=7}}}'
)
"""Two named sets of validation data, in place of `data.val`."""


def shares(examples: int, rank: int, world: int) -> DataLoader[Any]:
    """Return the share of a rank of the batches that `loader` returns."""
    data = loader(examples).dataset
    return DataLoader([*data][rank::world], batch_size=4 // world)  # type: ignore[misc]


def norms() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)
    )


class Task:
    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        return {"loss": functional.cross_entropy(run.model(batch[0]), batch[1])}

    evaluate = step

    def predict(self, run: Any, batch: Any) -> dict[str, Any]:
        return {"logits": run.model(batch[0])}


class Module(LightningModule):
    """The same for Lightning."""

    def __init__(self, make: Callable[[], torch.nn.Module] = net) -> None:
        super().__init__()
        self.net = make()

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": functional.cross_entropy(self.net(batch[0]), batch[1])}

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        loss = functional.cross_entropy(self.scored()(batch[0]), batch[1])
        self.log("val_loss", loss, batch_size=len(batch[1]))
        return {"loss": loss}

    test_step = validation_step

    def scored(self) -> torch.nn.Module:
        return self.net

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"logits": self.net(batch[0])}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def two() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.ModuleDict({"a": torch.nn.Linear(4, 3), "b": torch.nn.Linear(4, 3)})


class Turns:
    """A task whose optimizers step in turn, "b" before "a"."""

    steps_itself = True

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        for name in ("b", "a"):
            loss = functional.cross_entropy(run.models[name](batch[0]), batch[1])
            run.backward(loss, name)
            run.step(name)
        return {"loss": loss}

    def evaluate(self, run: Any, batch: Any) -> dict[str, Any]:
        return {"loss": functional.cross_entropy(run.models["a"](batch[0]), batch[1])}


class ModuleOfSets(Module):
    """The same with two sets of validation data."""

    def validation_step(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, Any]:
        return super().validation_step(batch, batch_idx)


class ManualModule(Module):
    """The same for Lightning."""

    def __init__(self) -> None:
        super().__init__(two)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        for name, optimizer in reversed([*zip("ab", self.optimizers(), strict=True)]):
            loss = functional.cross_entropy(self.net[name](batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return {"loss": loss}

    def scored(self) -> torch.nn.Module:
        return self.net["a"]

    def configure_optimizers(self) -> Any:
        first = torch.optim.SGD(self.net["a"].parameters(), lr=0.1)
        return first, torch.optim.Adam(self.net["b"].parameters())


def train_theirs(
    folder: Path,
    epochs: int,
    *called: Any,
    make: Callable[[], torch.nn.Module] = net,
    examples: int = 12,
    predict: bool = False,
    module: LightningModule | None = None,
    validation: Any = None,
) -> Any:
    """Train, test and maybe predict by Lightning's Trainer; return the weights."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    kept = {
        "enable_checkpointing": any(type(each).__name__ == "ModelCheckpoint" for each in called)
    }
    trainer = Theirs(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[*called],
        default_root_dir=folder,
        num_sanity_val_steps=0,
        **quiet,
        **kept,
    )
    module = module or Module(make)
    trainer.fit(module, loader(examples), validation or loader(10))
    trainer.test(module, loader(8), verbose=False)
    if predict:
        trainer.predict(module, loader(8))
    return {name.removeprefix("net."): value for name, value in module.state_dict().items()}


SEEN: list[tuple[Any, ...]] = []


class Recorder(Callback):
    """Record every call with the counters, the stage, the mode and the numbers given;
    log and record metrics.
    """

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        if stage == "predict":
            SEEN.append((stage, str(trainer.state.fn), trainer.predicting))

    teardown = setup


LOGS = ("on_train_batch_end", "on_validation_batch_end")


def _method(name: str) -> Any:
    def method(self: Any, trainer: Any, module: Any, *offered: Any, **_: Any) -> None:
        place = (
            trainer.current_epoch,
            trainer.global_step,
            trainer.should_stop,
            module.device.type,
            module.training,
        )
        numbers = [each for each in offered if isinstance(each, int)][:1] if "batch" in name else []
        if name in LOGS:
            module.log(name, offered[2])
        ends = name.endswith(("epoch_end", "validation_end"))
        known = (
            {**trainer.callback_metrics, **dict.fromkeys(LOGS * trainer.testing)} if ends else {}
        )
        metrics = [known.get(each) for each in ("val_loss", *LOGS)]
        kinds = [type(each).__name__ for each in offered[:1]]
        SEEN.append(
            (name, *place, numbers, [each and round(float(each), 4) for each in metrics], kinds)
        )

    return method


for _name in vars(Callback):
    if _name.startswith("on_") and not any(
        each in _name for each in ("sanity", "zero_grad", "checkpoint")
    ):
        setattr(Recorder, _name, _method(_name))


class SetRecorder(Callback):
    """Record which batch of which set each call is for, and the validation data of the trainer."""


def _record_set(name: str) -> Any:
    def method(self: Any, trainer: Any, module: Any, *offered: Any) -> None:
        numbers = [each for each in offered if isinstance(each, int)]
        loaders = trainer.val_dataloaders
        lengths = {own_set: len(loader) for own_set, loader in loaders.items()}
        SEEN.append((name, numbers, lengths, trainer.num_val_batches, trainer.enable_validation))

    return method


for _name in ("validation_start", "validation_end", "train_epoch_end"):
    setattr(SetRecorder, f"on_{_name}", _record_set(_name))
for _name in ("validation_batch_start", "validation_batch_end"):
    setattr(SetRecorder, f"on_{_name}", _record_set(_name))


class MetricRecorder(Callback):
    """Record the names of the metrics at the ends of a validation and of its sets."""

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        SEEN.append(("set", sorted(trainer.callback_metrics)))

    def on_validation_batch_start(self, trainer: Any, *_: Any) -> None:
        trainer.callback_metrics  # noqa: B018  # that of a set is no metric of the run

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        SEEN.append(("all", sorted(trainer.callback_metrics)))


class TellsRank(Callback):
    """Print the number of the process on its machine."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        of_trainer = (trainer.global_rank, trainer.local_rank, trainer.node_rank)
        print(f"ranks: {of_trainer} {(trainer.num_nodes, trainer.num_devices)}")


class Draws(Callback):
    """Log by TensorBoard's writer, and look at the network in evaluation."""

    def on_train_end(self, trainer: Any, module: Any) -> None:
        assert isinstance(trainer.logger, TensorBoardLogger)
        module.eval()
        trainer.logger.experiment.add_scalar(
            "evaluated", float(not trainer.run.model.training), global_step=3
        )
        module.train()
        trainer.logger.experiment.add_image(
            "noise", torch.rand(3, 4, 4), global_step=trainer.global_step
        )
        trainer.logger.experiment.add_histogram("weights", module.weight, trainer.global_step)


class Counts(Callback):
    """Count batches in place."""

    def __init__(self) -> None:
        self.seen = torch.zeros(())

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.seen += 1


class Stops(Callback):
    """Stop in the middle of an epoch."""

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        trainer.should_stop = trainer.global_step == 4


class Sets(Callback):
    """Set what a scheduler of accumulation alone may set."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        trainer.accumulate_grad_batches = 2


class Asks(Callback):
    """Ask for an attribute of the trainer, and log it."""

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute

    def on_train_start(self, trainer: Any, module: Any) -> None:
        names = {"trainer": trainer, "module": module, "torch": torch}
        trainer.run.say(f"{self.attribute}: {eval(self.attribute, names)}")  # noqa: S307


class Clears(Callback):
    def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None: ...


class Raises:
    def after_train_iter(self, run: Any) -> None:
        raise RuntimeError("as planned")


def size(batch: Any) -> int:
    return len(batch[1])


def tell(trainer: Any, module: Any) -> None:
    trainer.run.say(f"epoch {trainer.current_epoch}")
