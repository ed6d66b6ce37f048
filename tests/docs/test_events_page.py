"""docs/events.md: every kind of record and every field is there, and what it shows can be read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from hookflow.events.records import KINDS, CommandRecord, Record
from hookflow.events.rundir import Entry, RunDir
from hookflow.monitor.state import RunState
from tests.conftest import TESTS, Trained, records

PAGE = (TESTS.parent / "docs" / "events.md").read_text("utf-8")
RECORDS: dict[str, Any] = {get_type_hints(kind)["k"].__args__[0]: kind for kind in Record.__args__}


def chapter(heading: str) -> str:
    return re.split(r"^##+ ", PAGE.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> set[str]:
    return set(re.findall(r"^\| `(\w+)` \| .+ \| \S", text, re.MULTILINE))


def example(text: str) -> dict[str, Any]:
    (line,) = re.findall(r"```json\n(.*)\n```", text)
    return json.loads(line)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_field_of_a_record_is_described(kind: str) -> None:
    fields = get_type_hints(RECORDS[kind]).keys()
    assert rows(chapter(kind)) >= fields
    shown = example(chapter(kind))
    assert shown["k"] == kind
    assert shown.keys() <= fields


def test_the_examples_are_taken_by_the_monitor() -> None:
    state = RunState()
    for kind in ("run", "frame", "scalars", "metrics", "epoch", "checkpoint", "message", "error", "ack", "end"):
        state.apply(example(chapter(kind)))  # type: ignore[arg-type]
    assert state.metrics.by_name and state.end


def test_the_command_is_described() -> None:
    fields = get_type_hints(CommandRecord).keys()
    assert rows(chapter("Commands")) == example(chapter("Commands")).keys() == fields


def test_every_file_of_a_run_directory_is_listed(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    named = [getattr(run, name) for name, member in vars(RunDir).items() if isinstance(member, Entry)]
    files = {path.name for path in (*named, run.events_of(1), run.now_of(1))}
    assert files <= set(re.findall(r"`([\w.]+)/?`", chapter("The run directory")))


def test_three_lines_read_a_log(trained: Trained, tmp_path: Path) -> None:
    run = trained()
    (text,) = re.findall(r"```python\n(# read\.py\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "read.py").write_text(text)
    command = [sys.executable, "read.py", str(run.events)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    metrics = [(record["it"], record["v"]) for record in records(run, "metrics")]
    assert done.stdout == f"{metrics}\n"
    assert metrics
