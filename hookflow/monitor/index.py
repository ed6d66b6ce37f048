"""An index of the runs in a folder: a row of values for each, kept in a file of SQLite beside them.

The event logs are the record; the index is a copy that commands read instead. A row holds as long as the files of its
run have the same times and sizes. Commands that list runs bring the file up to date, a training never does.
Without the right to write it, or while another process does, the rows are in memory alone. A damaged file is replaced.
"""

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookflow.events.reading import read_json, read_object, read_regular
from hookflow.events.rundir import RunDir, run_paths

if TYPE_CHECKING:  # what reads logs: to list 10,000 runs that have not changed takes less than to import it
    from hookflow.monitor.summary import Glance, Overview

NAME = ".index.sqlite"
FORMAT = 5
"""The version of the values in a row; a file of another one is replaced."""

TABLE = "CREATE TABLE runs (path TEXT PRIMARY KEY, signature TEXT, row TEXT, config TEXT, curve TEXT)"
SCHEMA = {("table", "runs", TABLE), ("index", "sqlite_autoindex_runs_1", None)}
"""What a file of the index consists of. All else is a stranger's: views and triggers can compute without an end."""
MAX_TEXT = 10_000_000
"""Bytes of a text in the index, at most."""
ENDED = ("finished", "stopped")
"""The states of a run whose log has its last record."""

WAITS = 5.0
"""Seconds that reading waits for a process that writes the file; it takes milliseconds."""

CURVE = 24
"""Values of a curve: as many as a list has room for."""

FACTS = {
    "id": "when it was started, and four digits",
    "name": "run.name of its pipeline",
    "status": "running, finished (by a hook, too: see the reason), stopped, interrupted, failed, lost, refused, …",
    "reason": "why it ended, or what is wrong",
    "begun": "when it was started, in seconds since 1970",
    "duration": "seconds of all its attempts",
    "epoch": "the epoch that is worked on, or the last",
    "epochs": "epochs of the whole run",
    "iter": "iterations done",
    "iters": "iterations of the whole run",
    "iters_per_s": "iterations per second: lately, or over the last attempt of a run that is over",
    "metric": "the first metric that a hook monitors",
    "updated": "when it last wrote something, in seconds since 1970",
    "ranks": "processes that train together",
    "data": "real or SYNTHETIC",
    "params": "parameters of its models",
    "device": "where it computes",
    "host": "the machine",
    "torch": "the version of PyTorch",
    "parent": "the run that it was forked from",
    "git": "the commit, by the hook env_info",
    "tags": "the words that `hookflow tag` has given it",
    "note": "the note that `hookflow tag --note` has given it",
}
"""The keys that every run has. Others are its metrics, best.METRIC, its scalars, and the keys of its pipeline."""


@dataclass(slots=True)
class Row:
    """A run in a list: its path below the folder of runs, its values by key, and those of its pipeline in `config`.

    A value is what JSON knows, None where there is none. `written` is `config` as text, a line of JSON for each key
    (`"run.seed":0`) after an empty one: to read all of 10,000 takes a while, to find a line in each does not. `drawn`
    is `curve` as JSON. `refused` are logs that cannot be read, in words. A row that is `final` holds until the files of
    the run change.
    """

    root: Path
    path: str
    values: Mapping[str, Any]
    written: str
    drawn: str
    signature: str
    final: bool = True
    refused: Sequence[str] = ()
    _config: Mapping[str, Any] | None = None

    @property
    def curve(self) -> list[float]:
        """Values of the metric over the run."""
        with suppress(ValueError):
            return [float(value) for value in read_json(self.drawn, nan=True)]
        return []

    @property
    def config(self) -> Mapping[str, Any]:
        if self._config is None:
            try:
                empty, *lines, _ = self.written.split("\n")
                self._config = read_object(f"{empty}{{{','.join(lines)}}}", nan=True)
            except ValueError:  # the file of the index is damaged in this place: the run itself has it
                self._config = _config(self.run)
        return self._config

    def get(self, key: str) -> Any:
        """Return the value of a key; None where it has none."""
        value = self.values.get(key)
        return stated([self], key)[0] if value is None else value

    @property
    def run(self) -> RunDir:
        return RunDir(self.root / self.path)

    @property
    def id(self) -> str:
        return str(self.values["id"])


