"""A run directory: its files by name, its process, and whether that process is alive."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from hookflow.errors import Problem, UserError, Where
from hookflow.events.log import readable
from hookflow.events.process_life import read_start_time
from hookflow.events.reading import MAX_TIME, open_regular, read_object, read_regular
from hookflow.events.run_lock import LOCK_FILE_NAME, find_processor_limit, is_locked, signal_name

FACT_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("id", "name", "host", "base", "source", "hookflow", "project_copy"), str),
    **dict.fromkeys(("created", "process_started", "training_ended"), float),
    **dict.fromkeys(("argv", "overrides"), list),
    **dict.fromkeys(("pid", "version"), int),
    "in_python": bool,
    **dict.fromkeys(("parent", "starter", "weights"), dict),
}
"""The types of the values of `run.json`; a list is one of strings, a float is a time."""

MIN_FREE_BYTES = 1 << 14
"""Bytes that a disk has left at least, where some records can be written."""

Life = Literal["alive", "gone", "missing", "remote", "not started"]


class Parent(NamedTuple):
    """The checkpoint that a fork begins with.

    It has the id of its run, its name and its iteration there, and its folder.
    """

    run: str
    checkpoint: str
    it: int
    path: str

    def __str__(self) -> str:
        return f"{self.run}:{self.checkpoint}"


def user_folder(
    variable: str, default: str, environ: Mapping[str, str] = os.environ
) -> Path | None:
    """Return hookflow's folder among those of the user.

    It is in an XDG base directory, or in `default` in the home folder. A relative path in the
    variable is ignored, as the standard says. None where the user has no home folder.
    """
    named = environ.get(variable, "")
    if named.startswith("/"):
        return Path(named) / "hookflow"
    try:
        return Path.home() / default / "hookflow"
    except RuntimeError:  # a container without HOME, whose user has no entry in its passwd file
        return None


def user_name() -> str:
    """Return the name of the user, and the number of one who has none, as in many a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def of_rank(path: Path, rank: int) -> Path:
    """Return the name of a file that another rank writes, too: `events.rank1.jsonl`.

    The file of rank 0 is `path`.
    """
    if rank:
        return path.with_suffix(f".rank{rank}{path.suffix}")
    return path


