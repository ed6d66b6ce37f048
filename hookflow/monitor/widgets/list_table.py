"""A table of items: the cursor is on a row, and enter opens it."""

from typing import ClassVar

from rich.text import Text
from textual.binding import BindingType
from textual.widgets import DataTable

from hookflow.monitor.bindings import key


class ListTable(DataTable[Text]):
    """A `DataTable` whose cursor is a row.

    Enter, and a click at the row of the cursor, post `RowSelected`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "enter",
            "select_cursor",
            "open the item at the cursor",
            "open",
            footer="open",
            display="enter",
        ),
        key("up,k", "cursor_up", "to the row above", "up"),
        key("down,j", "cursor_down", "to the row below", "down"),
    ]

    DEFAULT_CSS = """
    ListTable { height: 1fr; background: $background; scrollbar-size: 0 1; }
    ListTable:focus { background-tint: $foreground 0%; }
    ListTable > .datatable--header {
        background: $background; color: $text-muted; text-style: none;
    }
    ListTable:focus > .datatable--header { background-tint: $foreground 0%; }
    ListTable > .datatable--cursor { text-style: bold; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__(id=id, cursor_type="row", cursor_foreground_priority="renderable")

    def cell_differs(self, row: str, column: str, content: Text) -> bool:
        """Return whether a cell shows something else; its style counts."""
        shown = self.get_cell(row, column)
        return shown.plain != content.plain or shown.spans != content.spans

    def show_cell(self, row: str, column: str, content: Text) -> None:
        """Show a cell where it has changed."""
        if self.cell_differs(row, column, content):
            self.update_cell(row, column, content, update_width=True)
