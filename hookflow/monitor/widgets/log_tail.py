"""The newest entries of the journal, for pages that have a few rows for them."""

from collections.abc import Sequence

from rich.text import Text
from textual.events import Resize
from textual.widgets import Static

from hookflow.monitor.journal import Entry
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.style import text_of
from hookflow.numbers import format_clock
from hookflow.text import make_printable

ENTRY_STYLES = {
    "info": "dim",
    "warn": "warn",
    "error": "error",
    "command": "command",
    "metrics": "val",
    "checkpoint": "checkpoint",
    "image": "command",
    "text": "good",
    "histogram": "checkpoint",
}
"""By the kind of an entry the style of its sign."""


def entry_line(entry: Entry) -> Text:
    """Return an entry in a line: the minute, the sign, the source, the text."""
    text_style = ""
    if entry.trouble:
        text_style = "strong"
    return text_of(
        (f" {format_clock(entry.t)[:5]} ", "dim"),
        (entry.glyph, ENTRY_STYLES.get(entry.kind, "")),
        (f" {entry.source} ", "dim"),
        (make_printable(entry.text), text_style),
    )


class LogTail(Static):
    """As many of the newest entries as there are rows, the newest at the end."""

    DEFAULT_CSS = "LogTail { height: 1fr; text-wrap: nowrap; text-overflow: ellipsis; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__("", markup=False, id=id, classes=classes)
        self._entries: Sequence[Entry] = ()
        self._shown: tuple[str, Sequence[Entry]] | None = None
        """The theme and the entries that are shown."""

    def show_log(self, store: RunStore) -> None:
        """Show the newest entries of the run."""
        self._entries = [*store.state.journal]
        self._show_entries()

    def on_resize(self, event: Resize) -> None:
        self._show_entries()

    def _show_entries(self) -> None:
        height = self.content_size.height
        newest = self._entries[-height:] if height else ()
        shown = (self.app.theme, newest)
        if shown == self._shown:
            return
        self._shown = shown
        if newest:
            self.update(Text("\n").join(entry_line(entry) for entry in newest))
        else:
            self.update(text_of((" nothing has happened yet", "dim")))