class Entry:
    """A file or folder of a run directory, by its name there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunDir, owner: type) -> Path:
        return run.path / self._name


CHECKPOINT_NAME_PATTERN = re.compile(r"it(\d+)(?:\.\d+)?")
"""The name of a checkpoint's directory from which a run is resumed, with its iteration."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """The directory of one run, `runs/<name>/<id>/`.

    Its paths are absolute, whatever it is made from: a hook may change the working directory.
    """

    path: Path

    identity = Entry("run.json")
    """The process: id, name, host, pid and its start time. Replaced whole at each attempt."""
    pipeline = Entry("pipeline.toml")
    """The resolved pipeline: what was run, with every override in it."""
    plan = Entry("plan.json")
    """The plan of the latest attempt; the binding ids in the event log are places in it."""
    events = Entry("events.jsonl")
    commands = Entry("commands.jsonl")
    output = Entry("output.log")
    """The output of the training process."""
    now = Entry("now.bin")
    """A few bytes that say where the training thread is; see `events.now`."""
    checkpoints = Entry("checkpoints")
    fork_start = Entry("parent")
    """In a fork: the checkpoint that it begins with, by hard links,
    until a checkpoint of its own is saved.
    """
    notes = Entry("notes.json")
    """Tags and a note that users gave the run. Nothing else writes it."""
    images = Entry("images")
    """The arguments of `run.log_image` and `run.log_figure`."""
    traces = Entry("traces")
    """Traces of iterations, by their first iteration."""
    writers = Entry("writers")
    """A folder for each writer of the pipeline."""
    lock = Entry(LOCK_FILE_NAME)
    """The process of the run locks it, and the directory; see `hookflow.events.run_lock`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path.absolute())

    @property
    def id(self) -> str:
        return self.path.name

    def find_resume_iteration(self) -> int | None:
        """Return the iteration of the newest checkpoint on the disk, None without one.

        The log may lack it: a process can be killed after the write and before the record.
        """
        names = [path.parent.name for path in self.checkpoints.glob("it*/manifest.json")]
        numbers = [
            int(match[1]) for name in names if (match := CHECKPOINT_NAME_PATTERN.fullmatch(name))
        ]
        return max(numbers, default=None)

    def find_plan_path(self, attempt: int) -> Path:
        """Return the plan of an attempt, counted from 1.

        An earlier one may have had other hooks.
        """
        numbers = (path.name.split(".")[1] for path in self.path.glob("plan.*.json"))
        until = (int(number) for number in numbers if number.isdecimal() and int(number) >= attempt)
        return self.path / f"plan.{first}.json" if (first := min(until, default=0)) else self.plan

    def keep_plan(self) -> None:
        """Keep the plan of the attempts so far, before another one is written."""
        kept = self.path / f"plan.{(attempts := count_attempts(self))}.json"
        if attempts and not kept.exists() and self.plan.exists():
            write_whole(kept, self.plan.read_text("utf-8"))

    @property
    def proposed(self) -> RunDir:
        """The pipeline, plan and identity of a resume whose checkpoint has not been read yet."""
        return RunDir(self.path / "proposed")

    def wanted(self) -> RunDir:
        """Return where the pipeline and plan are that a resume trains: proposed, or as recorded."""
        if self.proposed.identity.exists():
            return self.proposed
        return self

    def find_events_path(self, rank: int) -> Path:
        """Return the event log of a rank."""
        return of_rank(self.events, rank)

    def find_now_path(self, rank: int) -> Path:
        """Return the `now` of a rank."""
        return of_rank(self.now, rank)

    @classmethod
    def create(cls, root: Path, name: str) -> RunDir:
        """Create `root/name/<date>-<time>-<four hex digits>/`, and return it.

        It is readable by its owner alone.
        """
        (root / name).mkdir(parents=True, exist_ok=True)
        while True:
            path = root / name / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
            # Another run of the same second may have drawn the same digits.
            with contextlib.suppress(FileExistsError):
                path.mkdir(0o700)
                return cls(path)

    def describe(self) -> dict[str, Any]:
        """Return the facts of `run.json` without those of a wrong type.

        There are none when it cannot be read.
        """
        try:
            facts = read_object(read_regular(self.identity))
        except (OSError, ValueError):
            return {}
        return _filter_facts(facts)

    def parent(self) -> Parent | None:
        """Return the checkpoint that the run was forked from.

        It is None for any other run, and where it cannot be read.
        """
        facts = self.describe().get("parent", {})
        kinds = {"run": str, "checkpoint": str, "it": int, "path": str}
        fits = facts.keys() == kinds.keys() and all(
            _is_of_type(facts[name], kind) for name, kind in kinds.items()
        )
        if fits:
            return Parent(**facts)
        return None

    def read_notes(self) -> tuple[list[str], str]:
        """Return the tags and the note that people have given the run.

        There are none where they cannot be read.
        """
        try:
            facts = read_object(read_regular(self.notes))
        except (OSError, ValueError):
            return [], ""
        tags = facts.get("tags", [])
        note = facts.get("note", "")
        return (tags if _is_of_type(tags, list) else [], note if _is_of_type(note, str) else "")

    @contextlib.contextmanager
    def lock_notes(self) -> Iterator[None]:
        """Keep other processes from changing tags and note.

        They wait from before these are read until they are written.
        """
        with (self.path / ".notes.lock").open("ab") as file:
            with contextlib.suppress(OSError):  # a file system that knows no locks
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def note(self, tags: list[str], text: str) -> None:
        """Write tags and a note, in place of those that the run has."""
        write_whole(self.notes, json.dumps({"tags": tags, "note": text}) + "\n")

    def base(self) -> Path:
        """Return the folder that the pipeline's own files are relative to.

        Raises UserError where `run.json` names none.
        """
        try:
            return Path(self.describe()["base"])
        except KeyError:
            message = "it cannot be read, or does not say which folder the pipeline's files are in"
            raise UserError(Problem(message, Where(str(short(self.identity))))) from None

    def sign(self, **facts: Any) -> None:
        """Write `facts` into `run.json`, over what is there, whole or not at all."""
        write_whole(self.identity, readable(json.dumps(self.describe() | facts, indent=1)))

    def sign_process(self, pid: int | None = None) -> None:
        """Note the process that trains: its pid, its start time and its host.

        The start time is noted since pids are used again.
        """
        self.sign(**process_identity(os.getpid() if pid is None else pid), training_ended=None)

    def sign_off(self) -> None:
        """Record that the process no longer trains, though it may continue, as a notebook does."""
        # On a full disk the record fails, and the process is taken for training as long as it
        # lives.
        with contextlib.suppress(OSError):
            self.sign(training_ended=time.time())

    def trouble(self) -> str:
        """Return why nothing can be written into the run directory now.

        The text is empty where something can.
        """
        try:
            full = shutil.disk_usage(self.path).free < MIN_FREE_BYTES
        except OSError:
            return "its run directory is gone: it was moved or deleted"
        # The log is opened, which tells more than `statvfs`, which does not show every file system
        # that was made read-only.
        try:
            os.close(os.open(self.events, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))
        except FileNotFoundError:
            pass  # it did not get as far as to have a log
        except OSError as error:
            if error.errno == errno.EROFS:
                return "the file system of its run directory is read-only"
            return f"its event log cannot be written: {error.strerror}"
        return "no space is left on the disk of its run directory" * full

    def ended_by(self, code: int) -> str:
        """Return how a process without an end record ended, by its exit code.

        A signal's number is negative.
        """
        if code >= 0:
            trouble = self.trouble()
            how = f"exited with code {code} and no end record"
            if trouble:
                return f"{how}: {trouble}"
            return how
        killed = f"killed by {signal_name(-code)}"
        limit = find_processor_limit()
        if code == -signal.SIGXCPU:
            return f"{killed}: {limit or 'its limit of processor time (ulimit -t)'} is used up"
        if code != -signal.SIGKILL:
            return killed
        if limit:
            return f"{killed}; the kernel's out-of-memory killer does that, and so does {limit}"
        return f"{killed}; the kernel's out-of-memory killer does that"

    def life(self) -> Life:
        """Return whether the process behind the run lives.

        The answer comes from the system, since a missing `end` proves nothing.

        With several ranks, rank 0 alone keeps the run alive: when their launcher is killed, they
        still save.
        """
        facts = self.describe()
        if "pid" not in facts:  # the run is locked before its process starts
            if not self.path.exists():
                return "missing"
            if self.lock.exists():
                if is_locked(self.path):
                    return "not started"
                return "gone"
            starter = _filter_facts(facts.get("starter", {}))
            is_dead = starter.get("host") == socket.gethostname() and not _is_alive(starter)
            if is_dead:
                return "gone"
            return "not started"
        if facts.get("host") != socket.gethostname():
            return "remote"
        if _is_alive(facts):
            return "alive"
        # A process that holds the lock is alive if its pid is right, since the clock may have been
        # set after it started. Other ranks may hold the lock once the first one is gone.
        holder = is_locked(self.path) and (
            _is_alive(facts, any_start=True) or self.find_events_path(1).exists()
        )
        if holder:
            return "alive"
        return "gone"

    def is_training_elsewhere(self) -> bool:
        """Say whether another process of this machine trains the run.

        It has signed the run, lives, and has not signed off.
        """
        facts = self.describe()
        here = facts.get("host") == socket.gethostname()
        return (
            here
            and facts.get("pid") != os.getpid()
            and "training_ended" not in facts
            and _is_alive(facts)
        )


