"""The lines of the log: events of the run, and what the training printed, in one list by time."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hookflow.monitor.journal import KIND_GLYPHS, Entry
from hookflow.monitor.printed_output import SEVERITY_LEVELS, PrintedLine, find_severity
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.widgets.log_tail import ENTRY_STYLES
from hookflow.numbers import format_clock

EVERYTHING, EVENTS, PRINTED = "", "events", "printed"
"""Choices of the source that are no source themselves: all lines, all events, what was printed."""

LineKey = tuple[bool, int]
"""Whether a line was printed, and its number among those of its kind."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log; of an event with its entry.

    `time` is None where it is not known: a line that was printed before anybody looked. `level` is
    a place in `SEVERITY_LEVELS`.
    """

    key: LineKey
    time: float | None
    level: int
    sign: str
    style: str
    source: str
    text: str
    entry: Entry | None = None

    @property
    def clock(self) -> str:
        """The time of day; empty where it is not known."""
        if self.time is None:
            return ""
        return format_clock(self.time)


def line_of_entry(entry: Entry) -> LogLine:
    """Return the line of an event."""
    level = 0
    if entry.kind in SEVERITY_LEVELS:
        level = SEVERITY_LEVELS.index(entry.kind)
    style = ENTRY_STYLES.get(entry.kind, "")
    return LogLine(
        (False, entry.number), entry.t, level, entry.glyph, style, entry.source, entry.text, entry
    )


def line_of_output(printed: PrintedLine) -> LogLine:
    """Return the line of something that was printed; its words tell how serious it is."""
    level = find_severity(printed.text)
    sign = " "
    style = ""
    if level:
        if level == 2:
            sign = KIND_GLYPHS["error"]
        else:
            sign = KIND_GLYPHS["warn"]
        style = SEVERITY_LEVELS[level]
    time = None
    if printed.is_timed:
        time = printed.seen
    return LogLine((True, printed.number), time, level, sign, style, PRINTED, printed.text)


class LogMerger:
    """Merges the events of a run and what its training printed.

    Lines that were printed before anybody looked have no time; they stand where the file was last
    written. Lines are made once, as there may be thousands.
    """

    def __init__(self) -> None:
        self._of_entries: dict[int, LogLine] = {}
        self._of_output: dict[int, LogLine] = {}
        self._printed: Sequence[PrintedLine] = ()

    def merge(self, store: RunStore) -> list[LogLine]:
        """Return all lines, the newest last.

        Printed lines stay as they are while the view is frozen.
        """
        events = self._make_event_lines(store.state.journal)
        if store.is_replay:
            self._printed = ()  # a recording does not tell when a line was printed
        elif not store.is_frozen:
            self._printed = [*store.printed.lines]
        lines = [*self._output(), *events]
        lines.sort(key=lambda timed: timed[0])  # both are almost in order, so that this is quick
        result = [line for _, line in lines]
        if store.printed.unfinished and not store.is_replay and not store.is_frozen:
            unfinished = PrintedLine(len(self._printed), 0.0, False, store.printed.unfinished)
            if self._printed:
                unfinished = unfinished._replace(number=self._printed[-1].number + 1)
            result.append(line_of_output(unfinished))
        return result

    def _make_event_lines(self, journal: Iterable[Entry]) -> list[tuple[float, LogLine]]:
        """Return the line of each entry with its place in time.

        An entry may have changed, as more came with it.
        """
        known = self._of_entries
        self._of_entries = {}
        result = []
        latest = 0.0
        for entry in journal:
            line = known.get(entry.number)
            if line is None or line.entry is not entry:
                line = line_of_entry(entry)
            self._of_entries[entry.number] = line
            latest = max(latest, entry.t)  # entries stay in the order of the journal
            result.append((latest, line))
        return result

    def _output(self) -> list[tuple[float, LogLine]]:
        known = self._of_output
        self._of_output = {}
        result = []
        for printed in self._printed:
            line = known.get(printed.number) or line_of_output(printed)
            self._of_output[printed.number] = line
            result.append((printed.seen, line))
        return result


def make_word_filter(text: str) -> Callable[[str], bool]:
    """Return what says whether a text has all words of a filter; a word may be a glob.

    Only where a word has capital letters do these matter.
    """
    patterns = [_pattern_of(word) for word in text.split()]

    def matches(line: str) -> bool:
        return all(pattern.search(line) for pattern in patterns)

    return matches


def _pattern_of(word: str) -> re.Pattern[str]:
    if word == word.lower():
        flags = re.IGNORECASE
    else:
        flags = re.NOFLAG
    pattern = re.escape(word)
    pattern = pattern.replace(r"\*", r"\S*").replace(r"\?", r"\S")
    return re.compile(pattern, flags)


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which lines are shown: those with all these words, from a level on, of a source."""

    words: str = ""
    level: int = 0
    source: str = EVERYTHING

    def select(self, lines: Iterable[LogLine]) -> list[LogLine]:
        """Return the lines that pass."""
        has_words = make_word_filter(self.words)
        return [
            line
            for line in lines
            if line.level >= self.level
            and self._has_source(line)
            and has_words(f"{line.source} {line.text}")
        ]

    def _has_source(self, line: LogLine) -> bool:
        if self.source == EVERYTHING:
            return True
        if self.source == EVENTS:
            return line.entry is not None
        return line.source == self.source


def list_sources(lines: Iterable[LogLine]) -> list[str]:
    """Return the sources of lines that can be chosen, in the order of the choice."""
    own = dict.fromkeys(line.source for line in lines if line.entry is not None)
    return [EVERYTHING, EVENTS, PRINTED, *own]