@cache
def _begin(key: str) -> str:
    """Return what stands before the value of a key, in a text of lines."""
    return f"\n{json.dumps(key)}:"


def stated(rows: Sequence[Row], key: str) -> list[Any]:
    """Return the value of a key of their pipelines for each of these rows: quickly, as there may be 10,000."""
    begin, at = _begin(key), -1
    size, texts = len(begin), []
    for row in rows:
        text = row.written
        if not text.startswith(begin, at):  # most have it in the same place
            at = text.find(begin)
        texts.append(text[at + size : text.find("\n", at + 1)] if at >= 0 else "null" if text[:1] == "\n" else "")
    distinct = [*{*texts}]
    try:
        known = dict(zip(distinct, read_json(f"[{','.join(distinct)}]", nan=True), strict=True))
    except ValueError:  # the file of the index is damaged in one of these places
        return [row.config.get(key) for row in rows]
    return [*map(known.__getitem__, texts)]


class Index:
    """The rows of all runs in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folder = str(root)
        self.unreadable: list[str] = []
        """The entries of the folder that cannot be read, in words."""
        self._rows: dict[str, Row] | None = None
        self._damaged = False
        self._glances: dict[str, Glance] = {}

    def refresh(self, progress: Callable[[int, int], object] = lambda done, whole: None) -> list[Row]:
        """Return the row of every run as it is now, the newest run first.

        `progress` is called with how many runs have been read of those that have changed.
        """
        known = self._load() if self._rows is None else self._rows
        unreadable: list[str] = []
        prefix = len(self._folder) + 1
        every = run_paths(self.root, unreadable.append, {f"{self._folder}/{path}" for path in known})
        paths = [path[prefix:] for path in every]
        stale: dict[str, str] = {}
        for path in paths:
            signature = self._signature(path, row := known.get(path))
            if row is None or not row.final or row.signature != signature:
                stale[path] = signature
        fresh: dict[str, Row] = {}
        try:
            for count, (path, signature) in enumerate(stale.items()):
                progress(count, len(stale))
                fresh[path] = self._look(path, signature)
        finally:  # what has been read before Ctrl-C is kept
            gone = [] if unreadable else known.keys() - paths  # a mount may come back
            self._write([row for row in fresh.values() if row.final], gone)
        self._rows = {path: fresh.get(path) or known[path] for path in paths}
        self.unreadable = unreadable
        return sorted(self._rows.values(), key=_begun, reverse=True)

    def _signature(self, path: str, row: Row | None) -> str:
        """Return what changes with the files of a run: the times of its folder and its log, and sizes of logs.

        The time of the folder is enough for a run that has ended: a process that resumes it replaces a file there.
        """
        folder, result = f"{self._folder}/{path}", ""
        try:  # `os.stat` of a string is several times as quick as `Path.stat`
            result = str(os.stat(folder).st_mtime_ns)  # noqa: PTH116
            if row and row.signature == result:
                return result
            log = os.stat(f"{folder}/events.jsonl")  # noqa: PTH116
            result += f" {log.st_mtime_ns} {log.st_size}"
        except OSError:
            pass
        if row and row.values["ranks"] > 1:  # these may go on for a moment
            for other in sorted(Path(folder).glob("events.rank*.jsonl")):
                result += f" {other.stat().st_size}"
        return result

    def _look(self, path: str, signature: str) -> Row:
        from hookflow.monitor.series import in_order
        from hookflow.monitor.summary import Glance

        run = RunDir(self.root / path)
        seen = self._glances.setdefault(path, Glance(run)).read(time.time())
        silent = seen.health.condition == "stalled" and run.life() == "remote"
        final = (silent or seen.health.over) and seen.health.condition != "unreadable" and not seen.refused
        if final and not silent:
            del self._glances[path]
        metric = next(iter(in_order(seen.state.metrics.by_name, seen.state.monitored)), "")
        points = [value for _, value in seen.state.metrics.by_name.get(metric, ())]
        curve = points if len(points) <= CURVE else [points[k * (len(points) - 1) // (CURVE - 1)] for k in range(CURVE)]
        values = _values(run, seen, metric)
        config = "".join(f"{_begin(key)}{_json(value)}" for key, value in _config(run).items()) + "\n"
        if values["status"] in ENDED:  # the time of the folder alone, which `_signature` looks at first
            signature = signature.partition(" ")[0]
        if silent:  # in words that stay true until its log grows: only then is it read again
            values["reason"] = f"no progress since {time.strftime('%Y-%m-%d %H:%M', time.localtime(seen.state.moved))}"
        return Row(self.root, path, values, config, _json(curve), signature, final, seen.refused)

    def _load(self) -> dict[str, Row]:
        """Return the rows of the file; none where there is no file, or none that can be used."""
        file, rows = self.root / NAME, {}
        try:
            if not file.is_file():
                return {}
            with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=WAITS)) as db:
                db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_TEXT)
                if db.execute("PRAGMA user_version").fetchone() != (FORMAT,):
                    raise ValueError("of another version")
                if {*db.execute("SELECT type, name, sql FROM sqlite_master")} != SCHEMA:
                    raise ValueError("not written by hookflow")
                for texts in db.execute("SELECT path, signature, row, config, curve FROM runs"):
                    if not all(isinstance(text, str) for text in texts):
                        raise ValueError("no row of texts")
                    path, signature, row, config, curve = texts
                    values = _checked(read_object(row, nan=True))
                    rows[path] = Row(self.root, path, values, config, curve, signature)
        except sqlite3.OperationalError as error:  # it may not be read, or is being written for long
            known = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # a text that is no UTF-8 has none
            self._damaged = code & 0xFF not in known
            return {}
        except OSError:  # the folder cannot be read, which `unreadable` reports
            return {}
        except (sqlite3.Error, ValueError, TypeError, KeyError):
            self._damaged = True
            return {}
        return rows

    def _write(self, rows: Sequence[Row], gone: Iterable[str]) -> None:
        file = self.root / NAME
        every = [(row.path, row.signature, _json(row.values), row.written, row.drawn) for row in rows]
        lines = [texts for texts in every if all(map(_is_unicode, texts))]
        lost = [(path,) for path in gone if _is_unicode(path)]
        if not (lines or lost or self._damaged):
            return
        with suppress(OSError, sqlite3.Error), _locked(self.root):
            if file.exists() and not file.is_file():
                return
            if self._damaged:
                for name in (NAME, f"{NAME}-journal"):
                    (self.root / name).unlink(missing_ok=True)
                self._damaged = False
            os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))  # as private as the runs are
            with closing(sqlite3.connect(file, timeout=WAITS)) as db, db:
                db.execute(f"PRAGMA user_version = {FORMAT}")
                if not db.execute("SELECT name FROM sqlite_master").fetchone():
                    db.execute(TABLE)
                db.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", lines)
                db.executemany("DELETE FROM runs WHERE path = ?", lost)


def forks_that_stay(runs: Sequence[RunDir]) -> dict[str, list[str]]:
    """Return, for runs that are to be deleted, the forks that would stay, by ids; forks are in the same folder of runs.

    A run without such forks is left out.
    """
    ids = {run.id for run in runs}
    folders = {run.path.parent.parent for run in runs}
    rows = [row for folder in folders for row in Index(folder).refresh()]
    forks = {run.id: sorted({row.id for row in rows if row.values["parent"] == run.id} - ids) for run in runs}
    return {parent: stay for parent, stay in forks.items() if stay}


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the lock of the folder of runs, so that one process writes. Raises OSError where another one does."""
    folder = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # a file system that knows no locks grants every one
        yield
    finally:
        os.close(folder)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)


