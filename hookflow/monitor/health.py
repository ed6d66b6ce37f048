"""The condition of a run, from its log and the state of its process.

It is what is wrong, and why the run has ended.
"""

import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from hookflow.events.now import NO_BINDING
from hookflow.events.process_life import read_start_time
from hookflow.events.records import Error
from hookflow.events.rundir import Life, RunDir, run_argument, short
from hookflow.graph.plan import Plan
from hookflow.monitor.ranks import REMOTE_DELAY, format_ranks
from hookflow.monitor.state import RunState
from hookflow.numbers import format_lasting, one_line
from hookflow.text import CONDITION_GLYPHS

MAX_CAUSES = 6
"""Lines on the causes of an error, at most; its traceback has all."""


def end_reason(state: RunState) -> list[str]:
    """Return why a run has ended, in a sentence or two.

    There is none for a run that goes on, is lost, or did all its iterations.
    """
    # The errors of other ranks, and the signal that ended them, follow from the first failure.
    if state.ranks.first_failure:
        return _failure_lines(state, *state.ranks.first_failure)
    if state.end is None:
        return []
    reason = one_line(state.end["reason"])
    has_failed = state.end["status"] == "failed"
    if not reason and not has_failed:
        return []
    if state.outcome == "finished":
        has_all_iterations = state.it >= state.total_iters
        if has_all_iterations:
            return []
        return [f"stopped early: {reason}"]
    if reason.startswith(state.outcome) and not has_failed:
        return [reason]
    return [f"{state.outcome}: {reason}"]


def _failure_lines(state: RunState, rank: int, error: Error) -> list[str]:
    """Return the error of a rank that has ended the run, where it was raised, and its causes."""
    places = []
    if rank:
        places = [f"rank {rank}"]
    places += describe_place(error)
    parts = [_failure(state), ", ".join(places), error["type"], one_line(error["text"])]
    lines = [": ".join(part for part in parts if part)]
    raised = find_raising_line(error)
    names_place = error["causes"].startswith(f"at {raised}, ")  # with the layer of the network
    if raised and not names_place:
        lines.append(f"at {raised}")
    return lines + error["causes"].splitlines()[:MAX_CAUSES]


def _failure(state: RunState) -> Literal["failed", "refused"]:
    # The outcome is that of rank 0, which may have ended well where another rank has failed.
    return "refused" if state.outcome == "refused" else "failed"


def describe_place(error: Error) -> Iterator[str]:
    """Yield the hook that raised, and the iteration where the text does not have it."""
    if error["hook"]:
        yield f'hook "{error["hook"]}" at {error["point"]}'
    if error["it"] and not re.search(rf"\biteration {error['it']}\b", error["text"]):
        yield f"iteration {error['it']}"


def find_raising_line(error: Error) -> str:
    """Return where in the user's own files an error was raised, as people read it.

    The text is empty where that is not known.
    """
    file, colon, line = error["at"].rpartition(":")
    if colon:
        return f"{short(Path(file))}:{line}"
    return ""


Condition = Literal[
    "starting",
    "reading",
    "running",
    "paused",
    "stalled",
    "lost",
    "unreadable",
    "finished",
    "stopped",
    "interrupted",
    "failed",
    "refused",
]

ALIVE_CONDITIONS: tuple[Condition, ...] = ("running", "starting", "paused", "stalled")
ENDED_CONDITIONS: tuple[Condition, ...] = (
    "lost",
    "finished",
    "stopped",
    "interrupted",
    "failed",
    "refused",
    "unreadable",
)
BAD_CONDITIONS: tuple[Condition, ...] = ("stalled", "lost", "failed", "refused", "unreadable")

PATIENCE, PATIENCE_AT_FIRST = 10.0, 120.0
"""Seconds without any progress before a run counts as stalled.

The first iteration may compile the model.
"""

FETCHING_FRAME = re.compile(
    r"epoch \(.*\bhookflow/runner/data/\w+\.py:|__next__ \(.*\btorch/utils/data/dataloader\.py:"
)
"""The frame of a stack below which a batch is fetched: that of a source, or of PyTorch's loader."""


@dataclass(frozen=True, slots=True)
class Health:
    """The condition in a word, and in `sentence` what is wrong.

    The sentence is empty when nothing is.
    """

    condition: Condition
    sentence: str = ""

    @property
    def glyph(self) -> str:
        return CONDITION_GLYPHS[self.condition]

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.condition in ENDED_CONDITIONS

    @property
    def bad(self) -> bool:
        return self.condition in BAD_CONDITIONS

    @property
    def occasion(self) -> Literal["end", "failure", "stall"] | None:
        """The occasion of a notification."""
        if self.condition == "stalled":
            return "stall"
        if not self.over:
            return None
        if self.bad:
            return "failure"
        return "end"


