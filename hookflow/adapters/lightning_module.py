"""The LightningModule of a Trainer: the run's model under Lightning's names.

Lightning's callbacks find it there.
"""

from typing import Any

SHARED_TABLES = ("_parameters", "_buffers", "_modules")
"""The attributes in which PyTorch keeps what a module consists of."""
SHARED_ATTRIBUTES = ("hparams", "example_input_array")
"""Attributes of the model that callbacks look for on the class of the module."""


def unwrap_model(model: Any) -> Any:
    """Return the network inside DistributedDataParallel; any other model as it is."""
    if type(model).__name__ == "DistributedDataParallel":
        return getattr(model, "module", model)
    return model


def make_module(base: type, trainer: Any) -> Any:
    """Return a LightningModule that shares its tensors and modules with the run's model.

    Parameters, buffers and modules have the same names there.

    `base` is Lightning's LightningModule, `trainer` the view of the run as a Trainer.
    """
    run = trainer.run
    inner = unwrap_model(run.model)
    kind: Any = base

    class ModelModule(kind):  # type: ignore[misc]
        """The run's model as a LightningModule."""

        def log(
            self, name: str, value: Any, *_: Any, batch_size: int | None = None, **__: Any
        ) -> None:
            trainer.log(name, value, batch_size)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return inner(*args, **kwargs)

        def optimizers(self, *_: Any, **__: Any) -> Any:
            return run.optimizer

        def train(self, mode: bool = True) -> Any:
            # A copy, such as an average, has modules of its own and leaves the run's model as it
            # is.
            if self._modules is inner._modules:
                inner.training = mode
            return super().train(mode)

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(inner, name)

    _share_attributes(ModelModule, inner)
    module = ModelModule()
    _share_tables(module, inner)
    module._device = run.device
    module._trainer = trainer
    return module


def _share_attributes(module_class: type, model: Any) -> None:
    """Set the attributes of the model that callbacks look for on the class."""
    for name in SHARED_ATTRIBUTES:
        if hasattr(model, name):
            setattr(module_class, name, getattr(model, name))


def _share_tables(module: Any, model: Any) -> None:
    """Let a module consist of the very parameters, buffers and modules of the model."""
    for table in SHARED_TABLES:
        module.__dict__[table] = model.__dict__[table]
