"""What stands in an event log: one JSON object a line, told apart by `k`, stamped with `t` (seconds since 1970).

A log is a sequence of *differences*: counts and histograms of a frame cover the time since the frame before it, so
that any stretch of a run can be added up on its own. Whoever reads it must pass over kinds and keys it does not know.
Keys of records that are written often are short; durations in them are in nanoseconds.

Of a kind `x` that is put into a log by `Put`, `XFields` are what the caller gives and `X` is the whole record. A log
holds what was written, by whatever version: who reads a record expects that a key is missing, or is something else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypedDict, Unpack, cast, get_args, get_type_hints, overload

VERSION = 1

PHASES = ("data", "forward", "backward", "optimizer", "hooks", "other")
"""What the time of a training iteration is booked to. `hooks` is the sum of every firing inside it."""

Stage = Literal["start", "train", "val", "test", "save", "paused", "end"]
Level = Literal["info", "warn", "error"]
Command = Literal["stop", "pause", "resume", "checkpoint"]
Status = Literal["finished", "stopped", "interrupted", "failed"]


class DataInfo(TypedDict):
    """Where one split's data came from. `synthetic` data says nothing about the real set, and every face says so."""

    name: str
    examples: int
    batches: int
    batch_size: int
    synthetic: bool
    note: str


class Stamp(TypedDict):
    """When a record was written, and how far the run was then: the iterations and epochs that were done."""

    t: float
    it: int
    ep: int


class RunFields(TypedDict):
    version: int
    pipeline: str
    pid: int
    host: str
    python: str
    torch: str
    device: str
    precision: str
    model: str
    params: int
    seed: int
    data: dict[str, DataInfo]
    max_epochs: int
    max_iters: int
    iters_per_epoch: int
    resumed_from: str | None
    rank: int
    """Whose log this is, of the `world` processes that train together: each has one of its own."""
    world: int
    strategy: Literal["", "ddp", "fsdp"]
    """How they do it; empty for a process alone. With it goes where in an iteration they wait for one another."""


class Run(Stamp, RunFields):
    """The first record of each attempt at a run; a resumed run has several."""

    k: Literal["run"]


class Frame(Stamp):
    """What happened since the frame before: a few times a second, whatever the iteration rate.

    `hooks` maps a binding's id (as a string) to [firings, total ns, longest ns, last ns, {bin: count}];
    `iters` is the same for whole training iterations; `phases` maps a name of PHASES to total ns; `samples` counts
    training examples. `bi` and `bn` are the current batch and the batches of the pass (of training, or of
    validation while `stage` says so). `cost` is what writing the frame before took, in ns.
    """

    k: Literal["frame"]
    stage: Stage
    bi: int
    bn: int
    samples: int
    phases: dict[str, int]
    iters: list[Any]
    hooks: dict[str, list[Any]]
    cost: int


class Scalars(Stamp):
    """What hooks gave to `run.log` at one iteration."""

    k: Literal["scalars"]
    v: dict[str, float]


class MetricsFields(TypedDict):
    split: Literal["val", "test"]
    v: Mapping[str, float]
    seconds: float


class Metrics(Stamp, MetricsFields):
    """The outcome of one validation or test, `seconds` long."""

    k: Literal["metrics"]


class EpochFields(TypedDict):
    seconds: float


class Epoch(Stamp, EpochFields):
    """An epoch of training ended; `seconds` leaves validation out."""

    k: Literal["epoch"]


class CheckpointFields(TypedDict):
    it: int
    ep: int
    path: str
    names: list[str]
    bytes: int
    ms: float


class Checkpoint(CheckpointFields):
    """A checkpoint of iteration `it` is safe on disk, under `path` (relative to the run directory), named `names`."""

    k: Literal["checkpoint"]
    t: float


class AcknowledgedFields(TypedDict):
    id: str
    cmd: str
    asked: float
    ok: bool
    note: str


class Acknowledged(Stamp, AcknowledgedFields):
    """A command of the command log has been carried out (or refused: `ok` is false and `note` says why)."""

    k: Literal["ack"]


class MessageFields(TypedDict):
    level: Level
    source: str
    text: str


HOOKFLOW = "hookflow"
"""The source of what the runner says itself."""


class Message(Stamp, MessageFields):
    """A line for people. `source` is who says it: a hook's name, "task", or HOOKFLOW."""

    k: Literal["message"]


class ErrorFields(TypedDict):
    hook: str
    point: str
    type: str
    text: str
    traceback: str
    at: str
    action: Literal["raise", "disable", "ignore"]


class Error(Stamp, ErrorFields):
    """Something raised. `hook` and `point` are empty when no hook did; `action` is what became of it.

    `at` is "file:line" of the innermost frame in the user's own files.
    """

    k: Literal["error"]


class EndFields(TypedDict):
    status: Status
    exit: int
    reason: str
    seconds: float


class End(Stamp, EndFields):
    """The last record of an attempt. A log without one belongs to a run that is alive, or was killed."""

    k: Literal["end"]


Record = Run | Frame | Scalars | Metrics | Epoch | Checkpoint | Acknowledged | Message | Error | End

KINDS = frozenset(get_args(get_type_hints(kind)["k"])[0] for kind in get_args(Record))
"""The kinds of records that this version knows."""


class CommandRecord(TypedDict):
    """A line of the command log: what somebody asks of the run, which answers with an `ack` of the same `id`."""

    id: str
    cmd: Command
    t: float
    by: str


class Put(Protocol):
    """Puts a record of a kind into a log, from its fields; stamped with the time and the place of the run."""

    @overload
    def __call__(self, kind: Literal["run"], **fields: Unpack[RunFields]) -> None: ...
    @overload
    def __call__(self, kind: Literal["metrics"], **fields: Unpack[MetricsFields]) -> None: ...
    @overload
    def __call__(self, kind: Literal["epoch"], **fields: Unpack[EpochFields]) -> None: ...
    @overload
    def __call__(self, kind: Literal["checkpoint"], **fields: Unpack[CheckpointFields]) -> None: ...
    @overload
    def __call__(self, kind: Literal["ack"], **fields: Unpack[AcknowledgedFields]) -> None: ...
    @overload
    def __call__(self, kind: Literal["message"], **fields: Unpack[MessageFields]) -> None: ...
    @overload
    def __call__(self, kind: Literal["error"], **fields: Unpack[ErrorFields]) -> None: ...
    @overload
    def __call__(self, kind: Literal["end"], **fields: Unpack[EndFields]) -> None: ...


def stamped(kind: str, it: int, ep: int, fields: Mapping[str, Any]) -> Record:
    """Return the record of a kind whose fields `Put` has checked, stamped with the time and a place of the run."""
    return cast(Record, {"k": kind, "t": time.time(), "it": it, "ep": ep, **fields})
