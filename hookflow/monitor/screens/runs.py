"""The page Runs.

It lists the runs of the folder, with a filter, an order, and runs that are picked to be compared.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.events import Resize
from textual.message import Message
from textual.widgets import DataTable, Static

from hookflow.errors import first_few
from hookflow.events.rundir import RunDir, short
from hookflow.monitor.bindings import key
from hookflow.monitor.charts import Scale, draw
from hookflow.monitor.compare import RUN_LETTERS
from hookflow.monitor.health import ALIVE_CONDITIONS
from hookflow.monitor.index import Row
from hookflow.monitor.run_folder import (
    SORT_KEYS,
    RunFolder,
    RunListing,
    delete,
    find_remark,
    list_runs,
    resume,
)
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.screens.compare import CompareScreen
from hookflow.monitor.screens.dialogs import Choice, ChoiceDialog, PromptDialog
from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.selection import cell, make_headings
from hookflow.monitor.style import CONDITION_STYLES, RUN_STYLES, Part, bar, text_of
from hookflow.monitor.widgets.list_table import ListTable
from hookflow.numbers import format_rough, format_signed, number, out_of
from hookflow.text import CONDITION_GLYPHS

LIST_SECONDS = 2.0
"""Seconds between looks through the folder."""

MANY_RUNS = 50
"""So many runs that are read at a time are worth a word."""

MAX_DIFFERING = 5
"""Columns for keys in which the runs differ."""

MAX_KEY_WIDTH = 14
"""Cells of such a column."""

CURVE_WIDTH = 10

SORT_KEYS_BY_COLUMN = {"begun": "-begun", "status": "status", "it/s": "-iters_per_s"}
"""The keys that a click at a heading sorts by; that of the metric sorts by "-best"."""

NAMED_CONDITIONS = ("stalled", "failed", "lost", "refused")
"""The conditions whose runs the head of the page counts one by one."""


class RunsRead(Message):
    """A worker has read the runs of the folder."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__()
        self.rows = rows


class ReadingProgress(Message):
    """A worker has read `done` of `whole` runs."""

    def __init__(self, done: int, whole: int) -> None:
        super().__init__()
        self.done = done
        self.whole = whole


WATCHED_MARK = "▸"
"""Stands before the run that the dashboard shows."""


