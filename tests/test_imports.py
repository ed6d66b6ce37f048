"""Which file of hookflow imports which, and what a process has not imported so far."""

import ast
import subprocess
import sys
from collections.abc import Container, Iterator
from importlib.util import resolve_name
from pathlib import Path

import networkx as nx

from tests.conftest import TOY
from tests.monitor.fake_run import make
from tests.support.package_source import ROOT, trees


def imported(name: str, file: Path, tree: ast.Module, there: Container[str]) -> Iterator[str]:
    """Yield the modules that a file imports: also inside functions, and for type checkers alone.

    `from a import b` imports the file a.b where there is one, and then nothing that a defines.
    """
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                file_of_it = f"{source}.{alias.name}"
                yield file_of_it if file_of_it in there else source


def test_no_files_import_one_another() -> None:
    names = {file: ".".join(file.relative_to(ROOT).with_suffix("").parts) for file in trees()}
    there = {name.removesuffix(".__init__"): file for file, name in names.items()}
    graph: nx.DiGraph[str] = nx.DiGraph()
    for name, file in there.items():
        graph.add_edges_from(
            (name, other) for other in imported(name, file, trees()[file], there) if other in there
        )
    cycles = []
    for files in nx.strongly_connected_components(graph):
        if len(files) > 1:
            first, *others = (start for start, _ in nx.find_cycle(graph.subgraph(files)))
            cycles.append(
                f"{' → '.join((first, *others, first))} (of {len(files)} files that import one"
                " another)"
            )
    assert not cycles, "\n".join(cycles)


def test_what_names_commands_checks_and_reads_imports_nothing_heavy(tmp_path: Path) -> None:
    run = make(tmp_path / "runs")
    read = "run.scalars(), run.metrics, run.plan, run.status, run.checkpoints"
    commands = (
        "import hookflow.cli.control, hookflow.cli.runs, hookflow.service.runs, hookflow.monitor"
    )
    for steps in (
        {
            "import hookflow; dir(hookflow)": {
                "torch",
                "pydantic",
                "textual",
                "rich",
                "numpy",
                "hookflow.api",
                "hookflow.adapters",
            },
            f"hookflow.load({str(TOY)!r}).check()": {"torch", "textual", "hookflow.adapters"},
            f"run = hookflow.load_run({str(run.path)!r}); {read}": {"torch", "textual"},
        },
        {
            commands: {"torch", "textual", "networkx", "pynvml"},
            "import hookflow.monitor.app": {"torch", "networkx", "hookflow.runner"},
        },
        {"import hookflow.runner.attempt.main, hookflow.runner.attempt.attempt": {"networkx"}},
    ):
        code = "".join(
            f"{step}\nprint(*{heavy} & sys.modules.keys())\n" for step, heavy in steps.items()
        )
        process = [sys.executable, "-c", f"import sys\n{code}"]
        assert subprocess.check_output(process, text=True) == "\n" * len(steps)
