"""A plan in the languages of other programs: Mermaid and DOT, as the programs that draw them take it."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import pairwise

import pytest
from hypothesis import given

from hookflow.graph.plan import Plan, Trigger
from hookflow.graph.render.text import as_dot, as_mermaid
from tests.golden_files import check_golden
from tests.graph.render.plans import EXAMPLE, HOSTILE, RICH, node, plan, plans

needs_graphviz = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")


def graphviz(drawn: Plan) -> list[list[str]]:
    """Return the lines of Graphviz's plain output, in words. It must have nothing to complain of."""
    said = subprocess.run(["dot", "-Tplain"], input=as_dot(drawn), capture_output=True, text=True, check=True)
    assert not said.stderr
    return [line.split() for line in said.stdout.strip().split("\n")]


def test_pictures_are_golden() -> None:
    check_golden("drawings/rich.mmd", as_mermaid(RICH) + "\n")
    check_golden("drawings/rich.dot", as_dot(RICH) + "\n")


@given(plans())
def test_every_firing_and_every_edge_is_there(drawn: Plan) -> None:
    links = [(edge.first_id, edge.then_id) for edge in drawn.edges]
    for image, box, arrow in (
        (as_mermaid(drawn), r'^    b(\d+)\["<b>([a-f]+)<', r'^    b(\d+) -\.?->\|"[^"]+"\| b(\d+)$'),
        (as_dot(drawn), r'^    b(\d+) \[label="([a-f]+)[\\"]', r'^    b(\d+) -> b(\d+) \[label="[^"]+", [^\]]+\];$'),
    ):
        boxes = {int(id_): name for id_, name in re.findall(box, image, re.MULTILINE)}
        assert boxes == {binding.id: binding.hook for binding in drawn.bindings}
        result = [(int(first), int(then)) for first, then in re.findall(arrow, image, re.MULTILINE)]
        assert sorted(result) == sorted(links)


def test_names_stand_in_the_letters_that_they_are_written_in() -> None:
    """Graphviz reads no escapes; whoever opens a file reads its letters."""
    drawn = plan(node("a", ["after_val"], trigger=Trigger(when="損失 > 1")), name="großes")
    for image in (as_dot(drawn), as_mermaid(drawn)):
        assert "großes: 1 hook at 1 point" in image
        assert "when 損失 " in image


def test_mermaid_reads_nothing_into_a_name() -> None:
    chart = as_mermaid(HOSTILE)
    assert chart.startswith('---\ntitle: "\\"p\\" & <q> ---: 2 hooks at 3 points"\n---\nflowchart TB\n')
    for label in re.findall(r'^    b\d.*?"(.*)"', chart, re.MULTILINE):
        assert not re.search(r'["`&<>;#\\]', re.sub(r"</?b>|<br/>|#\d+;", "", label)), label


@needs_graphviz
def test_graphviz_takes_the_dot_and_draws_points_from_above_and_hooks_from_the_left() -> None:
    for drawn in (EXAMPLE, RICH, plan()):
        places = {words[1]: (float(words[2]), float(words[3])) for words in graphviz(drawn) if words[0] == "node"}
        assert len(places) == len(drawn.bindings)
        rows = [[places[f"b{binding.id}"] for binding in drawn.at(point.name)] for point in drawn.points]
        bound = [row for row in rows if row]
        assert all(x < right for row in bound for (x, _), (right, _) in pairwise(row))
        assert [row[0][1] for row in bound] == sorted((row[0][1] for row in bound), reverse=True)