class RunsScreen(PageScreen):
    """Lists the runs; enter opens one, `c` compares those that are picked."""

    page_name: ClassVar[str] = "runs"
    can_filter: ClassVar[bool] = True
    help_text: ClassVar[str] = (
        "▸ stands before the run that the other pages show.\n\nA filter is a text, or a condition"
        " as in `hookflow runs --filter`: status == 'failed' and lr > 0.1"
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "p",
            "pick_run",
            "pick the run to be compared, and put it back",
            "pick-run",
            footer="pick",
        ),
        key(
            "c",
            "compare_runs",
            "compare the runs that are picked, or this one with the one watched",
            "compare",
            footer="compare",
        ),
        key(
            "o",
            "sort(1)",
            "sort by the next key: begun, best, status, duration, rate",
            "sort",
            footer="order",
        ),
        key("O", "sort(-1)", "sort by the key before", "sort-back"),
        key("n", "note_run", "give the run tags, as #word, and a note", "note-run", footer="note"),
        key("R", "resume_run", "resume the run (asks first)", "resume-run"),
        key("D", "delete_run", "delete the run with its checkpoints (asks first)", "delete-run"),
    ]

    DEFAULT_CSS = """
    RunsScreen #runs-head { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    RunsScreen #run-detail { height: auto; max-height: 6; border-top: solid $border; padding: 0 1; }
    RunsScreen.-low #run-detail { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._folder: RunFolder | None = None
        self._rows: Sequence[Row] = ()
        self._listing = RunListing()
        self._picked: list[str] = []
        self._order = 0
        self._listed_at = -math.inf
        self._is_reading = False
        self._progress = "reading the runs"
        self._columns: tuple[str, ...] = ()

    def compose_body(self) -> ComposeResult:
        yield Static(id="runs-head")
        yield ListTable()
        yield Static(id="run-detail", markup=False)

    @property
    def table(self) -> ListTable:
        return self.query_one(ListTable)

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(LIST_SECONDS, self._read_folder)
        self.table.focus()

    # Reading

    def show_run(self) -> None:
        root = self.store.directory.path.parent.parent
        if self._folder is None or self._folder.root != root:
            self._folder = RunFolder(root)
        self._read_folder()
        self._show_listing()

    def _read_folder(self) -> None:
        if self._folder is None or self._is_reading or not self.is_current:
            return
        folder = self._folder
        self._is_reading = True

        def read() -> None:
            rows = folder.read(lambda done, whole: self.post_message(ReadingProgress(done, whole)))
            self.post_message(RunsRead(rows))

        self.run_worker(read, thread=True, group="runs", exit_on_error=False)

    def on_reading_progress(self, message: ReadingProgress) -> None:
        if message.whole > MANY_RUNS and message.done % MANY_RUNS == 0:
            self._progress = f"reading {message.done:,} of {message.whole:,} runs"
            self._show_head()

    def on_runs_read(self, message: RunsRead) -> None:
        self._is_reading = False
        self._progress = ""
        self._rows = message.rows
        self._show_listing()

    def filter_changed(self, text: str) -> None:
        self._show_listing()

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self._show_listing)

    # Showing

    def _show_listing(self) -> None:
        here = self._row_at_cursor()
        self._listing = list_runs(self._rows, self.filter_text, SORT_KEYS[self._order])
        first_best = self._find_first_best()
        cells_by_path = {row.path: self._make_cells(row, first_best) for row in self._listing.rows}
        self._choose_columns(cells_by_path.values())
        self._fill(cells_by_path)
        self._go_to(self._own_path if here is None else here.path)
        self._show_head()
        self._show_detail()

    def _choose_columns(self, cells_of_rows: Iterable[Mapping[str, Text]]) -> None:
        """Show the columns that have room; where they are others, the table begins anew."""
        table = self.table
        room = self.size.width - table.scrollbar_size_vertical
        columns = fit_columns(self._list_columns(), cells_of_rows, room, table.cell_padding)
        if columns == self._columns:
            return
        self._columns = columns
        table.clear(columns=True)
        for name in columns:
            table.add_column(text_of(name), key=name)

    def _fill(self, cells_by_path: Mapping[str, Mapping[str, Text]]) -> None:
        """Update the cells that differ; where the rows are others, fill the table anew."""
        table = self.table
        if [row_key.value for row_key in table.rows] != [*cells_by_path]:
            table.clear()
            for path, cells in cells_by_path.items():
                table.add_row(*(cells[name] for name in self._columns), key=path)
            return
        for path, cells in cells_by_path.items():
            for name in self._columns:
                table.show_cell(path, name, cells[name])

    def _list_columns(self) -> tuple[str, ...]:
        """Return the columns that there is something to show in, those that matter most first."""
        listing = self._listing
        names = ["", "run", "status", "begun", "iteration"]
        if listing.metric:
            names.append(f"best {listing.metric}")
            if self._picked:
                names.append("Δ to A")
        names += ["curve", "it/s", *make_headings(listing.differing_keys[:MAX_DIFFERING])]
        if any(find_remark(row) for row in listing.rows):
            names.append("note")
        return tuple(dict.fromkeys(names))

    def _make_cells(self, row: Row, first_best: float | None) -> dict[str, Text]:
        """Return the cells of a run by their columns.

        `first_best` is the best value of the run that was picked first.
        """
        listing = self._listing
        status = row.values["status"]
        rate = row.values["iters_per_s"]
        is_alive = status in ALIVE_CONDITIONS
        cells = {
            "": self._find_letter(row),
            "run": text_of((row.values["name"], "strong"), (f" #{row.id[-4:]}", "dim")),
            "status": text_of(
                (
                    f"{CONDITION_GLYPHS.get(status, '?')} {status}",
                    CONDITION_STYLES.get(status, "warn"),
                )
            ),
            "begun": text_of((_format_begin(row.values["begun"], self.store.clock), "dim")),
            "iteration": text_of(*_format_progress(row)),
            "curve": text_of((_draw_curve(row), "train")),
            "it/s": text_of((format_rough(rate) if rate else "–", "" if is_alive else "dim")),
            "note": text_of((find_remark(row), "dim")),
        }
        if listing.metric:
            best = row.get(f"best.{listing.metric}")
            cells[f"best {listing.metric}"] = text_of(
                (number(best) if best is not None else "–", "good")
            )
            cells["Δ to A"] = text_of((_format_difference(best, first_best), "dim"))
        keys = listing.differing_keys[:MAX_DIFFERING]
        for name, full in zip(make_headings(keys), keys, strict=True):
            cells[name] = text_of(self._value(row, full))
        for name in ("it/s", "Δ to A"):
            if name in cells:
                cells[name].justify = "right"
        return cells

    def _find_letter(self, row: Row) -> Text:
        if row.path not in self._picked:
            is_watched = row.path == self._own_path
            return text_of((WATCHED_MARK if is_watched else " ", "focus"))
        place = self._picked.index(row.path)
        return text_of((RUN_LETTERS[place], RUN_STYLES[place]))

    def _find_first_best(self) -> float | None:
        """Return the best value of the run that was picked first; None where there is none."""
        for row in self._rows:
            if row.path in self._picked[:1]:
                best: float | None = row.get(f"best.{self._listing.metric}")
                return best
        return None

    def _value(self, row: Row, name: str) -> str:
        if row.get(name) is None:
            return "–"
        text = cell(row, name, self.store.clock)
        if name.endswith(".use") and len(text) > MAX_KEY_WIDTH:
            return text.rpartition(":")[2]
        return text

    def _show_head(self) -> None:
        counts = Counter(row.values["status"] for row in self._rows)
        live = sum(counts[name] for name in ALIVE_CONDITIONS if name != "stalled")
        parts: list[Part] = [
            "runs in ",
            (str(short(self.store.directory.path.parent.parent)), "strong"),
            (f"   {live} live", "good" if live else "dim"),
        ]
        for name in NAMED_CONDITIONS:
            if counts[name]:
                parts.append((f"  {counts[name]} {name}", CONDITION_STYLES.get(name, "warn")))
        ended = sum(
            count
            for name, count in counts.items()
            if name not in ALIVE_CONDITIONS and name not in NAMED_CONDITIONS
        )
        parts.append((f"  {ended} ended", "dim"))
        order = SORT_KEYS[self._order].removeprefix("-")
        parts.append((f"   by {order}", "dim"))
        if self._progress:
            parts.append((f"   {self._progress}", "command"))
        if self._listing.problem:
            parts.append((f"   {self._listing.problem}", "warn"))
        elif self._rows and not self._listing.rows:
            parts.append(("   no runs match", "warn"))
        self.query_one("#runs-head", Static).update(text_of(*parts), layout=False)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        self._show_detail()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.action_open_run()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by the column that was clicked, where it is one to sort by."""
        column = str(event.column_key.value)
        sort_key = SORT_KEYS_BY_COLUMN.get(column)
        if column == f"best {self._listing.metric}":
            sort_key = "-best"
        if sort_key is not None:
            self._order = SORT_KEYS.index(sort_key)
            self._show_listing()

    def _show_detail(self) -> None:
        """Describe the run at the cursor: what it is, its notes, and why it ended."""
        detail = self.query_one("#run-detail", Static)
        row = self._row_at_cursor()
        if row is None:
            detail.update("")
            return
        values = row.values
        took = cell(row, "duration", self.store.clock)
        facts = [f"{values['name']} {row.id}", cell(row, "begun", self.store.clock)]
        facts.append(f"{took} so far" if values["status"] in ALIVE_CONDITIONS else f"took {took}")
        facts += [str(values[name]) for name in ("device", "git") if values[name]]
        if values["data"] == "SYNTHETIC":
            facts.append("SYNTHETIC data")
        lines = [text_of((", ".join(facts), "dim"))]
        is_bad = values["status"] in ("failed", "refused", "lost", "stalled", "unreadable")
        for remark in dict.fromkeys([find_remark(row), values["reason"] or ""]):
            if remark:
                lines.append(text_of((remark, "warn" if is_bad else "")))
        text = Text("\n").join(lines)
        text.no_wrap = False
        detail.update(text)

    def _row_at_cursor(self) -> Row | None:
        rows = self._listing.rows
        at = self.table.cursor_row
        if 0 <= at < len(rows):
            return rows[at]
        return None

    def _go_to(self, path: str) -> None:
        for place, row in enumerate(self._listing.rows):
            if row.path == path:
                self.table.move_cursor(row=place)

    def text_of_row(self) -> str:
        row = self._row_at_cursor()
        if row is None:
            return ""
        cells = self._make_cells(row, self._find_first_best())
        return "  ".join(cells[name].plain.strip() for name in self._list_columns()).strip()

    # Actions

    @property
    def _own_path(self) -> str:
        path = self.store.directory.path
        return f"{path.parent.name}/{path.name}"

    def action_sort(self, step: int) -> None:
        self._order = (self._order + step) % len(SORT_KEYS)
        self._show_listing()

    def action_open_run(self) -> None:
        row = self._row_at_cursor()
        if row is not None:
            self.dashboard.open_run(RunStore(row.run, readonly=self.store.readonly))

    def action_pick_run(self) -> None:
        """Pick the run at the cursor, or put it back; the cursor goes on to the next."""
        row = self._row_at_cursor()
        if row is None:
            return
        if row.path in self._picked:
            self._picked.remove(row.path)
        elif len(self._picked) == len(RUN_LETTERS):
            self.dashboard.say(f"at most {len(RUN_LETTERS)} runs are compared at a time")
            return
        else:
            self._picked.append(row.path)
        self._show_listing()
        self.table.action_cursor_down()

    def action_compare_runs(self) -> None:
        """Compare what is picked.

        With a single run or none, the run at the cursor is compared with the watched one.
        """
        row = self._row_at_cursor()
        if row is not None:
            for path in (row.path, self._own_path):
                if path not in self._picked and len(self._picked) < 2:
                    self._picked.append(path)
        if len(self._picked) < 2 or self._folder is None:
            self.dashboard.say("p picks the runs to compare")
            return
        self._show_listing()
        self.app.push_screen(CompareScreen([self._folder.run_at(path) for path in self._picked]))

    def _find_changeable_row(self) -> Row | None:
        """Return the run at the cursor if it may be changed; else say why not."""
        row = self._row_at_cursor()
        if row is None:
            self.dashboard.say("there is no run here")
            return None
        if self.store.readonly:
            self.dashboard.say("opened with --readonly: nothing is changed")
            return None
        return row

    def action_note_run(self) -> None:
        row = self._find_changeable_row()
        if row is None:
            return
        words = [f"#{tag}" for tag in row.values["tags"]]
        if row.values["note"]:
            words.append(row.values["note"])

        def write(text: str | None) -> None:
            if text is None:
                return
            typed = text.split()
            tags = [word[1:] for word in typed if word.startswith("#") and len(word) > 1]
            note = " ".join(word for word in typed if not word.startswith("#"))
            with self.dashboard.telling("the note cannot be written"):
                row.run.note([*dict.fromkeys(tags)], note)
            self._read_folder()

        self.app.push_screen(PromptDialog("#tags and a note", text=" ".join(words)), write)

    def _find_ended_row(self) -> Row | None:
        """Return the run at the cursor if it may be changed and is over; else say why not."""
        row = self._find_changeable_row()
        if row is not None and row.values["status"] in ALIVE_CONDITIONS:
            self.dashboard.say("the run goes on: stop it first")
            return None
        return row

    def action_resume_run(self) -> None:
        row = self._find_ended_row()
        if row is None:
            return
        run = row.run

        def begin() -> None:
            self.dashboard.say(f"resuming {run.id} …")
            self._change(run, resume)

        self._confirm(row, "resume", "train on from its newest checkpoint", begin)

    def action_delete_run(self) -> None:
        row = self._find_ended_row()
        if row is None:
            return
        forks = [other.id for other in self._rows if other.values["parent"] == row.id]
        if row.path == self._own_path:
            self.dashboard.say("this is the run that is watched: open another one first")
            return
        if forks:
            self.dashboard.say(f"it has forks: delete these first ({first_few(forks)})")
            return
        begin = partial(self._change, row.run, delete)
        self._confirm(row, "delete", "delete its logs and checkpoints", begin)

    def _confirm(self, row: Row, name: str, effect: str, begin: Callable[[], None]) -> None:
        """Ask whether the run of a row is to be changed, and begin after a yes."""

        def handle_answer(answer: str | None) -> None:
            if answer == name:
                begin()

        choices = [Choice("esc", "", "no"), Choice("y", name, effect)]
        self.app.push_screen(
            ChoiceDialog(f"{name} the run?", choices, note=f"the run {row.path}"), handle_answer
        )

    def _change(self, run: RunDir, change: Callable[[RunDir], str]) -> None:
        """Delete or resume a run, from a thread: it takes its time."""

        def change_and_read() -> None:
            self.dashboard.say(change(run))
            self.app.call_from_thread(self._read_folder)

        self.run_worker(change_and_read, thread=True, group="change", exit_on_error=False)


