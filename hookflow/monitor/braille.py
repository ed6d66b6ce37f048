"""Lines in braille: each character cell holds two by four dots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def draw(points: Iterable[tuple[float, float]], width: int, height: int) -> list[list[int]]:
    """Return the dots of a line through `points` (x and y from 0 to 1, x rising), as rows of cells, the top one first.

    Points that share a column of dots are drawn as their mean.
    """
    cells = [[0] * width for _ in range(height)]
    across, down = 2 * width - 1, 4 * height - 1
    before: tuple[int, float] | None = None
    for column, y in _means(points, across):
        y = (1 - y) * down
        left, above = before or (column, y)
        for x in range(left if before is None else left + 1, column + 1):
            here = above + (y - above) * (x - left) / (column - left) if column > left else y
            last = above + (y - above) * (x - 1 - left) / (column - left) if column > left else y
            start, stop = round(last), round(here)
            step = 1 if stop >= start else -1
            for dot in range(start if start == stop else start + step, stop + step, step):
                cells[dot // 4][x // 2] |= _BITS[x % 2][dot % 4]
        before = (column, y)
    return cells


def text(cells: Sequence[int]) -> str:
    """Return one row of cells as characters."""
    return "".join(chr(0x2800 + dots) if dots else " " for dots in cells)


def _means(points: Iterable[tuple[float, float]], across: int) -> list[tuple[int, float]]:
    columns: dict[int, tuple[int, float]] = {}
    for x, y in points:
        column = round(min(max(x, 0.0), 1.0) * across)
        count, total = columns.get(column, (0, 0.0))
        columns[column] = (count + 1, total + min(max(y, 0.0), 1.0))
    return [(column, total / count) for column, (count, total) in sorted(columns.items())]
