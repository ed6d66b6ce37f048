"""How much a statement of the package holds: nodes of the syntax tree a statement, by package and
by file.

Wrapping a line does not change it, a value with a name of its own does. PyTorch Lightning, MMEngine
and Textual are at 7.2 to 7.3, Optuna is at 8.0.
"""

import ast
from collections import defaultdict
from pathlib import Path

from tests.support.package_source import ROOT, trees

MOST_OF_A_FILE = 10.0
TABLE_FILES = {
    # Events of Hugging Face's Trainer, each with its place in hookflow.
    "adapters/huggingface_tables.py",
    # Attributes of Lightning's objects, each with its place in hookflow.
    "adapters/lightning_tables.py",
    "adapters/mmengine_tables.py",  # those of MMEngine's
    "adapters/translations.py",  # names of other frameworks, each with hookflow's
    "callbacks/__init__.py",  # one function for each framework, and long signatures
    "hooks/pytorch_arguments.py",  # the arguments of PyTorch's hooks by point
    "monitor/bindings.py",  # the keys of the dashboard
    "monitor/style.py",  # its colours
    "monitor/widgets/list_table.py",  # the keys of a list
    "zoo/circle.py",  # signatures of a data set, in which each argument is a key of a table
    "zoo/gaussian2d.py",  # formulas of an image
}
"""Files that are tables or formulas in the main: their statements are as long as those are."""

MOST_OF_A_PACKAGE = {
    "": 7.9,
    "adapters": 7.3,
    "api": 7.6,
    "attached": 6.6,
    "callbacks": 7.3,
    "cli": 8.1,
    "events": 7.2,
    "graph": 8.2,
    "hooks": 8.4,
    "monitor": 7.6,
    "notify": 7.2,
    "offload": 6.7,
    "pipeline": 8.4,
    "report": 7.9,
    "rerun": 7.1,
    "runner": 7.8,
    "service": 8.0,
    "sweep": 7.7,
    "trials": 7.9,
    "web": 7.6,
    "zoo": 9.4,
}
"""What each package has reached, rounded up. A bound goes down with its package, and not up."""

UNCOUNTED = (ast.Load, ast.Store, ast.Del, ast.alias, ast.Import, ast.ImportFrom)


def count(tree: ast.Module) -> tuple[int, int]:
    """Return the nodes and the statements of a file, without imports and docstrings."""
    nodes = 0
    statements = 0
    for node in ast.walk(tree):
        if isinstance(node, UNCOUNTED):
            continue
        nodes += 1
        if isinstance(node, ast.stmt):
            statements += 1
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            nodes -= 2  # a docstring, and the text in it
            statements -= 1
    return nodes, statements


def test_no_file_is_denser_than_the_field_reads() -> None:
    dense = {}
    dense_tables = set()
    for path, tree in trees().items():
        nodes, statements = count(tree)
        name = path.relative_to(ROOT / "hookflow").as_posix()
        if nodes <= MOST_OF_A_FILE * max(statements, 1):  # a file may be empty
            continue
        if name in TABLE_FILES:
            dense_tables.add(name)
        else:
            dense[name] = round(nodes / statements, 1)
    assert not dense
    assert dense_tables == TABLE_FILES


def test_no_package_is_denser_than_it_was() -> None:
    nodes: defaultdict[str, int] = defaultdict(int)
    statements: defaultdict[str, int] = defaultdict(int)
    for path, tree in trees().items():
        package = package_of(path)
        of_file = count(tree)
        nodes[package] += of_file[0]
        statements[package] += of_file[1]
    rates = {package: nodes[package] / statements[package] for package in nodes}
    assert rates.keys() == MOST_OF_A_PACKAGE.keys()
    assert not {
        package: round(rate, 2)
        for package, rate in rates.items()
        if rate > MOST_OF_A_PACKAGE[package]
    }


def package_of(path: Path) -> str:
    """Return the package of a file; "" for the files beside the packages."""
    parts = path.relative_to(ROOT / "hookflow").parts
    if len(parts) == 1:
        return ""
    return parts[0]
