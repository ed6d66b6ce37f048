"""An index of the runs in a folder: a row of values for each, kept in a file of SQLite beside them.

The event logs are the record; the index is a copy that commands read instead. A row holds as long
as the files of its run have the same times and sizes. Commands that list runs bring the file up to
date, a training never does. Without the right to write it, or while another process does, the rows
are in memory alone. A damaged file is replaced.
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

from hookflow.events.initial_weights import read_recorded_weights
from hookflow.events.reading import read_json, read_object, read_regular
from hookflow.events.rundir import RunDir, run_paths

# The modules that read logs are imported where they are used: listing 10,000 runs that have not
# changed takes less time than that import.
if TYPE_CHECKING:
    from hookflow.monitor.state import RunState
    from hookflow.monitor.summary import RunSummary, RunSummaryReader

INDEX_FILE_NAME = ".index.sqlite"
INDEX_VERSION = 7
"""The version of the values in a row; a file of another one is replaced."""

CREATE_TABLE_SQL = (
    "CREATE TABLE runs (path TEXT PRIMARY KEY, signature TEXT, row TEXT, config TEXT, curve TEXT)"
)
INDEX_SCHEMA = {("table", "runs", CREATE_TABLE_SQL), ("index", "sqlite_autoindex_runs_1", None)}
"""The tables of a file of the index.

All else is a stranger's: views and triggers can compute without an end.
"""
MAX_TEXT = 10_000_000
"""Bytes of a text in the index, at most."""
ENDED_STATES = ("finished", "stopped")
"""The states of a run whose log has its last record."""

BUSY_TIMEOUT_SECONDS = 5.0
"""Seconds that reading waits for a process that writes the file; it takes milliseconds."""

CURVE_LENGTH = 24
"""Values of a curve: as many as a list has room for."""

RUN_KEYS = {
    "id": "when it was started, and four digits",
    "name": "run.name of its pipeline",
    "status": (
        "running, finished (by a hook, too: see the reason), stopped, interrupted, failed, lost,"
        " refused, …"
    ),
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
    "parent": "the run that it was forked from, or whose weights it began with",
    "git": "the commit, by the hook env_info",
    "tags": "the words that `hookflow tag` has given it",
    "note": "the note that `hookflow tag --note` has given it",
}
"""The keys that every run has.

