"""Traces of iterations, as a run writes them (see `hookflow.runner.logging.capture`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookflow.events.reading import read_object, read_regular
from hookflow.events.records import PHASES

ROUNDING = 0.01
"""Microseconds by which a span may seem to begin before the one ahead of it has ended."""


@dataclass(slots=True)
class Row:
    """The spans of one name at one place within the same span.

    `kind` is the name of a phase, "hook" or "outside". `parts` has begin and duration of each, in microseconds from the
    begin of the iteration.
    """

    name: str
    kind: str
    depth: int
    parts: list[tuple[float, float]] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(duration for _, duration in self.parts)


@dataclass(slots=True)
class Traced:
    """A traced iteration, how many microseconds it took, and its spans in the order in which they began."""

    it: int
    micros: float
    rows: Sequence[Row]


def read_trace(path: Path) -> list[Traced] | str:
    """Return the iterations of a trace, or why there are none: a file may hold anything."""
    try:
        events = read_object(read_regular(path))["traceEvents"]
        spans = [(event["args"]["iteration"], float(event["ts"]), event) for event in events if event["ph"] == "X"]
        whole = {it: (ts, float(event["dur"])) for it, ts, event in spans if event["name"] == "iteration"}
        mine: dict[int, list[dict[str, Any]]] = {it: [] for it in whole}
        for it, _, event in sorted(spans, key=lambda span: (span[1], -span[2]["dur"])):
            if it in whole and event["name"] != "iteration":
                mine[it].append(event)
        return [Traced(int(it), whole[it][1], _rows(mine[it], whole[it][0])) for it in sorted(whole)]
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    except (KeyError, TypeError, ValueError):
        return f"{path.name} is no trace of hookflow"


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
