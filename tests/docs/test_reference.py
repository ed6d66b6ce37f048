"""The reference and the page of events: they say what the declarations say now,
and leave out none.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest
import typer

from hookflow.cli.app import app
from hookflow.events.records import RECORD_KINDS, CommandRecord, Record
from hookflow.events.rundir import Entry, RunDir
from hookflow.graph.points import DEFAULT_POINTS
from hookflow.monitor.state import RunState
from hookflow.pipeline import schema
from hookflow.pipeline.components import Section
from hookflow.pipeline.json_schema import read_field_sentences
from hookflow.pipeline.schema import Pipeline
from tests.conftest import TESTS, Trained, records

FOLDER = TESTS.parent / "docs"
PAGE = (FOLDER / "reference" / "reference.md").read_text("utf-8")


@pytest.fixture
def make_reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    import make_reference  # type: ignore[import-not-found]

    return make_reference  # type: ignore[no-any-return]


def test_what_is_generated_is_up_to_date(make_reference: ModuleType) -> None:
    for page, text in make_reference.pages():
        assert text == page.read_text("utf-8"), f"`{make_reference.RENEW}` renews {page.name}"


SECTIONS = [
    section
    for section in vars(schema).values()
    if isinstance(section, type) and issubclass(section, Section) and section is not Section
]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_has_a_sentence(section: type[Section]) -> None:
    assert read_field_sentences(section).keys() >= section.model_fields.keys()
    for name, field in section.model_fields.items():
        assert f"| `{field.alias or name}` |" in PAGE


def test_nothing_is_left_out() -> None:
    headings = set(re.findall(r"^### (.*)$", PAGE, re.MULTILINE))
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name in (name for name, command in commands.items() if not command.hidden):
        assert any(heading.startswith(f"`hookflow {name}") for heading in headings)
    for point in DEFAULT_POINTS:
        assert f"| `{point.name}` |" in PAGE
    for name in Pipeline.model_fields:
        assert f"| `{name}` |" in PAGE


def test_links_between_pages_lead_somewhere(make_reference: ModuleType) -> None:
    pages = {
        page: page.read_text("utf-8")
        for page in (*FOLDER.rglob("*.md"), FOLDER.parent / "README.md")
    }
    anchors = {}
    for page, text in pages.items():
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        anchors[page] = [
            make_reference.slug(heading)
            for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
        ]
    reference = anchors[FOLDER / "reference" / "reference.md"]
    assert len(reference) == len({*reference})
    broken = []
    for page, text in pages.items():
        for name, anchor in re.findall(r"\]\(([\w./-]+\.md)?(?:#([\w-]+))?\)", text):
            target = (page.parent / name).resolve() if name else page
            if not target.is_file() or (anchor and anchor not in anchors[target]):
                broken.append((page.name, name, anchor))
    assert not broken


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = (FOLDER.parent / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)
    beside_docs = ["CHANGELOG.md", "CONTRIBUTING.md", "index.md"]
    pages = [page.relative_to(FOLDER).as_posix() for page in FOLDER.rglob("*.md")]
    assert sorted(listed) == sorted([*pages, *beside_docs])


def test_pages_that_the_package_names_are_there() -> None:
    package = FOLDER.parent / "hookflow"
    named = set()
    for file in package.rglob("*.py"):
        named |= set(re.findall(r"\bdocs/[\w/.-]+\.md\b", file.read_text("utf-8")))
    assert named
    assert not [page for page in sorted(named) if not (FOLDER.parent / page).is_file()]


EVENTS = (TESTS.parent / "docs" / "reference" / "events.md").read_text("utf-8")
RECORDS: dict[str, Any] = {get_type_hints(kind)["k"].__args__[0]: kind for kind in Record.__args__}


def chapter(heading: str) -> str:
    return re.split(
        r"^##+ ", EVENTS.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE
    )[0]


def rows(text: str) -> set[str]:
    return set(re.findall(r"^\| `(\w+)` \| .+ \| \S", text, re.MULTILINE))


def example(text: str) -> dict[str, Any]:
    (line,) = re.findall(r"```json\n(.*)\n```", text)
    return json.loads(line)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", sorted(RECORD_KINDS))
def test_every_field_of_a_record_is_described(kind: str) -> None:
    fields = get_type_hints(RECORDS[kind]).keys()
    assert rows(chapter(kind)) >= fields
    shown = example(chapter(kind))
    assert shown["k"] == kind
    assert shown.keys() <= fields


def test_the_examples_are_taken_by_the_monitor_and_the_command_is_described() -> None:
    state = RunState()
    for kind in (
        "run",
        "frame",
        "scalars",
        "metrics",
        "epoch",
        "checkpoint",
        "message",
        "error",
        "ack",
        "end",
    ):
        state.apply(example(chapter(kind)))  # type: ignore[arg-type]
    assert state.metrics.by_name and state.end
    fields = get_type_hints(CommandRecord).keys()
    assert rows(chapter("Commands")) == example(chapter("Commands")).keys() == fields


def test_every_file_of_a_run_directory_is_listed(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    named = [
        getattr(run, name) for name, member in vars(RunDir).items() if isinstance(member, Entry)
    ]
    files = {path.name for path in (*named, run.find_events_path(1), run.find_now_path(1))}
    assert files <= set(re.findall(r"`([\w.]+)/?`", chapter("The run directory")))


def test_three_lines_read_a_log(trained: Trained, tmp_path: Path) -> None:
    run = trained()
    (text,) = re.findall(r"```python\n(# read\.py\n.*?)```", EVENTS, re.DOTALL)
    (tmp_path / "read.py").write_text(text)
    command = [sys.executable, "read.py", str(run.events)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    metrics = [(record["it"], record["v"]) for record in records(run, "metrics")]
    assert done.stdout == f"{metrics}\n"
    assert metrics
