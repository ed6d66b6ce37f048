"""Facts about a hook, each behind its name."""

from collections.abc import Sequence

from rich.style import Style
from rich.text import Text
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from hookflow.monitor.hook_facts import HookFact
from hookflow.monitor.style import INK_STYLES, Part, text_of
from hookflow.text import fit, wrapped

NAME_WIDTH = 10
"""Cells of the names of facts."""


def format_facts(facts: Sequence[HookFact], width: int) -> Text:
    """Return facts behind their names, in lines of `width` cells.

    A name that is that of the fact above stands once.
    """
    parts: list[Part] = []
    before = ""
    for fact in facts:
        style = ""
        if fact.name == "trouble":
            style = "error"
        if fact.name == before:
            name = ""
        else:
            name = fact.name
        for line in wrapped(fact.text, max(width - NAME_WIDTH - 1, 10)):
            parts += [(fit(name, NAME_WIDTH + 1), "dim"), (line, style), "\n"]
            name = ""
        before = fact.name
    return Text().join(text_of(part) if part != "\n" else Text("\n") for part in parts)


class HookFacts(Static):
    """Facts about a hook."""

    DEFAULT_CSS = "HookFacts { width: 1fr; height: auto; padding: 0 1; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__(id=id, markup=False)
        self._facts: Sequence[HookFact] = ()
        self._ink: Style | None = None  # that of the theme

    def show_facts(self, facts: Sequence[HookFact]) -> None:
        """Show facts, if they are others than those shown."""
        ink = INK_STYLES["strong"]
        if facts == self._facts and ink == self._ink:
            return
        self._ink = ink
        self._facts = facts
        self._write()

    def on_resize(self, event: Resize) -> None:
        self._write()

    def _write(self) -> None:
        # A rich text has rows without a style, where NO_COLOR fails.
        self.update(Content.from_rich_text(format_facts(self._facts, self.content_size.width)))
