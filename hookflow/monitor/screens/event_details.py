"""All of a line of the log.

It shows its text, its traceback, its metrics beside those before, or its checkpoint.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from hookflow.events.records import Checkpoint
from hookflow.monitor.bindings import key
from hookflow.monitor.journal import Entry
from hookflow.monitor.log_lines import LogLine
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.series import in_order
from hookflow.monitor.style import Part, text_of
from hookflow.monitor.widgets.traceback_view import make_traceback_text
from hookflow.numbers import format_span, number, out_of
from hookflow.text import fit, fit_name, make_lines_printable

LABEL_WIDTH = 10
"""Cells for the names of what is known of a checkpoint."""

METRIC_WIDTH = 24
"""Cells for the name of a metric."""


class EventDetailsScreen(PageScreen):
    """All of one line of the log; [ and ] go to those before and after it."""

    page_name: ClassVar[str] = "event"
    help_text: ClassVar[str] = (
        "All of a line of the log. `[` and `]` go to the lines before and after it."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "left_square_bracket",
            "turn(-1)",
            "the line before",
            "older-line",
            footer="before",
            display="[",
        ),
        key(
            "right_square_bracket",
            "turn(1)",
            "the line after",
            "newer-line",
            footer="after",
            display="]",
        ),
    ]

    DEFAULT_CSS = """
    EventDetailsScreen VerticalScroll {
        border: round $border; border-title-color: $text-muted; padding: 0 1;
    }
    EventDetailsScreen VerticalScroll:focus { border: round $primary; }
    EventDetailsScreen.-low VerticalScroll { border: none; }
    """

    def __init__(self, lines: Sequence[LogLine], place: int) -> None:
        super().__init__()
        self._lines = lines
        self._place = place

    @property
    def line(self) -> LogLine:
        """The line that is shown."""
        return self._lines[self._place]

    def compose_body(self) -> ComposeResult:
        with VerticalScroll():
            yield Static("", id="details", markup=False)

    def show_run(self) -> None:
        line = self.line
        box = self.query_one(VerticalScroll)
        sign = ""
        if line.sign.strip():
            sign = f"{line.sign} "
        box.border_title = f"{sign}{line.source} {line.clock}".replace("[", "\\[")
        box.border_subtitle = out_of(self._place + 1, len(self._lines))
        self.query_one("#details", Static).update(format_details(self.store, line))

    def action_turn(self, step: int) -> None:
        place = min(max(self._place + step, 0), len(self._lines) - 1)
        if place != self._place:
            self._place = place
            self.query_one(VerticalScroll).scroll_home(animate=False)
            self.show_run()

    def text_of_row(self) -> str:
        return format_details(self.store, self.line).plain


def format_details(store: RunStore, line: LogLine) -> Text:
    """Return all that is known of a line."""
    text = text_of((line.text, "strong"))
    text.no_wrap = False
    text.append("\n")
    entry = line.entry
    if entry is None:
        text.append_text(text_of((_format_print_time(line), "dim")))
        return text
    text.append_text(text_of((_format_time(store, entry), "dim")))
    for part in _iter_related_lines(store, entry):
        text.append("\n")
        text.append_text(part)
    return text


def _format_print_time(line: LogLine) -> str:
    if line.time is None:
        return "printed by the training before this dashboard was opened"
    return f"printed by the training; seen at {line.clock}"


def _format_time(store: RunStore, entry: Entry) -> str:
    """Return when something happened: the iteration, and the time since the attempt began."""
    run = store.state.run
    if run:
        began = run["t"]
    else:
        began = entry.t
    when = "in an earlier attempt"
    if entry.t >= began:
        when = f"{format_span(entry.t - began)} after this attempt began"
    if entry.it is None:
        return when
    return f"iteration {entry.it:,}, {when}"


def _iter_related_lines(store: RunStore, entry: Entry) -> Iterator[Text]:
    """Yield what belongs to an event, in lines."""
    saved = _checkpoint_of(store, entry)
    if entry.kind == "metrics":
        yield Text()
        yield from _compare_metrics(store, entry)
    elif saved is not None:
        yield Text()
        for label, value in _describe_checkpoint(store, saved):
            yield _line((fit(label, LABEL_WIDTH), "dim"), value)
    elif "Traceback (" in entry.detail:
        yield Text()
        traceback = make_traceback_text(entry.detail).whole
        yield traceback
    elif entry.detail.strip() not in ("", entry.text.strip()):
        yield Text()
        yield Text(make_lines_printable(entry.detail))


def _line(*parts: Part) -> Text:
    """Return parts as one text that is broken into lines where it is too long."""
    text = text_of(*parts)
    text.no_wrap = False
    return text


def _compare_metrics(store: RunStore, entry: Entry) -> Iterator[Text]:
    """Yield the metrics of a validation or test beside those before it and the best ones."""
    state = store.state
    yield text_of((f"{'':<{METRIC_WIDTH}} {'value':>9} {'before':>9} {'best':>9}", "dim"))
    for name in in_order(state.metrics.by_name, state.monitored):
        values = state.metrics.by_name[name]
        before = [value for it, value in values if it < (entry.it or 0)]
        here = [value for it, value in values if it == entry.it]
        is_test = name.startswith("test ")
        if not here or is_test != (entry.source == "test"):
            continue
        parts: list[Part] = [fit_name(name, METRIC_WIDTH), (f" {number(here[-1]):>9}", "strong")]
        previous = "–"
        if before:
            previous = number(before[-1])
        parts.append((f" {previous:>9}", "dim"))
        best = state.metrics.best.get(name)
        if best is not None:
            parts.append(f" {number(best.value):>9}   at iteration {best.it:,}")
        yield text_of(*parts)


def _checkpoint_of(store: RunStore, entry: Entry) -> Checkpoint | None:
    """Return the record of the checkpoint of an event."""
    for saved in store.state.checkpoints:
        if entry.kind == "checkpoint" and (saved["path"], saved["t"]) == (entry.detail, entry.t):
            return saved
    return None


def _describe_checkpoint(store: RunStore, saved: Checkpoint) -> Iterator[tuple[str, str]]:
    """Yield what is known of a checkpoint, and what can be done with it, each with its name."""
    folder = store.directory.path / saved["path"]
    metrics, it = store.state.metrics.find_newest_by(saved["it"])
    values = "   ".join(f"{name} {number(value)}" for name, value in metrics.items())
    yield "metrics", f"{values}   (of iteration {it:,})" if values else "none yet"
    yield "path", f"{store.path}/{saved['path']}"
    weights = find_weights(store, saved)
    if not weights:
        yield "removed", "it is not on the disk any more: newer or better ones have replaced it"
        return
    yield "weights", ", ".join(weights)
    file = f"{store.path}/{saved['path']}"
    if weights[0].endswith(".pt"):  # else there is a file for each rank
        file += f"/{weights[0]}"
    yield "fork", f"hookflow fork {store.command_name}:{folder.name}"
    yield "validate", f"hookflow val {store.command_name}:{folder.name}"
    yield "train on", f'weights = "{file}"   under [model] in another pipeline'


def find_weights(store: RunStore, saved: Checkpoint) -> list[str]:
    """Return the names of the files of weights that a checkpoint still has on the disk."""
    try:
        names = [file.name for file in (store.directory.path / saved["path"]).iterdir()]
    except (OSError, ValueError):  # it is gone, or the path in the record is none of a folder
        return []
    return sorted(name for name in names if fnmatch(name, "model*.pt") or fnmatch(name, "*.distcp"))
