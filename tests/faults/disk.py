"""A disk that misbehaves below one folder: each operation that changes it is counted, and may be
made to fail or hang.

That is done where Python calls the system, in this process: opening a file to write, each write,
fsync, and whatever makes, renames, links or removes something. So every operation of a run can be
struck in turn, on any machine.
"""

import errno
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

OPERATIONS = ("mkdir", "rename", "replace", "symlink", "unlink", "rmdir")
"""Functions of `os` that change a folder, and take the path first."""


def full(operation: str) -> None:
    """Refuse what needs room, as a full disk does."""
    if operation.partition(" ")[0] not in ("unlink", "rmdir", "rename", "replace"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Disk:
    """Whatever is below `folder`. `strike` is called before each operation from `begin` on: its
    number, counted from 1, or a pattern that it matches first; "" for never.
    """

    def __init__(
        self,
        folder: Path,
        patch: pytest.MonkeyPatch,
        begin: int | str = "",
        strike: Callable[[str], None] = full,
    ) -> None:
        self.folder = str(folder.absolute())
        self.operations: list[str] = []
        self.struck: list[str] = []
        self.begun = False
        self._begin, self._strike = begin, strike
        self._open = io.open
        self._paths: dict[int, str] = {}
        patch.setattr(io, "open", self.open)
        patch.setattr("builtins.open", self.open)
        patch.setattr(os, "open", self._opening(os.open))
        patch.setattr(os, "write", self._writing(os.write))
        patch.setattr(os, "fsync", self._writing(os.fsync))
        for name in OPERATIONS:
            patch.setattr(os, name, self._changing(name, getattr(os, name)))

    def note(self, operation: str, path: str) -> None:
        """Count an operation, and strike if it is time."""
        now = f"{operation} {os.path.relpath(path, self.folder)}"
        self.operations.append(now)
        if isinstance(self._begin, int):
            self.begun = len(self.operations) >= self._begin
        elif self._begin and re.search(self._begin, now):
            self.begun = True
        if self.begun:
            self.struck.append(now)
            self._strike(now)

    @property
    def turns(self) -> list[int]:
        """Return the numbers of the operations, of several like one another
        in a row the first and the last.
        """
        known = ["", *self.operations, ""]
        return [k for k, now in enumerate(known) if now and not known[k - 1] == now == known[k + 1]]

    def has(self, path: Any) -> bool:
        """Say whether a path is below the folder."""
        return isinstance(path, str | os.PathLike) and str(Path(path).absolute()).startswith(
            f"{self.folder}/"
        )

    def open(self, file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        """Open a file; of one that is written each write is noted."""
        if noted := self.has(file) and bool(set(mode) & set("wax+")):
            self.note("open", os.fspath(file))
        opened = self._open(file, mode, *args, **more)
        self._paths.pop(opened.fileno(), None)
        if not noted:
            return opened
        self._paths[opened.fileno()] = os.fspath(file)
        return _Noted(opened, lambda: self.note("write", os.fspath(file)))

    def _opening(self, call: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, *args: Any, **more: Any) -> int:
            if self.has(path) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.note("open", os.fspath(path))
            number = call(path, flags, *args, **more)
            self._paths.pop(number, None)
            if self.has(path):
                self._paths[number] = os.fspath(path)
            return number

        return opened

    def _writing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def written(file: int, *args: Any) -> Any:
            if file in self._paths:
                self.note(call.__name__, self._paths[file])
            return call(file, *args)

        return written

    def _changing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **more: Any) -> Any:
            if self.has(path := args[1] if name == "symlink" else args[0]):
                self.note(name, os.fspath(path))
            return call(*args, **more)

        return changed


class _Noted:
    """A file of which each write is noted first."""

    def __init__(self, file: Any, note: Callable[[], None]) -> None:
        self._file, self._note = file, note

    def write(self, data: Any) -> Any:
        self._note()
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_Noted":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)
