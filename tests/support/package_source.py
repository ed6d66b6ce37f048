"""The source files of hookflow, parsed."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = {path: path.read_text("utf-8") for path in sorted((ROOT / "hookflow").rglob("*.py"))}


@cache  # once, by the process that tests this: every process of a suite imports this file
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(text) for path, text in FILES.items()}
