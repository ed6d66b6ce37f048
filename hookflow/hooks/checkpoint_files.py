"""Weights of a checkpoint as its files hold them.

They are full, or in shards of torch.distributed.checkpoint.
"""

import pickle
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from zlib import crc32

from hookflow.errors import Problem, UserError, first_few, nearest_or_all
from hookflow.events.rundir import short
from hookflow.hooks.tensors import local

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import LoadPlan

METADATA_FILE = ".metadata"
"""The file of torch.distributed.checkpoint that names all shards in a folder."""


def state_key(section: str, name: str) -> str:
    """Return the key of a model's or an optimizer's state.

    It is the name of the section, or "model_NAME" where there are several.
    """
    if name == section:
        return section
    return f"{section}_{name}"


def is_without_optimizers(state: Mapping[str, Any]) -> bool:
    return not any(key.startswith("optimizer") for key in state)


def read_tensors(path: Path, *, file: IO[bytes] | None = None, mmap: bool = False) -> Any:
    """Return the contents of a file of `torch.save` without running code.

    With `mmap`, tensors stay in the file.

    `file` is the file, if it is open. Raises UserError when it is something else.
    """
    import torch

    def load() -> Any:
        return torch.load(file or path, map_location="cpu", weights_only=True, mmap=mmap)

    try:
        try:
            return load()
        except pickle.UnpicklingError as error:
            if "nested jagged tensors" not in str(error):
                raise
            # This import lets jagged tensors be loaded. It takes a second, and few checkpoints have
            # any.
            import torch._dynamo

            if file is not None:
                file.seek(0)
            return load()
    except pickle.UnpicklingError as error:
        message = (
            str(error).partition("WeightsUnpickler error: ")[2].partition("\n")[0]
            or "it cannot be unpickled"
        )
        hint = (
            "only tensors, numbers, strings, lists and dicts are read; it may be an attack, and is"
            " left alone"
        )
        raise UserError(Problem(f"{path} holds more than data: {message}", hint=hint)) from None
    except (RuntimeError, EOFError, ValueError) as error:
        message = (
            f"{path} is no file that torch.save has written: {str(error).partition(chr(10))[0]}"
        )
        raise UserError(Problem(message)) from None


def read_weights(checkpoint: Path, name: str) -> dict[str, Any]:
    """Return weights of a checkpoint (model, model_ema, …), full and in the host's memory.

    Raises UserError where they cannot be read, or there are none; it lists those that there are.
    """
    import torch

    there = {path.stem for path in checkpoint.glob("model*.pt")}
    if name in there:
        return dict(read_tensors(checkpoint / f"{name}.pt"))
    if (checkpoint / METADATA_FILE).exists():
        entries = read_tensors(checkpoint / "training.pt")
    else:
        entries = {}
    if name not in entries or not name.startswith("model"):
        there.update(key for key in entries if key.startswith("model"))
        message = f'the checkpoint {checkpoint.name} has no weights "{name}"'
        raise UserError(Problem(message, hint=nearest_or_all(name, sorted(there))))
    shapes = {
        key: value
        for key, value in entries[name].items()
        if isinstance(value, torch.Tensor) and value.is_meta
    }
    tensors = {key: torch.zeros_like(shape, device="cpu") for key, shape in shapes.items()}
    read_shards(checkpoint, {f"{name}.{key}": tensor for key, tensor in tensors.items()})
    return {**entries[name], **tensors}


def not_averages(checkpoint: Path, name: str) -> str:
    """Return a text on the weights of a checkpoint's only model, where hooks keep others.

    Such a hook is `ema`.
    """
    if name == "model":
        averages = [f"{average}.pt" for average in list_averages(checkpoint)]
    else:
        averages = []
    if averages:
        return f"the weights that a hook validates are in {', '.join(averages)}"
    return ""


def list_averages(checkpoint: Path) -> list[str]:
    """Return the names of the weights that hooks keep beside those of a checkpoint's only model.

    Such a name is model_ema.
    """
    names = {path.stem for path in checkpoint.glob("model*.pt")}
    if (checkpoint / METADATA_FILE).exists():
        names.update(read_tensors(checkpoint / "training.pt", mmap=True))
    if "model" in names:
        return sorted(name for name in names if name.startswith("model_"))
    return []


def mark_of(tensor: "Tensor") -> str:
    """Return the type, the shape and the CRC-32 of a tensor, at about 3 GB/s.

    Other values have another mark.
    """
    import torch

    data = tensor.detach().reshape(-1).view(torch.uint8).cpu()
    return f"{tensor.dtype} {tuple(tensor.shape)} {crc32(data.numpy().data):08x}"


