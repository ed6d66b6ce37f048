"""The edges of a point as a gutter beside its hooks, one row a hook, in the manner of a commit graph.

┌───  nan_guard
└─┬▶  grad_clip
  ├▶  ema
  └▶  schedule
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def gutter(count: int, edges: Iterable[tuple[int, int]], limit: int | None = None) -> list[str]:
    """Return one prefix for each of `count` rows, hooks in the order of firing; all are equally wide.

    A hook that others wait for opens a lane (`┌`, `┬`); a hook that waits joins it (`├`, `┼`, or `└`, `┴` as the
    last one) and gets an arrow; a lane that merely passes stays `│`. Left out are edges that follow from others, and,
    where there are more than `limit` lanes, those of the hooks for which no lane is free.
    """
    links: dict[int, set[int]] = {}
    for first, then in edges:
        links.setdefault(first, set()).add(then)
    targets = reduced(links)
    last = {row: max(rows) for row, rows in targets.items()}
    sources: dict[int, set[int]] = {}
    for source, rows in targets.items():
        for row in rows:
            sources.setdefault(row, set()).add(source)
    lanes: list[int | None] = []  # for each lane the row that opened it
    drawn = []
    for row in range(count):
        waits = sources.get(row, set())
        joined = {lane for lane, source in enumerate(lanes) if source in waits} if waits else set()
        opened = _open(lanes, row, limit) if row in targets else None
        closed = {lane for lane in joined if last[lanes[lane]] == row}  # type: ignore[index]
        drawn.append((_line(lanes, joined, opened, closed), bool(joined), opened is not None))
        for lane in closed:
            lanes[lane] = None
    width = max(2 * len(lanes) - 1, 0)
    return [_finish(line, width, waits, leads) for line, waits, leads in drawn]


def reduced(links: Mapping[int, Iterable[int]]) -> dict[int, list[int]]:
    """Return the links, which run from lower numbers to higher ones, without those that a longer way implies."""
    reach: dict[int, int] = {}  # as bits: quick to unite
    kept: dict[int, list[int]] = {}
    for row in sorted(links, reverse=True):
        implied = ends = 0
        for then in sorted(links[row]):
            if not implied >> then & 1:
                kept.setdefault(row, []).append(then)
            implied |= reach.get(then, 0)
            ends |= 1 << then
        reach[row] = implied | ends
    return kept


def _open(lanes: list[int | None], row: int, limit: int | None) -> int | None:
    """Give the row a lane, the first that is free, and return which; None if there must be no more."""
    if None not in lanes:
        if limit is not None and len(lanes) >= limit:
            return None
        lanes.append(None)
    lane = lanes.index(None)
    lanes[lane] = row
    return lane


def _line(lanes: Sequence[int | None], joined: set[int], opened: int | None, closed: set[int]) -> str:
    """Return the lanes of one row, two columns each."""
    touched = joined if opened is None else joined | {opened}
    left = min(touched, default=len(lanes))
    line = ""
    for lane, source in enumerate(lanes):
        stroke = "─" if lane >= left else " "
        if lane == opened:
            knot = "┌" if lane == left else "┬"
        elif lane in closed:
            knot = "└" if lane == left else "┴"
        elif lane in joined:
            knot = "├" if lane == left else "┼"
        elif source is not None:
            knot = "│"
        else:
            knot = stroke
        line += knot + stroke
    return line


def _finish(line: str, width: int, waits: bool, leads: bool) -> str:
    """Bring a row to the full width and end it in an arrow when its hook waits for another."""
    if not width:
        return ""
    stroke = "─" if waits or leads else " "
    return line[:width].ljust(width, stroke) + ("▶" if waits else stroke)
