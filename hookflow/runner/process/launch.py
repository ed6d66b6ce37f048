"""Launch of a run: its directory, and its training process. Imports no torch."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

import tomli

from hookflow.errors import Problem, UserError, Where
from hookflow.events.initial_weights import weights_facts
from hookflow.events.records import VERSION
from hookflow.events.run_lock import Locks, release, share, transfer_claim_to_child, try_lock
from hookflow.events.rundir import Parent, RunDir, process_identity, short, write_whole
from hookflow.events.temporary_files import find_temporary_folder
from hookflow.graph.plan import Plan
from hookflow.pipeline.attached import no_loop
from hookflow.pipeline.load import Loaded, dump, load, missing_objects
from hookflow.runner.process.signals import END_SIGNALS, signals_blocked
from hookflow.version import __version__


def cores() -> int:
    """Return the number of cores of this process: those that Slurm or `taskset` has left to it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


TRIES, PERIOD = 3, 0.02
"""How often the lock of a run is tried, and the seconds between.

`RunDir.life` takes it for a moment, to ask.
"""

CHANGEABLE_FACTS = ("base", "source", "overrides", "in_python", "hookflow", "version")
"""The facts of `run.json` that a resume may change."""


def new_run(
    loaded: Loaded,
    plan: Plan,
    runs: Path | None = None,
    *,
    base: Path | None = None,
    parent: Parent | None = None,
    has_loop: bool = False,
) -> RunDir:
    """Make and `prepare` the directory of a new run, in the folder `runs` or `run.dir`.

    Its own files are relative to `base`, or to the folder of its pipeline. Hooks alone need a
    process that `has_loop`. Raises UserError.
    """
    if loaded.is_attached and not has_loop:
        raise UserError(no_loop(loaded.places.of("run")))
    section = loaded.pipeline.run
    if runs is None:
        folder = Path(section.dir)
    else:
        folder = runs
    _written(loaded)  # what cannot be recorded is refused before there is a directory
    try:
        run_dir = RunDir.create(folder, section.name)
        prepare(loaded, plan, run_dir, base or loaded.source.parent, parent)
        if has_loop:
            run_dir.sign(loop="own")
    except (OSError, ValueError) as error:  # a name with a NUL in it is a ValueError
        message = (
            f"no run directory can be made in {folder}: {getattr(error, 'strerror', None) or error}"
        )
        raise UserError(
            Problem(message, loaded.places.of("run.dir") if runs is None else None)
        ) from None
    return run_dir


def prepare(
    loaded: Loaded, plan: Plan, run_dir: RunDir, base: Path, parent: Parent | None = None
) -> None:
    """Write the resolved pipeline, the plan and the identity.

    The pipeline's files are relative to `base`.
    """
    facts: dict[str, Any] = {} if parent is None else {"parent": parent._asdict()}
    facts |= {
        "id": run_dir.id,
        "name": loaded.pipeline.run.name,
        "argv": sys.argv,
        "created": time.time(),
    }
    # Until the training process signs, the run counts as alive as long as this process lives.
    facts["starter"] = process_identity(os.getpid())
    if loaded.weights:
        facts["weights"] = weights_facts(loaded.weights)
    _record(loaded, plan, run_dir, base, **facts)


def stage_resume(loaded: Loaded, plan: Plan, run_dir: RunDir, base: Path) -> None:
    """Write the pipeline and the plan of a resume aside.

    `commit_resume` records them once its checkpoint is read.
    """
    run_dir.proposed.path.mkdir()
    _record(loaded, plan, run_dir.proposed, base)


def commit_resume(run_dir: RunDir) -> None:
    """Record what a resume has proposed in place of what was run before."""
    proposed = run_dir.proposed
    if proposed.plan.exists() and proposed.plan.read_bytes() != run_dir.plan.read_bytes():
        run_dir.keep_plan()
    # A process that was killed here may have moved the first file and not the second.
    for path in (proposed.plan, proposed.pipeline):
        with suppress(FileNotFoundError):
            path.replace(run_dir.path / path.name)
    facts = proposed.describe()
    if facts:
        run_dir.sign(**{fact: facts[fact] for fact in CHANGEABLE_FACTS if fact in facts})
    shutil.rmtree(proposed.path, ignore_errors=True)


