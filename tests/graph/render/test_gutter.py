"""The gutter of edges: what is drawn can be read back, and only what is needed is drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookflow.graph.render.text import gutter


def image(names: str, *edges: str) -> list[str]:
    row = {name: row for row, name in enumerate(names.split())}
    return gutter(len(row), [(row[edge[0]], row[edge[1]]) for edge in edges])


def test_nothing_to_draw_takes_no_room() -> None:
    assert image("a b c") == ["", "", ""]
    assert gutter(0, []) == []


def test_a_chain_and_a_fan() -> None:
    assert image("a b c d", "ab", "bc", "bd") == [
        "┌───",
        "└─┬▶",
        "  ├▶",
        "  └▶",
    ]


def test_a_lane_that_passes_differs_from_one_that_joins() -> None:
    assert image("a b c d e", "ac", "bc", "bd", "ae") == [
        "┌───",
        "│ ┌─",
        "├─┼▶",
        "│ └▶",
        "└──▶",
    ]


def test_a_hook_without_edges_lets_the_lanes_pass() -> None:
    assert image("a x b", "ab") == ["┌─", "│ ", "└▶"]


def test_what_follows_from_other_edges_is_left_out() -> None:
    assert image("a b c", "ab", "bc", "ac") == image("a b c", "ab", "bc")


@pytest.mark.parametrize(
    ("limit", "rows"),
    [
        (1, ["┌─", "│ ", "│ ", "└▶", "  ", "  "]),
        (2, ["┌───", "│ ┌─", "│ │ ", "└─│▶", "  └▶", "    "]),
        (3, ["┌─────", "│ ┌───", "│ │ ┌─", "└─│─│▶", "  └─│▶", "    └▶"]),
    ],
)
def test_hooks_for_which_no_lane_is_free_have_none(limit: int, rows: list[str]) -> None:
    assert gutter(6, [(0, 3), (1, 4), (2, 5)], limit) == rows


@st.composite
def downward(draw: st.DrawFn) -> tuple[int, set[tuple[int, int]]]:
    count = draw(st.integers(1, 8))
    pairs = [(i, j) for j in range(count) for i in range(j)]
    return count, draw(st.sets(st.sampled_from(pairs))) if pairs else set()


def read_back(rows: list[str]) -> set[tuple[int, int]]:
    """Follow the lanes of an image and return its links."""
    opened: dict[int, int] = {}
    links = set()
    for row, line in enumerate(rows):
        new = None
        for column, knot in enumerate(line):
            if knot in "└┴├┼":
                links.add((opened[column], row))
            if knot in "┌┬":
                new = column
        if new is not None:
            opened[new] = row
        assert line.endswith("▶") == any(then == row for _, then in links)
    return links


def closure(links: set[tuple[int, int]]) -> set[tuple[int, int]]:
    closed = set(links)
    while more := {(a, d) for a, b in closed for c, d in closed if b == c} - closed:
        closed |= more
    return closed


@given(downward())
def test_the_picture_says_what_the_edges_say(graph: tuple[int, set[tuple[int, int]]]) -> None:
    count, links = graph
    rows = gutter(count, links)
    assert len({len(row) for row in rows}) == 1
    assert closure(read_back(rows)) == closure(links)