def _is_unicode(text: str) -> bool:
    """Say whether SQLite can hold a text: a name of a file may be any bytes, and JSON may have half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


NUMBER = (int, float, type(None))
TEXT = (str, type(None))
VALUE_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "name", "status"), (str,)),
    **dict.fromkeys(("reason", "metric", "data", "device", "host", "torch", "parent", "git", "note"), TEXT),
    **dict.fromkeys(("duration", "epoch", "epochs", "iter", "iters", "iters_per_s", "updated", "params"), NUMBER),
    "begun": (float,),
    "ranks": (int,),
}
"""The types of the values in `FACTS`, but `tags`, a list of texts. All other values are numbers."""


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a stored row. Raises ValueError where they are not of the types that readers rely on."""
    tags = values.get("tags")
    if not isinstance(tags, list) or not all(isinstance(word, str) for word in tags):
        raise ValueError("the tags are no list of texts")
    if not values.keys() >= FACTS.keys():
        raise ValueError("values are missing")
    for name, value in values.items():
        if name != "tags" and not isinstance(value, VALUE_TYPES.get(name, NUMBER)):
            raise ValueError(f"{name} is {value!r}")
    return values


def _begun(row: Row) -> tuple[str, float, str]:
    id_ = row.values["id"]
    return id_[:15].replace("-", ""), row.values["begun"], id_


