"""The records of an event log, one JSON object a line.

Each has a kind `k` and a time stamp `t` (seconds since 1970). A log is a sequence of *differences*:
counts and histograms of a frame cover the time since the frame before it, so that any stretch of a
run can be added up on its own. A reader must skip unknown kinds and keys. `hookflow.events.reading`
validates each record against these types and bounds. Keys of records that are written often are
short; durations in them are in nanoseconds.
"""

import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict, cast, get_args, get_type_hints

from hookflow.metric_mode import Mode

VERSION = 2

PHASES = ("data", "forward", "backward", "optimizer", "hooks", "other")
"""The categories of the time of an iteration. `hooks` is the sum of every firing inside it."""

DEVICE = 1
"""The track of a trace with the times on the device, below that of the training thread."""

BACKGROUND = 2
"""The first track of a trace with the firings of an offloaded hook.

Each further offloaded hook has the next track.
"""

MAX_WORLD_SIZE = 1 << 14
"""Ranks that a run has at most."""

Signed = Annotated[int, range(-(1 << 63), 1 << 63)]
"""An integer that may be negative. Any other is not; all have 64 bits."""

BindingId = Annotated[str, r"^[0-9]{1,9}$"]
"""The id of a binding, as JSON has it for a key."""

MAX_SCALAR_ROWS = 4096
"""Rows that a record of scalars has at most."""

Column = float | list[float] | dict[str, float]
"""The numbers of one name in the rows of a record of scalars: see `hookflow.events.packing`."""

Stage = Literal["start", "train", "val", "test", "save", "paused", "end"]
Level = Literal["info", "warn", "error"]
Status = Literal["finished", "stopped", "interrupted", "failed"]


class DataInfo(TypedDict):
    """Where one split's data came from.

    `synthetic` data says nothing about the real set, and every display says so.
    """

    name: str
    """The name of the dataset."""
    examples: int
    """Examples in an epoch."""
    batches: int
    """Batches in an epoch."""
    batch_size: int
    """Examples in a batch."""
    synthetic: bool
    """Whether the data are generated rather than real."""
    note: str
    """Notes for people; may be empty."""


class Layer(TypedDict):
    """A module with parameters of its own.

    A parameter that several modules share is that of the first.
    """

    name: str
    """The name of the module."""
    kind: str
    """The name of its class."""
    shapes: str
    """The shapes of its parameters."""
    parameters: int
    """How many numbers these are."""
    trainable: int
    """How many of them train."""
    bytes: int
    """The bytes that they take."""


class Stamp(TypedDict):
    """When a record was written, and how far the run was then.

    Its place is the iterations and epochs that were done.
    """

    t: float
    """Seconds since 1970, UTC."""
    it: int
    """Training iterations done."""
    ep: int
    """Epochs done."""


class Run(Stamp):
    """The first record of each attempt.

    `it` and `ep` are 0, or those of the checkpoint that it resumes from.
    """

    k: Literal["run"]
    version: int
    """The version of the log format."""
    pipeline: str
    """`run.name` of the pipeline."""
    pid: int
    """The training process."""
    host: str
    """The machine it runs on."""
    python: str
    """The version of Python."""
    torch: str
    """The version of PyTorch."""
    device: str
    """Where it computes, for people, e.g. "cpu (8 threads)"."""
    precision: str
    """The precision: "fp32", "bf16", …"""
    model: str
    """The class of the model; those of several are joined by " + "."""
    params: int
    """Parameters of all models together."""
    layers: list[Layer]
    """The layers of the models, in their order; of rank 0 alone."""
    seed: Signed
    """`run.seed` of the pipeline."""
    data: dict[str, DataInfo]
    """The data of each split."""
    limited: dict[str, int]
    """The number of batches of a split whose data the run limits."""
    max_epochs: int
    """Epochs of the whole run; 0 in the iteration-based loop, and where it has no end."""
    max_iters: int
    """Training iterations of the whole run; 0 where it has no end."""
    iters_per_epoch: int
    """Training iterations in an epoch; in the first one, where the lengths differ."""
    epoch_lengths: list[tuple[int, int]]
    """The epochs of each length, where they have different ones.

    Each has the first epoch of a length, counted from 0, and its iterations.
    """
    modes: dict[str, Mode]
    """The metrics that hooks monitor, and whether less or more of each is better."""
    resumed_from: str | None
    """The directory of the checkpoint, below `checkpoints`.

    It is null in a run that starts from scratch.
    """
    forked_from: str | None
    """The run and the checkpoint that a fork begins with, RUN:CHECKPOINT.

    It is null in any other attempt.
    """
    rank: Annotated[int, range(MAX_WORLD_SIZE)]
    """The rank of this log, of `world` processes that train together: each has one of its own."""
    world: Annotated[int, range(1, MAX_WORLD_SIZE + 1)]
    """How many processes train together."""
    strategy: Literal["", "ddp", "fsdp"]
    """How they train one model together; empty for a single process."""


