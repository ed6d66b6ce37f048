"""The official archive of CIFAR-10's binary version: fetched and unpacked, whole or not at all."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

from hookflow.zoo.download import alone, download

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
MOST = 200_000_000
"""Bytes that it has at most."""

FOLDER = "cifar-10-batches-bin"
"""The archive's only folder."""


def fetch(root: Path, say: Callable[[str], None]) -> None:
    """Make `root/cifar-10-batches-bin` out of the archive, which is fetched into `root` unless it is there already.

    Several processes may request it at once: one fetches, the others wait. Raises DownloadError, and OSError when
    the disk refuses.
    """
    root.mkdir(parents=True, exist_ok=True)
    with alone(root / "cifar-10.lock", say):
        if (root / FOLDER).exists():  # another process was faster
            return
        archive = root / Path(URL).name
        if not archive.exists():
            say(f"fetching CIFAR-10, 170 MB, from {URL}")
        download(URL, archive, MD5, MOST, say)
        say(f"unpacking {archive}")
        _unpack(archive, root)


def _unpack(archive: Path, root: Path) -> None:
    """Unpack the plain files of the archive's folder aside, then put the folder in its place."""
    aside = root / f"{FOLDER}.tmp"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar:
            source = tar.extractfile(member) if member.isfile() else None  # no link, which may lead anywhere
            if source is not None and Path(member.name).parent == Path(FOLDER):
                with (aside / Path(member.name).name).open("wb") as file:
                    shutil.copyfileobj(source, file)
    aside.rename(root / FOLDER)
