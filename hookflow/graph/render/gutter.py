"""The edges of a point as a gutter beside its hooks, one row a hook, in the manner of a commit graph.

┌───  nan_guard
└─┬▶  grad_clip
  ├▶  ema
  └▶  schedule
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def gutter(names: Sequence[str], edges: Iterable[tuple[str, str]]) -> list[str]:
    """Return one prefix for each of `names`, which stand in the order of firing; all are equally wide.

    A hook that others wait for opens a lane (`┌`, `┬`); a hook that waits joins it (`├`, `┼`, or `└`, `┴` as the
    last one) and gets an arrow; a lane that merely passes stays `│`. Left out are edges that follow from others, and
    those that do not run down the list (hooks that are not there; the second half of a pair fires in reverse).
    """
    targets = _reduced(_links(names, edges))
    sources: dict[int, list[int]] = {}
    for source, rows in targets.items():
        for row in rows:
            sources.setdefault(row, []).append(source)
    lanes: list[int | None] = []  # for each lane the row that opened it
    drawn = []
    for row in range(len(names)):
        joined = {lane for lane, source in enumerate(lanes) if source in sources.get(row, ())}
        opened = _open(lanes, row) if row in targets else None
        closed = {lane for lane in joined if max(targets[lanes[lane]]) == row}  # type: ignore[index]
        drawn.append((_line(lanes, joined, opened, closed), row in sources, opened is not None))
        for lane in closed:
            lanes[lane] = None
    width = max(2 * len(lanes) - 1, 0)
    return [_finish(line, width, waits, leads) for line, waits, leads in drawn]


def _links(names: Sequence[str], edges: Iterable[tuple[str, str]]) -> dict[int, set[int]]:
    """Return rows to rows; a name that stands twice leads from where it stands last above."""
    pairs = list(edges)
    links: dict[int, set[int]] = {}
    for row, name in enumerate(names):
        for first, then in pairs:
            above = [at for at in range(row) if names[at] == first] if then == name else []
            if above:
                links.setdefault(above[-1], set()).add(row)
    return links


def _reduced(links: dict[int, set[int]]) -> dict[int, set[int]]:
    """Return the links without those that a longer way already implies."""
    reach: dict[int, set[int]] = {}
    for row in sorted(links, reverse=True):
        reach[row] = links[row].union(*(reach.get(then, set()) for then in links[row]))
    return {
        row: {then for then in thens if not any(then in reach.get(other, ()) for other in thens)}
        for row, thens in links.items()
    }


def _open(lanes: list[int | None], row: int) -> int:
    """Give the row a lane, the first that is free, and return which."""
    if None not in lanes:
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
        if lane == opened:
            knot = "┌" if lane == left else "┬"
        elif lane in closed:
            knot = "└" if lane == left else "┴"
        elif lane in joined:
            knot = "├" if lane == left else "┼"
        elif source is not None:
            knot = "│"
        else:
            knot = "─" if lane > left else " "
        line += knot + ("─" if lane >= left else " ")
    return line


def _finish(line: str, width: int, waits: bool, leads: bool) -> str:
    """Bring a row to the full width and end it in an arrow when its hook waits for another."""
    if not width:
        return ""
    stroke = "─" if waits or leads else " "
    return line[:width].ljust(width, stroke) + ("▶" if waits else stroke)
