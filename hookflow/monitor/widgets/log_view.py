"""A long list of lines with a cursor, which follows the newest line while the cursor is there."""

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from hookflow.monitor.log_lines import LogLine
from hookflow.monitor.style import Part, row
from hookflow.monitor.widgets.strip_view import make_selectable
from hookflow.numbers import format_count
from hookflow.text import cut, fit, fit_name

FULL_CLOCK_WIDTH = 56
"""Cells from which on there is room for the seconds of the time."""

LEVEL_STYLES = ("", "warn", "error")
"""The style of the text, by level."""


class LogView(ScrollView, can_focus=True):
    """Draws only the rows that are seen, so that thousands of lines stay quick."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "move_page(-1)", "a page up", show=False),
        Binding("pagedown", "move_page(1)", "a page down", show=False),
        Binding("home", "go_to_first", "to the oldest", show=False),
        Binding("end", "go_to_last", "to the newest, and follow it", show=False),
    ]

    DEFAULT_CSS = """
    LogView {
        height: 1fr; width: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1;
    }
    """

    cursor: reactive[int] = reactive(0)

    class LineOpened(Message):
        """The user wants to see all of a line."""

        def __init__(self, line: LogLine) -> None:
            super().__init__()
            self.line = line

    class CursorMoved(Message):
        """The cursor is at another line, or there are others below it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: Sequence[LogLine] = ()
        self.reason_for_nothing = "nothing has happened yet"

    # The view

    def show_lines(self, lines: Sequence[LogLine]) -> None:
        """Show other lines; the cursor stays at its line, or follows the newest."""
        if lines == self.lines:
            return
        is_following = self.is_following
        picked = self.picked_line
        before = self.cursor
        self.lines = lines
        self.virtual_size = Size(self.content_size.width, len(lines))
        if is_following or picked is None:
            self.cursor = max(len(lines) - 1, 0)
            self.scroll_end(animate=False, immediate=True)
        else:
            self.cursor = self._find(picked, before)
            self.scroll_to(
                y=self.scroll_offset.y + self.cursor - before, animate=False, immediate=True
            )
        self.refresh()
        self.post_message(self.CursorMoved())

    def _find(self, line: LogLine, before: int) -> int:
        """Return the place of a line that was at place `before`.

        For a line that is gone it is that of the nearest one.
        """
        for place, other in enumerate(self.lines):
            if other.key == line.key:
                return place
        return min(before, max(len(self.lines) - 1, 0))

    def show_entry(self, number: int) -> bool:
        """Move the cursor to an event by its number; return whether it is shown."""
        for place, line in enumerate(self.lines):
            if line.entry is not None and line.entry.number == number:
                self.cursor = place
                return True
        return False

    @property
    def picked_line(self) -> LogLine | None:
        """The line at the cursor."""
        if self.cursor < len(self.lines):
            return self.lines[self.cursor]
        return None

    @property
    def is_following(self) -> bool:
        """Whether the cursor is at the newest line, and goes on to newer ones."""
        return self.cursor >= len(self.lines) - 1

    @property
    def lines_below(self) -> int:
        """How many lines are newer than the one at the cursor."""
        return max(len(self.lines) - 1 - self.cursor, 0)

    # The cursor

    def validate_cursor(self, cursor: int) -> int:
        return min(max(cursor, 0), max(len(self.lines) - 1, 0))

    def watch_cursor(self, before: int, cursor: int) -> None:
        self.refresh_line(before)
        self.refresh_line(cursor)
        self.scroll_to_region(Region(0, cursor, 1, 1), animate=False, immediate=True, force=True)
        self.post_message(self.CursorMoved())

    def refresh_line(self, y: int) -> None:
        """Paint a line again."""
        self.refresh(Region(0, y - self.scroll_offset.y, self.size.width, 1))

    def action_move(self, step: int) -> None:
        self.cursor += step

    def action_move_page(self, pages: int) -> None:
        self.cursor += pages * max(self.content_size.height - 1, 1)

    def action_go_to_first(self) -> None:
        self.cursor = 0

    def action_go_to_last(self) -> None:
        self.cursor = len(self.lines) - 1

    def action_open_line(self) -> None:
        line = self.picked_line
        if line is not None:
            self.post_message(self.LineOpened(line))

    def on_click(self, event: events.Click) -> None:
        """Select the line that was clicked at; open it with the second click."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        place = offset.y + self.scroll_offset.y
        if place < len(self.lines):
            self.cursor = place
        if event.chain == 2:
            self.action_open_line()

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._scroll_lines(-3)
        event.stop()

    def _on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._scroll_lines(3)
        event.stop()

    def _scroll_lines(self, step: int) -> None:
        """Scroll.

        The cursor stays on a row that is seen, and at the end it goes to the newest line.
        """
        self.scroll_to(y=self.scroll_offset.y + step, animate=False, immediate=True)
        first = self.scroll_offset.y
        last = first + max(self.content_size.height - 1, 0)
        is_at_end = last >= len(self.lines) - 1
        if step > 0 and is_at_end:
            self.cursor = len(self.lines) - 1
        else:
            self.cursor = min(max(self.cursor, first), last)
        if step < 0 and self.is_following and first > 0:
            self.cursor = last

    def on_resize(self, event: events.Resize) -> None:
        self.virtual_size = Size(self.content_size.width, len(self.lines))
        self.scroll_to_region(
            Region(0, self.cursor, 1, 1), animate=False, immediate=True, force=True
        )

    # Drawing

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        place = y + self.scroll_offset.y
        if place >= len(self.lines):
            if place == 0:
                return row(width, (f" {self.reason_for_nothing}", "dim"))
            return row(width)
        is_picked = place == self.cursor and self.has_focus
        strip = draw_log_line(
            self.lines[place], width, is_picked=place == self.cursor, has_cursor=is_picked
        )
        return make_selectable(self, strip, place)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text and what ends it."""
        width = self.content_size.width
        drawn = (draw_log_line(line, width).text.rstrip() for line in self.lines)
        return selection.extract("\n".join(drawn)), "\n"

    @property
    def caption(self) -> str:
        """How many lines there are, and whether the newest is followed."""
        count = format_count(len(self.lines), "line")
        if self.is_following:
            return f"{count}, following"
        return f"{count}, {self.lines_below:,} newer: end follows"


def draw_log_line(
    line: LogLine, width: int, *, is_picked: bool = False, has_cursor: bool = False
) -> Strip:
    """Return a row: the time, the sign, the source and as much of the text as has room."""
    clock_width = 5
    if width >= FULL_CLOCK_WIDTH:
        clock_width = 8
    source_width = min(max(width // 6, 10), 20)
    text_width = max(width - clock_width - source_width - 6, 1)
    time = fit(line.clock[:clock_width], clock_width)
    source_style = "dim"
    if line.level:
        source_style = "strong"
    text_style = LEVEL_STYLES[line.level]
    if line.entry is not None and line.level:
        text_style = "strong"
    if has_cursor:
        source_style = text_style = "picked"
    parts: list[Part] = [
        ("▸" if is_picked else " ", "focus"),
        (f"{time} ", "dim"),
        (line.sign, line.style),
        (f" {fit_name(line.source, source_width)} ", source_style),
        (cut(line.text, text_width), text_style),
    ]
    return row(width, *parts, picked=has_cursor)