def process_identity(pid: int) -> dict[str, Any]:
    """Return what tells a process from others: its pid, its start time and its host.

    The start time is needed since pids are used again.
    """
    import psutil

    return {
        "pid": pid,
        "process_started": psutil.Process(pid).create_time(),
        "host": socket.gethostname(),
    }


def _filter_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a process or run without those of a wrong type."""
    return {
        name: value
        for name, value in facts.items()
        if name not in FACT_TYPES or _is_of_type(value, FACT_TYPES[name])
    }


def _is_of_type(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and 0 <= value < MAX_TIME
    if kind is list:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return isinstance(value, kind)


def _is_alive(facts: Mapping[str, Any], *, any_start: bool = False) -> bool:
    """Return whether the process that a run names lives; with `any_start`, whenever it has started.

    The start time tells it from another process with its pid; setting the clock moves it.
    """
    began = None
    if "pid" in facts:
        began = read_start_time(facts["pid"])
    try:
        return began is not None and (
            any_start or abs(began - facts.get("process_started", 0.0)) < 1.0
        )
    except OverflowError:  # an integer that is no time
        return False


def count_attempts(run: RunDir) -> int:
    """Return how many attempts at the run have begun."""
    try:
        with open_regular(run.events) as file:
            return sum(line.startswith(b'{"k":"run"') for line in file)
    except OSError:
        return 0


def make_out_dir(folder: Path, mode: int = 0o777) -> None:
    """Make the folder that an argument `out_dir` names. Raises UserError where that fails.

    The umask takes away from `mode`, which is that of the folder alone and not of those above it.
    """
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # a name with a NUL in it is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise UserError(Problem(f"out_dir {folder} cannot be made: {reason}")) from None


def short(path: Path) -> Path:
    """Return a path as people read it: relative to the working directory if it is below that."""
    try:
        return path.relative_to(Path.cwd())
    except (ValueError, OSError):  # it is elsewhere, or the working directory is gone
        return path


def run_argument(run: RunDir) -> str:
    """Return the name of the run on a command line.

    It is its id, or its folder where that is not below `runs`.
    """
    if short(run.path.parent.parent) == Path("runs"):
        return run.id
    return str(short(run.path))


def resume_command(run: RunDir) -> str:
    """Return what a user types to resume a run.

    For a loop of their own it is the command line of its program.
    """
    facts = run.describe()
    if facts.get("loop") == "own":
        words = [str(word) for word in facts.get("argv", ())]
        return f"its program again, with resume=True: {shlex.join(['python', *words])}"
    return f"hookflow run --resume {run_argument(run)}"


@contextlib.contextmanager
def open_replacement(path: Path) -> Iterator[BinaryIO]:
    """Open a file aside that replaces the one at `path` when it is closed.

    A reader sees the old one or the new one.
    """
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            yield file
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(path, aside)
        aside.replace(path)
    except BaseException as error:
        if getattr(error, "filename", None) == str(aside):
            error.filename = str(path)  # type: ignore[attr-defined]  # which a user has named
        with contextlib.suppress(OSError):  # it is not there, or the disk is read-only
            aside.unlink()
        raise


def write_whole(path: Path, text: str) -> None:
    with open_replacement(path) as file:
        file.write(text.encode())


def fsync(path: Path) -> None:
    """Wait until a file or a directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