def with_frozen(
    weights: Mapping[str, Any], frozen: Mapping[str, str], model: "nn.Module"
) -> dict[str, Any]:
    """Return weights with the parameters that their checkpoint leaves out, by their marks.

    These are the model's own. Raises UserError where the model has others than those that the
    checkpoint was trained with.
    """
    own = model.state_dict()
    others = []
    for name, mark in frozen.items():
        if name not in own or mark_of(own[name]) != mark:
            others.append(name)
    if others:
        message = (
            "the checkpoint leaves out frozen parameters, and this model has others"
            f" ({first_few(others)})"
        )
        raise UserError(
            Problem(message, hint="build the model with the weights that it was trained with")
        )
    return {**{name: own[name] for name in frozen}, **weights}


def frozen_in(checkpoint: Path, name: str) -> dict[str, str]:
    """Return the marks of the parameters that weights of a checkpoint leave out.

    Most leave out none.
    """
    left_out: Mapping[str, dict[str, str]] = read_tensors(
        checkpoint / "training.pt", mmap=True
    ).get("frozen", {})
    return left_out.get(name, {})


def read_shards(folder: Path, tensors: "Mapping[str, Tensor]") -> None:
    """Fill tensors, by their names, with what torch.distributed.checkpoint has written to a folder.

    This process reads its own shard of a sharded tensor, without the others. No code from the
    folder is executed. Raises UserError when they cannot be read.
    """
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    reader = FileSystemReader(folder)
    planner = DefaultLoadPlanner()
    try:
        with (folder / METADATA_FILE).open("rb") as file:
            metadata = _MetadataUnpickler(file).load()
        # These are the steps of `torch.distributed.checkpoint.load`, which warns without a process
        # group.
        planner.set_up_planner(dict(tensors), metadata, is_coordinator=True)
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        check_metadata(metadata, tensors)
        plan = planner.create_local_plan()
        check_plan(plan, tensors)
        reader.read_data(plan, planner).wait()
    except Exception as error:
        message = f"the shards in {short(folder)} cannot be read: {error}"
        raise UserError(Problem(message)) from error


def check_metadata(metadata: "Metadata", tensors: "Mapping[str, Tensor]") -> None:
    """Raise ValueError where metadata does not describe each of these tensors.

    Each must be a tensor, in a file beside the metadata. PyTorch unpickles an entry that is called
    bytes, and runs the code in it.
    """
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    for name, tensor in tensors.items():
        entry = metadata.state_dict_metadata.get(name)
        if not isinstance(entry, TensorStorageMetadata):
            raise ValueError(f"{name} is not in them as a tensor")
        if entry.size != tensor.shape or entry.properties.dtype != tensor.dtype:
            saved = f"{entry.properties.dtype} {tuple(entry.size)}"
            wanted = f"{tensor.dtype} {tuple(tensor.shape)}"
            raise ValueError(f"{name} is {saved}, where it is to be {wanted}")
    for index, stored in metadata.storage_data.items():
        if Path(stored.relative_path).name != stored.relative_path:
            raise ValueError(f"{index.fqn} is in a file outside the folder: {stored.relative_path}")


def check_plan(plan: "LoadPlan", tensors: "Mapping[str, Tensor]") -> None:
    """Raise ValueError where reading as planned would leave a part of a tensor uninitialised."""
    offsets: dict[str, list[tuple[int, ...]]] = {name: [] for name in tensors}
    planned = dict.fromkeys(tensors, 0)
    for item in plan.items:
        name = item.dest_index.fqn
        offsets[name].append(tuple(item.dest_offsets))
        planned[name] += prod(item.lengths)
    for name, tensor in tensors.items():
        repeated = len(set(offsets[name])) < len(offsets[name])
        if repeated or planned[name] != local(tensor).numel():
            raise ValueError(f"{name} is not whole in them")


class _MetadataUnpickler(pickle.Unpickler):
    """Reads a metadata file (`METADATA_FILE`), and nothing but the classes that it consists of."""

    def find_class(self, module: str, name: str) -> Any:
        import torch

        module = module.removesuffix("._local")  # Python 3.13 alone has it in the names of paths
        if name in ALLOWED_CLASSES.get(module, ()) or (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{METADATA_FILE} holds more than data: {module}.{name}")


STORAGE_CLASSES = {f"{of}StorageMetadata" for of in ("Tensor", "Bytes", "Chunk")}
METADATA_CLASSES = {
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorProperties",
    "_MEM_FORMAT_ENCODING",
}
ALLOWED_CLASSES = {
    "torch.distributed.checkpoint.metadata": STORAGE_CLASSES | METADATA_CLASSES,
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "pathlib": {"PosixPath"},
}
"""The classes in a metadata file, by module; beside them there are dtypes."""
