"""What a user did wrong, said so that it can be mended: where, what, and what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Where:
    """A place that the user wrote: a line of a file, or an option of the command line.

    `line` counts from 1; 0 when only the source as a whole is known.
    """

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, the place where the user wrote it, and a hint at the mend."""

    message: str
    where: Where | None = None
    hint: str = ""

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.message}" if self.where else self.message]
        if text := self._line_of_source():
            lines.append(f"    {self.where.line if self.where else 0} | {text}")
        if self.hint:
            lines.append(f"    {self.hint}")
        return "\n".join(lines)

    def _line_of_source(self) -> str:
        if self.where is None or not self.where.line:
            return ""
        try:
            return Path(self.where.source).read_text("utf-8").splitlines()[self.where.line - 1].rstrip()
        except (OSError, IndexError, UnicodeDecodeError):
            return ""


class UserError(Exception):
    """The user's mistakes, all of them at once. The command line prints them and exits with 2, without a traceback."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__("\n".join(map(str, self.problems)))


def nearest(name: str, names: Iterable[str]) -> str:
    """Return `did you mean "x"?` for the name closest to `name`, or an empty string when none is close."""
    known = list(names)
    by_case = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_case, n=1, cutoff=0.6)
    return f'did you mean "{by_case[close[0]]}"?' if close else ""
