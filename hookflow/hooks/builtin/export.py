"""Export: weights of a run as files for others, named after what is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.events.rundir import make_out_dir
from hookflow.hooks.base import Hook
from hookflow.hooks.checkpoint_files import read_weights
from hookflow.hooks.tensors import first_tensor, is_sharded
from hookflow.pipeline.registry import missing_package

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run


Format = Literal["state_dict", "safetensors", "torch_export"]
SUFFIX: dict[Format, str] = {"state_dict": ".pt", "safetensors": ".safetensors", "torch_export": ".pt2"}

DIGITS = 8
"""Digits of the SHA-256 in a file's name, as `torch.hub.load_state_dict_from_url(…, check_hash=True)` reads them."""


@dataclass(eq=False)
class Export(Hook):
    """Writes weights of a checkpoint at the end of the run, with the first digits of their SHA-256 in the name.

    `checkpoint` is the name of the checkpoint, such as `best`; `weights` which of its weights, such as `model_ema` for
    the average of a hook called ema. The file is `<checkpoint>-<weights>-1a2b3c4d.pt`; one of that name that is there
    holds the same, and those of other runs stay. The formats:

    - `state_dict`: what `torch.save` writes of a state_dict, for `torch.load(…, weights_only=True)`;
    - `safetensors`: the same tensors for the package of that name (`pip install 'hookflow[safetensors]'`);
    - `torch_export`: the network in evaluation with the weights, by `torch.export`, for batches of any size. It is
      called with the first tensor of a training batch to see what it does.

    Written after the last checkpoint is on the disk; a run that ends without that checkpoint exports nothing.
    """

    phase = "last"
    ranks = "zero"
    reads = ("model", "checkpoint")

    formats: Annotated[tuple[Format, ...], Field(min_length=1, description="the formats to write")] = ("state_dict",)
    checkpoint: Annotated[str, Field(description="the checkpoint by its name: last, best, …")] = "last"
    weights: Annotated[str, Field(description="which weights of the checkpoint: model, model_ema, …")] = "model"
    out_dir: Annotated[str | None, Field(description="the folder; export/ in the run directory if left out")] = None

    def __post_init__(self) -> None:
        self.trains = False

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        missing = missing_package("the format safetensors", "safetensors", "safetensors")
        if missing and "safetensors" in args.get("formats", ()):
            raise UserError(missing)

    def before_train(self, run: Run) -> None:
        self.trains = True
        if "torch_export" in self.formats and any(map(is_sharded, run.model.parameters())):
            message = "torch_export cannot export a model that is sharded across the ranks"
            raise UserError(Problem(message, hint='export a state_dict, or use distributed.strategy = "ddp"'))
        make_out_dir(self._folder(run))

    def after_run(self, run: Run) -> None:
        import torch

        source = run.dir / "checkpoints" / self.checkpoint
        if not self.trains:
            return
        if not source.exists():
            run.say(f'there is no checkpoint "{self.checkpoint}" to export', "warn")
            return
        weights = read_weights(source, self.weights)
        folder = self._folder(run)
        for format_ in self.formats:
            written = folder / f".{self.checkpoint}-{self.weights}{SUFFIX[format_]}"
            if format_ == "torch_export":
                model = run.models.get(self.weights.removeprefix("model_"), run.model)
                inputs = first_tensor(next(iter(run.data["train"].epoch(0))))
                if inputs is None:
                    message = "torch_export needs a tensor in the batch, to see what the network does with it"
                    raise UserError(Problem(message))
                write_exported(model, inputs, weights, written)
            elif format_ == "safetensors":
                write_safetensors(weights, written)
            else:
                with written.open("wb") as file:  # the same weights give the same bytes, whatever the file's name
                    torch.save(weights, file)
            with written.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
            path = written.replace(folder / f"{written.stem[1:]}-{digest}{SUFFIX[format_]}")
            run.say(f"exported {path}")

    def _folder(self, run: Run) -> Path:
        return run.dir / "export" if self.out_dir is None or run.is_temporary else Path(self.out_dir)


def write_safetensors(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write weights as safetensors; those that are tied are written once for each name."""
    import torch
    from safetensors.torch import save_file

    if other := next((name for name, value in weights.items() if not torch.is_tensor(value)), ""):
        message = f'safetensors cannot hold "{other}", a module\'s extra state of type {type(weights[other]).__name__}'
        raise UserError(Problem(message, hint='use format = "state_dict"'))
    save_file({name: tensor.contiguous().clone() for name, tensor in weights.items()}, path)


def write_exported(model: nn.Module, inputs: Tensor, weights: Mapping[str, Tensor], path: Path) -> None:
    """Write a network with other weights, in evaluation, by `torch.export`; it is afterwards as it was."""
    import torch

    before = deepcopy(model.state_dict())
    modes = {module: module.training for module in model.modules()}
    try:
        model.load_state_dict(weights)
        model.eval()
        with torch.no_grad():
            shapes = ({0: torch.export.Dim.AUTO},)
            torch.export.save(torch.export.export(model, (inputs,), dynamic_shapes=shapes, strict=False), path)
    finally:
        model.load_state_dict(before)
        for module, training in modes.items():
            module.training = training
