"""A table of items: the cursor is on a row, and enter opens it."""

from typing import ClassVar

from textual.binding import BindingType

from hookflow.monitor.bindings import key
from hookflow.monitor.widgets.text_table import TextTable


class ListTable(TextTable):
    """A table whose cursor is a row.

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
    ListTable { height: 1fr; scrollbar-size: 0 1; }
    ListTable:focus { background-tint: $foreground 0%; }
    ListTable:focus > .datatable--header { background-tint: $foreground 0%; }
    ListTable > .datatable--cursor { text-style: bold; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__(id=id, cursor_type="row", cursor_foreground_priority="renderable")
