"""The page Log: events of the run and what the training printed, in one list by time."""

from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from hookflow.monitor.bindings import key
from hookflow.monitor.log_lines import (
    EVENTS,
    EVERYTHING,
    PRINTED,
    LogFilter,
    LogLine,
    LogMerger,
    list_sources,
)
from hookflow.monitor.printed_output import SEVERITY_LEVELS
from hookflow.monitor.screens.event_details import EventDetailsScreen
from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.widgets.log_view import LogView

LEVEL_TITLES = ("all levels", "warnings and errors", "errors")
"""The name of the choice of a level, by its place."""

SOURCE_TITLES = {EVERYTHING: "events and output", EVENTS: "events", PRINTED: "output"}
"""The name of the choice of a source, where it is more than its name."""


class LogScreen(PageScreen):
    """All lines of the log, filtered by words, level and source; the newest is followed."""

    page_name: ClassVar[str] = "log"
    can_filter: ClassVar[bool] = True
    refresh_seconds: ClassVar[float] = 0.5
    help_text: ClassVar[str] = (
        "Events of the run and what the training printed, by time. A printed line has the time at"
        " which it was seen; what was printed before anybody looked has none.\n\nThe newest line is"
        " followed while the cursor is there; `end` goes there.\n\nSigns: · note, ▲ warning, ✗"
        " error, ◇ metrics, ◆ checkpoint, ◉ command, ▣ image, ¶ text, ▟ histogram."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "enter",
            "open_line",
            "all of the line at the cursor",
            "open-line",
            footer="open",
            display="enter",
        ),
        key(
            "L",
            "next_level",
            "all lines, or warnings and errors, or errors",
            "level",
            footer="level",
        ),
        key(
            "S",
            "next_source",
            "events and output, one of them, or one source",
            "source",
            footer="source",
        ),
        key("end", "follow", "to the newest line, and follow it", "follow", footer="newest"),
    ]

    DEFAULT_CSS = """
    LogScreen LogView {
        border: round $border; border-title-color: $text-muted; border-subtitle-color: $text-muted;
    }
    LogScreen LogView:focus { border: round $primary; }
    LogScreen.-low LogView { border: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._merger = LogMerger()
        self._lines: list[LogLine] = []
        self._filter = LogFilter()

    @property
    def log_view(self) -> LogView:
        return self.query_one(LogView)

    def compose_body(self) -> ComposeResult:
        yield LogView()

    def show_run(self) -> None:
        self._lines = self._merger.merge(self.store)
        self._show_lines()
        wanted = self.dashboard.choices.log_entry
        if wanted is not None:
            self.dashboard.choices.log_entry = None
            self._go_to_entry(wanted)

    def _go_to_entry(self, number: int) -> None:
        """Move the cursor to an event; a filter that hides it is given up."""
        if not self.log_view.show_entry(number):
            self._filter = LogFilter()
            self.clear_filter()
            self._show_lines()
            self.log_view.show_entry(number)

    def filter_changed(self, text: str) -> None:
        self._change_filter(words=text)

    def _change_filter(self, **changes: object) -> None:
        self._filter = replace(self._filter, **changes)  # type: ignore[arg-type]
        self._show_lines()

    def _show_lines(self) -> None:
        view = self.log_view
        view.reason_for_nothing = self._explain_emptiness()
        view.show_lines(self._filter.select(self._lines))
        self._show_captions()

    def _explain_emptiness(self) -> str:
        if self._filter.source == PRINTED and self.store.is_replay:
            return "a replay has no output: when a line was printed is not recorded"
        if self._filter == LogFilter():
            return "nothing has happened yet"
        if self._filter == LogFilter(source=PRINTED):
            return "nothing was printed so far"
        return "no such line: esc clears the filter, L the level, S the source"

    def _show_captions(self) -> None:
        view = self.log_view
        source = SOURCE_TITLES.get(self._filter.source, f"source {self._filter.source}")
        title = f"log: {source}, {LEVEL_TITLES[self._filter.level]}"
        if self._filter.words:
            title += f", with {self._filter.words}"
        view.border_title = title.replace("[", "\\[")
        view.border_subtitle = view.caption

    def on_log_view_cursor_moved(self) -> None:
        self._show_captions()

    def on_log_view_line_opened(self, event: LogView.LineOpened) -> None:
        self._open(event.line)

    def action_open_line(self) -> None:
        self.log_view.action_open_line()

    def _open(self, line: LogLine) -> None:
        """Open all of a line: of something that was logged to be looked at, the page Media."""
        entry = line.entry
        if (
            entry is not None
            and entry.shows is not None
            and self.store.state.gallery.find(entry.shows)
        ):
            self.dashboard.choices.media_number = entry.shows
            self.dashboard.show_page("media")
        else:
            lines = self.log_view.lines
            self.app.push_screen(EventDetailsScreen(lines, self.log_view.cursor))

    def action_next_level(self) -> None:
        self._change_filter(level=(self._filter.level + 1) % len(SEVERITY_LEVELS))

    def action_next_source(self) -> None:
        known = list_sources(self._lines)
        if self._filter.source in known:
            place = known.index(self._filter.source)
        else:
            place = -1
        self._change_filter(source=known[(place + 1) % len(known)])

    def action_follow(self) -> None:
        self.log_view.action_go_to_last()

    def text_of_row(self) -> str:
        line = self.log_view.picked_line
        if line is None:
            return ""
        return f"{line.clock} {line.sign} {line.source}  {line.text}".strip()
