"""What never imports torch, so that it answers at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CIFAR = Path(__file__).parents[2] / "pipelines" / "cifar.toml"


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], {"torch", "textual", "networkx", "pydantic"}),
        (["runs"], {"torch", "networkx"}),
        (["check", str(CIFAR)], {"torch", "textual"}),
        (["check", str(CIFAR), "--no-import"], {"torch", "textual"}),
        (["graph", str(CIFAR)], {"torch", "textual"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_a_command_leaves_alone(arguments: list[str], absent: set[str], tmp_path: Path) -> None:
    code = f"""
import sys
from hookflow.cli.app import main
sys.argv = ["hookflow", *{arguments!r}]
try:
    main()
except SystemExit:
    pass
print("LOADED", *sorted({absent!r} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED"
