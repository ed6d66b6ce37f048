"""docs/reference.md is what the declarations say now, and leaves out none of them."""

from __future__ import annotations

import re
from types import ModuleType

import pytest
import typer

from hookflow.cli.app import app
from hookflow.graph.points import POINTS
from hookflow.pipeline import schema
from hookflow.pipeline.json_schema import sentences
from hookflow.pipeline.schema import Pipeline, Section
from tests.conftest import TESTS

FOLDER = TESTS.parent / "docs"
PAGE = (FOLDER / "reference.md").read_text("utf-8")


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
    assert sentences(section).keys() >= section.model_fields.keys()
    for name, field in section.model_fields.items():
        assert f"| `{field.alias or name}` |" in PAGE


def test_nothing_is_left_out() -> None:
    headings = set(re.findall(r"^### (.*)$", PAGE, re.MULTILINE))
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name in (name for name, command in commands.items() if not command.hidden):
        assert any(heading.startswith(f"`hookflow {name}") for heading in headings)
    for point in POINTS:
        assert f"| `{point.name}` |" in PAGE
    for name in Pipeline.model_fields:
        assert f"| `{name}` |" in PAGE


def test_links_between_pages_lead_somewhere(make_reference: ModuleType) -> None:
    anchors, pages = {}, {page.name: page.read_text("utf-8") for page in FOLDER.glob("*.md")}
    for name, text in pages.items():
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        anchors[name] = [make_reference.slug(heading) for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)]
    assert len(anchors["reference.md"]) == len({*anchors["reference.md"]})
    for name, text in pages.items():
        links = re.findall(r"\]\((\w[\w-]*\.md)?#([\w-]+)\)", text)
        assert not [link for link in links if link[1] not in anchors[link[0] or name]], name