def _values(run: RunDir, seen: "Overview", metric: str) -> dict[str, Any]:
    """Return everything that a run can be filtered by, sorted by or shown with; None where it has no value."""
    from hookflow.monitor.health import Pace

    state, facts = seen.state, run.describe()
    tags, note = run.noted()
    began = state.attempts[-1].begin if state.attempts else 0
    over = (state.it - began) / state.elapsed if state.elapsed else 0.0
    best, last = state.metrics.best, state.metrics.by_name
    scalars = {name: state.scalars[name].last for name in state.scalar_names}
    values: dict[str, Any] = {
        "id": run.id,
        "name": run.path.parent.name,
        "status": seen.health.condition,
        "reason": seen.reason,
        "begun": float(facts.get("created") or state.run.get("t", 0.0)),
        "duration": sum(attempt.until - attempt.began for attempt in state.attempts),
        "epoch": state.epoch,
        "epochs": state.run.get("max_epochs") or None,
        "iter": state.it,
        "iters": state.total_iters or None,
        "iters_per_s": over if seen.health.over else Pace.of(state).iters_per_s,
        "metric": metric or None,
        "updated": state.now or None,
        "ranks": state.ranks.world,
        "data": "SYNTHETIC" if state.synthetic else "real" if state.run.get("data") else None,
        "params": state.run.get("params"),
        **{key: state.run.get(key) for key in ("device", "host", "torch")},
        "parent": parent.run if (parent := run.parent()) else None,
        "git": _commit(run),
        "tags": tags,
        "note": note or None,
    }
    values |= {f"best.{name}": record.value for name, record in best.items()}
    metrics = {name: points[-1][1] for name, points in last.items() if points}
    for name, value in {**metrics, **scalars}.items():  # a scalar comes first, as in the condition of a `when`
        values.setdefault(name, value)
    return values


def _config(run: RunDir) -> dict[str, Any]:
    """Return the keys of the pipeline that a run has recorded; none where it cannot be read."""
    import tomli

    from hookflow.pipeline.source_map import flat

    with suppress(OSError, ValueError, RecursionError):
        return dict(flat(tomli.loads(read_regular(run.pipeline).decode())))
    return {}


def _commit(run: RunDir) -> str | None:
    """Return the git commit in short, "dirty" if files differ from it, as the hook `env_info` has written it."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        git = read_object(read_regular(run.path / "environment.json"))["git"]
        return f"{git['commit'][:8]}{' dirty' * bool(git['dirty'])}"
    return None
