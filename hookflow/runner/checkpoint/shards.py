"""The values of a state.

There are nested ones by PyTorch's trees, those that could not be loaded again, and sharded tensors.

Each rank writes its own shards, by torch.distributed.checkpoint, and reads its own. The other files
of the checkpoint have tensors without contents in place of them, on the meta device.
"""

from __future__ import annotations

import copy
import io
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import PickleError
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_flatten_with_path, tree_map

from hookflow.hooks.checkpoint_files import read_shards
from hookflow.hooks.tensors import is_sharded, make_tree_key
from hookflow.runner.checkpoint.manifest import File

PLAIN_TYPES = (type(None), bool, int, float, str, bytes)


CONTAINER_TYPES = (dict, OrderedDict, list, tuple)
"""Types that a state is nested by; anything else is a leaf of it."""

Place = tuple[Any, ...]
"""Where a leaf of a state is: keys and places in lists, step by step."""


def mapped(state: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same dicts, lists and tuples, with `change` of every leaf that is no plain value.

    A `state_dict` carries versions beside its entries, which PyTorch's `tree_map` drops; they are
    copied with it.
    """

    def changed(value: Any) -> Any:
        if type(value) in PLAIN_TYPES:
            return value
        if type(value) is not OrderedDict:
            return change(value)
        new = OrderedDict((key, mapped(item, change)) for key, item in value.items())
        vars(new).update(copy.deepcopy(vars(value)))
        return new

    return tree_map(changed, state, is_leaf=lambda value: type(value) not in (dict, list, tuple))


def clone_leaf(value: Any) -> Any:
    """Return a copy of a leaf; that of a tensor is on its device."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.deepcopy(value)


def iter_leaves(state: Any) -> Iterator[tuple[Place, Any]]:
    """Yield every value in a state with its place.

    A value is no dict, list or tuple, or it is an empty one. Keys of dicts that are no plain values
    come, too.
    """
    leaves_with_paths, _ = tree_flatten_with_path(
        state, is_leaf=lambda value: type(value) not in CONTAINER_TYPES or not value
    )
    for path, leaf in leaves_with_paths:
        place = make_tree_key(path)
        for depth, key in enumerate(place):
            if type(key) not in PLAIN_TYPES:
                for inner, part in iter_leaves(key):
                    yield (*place[:depth], "a key", *inner), part
        yield place, leaf


def find_unreadable(state: Any) -> str:
    """Return the place and type of the first value that cannot be loaded without running code.

    The text is "" without one.
    """
    for place, value in iter_leaves(state):
        if type(value) not in (*PLAIN_TYPES, *CONTAINER_TYPES) and not _loads(value):
            kind = type(value)
            at = "".join(f"[{key!r}]" for key in place)
            text = f"{at} is a {kind.__module__}.{kind.__qualname__}, which cannot be loaded again"
            if kind.__module__ == "numpy":
                text += "; a tensor can be, such as torch.as_tensor(…)"
            return text
    return ""


@contextmanager
def name_unreadable(state: Any) -> Iterator[None]:
    """Where copying or writing `state` fails, raise TypeError that names the culprit.

    It is the first value that cannot be loaded again.
    """
    try:
        yield
    # Pickle raises these errors for locks, lambdas and local classes.
    except (TypeError, AttributeError, PickleError):
        wrong = find_unreadable(state)
        if wrong:
            raise TypeError(f"checkpoint{wrong}") from None
        raise


def _loads(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except (TypeError, AttributeError, PickleError):
        return False
    return True


Shards = tuple[Path, dict[str, File]]
"""The files that all ranks have written of a checkpoint, after their folder."""


def any_sharded(state: Any) -> bool:
    return any(is_sharded(leaf) for _, leaf in iter_leaves(state))


def without_contents(state: Any) -> Any:
    """Return a state with a tensor on the meta device in place of each sharded one."""
    return mapped(
        state,
        lambda leaf: (
            torch.empty(leaf.shape, dtype=leaf.dtype, device="meta") if is_sharded(leaf) else leaf
        ),
    )


def sharded_as(tensor: torch.Tensor, shard: torch.Tensor, mesh: DeviceMesh | None) -> torch.Tensor:
    """Return a tensor that is sharded over the mesh as another one is.

    This process has `shard` of it. The other one may be sharded over some dimensions of the mesh
    alone.
    """
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    if mesh is not None and tensor.device_mesh.ndim < mesh.ndim:
        mesh = mesh[tensor.device_mesh.mesh_dim_names]  # type: ignore[index]
    return DTensor.from_local(
        shard, mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def write_shards(
    folder: Path,
    state: Mapping[str, Any],
    group: dist.ProcessGroup,
    digesting: Callable[[Any], Any],
) -> dict[str, File]:
    """Write this rank's shards of a state, and return its files.

    All ranks of the group must call it.

    Entries for models and optimizers are written with all that they hold, so that PyTorch's tools
    can convert them. `digesting` makes of a file one that knows the checksum of what is written.
    Raises the first error of any rank.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    files: dict[str, File] = {}

    class ChecksumFileSystem(FileSystem):
        @contextmanager
        def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
            with Path(path).open(mode) as file:
                stream = digesting(file)
                yield stream
                file.flush()
                os.fsync(file.fileno())
                files[Path(path).name.removesuffix(".tmp")] = stream.facts()  # it will be renamed

        def mkdir(self, path: str | os.PathLike[str]) -> None:
            # The run directory is not made: it may have been deleted on purpose.
            for folder in (Path(path).parent, Path(path)):
                folder.mkdir(exist_ok=True)

    written: dict[str, Any] = {}
    for key, value in state.items():
        if key.startswith(("model", "optimizer")) and any_sharded(value):
            written[key] = value
        else:
            written |= {
                _name((key, *place)): leaf for place, leaf in iter_leaves(value) if is_sharded(leaf)
            }
    writer = FileSystemWriter(folder, sync_files=False)
    writer.fs = ChecksumFileSystem()
    try:
        save(written, storage_writer=writer, process_group=group)
    except CheckpointException as error:
        cause, _ = next(iter(error.failures.values()))
        raise cause from None
    return files


def with_contents(
    state: dict[str, Any], folder: Path, device: torch.device, mesh: DeviceMesh | None
) -> dict[str, Any]:
    """Return a state with the contents of its sharded tensors.

    They are sharded again over the mesh, or full without one. Full tensors of models are on
    `device`. Raises UserError when the shards in the folder cannot be read.
    """
    names = {
        id(leaf): _name(place[2:] if place[0] == "ranks" else place)  # shards are no rank's own
        for place, leaf in iter_leaves(state)
        if isinstance(leaf, torch.Tensor) and leaf.is_meta
    }
    tensors: dict[str, torch.Tensor] = {}

    def fill_leaf(leaf: Any) -> Any:
        name = names.get(id(leaf))
        if name is None:
            return leaf
        if name not in tensors:
            tensors[name] = _zeros(
                leaf, device if name.startswith("model") else torch.device("cpu"), mesh
            )
        return tensors[name]

    result: dict[str, Any] = mapped(state, fill_leaf)
    read_shards(folder, tensors)
    return result


def _zeros(like: torch.Tensor, device: torch.device, mesh: DeviceMesh | None) -> torch.Tensor:
    if mesh is None:
        return torch.zeros(like.shape, dtype=like.dtype, device=device)
    from torch.distributed.tensor import Replicate, Shard, zeros

    placements = [*[Replicate()] * (mesh.ndim - 1), Shard(0)]  # of a mesh of replicas, each sharded
    return zeros(like.shape, dtype=like.dtype, device_mesh=mesh, placements=placements)


def _name(place: Place) -> str:
    return ".".join(map(str, place))
