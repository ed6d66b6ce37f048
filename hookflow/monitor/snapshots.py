"""Snapshots of the folded state of a run, by the bytes of its log.

With them a long log opens, and is sought in, at once.

A snapshot is a pickle, and an unpickled file can do anything. A log may come from anybody, so
snapshots lie in the user's own cache folder. Only files that this user alone may write are read.
One that is torn, of other code, or of another log is passed over. The log has everything: without
snapshots it is read from its beginning.
"""

import fcntl
import os
import pickle
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hookflow.events.reading import open_regular
from hookflow.events.records import Record
from hookflow.events.rundir import user_folder
from hookflow.monitor.state import RunState

SNAPSHOT_STRIDE_BYTES = 1 << 21
"""Bytes of a log between two snapshots, at most: what is folded in a tenth of a second."""

MAX_KEPT_RUNS = 10
"""Runs whose snapshots are kept: those that were written last."""

CHECKED_BYTES = 4096
"""Bytes of the log before a snapshot that must be what they were."""

SNAPSHOT_HEADER = struct.Struct(">QQ32s")
"""Before each snapshot: the bytes of the log that are folded, its size, and a checksum.

The checksum is over both files.
"""


class LogPosition(NamedTuple):
    """The position of a reader in the log of another rank.

    `at`: the bytes that are read, and `last` the last of them. From the byte `recent` on frames are
    read. `waiting` has the records that are read and not folded.
    """

    name: str
    at: int
    last: bytes
    recent: int = 0
    passed_over: int = 0
    complaint: str = ""
    waiting: Sequence[Record] = ()


class Snapshot(NamedTuple):
    """The position of a reader of the logs: the state, the attempts, and the skipped lines.

    `others` has the positions in the logs of other ranks.
    """

    state: RunState
    attempt: int = 0
    passed_over: int = 0
    complaint: str = ""
    others: Mapping[int, LogPosition] = {}


def bytes_before(log: Path, at: int) -> bytes:
    """Return the last bytes of a log before `at`."""
    with open_regular(log) as file:
        file.seek(max(at - CHECKED_BYTES, 0))
        return file.read(min(at, CHECKED_BYTES))


def pack_snapshot(snapshot: Snapshot) -> bytes:
    return zlib.compress(pickle.dumps(snapshot, pickle.HIGHEST_PROTOCOL), 1)


def unpack_snapshot(data: bytes) -> Snapshot:
    """Return the snapshot of bytes that this process has made, or that `Snapshots` has checked."""
    return Snapshot(*pickle.loads(zlib.decompress(data)))  # noqa: S301


@cache
def _code() -> bytes:
    """Return a mark of the code that wrote a snapshot.

    A state of other code may lack fields.
    """
    sources = sorted(
        path
        for part in ("monitor", "events")
        for path in Path(__file__).parents[1].glob(f"{part}/*.py")
    )
    return sha256(sys.version.encode() + b"".join(path.read_bytes() for path in sources)).digest()


def find_snapshot_folder() -> Path | None:
    """Return where the snapshots of this user are.

    It is None for a user without a home folder, who has none.
    """
    cache = user_folder("XDG_CACHE_HOME", ".cache")
    if cache is None:
        return None
    return cache / "snapshots"


class Snapshots:
    """The snapshots of one log, in a file of their own to which readers of the log append.

    A `reader` that leaves other records out has other states, and so a file of its own.
    """

    def __init__(self, log: Path, reader: str = "") -> None:
        self._log = log
        where = find_snapshot_folder()
        name = sha256(os.fsencode(log.resolve()) + reader.encode()).hexdigest()[:32]
        self._path = None if where is None else where / name
        # By bytes of the log: where the snapshot begins in the file, its size, its checksum.
        self._places: dict[int, tuple[int, int, bytes]] = {}
        self._end = 0
        if self._path is not None:
            with suppress(OSError), open_regular(self._path) as file:
                self._scan(file)

    @property
    def places(self) -> list[int]:
        """The bytes of the log after which there are snapshots, the first ones first."""
        return sorted(self._places)

    def _scan(self, file: BinaryIO) -> None:
        """Find the snapshots of a file, without reading them."""
        status = os.fstat(file.fileno())
        self._end = 0
        self._places.clear()
        if (
            status.st_uid != os.getuid()
            or status.st_mode & 0o022
            or file.read(len(_code())) != _code()
        ):
            return
        self._end = file.tell()
        while len(head := file.read(SNAPSHOT_HEADER.size)) == SNAPSHOT_HEADER.size:
            at, size, checksum = SNAPSHOT_HEADER.unpack(head)
            begin = file.tell()
            if begin + size > status.st_size:
                return
            self._places[at] = begin, size, checksum
            self._end = file.seek(begin + size)

    def _compute_checksum(self, at: int, data: bytes) -> bytes:
        return sha256(at.to_bytes(8) + bytes_before(self._log, at) + data).digest()

    def load(self, at: int) -> Snapshot | None:
        """Return the snapshot after so many bytes of the log.

        It is None where it does not fit the log, or is damaged.
        """
        if self._path is None or at not in self._places:
            return None
        begin, size, checksum = self._places[at]
        with suppress(OSError), open_regular(self._path) as file:
            file.seek(begin)
            if self._compute_checksum(at, data := file.read(size)) == checksum:
                snapshot = unpack_snapshot(data)
                logs = (
                    (self._log.with_name(place.name), place) for place in snapshot.others.values()
                )
                if all(bytes_before(log, place.at) == place.last for log, place in logs):
                    return snapshot
        self._places.pop(at, None)  # a scan may have dropped it meanwhile
        return None

    def newest(self) -> tuple[int, Snapshot] | None:
        """Return the last snapshot that fits the log, and the bytes of the log it has folded."""
        fitting = ((at, self.load(at)) for at in reversed(self.places))
        return next(((at, snapshot) for at, snapshot in fitting if snapshot), None)

    def add(self, at: int, snapshot: Snapshot) -> None:
        """Keep a snapshot.

        It is not kept if there is one, another process writes at this moment, or the system refuses
        it.
        """
        if self._path is None:
            return
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            with os.fdopen(os.open(self._path, flags, 0o600), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._scan(file)
                if at in self._places and self.load(at):
                    return
                data = pack_snapshot(snapshot)
                file.truncate(self._end)  # what is torn, or of other code
                file.seek(self._end)
                file.write(
                    (b"" if self._end else _code())
                    + SNAPSHOT_HEADER.pack(at, len(data), self._compute_checksum(at, data))
                    + data
                )
                if not self._end:
                    _remove_oldest(self._path.parent)
                file.flush()
                file.seek(0)
                self._scan(file)


def _remove_oldest(where: Path) -> None:
    """Remove the files of the runs that were written longest ago."""
    newest = sorted(where.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest[MAX_KEPT_RUNS:]:
        path.unlink(missing_ok=True)
