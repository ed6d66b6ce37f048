"""What hooks have logged to be looked at: images, texts and histograms, by name, as far back as they are kept."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, get_args

from hookflow.events.records import Histogram, Image, Text
from hookflow.excerpt import ESCAPE
from hookflow.monitor.formatting import many, number

Logged = Image | Text | Histogram
LoggedKind = Literal["image", "text", "histogram"]
Key = tuple[LoggedKind, str]
"""The kind of a record, and its name."""

KINDS: tuple[LoggedKind, ...] = get_args(LoggedKind)
KEPT = 100
"""How many of a name are kept."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One of them; `number` counts all from 0."""

    number: int
    record: Logged


class Gallery:
    """The newest of each name."""

    def __init__(self) -> None:
        self._of: dict[Key, deque[Shown]] = {}
        self._next = 0

    def add(self, record: Logged) -> Shown:
        shown = Shown(self._next, record)
        self._next += 1
        self._of.setdefault((record["k"], record["name"]), deque(maxlen=KEPT)).append(shown)
        return shown

    def forget_after(self, it: int) -> None:
        """Forget what a resumed run will log again."""
        for key, held in self._of.items():
            self._of[key] = deque((shown for shown in held if shown.record["it"] <= it), KEPT)
        self._of = {key: held for key, held in self._of.items() if held}

    @property
    def keys(self) -> list[Key]:
        """Return what there is: images, then texts, then histograms, in the order in which the names came."""
        return sorted(self._of, key=lambda key: KINDS.index(key[0]))

    def of(self, key: Key) -> list[Shown]:
        """Return what is kept of a name, the oldest first."""
        return list(self._of.get(key, ()))

    def find(self, number: int) -> Shown | None:
        """Return the one of that number; None when it is no longer kept."""
        return next((shown for held in self._of.values() for shown in held if shown.number == number), None)


def extent(record: Logged) -> str:
    """Return how much was logged."""
    match record["k"]:
        case "image":
            return f"{record['width']}×{record['height']}"
        case "text":
            return f"{len(record['text'])} characters"
    return f"{many(sum(record['counts']))} values"


def brief(record: Logged) -> str:
    """Return in a line what was logged."""
    match record["k"]:
        case "image":
            caption = f"  {record['caption']}" if record["caption"] else ""
            return f'"{record["name"]}" {extent(record)} → {record["path"]}{caption}'
        case "text":
            words = " ".join(ESCAPE.sub("", record["text"][:1000]).split())
            return f'"{record["name"]}": {words[:60]}{"…" * (len(words) > 60)}'
    edges = record["edges"]
    return f'"{record["name"]}": {extent(record)}, {number(edges[0])} … {number(edges[-1])}'
