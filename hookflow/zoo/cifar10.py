"""CIFAR-10 (A. Krizhevsky, 2009): 32x32 images of ten classes, read from the archive's binary version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.events.records import DataInfo
from hookflow.sharding import BatchSharding
from hookflow.zoo import cifar10_archive
from hookflow.zoo.cifar10_archive import FOLDER
from hookflow.zoo.download import DownloadError
from hookflow.zoo.images import Images, synthetic

FILES = {
    "train": tuple(f"data_batch_{part}.bin" for part in range(1, 5)),
    "val": ("data_batch_5.bin",),
    "test": ("test_batch.bin",),
}
SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE
"""Bytes of an example: its class, then the red, the green and the blue plane, row by row."""

RECORDS = 10_000
"""Examples of a file."""


def cifar10(
    *,
    root: str,
    split: Literal["train", "val", "test"] = "train",
    batch_size: Annotated[int, Field(ge=1)] = 256,
    limit: Annotated[int, Field(ge=1)] | None = None,
    download: bool = True,
    on_missing: Literal["error", "synthetic"] = "error",
    augment: bool | None = None,
    sizes: Sequence[Annotated[int, Field(ge=1)]] = (),
    seed: int,
    device: torch.device,
    say: Callable[[str], None],
    rank: int = 0,
    world: int = 1,
) -> Images:
    """Return one split of CIFAR-10 on `device`.

    `train` is the first four training batches, 40,000 images, `val` the fifth and `test` the archive's own, 10,000
    each. (Published accuracies are those of `test` after training on all 50,000: expect half a point to one less.)

    The files of the binary version are looked for in `root` and in `root/cifar-10-batches-bin`. If they are in
    neither, the official archive is fetched into `root` (unless `download` is false). If that fails, `on_missing` says
    whether it is an error or the synthetic images of `hookflow.zoo.images` take their place, as `info` then says.
    A folder that is there but not whole is always an error.

    `limit` takes the first examples of the split; they are in random order already, so the classes stay balanced.
    `augment` (flips and shifts) is on for `train` unless said otherwise. `sizes` are the sides in pixels that the
    images are scaled to, epoch by epoch, the last for all that follow; if there are none they keep their 32.

    Raises UserError when the images are not there or not whole.
    """
    at = Path(root).expanduser()
    folder = _folder(at)
    if folder is None:
        why = _fetched(at, say) if download else "download = false"
        folder = _folder(at)
        if folder is None and on_missing == "synthetic":
            say(f"no CIFAR-10 in {at} ({why}): synthetic images take its place, and accuracies on them mean little")
            return synthetic(
                split=split,
                batch_size=batch_size,
                limit=limit,
                augment=augment,
                sizes=sizes,
                seed=seed,
                device=device,
                say=say,
                rank=rank,
                world=world,
            )
        if folder is None:
            raise UserError(_missing(at, why))
    images, classes = _read(folder, split, limit)
    say(f"CIFAR-10 {split}: {len(classes):,} images from {folder}")
    training, batch_size = split == "train", min(batch_size, len(classes))
    sharding = BatchSharding(len(classes), batch_size, drop_last=training, rank=rank, world=world)
    source = Images(
        torch.from_numpy(images),
        torch.from_numpy(classes),
        sharding,
        shuffle=training,
        augment=training if augment is None else augment,
        sizes=sizes,
        seed=seed,
        device=device,
    )
    source.info = DataInfo(
        name="CIFAR-10",
        examples=len(classes),
        batches=len(sharding),
        batch_size=batch_size,
        synthetic=False,
        note=f"{split}, from {folder}",
    )
    return source


def _folder(root: Path) -> Path | None:
    """Return the folder of the binary version, or None when there is none, not even a broken one."""
    if any((root / file).exists() for files in FILES.values() for file in files):
        return root
    return root / FOLDER if (root / FOLDER).exists() else None


_failed: dict[Path, str] = {}
"""Why a download into a root failed in this process: the next split does not wait for the same answer again."""


def _fetched(root: Path, say: Callable[[str], None]) -> str:
    """Fetch the archive into `root`; return why it could not be done, or an empty string."""
    if root not in _failed:
        try:
            cifar10_archive.fetch(root, say)
            return ""
        except (DownloadError, OSError) as error:
            _failed[root] = f"the download failed: {error}"
    return _failed[root]


def _missing(root: Path, why: str) -> Problem:
    return Problem(
        f"no CIFAR-10: neither {root} nor {root / FOLDER} holds its binary version, and {why}",
        hint=f"put {cifar10_archive.URL} into {root} by hand, name the root of a copy that you have,"
        ' or allow synthetic images with on_missing = "synthetic"',
    )


def _read(folder: Path, split: str, limit: int | None) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images, uint8 (examples, height, width, 3), and classes, int64 (examples,)."""
    problems = [problem for file in FILES[split] if (problem := _wrong_with(folder / file))]
    if problems:
        raise UserError(problems)
    records = np.concatenate([np.fromfile(folder / file, np.uint8) for file in FILES[split]])
    records = records.reshape(-1, RECORD)[:limit]
    classes = records[:, 0].astype(np.int64)
    if classes.max() > 9:
        raise UserError(Problem(f"{folder} is not CIFAR-10: it has a class {classes.max()}, beyond 9"))
    planes = records[:, 1:].reshape(-1, 3, SIDE, SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), classes


def _wrong_with(file: Path) -> Problem | None:
    hint = "remove the folder to have it fetched again, or give the root of a whole one"
    if not file.is_file():
        return Problem(f"{file} is missing", hint=hint)
    size, whole = file.stat().st_size, RECORDS * RECORD
    return Problem(f"{file} has {size:,} bytes instead of {whole:,}", hint=hint) if size != whole else None
