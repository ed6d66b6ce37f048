"""Mistakes of users, with what is needed to fix them: where, what, and what was probably meant."""

import difflib
import linecache
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hookflow.text import LineExcerpt, make_lines_printable, make_printable, masked


@dataclass(frozen=True, slots=True)
class Where:
    """A place that the user wrote: a line of a file, or an option of the command line.

    `line` and `column` count from 1, in characters; 0 when only the source, or the line, as a whole
    is known.
    """

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if self.column:
            return f"{self.at_line}:{self.column}"
        return self.at_line

    @property
    def at_line(self) -> str:
        """The source and the line alone."""
        if self.line:
            return f"{self.source}:{self.line}"
        return self.source


Locate = Callable[[str], Where]
"""Returns the place of a key of the pipeline, by its dotted name."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake, the place where the user wrote it, and a hint.

    One that is `shared` is shown once, at the first of the places that have it.
    """

    message: str
    where: Where | None = None
    hint: str = ""
    shared: bool = False

    def __post_init__(self) -> None:
        for name in ("message", "hint"):  # they may quote a value of the pipeline
            object.__setattr__(self, name, masked(getattr(self, name)))

    def __str__(self) -> str:
        return self.show()

    def show(self, colour: bool = False) -> str:
        """Return the message, the line that the user wrote with its place marked, and the hint.

        It may be in colours.
        """
        bold, red, dim, cyan, plain = _NO_COLOURS
        if colour:
            bold, red, dim, cyan, plain = _TERMINAL_COLOURS
        message = make_lines_printable(self.message)
        if self.where is None:
            lines = [f"{red}{message}{plain}"]
        else:
            place = make_printable(str(self.where))
            lines = [
                f"{bold}{place}:{plain} {message}",
                *_format_excerpt(self.where, red, dim, plain),
            ]
        if self.hint:
            hint = make_lines_printable(self.hint)
            lines.append(f"    {cyan}{hint}{plain}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, str | int]:
        """Return plain texts and numbers, for an editor: what is not known is 0, or empty."""
        return {**asdict(self.where or Where("")), "message": self.message, "hint": self.hint}


_TERMINAL_COLOURS = ("\x1b[1m", "\x1b[31m", "\x1b[2m", "\x1b[36m", "\x1b[0m")
_NO_COLOURS = ("", "", "", "", "")


def _format_excerpt(where: Where, red: str, dim: str, plain: str) -> list[str]:
    """Return the line that the user wrote, and a line that marks the place in it.

    The colours are escape sequences.
    """
    text = _line(where)
    if not text:
        return []
    excerpt = LineExcerpt.around(text, where.column)
    number = str(where.line)
    lines = [f"    {dim}{number} |{plain} {excerpt.text}"]
    if excerpt.width:
        margin = " " * len(number)
        indent = " " * excerpt.indent
        mark = "^" * excerpt.width
        lines.append(f"    {dim}{margin} |{plain} {indent}{red}{mark}{plain}")
    return lines


def _line(where: Where) -> str:
    """Return the line that the user wrote.

    It is empty when it cannot be read: it came from elsewhere, or is gone.
    """
    if not where.line:
        return ""
    # The working directory may be gone, or the name have a NUL in it.
    with suppress(OSError, ValueError):
        # linecache would look for a relative path in sys.path, too.
        path = str(Path(where.source).absolute())
        linecache.checkcache(path)
        return linecache.getline(path, where.line).rstrip()
    return ""


MAX_SHOWN_PROBLEMS = 100
"""How many problems are shown at most.

Looking for the nearest right name takes time for each.
"""

LONGEST_NAME, MOST_NAMES = 200, 2000
"""Characters of a name, and names, from which on none is called near.

Comparing them all would take long.
"""


class DiagnosisError(Exception):
    """A failure whose message has the cause.

    Its traceback is shown only where it goes through the user's code.
    """


class TrainingTerminatedError(RuntimeError):
    """A signal (SIGTERM, SIGUSR1) has ended the training of `hookflow.train`, with a checkpoint,
    before it was over.
    """


class UserError(DiagnosisError):
    """The user's mistakes, all of them at once.

    The command line prints them and exits with 2, without a traceback.
    """

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        if isinstance(problems, Problem):
            problems = [problems]
        self.problems = _merge_problems(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))

    def at(self, where: Where | None) -> "UserError":
        """Give this place to the problems that have none.

        Returns the error itself, as `with_traceback` does.
        """
        self.problems = [
            replace(problem, where=problem.where or where) for problem in self.problems
        ]
        return self

    def show(self, colour: bool = False) -> str:
        """Return the first problems, and how many there are if there are several.

        For a terminal they are in colours.
        """
        lines = [problem.show(colour) for problem in self.problems[:MAX_SHOWN_PROBLEMS]]
        count = len(self.problems)
        if count > MAX_SHOWN_PROBLEMS:
            lines.append(f"{count} problems, of which the first {MAX_SHOWN_PROBLEMS} are shown")
        elif count != 1:
            lines.append(f"{count} problems")
        return "\n".join(lines)

    def to_json(self) -> list[dict[str, str | int]]:
        """Return every problem as plain texts and numbers."""
        return [problem.to_json() for problem in self.problems]


def _merge_problems(problems: Iterable[Problem]) -> list[Problem]:
    merged: dict[object, Problem] = {}
    for number, problem in enumerate(problems):
        key: object = number
        if problem.shared:
            key = (problem.message, problem.hint)
        merged.setdefault(key, problem)
    return list(merged.values())


def make_place_key(problem: Problem) -> tuple[str, int, int]:
    """Return what to sort problems by: file by file, from top to bottom."""
    where = problem.where or Where("")
    return where.source, where.line, where.column


def nearest(name: str, names: Iterable[str]) -> str:
    """Return `did you mean "x"?` for the name closest to `name`.

    The text is empty when none is close.
    """
    known = list(names)
    if len(name) > LONGEST_NAME or len(known) > MOST_NAMES:
        return ""
    by_case = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_case, n=1, cutoff=0.6)
    if not close:
        return ""
    return f'did you mean "{by_case[close[0]]}"?'


def nearest_or_all(
    name: str, names: Iterable[str], lead: str = "there are", none: str = "none"
) -> str:
    """Return what `nearest` does, or all names behind `lead` when none is close.

    It is `none` where there is no name.
    """
    known = list(names)
    return nearest(name, known) or f"{lead} {', '.join(known) or none}"


def first_few(names: Iterable[str], most: int = 8) -> str:
    """Return the first names, and an ellipsis where there are more."""
    known = list(names)
    if len(known) > most:
        return ", ".join([*known[:most], "…"])
    return ", ".join(known)


def is_misspelt(name: str, other: str, shortest: int = 4) -> bool:
    """Return whether two names differ by a slip in one word.

    A slip is a letter too many, too few, wrong, or two swapped. Words of fewer than `shortest`
    letters are never a slip: "min" and "max" are names of two things.
    """
    words = re.split(r"([\W_]+)", name)
    others = re.split(r"([\W_]+)", other)
    apart = [pair for pair in zip(words, others, strict=False) if pair[0] != pair[1]]
    if len(words) != len(others) or len(apart) != 1:
        return False
    first, second = apart[0]
    if min(len(first), len(second)) < shortest or not (first + second).isalpha():
        return False
    matching = difflib.SequenceMatcher(None, first, second).get_matching_blocks()
    return sum(block.size for block in matching) >= max(len(first), len(second)) - 1