def fit_columns(
    names: Sequence[str], cells_of_rows: Iterable[Mapping[str, Text]], room: int, padding: int
) -> tuple[str, ...]:
    """Return the columns that stand whole beside one another in so many cells.

    A column that has no room is left out. `padding` is the cells at each side of a column.
    """
    rows = [*cells_of_rows]
    kept = []
    for name in names:
        widest = max([cell_len(name), *(cells[name].cell_len for cells in rows)])
        width = widest + 2 * padding
        if width <= room:
            kept.append(name)
            room -= width
    return tuple(kept)


def _format_difference(best: float | None, first_best: float | None) -> str:
    """Return the difference of a best value from that of the run that was picked first."""
    if best is None or first_best is None or first_best == best:
        return "–"
    return format_signed(best - first_best, number)


def _format_begin(t: float, now: float) -> str:
    """Return when a run was begun: the time of day of today's, the date of the others."""
    then = time.localtime(t)
    is_today = time.localtime(now)[:3] == then[:3]
    return time.strftime("%H:%M:%S" if is_today else "%d %b %H:%M", then)


def _format_progress(row: Row) -> list[Part]:
    """Return the iterations done, and a bar where the whole is known."""
    done = row.values["iter"] or 0
    whole = row.values["iters"]
    if not whole:
        return [(out_of(done, None), "dim")]
    return [f"{100 * done / whole:3.0f}% ", *bar(8, done / whole), f" {out_of(done, None)}"]


def _draw_curve(row: Row) -> str:
    """Return the values of the metric over the run as a line on one row."""
    values = [(place, value) for place, value in enumerate(row.curve) if math.isfinite(value)]
    if len(values) < 2:
        return ""
    scale = Scale.of([value for _, value in values], False)
    last = len(row.curve) - 1
    (line,) = draw([(place / last, scale.place(value)) for place, value in values], CURVE_WIDTH, 1)
    return "".join(chr(0x2800 + dots) if dots else " " for dots in line)
