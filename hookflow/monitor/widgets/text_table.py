"""The table that all tables of the dashboard are."""

from rich.text import Text
from textual.widgets import DataTable


class TextTable(DataTable[Text]):
    """A `DataTable` of styled texts, on the ground of the page."""

    DEFAULT_CSS = """
    TextTable { background: $background; }
    TextTable > .datatable--header {
        background: $background; color: $text-muted; text-style: none;
    }
    """

    def show_cell(self, row: str, column: str, content: Text) -> None:
        """Show a cell where its text or a style has changed: to write a cell paints the table."""
        shown = self.get_cell(row, column)
        if shown.plain != content.plain or shown.spans != content.spans:
            self.update_cell(row, column, content, update_width=True)
