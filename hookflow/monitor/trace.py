"""Traces of iterations, as a run writes them (see `hookflow.runner.logging.capture`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookflow.events.reading import read_object, read_regular
from hookflow.events.records import DEVICE, PHASES

ROUNDING = 0.01
"""Microseconds by which a span may seem to begin before the one ahead of it has ended."""


@dataclass(slots=True)
class Row:
    """The spans of one name at one place within the same span.

    `kind` is the name of a phase, "hook" or "outside". `parts` has begin and duration of each, in microseconds from the
    begin of the iteration. `device` are the microseconds that it took on an accelerator; None where there is none.
    """

    name: str
    kind: str
    depth: int
    parts: list[tuple[float, float]] = field(default_factory=list)
    device: float | None = None

    @property
    def total(self) -> float:
        return sum(duration for _, duration in self.parts)


@dataclass(slots=True)
class Traced:
    """A traced iteration, how many microseconds it took, and its spans in the order in which they began.

    `device` are its microseconds on an accelerator; None where there is none.
    """

    it: int
    micros: float
    rows: Sequence[Row]
    device: float | None = None


def read_trace(path: Path) -> list[Traced] | str:
    """Return the iterations of a trace, or why there are none: a file may hold anything."""
    try:
        events = read_object(read_regular(path))["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        tracks = [_by_iteration(event for event in spans if event.get("tid", 0) == track) for track in (0, DEVICE)]
        return [_traced(it, host, tracks[1].get(it, [])) for it, host in sorted(tracks[0].items())]
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    except (KeyError, TypeError, ValueError):
        return f"{path.name} is no trace of hookflow"


def _by_iteration(events: Iterable[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Return the events of each whole iteration, its own first, and the others as they began, an outer one first."""
    result: dict[int, list[dict[str, Any]]] = {}
    for event in sorted(events, key=lambda event: (event["name"] != "iteration", event["ts"], -event["dur"])):
        it = event["args"]["iteration"]
        if event["name"] == "iteration":
            result[it] = [event]
        elif it in result:
            result[it].append(event)
    return result


def _traced(it: int, host: list[dict[str, Any]], device: list[dict[str, Any]]) -> Traced:
    rows = _rows(host[1:], float(host[0]["ts"]))
    beside = _rows(device[1:], float(device[0]["ts"])) if device else []
    micros = {row.name: row.total for row in beside}  # by name alone: work that waits is not nested as its launches are
    for row in rows:
        row.device = micros.get(row.name)
    return Traced(int(it), float(host[0]["dur"]), rows, float(device[0]["dur"]) if device else None)


def _rows(events: list[dict[str, Any]], start: float) -> list[Row]:
    rows: dict[tuple[str, ...], Row] = {}
    around: list[tuple[float, tuple[str, ...]]] = []  # the spans that are open: end, and key
    for event in events:
        begin, duration = float(event["ts"]) - start, float(event["dur"])
        while around and around[-1][0] <= begin + ROUNDING:
            around.pop()
        name, place = str(event["name"]), str(event["cat"])
        kind = {"phase": name if name in PHASES else "other", "outside": "outside"}.get(place, "hook")
        label = f"{name} @ {place}" if kind == "hook" else name
        key = (*(around[-1][1] if around else ()), label)
        rows.setdefault(key, Row(label, kind, len(around))).parts.append((begin, duration))
        around.append((begin + duration, key))
    return list(rows.values())
