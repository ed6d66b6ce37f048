"""Why a run ended: what raised and where, or who wanted it to stop."""

from __future__ import annotations

from pathlib import Path

from hookflow.events.records import Error
from hookflow.events.rundir import short
from hookflow.monitor.formatting import one_line
from hookflow.monitor.state import RunState

CAUSES = 6
"""How many lines on the causes of an error are shown; its traceback has all."""


def end_reason(state: RunState) -> list[str]:
    """Return a sentence or two; nothing for a run that goes on, is lost, or did all its iterations.

    Of several ranks, the error that came first ended the run: the others', and the signal that ended them, follow.
    """
    if state.end is None:
        return _failure(state)
    status, reason = state.end["status"], one_line(state.end["reason"])
    if status == "failed" or state.ranks.first_failure:
        return _failure(state) or [f"failed: {reason}"]
    if status != "finished":
        return [reason if reason.startswith(status) else f"{status}: {reason}"] if reason else []
    return [f"stopped early: {reason}"] if reason and state.it < state.total_iters else []


def _failure(state: RunState) -> list[str]:
    """Return what raised, and where; nothing when the logs have no error that ended this attempt."""
    first = state.ranks.first_failure
    if first is None:
        return []
    rank, error = first
    place = f"rank {rank}, " if rank else ""
    place += f'hook "{error["hook"]}" at {error["point"]}, ' if error["hook"] else ""
    lines = [f"failed: {place}iteration {error['it']}: {error['type']}: {one_line(error['text'])}".removesuffix(": ")]
    causes = error["causes"].splitlines()[:CAUSES]
    return [*lines, *(f"at {place}" for place in [raised_at(error)] if place), *causes]


def raised_at(error: Error) -> str:
    """Return where in the user's own files it was raised, as people read it; nothing where that is not known."""
    file, colon, line = error["at"].rpartition(":")
    return f"{short(Path(file))}:{line}" if colon else ""
