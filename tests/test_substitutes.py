"""ASCII for what a stream cannot encode: all that the package draws is in the table, in as many cells."""

import ast
import io

import pytest
from rich.cells import cell_len

from hookflow import text
from hookflow.monitor.layout import screen, visible
from hookflow.text import ASCII, SUBSTITUTES, substitute, substitute_on
from tests.golden_files import check_golden
from tests.monitor.conftest import At, scene  # noqa: F401  # a fixture
from tests.test_size import trees

WIDER = {"≥", "≤", "±"}


def test_every_character_that_the_package_prints_has_a_substitute_as_wide() -> None:
    for path, tree in trees().items():
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        drawn = {character for text in texts if isinstance(text, str) for character in text if character > "\x7f"}
        assert not [each for each in drawn if each.isprintable() and not substitute(each)], path
    every = [*SUBSTITUTES, *map(chr, text.BRAILLE)]
    assert all(substitute(each).isascii() for each in every)
    assert {each for each in every if len(substitute(each)) != cell_len(each)} == WIDER


@pytest.mark.parametrize(("width", "height"), [(60, 15), (80, 24), (120, 40), (200, 60)])
def test_the_dashboard_in_ascii(scene: At, width: int, height: int) -> None:  # noqa: F811
    shown = scene()
    shown.visible = visible(width, height)
    rows = [strip.text.encode("ascii", ASCII).decode("ascii") for strip in screen(shown, width, height)]
    assert {len(row) for row in rows} == {width}
    check_golden(f"monitor/ascii-{width}x{height}.txt", "".join(f"{row.rstrip()}\n" for row in rows))


def test_unknown_characters_take_their_cells() -> None:
    def printed(encoding: str) -> bytes:
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        substitute_on(stream)
        print("é 中 → \ud800", end="", file=stream, flush=True)
        return stream.detach().getvalue()  # type: ignore[attr-defined, no-any-return]

    assert printed("ascii") == b"? ?? > ?"
    assert printed("latin-1") == b"\xe9 ?? > ?"
    assert printed("utf-8") == "é 中 → ?".encode()