def assess_health(
    state: RunState,
    life: Life,
    clock: float,
    plan: Plan | None = None,
    inside: Mapping[int, tuple[int, float]] = MappingProxyType({}),
    suspicion: str = "",
    moved: RunDir | None = None,
    stacks: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> Health:
    """Judge a run. `clock` is the time now, `inside` what `read_training_places` has returned.

    `suspicion` is what may have ended a process that is gone, and `moved` the run where its
    directory is now. `stacks` are those of the training threads, where they were taken.
    """
    end = state.end
    is_over = end is not None or life == "gone"
    has_failed = state.ranks.first_failure is not None or (
        end is not None and end["status"] == "failed"
    )
    if is_over and has_failed:
        return Health(_failure(state), end_reason(state)[0])
    if end is not None:
        return Health(end["status"], next(iter(end_reason(state)), ""))
    if life == "missing":
        return Health("lost", describe_missing_directory(state, moved))
    if life == "gone":
        why = "killed, out of disk space, or the machine went down"
        if suspicion:
            why += f"; now {suspicion}"
        return Health("lost", f"the process is gone and left no end record: {why}")
    if not state.run:
        return Health("starting")
    if state.stage == "paused":
        return Health("paused")
    silent_seconds = clock - state.moved
    if silent_seconds > _compute_patience(state, life):
        return Health("stalled", _describe_stall(state, silent_seconds, plan, inside, stacks))
    return Health("starting" if state.stage == "start" else "running")


def _compute_patience(state: RunState, life: Life) -> float:
    """Return after how many seconds without progress a run counts as stalled."""
    patience = PATIENCE_AT_FIRST
    if state.iterating:
        long_iteration = state.first.minute.percentile(0.95) / 1e9
        patience = max(PATIENCE, 5 * long_iteration)
    if life == "remote":
        patience += REMOTE_DELAY
    return patience


def judge(run: RunDir, state: RunState, clock: float) -> Health:
    """Judge a run by the system's answer at this moment, and by its log."""
    life = run.life()
    return assess_health(state, life, clock, suspicion=run.trouble() if life == "gone" else "")


def describe_missing_directory(state: RunState, moved: RunDir | None) -> str:
    """Return what has become of a run whose directory is not in its place, as far as is known."""
    goes_on = ""
    if state.run.get("host") == socket.gethostname():
        pid = state.run.get("pid", 0)
        process_began = read_start_time(pid)
        is_alive = process_began is not None and process_began <= state.run["t"] + 1
        goes_on = "; its process is gone"
        if is_alive:
            goes_on = f"; the training goes on (pid {pid})"
    if moved is None:
        return f"its run directory is gone: it was moved or deleted{goes_on}"
    return (
        f"its run directory was moved to {short(moved.path)}{goes_on}: hookflow watch"
        f" {run_argument(moved)}"
    )


def _describe_stall(
    state: RunState,
    seconds: float,
    plan: Plan | None,
    inside: Mapping[int, tuple[int, float]],
    stacks: Mapping[int, Sequence[str]],
) -> str:
    """Return for how long and where it hangs, as far as is known.

    Where there are several ranks, the text names those that hold up the others.
    """
    nothing = f"no progress for {format_lasting(seconds)}"
    if state.ranks.first_failure:
        return f"{nothing}; {end_reason(state)[0]}"
    silent = state.ranks.silent
    if silent:
        number = max(silent, key=lambda rank: silent[rank])
        return f"{nothing}, nothing from rank {number} for {format_lasting(silent[number])}"
    if plan is None or not inside:
        return nothing
    stuck = _find_stuck_bindings(plan, inside)
    if not stuck:
        return f"{nothing}, {_describe_place_outside_hooks(state, stacks)}"
    parts = []
    for binding, ranks in stuck.items():
        since = max(inside[rank][1] for rank in ranks)
        owner = ""
        if state.ranks.world > 1:
            owner = f"{format_ranks(ranks)}: "
        parts.append(f"{owner}{describe_training_place(plan, binding, since)}")
    return ", ".join(parts)


def _describe_place_outside_hooks(state: RunState, stacks: Mapping[int, Sequence[str]]) -> str:
    """Return what a training that hangs in no hook waits for, as far as is known."""
    if state.stage == "save":
        return "waiting for the disk"
    fetching_ranks = [rank for rank, frames in sorted(stacks.items()) if is_fetching(frames)]
    if not fetching_ranks:
        return "not inside a hook"
    if state.ranks.world > 1:
        return f"{format_ranks(fetching_ranks)}: waiting for data"
    return "waiting for data"


def is_fetching(frames: Iterable[str]) -> bool:
    """Return whether a training thread with this stack waits for a batch."""
    return any(FETCHING_FRAME.match(frame) for frame in frames)


def describe_training_place(
    plan: Plan, binding: int, seconds: float, frames: Sequence[str] = ()
) -> str:
    """Return in words how long a training thread has been inside a binding.

    An id that the plan lacks is no hook. Then the `frames` of its stack may say what it waits for.
    """
    if 0 <= binding < len(plan.bindings):
        bound = plan.bindings[binding]
        return f'{format_lasting(seconds)} inside "{bound.hook}" at {bound.point}'
    if is_fetching(frames):
        return "waiting for data"
    return "not inside a hook"


def _find_stuck_bindings(
    plan: Plan, inside: Mapping[int, tuple[int, float]]
) -> dict[int, list[int]]:
    """Return the bindings that fewest ranks are inside of, with these ranks.

    Most ranks are where they wait for the others.
    """
    stuck: dict[int, list[int]] = {}
    for rank, (binding, _) in sorted(inside.items()):
        if NO_BINDING < binding < len(plan.bindings):
            stuck.setdefault(binding, []).append(rank)
    fewest = min(map(len, stuck.values()), default=0)
    return {binding: ranks for binding, ranks in stuck.items() if len(ranks) == fewest}


def blocking_ranks(
    silent: Iterable[int], plan: Plan, inside: Mapping[int, tuple[int, float]]
) -> list[int]:
    """Return the ranks on this machine that hold up a stalled training.

    These are the silent ones, else the stuck ones, else all.
    """
    silent_here = [rank for rank in silent if rank in inside]
    if silent_here:
        return silent_here
    stuck = [rank for ranks in _find_stuck_bindings(plan, inside).values() for rank in ranks]
    return stuck or sorted(inside)
