"""What `hookflow` itself offers, and when it is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hookflow
from tests.conftest import TOY

NAMES = ["Hook", "Run", "Source", "Task", "UserError", "Writer", "__version__", "load", "load_run", "runs", "train"]


def test_these_are_the_public_names() -> None:
    assert NAMES == hookflow.__all__ == dir(hookflow)
    names: dict[str, object] = {}
    exec("from hookflow import *", names)
    assert {name: names[name] for name in NAMES} == {name: getattr(hookflow, name) for name in NAMES}
    with pytest.raises(AttributeError, match="no attribute 'tain'"):
        hookflow.tain  # noqa: B018


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("dir(hookflow)", {"torch", "pydantic", "textual", "rich", "numpy", "hookflow.api"}),
        (f"hookflow.load({str(TOY)!r}).check()", {"torch", "textual"}),
    ],
)
def test_importing_hookflow_and_checking_import_nothing_heavy(code: str, heavy: set[str]) -> None:
    code = f"import sys, hookflow; {code}; print(*{heavy} & sys.modules.keys(), '.')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == ".\n"
