"""CIFAR-10 (A. Krizhevsky, 2009): 32x32 images of ten classes, fetched and read in the archive's binary version."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import shutil
import tarfile
import urllib.request
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hookflow.errors import Problem, UserError
from hookflow.zoo.images import Images, Options, Split, synthetic

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
FOLDER = "cifar-10-batches-bin"  # the archive's only folder
MOST = 200_000_000
"""The most bytes that the archive may have."""

PATIENCE_S = 10.0
"""How long to wait for a connection, or for the next bytes on one."""

CHUNK = 1 << 24
"""Bytes of the download between two lines about its progress."""

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
    split: Split = "train",
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
    neither, the official archive is fetched into `root` (unless `download` is false). If that fails, `on_missing`
    decides between an error and the synthetic images of `hookflow.zoo.images`. An incomplete folder is always an error.

    `limit` takes the first examples of the split, which are in random order. `augment` (flips and shifts) is on for
    `train` if left out. `sizes` are the sides in pixels that images are scaled to, epoch by epoch, the last for all
    that follow.

    Raises UserError when the images are not there or not whole.
    """
    options = Options(split, batch_size, augment, sizes, seed, device, rank, world)
    at = Path(root).expanduser()
    if _folder(at) is None:
        why = _fetched(at, say) if download else "download = false"
        if why and on_missing == "synthetic":
            say(f"no CIFAR-10 in {at} ({why}): synthetic images take its place, and accuracies on them mean little")
            return synthetic(options, limit, say)
        if why:
            message = f"no CIFAR-10: neither {at} nor {at / FOLDER} holds its binary version, and {why}"
            hint = f"put {URL} into {at} by hand, name the root of a copy that you have,"
            raise UserError(Problem(message, hint=f'{hint} or allow synthetic images with on_missing = "synthetic"'))
    folder = _folder(at) or at / FOLDER
    images, classes = _read(folder, split, limit)
    say(f"CIFAR-10 {split}: {len(classes):,} images from {folder}")
    note = f"{split}, from {folder}"
    return Images(images, classes, options, name="CIFAR-10", note=note, synthetic=False)


def _folder(root: Path) -> Path | None:
    """Return the folder of the binary version, or None when there is none, not even a broken one."""
    if any((root / file).exists() for files in FILES.values() for file in files):
        return root
    return root / FOLDER if (root / FOLDER).exists() else None


@lru_cache(maxsize=1)  # of a download that has failed, the next split has the answer at once
def _fetched(root: Path, say: Callable[[str], None]) -> str:
    """Fetch the archive into `root` and unpack it; return why it could not be done, or an empty string."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / "cifar-10.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may want it at once: one fetches, others wait
            if not (root / FOLDER).exists():
                archive, unpacked = root / Path(URL).name, root / f"{FOLDER}.tmp"
                download(URL, archive, MD5, MOST, say)
                say(f"unpacking {archive}")
                shutil.rmtree(unpacked, ignore_errors=True)
                with tarfile.open(archive) as tar:
                    tar.extractall(unpacked, filter="data")
                (unpacked / FOLDER).rename(root / FOLDER)
                unpacked.rmdir()
        return ""
    except (OSError, http.client.HTTPException, tarfile.TarError, ValueError) as error:  # a redirect to no address
        return f"the download failed: {error}"


def download(url: str, target: Path, md5: str, most: int, say: Callable[[str], None]) -> None:
    """Fetch `url` into `target` unless it is there; `say` takes lines about the progress.

    Raises OSError where the file has another MD5 sum, or more than `most` bytes; OSError, http.client.HTTPException or
    ValueError where there is no answer, or none that is HTTP.
    """
    path = target
    if not target.exists():
        say(f"fetching {url}")
        path = target.with_name(f"{target.name}.part")
        answer = urllib.request.urlopen(url, timeout=PATIENCE_S)  # noqa: S310  # the caller's, not the user's
        with answer, path.open("wb") as file:
            while data := answer.read(min(CHUNK, most + 1)):
                if file.tell() + len(data) > most:
                    path.unlink()
                    raise OSError(f"{url} sends more than the {most:,} bytes that the file has at most")
                file.write(data)
                say(f"{file.tell() / 1e6:.0f} MB")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "md5").hexdigest()
    if digest != md5:
        if path != target:
            path.unlink()
        raise OSError(f"{path} has the MD5 sum {digest} instead of {md5}")
    path.replace(target)


def _read(folder: Path, split: str, limit: int | None) -> tuple[Tensor, Tensor]:
    """Return images, uint8 (examples, height, width, 3), and classes, int64 (examples,)."""
    hint = "remove the folder to have it fetched again, or give the root of a whole one"
    problems, whole = [], RECORDS * RECORD
    for file in (folder / name for name in FILES[split]):
        if not file.is_file():
            problems.append(Problem(f"{file} is missing", hint=hint))
        elif (size := file.stat().st_size) != whole:
            problems.append(Problem(f"{file} has {size:,} bytes instead of {whole:,}", hint=hint))
    if problems:
        raise UserError(problems)
    records = np.concatenate([np.fromfile(folder / file, np.uint8) for file in FILES[split]])
    records = records.reshape(-1, RECORD)[:limit]
    classes = torch.from_numpy(records[:, 0].astype(np.int64))
    if classes.max() > 9:
        raise UserError(Problem(f"{folder} is not CIFAR-10: it has a class {classes.max()}, beyond 9"))
    planes = records[:, 1:].reshape(-1, 3, SIDE, SIDE)
    return torch.from_numpy(np.ascontiguousarray(planes.transpose(0, 2, 3, 1))), classes
