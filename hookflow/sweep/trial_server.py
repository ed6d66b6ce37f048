"""A process that forks a training process for each trial.

It has imported torch. `hookflow sweep --in-process` uses it.

To start Python and to import torch takes seconds, and a small trial may train for less. The server
does both once, and nothing else: it imports no code of the user's, computes nothing and draws no
random number. A process that it forks is like a new process that has imported torch, and trains to
the same bits.

The sweep sends the arguments of a training, and the files for its output and its locks. The server
answers with lines of JSON: `started` with the process, `refused` with a reason, and later `ended`
with the process and its exit code.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import socket
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hookflow.errors import Problem, UserError
from hookflow.events.process_life import read_start_time
from hookflow.events.run_lock import Locks, release, transfer_claim_to_child
from hookflow.events.rundir import RunDir, short
from hookflow.runner.process.launch import claim, start_notifying, start_python

SERVER_MODULE = "hookflow.sweep.trial_server"

MAX_MESSAGE = 1 << 20
"""Bytes of a message, at most."""

NUM_FILES = 3
"""Open files of a message, at most: the one for the output, and two locks."""

PRELOADED_MODULES = (
    "torch._dynamo",  # the first step of an optimizer imports it
    "torch.utils.serialization",
    "hookflow.hooks.builtin.checkpoint",
    "hookflow.hooks.builtin.log",
    "hookflow.hooks.builtin.metrics",
    "hookflow.zoo.tasks",
)
"""The modules that most trainings import besides torch."""

POLL_INTERVAL = 0.02
"""Seconds between the looks of the server at the processes that it has forked."""


@dataclass(slots=True)
class ForkedTraining:
    """A training process that the server has forked, as the sweep sees it."""

    pid: int
    server: TrialServer

    def poll(self) -> int | None:
        """Return the exit code, a signal's number negative; None while the process lives."""
        return self.server.exit_code_of(self.pid)


class TrialServer:
    """The server, as the sweep sees it.

    It starts at once, in a session of its own, and ends when it is closed. The output of the server
    goes to the file `log`. It has the variables of `environment` besides those of this process.
    Trainings that are under way when it ends go on.
    """

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        self._socket, theirs = socket.socketpair()
        self._received = b""
        self._is_gone = False
        self._exit_codes: dict[int, int] = {}
        with theirs, log.open("ab") as output:
            number = theirs.fileno()
            self._process = start_python(
                SERVER_MODULE,
                str(number),
                output=output,
                descriptors=(number,),
                environment=environment,
            )

    def start(self, run_dir: RunDir, *options: str) -> ForkedTraining:
        """Start the training of a run with options of `hookflow.runner`.

        Raises UserError where that is refused.
        """
        locks = claim(run_dir)
        try:
            began = time.time()
            with run_dir.output.open("ab") as output:
                child = self._request_fork([str(run_dir.path), *options], output, locks)
            transfer_claim_to_child(locks, child.pid)
            start_notifying(run_dir, child.pid, began)
            return child
        finally:
            release(locks)  # the training has copies

    def _request_fork(
        self, arguments: Sequence[str], output: IO[bytes], locks: Locks
    ) -> ForkedTraining:
        message = json.dumps(arguments).encode()
        with suppress(OSError):  # the server is gone, which is found out below
            socket.send_fds(self._socket, [message], [output.fileno(), *locks])
        self._is_gone = self._is_gone or self._process.poll() is not None
        while not self._is_gone:
            for answer in self._receive():
                if "refused" in answer:
                    raise UserError(Problem(answer["refused"]))
                if "started" in answer:
                    return ForkedTraining(answer["started"], self)
        raise UserError(
            Problem(f"the process that forks the trials is gone; see {short(self._log)}")
        )

    def exit_code_of(self, pid: int) -> int | None:
        """Return the exit code of a training.

        It is None while it lives, and 1 where the server has gone before it.
        """
        while not self._is_gone and select.select([self._socket], [], [], 0)[0]:
            self._receive()
        if pid in self._exit_codes:
            return self._exit_codes[pid]
        if self._is_gone and read_start_time(pid) is None:
            return 1
        return None

    def _receive(self) -> list[dict[str, Any]]:
        """Wait for the server's messages, note ended trainings, and return its other answers."""
        received = b""
        with suppress(OSError):
            received = self._socket.recv(MAX_MESSAGE)
        if not received:
            self._is_gone = True
            return []
        *lines, self._received = (self._received + received).split(b"\n")
        answers = []
        for line in lines:
            answer = json.loads(line)
            if "ended" in answer:
                self._exit_codes[answer["ended"]] = answer["code"]
            else:
                answers.append(answer)
        return answers

    def close(self) -> None:
        """End the server."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def find_fork_obstacle() -> str:
    """Return why this process must not be forked; empty if nothing speaks against it."""
    import torch

    if torch.cuda.is_initialized():
        return (
            "--in-process: CUDA is initialised in the process that forks the trials, and would fail"
            " in each of them"
        )
    others = [
        thread.name for thread in threading.enumerate() if thread is not threading.main_thread()
    ]
    if others:
        return (
            "--in-process: the process that forks the trials has threads, which a fork would lose:"
            f" {others[0]}"
        )
    return ""


def wait_for_trial(connection: socket.socket) -> list[str] | None:
    """Fork a process for each training that the sweep sends.

    Returns its arguments, in that process. In the server itself it returns None, once the sweep is
    over or gone.
    """
    children: set[int] = set()
    while _report_ended(connection, children):
        if not select.select([connection], [], [], POLL_INTERVAL)[0]:
            continue
        message, files, *_ = socket.recv_fds(connection, MAX_MESSAGE, NUM_FILES)
        if not message:
            break
        reason = find_fork_obstacle()
        if reason:
            answer: dict[str, int | str] = {"refused": reason}
        else:
            pid = _fork_process()
            if pid == 0:
                connection.close()
                return _enter_training(json.loads(message), files)
            children.add(pid)
            answer = {"started": pid}
        for file in files:
            os.close(file)
        if not _tell(connection, answer):
            break
    return None


def _fork_process() -> int:
    """Fork this process; return 0 in the new one."""
    with warnings.catch_warnings():
        # Python warns of threads of numpy's BLAS, which prepares itself for a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _enter_training(arguments: list[str], files: Sequence[int]) -> list[str]:
    """Give this process a session and a training's files.

    Returns the arguments with the locks that it holds.
    """
    os.setsid()
    output, *locks = files
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    return [*arguments, f"--locks={','.join(map(str, locks))}"]


def _report_ended(connection: socket.socket, children: set[int]) -> bool:
    """Tell the sweep which forked processes have ended, and forget them.

    Returns whether the sweep is still there.
    """
    is_there = True
    for pid in sorted(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            children.remove(pid)
            is_there = _tell(connection, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})
    return is_there


def _tell(connection: socket.socket, answer: Mapping[str, int | str]) -> bool:
    """Send the sweep a line; return whether it is still there."""
    try:
        connection.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:
        return False
    return True


def main() -> None:
    """`python -m hookflow.sweep.trial_server SOCKET`.

    It serves, and is each training that is forked.
    """
    from hookflow.runner.attempt.main import execute, import_trainer, prepare_process

    prepare_process()
    with suppress(Exception):  # raised again and reported where a training imports it
        import_trainer()
        for module in PRELOADED_MODULES:
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # memory that no collection writes to stays shared with the trainings
    arguments = wait_for_trial(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        execute(arguments)


if __name__ == "__main__":
    main()
