"""`hookflow run` under torchrun: each process trains as one rank of the same run."""

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hookflow.cli import options
from hookflow.errors import Problem, UserError
from hookflow.events.rundir import RunDir
from hookflow.runner.distributed.failures import append_record
from hookflow.runner.distributed.rendezvous import Ranks, of_environment, rendezvous, restarts, store
from hookflow.runner.process.launch import claim, finish_notifying, start_notifying
from hookflow.service.runs import failure_report
from hookflow.text import print_error

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


def _main() -> None:
    from hookflow.monitor import plain

    path, shown = sys.argv[1:]
    follow = plain.follow_json if shown == "json" else plain.follow

    def over() -> int | None:
        readable, _, _ = select.select([sys.stdin], [], [], 0)
        return 0 if readable else None  # nothing is ever written there: it is at its end

    try:
        follow(RunDir(Path(path)), sys.stdout, child_exit=over)
    except BrokenPipeError:  # the reader has gone
        sys.stderr.close()


if __name__ == "__main__":
    _main()


PATIENCE = 600.0
"""Seconds that a rank waits for the others to be there."""

MISTAKEN = 2
"""The exit code of a rank where rank 0 tells what the user did wrong."""


def train_as_rank(find: Callable[[], RunDir], shown: options.UI, *, resume: bool, allow_changed_hooks: bool) -> int:
    """Train in this process and return the exit code. Rank 0 alone shows anything, by `shown`.

    Rank 0 takes the run directory that `find` makes or finds, and tells the others. When torchrun has started them
    again, that is the one from before, which its store remembers, and the run goes on.
    """
    from hookflow.runner.process.main import leave, prepare_exit, train

    prepare_exit()
    ranks, (done, most) = of_environment(), restarts()
    talk = rendezvous(ranks, PATIENCE)
    if ranks.first:
        run_dir, again = _lead(talk, find, restarted=done > 0)
    elif summary := json.loads(talk.get("run")):
        run_dir, again = RunDir(Path(summary[0])), summary[1]
    else:
        return MISTAKEN
    talk.set(f"seen by {ranks.rank}", "" if run_dir.describe().get("id") == run_dir.id else socket.gethostname())
    if blind := {host for rank in range(ranks.world) if (host := talk.get(f"seen by {rank}").decode())}:
        if not ranks.first:
            return MISTAKEN
        message = f"{run_dir.path} cannot be seen on {', '.join(sorted(blind))}"
        hint = "runs over several machines need a folder that all of them share: run.dir"
        raise UserError(Problem(message, hint=hint))
    if ranks.first and again:
        text = "the launcher has started the ranks again: going on from the last checkpoint"
        append_record(run_dir, "message", level="warn", source="hookflow", text=text)
    if ranks.first:
        start_notifying(run_dir, os.getppid(), time.time())  # the launcher outlives ranks that it starts again
    with _printing_to_the_run(run_dir, ranks, shown):
        resume = resume or again
        code = train(run_dir, resume=resume, allow_changed_hooks=allow_changed_hooks, restarts_left=most - done)
    if code == MISTAKEN and ranks.first:
        print_error(failure_report(run_dir))
    if unsent := finish_notifying(run_dir) if code == 0 or done == most else "":
        print_error(unsent)
    leave(code, several=ranks.world > 1)
    return code


def _lead(talk: "Store", find: Callable[[], RunDir], *, restarted: bool) -> tuple[RunDir, bool]:
    """Return the run directory, claimed and signed, and whether it is one from before the ranks were started again.

    The other ranks receive the run, or its absence.
    """
    kept = store(PATIENCE)
    try:
        if again := kept.check(["run"]):
            run_dir = RunDir(Path(kept.get("run").decode()))
        elif restarted:
            message = "torchrun has started the ranks again, and its store has forgotten of which run"
            raise UserError(Problem(message, hint="resume it with: hookflow run --resume RUN"))
        else:
            run_dir = RunDir(find().path.resolve())  # every rank has the same path for it
        claim(run_dir)
        run_dir.sign_process()
    except BaseException:
        talk.set("run", json.dumps(None))
        raise
    kept.set("run", str(run_dir.path))
    talk.set("run", json.dumps([str(run_dir.path), again]))
    return run_dir, again


@contextmanager
def _printing_to_the_run(run_dir: RunDir, ranks: Ranks, shown: options.UI) -> Iterator[None]:
    """Let what is printed go to the run's `output.log`, and rank 0 show that with all else, by `shown`.

    Where the others print errors is left as it is.
    """
    printer = None
    if ranks.first and shown != "none":  # it prints until its `stdin` is closed, and hears no signals
        command = [sys.executable, "-P", "-m", "hookflow.cli.torchrun", str(run_dir.path), shown]
        printer = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    streams = (sys.stdout, sys.stderr) if ranks.first else (sys.stdout,)
    kept = [os.dup(stream.fileno()) for stream in streams]
    output = os.open(run_dir.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in streams:
        os.dup2(output, stream.fileno())
    try:
        yield
    finally:
        for stream, descriptor in zip(streams, kept, strict=True):
            with suppress(OSError, ValueError):  # a hook has closed it, or it is full
                stream.flush()
            os.dup2(descriptor, stream.fileno())
        if printer is not None and printer.stdin is not None:
            printer.stdin.close()
            printer.wait()
