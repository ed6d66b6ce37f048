"""The journal of a run: troubles, checkpoints, texts, images and histograms."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import Any, Literal, NamedTuple, get_args

from hookflow.events.records import Media
from hookflow.numbers import format_count, format_many, number
from hookflow.text import ESCAPE_SEQUENCE

Kind = Literal[
    "info", "warn", "error", "checkpoint", "command", "metrics", "image", "text", "histogram"
]

KIND_GLYPHS: dict[Kind, str] = dict(zip(get_args(Kind), "·▲✗◆◉◇▣¶▟", strict=True))

ERROR_ACTION_LABELS = {"raise": "ends the run", "disable": "hook switched off", "ignore": "ignored"}
"""The consequences of an error, in words."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the journal.

    `number` counts all entries of the run from 0. `detail` is a traceback or whatever needs more
    than a line.

    `own`: no record of rank 0 has it, but another rank or the monitor itself. `it` is the iteration
    of the record of rank 0. `shows`: the number of the item in the gallery; `more`: how many more
    came with it. `ends_run`: it is the failure that ends the run.
    """

    number: int
    t: float
    kind: Kind
    source: str
    text: str
    detail: str = ""
    own: bool = False
    it: int | None = None
    shows: int | None = None
    more: int = 0
    ends_run: bool = False

    @property
    def glyph(self) -> str:
        return KIND_GLYPHS.get(self.kind, "·")  # a log of another version may know more levels

    @property
    def trouble(self) -> bool:
        return self.kind in ("warn", "error")


class RepeatedEntry(NamedTuple):
    """Warnings or errors of one text.

    It has the first entry, the iteration of the last one, and how many there were.
    """

    first: Entry
    it: int | None
    times: int


class Moment(NamedTuple):
    """Something on the timeline of a recording: `kind` is that of an entry, "run" or "epoch"."""

    t: float
    kind: str


class Timeline(NamedTuple):
    """A recording.

    It has the places to go to, and when each attempt began and ended, in seconds since 1970.
    """

    moments: Sequence[Moment]
    attempts: Sequence[tuple[float, float]]

    def place(self, t: float) -> float:
        """Return the seconds of the attempts up to a moment.

        The time between them has no length.
        """
        passed = 0.0
        for began, ended in self.attempts:
            passed += min(max(t - began, 0.0), ended - began)
        return passed


class Journal:
    """The last entries, and the last warnings and errors.

    The journal counts all of these, and has each text once.
    """

    LIMIT = 2000

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=self.LIMIT)
        self._troubles: deque[Entry] = deque(maxlen=self.LIMIT)
        self._next = 0
        self.warnings = 0
        self.errors = 0
        self.repeated: dict[tuple[Kind, str, str], RepeatedEntry] = {}
        """The first LIMIT texts."""

    def add(
        self, t: float, kind: Kind, source: str, text: str, detail: str = "", **facts: Any
    ) -> Entry:
        """Add an entry; `facts` are its other fields."""
        entry = Entry(self._next, t, kind, source, text, detail, **facts)
        self._entries.append(entry)
        self._next += 1
        if entry.trouble:
            self._add_trouble(entry)
        return entry

    def _add_trouble(self, entry: Entry) -> None:
        if entry.kind == "warn":
            self.warnings += 1
        else:
            self.errors += 1
        self._troubles.append(entry)
        key = (entry.kind, entry.source, entry.text)
        before = self.repeated.get(key)
        if before is not None:
            self.repeated[key] = RepeatedEntry(before.first, entry.it, before.times + 1)
        elif len(self.repeated) < self.LIMIT:
            self.repeated[key] = RepeatedEntry(entry, entry.it, 1)

    def add_shown(self, t: float, kind: Kind, source: str, text: str, it: int, shows: int) -> None:
        """Add something to look at.

        The logs of one hook, kind and iteration are one entry: there may be many.
        """
        last = None
        if self._entries:
            last = self._entries[-1]
        if last is None or (last.kind, last.source, last.it) != (kind, source, it):
            self.add(t, kind, source, text, it=it, shows=shows)
            return
        first = last.text.removesuffix(f", and {last.more} more")
        more = last.more + 1
        self._entries[-1] = replace(last, text=f"{first}, and {more} more", more=more)

    def __iter__(self) -> Iterator[Entry]:
        """Yield the last LIMIT entries, and before them the warnings and errors that are older."""
        first = 0
        if self._entries:
            first = self._entries[0].number
        yield from takewhile(lambda entry: entry.number < first, self._troubles)
        yield from self._entries

    def since(self, number: int) -> list[Entry]:
        """Return the entries from a number on, as far as they are still held."""
        newest_first = takewhile(lambda entry: entry.number >= number, reversed(self._entries))
        return list(newest_first)[::-1]


LoggedKind = Literal["image", "text", "histogram"]
Key = tuple[LoggedKind, str]
"""The kind of a record, and its name."""

LOGGED_KINDS: tuple[LoggedKind, ...] = get_args(LoggedKind)
MAX_KEPT_ENTRIES = 100
"""How many of a name are kept."""


@dataclass(frozen=True, slots=True)
class MediaItem:
    """An image, a text or a histogram; `number` counts all from 0."""

    number: int
    record: Media


class MediaGallery:
    """The newest images, texts and histograms of each name."""

    def __init__(self) -> None:
        self._of: dict[Key, deque[MediaItem]] = {}
        self._next = 0

    def add(self, record: Media) -> MediaItem:
        shown = MediaItem(self._next, record)
        self._next += 1
        self._of.setdefault((record["k"], record["name"]), deque(maxlen=MAX_KEPT_ENTRIES)).append(
            shown
        )
        return shown

    def forget_after(self, it: int) -> None:
        """Forget what a resumed run will log again."""
        for key, held in list(self._of.items()):
            kept = [shown for shown in held if shown.record["it"] <= it]
            if kept:
                self._of[key] = deque(kept, MAX_KEPT_ENTRIES)
            else:
                del self._of[key]

    @property
    def keys(self) -> list[Key]:
        """Images, then texts, then histograms, in the order in which the names came."""
        return sorted(self._of, key=lambda key: LOGGED_KINDS.index(key[0]))

    def of(self, key: Key) -> list[MediaItem]:
        """Return what is kept of a name, the oldest first."""
        return list(self._of.get(key, ()))

    def find(self, number: int) -> MediaItem | None:
        """Return the one of that number; None when it is no longer kept."""
        for shown in chain.from_iterable(self._of.values()):
            if shown.number == number:
                return shown
        return None


def describe_extent(record: Media) -> str:
    """Return how much was logged."""
    match record["k"]:
        case "image":
            return f"{record['width']}×{record['height']}"
        case "text":
            return format_count(len(record["text"]), "character")
    return f"{format_many(sum(record['counts']))} values"


def describe_briefly(record: Media) -> str:
    """Return in a line what was logged."""
    match record["k"]:
        case "image":
            caption = ""
            if record["caption"]:
                caption = f"  {record['caption']}"
            return f'"{record["name"]}" {describe_extent(record)} → {record["path"]}{caption}'
        case "text":
            words = " ".join(ESCAPE_SEQUENCE.sub("", record["text"][:1000]).split())
            if len(words) > 60:
                words = f"{words[:60]}…"
            return f'"{record["name"]}": {words}'
    edges = record["edges"]
    return (
        f'"{record["name"]}": {describe_extent(record)}, {number(edges[0])} … {number(edges[-1])}'
    )