Others are its metrics, best.METRIC, last.METRIC, its scalars, and the keys of its pipeline.
"""


@dataclass(slots=True)
class Row:
    """A run in a list.

    It has its path below the folder of runs, its values by key, and those of its pipeline in
    `config`. A value is what JSON knows, None where there is none. `config_json` is `config` as
    text, a line of JSON for each key (`"run.seed":0`) after an empty one: to read all of 10,000
    takes a while, to find a line in each does not. `curve_json` is `curve` as JSON. `refused` are
    logs that cannot be read, in words. A row that is `final` holds until the files of the run
    change.
    """

    root: Path
    path: str
    values: Mapping[str, Any]
    config_json: str
    curve_json: str
    signature: str
    final: bool = True
    refused: Sequence[str] = ()
    _config: Mapping[str, Any] | None = None

    @property
    def curve(self) -> list[float]:
        """Values of the metric over the run."""
        with suppress(ValueError):
            return [float(value) for value in read_json(self.curve_json, nan=True)]
        return []

    @property
    def config(self) -> Mapping[str, Any]:
        if self._config is None:
            try:
                empty, *lines, _ = self.config_json.split("\n")
                self._config = read_object(f"{empty}{{{','.join(lines)}}}", nan=True)
            # Where the file of the index is damaged, the run itself has its pipeline.
            except ValueError:
                self._config = _config(self.run)
        return self._config

    def get(self, key: str) -> Any:
        """Return the value of a key; None where it has none."""
        value = self.values.get(key)
        if value is None:
            return read_stated_values([self], key)[0]
        return value

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


def read_stated_values(rows: Sequence[Row], key: str) -> list[Any]:
    """Return the value of a key of their pipelines for each of these rows.

    This is quick, as there may be 10,000 rows.
    """
    begin = _begin(key)
    size = len(begin)
    at = -1
    texts = []
    for row in rows:
        text = row.config_json
        if not text.startswith(begin, at):  # most have it in the same place
            at = text.find(begin)
        if at >= 0:
            texts.append(text[at + size : text.find("\n", at + 1)])
        elif text.startswith("\n"):
            texts.append("null")
        else:
            texts.append("")  # no text of ours
    distinct = list(set(texts))
    try:
        values = read_json(f"[{','.join(distinct)}]", nan=True)
        by_text = dict(zip(distinct, values, strict=True))
    except ValueError:  # the file of the index is damaged in one of these places
        return [row.config.get(key) for row in rows]
    return [by_text[text] for text in texts]


class Index:
    """The rows of all runs in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folder = str(root)
        self.unreadable: list[str] = []
        """The entries of the folder that cannot be read, in words."""
        self._rows: dict[str, Row] | None = None
        self._damaged = False
        self._readers: dict[str, RunSummaryReader] = {}

    def refresh(
        self, progress: Callable[[int, int], object] = lambda done, whole: None
    ) -> list[Row]:
        """Return the row of every run as it is now, the newest run first.

        `progress` is called with how many runs have been read of those that have changed.
        """
        if self._rows is None:
            self._rows = self._load()
        known = self._rows
        unreadable: list[str] = []
        paths = self._find_runs(known, unreadable)
        stale: dict[str, str] = {}
        for path in paths:
            row = known.get(path)
            signature = self._signature(path, row)
            if row is None or not row.final or row.signature != signature:
                stale[path] = signature
        fresh: dict[str, Row] = {}
        try:
            for count, (path, signature) in enumerate(stale.items()):
                progress(count, len(stale))
                fresh[path] = self._read_log(path, signature)
        finally:  # what has been read before Ctrl-C is kept
            gone = [] if unreadable else known.keys() - paths  # a mount may come back
            self._write([row for row in fresh.values() if row.final], gone)
        self._rows = {path: fresh.get(path) or known[path] for path in paths}
        self.unreadable = unreadable
        return sorted(self._rows.values(), key=_make_begin_key, reverse=True)

    def _find_runs(self, known: Iterable[str], unreadable: list[str]) -> list[str]:
        """Return the paths of all runs below the folder.

        Folders that cannot be read are added to `unreadable`.
        """
        known_paths = {f"{self._folder}/{path}" for path in known}
        prefix = len(self._folder) + 1
        return [path[prefix:] for path in run_paths(self.root, unreadable.append, known_paths)]

    def _signature(self, path: str, row: Row | None) -> str:
        """Return what changes with the files of a run.

        It has the times of its folder and its log, and sizes of logs.

        The time of the folder is enough for a run that has ended: a process that resumes it
        replaces a file there.
        """
        folder = f"{self._folder}/{path}"
        signature = ""
        with suppress(OSError):  # `os.stat` of a string is several times as quick as `Path.stat`
            signature = str(os.stat(folder).st_mtime_ns)  # noqa: PTH116
            if row is not None and row.signature == signature:
                return signature
            log = os.stat(f"{folder}/events.jsonl")  # noqa: PTH116
            signature += f" {log.st_mtime_ns} {log.st_size}"
        if row is not None and row.values["ranks"] > 1:  # these may go on for a moment
            for other in sorted(Path(folder).glob("events.rank*.jsonl")):
                signature += f" {other.stat().st_size}"
        return signature

    def _read_log(self, path: str, signature: str) -> Row:
        """Read the log of a run, and return its row."""
        from hookflow.monitor.series import in_order
        from hookflow.monitor.summary import RunSummaryReader

        run = RunDir(self.root / path)
        if path not in self._readers:
            self._readers[path] = RunSummaryReader(run)
        summary = self._readers[path].read(time.time())
        condition = summary.health.condition
        is_silent = condition == "stalled" and run.life() == "remote"
        is_readable = condition != "unreadable" and not summary.refused
        is_final = (is_silent or summary.health.over) and is_readable
        if is_final and not is_silent:
            del self._readers[path]
        metrics = summary.state.metrics.by_name
        metric = next(iter(in_order(metrics, summary.state.monitored)), "")
        curve = _sample([value for _, value in metrics.get(metric, ())])
        values = _values(run, summary, metric)
        # The signature of a run that has ended is the time of its folder, which `_signature`
        # compares first.
        if values["status"] in ENDED_STATES:
            signature = signature.partition(" ")[0]
        if is_silent:  # in words that stay true until its log grows: only then is it read again
            since = time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.state.moved))
            values["reason"] = f"no progress since {since}"
        return Row(
            self.root,
            path,
            values,
            _config_text(run),
            _json(curve),
            signature,
            is_final,
            summary.refused,
        )

    def _load(self) -> dict[str, Row]:
        """Return the rows of the file; none where there is no file, or none that can be used."""
        file = self.root / INDEX_FILE_NAME
        try:
            if file.is_file():
                return self._read_rows(file)
        # The file may not be readable, or another process may be writing it for long.
        except sqlite3.OperationalError as error:
            # The error about a text that is no UTF-8 has no code.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
            self._damaged = code & 0xFF not in HARMLESS_ERRORS
        except OSError:
            pass  # the folder cannot be read, which `unreadable` reports
        except (sqlite3.Error, ValueError, TypeError, KeyError):
            self._damaged = True
        return {}

    def _read_rows(self, file: Path) -> dict[str, Row]:
        """Return the rows of a file.

        Raises ValueError, and the errors of SQLite, where it is damaged or foreign.
        """
        address = f"{file.absolute().as_uri()}?mode=ro"
        rows = {}
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT_SECONDS)) as db:
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_TEXT)
            if db.execute("PRAGMA user_version").fetchone() != (INDEX_VERSION,):
                raise ValueError("of another version")
            if set(db.execute("SELECT type, name, sql FROM sqlite_master")) != INDEX_SCHEMA:
                raise ValueError("not written by hookflow")
            for texts in db.execute("SELECT path, signature, row, config, curve FROM runs"):
                if not all(isinstance(text, str) for text in texts):
                    raise ValueError("no row of texts")
                path, signature, row, config, curve = texts
                values = _checked(read_object(row, nan=True))
                rows[path] = Row(self.root, path, values, config, curve, signature)
        return rows

    def _write(self, rows: Sequence[Row], gone: Iterable[str]) -> None:
        lines = []
        for row in rows:
            texts = (row.path, row.signature, _json(row.values), row.config_json, row.curve_json)
            if all(_is_unicode(text) for text in texts):
                lines.append(texts)
        removed = [(path,) for path in gone if _is_unicode(path)]
        if not lines and not removed and not self._damaged:
            return
        file = self.root / INDEX_FILE_NAME
        with suppress(OSError, sqlite3.Error), _locked(self.root):
            if file.exists() and not file.is_file():
                return
            if self._damaged:
                for name in (INDEX_FILE_NAME, f"{INDEX_FILE_NAME}-journal"):
                    (self.root / name).unlink(missing_ok=True)
                self._damaged = False
            os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))  # as private as the runs are
            with closing(sqlite3.connect(file, timeout=BUSY_TIMEOUT_SECONDS)) as db, db:
                db.execute(f"PRAGMA user_version = {INDEX_VERSION}")
                if not db.execute("SELECT name FROM sqlite_master").fetchone():
                    db.execute(CREATE_TABLE_SQL)
                db.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", lines)
                db.executemany("DELETE FROM runs WHERE path = ?", removed)


