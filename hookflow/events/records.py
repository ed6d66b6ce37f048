"""What stands in an event log: one JSON object a line, told apart by `k`, stamped with `t` (seconds since 1970).

A log is a sequence of *differences*: counts and histograms of a frame cover the time since the frame before it, so
that any stretch of a run can be added up on its own. Whoever reads it must pass over kinds and keys it does not know.
Keys of records that are written often are short; durations in them are in nanoseconds.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

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


class Run(TypedDict):
    """The first record of each attempt at a run; a resumed run has several."""

    k: Literal["run"]
    t: float
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
    it: int
    ep: int
    resumed_from: str | None
    rank: int
    """Whose log this is, of the `world` processes that train together: each has one of its own."""
    world: int
    strategy: Literal["", "ddp", "fsdp"]
    """How they do it; empty for a process alone. With it goes where in an iteration they wait for one another."""


class Frame(TypedDict):
    """What happened since the frame before: a few times a second, whatever the iteration rate.

    `hooks` maps a binding's id (as a string) to [firings, total ns, longest ns, last ns, {bin: count}];
    `iters` is the same for whole training iterations; `phases` maps a name of PHASES to total ns; `samples` counts
    training examples. `bi` and `bn` are the batch at hand and the batches of the pass (of training, or of
    validation while `stage` says so). `cost` is what writing the frame before took, in ns.
    """

    k: Literal["frame"]
    t: float
    it: int
    ep: int
    stage: Stage
    bi: int
    bn: int
    samples: int
    phases: dict[str, int]
    iters: list[Any]
    hooks: dict[str, list[Any]]
    cost: int


class Scalars(TypedDict):
    """What hooks gave to `run.log` at one iteration."""

    k: Literal["scalars"]
    t: float
    it: int
    ep: int
    v: dict[str, float]


class Metrics(TypedDict):
    """The outcome of one validation or test, `seconds` long."""

    k: Literal["metrics"]
    t: float
    it: int
    ep: int
    split: Literal["val", "test"]
    v: dict[str, float]
    seconds: float


class Epoch(TypedDict):
    """An epoch of training ended; `seconds` leaves validation out."""

    k: Literal["epoch"]
    t: float
    it: int
    ep: int
    seconds: float


class Checkpoint(TypedDict):
    """A checkpoint is safe on disk, under `path` (relative to the run directory), and goes by `names`."""

    k: Literal["checkpoint"]
    t: float
    it: int
    ep: int
    path: str
    names: list[str]
    bytes: int
    ms: float


class Acknowledged(TypedDict):
    """A command of the command log has been carried out (or refused: `ok` is false and `note` says why)."""

    k: Literal["ack"]
    t: float
    it: int
    ep: int
    id: str
    cmd: Command
    asked: float
    ok: bool
    note: str


class CommandRecord(TypedDict):
    """A line of the command log: what somebody asks of the run, which answers with an `ack` of the same `id`."""

    id: str
    cmd: Command
    t: float
    by: str


class Message(TypedDict):
    """A line for people. `source` is a hook's name, or "hookflow"."""

    k: Literal["message"]
    t: float
    it: int
    ep: int
    level: Level
    source: str
    text: str


class Error(TypedDict):
    """Something raised. `hook` and `point` are empty when no hook did; `action` is what became of it."""

    k: Literal["error"]
    t: float
    it: int
    ep: int
    hook: str
    point: str
    type: str
    text: str
    traceback: str
    action: Literal["raise", "disable", "ignore"]


class End(TypedDict):
    """The last record of an attempt. A log without one belongs to a run that is alive, or was killed."""

    k: Literal["end"]
    t: float
    it: int
    ep: int
    status: Status
    exit: int
    reason: str
    seconds: float
    best: NotRequired[dict[str, Any]]


Record = Run | Frame | Scalars | Metrics | Epoch | Checkpoint | Acknowledged | Message | Error | End
