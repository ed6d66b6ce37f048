"""Golden files: what a function draws is held against a text file; HOOKFLOW_GOLDEN=write writes the file anew."""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def check_golden(name: str, drawn: str) -> None:
    """Compare `drawn` with the file `name` below tests/golden."""
    path = FOLDER / name
    if os.environ.get("HOOKFLOW_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(drawn, "utf-8")
    assert drawn == path.read_text("utf-8"), f"{name} has changed; HOOKFLOW_GOLDEN=write takes the new one"
