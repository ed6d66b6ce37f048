"""A run is prepared in a process of its own: what that imports does not stay in the viewer."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import typer

from hookflow.errors import UserError
from hookflow.events.run_lock import MAX_LOCKS, adopt_locks, transfer_claim_of_locks
from hookflow.events.rundir import RunDir, process_identity

RAISED_AGAIN = (UserError, OSError, typer.Exit)
"""Errors that the command line handles: the caller's process raises them again."""


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run that is ready to be started.

    `claim` takes the place of its locks where the file system knows none.
    """

    path: Path
    claim: Path | None


def prepare_in_child(find: Callable[[], RunDir]) -> RunDir:
    """Return the run that `find` returns in a forked process.

    Locks that it keeps are this process's own then. To compile the user's hooks imports their
    modules, and torch with them: 200 MB, which a viewer would keep. Raises what `find` raises, if
    it is one of `RAISED_AGAIN`; after another error, which is printed, the command ends.
    """
    from hookflow.runner.process.launch import keep

    sys.stdout.flush()  # or both processes would print what is left in the buffers
    sys.stderr.flush()
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _prepare(find, theirs)
    theirs.close()
    with ours:
        message, locks = _receive(ours)
        result = pickle.loads(message) if message else None  # noqa: S301  # it comes from our own child
        if isinstance(result, PreparedRun):
            run_dir = RunDir(result.path)
            if locks:
                keep(run_dir, adopt_locks(locks, result.claim))
            elif "starter" in run_dir.describe():
                run_dir.sign(starter=process_identity(os.getpid()))
    _, status = os.waitpid(pid, 0)
    if isinstance(result, BaseException):
        raise result
    if result is None:
        raise typer.Exit(os.waitstatus_to_exitcode(status) or 1)
    return run_dir


def _receive(ours: socket.socket) -> tuple[bytes, list[int]]:
    """Return what the child has sent, and the file descriptors of the locks that it keeps."""
    message, locks, _, _ = socket.recv_fds(ours, 1 << 16, MAX_LOCKS)
    while part := ours.recv(1 << 16):
        message += part
    return message, locks


def _prepare(find: Callable[[], RunDir], theirs: socket.socket) -> NoReturn:
    """Prepare the run in the child, and send it, or what was raised.

    The child ends once the parent has taken the run over.
    """
    from hookflow.runner.process.launch import take_kept

    code = 0
    locks: tuple[int, ...] = ()
    try:
        run_dir = find()
        locks = take_kept(run_dir)
        message = pickle.dumps(
            PreparedRun(run_dir.path, transfer_claim_of_locks(locks, os.getppid()))
        )
    except RAISED_AGAIN as error:
        message = pickle.dumps(error)
    except KeyboardInterrupt:
        os._exit(130)  # the parent has been interrupted, too
    except BaseException:  # this process ends here, whatever it was
        traceback.print_exc()
        message = b""
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    with suppress(OSError):  # the parent is gone
        socket.send_fds(theirs, [message[:1]], locks)
        theirs.sendall(message[1:])
        theirs.shutdown(socket.SHUT_WR)
        theirs.recv(1)  # until the parent has closed its end: the run lives as long as its starter
    os._exit(code)
