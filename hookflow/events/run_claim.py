"""A claim on a run directory, for a file system that knows no locks.

A claim is a symbolic link `claim.N` whose target names a process: the system makes it whole or not
at all, and makes no second one of that name. It counts as long as its process lives. A claim of
another machine does not count, since it is unknown here whether its process lives.
"""

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hookflow.events.process_life import read_start_time

CLAIM_NAME = re.compile(r"claim\.(\d{1,9})")

CLAIM_TARGET = re.compile(
    r"pid=(\d{1,18}) started=(\d{1,18}) folder=(\d{1,30}) host=(.*)", re.DOTALL
)
"""The holder of a claim.

It has the process, when that has started (ms), the inode of the run directory, and the machine. The
inode tells a run directory from a copy of it.
"""

START_TOLERANCE = 1000
"""Milliseconds by which the start time of a process may differ: setting the clock moves it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a run directory: the link, its number, and the text that names its process."""

    path: Path
    number: int
    target: str

    def is_held(self) -> bool:
        """Return whether the process that has it lives, on this machine."""
        match = CLAIM_TARGET.fullmatch(self.target)
        if match is None:
            return False
        pid, started, folder, host = match.groups()
        if host != socket.gethostname() or int(folder) != self.path.parent.stat().st_ino:
            return False
        begun = read_start_time(int(pid))
        return begun is not None and abs(begun * 1000 - int(started)) < START_TOLERANCE


def is_claimed(folder: Path) -> bool:
    """Return whether a living process has a claim of a run directory."""
    return any(claim.is_held() for claim in _list_claims(folder))


def take_claim(folder: Path) -> Path | None:
    """Claim a run directory for this process, and return the claim.

    It is None where a living process has one. If several processes try at once, at most one gets
    it.
    """
    before = list(_list_claims(folder))
    if any(claim.is_held() for claim in before):
        return None
    number = 1 + max((claim.number for claim in before), default=0)
    path = folder / f"claim.{number}"
    try:
        path.symlink_to(_target(folder, os.getpid()))
    except FileExistsError:
        return None
    # Another process may have released its claim, of a greater number, while the folder was read.
    if any(claim.is_held() for claim in _list_claims(folder) if claim.path != path):
        path.unlink(missing_ok=True)
        return None
    for claim in before:
        claim.path.unlink(missing_ok=True)
    return path


def transfer_claim(path: Path, pid: int) -> None:
    """Give a claim of this process to another one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.symlink_to(_target(path.parent, pid))
    aside.replace(path)


def release_claim(path: Path) -> None:
    """Remove a claim, unless it was handed over to another process."""
    with contextlib.suppress(OSError):  # the run directory was deleted or moved
        if path.readlink() == Path(_target(path.parent, os.getpid())):
            path.unlink()


def _list_claims(folder: Path) -> Iterator[Claim]:
    for path in folder.iterdir():
        match = CLAIM_NAME.fullmatch(path.name)
        if match:
            with contextlib.suppress(OSError):  # it is gone by now, or is no link
                yield Claim(path, int(match[1]), str(path.readlink()))


def _target(folder: Path, pid: int) -> str:
    started = round(1000 * (read_start_time(pid) or 0.0))
    return f"pid={pid} started={started} folder={folder.stat().st_ino} host={socket.gethostname()}"
