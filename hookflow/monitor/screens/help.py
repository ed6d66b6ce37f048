"""The help: the page in focus first, then the keys of every page, the words and the signs."""

from collections.abc import Iterable
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.style import INK_STYLES

EXPLAINED_WORDS = (
    ("attempt", "the run since it was started, or resumed last"),
    ("mean, p95", "of the calls of the last 60 s; v: of the whole attempt"),
    (
        "share",
        (
            "of the time in training iterations, last 60 s; blank for what fires outside them, as"
            " in validation"
        ),
    ),
    ("3.1× slower", "the last 10 seconds with calls, by those before"),
    (
        "ETA",
        "time left at the paces of the last 10 s, the last 60 s and the attempt, with validation",
    ),
    ("data", "the training thread waits for the next batch"),
    ("forward, backward, optimizer", "the parts of an iteration; each with its waits for the GPU"),
    ("hooks, other", "all calls of hooks inside iterations; the rest of the loop"),
    ("compute-bound", "the largest of compute, data and hooks"),
    ("rank-2-bound", "iterations wait for that rank"),
    (
        "best",
        (
            "the best value of a metric so far; which is better follows from its name or a hook's"
            " `mode`"
        ),
    ),
)
EXPLAINED_SIGNS = (
    (
        "● ○ ‖ ◐ ?",
        "running, starting, paused, stalled (no progress), lost (process gone without an end)",
    ),
    ("✓ ■ ✗", "finished, stopped, failed"),
    ("· ◇ ◆ ◉ ▲ ✗", "note, validation, checkpoint, command answered, warning, error"),
    ("▣ ¶ ▟", "logged to be looked at: image, text, histogram"),
    ("▲ ✗ ⊘ ▾", "hooks: slower than before; failed; is off; skips calls for its cost"),
    ("┌ │ └ ▶", "the hook at ▶ waits for the hooks whose lanes reach it; ├ ┼ join, │ only passes"),
    (
        "╭ │ ╰, ┏ ┃ ┗",
        "the two halves of an around hook; a hook in background, until its results are there",
    ),
)

Rows = Iterable[tuple[str, str]]


def make_definition_table(title: str, rows: Rows) -> Group:
    """Return names and what they mean, under a title."""
    table = Table.grid(padding=(0, 2))
    table.add_column(width=16)
    table.add_column()
    for name, about in rows:
        table.add_row(Text(f"  {name}", INK_STYLES["strong"]), Text(about))
    return Group(Text(title, INK_STYLES["title"]), table)


class HelpScreen(ModalScreen[None]):
    """Shows the help about a page."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "back"),
        # The key that opens the help closes it, whichever the user has chosen for it.
        Binding("question_mark", "dismiss", "back", id="help"),
    ]

    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > VerticalScroll {
        width: 100; max-width: 100%; height: 90%; padding: 0 1;
        border: round $primary; background: $surface;
    }
    HelpScreen Static { width: 1fr; height: auto; margin-bottom: 1; }
    """

    def __init__(self, page: PageScreen | None) -> None:
        super().__init__()
        self._page = page

    def compose(self) -> ComposeResult:
        box = VerticalScroll()
        box.border_title = "keys, words, signs"
        with box:
            page = self._page
            if page is not None:
                if page.help_text:
                    yield Static(page.help_text, markup=False)
                yield Static(
                    make_definition_table(
                        f"keys of this page: {page.page_name}", self._keys_of(page, own=True)
                    )
                )
                yield Static(
                    make_definition_table("keys of every page", self._keys_of(page, own=False))
                )
            yield Static(make_definition_table("words", EXPLAINED_WORDS))
            yield Static(make_definition_table("signs", EXPLAINED_SIGNS))

    def _keys_of(self, page: PageScreen, *, own: bool) -> Rows:
        """Yield the keys that the page or its widgets have, or those of the app.

        Each action has one entry.
        """
        keys: dict[str, list[str]] = {}
        descriptions: dict[str, str] = {}
        for node, binding, _enabled, _ in page.active_bindings.values():
            if binding.id is None or (node is not self.app) != own:
                continue
            shown_keys = keys.setdefault(binding.id, [])
            display = self.app.get_key_display(binding)
            if display not in shown_keys:
                shown_keys.append(display)
            descriptions[binding.id] = binding.tooltip or binding.description
        for name, shown in keys.items():
            yield " ".join(shown), descriptions[name]
