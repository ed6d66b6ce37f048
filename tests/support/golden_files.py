"""Golden files: what a function draws is held against a text file;
HOOKFLOW_GOLDEN=write writes the file anew.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import indent

FOLDER = Path(__file__).parents[1] / "golden"


def check_golden(name: str, drawn: str) -> None:
    """Compare `drawn` with the file `name` below tests/golden."""
    path = FOLDER / name
    if os.environ.get("HOOKFLOW_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(drawn, "utf-8")
    assert drawn == path.read_text("utf-8"), (
        f"{name} has changed; HOOKFLOW_GOLDEN=write takes the new one"
    )


def check_cases(name: str, told: Mapping[str, Iterable[str]]) -> None:
    """Compare what is told of each case with the file: below the line of a case, indented,
    all that is told of it.
    """
    lines = []
    for case, texts in told.items():
        lines += [case, *(indent(text.rstrip(), "    ") for text in texts)]
    check_golden(name, "\n".join([*lines, ""]))
