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

import typer

from hookflow.cli import options
from hookflow.errors import Problem, UserError
from hookflow.events.rundir import RunDir
from hookflow.runner.distributed.failures import append_record
from hookflow.runner.distributed.rendezvous import (
    RankLayout,
    count_restarts,
    join_ranks,
    of_environment,
    store,
)
from hookflow.runner.process.launch import claim, finish_notifying, start_notifying
from hookflow.service.runs import failure_report
from hookflow.text import print_error

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


def _main() -> None:
    from hookflow.monitor import plain

    path, shown = sys.argv[1:]

    def exit_at_end_of_stdin() -> int | None:
        readable, _, _ = select.select([sys.stdin], [], [], 0)
        if readable:  # nothing is ever written there: it is at its end
            return 0
        return None

    run_dir = RunDir(Path(path))
    try:
        if shown == "json":
            plain.print_records(run_dir, sys.stdout, child_exit=exit_at_end_of_stdin)
        else:
            plain.print_run(run_dir, sys.stdout, child_exit=exit_at_end_of_stdin)
    except BrokenPipeError:  # the reader has gone
        sys.stderr.close()


if __name__ == "__main__":
    _main()


RENDEZVOUS_SECONDS = 600.0
"""Seconds that a rank waits for the others to be there."""

EXIT_USER_ERROR = 2
"""The exit code of a rank where rank 0 tells what the user did wrong."""


def train_as_rank(
    find: Callable[[], RunDir], shown: options.UIKind, *, resume: bool, allow_changed_hooks: bool
) -> int:
    """Train in this process and return the exit code. Rank 0 alone shows anything, by `shown`.

    Rank 0 takes the run directory that `find` makes or finds, and tells the others. Where `find`
    ends the command, for nothing is left to do, all ranks leave. When torchrun has started them
    again, that is the one from before, which its store remembers, and the run goes on.
    """
    from hookflow.runner.attempt.main import leave, prepare_exit, train

    prepare_exit()
    ranks = of_environment()
    restarts_done, max_restarts = count_restarts()
    shared = join_ranks(ranks, RENDEZVOUS_SECONDS)
    if ranks.first:
        run_dir, again = _claim_run_dir(shared, find, restarted=restarts_done > 0)
    else:
        message = json.loads(shared.get("run"))
        if "exit" in message:
            return int(message["exit"])
        run_dir = RunDir(Path(message["path"]))
        again = message["again"]
    blind_hosts = _list_hosts_without(run_dir, ranks, shared)
    if blind_hosts:
        if not ranks.first:
            return EXIT_USER_ERROR
        message = f"{run_dir.path} cannot be seen on {', '.join(blind_hosts)}"
        hint = "runs over several machines need a folder that all of them share: run.dir"
        raise UserError(Problem(message, hint=hint))
    if ranks.first and again:
        text = "the launcher has started the ranks again: going on from the last checkpoint"
        append_record(run_dir, "message", level="warn", source="hookflow", text=text)
    if ranks.first:
        # Notifications follow the launcher, which outlives the ranks that it starts again.
        start_notifying(run_dir, os.getppid(), time.time())
    with _redirect_output(run_dir, ranks, shown):
        resume = resume or again
        restarts_left = max_restarts - restarts_done
        code = train(
            run_dir,
            resume=resume,
            allow_changed_hooks=allow_changed_hooks,
            restarts_left=restarts_left,
        )
    if code == EXIT_USER_ERROR and ranks.first:
        print_error(failure_report(run_dir))
    if code == 0 or restarts_left == 0:
        unsent = finish_notifying(run_dir)
        if unsent:
            print_error(unsent)
    leave(code, several=ranks.world > 1)
    return code


def _list_hosts_without(run_dir: RunDir, ranks: RankLayout, shared: "Store") -> list[str]:
    """Return the machines on which a rank does not see the run directory.

    Every rank has to call this.
    """
    host = ""
    if run_dir.describe().get("id") != run_dir.id:
        host = socket.gethostname()
    shared.set(f"seen by {ranks.rank}", host)
    hosts = {shared.get(f"seen by {rank}").decode() for rank in range(ranks.world)}
    return sorted(hosts - {""})


def _claim_run_dir(
    shared: "Store", find: Callable[[], RunDir], *, restarted: bool
) -> tuple[RunDir, bool]:
    """Return the run directory, claimed and signed, and whether the ranks were started again.

    In that case it is one from before. The other ranks receive the run; or, where `find` raises,
    the exit code: of a mistake, or of nothing left to do.
    """
    kept = store(RENDEZVOUS_SECONDS)
    try:
        again = kept.check(["run"])
        if again:
            run_dir = RunDir(Path(kept.get("run").decode()))
        elif restarted:
            message = (
                "torchrun has started the ranks again, and its store has forgotten of which run"
            )
            raise UserError(Problem(message, hint="resume it with: hookflow run --resume RUN"))
        else:
            run_dir = RunDir(find().path.resolve())  # every rank has the same path for it
        claim(run_dir)
        run_dir.sign_process()
    except BaseException as error:
        code = EXIT_USER_ERROR
        if isinstance(error, typer.Exit):
            code = error.exit_code
        shared.set("run", json.dumps({"exit": code}))
        raise
    kept.set("run", str(run_dir.path))
    shared.set("run", json.dumps({"path": str(run_dir.path), "again": again}))
    return run_dir, again


@contextmanager
def _redirect_output(run_dir: RunDir, ranks: RankLayout, shown: options.UIKind) -> Iterator[None]:
    """Let what is printed go to the run's `output.log`, and rank 0 show it with all else.

    Rank 0 shows it by `shown`. Where the others print errors is left as it is.
    """
    printer = None
    # The printer has a session of its own, out of reach of signals, and ends when its stdin is
    # closed.
    if ranks.first and shown != "none":
        command = [sys.executable, "-P", "-m", "hookflow.cli.torchrun", str(run_dir.path), shown]
        printer = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    streams = [sys.stdout]
    if ranks.first:
        streams.append(sys.stderr)
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
