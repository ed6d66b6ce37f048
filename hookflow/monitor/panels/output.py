"""The output of the training: what it printed, or its messages, searched and filtered by source and level."""

import re
from collections.abc import Sequence
from functools import partial

from textual.strip import Strip

from hookflow.monitor.style import boxed, cells, row
from hookflow.monitor.view import Action, Line, Notice, Page, Prompt, Scene
from hookflow.numbers import clock
from hookflow.text import fit

PRINTED, MESSAGES = "", "messages"
"""Sources: stdout and stderr, which share one file; all messages. The others are those of messages."""

KINDS, LEVELS = ("info", "warn", "error"), ("", ", warnings and errors", ", errors")
STYLES = ("", "warn", "error")

FRACTION = r"[-+]?(\d*\.\d|nan\b|inf\b)"
INTEGER = r"[-+]?\d+(e[-+]?\d+)?\s*(%|[,;|)]|$|\w+\s*[:=])"
MEASURED = rf"(?!['\")\]]*\s*[:=|]?\s*({FRACTION}|{INTEGER})|\s\w+\s*[:=]?\s*{FRACTION})"
"""What does not follow a word that tells of an error: a number, of which the word, or it and the next one, is the name.
"""

BEGIN = r"^\W*(\d[\d:.,/TZ -]*\W*)?"
"""The begin of a line: brackets, and a time stamp."""

WARNING = re.compile(rf"\b(warn|warning|\w+Warning)\b{MEASURED}", re.IGNORECASE)
ERROR = re.compile(
    rf"(?i:{BEGIN}(error|critical|fatal))\b(?i:{MEASURED})"
    rf"|(?i:\b(error|critical|fatal)(?=[\])>]*:\s|[\])>]|\s(occurred|while|code)\b))(?i:{MEASURED})"
    rf"|\b(ERROR|CRITICAL|FATAL)\b(?i:{MEASURED})"
    rf"|(?i:\b(an|the|this|following|internal)\serrors?\b)(?i:{MEASURED})"
    rf"|\w(Error|Exception)\b(?i:{MEASURED})"
    rf"|\w(?i:error): \[Errno"
    rf"|\bTraceback\b"
)
"""What tells of an error in a printed line. The word alone does not: it is in names of metrics, too."""


def level_of(text: str) -> int:
    """Return how serious a printed line is, by its words: a place in LEVELS."""
    if ERROR.search(text):
        return 2
    return 1 if WARNING.search(text) else 0


def lines(scene: Scene) -> list[Line]:
    """Return the lines that the source and the level let through."""
    choices, every = scene.view.output, scene.output
    if choices.source != PRINTED:
        every = [
            Line(entry.number, KINDS.index(entry.kind), f"{clock(entry.t)} {entry.glyph} {entry.source}  ", entry.text)
            for entry in scene.state.journal
            if entry.kind in KINDS and choices.source in (MESSAGES, entry.source)
        ]
    return [line for line in every if line.level >= choices.level]


def pattern_of(search: str) -> re.Pattern[str]:
    """Return what finds a text; only where it has capital letters do these matter."""
    return re.compile(re.escape(search) or "(?!)", re.IGNORECASE if search == search.lower() else 0)


def _hits(shown: Sequence[Line], search: str) -> list[int]:
    """Return the numbers of the lines with the text."""
    pattern = pattern_of(search)
    return [line.number for line in shown if pattern.search(line.text)] if search else []


def output(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the lines up to the one that was scrolled to, or up to the newest."""
    choices, search, shown, room = scene.view.output, scene.view.search, lines(scene), max(height - 2, 0)
    at, hits = choices.at, _hits(shown, search)
    end = len(shown) if at is None else sum(line.number <= at for line in shown)
    end = max(end, min(room, len(shown)))
    rows = [_row(line, width - 2, at in hits and line.number == at) for line in shown[max(end - room, 0) : end]]
    title = f"output  {choices.source or 'printed: stdout, stderr'}{LEVELS[choices.level]}"
    if search:
        title += f"  / {search}: {f'{hits.index(at) + 1} of ' if at in hits else ''}{len(hits)}"
    hint = f"↓ {len(shown) - end} more" if end < len(shown) else "esc back"
    nothing = "nothing yet" if choices.source else "nothing was printed so far: s shows the messages"
    nothing = "no such line: l shows all" if choices.level else nothing
    return boxed(title, rows or [row(width - 2, (f" {nothing}", "dim"))], width, height, True, hint)


def _row(line: Line, width: int, picked: bool) -> Strip:
    style, room = STYLES[line.level], max(width - cells(line.origin) - 2, 0)
    return row(width, " ", (line.origin, style or "dim"), (fit(line.text, room).rstrip(), style), picked=picked)


def _move(scene: Scene, step: int) -> None:
    """Scroll; from the last line on it follows the newest again."""
    choices, numbers = scene.view.output, [line.number for line in lines(scene)]
    here = len(numbers) if choices.at is None else sum(number <= choices.at for number in numbers)
    to = max(here - 1 + step, 0)
    choices.at = numbers[to] if to < len(numbers) - 1 else None


def _search(scene: Scene) -> None:
    def apply(scene: Scene, text: str) -> None:
        scene.view.search = text

    scene.view.prompt = Prompt("/", lambda scene, text: _find(-1, scene), apply, text=scene.view.search)


def _find(step: int, scene: Scene) -> Notice | None:
    """Go to the newest line with the text, then to older ones, or back; round and round."""
    choices, search = scene.view.output, scene.view.search
    hits, at = _hits(lines(scene), search), choices.at
    if not hits:
        return Notice(f'no line with "{search}"' if search else "/ searches for a text")
    if step > 0:
        choices.at = next((number for number in hits if at is not None and number > at), hits[0])
    else:
        choices.at = next((number for number in hits[::-1] if at is None or number < at), hits[-1])
    return None


def _turn_level(scene: Scene) -> None:
    scene.view.output.level = (scene.view.output.level + 1) % len(LEVELS)


def _turn_source(scene: Scene) -> None:
    """Go from what was printed to all messages, and to those of each source."""
    choices = scene.view.output
    known = [PRINTED, MESSAGES, *dict.fromkeys(entry.source for entry in scene.state.journal if entry.kind in KINDS)]
    choices.source = known[(known.index(choices.source) + 1) % len(known)] if choices.source in known else PRINTED
    choices.at = None


OUTPUT = Page(
    "output",
    output,
    "o",
    "what the training printed, and its messages; and back",
    move=_move,
    actions=(
        Action("search-output", "/", "search the lines for a text", _search),
        Action("older-line", "n", "to the line with the text before this one, and after it", partial(_find, -1)),
        Action("newer-line", "N", "to the line with the text before this one, and after it", partial(_find, 1)),
        Action("level", "l", "all lines, or warnings and errors alone, or errors alone", _turn_level),
        Action("source", "s", "what was printed, all messages, or those of one source", _turn_source),
    ),
    hints=lambda scene: [
        *(("up down", "scroll"), ("search-output older-line newer-line", "search")),
        *(("level", "level"), ("source", "source"), ("last", "newest")),
    ],
)
