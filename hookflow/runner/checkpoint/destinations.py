"""Where checkpoints are copied to: a local folder, or a folder at a URL.

The copy of a checkpoint is a folder. While a newer checkpoint replaces it, there is a whole copy at
each moment: in its place, or beside it. Each step is such that a process may be killed after it;
the next `put` to the place goes on. A copy is whole when its manifest is sealed and every file that
the manifest lists has its size.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol

from hookflow.errors import first_few
from hookflow.events.rundir import fsync
from hookflow.runner.checkpoint.manifest import (
    MANIFEST_FILE,
    DamagedError,
    find_damage,
    parse_manifest,
)

SHARD_SUFFIX = ".distcp"
"""The end of the names of shards, of which another number of ranks writes others."""

RENAME_EXCHANGE = 2
"""The flag of Linux's `renameat2` by which two paths are exchanged."""

AT_FDCWD = -100
"""The working directory in `renameat2`."""


class CopyDestination(Protocol):
    """A place that holds the copy of one checkpoint."""

    def put(self, folder: Path) -> None:
        """Let the place hold a copy of the checkpoint in `folder`, and nothing else.

        Nothing is copied when that copy is there already. Raises OSError, or what serves the URL
        raises; then the copy that was there still is.
        """


def make_destination(place: str, mark: str) -> CopyDestination:
    """Return the destination at a path or a URL.

    `mark` is part of the names that are used beside it.
    """
    if "://" in place:
        return RemoteFolder(place, mark)
    return LocalFolder(Path(place).absolute(), mark)


class LocalFolder:
    """A folder of this machine.

    The new copy is written beside it, and replaces the old one by a rename.
    """

    def __init__(self, path: Path, mark: str) -> None:
        self._path = path
        self._new = path.with_name(f".{path.name}.{mark}.new")
        self._old = path.with_name(f".{path.name}.{mark}.old")

    def put(self, folder: Path) -> None:
        self._recover()
        if not _is_same_file(folder / MANIFEST_FILE, self._path / MANIFEST_FILE) or find_damage(
            self._path, thorough=False
        ):
            self._check_is_copy(folder)
            self._write(folder)
            self._swap()
        self._remove_leftovers()

    def _recover(self) -> None:
        """Restore the copy that a killed process has left beside the place, between its renames."""
        if self._path.exists():
            return
        for beside in (self._new, self._old):
            if beside.exists() and not find_damage(beside, thorough=False):
                beside.rename(self._path)
                return

    def _check_is_copy(self, folder: Path) -> None:
        if self._path.exists():
            present = [path.name for path in self._path.iterdir()]
            _check_replaceable(str(self._path), present, [path.name for path in folder.iterdir()])

    def _write(self, folder: Path) -> None:
        self._remove_leftovers()
        try:
            shutil.copytree(folder, self._new)
            for file in self._new.iterdir():
                fsync(file)
            fsync(self._new)
        except BaseException:
            self._remove_leftovers()  # a full disk needs the room
            raise

    def _swap(self) -> None:
        if not self._path.exists():
            self._new.rename(self._path)
        elif not _exchange(self._new, self._path):
            self._path.rename(self._old)
            try:
                self._new.rename(self._path)
            except BaseException:
                self._old.rename(self._path)
                raise
        fsync(self._path.parent)

    def _remove_leftovers(self) -> None:
        for beside in (self._new, self._old):
            shutil.rmtree(beside, ignore_errors=True)


