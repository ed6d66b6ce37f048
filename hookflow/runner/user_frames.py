"""Where in the user's own files something was raised: what a message points at. Imports no torch."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

FRAME = re.compile(r'^[ |]*File "(?P<file>.+?)", line (?P<line>\d+)', re.MULTILINE)
"""A frame of a traceback as Python prints it; also of one that a worker process has handed on as text."""

PYTHON = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
OURS = str(Path(__file__).parents[1])


def innermost(traceback: str) -> str:
    """Return "file:line" of the innermost frame of a printed traceback that lies in the user's own files.

    Frames of hookflow, of Python and of installed packages count only where there are no others.
    """
    frames = list(FRAME.finditer(traceback))
    own = [frame for frame in frames if _is_own(frame["file"])]
    return "{file}:{line}".format_map((own or frames)[-1].groupdict()) if frames else ""


def _is_own(file: str) -> bool:
    installed = {"site-packages", "dist-packages"}.intersection(Path(file).parts)
    return not (file.startswith(("<", *(f"{folder}/" for folder in (*PYTHON, OURS)))) or installed)