class Offloaded(TypedDict, total=False):
    """The work of offloaded hooks, of a run that has any."""

    beside: dict[BindingId, list[int]]
    """The firings in the hook's thread since the frame before, by binding.

    They are [firings, total ns, longest ns], the firings that wait, and those that were dropped
    since the start.
    """


class OnDevice(TypedDict):
    """The time on the stream of an accelerator.

    It is that of training iterations that were sampled since the frame before.
    """

    iters: int
    """How many iterations were sampled."""
    ns: int
    """Their nanoseconds on the device."""
    launch_bound: int
    """The part of them that it spent with no earlier work.

    It was as slow there as the host that launched the next.
    """
    phases: dict[str, int]
    """The same by phase."""
    hooks: dict[BindingId, list[int]]
    """The firings in the hook's thread since the frame before, by binding.

    They are [firings, total ns, longest ns], the firings that wait, and those that were dropped
    since the start.
    """


class Timed(TypedDict, total=False):
    """The device time, where a run computes on an accelerator."""

    device: OnDevice
    """The device time since the frame before."""


class Checked(TypedDict, total=False):
    """The time of triggers that have said no, of a run that has any."""

    checks: dict[BindingId, int]
    """By binding: the part of its total ns in `hooks` that was no firing."""


class Frame(Stamp, Offloaded, Timed, Checked):
    """The changes since the previous frame: twice a second at most, whatever the iteration rate."""

    k: Literal["frame"]
    stage: Stage
    """The stage of the run."""
    bi: int
    """The current batch of the pass: of training, or of validation while `stage` says so."""
    bn: int
    """Batches of that pass."""
    samples: int
    """Training examples since the frame before."""
    phases: dict[str, Signed]
    """Nanoseconds by phase: "data", "forward", "backward", "optimizer", "hooks", "other"."""

    iters: list[Any]
    """The whole training iterations: [how many, total ns, longest ns, last ns, bins]."""
    hooks: dict[BindingId, list[Any]]
    """The same for each binding by its id in `plan.json`.

    It has the binding's firings since the frame that had them last.
    """
    cost: int
    """Nanoseconds that writing the log took since the frame before."""
    elapsed: float
    """Seconds since the attempt's `run` record, by a monotonic clock."""


class Rows(TypedDict, total=False):
    """Rows before the last one, whose stamp is that of the record."""

    rows: Annotated[int, range(1, MAX_SCALAR_ROWS + 1)]
    """How many rows there are; 1 if it is left out."""
    steps: Signed | list[Signed]
    """The iterations from each row to the next: a list, or one number where all are alike."""
    ms: Signed | list[Signed]
    """The milliseconds from each row to the next, likewise."""
    fp32: list[str]
    """The names whose numbers are fp32.

    Nine digits are written, and rounding to fp32 makes them exact.
    """


