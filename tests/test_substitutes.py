"""ASCII for what a stream cannot encode: all that the package draws is
in the table, in as many cells.
"""

import ast
import io

import pytest
from rich.cells import cell_len

from hookflow import text
from hookflow.events.rundir import RunDir
from hookflow.text import ASCII, ASCII_SUBSTITUTES, substitute, substitute_on
from tests.monitor.fake_run import make
from tests.monitor.shown import shown
from tests.support.package_source import trees

WIDER = {"≥", "≤", "±"}


def test_every_character_that_the_package_prints_has_a_substitute_as_wide() -> None:
    for path, tree in trees().items():
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        drawn = {
            character
            for text in texts
            if isinstance(text, str)
            for character in text
            if character > "\x7f"
        }
        assert not [each for each in drawn if each.isprintable() and not substitute(each)], path
    every = [*ASCII_SUBSTITUTES, *map(chr, text.BRAILLE_RANGE)]
    assert all(substitute(each).isascii() for each in every)
    assert {each for each in every if len(substitute(each)) != cell_len(each)} == WIDER


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run that has finished."""
    return make(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("size", [(60, 15), (120, 40)])
@pytest.mark.parametrize("keys", ["1o", "2", "3", "4", "5", "6", "7", "i", "?"])
def test_the_dashboard_in_ascii(run: RunDir, keys: str, size: tuple[int, int]) -> None:
    for row in shown(run, *keys, size=size).splitlines():
        in_ascii = row.encode("ascii", ASCII).decode("ascii")
        assert len(in_ascii) == len(row) <= size[0]
        assert in_ascii.count("?") == row.count("?"), row


def test_unknown_characters_take_their_cells() -> None:
    def printed(encoding: str) -> bytes:
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        substitute_on(stream)
        print("é 中 → \ud800", end="", file=stream, flush=True)
        return stream.detach().getvalue()  # type: ignore[attr-defined, no-any-return]

    assert printed("ascii") == b"? ?? > ?"
    assert printed("latin-1") == b"\xe9 ?? > ?"
    assert printed("utf-8") == "é 中 → ?".encode()