SETTLE_SECONDS = 0.05
"""Seconds after which a change of a folder has another time than the one before.

The system's clock ticks in ms.
"""


def sync_run(run: RunDir, flushed: tuple[int, int] | None) -> tuple[int, tuple[int, int] | None]:
    """Flush what a resume needs beside a checkpoint: logs, pipeline, plan, identity, and their
    folders.

    Returns the bytes of rank 0's log that are on the disk, and what the next call takes as
    `flushed`: it leaves out all but logs while the run's folder has not changed, in which other
    files are replaced whole.
    """
    size = 0
    if run.events.exists():
        size = run.events.stat().st_size
    status = run.path.stat()
    now = time.time()
    state = status.st_ino, status.st_ctime_ns
    files = [*run.path.glob("events*.jsonl")]
    if state != flushed:
        files += [run.identity, run.pipeline, *run.path.glob("plan*.json")]
        files += [run.path, run.path.parent, run.path.parent.parent]
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            fsync(path)
    return size, state if status.st_ctime < now - SETTLE_SECONDS else None


def all_runs(root: Path, unreadable: Callable[[str], object] = lambda why: None) -> list[RunDir]:
    """Return every run directory below `root`, the newest first.

    `unreadable` is called as by `run_paths`.
    """

    def make_begin_key(run: RunDir) -> tuple[str, float, str]:
        return re.sub(r"\D", "", run.id[:15]), run.describe().get("created", 0.0), run.id

    return sorted(
        (RunDir(Path(path)) for path in run_paths(root, unreadable)),
        key=make_begin_key,
        reverse=True,
    )


def run_paths(
    root: Path, unreadable: Callable[[str], object], known: Container[str] = ()
) -> Iterator[str]:
    """Yield the path of every run directory below `root`, as a string: there may be very many.

    Those `known` are not looked into. `unreadable` is called with the reason for each entry that
    the system cannot read, as a mount without its server.
    """
    for name in _iter_entries(str(root), unreadable):
        yield from _iter_entries(name, unreadable, "run.json", known)


def _iter_entries(
    folder: str, unreadable: Callable[[str], object], holding: str = "", known: Container[str] = ()
) -> Iterator[str]:
    """Yield the entries of a folder but the hidden ones.

    With `holding`, only those are yielded that are `known` or have a file of this name.
    """
    try:
        with os.scandir(folder) as entries:
            paths = [entry.path for entry in entries if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        unreadable(f"{short(Path(folder))} cannot be read: {error.strerror}")
        return
    for path in paths:
        try:
            if not holding or path in known or stat.S_ISREG(os.stat(f"{path}/{holding}").st_mode):  # noqa: PTH116  # the quicker one
                yield path
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            unreadable(f"{short(Path(path))} cannot be read: {error.strerror}")