class Scalars(Stamp, Rows):
    """The numbers passed to `run.log`, in a row for each iteration.

    It is the iteration under way, until it is done.
    """

    k: Literal["scalars"]
    v: dict[str, Column]
    """The numbers by name.

    They are a list, one number where all rows have the same, or {row: number} where some have none.
    """


class Metrics(Stamp):
    """The outcome of one validation or test."""

    k: Literal["metrics"]
    split: Literal["val", "test"]
    """Which data they are of."""
    v: Mapping[str, float]
    """The metrics by name."""
    seconds: float
    """How long the pass took."""


class Epoch(Stamp):
    """An epoch of training ended."""

    k: Literal["epoch"]
    seconds: float
    """How long it took, validation excluded."""


class Checkpoint(Stamp):
    """A checkpoint is safe on disk; `it` and `ep` are those that it was taken at."""

    k: Literal["checkpoint"]
    path: str
    """Its directory, relative to the run directory."""
    names: list[str]
    """The names that point to it: "last", "best", …"""
    bytes: int
    """Its size."""
    ms: float
    """How long it took to write, in milliseconds."""


class Logged(Stamp):
    """Something that a hook or the task logged; `it` and `ep` are those that it was logged at."""

    name: str
    """Its name."""
    hook: str
    """The name of the hook that logged it, or "task"."""


class Image(Logged):
    """An image or a figure is safe on disk."""

    k: Literal["image"]
    path: str
    """The PNG file, relative to the run directory."""
    width: int
    """Its width in pixels."""
    height: int
    """Its height in pixels."""
    caption: str
    """A caption; may be empty."""
    figure: bool
    """Whether it is a figure that was drawn."""


class Text(Logged):
    """A text that was logged."""

    k: Literal["text"]
    text: str
    """The text."""


class Histogram(Logged):
    """The distribution of finite numbers that were logged."""

    k: Literal["histogram"]
    edges: list[float]
    """The edges of the bins, one more than there are bins."""
    counts: list[int]
    """How many numbers lie in each bin.

    Those on an edge belong to the bin above, at the last edge to that below.
    """


class Trace(Stamp):
    """A trace of iterations is safe on disk."""

    k: Literal["trace"]
    path: str
    """The file, relative to the run directory: Chrome's trace format, which Perfetto opens."""
    first: int
    """The first iteration in it, counted from 1."""
    iters: int
    """How many iterations it has."""


class Acknowledged(Stamp):
    """A command of the command log was executed or refused."""

    k: Literal["ack"]
    id: str
    """The `id` of the command."""
    cmd: str
    """The command."""
    args: list[str]
    """Its arguments."""
    sent: float
    """When it was sent, in seconds since 1970."""
    ok: bool
    """Whether it was executed; false when it was refused."""
    note: str
    """Why it was refused, or what came of it; may be empty."""


class Throttle(Stamp):
    """A change in how often a hook with a budget fires, also after a resume.

    It fires less often from here on, or more often again.
    """

    k: Literal["throttle"]
    hook: str
    """The hook."""
    every: Annotated[int, range(1, 1 << 16)]
    """It fires at every so many times that it is due; at 1 whenever it is."""
    why: str
    """The time that it has taken, or where it was so already."""


class Progress(Stamp):
    """How far a piece of work within a hook is, as `run.progress` shows it.

    It is written when the work begins and ends, and now and then while it moves.
    """

    k: Literal["progress"]
    hook: str
    """The hook that does the work."""
    name: str
    """The name of the work."""
    done: int
    """How much is done."""
    total: int
    """How much there is; 0 where that is unknown."""
    seconds: float
    """How long it has taken so far."""
    over: bool
    """Whether it has ended."""


RUNNER_SOURCE = "hookflow"
"""The source of what the runner says itself."""


