"""Copies a checkpoint over an older one again and again, with a fault at each step, in processes of
their own.

Called as `python -m tests.runner.copy_faults OLDER NEWER PLACE FAULT EXCHANGE`; it prints what is
wrong. The steps are what Python's audit hooks see: files that are opened to be written, renamed and
removed, folders that are made.
"""

import errno
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hookflow.runner.checkpoint import destinations
from hookflow.runner.checkpoint.destinations import LocalFolder
from hookflow.runner.checkpoint.manifest import find_damage

CHANGES = {
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "shutil.copytree",
    "shutil.rmtree",
    "ctypes.dlsym",
}
NEEDS_ROOM = {"open", "os.mkdir"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
MARK = "run"


def is_change(event: str, args: tuple[Any, ...]) -> bool:
    if event == "open":
        return bool(args[2] & WRITES)
    return event in CHANGES


def install(step: int, fault: str) -> None:
    """Let the process be killed before this step, or refuse it and those that follow."""
    done = 0

    def audit(event: str, args: tuple[Any, ...]) -> None:
        nonlocal done
        if not is_change(event, args):
            return
        done += 1
        if done <= step:
            return
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "disk full" and event in NEEDS_ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if fault == "permission":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    sys.addaudithook(audit)


def put_with_fault(newer: Path, place: Path, step: int, fault: str) -> int:
    """Copy in a process of its own; return how it has ended."""
    child = os.fork()
    if child == 0:
        install(step, fault)
        try:
            LocalFolder(place, MARK).put(newer)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def whole_copies(place: Path) -> list[Path]:
    beside = [*place.parent.glob(f".{place.name}.{MARK}.*")]
    return [path for path in (place, *beside) if path.exists() and not find_damage(path)]


def faults(older: Path, newer: Path, place: Path, fault: str, exchanges: bool) -> Iterator[str]:
    """Yield what is wrong after a fault at each step,
    until there is a step too few for the fault.
    """
    if not exchanges:
        destinations._exchange = lambda one, other: False
    code, step = -1, 0
    while code != 0:
        shutil.rmtree(place.parent, ignore_errors=True)
        shutil.copytree(older, place)
        code = put_with_fault(newer, place, step, fault)
        whole = whole_copies(place)
        in_place = place in whole
        if not whole or (exchanges and not in_place):
            yield f"{fault} at step {step}: whole copies: {whole}"
        left = sorted(path.name for path in place.parent.iterdir() if path != place)
        if fault == "disk full" and left:
            yield f"{fault} at step {step}: left {left}"
        LocalFolder(place, MARK).put(newer)
        there = sorted(path.name for path in place.parent.iterdir())
        if (
            there != [place.name]
            or find_damage(place)
            or (place / "manifest.json").read_bytes() != manifest_of(newer)
        ):
            yield f"{fault} at step {step}: a second copy does not mend it: {there}"
        step += 1
    if step < 4:
        yield f"{fault}: only {step} steps were seen"


def manifest_of(folder: Path) -> bytes:
    return (folder / "manifest.json").read_bytes()


if __name__ == "__main__":
    older, newer, place = map(Path, sys.argv[1:4])
    for wrong in faults(older, newer, place, sys.argv[4], sys.argv[5] == "exchanges"):
        print(wrong)
