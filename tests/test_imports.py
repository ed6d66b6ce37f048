"""Which file of hookflow imports which."""

import ast
from collections.abc import Container, Iterator
from importlib.util import resolve_name
from pathlib import Path

import networkx as nx

import hookflow

PACKAGE = Path(hookflow.__file__).parent


def modules() -> dict[str, Path]:
    """Return every file of the package by the name of its module."""
    return {
        ".".join((PACKAGE.name, *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): file
        for file in PACKAGE.rglob("*.py")
    }


def imported(name: str, file: Path, there: Container[str]) -> Iterator[str]:
    """Yield the modules that a file imports: also inside functions, and for type checkers alone.

    `from a import b` imports the file a.b where there is one, and then nothing that a defines.
    """
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                file_of_it = f"{source}.{alias.name}"
                yield file_of_it if file_of_it in there else source


def imports() -> nx.DiGraph[str]:
    """Return the graph of imports between the files of the package."""
    there = modules()
    graph: nx.DiGraph[str] = nx.DiGraph()
    for name, file in there.items():
        graph.add_edges_from((name, other) for other in imported(name, file, there) if other in there)
    return graph


def test_no_files_import_one_another() -> None:
    graph = imports()
    cycles = []
    for files in nx.strongly_connected_components(graph):
        if len(files) > 1:
            (first, *others) = (start for start, _ in nx.find_cycle(graph.subgraph(files)))
            cycles.append(f"{' → '.join((first, *others, first))} (of {len(files)} files that import one another)")
    assert not cycles, "\n".join(cycles)
