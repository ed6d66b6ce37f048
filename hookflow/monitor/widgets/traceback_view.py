"""A traceback with its source lines.

The exception stands above it, and the frame to look at first is emphasised.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.events import Resize
from textual.widgets import Static

from hookflow.events.records import Error
from hookflow.monitor.health import describe_place, find_raising_line
from hookflow.monitor.style import text_of
from hookflow.text import cut, make_printable
from hookflow.user_code import FRAME_PATTERN, find_innermost_line, is_own_file

INSTALLED_PREFIX_PATTERN = re.compile(r'"[^"]*/(?:site|dist)-packages/')
"""The path before the name of an installed package in a frame."""


MARKS_PATTERN = re.compile(r" *[~^]+")
"""The line under a line of source: the marks of the expression that raised."""


SENTENCE_END = re.compile(r"(?<=[.…]) (?=[A-Z])")
"""Between two sentences."""


@dataclass(frozen=True, slots=True)
class TracebackText:
    """The lines of a traceback: those before the culprit's frame, that frame, those behind it."""

    before: Text
    culprit: Text
    after: Text

    @property
    def whole(self) -> Text:
        """All lines."""
        return Text("\n").join(part for part in (self.before, self.culprit, self.after) if part)


def make_traceback_text(traceback: str, culprit: str = "") -> TracebackText:
    """Return the lines of a traceback.

    `culprit` is the "file:line" of the frame to look at first; where that is not known, it is the
    innermost frame of the user's own files. If several frames are at that line, it is the last.
    """
    lines = traceback.splitlines()
    first, end = _find_culprit_lines(lines, culprit or find_innermost_line(traceback))
    are_own = _find_own_frame_lines(lines)
    before = [_plain_line(lines[number], is_own=are_own[number]) for number in range(first)]
    frame = [_render_culprit_line(line) for line in lines[first:end]]
    after = [
        _plain_line(lines[number], is_own=are_own[number]) for number in range(end, len(lines))
    ]
    newline = Text("\n")
    return TracebackText(newline.join(before), newline.join(frame), newline.join(after))


def fit_marked_lines(traceback: str, width: int) -> str:
    """Return a traceback where each line of source with marks under it has room in `width` cells.

    A line that wrapped would not stand above its marks.
    """
    lines = traceback.splitlines()
    for number in range(1, len(lines)):
        source = lines[number - 1]
        marks = lines[number]
        if len(source) > width and MARKS_PATTERN.fullmatch(marks):
            lines[number - 1 : number + 1] = _cut_marked_line(source, marks, width)
    return "\n".join(lines)


def _cut_marked_line(source: str, marks: str, width: int) -> tuple[str, str]:
    """Return a line of source and its marks in `width` cells.

    What lies before the marks is left out as far as they would be out of sight.
    """
    indent = len(source) - len(source.lstrip(" "))
    first_mark = len(marks) - len(marks.lstrip(" "))
    # A cell is for the ellipsis at each end.
    needed = len(marks) + 2 - width
    possible = first_mark - indent
    hidden = min(needed, possible)
    if hidden > 0:
        source = source[:indent] + "…" + source[indent + hidden :]
        marks = marks[:indent] + " " + marks[indent + hidden :]
    return cut(source, width), marks[:width]


def without_heading(error: Error) -> str:
    """Return the traceback of an error without the heading: the error, its hook, its iteration.

    The notes of the user stay.
    """
    traceback = error["traceback"].rstrip()
    raised = error["type"]
    if error["text"]:
        raised = f"{raised}: {error['text']}"
    lines_of_it = list(re.finditer(rf"^(?:[\w.]+\.)?{re.escape(raised)}$", traceback, re.MULTILINE))
    if not lines_of_it:
        return traceback
    last = lines_of_it[-1]
    frames = traceback[: last.start()].rstrip()
    notes = traceback[last.end() :].splitlines()
    kept = [note for note in notes if note and not _is_in_heading(note, error)]
    return "\n".join([frames, *kept])


def split_diagnosis(error: Error) -> list[str]:
    """Return the sentences of an error without frames, as of a loss that is NaN.

    For any other error it is its text alone.
    """
    has_frames = any(FRAME_PATTERN.match(line) for line in error["traceback"].splitlines())
    if has_frames:
        return [error["text"]]
    return SENTENCE_END.split(error["text"])


def _is_in_heading(note: str, error: Error) -> bool:
    """Return whether a note of a traceback names the hook or the iteration, as hookflow adds it."""
    if note == f'raised by the hook "{error["hook"]}" at {error["point"]}':
        return True
    return re.fullmatch(rf"iteration {error['it']}(, epoch \d+)?", note) is not None


