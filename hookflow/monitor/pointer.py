"""Places on the drawn screen: boxes, the row of the cursor, keys of the footer. For mouse, search and copies."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip

from hookflow.monitor.keys import PANELS, SYMBOLS, bound_here, current, do, panels, press
from hookflow.monitor.panels.output import pattern_of
from hookflow.monitor.style import STYLES
from hookflow.monitor.view import Notice, Prompt, Scene, scroll

CORNERS = {"╭": ("╮", "│", "╰"), "┏": ("┓", "┃", "┗")}
"""By the first corner of a box the second one, its side, and the corner below the first."""

CURSOR = "▸"
WHEEL = 3
"""Rows that a step of the wheel moves by."""

WIDE, TALL = 200, 3_000
"""Cells and rows of a panel that are searched: more rows than there are events in the journal."""

Draw = Callable[[Scene], Sequence[Strip]]


class Box(NamedTuple):
    """A box on the screen, in cells from the upper left corner, and the texts in it, without its frame.

    `cursor` is the place in `texts` of the row at the cursor, which has a ground of its own.
    """

    x: int
    y: int
    width: int
    height: int
    texts: list[str]
    cursor: int | None

    def has(self, x: int, y: int) -> bool:
        return 0 <= x - self.x < self.width and 0 <= y - self.y < self.height


def _cells(strip: Strip) -> list[str]:
    """Return what each cell shows; the second cell of a wide character shows nothing."""
    if strip.cell_length == len(strip.text):  # no character is wide
        return [*strip.text]
    return [cell for character in strip.text for cell in [character, ""][: max(cell_len(character), 1)]]


def boxes(rows: Sequence[Strip]) -> Iterator[Box]:
    """Yield the boxes of a screen, from top to bottom."""
    grid = [_cells(row) for row in rows]
    for y, line in enumerate(grid):
        for x, cell in enumerate(line):
            if cell in CORNERS:
                corner, side, below = CORNERS[cell]
                last = next((y for y in range(y + 1, len(grid)) if grid[y][x] != side), len(grid))
                if corner in line[x:] and last < len(grid) and grid[last][x] == below:
                    end = line.index(corner, x)
                    texts = ["".join(row[x + 1 : end]).rstrip() for row in grid[y + 1 : last]]
                    inner = (row.crop(x + 1, x + 2) for row in rows[y + 1 : last])
                    cursor = next((at for at, strip in enumerate(inner) if _at_cursor(strip)), None)
                    yield Box(x, y, end - x + 1, last - y + 1, texts, cursor)


def _at_cursor(strip: Strip) -> bool:
    return any(each.style and each.style.bgcolor == STYLES["cursor"].bgcolor for each in strip)


def _title(rows: Sequence[Strip], box: Box) -> str:
    heading = "".join(_cells(rows[box.y])[box.x + 1 : box.x + box.width - 1])
    return re.sub(" ?[─━]+ ?", "  ", heading).strip()


def _own(scene: Scene, rows: Sequence[Strip]) -> Box | None:
    """Return the box that keys act on: that of the panel in focus, else the first with a cursor, else the first."""
    every = [*boxes(rows)]
    number = next((number for number in panels(scene) if PANELS[number] is current(scene)), None)
    in_focus = [box for box in every if number is not None and _number(_title(rows, box)) == number]
    return next(iter([*in_focus, *(box for box in every if box.cursor is not None), *every]), None)


def _number(title: str) -> int | None:
    """Return the number of the panel with this title; the graph is panel 0, and has its key there."""
    match = re.match(r"\[(\w)\]", title)
    return None if match is None else int(match[1]) if match[1].isdecimal() else 0


def _step(scene: Scene, steps: int) -> str | Notice:
    """Move the cursor as the arrows do, by so many rows."""
    action = bound_here(scene).get("down" if steps > 0 else "up")
    move = current(scene).move
    if action is not None and action.name not in ("up", "down"):  # the page has arrows of its own
        for _ in range(abs(steps)):
            do(action, scene)
    elif move is not None:
        return move(scene, steps) or ""
    return ""


def click(scene: Scene, draw: Draw, x: int, y: int) -> str | Notice:
    """Go to a panel and to its row; call what enter calls at the cursor's row, and a key of the footer."""
    rows = draw(scene)
    if y == len(rows) - 1:
        return _footer(scene, rows[y], x)
    if not (at := next((box for box in boxes(rows) if box.has(x, y)), None)):
        return ""
    moved = _focus(scene, _title(rows, at))
    if moved:
        at = next((box for box in boxes(draw(scene)) if box.has(x, y)), at)
    row = y - at.y - 1
    if at.cursor is None or not 0 <= row < len(at.texts) or not at.texts[row].strip():
        return ""
    return _step(scene, row - at.cursor) if row != at.cursor else "" if moved else press("enter", scene)