class Message(Stamp):
    """A line for people."""

    k: Literal["message"]
    level: Level
    """How serious it is."""
    source: str
    """The source of the line.

    It is a hook's name, "task", "hookflow", or Python's "warnings" and "logging.NAME", each text
    once.
    """
    text: str
    """The text."""


class Error(Stamp):
    """An exception was raised, in the iteration under way; between two, the one that is done."""

    k: Literal["error"]
    hook: str
    """The hook that raised; empty when no hook did."""
    point: str
    """The point where it fired; empty when no hook raised."""
    type: str
    """The class of the exception."""
    text: str
    """Its message."""
    traceback: str
    """The traceback, as Python prints it.

    It is the message alone where no frame is the user's, as of a loss that is NaN.
    """
    at: str
    """The innermost frame in the user's own files, "file:line"; empty where there is none."""
    causes: str
    """The known causes, in lines.

    An error in a forward pass has "at FILE:LINE, layer head (Linear 6→3) was given …", and the
    batch. The exceptions that led to the error follow, the last one first: "caused by
    ValueError: …", "at FILE:LINE: …".
    """
    action: Literal["raise", "disable", "ignore"]
    """The consequence: the run ended, the hook was switched off, or nothing."""


class End(Stamp):
    """The end of an attempt; frames may follow.

    A log without it: the run is alive, or was killed.
    """

    k: Literal["end"]
    status: Status
    """How the attempt ended."""
    exit: Annotated[int, range(256)]
    """The exit code of the process."""
    reason: str
    """Why, for people; empty where there is nothing to say."""
    seconds: float
    """How long the attempt took."""


class Refused(Stamp):
    """A resume that ended before its checkpoint had been read. The run is as it was before."""

    k: Literal["refused"]
    exit: Annotated[int, range(256)]
    """The exit code of the process."""
    reason: str
    """Why, for people."""
    traceback: str
    """The traceback of the exception.

    It is empty where a mistake of the user or a signal was the reason.
    """


Media = Image | Text | Histogram
LogMessage = Message | Error | End | Refused
Record = (
    Run
    | Frame
    | Scalars
    | Metrics
    | Epoch
    | Checkpoint
    | Media
    | Trace
    | Acknowledged
    | Throttle
    | Progress
    | LogMessage
)

RECORD_KINDS = frozenset(get_args(get_type_hints(kind)["k"])[0] for kind in get_args(Record))
"""The kinds of records that this version knows."""

LATE_KINDS = ("checkpoint", "image", "histogram", "trace", "refused", "error")
"""Kinds of records that may be of another iteration than the one done.

It is an earlier one, or the one under way.
"""

TEXT_LIMIT = 64 * 1024
"""Bytes that are recorded of a string."""


def shorten_text(text: str) -> str:
    """Return a string of at most TEXT_LIMIT bytes.

    One that was cut ends in how many bytes of it are left out.
    """
    data = text.encode(errors="replace")
    if len(data) <= TEXT_LIMIT:
        return text
    kept = data[: TEXT_LIMIT - 64].decode(errors="ignore")  # the note on what was cut takes less
    return f"{kept}… [{len(data) - len(kept.encode()):,} bytes left out]"


class CommandRecord(TypedDict):
    """A line of the command log: a request to the run.

    The run answers with an `ack` of the same `id`.
    """

    id: str
    """Eight hexadecimal digits, which the answer repeats."""
    cmd: str
    """The command."""
    args: list[str]
    """Its arguments."""
    t: float
    """When it was sent, in seconds since 1970."""
    by: str
    """The user who sent it."""


def make_stamped_record(kind: str, it: int, ep: int, fields: Mapping[str, Any]) -> Record:
    """Return a record from its kind and fields, stamped with the time and a place.

    Its strings are `shortened`.
    """
    short = {
        name: shorten_text(value) if isinstance(value, str) else value
        for name, value in fields.items()
    }
    return cast("Record", {"k": kind, "t": time.time(), "it": it, "ep": ep, **short})
