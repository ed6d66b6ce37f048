"""The report of a rerun: what the process that does an iteration again has printed so far."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Static

from hookflow.monitor.rerun_process import RerunProcess, RerunReport
from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.style import text_of

SECONDS_BETWEEN_LOOKS = 0.5


class ReportRead(Message):
    """A worker has read the report."""

    def __init__(self, report: RerunReport) -> None:
        super().__init__()
        self.report = report


class RerunScreen(PageScreen):
    """The report of a rerun."""

    page_name: ClassVar[str] = "rerun"
    help_text: ClassVar[str] = (
        "An iteration is done again from the checkpoint before it, in a process of its own, and"
        " compared with what was recorded. The process goes on where this page, or the dashboard,"
        " is left."
    )

    DEFAULT_CSS = """
    RerunScreen #box {
        border: round $border-blurred; border-title-color: $foreground; padding: 0 1;
    }
    RerunScreen #box:focus { border: round $primary; }
    RerunScreen #report { width: 1fr; }
    """

    def __init__(self, process: RerunProcess) -> None:
        super().__init__()
        self._process = process

    def compose_body(self) -> ComposeResult:
        box = VerticalScroll(id="box")
        box.border_title = f"rerun of iteration {self._process.it}"
        with box:
            yield Static(id="report", markup=False)

    def on_mount(self) -> None:
        super().on_mount()
        self._start_reading()

    def show_run(self) -> None:
        """Do nothing: the report is read in a thread."""

    def _start_reading(self) -> None:
        self.run_worker(self._read, thread=True, group="rerun", exclusive=True, exit_on_error=False)

    def _read(self) -> None:
        self.post_message(ReportRead(self._process.read_report()))

    def on_report_read(self, message: ReportRead) -> None:
        lines = [text_of((line.text, line.style)) for line in message.report.lines]
        text = Text("\n").join(lines)
        self.query_one("#report", Static).update(text)
        if not message.report.is_over:
            self.set_timer(SECONDS_BETWEEN_LOOKS, self._start_reading)
