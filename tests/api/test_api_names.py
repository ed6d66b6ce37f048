"""What `hookflow` itself offers, and when it is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hookflow
from tests.conftest import TOY

NAMES = ["Hook", "Run", "Source", "Task", "UserError", "Writer", "__version__", "load", "load_run", "runs", "train"]


def printed(code: str) -> str:
    """Return what a fresh process prints last."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_these_are_the_public_names() -> None:
    assert NAMES == hookflow.__all__ == dir(hookflow)
    assert all(getattr(hookflow, name) for name in NAMES)


def test_importing_hookflow_imports_nothing_else() -> None:
    heavy = "{'torch', 'pydantic', 'textual', 'rich', 'numpy', 'hookflow.api'}"
    assert printed(f"import sys, hookflow; dir(hookflow); print(*{heavy} & sys.modules.keys(), '.')") == "."


def test_loading_and_checking_import_no_torch() -> None:
    code = f"import sys, hookflow; hookflow.load({str(TOY)!r}).check()"
    assert printed(f"{code}; print(*{{'torch', 'textual'}} & sys.modules.keys(), '.')") == "."


def test_the_names_can_be_imported_and_others_cannot() -> None:
    names: dict[str, object] = {}
    exec("from hookflow import *", names)
    assert names["train"] is hookflow.train
    with pytest.raises(AttributeError, match="no attribute 'tain'"):
        hookflow.tain  # noqa: B018