def rollback_resume(run_dir: RunDir) -> None:
    """Remove what a refused resume has proposed; finish its adoption where that had begun."""
    if run_dir.proposed.identity.exists() and not run_dir.proposed.plan.exists():
        commit_resume(run_dir)
    shutil.rmtree(run_dir.proposed.path, ignore_errors=True)


def _written(loaded: Loaded) -> str:
    """Return the pipeline as a run records it: without `[sweep]`, which no run is trained by.

    Raises UserError.
    """
    return dump(loaded.public.model_copy(update={"sweep": None}), Where(str(loaded.source)))


def _record(loaded: Loaded, plan: Plan, run_dir: RunDir, base: Path, **facts: Any) -> None:
    written = json.dumps(plan.to_json(), indent=1)
    pipeline = _written(loaded)
    write_whole(run_dir.plan, written)
    write_whole(run_dir.pipeline, pipeline)
    source = {
        "source": str(loaded.source),
        "overrides": list(loaded.overrides),
        "in_python": loaded.in_python,
    }
    run_dir.sign(base=str(base.resolve()), **source, hookflow=__version__, version=VERSION, **facts)


def start(
    run_dir: RunDir,
    *options: str,
    nproc: int | None = None,
    max_restarts: int = 0,
    standby: "StandbyProcess | None" = None,
    environment: Mapping[str, str] | None = None,
    notifies: bool = True,
) -> subprocess.Popen[bytes]:
    """Start the training in a session of its own; its output goes to the run's `output.log`.

    That is one process, `standby` if there is one, or an agent that starts `nproc` ranks, and again
    up to `max_restarts` times when one fails. `options` are those of
    `hookflow.runner.attempt.main`. A process that is no `standby` has the variables of
    `environment` besides those of this one. Raises UserError when the run is already running, or
    needs objects of a program that has ended.
    """
    if "--resume" in options and (
        missing := missing_objects(load(short(run_dir.wanted().pipeline), recorded=True))
    ):
        raise UserError(missing)
    module = "hookflow.runner"
    if nproc is not None:
        module = "hookflow.runner.distributed.agent"
        options = (f"--nproc={nproc}", f"--max-restarts={max_restarts}", *options)
    locks = claim(run_dir)
    try:
        began = time.time()
        with run_dir.output.open("ab") as output:
            if standby and nproc is None:
                child = standby.train((str(run_dir.path), *options), output, locks)
            else:
                holding = f"--locks={','.join(map(str, locks))}"
                arguments = (str(run_dir.path), holding, *options)
                child = start_python(
                    module, *arguments, output=output, descriptors=locks, environment=environment
                )
        transfer_claim_to_child(locks, child.pid)
        if notifies:
            start_notifying(run_dir, child.pid, began)
        return child
    finally:
        release(locks)  # the child's copies hold the lock now


_NOTIFIERS: dict[Path, subprocess.Popen[bytes]] = {}

NOTIFICATION_WAIT_SECONDS = 30.0
"""Seconds that a command waits at the end of a run for its last notification."""


def start_notifying(run_dir: RunDir, pid: int, since: float) -> None:
    """Start the process that sends the notifications of `[notify]`, if the pipeline asks for any.

    It watches the attempt that began at `since` (seconds since 1970), and the process `pid` that
    trains or that starts the ranks.
    """
    try:
        text = run_dir.wanted().pipeline.read_bytes()
    except OSError:
        return  # the training reports it
    if b"[notify]" not in text:
        return  # to parse it takes longer
    section = tomli.loads(text.decode()).get("notify")
    if section is None:
        return
    arguments = (str(run_dir.path), json.dumps(section), f"--pid={pid}", f"--since={since!r}")
    with run_dir.output.open("ab") as output:
        _NOTIFIERS[run_dir.path] = start_python(
            "hookflow.notify", *arguments, output=output, descriptors=()
        )