class RemoteFolder:
    """A folder at a URL that fsspec knows. No store can exchange two folders.

    A new copy is uploaded beside the old one, with its manifest last. Then the store copies its
    files to the place, again with the manifest last, and only then the copy beside goes. `mark`
    tells the copies beside of two runs apart.
    """

    def __init__(self, url: str, mark: str) -> None:
        from fsspec.core import url_to_fs

        files, path = url_to_fs(url)
        self._files: Any = files
        self._path = str(path).rstrip("/")
        self._beside = f"{self._path}.{mark}.new"

    def put(self, folder: Path) -> None:
        self._files.invalidate_cache()
        if not self._is_whole(self._path) and self._is_whole(self._beside):
            self._replace_by_new()  # a killed process was about to
        present = self._read(f"{self._path}/{MANIFEST_FILE}")
        is_same = present == (folder / MANIFEST_FILE).read_bytes()
        if not is_same or not self._is_whole(self._path):
            names = [path.name for path in folder.iterdir()]
            _check_replaceable(self._path, self._names(self._path), names)
            if present is None:  # there is no older copy to keep
                self._upload(folder, self._path)
            else:
                self._upload(folder, self._beside)
                self._replace_by_new()
        self._remove(self._beside)

    def _replace_by_new(self) -> None:
        """Let the place hold what is beside it, which is whole until the place is."""
        self._remove(self._path)
        self._files.makedirs(self._path, exist_ok=True)
        for name in _sort_manifest_last(self._names(self._beside)):
            self._copy_file(f"{self._beside}/{name}", f"{self._path}/{name}")
        self._check_whole(self._path)

    def _upload(self, folder: Path, path: str) -> None:
        self._remove(path)
        self._files.makedirs(path, exist_ok=True)
        for name in _sort_manifest_last([file.name for file in folder.iterdir()]):
            self._files.put_file(str(folder / name), f"{path}/{name}")
        self._check_whole(path)

    def _copy_file(self, source: str, target: str) -> None:
        try:
            self._files.cp_file(source, target)
        except NotImplementedError:  # as of sftp
            with (
                self._files.open(source, "rb") as reading,
                self._files.open(target, "wb") as writing,
            ):
                shutil.copyfileobj(reading, writing)

    def _check_whole(self, path: str) -> None:
        self._files.invalidate_cache()
        if not self._is_whole(path):
            raise OSError(f"the files at {path} are not those that were copied")

    def _is_whole(self, path: str) -> bool:
        """Return whether a whole copy is there.

        Only what is certainly absent counts as such: other errors raise.
        """
        text = self._read(f"{path}/{MANIFEST_FILE}")
        if text is None:
            return False
        try:
            expected = parse_manifest(text, path.rpartition("/")[2])["files"]
            sizes = {name: self._files.info(f"{path}/{name}")["size"] for name in expected}
        except (DamagedError, FileNotFoundError):
            return False
        return all(sizes[name] == entry["bytes"] for name, entry in expected.items())

    def _read(self, path: str) -> bytes | None:
        try:
            return bytes(self._files.cat_file(path))
        except FileNotFoundError:
            return None

    def _names(self, path: str) -> list[str]:
        """Return the names of the files in a folder; none where there is no folder."""
        inside = [file for file in self._files.find(path) if file.startswith(f"{path}/")]
        return [file.removeprefix(f"{path}/") for file in inside]

    def _remove(self, path: str) -> None:
        """Remove a folder, its manifest first: what is left of it is no copy."""
        names = self._names(path)
        if MANIFEST_FILE in names:
            self._files.rm_file(f"{path}/{MANIFEST_FILE}")
        if self._files.exists(path):
            self._files.rm(path, recursive=True)


def _sort_manifest_last(names: Collection[str]) -> list[str]:
    return sorted(names, key=lambda name: (name == MANIFEST_FILE, name))


def _check_replaceable(place: str, present: Collection[str], new: Collection[str]) -> None:
    """Raise OSError where a place holds files that no copy of a checkpoint has.

    A copy would remove them.
    """
    if MANIFEST_FILE in present:
        return
    foreign = [name for name in present if name not in new and not name.endswith(SHARD_SUFFIX)]
    if foreign:
        raise FileExistsError(
            f"{place} holds other files than those of a checkpoint: {first_few(sorted(foreign))}"
        )


def _is_same_file(one: Path, other: Path) -> bool:
    """Return whether two files hold the same bytes; no if the second does not exist."""
    try:
        return one.read_bytes() == other.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False


def _exchange(one: Path, other: Path) -> bool:
    """Exchange what two paths lead to, in one step. Return False where the system cannot."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    paths = os.fsencode(one), os.fsencode(other)
    return bool(libc.renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE) == 0)
