"""The shape of the package: parameters of constructors, files of one helper, and names that say nothing."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = {path: path.read_text("utf-8") for path in sorted((ROOT / "hookflow").rglob("*.py"))}
MOST_PARAMETERS = 8
"""Of a constructor, built-in hooks aside: their arguments are those of a table in the pipeline."""
MOST_SMALL = 10
"""Files of at most `SMALL` lines that one other file imports; commands, writers, panels and hooks are looked for by
their names, and may be small."""
SMALL = 80
BY_NAME = ("cli", "writers", "panels", "builtin")
NAMES = {"said", "told", "found", "one", "asked"}
"""Identifiers that say nothing; the records of the log have `asked`."""
MOST_NAMES = 2


@cache  # once, by the process that tests this: every process of a suite imports this file
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(text) for path, text in FILES.items()}


def test_a_constructor_has_few_parameters() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {cls.name}"
        for path, tree in trees().items()
        if "builtin" not in path.parts
        for cls in ast.walk(tree)
        if isinstance(cls, ast.ClassDef)
        for method in cls.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        if len(method.args.posonlyargs + method.args.args + method.args.kwonlyargs) > MOST_PARAMETERS + 1
    ]
    assert not long


def test_a_file_is_a_subject_and_no_single_helper() -> None:
    importers: Counter[str] = Counter()
    for tree in trees().values():
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        importers.update(modules)
    small = [
        path
        for path, text in FILES.items()
        if path.stem not in ("__init__", "__main__") and not set(BY_NAME) & set(path.parts)
        if text.count("\n") <= SMALL
        if importers[".".join(path.relative_to(ROOT).with_suffix("").parts)] == 1
    ]
    assert len(small) <= MOST_SMALL, small


def test_a_name_says_what_it_holds() -> None:
    stored = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.id}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NAMES
    ]
    assert len(stored) <= MOST_NAMES, stored