def _focus(scene: Scene, title: str) -> bool:
    """Go to the panel with this title; return whether that is another one."""
    number = _number(title)
    if scene.view.page != "main" or number not in panels(scene) or PANELS[number] is current(scene):
        return False
    scene.view.focus = number
    return True


def _footer(scene: Scene, row: Strip, x: int) -> str | Notice:
    """Press the key at a place of the footer, or the key whose word is there."""
    end, key = 0, ""
    for segment in row:
        end += segment.cell_length
        if segment.style == STYLES["strong"]:
            key = segment.text.strip()
        if x < end:
            break
    shown = key.split(" ")[0]
    name = next((name for name in bound_here(scene) if SYMBOLS.get(name, name) == shown), None)
    return press(name, scene) if name and x < end else ""


def wheel(scene: Scene, draw: Draw, x: int, y: int, step: int) -> str | Notice:
    """Move in what the mouse is over."""
    rows = draw(scene)
    if at := next((box for box in boxes(rows) if box.has(x, y)), None):
        _focus(scene, _title(rows, at))
    return _step(scene, WHEEL * step)


def copied(scene: Scene, rows: Sequence[Strip], whole: bool) -> str:
    """Return the text of the row at the cursor, of the panel where it has none or all of it is wanted; "" for none."""
    box = _own(scene, rows)
    if box is None:
        return ""
    if not whole and box.cursor is not None:
        return box.texts[box.cursor].removeprefix(CURSOR).strip()
    lines = [text.removeprefix(CURSOR).removeprefix(" ") for text in box.texts]
    return "\n".join([_title(rows, box), *lines]).strip()


def search(scene: Scene, width: int) -> None:
    """Let a text be typed that is looked for in the rows of the page, or of the panel in focus."""

    def apply(scene: Scene, text: str) -> None:
        scene.view.search = text

    scene.view.prompt = Prompt("/", lambda scene, text: find(0, scene, width), apply, text=scene.view.search)


def find(step: int, scene: Scene, width: int) -> str | Notice:
    """Go to the next row with the text, to the one before (-1), or to none where it is in this row (0).

    The rows are those of a page of this width; those of a panel are searched as if they had more room.
    """
    wanted, page = scene.view.search, current(scene)
    if not wanted:
        return Notice("/ searches for a text") if step else ""
    box = next(iter(boxes(page.draw(scene, WIDE if scene.view.page == "main" else width, TALL))), None)
    scrolls = page.move is scroll and (box is None or box.cursor is None)
    if box is None or page.move is None or (box.cursor is None and not scrolls):
        return Notice("there are no rows to search here")
    at = (min(scene.view.scroll, len(box.texts)) if scrolls else box.cursor) or 0
    hits = [row for row, text in enumerate(box.texts) if pattern_of(wanted).search(text)]
    if not hits:
        return Notice(f'no row with "{wanted}"')
    if step < 0:
        to = next((row for row in reversed(hits) if row < at), hits[-1])
    else:
        to = next((row for row in hits if row >= at + step), hits[0])
    if scrolls:
        scene.view.scroll = to
    return "" if scrolls or to == at else _step(scene, to - at)


def marked(rows: Sequence[Strip], wanted: str) -> list[Strip]:
    """Return the rows with the text that is searched for made to stand out."""
    pattern = pattern_of(wanted)
    return [_marked(row, pattern) for row in rows]


def _marked(row: Strip, pattern: re.Pattern[str]) -> Strip:
    parts: list[Strip] = []
    end, text = 0, row.text
    for match in pattern.finditer(text):
        start, stop = cell_len(text[: match.start()]), cell_len(text[: match.end()])
        parts += [row.crop(end, start), Strip(Segment.apply_style(row.crop(start, stop), post_style=STYLES["badge"]))]
        end = stop
    return Strip.join([*parts, row.crop(end, row.cell_length)]) if parts else row