HARMLESS_ERRORS = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
)
"""Errors of SQLite that say nothing against the file."""


def _sample(values: Sequence[float]) -> Sequence[float]:
    """Return as many values as a curve has, the first and the last among them."""
    if len(values) <= CURVE_LENGTH:
        return values
    last = len(values) - 1
    return [values[k * last // (CURVE_LENGTH - 1)] for k in range(CURVE_LENGTH)]


def find_remaining_forks(runs: Sequence[RunDir]) -> dict[str, list[str]]:
    """Return, for runs that are to be deleted, the forks that would stay, by ids.

    Forks are in the same folder of runs. A run without such forks is left out.
    """
    ids = {run.id for run in runs}
    folders = {run.path.parent.parent for run in runs}
    forks: dict[str, set[str]] = {}
    for folder in folders:
        for row in Index(folder).refresh():
            parent = row.values["parent"]
            if parent in ids and row.id not in ids:
                forks.setdefault(parent, set()).add(row.id)
    return {parent: sorted(staying) for parent, staying in forks.items()}


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the lock of the folder of runs, so that one process writes.

    Raises OSError where another one does.
    """
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
    """Say whether SQLite can hold a text.

    A file's name may be any bytes, and JSON may have half a character.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


NUMBER = (int, float, type(None))
TEXT_TYPES = (str, type(None))
VALUE_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "name", "status"), (str,)),
    **dict.fromkeys(
        ("reason", "metric", "data", "device", "host", "torch", "parent", "git", "note"), TEXT_TYPES
    ),
    **dict.fromkeys(
        ("duration", "epoch", "epochs", "iter", "iters", "iters_per_s", "updated", "params"), NUMBER
    ),
    "begun": (float,),
    "ranks": (int,),
}
"""The types of the values in `RUN_KEYS`, but `tags`, a list of texts.

All other values are numbers.
"""


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a stored row.

    Raises ValueError where they are not of the types that readers rely on.
    """
    tags = values.get("tags")
    if not isinstance(tags, list) or not all(isinstance(word, str) for word in tags):
        raise ValueError("the tags are no list of texts")
    if not values.keys() >= RUN_KEYS.keys():
        raise ValueError("values are missing")
    for name, value in values.items():
        if name != "tags" and not isinstance(value, VALUE_TYPES.get(name, NUMBER)):
            raise ValueError(f"{name} is {value!r}")
    return values


def _make_begin_key(row: Row) -> tuple[str, float, str]:
    id_ = row.values["id"]
    return id_[:15].replace("-", ""), row.values["begun"], id_


def _values(run: RunDir, summary: "RunSummary", metric: str) -> dict[str, Any]:
    """Return everything that a run can be filtered by, sorted by or shown with.

    It is None where the run has no value.
    """
    state = summary.state
    facts = run.describe()
    tags, note = run.read_notes()
    values: dict[str, Any] = {}
    values["id"] = run.id
    values["name"] = run.path.parent.name
    values["status"] = summary.health.condition
    values["reason"] = summary.reason
    values["begun"] = float(facts.get("created") or state.run.get("t", 0.0))
    values["duration"] = sum(attempt.until - attempt.began for attempt in state.attempts)
    values["epoch"] = state.epoch
    values["epochs"] = state.run.get("max_epochs") or None
    values["iter"] = state.it
    values["iters"] = state.total_iters or None
    values["iters_per_s"] = _compute_iters_per_s(summary)
    values["metric"] = metric or None
    values["updated"] = state.now or None
    values["ranks"] = state.ranks.world
    values["data"] = "real" if state.run.get("data") else None
    if state.synthetic:
        values["data"] = "SYNTHETIC"
    for key in ("params", "device", "host", "torch"):
        values[key] = state.run.get(key)
    values["parent"] = _parent_of(run)
    values["git"] = _commit(run)
    values["tags"] = tags
    values["note"] = note or None
    _add_metrics(values, state)
    return values


def _add_metrics(values: dict[str, Any], state: "RunState") -> None:
    """Add the best and the last value of each metric.

    Under the plain name a scalar comes first, as in the condition of a `when`; `last.NAME` is of
    validations alone.
    """
    for name, best in state.metrics.best.items():
        values[f"best.{name}"] = best.value
    last = {name: points[-1][1] for name, points in state.metrics.by_name.items() if points}
    for name, value in last.items():
        values[f"last.{name}"] = value
    for name in state.scalar_names:
        last[name] = state.scalars[name].last
    for name, value in last.items():
        values.setdefault(name, value)


def _compute_iters_per_s(summary: "RunSummary") -> float:
    """Return the iterations per second: lately, or over the last attempt of a run that is over."""
    from hookflow.monitor.throughput import Throughput

    state = summary.state
    if not summary.health.over:
        return Throughput.of(state).iters_per_s
    began = 0
    if state.attempts:
        began = state.attempts[-1].begin
    if not state.elapsed:
        return 0.0
    return (state.it - began) / state.elapsed


def _config_text(run: RunDir) -> str:
    """Return the keys of the pipeline as the lines of a `Row`."""
    lines = [f"{_begin(key)}{_json(value)}" for key, value in _config(run).items()]
    return "".join(lines) + "\n"


def _parent_of(run: RunDir) -> str | None:
    """Return the run that a run was forked from, or whose weights it began with."""
    parent = run.parent()
    if parent is not None:
        return parent.run
    return next((source.run for source in read_recorded_weights(run).values()), None)


def _config(run: RunDir) -> dict[str, Any]:
    """Return the keys of the pipeline that a run has recorded; none where it cannot be read."""
    import tomli

    from hookflow.pipeline.source_map import flat

    with suppress(OSError, ValueError, RecursionError):
        return dict(flat(tomli.loads(read_regular(run.pipeline).decode())))
    return {}


def _commit(run: RunDir) -> str | None:
    """Return the git commit in short, as the hook `env_info` has written it.

    It has "dirty" if files differ from the commit.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        git = read_object(read_regular(run.path / "environment.json"))["git"]
        commit = git["commit"][:8]
        if git["dirty"]:
            return f"{commit} dirty"
        return str(commit)
    return None