def _find_culprit_lines(lines: Sequence[str], culprit: str) -> tuple[int, int]:
    """Return the number of the first line of the culprit's frame, and that behind its last.

    Both are 0 without one.
    """
    first = end = 0
    is_culprit = False
    for number, line in enumerate(lines):
        frame = FRAME_PATTERN.match(line)
        if frame is not None:
            is_culprit = f"{frame['file']}:{frame['line']}" == culprit
            if is_culprit:
                first = number
        elif not line.startswith(" "):
            is_culprit = False
        if is_culprit:
            end = number + 1
    return first, end


def _render_culprit_line(line: str) -> Text:
    """Return a line of the culprit's frame with a sign before it.

    Colours may be switched off.
    """
    return text_of(("▸ ", "warn"), (make_printable(line).removeprefix("  "), "strong"))


def _find_own_frame_lines(lines: Sequence[str]) -> list[bool]:
    """Return for each line of a traceback whether it belongs to a frame of the user's own files."""
    are_own = []
    is_own = False
    for line in lines:
        frame = FRAME_PATTERN.match(line)
        if frame is not None:
            is_own = is_own_file(frame["file"])
        elif not line.startswith(" "):
            is_own = False
        are_own.append(is_own)
    return are_own


def _plain_line(line: str, *, is_own: bool) -> Text:
    """Return another line.

    The paths of installed packages are short, so that they have room on one row.
    """
    shown = INSTALLED_PREFIX_PATTERN.sub('"…/', make_printable(line))
    if is_own:
        return text_of(shown)
    if line.startswith((" ", "Traceback (")):
        return text_of((shown, "dim"))
    return text_of((shown, "error"))


class TracebackView(Vertical):
    """The error that ended a run, with its place, then the traceback.

    The traceback is scrolled to the culprit's frame.
    """

    DEFAULT_CSS = """
    TracebackView { height: 1fr; }
    TracebackView > #raised { height: auto; }
    TracebackView > VerticalScroll { height: 1fr; }
    TracebackView > VerticalScroll > Static { height: auto; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__(id=id, classes=classes)
        self._error: Error | None = None
        self._mistake = ""
        self._is_diagnosed = False

    def compose(self) -> ComposeResult:
        yield Static("", id="raised", markup=False)
        with VerticalScroll():
            yield Static("", id="frames-before", markup=False)
            yield Static("", id="culprit", markup=False)
            yield Static("", id="frames-after", markup=False)

    def show_error(self, error: Error) -> None:
        """Show the record of an error."""
        if error == self._error:
            return
        self._error = error
        told = split_diagnosis(error)
        heading = text_of((f"✗ {error['type']}: {told[0]}", "error"))
        heading.no_wrap = False
        places = [*describe_place(error)]
        raised = find_raising_line(error)
        if raised:
            places.append(f"raised at {raised}")
        if places:
            heading.append("\n")
            heading.append_text(text_of((", ".join(places), "warn")))
        self.query_one("#raised", Static).update(heading)
        self._is_diagnosed = len(told) > 1
        if self._is_diagnosed:
            self._show_lines(TracebackText(Text("\n").join(map(text_of, told[1:])), Text(), Text()))
        else:
            self._show_frames(error)
        self.call_after_refresh(self._go_to_culprit)

    def show_mistake(self, reason: str) -> None:
        """Show why a run was refused: a sentence, then the place in the file, and what to do."""
        if reason == self._mistake:
            return
        self._mistake = reason
        first, *rest = reason.splitlines()
        heading = text_of((f"✗ {first}", "error"))
        heading.no_wrap = False
        self.query_one("#raised", Static).update(heading)
        self._show_lines(TracebackText(Text("\n").join(map(text_of, rest)), Text(), Text()))

    def _show_frames(self, error: Error) -> None:
        """Show the frames of a traceback in the present width."""
        traceback = without_heading(error)
        scroll = self.query_one(VerticalScroll)
        width = self.size.width - scroll.styles.scrollbar_size_vertical
        if width > 0:  # else the view has no size yet
            traceback = fit_marked_lines(traceback, width)
        self._show_lines(make_traceback_text(traceback, error["at"]))

    def _show_lines(self, text: TracebackText) -> None:
        for name, lines in (
            ("frames-before", text.before),
            ("culprit", text.culprit),
            ("frames-after", text.after),
        ):
            part = self.query_one(f"#{name}", Static)
            part.update(lines)
            part.display = bool(lines)

    def _go_to_culprit(self) -> None:
        scroll, culprit = self.query_one(VerticalScroll), self.query_one("#culprit", Static)
        if culprit.display:
            scroll.scroll_to_widget(culprit, top=True, animate=False)
        elif self._is_diagnosed:
            scroll.scroll_home(animate=False)
        else:
            scroll.scroll_end(animate=False)

    def on_resize(self, event: Resize) -> None:
        if self._error is not None:
            if not self._is_diagnosed:
                self._show_frames(self._error)
            self.call_after_refresh(self._go_to_culprit)
