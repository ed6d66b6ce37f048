"""The facts of the system: the machine, the run, its data, its ranks, the layers of its model."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from hookflow.events.records import Run
from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.widgets.rank_table import RankTable, assess_ranks, bar_legend
from hookflow.monitor.widgets.system_facts import (
    LAYER_COLUMNS,
    data_lines,
    layer_cells,
    list_machine_lines,
    run_lines,
)
from hookflow.monitor.widgets.text_table import TextTable


class LayerTable(TextTable):
    """The layers of the model that have parameters of their own."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row")
        self._run: Run | None = None

    def show_layers(self, run: Run) -> None:
        """Show the layers of the model of a run; they do not change while it lasts."""
        if run == self._run:
            return
        self._run = run
        self.clear(columns=True)
        self.add_columns(*LAYER_COLUMNS)
        for cells in layer_cells(run):
            self.add_row(*cells)


class SystemScreen(PageScreen):
    """Machine, run, data; with several ranks a table of them; the layers of the model."""

    page_name: ClassVar[str] = "system"
    help_text: ClassVar[str] = (
        "The machine, the run, its data, the layers of its model. With several ranks a row for"
        " each: `excl. waits` are the ms of an iteration without the passes in which ranks wait for"
        " one another."
    )

    DEFAULT_CSS = """
    SystemScreen VerticalScroll > Vertical {
        height: auto; border: round $border; border-title-color: $text-muted;
    }
    SystemScreen #facts, SystemScreen #bar-legend { padding: 0 1; }
    SystemScreen Static, SystemScreen DataTable { height: auto; }
    SystemScreen.-low VerticalScroll > Vertical { border: none; }
    """

    def compose_body(self) -> ComposeResult:
        facts = Vertical(id="facts")
        ranks = Vertical(id="ranks-box")
        layers = Vertical(id="layers-box")
        facts.border_title = "system"
        layers.border_title = "layers"
        with VerticalScroll():
            with facts:
                yield Static("", id="system-facts", markup=False)
            with ranks:
                yield RankTable()
                yield Static(bar_legend(), id="bar-legend")
            with layers:
                yield LayerTable()

    def focus_body(self) -> None:
        self.query_one(VerticalScroll).focus()

    def update_machine(self) -> None:
        self.update_run(now=True)

    def show_run(self) -> None:
        store = self.store
        run = store.state.run
        lines = [*list_machine_lines(store), Text(), *run_lines(run), *data_lines(run)]
        self.query_one("#system-facts", Static).update(Text("\n").join(lines))
        ranks_box = self.query_one("#ranks-box")
        ranks_box.display = store.has_several_ranks
        if store.has_several_ranks:
            verdict, _ = assess_ranks(store.state.ranks)
            ranks_box.border_title = f"ranks: {verdict}".replace("[", "\\[")
            self.query_one(RankTable).show_ranks(store)
        layers_box = self.query_one("#layers-box")
        layers_box.display = bool(run.get("layers"))
        self.query_one(LayerTable).show_layers(run)