def finish_notifying(run_dir: RunDir) -> str:
    """Wait until the last notification of a run that is over is sent; return what is wrong, or "".

    After `NOTIFICATION_WAIT_SECONDS` the process that sends it is left alone.
    """
    process = _NOTIFIERS.pop(run_dir.path, None)
    if process is None:
        return ""
    try:
        failed = process.wait(NOTIFICATION_WAIT_SECONDS)
    except subprocess.TimeoutExpired:
        return (
            f"notify: the last notification has not been sent after {NOTIFICATION_WAIT_SECONDS:g}"
            " s; it is tried on"
        )
    if failed:
        return f"notify: not every notification was sent; {short(run_dir.output)} says why"
    return ""


def start_python(
    module: str,
    *arguments: str,
    output: IO[bytes],
    descriptors: Sequence[int],
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a module as a process in a session of its own, with copies of the file descriptors.

    The working directory is not searched for modules (`-P`): a `json.py` that lies there is not
    taken for the standard library's.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    streams: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": output,
        "stderr": subprocess.STDOUT,
    }
    env = None
    if environment:
        env = {**os.environ, **environment}
    with signals_blocked():
        return subprocess.Popen(
            command, **streams, start_new_session=True, pass_fds=descriptors, env=env
        )


def hand_on_signals(child: subprocess.Popen[bytes], pressed: list[int]) -> None:
    """Send the signals that end a run on to the process that trains.

    Each Ctrl-C is appended to `pressed`.
    """

    def hand_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)
        if number == signal.SIGINT:
            pressed.append(number)

    for number in END_SIGNALS:
        signal.signal(number, hand_on)


class StandbyProcess:
    """A process that imports torch while the pipeline is checked.

    It trains once it is sent a run.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._started = False
        with theirs, tempfile.TemporaryFile(dir=find_temporary_folder()) as output:
            number = theirs.fileno()
            self._process = start_python(
                "hookflow.runner", f"--standby={number}", output=output, descriptors=(number,)
            )

    def train(
        self, arguments: Sequence[str], output: IO[bytes], locks: Locks
    ) -> subprocess.Popen[bytes]:
        """Send the arguments of `hookflow.runner`, the file for output, and the run's locks."""
        socket.send_fds(self._socket, [json.dumps(arguments).encode()], [output.fileno(), *locks])
        self._started = True
        return self._process

    def close(self) -> None:
        """End the process, unless it trains."""
        self._socket.close()
        if not self._started:
            self._process.kill()
            self._process.wait()


def claim(run_dir: RunDir) -> Locks:
    """Lock the run for the owner of the returned locks, and for child processes that inherit them.

    The lock lasts until the last of them, and of those that `hold` it, has ended. Raises UserError
    when another process holds it, or trains in the directory without a lock. Locks of `keep` are
    returned.
    """
    kept = _KEPT_LOCKS.pop(run_dir.path, None)
    if kept is not None:
        return kept
    locks = hold(run_dir, shared=False)
    if run_dir.is_training_elsewhere():
        release(locks)
        raise _running(run_dir)
    share(locks)  # so that ranks may hold it, too; to claim it takes all of it
    return locks


def keep(run_dir: RunDir, locks: Locks) -> None:
    """Keep the lock of a claimed run for the next `claim` of this process."""
    _KEPT_LOCKS[run_dir.path] = locks


def take_kept(run_dir: RunDir) -> Locks:
    """Return the locks of a run that are kept for another process's next `claim`.

    There are none if none are kept.
    """
    return _KEPT_LOCKS.pop(run_dir.path, ())


_KEPT_LOCKS: dict[Path, Locks] = {}


def hold(run_dir: RunDir, *, shared: bool = True) -> Locks:
    """Hold the lock of a claimed run for one of its ranks.

    Raises UserError when another process owns it by now.
    """
    for _ in range(TRIES):
        locks = try_lock(run_dir.path, shared=shared)
        if locks is not None:
            return locks
        time.sleep(PERIOD)
    raise _running(run_dir)


def _running(run_dir: RunDir) -> UserError:
    hint = f"see it with: hookflow watch {run_dir.id}"
    return UserError(Problem(f"the run {run_dir.id} is already running", hint=hint))
