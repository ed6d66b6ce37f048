"""The runs of the folder: read beside the dashboard, and listed with a filter, an order, and runs that are picked."""

import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from textual.strip import Strip

from hookflow.errors import UserError, first_few
from hookflow.events.deletion import delete_run
from hookflow.events.log import CHUNK
from hookflow.events.rundir import RunDir
from hookflow.monitor.charts import Scale, draw
from hookflow.monitor.compare import LETTERS, Side
from hookflow.monitor.health import ALIVE
from hookflow.monitor.index import Index, Row, forks_that_stay
from hookflow.monitor.selection import cell, differing, headings, known_keys, parse_filter, select
from hookflow.monitor.style import CONDITION_STYLES, SIDES, Part, bar, boxed, cells, row, spread, window
from hookflow.monitor.view import Action, Notice, Page, Prompt, Scene
from hookflow.numbers import number, rough, signed
from hookflow.text import GLYPHS, fit, fit_name, wrapped

OPERATORS = "<>=!()\"'"
"""Characters of a condition; a text without them is looked for in the rows."""

ORDERS = ("-begun", "-best", "status", "-duration", "-iters_per_s")
"""The keys to sort by, in turn; "-best" is the best value of the metric."""

SEVERAL = 50
"""So many runs that are read at a time are worth a word."""


class Folder:
    """The runs of a folder: the rows of all, and the logs of those that are compared, by their paths."""

    def __init__(self, root: Path) -> None:
        self._index = Index(root)
        self.rows: Sequence[Row] = ()
        self.sides: dict[str, Side] = {}
        self.listed = -math.inf  # when they were last listed
        self.listing, self.reading = "reading the runs", ""  # in words, how far their rows, and those logs, are read

    def run(self, path: str) -> RunDir:
        return RunDir(self._index.root / path)

    def read(self, chosen: Iterable[str]) -> bool:
        """Read on in the logs of these runs; return whether there is more."""
        self.sides = {path: self.sides.get(path) or Side(self.run(path)) for path in chosen}
        behind = [side.live.poll(0.02) for side in self.sides.values()]
        sizes = [side.live.unread for side in self.sides.values()] if any(behind) else []
        unread, whole = sum(left for left, _ in sizes), sum(size for _, size in sizes)
        self.reading = f"reading {(whole - unread) / 1e6:.0f} of {whole / 1e6:.0f} MB" if unread > CHUNK else ""
        return any(behind)

    def refresh(self) -> None:
        """Bring the rows up to date, from a thread: there may be very many."""

        def progress(done: int, whole: int) -> None:
            self.listing = f"reading {done:,} of {whole:,} runs" if whole > SEVERAL else self.listing

        self.rows = self._index.refresh(progress)
        self.listing, self.listed = "", time.monotonic()


def delete(run: RunDir) -> str:
    """Delete a run, and return in words what came of that."""
    try:
        if stay := forks_that_stay([run]):
            return f"the run has forks: {first_few(stay[run.id])}"
        delete_run(run)
    except OSError as error:
        return f"cannot delete {run.id}: {error.strerror}"
    except UserError as error:
        return error.problems[0].message
    return f"deleted {run.id}"


def resume(run: RunDir) -> str:
    """Resume a run in a process of its own, which is begun as in a shell; return in words what came of that."""
    command = [sys.executable, "-m", "hookflow", "run", "--resume", str(run.path), "--detach"]
    begun = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    lines = begun.stderr.strip().splitlines()
    return f"{run.id}: {lines[0]}" if lines and not begun.stdout else f"resumed {run.id}"


@dataclass(slots=True)
class Listing:
    """The rows that the page lists, and why its filter is none."""

    rows: Sequence[Row]
    metric: str
    differ: Sequence[str]
    wrong: str = ""


def listing(scene: Scene) -> Listing:
    """Return what the choices of the page leave of the rows; it is made once for the same rows and choices."""
    choice = scene.view.runs
    made_from = (choice.wanted, choice.order)
    if choice.kept is None or choice.kept[0] is not scene.rows or choice.kept[1] != made_from:
        choice.kept = (scene.rows, made_from, _listing(scene.rows, choice.wanted, ORDERS[choice.order]))
    result: Listing = choice.kept[2]
    return result


def _listing(rows: Sequence[Row], wanted: str, order: str) -> Listing:
    metrics = Counter(row.values["metric"] for row in rows if row.values["metric"])
    metric, wrong, text = next(iter(metrics), ""), "", wanted.strip()
    if text and not set(text) & set(OPERATORS) and " in " not in text:
        rows = [row for row in rows if text.lower() in " ".join(_searched(row)).lower()]
    elif text:
        try:
            rows = [*filter(parse_filter(text, rows, "filter"), rows)]
        except UserError as error:
            wrong = error.problems[0].message
    else:
        rows = [row for row in rows if row.values["status"] != "refused"]
    rows = select([*rows], None, f"-best.{metric}" if order == "-best" and metric else order.replace("-best", "id"))
    return Listing(rows, metric, differing(rows), wrong)


def _searched(row: Row) -> list[str]:
    values = (row.values.get(key) for key in ("id", "name", "status", "reason", "note"))
    return [*(str(value) for value in values if value), *map(str, row.values["tags"])]


def _at(scene: Scene, rows: Sequence[Row]) -> int:
    """Return the place of the cursor: at its run, or at the first where that is not listed."""
    return next((place for place, each in enumerate(rows) if each.path == scene.view.runs.at), 0)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the list; on a narrow screen those of least `worth` have no room."""

    head: str
    width: int
    worth: int
    draw: Callable[[Row, int], list[Part]]
    align: str = "<"


def runs(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the page: a heading of the columns, and the runs in a box."""
    shown, choice = listing(scene), scene.view.runs
    below = _detail(scene, width) if height >= LEAST_WITH_DETAIL else []
    height -= len(below)
    inner, room = width - 2, max(height - 3, 0)
    columns = _columns(scene, shown, inner)
    at = _at(scene, shown.rows)
    heads: list[Part] = []
    for column in columns:
        heads += [(fit(column.head, column.width, column.align), "dim"), "  "]
    lines = [row(inner, "   ", *heads)]
    part = window(len(shown.rows), room, at)
    for place, each in enumerate(shown.rows[part], part.start):
        picked = choice.picked.index(each.path) if each.path in choice.picked else None
        mark: Part = (LETTERS[picked], SIDES[picked]) if picked is not None else " "
        parts: list[Part] = [("▸" if place == at else " ", "focus"), mark, " "]
        for column in columns:
            drawn = column.draw(each, column.width)
            gap = max(column.width - cells(*drawn), 0) * " "
            parts += [gap, *drawn, "  "] if column.align == ">" else [*drawn, gap, "  "]
        lines.append(row(inner, *parts, picked=place == at))
    if not shown.rows:
        nothing = "no run is meant" if choice.wanted else scene.listing or "no runs"
        lines.append(row(inner, (f"   {nothing}", "dim")))
    if shown.wrong:
        lines.append(row(inner, ("   ", ""), (shown.wrong, "warn")))
    order = f"by {ORDERS[choice.order].removeprefix('-')}" if choice.order else "newest first"
    title = f"runs, {order}" + f": {choice.wanted}" * bool(choice.wanted)
    count = f"{at + 1} of {len(shown.rows):,}" if shown.rows else ""
    return [*boxed(title, lines, width, height, True, count), *below]


LEAST_WITH_DETAIL = 18
"""Rows of the page from which on the run at the cursor is described below the list."""


def _detail(scene: Scene, width: int) -> list[Strip]:
    """Return a box on the run at the cursor: what it is, what people have noted about it, and why it ended."""
    here = _here(scene)
    if here is None:
        return []
    values, inner = here.values, width - 2
    took = cell(here, "duration", scene.clock)
    facts = [cell(here, "begun", scene.clock), f"{took} so far" if values["status"] in ALIVE else f"took {took}"]
    facts += [str(values[key]) for key in ("device", "git") if values[key]]
    facts += ["SYNTHETIC data"] * (values["data"] == "SYNTHETIC")
    lines = [row(inner, " ", (", ".join(facts), "dim"))]
    remarks = [_remark(here)] + [values["reason"]] * (_remark(here) != values["reason"])
    reason = [line for remark in remarks if remark for line in wrapped(remark, inner - 2)]
    style = "warn" if values["status"] in ("failed", "refused", "lost", "stalled", "unreadable") else ""
    lines += [row(inner, " ", (line, style)) for line in reason]
    title = f"{values['name']} {here.id}"
    return boxed(title, lines[:4], width, 6)


KEY = 14
"""The most cells of a key in which the runs differ; of a longer `use` the name after the colon is shown."""

WORTH = 16, 15, 12, 11, 10
"""The worth of the keys in which the runs differ, from the first on; those after these have no column."""


def _columns(scene: Scene, shown: Listing, width: int) -> list[Column]:
    """Return the columns that a row of this width has room for: facts, what differs, results, and a remark."""
    now, metric, several = scene.clock, shown.metric, len({each.values["name"] for each in shown.rows}) > 1

    def shown_as(each: Row, key: str) -> str:
        text = "–" if each.get(key) is None else cell(each, key, now)
        return text.rpartition(":")[2] if key.endswith(".use") and len(text) > KEY else text

    def text(key: str, style: str = "") -> Callable[[Row, int], list[Part]]:
        return lambda each, wide: [(fit_name(shown_as(each, key), min(wide, len(shown_as(each, key)))), style)]

    def widest(key: str, head: str) -> int:
        return min(max(len(head), *(len(shown_as(each, key)) for each in shown.rows[:200])), KEY)

    differ = zip(WORTH, shown.differ, headings(shown.differ), strict=False)
    columns = [
        Column("id", 4, 20, lambda each, wide: [(each.id[-4:], "dim" if several else "strong")]),
        Column("state", 13, 19, _state),
        Column("begun", 12, 6, lambda each, wide: [(_day(each.values["begun"], now), "dim")]),
        Column("progress", 13, 14, _progress),
        Column("it/s", 6, 5, lambda each, wide: [_speed(each)], ">"),
        *(Column(head, widest(key, head), worth, text(key), ">") for worth, key, head in differ),
        Column("curve", 10, 13, _curve),
    ]
    if several:
        columns.insert(0, Column("run", widest("name", "run"), 18, text("name", "strong")))
    if metric:
        columns.append(Column(f"best {metric}", len(metric) + 5, 17, text(f"best.{metric}", "good"), ">"))
        if scene.view.runs.picked:
            of_first = (row.get(f"best.{metric}") for row in scene.rows if row.path == scene.view.runs.picked[0])
            columns.append(Column("Δ to A", 7, 18, partial(_difference, next(of_first, None), metric), ">"))
    while len(columns) > 2 and sum(column.width + 2 for column in columns) > width - 3:
        columns.remove(min(columns, key=lambda column: column.worth))
    if (rest := width - 4 - sum(column.width + 2 for column in columns)) >= 8 and any(map(_remark, shown.rows)):
        columns.append(Column("note", rest, 0, lambda each, wide: [(fit(_remark(each), wide), "dim")]))
    return columns


def _difference(first: float | None, metric: str, each: Row, wide: int) -> list[Part]:
    best = each.get(f"best.{metric}")
    if best is None or first is None or best == first:
        return [("–", "dim")]
    return [signed(best - first, number)[:wide]]


def _state(each: Row, wide: int) -> list[Part]:
    status = each.values["status"]
    return [(f"{GLYPHS.get(status, '?')} {status}", CONDITION_STYLES.get(status, "warn"))]


def _progress(each: Row, wide: int) -> list[Part]:
    whole = each.values["iters"]
    if not whole:
        return [(f"it {each.values['iter']}", "dim")]
    share = each.values["iter"] / whole
    return [f"{100 * share:3.0f}% ", *bar(wide - 5, share)]


def _curve(each: Row, wide: int) -> list[Part]:
    """Return the values of the metric over the run as a line on one row."""
    values = [(k, value) for k, value in enumerate(each.curve) if math.isfinite(value)]
    if len(values) < 2:
        return []
    scale, last = Scale.of([value for _, value in values], False), len(each.curve) - 1
    (line,) = draw([(k / last, scale.place(value)) for k, value in values], wide, 1)
    return [("".join(chr(0x2800 + dots) if dots else " " for dots in line), "train")]


def _speed(each: Row) -> Part:
    speed = each.values["iters_per_s"]
    return (rough(speed), "" if each.values["status"] in ALIVE else "dim") if speed else ("–", "dim")


def _day(t: float, now: float) -> str:
    """Return when a run was begun: the time of day of today's, the date of the others."""
    then = time.localtime(t)
    return time.strftime("%H:%M:%S" if time.localtime(now)[:3] == then[:3] else "%d %b %H:%M", then)


def _remark(each: Row) -> str:
    """Return the note and the tags of a run, or why it ended."""
    words = [*filter(None, [each.values["note"]]), *(f"#{tag}" for tag in each.values["tags"])]
    return " ".join(words) or each.values["reason"]


def head(scene: Scene, width: int) -> list[Strip]:
    """Return the first rows of the page: where the runs are, and how they are."""
    counts = Counter(each.values["status"] for each in scene.rows)
    live = sum(counts.pop(name, 0) for name in ALIVE if name != "stalled")
    known = [(name, counts.pop(name)) for name in ("stalled", "failed", "lost", "refused") if name in counts]
    parts: list[Part] = [" ", ("hookflow", "title"), "  runs in ", (str(scene.path.parent.parent), "strong"), "   "]
    parts += [(f"{live} live", "good" if live else "dim")]
    parts += [part for name, count in known for part in ("  ", (f"{count} {name}", CONDITION_STYLES.get(name, "warn")))]
    parts += ["  ", (f"{counts.total()} ended", "dim")]
    return [spread(width, parts, [(f" {scene.listing} ", "badge")] * bool(scene.listing)), row(width)]


def _move(scene: Scene, step: int) -> None:
    rows = listing(scene).rows
    if rows:
        scene.view.runs.at = rows[min(max(_at(scene, rows) + step, 0), len(rows) - 1)].path


def _here(scene: Scene) -> Row | None:
    rows = listing(scene).rows
    return rows[_at(scene, rows)] if rows else None


def _pick(scene: Scene) -> Notice | None:
    """Pick the run at the cursor to be compared, or put it back; the cursor goes on to the next."""
    picked, here = scene.view.runs.picked, _here(scene)
    if here is None:
        return None
    if here.path in picked:
        picked.remove(here.path)
    elif len(picked) == len(LETTERS):
        return Notice(f"at most {len(LETTERS)} runs are compared at a time")
    else:
        picked.append(here.path)
    _move(scene, 1)
    return None


def _compare(scene: Scene) -> Notice | None:
    """Compare what is picked; of a single run or none, the run at the cursor with the one that was watched."""
    picked, here = scene.view.runs.picked, _here(scene)
    for path in ([here.path, _own(scene)] if here else []) if len(picked) < 2 else ():
        if path not in picked and len(picked) < 2:
            picked.append(path)
    if len(picked) < 2:
        return Notice("space picks the runs to compare")
    scene.view.open("compare")
    return None


def _open(scene: Scene) -> str:
    here = _here(scene)
    scene.view.runs.at = here.path if here else ""
    return "open" if here else ""


def _sort(step: int, scene: Scene) -> None:
    scene.view.runs.order = (scene.view.runs.order + step) % len(ORDERS)


def _filter(scene: Scene) -> None:
    choice = scene.view.runs

    def live(scene: Scene, text: str) -> None:
        choice.wanted = text

    def complete(scene: Scene, text: str) -> Sequence[str]:
        word = text.split(" ")[-1]
        return [text.removesuffix(word) + key for key in known_keys(scene.rows) if word and key.startswith(word)]

    scene.view.prompt = Prompt("/", lambda scene, text: None, live, complete, choice.wanted)


OF_A_RUN = {
    "delete run": ("delete the run?", "delete its logs and checkpoints"),
    "resume run": ("resume the run?", "train on from its newest checkpoint"),
}
"""The questions about the run at the cursor: a title, and what yes does."""


def _changeable(scene: Scene) -> Row | Notice:
    """Return the run at the cursor, or why it cannot be changed."""
    if scene.readonly and _here(scene):
        return Notice("opened with --readonly: nothing is changed")
    return _here(scene) or Notice("there is no run here")


def _ask(question: Literal["delete run", "resume run"], scene: Scene) -> Notice | None:
    """Ask about the run at the cursor, if it is over."""
    here = _changeable(scene)
    if isinstance(here, Notice):
        return here
    if here.values["status"] in ALIVE:
        return Notice("the run goes on: stop it first")
    if question == "delete run" and here.path == _own(scene):
        return Notice("this is the run that is watched: open another one first")
    forks = [row.id for row in scene.rows if row.values["parent"] == here.id]
    if question == "delete run" and forks:
        return Notice(f"it has forks: delete these first ({first_few(forks)})")
    scene.view.runs.at, scene.view.asking = here.path, question
    return None


def _note(scene: Scene) -> Notice | None:
    """Let tags and a note be typed for the run at the cursor."""
    here = _changeable(scene)
    if isinstance(here, Notice):
        return here

    def submit(scene: Scene, text: str) -> str | Notice:
        words = text.split()
        tags = [word[1:] for word in words if word.startswith("#") and len(word) > 1]
        try:
            here.run.note([*dict.fromkeys(tags)], " ".join(word for word in words if not word.startswith("#")))
        except OSError as error:
            return Notice(f"the note cannot be written: {error.strerror}")
        return "list runs"

    words = [*(f"#{tag}" for tag in here.values["tags"]), here.values["note"] or ""]
    scene.view.prompt = Prompt("#tags and a note", submit, text=" ".join(words).strip())
    return None


def _own(scene: Scene) -> str:
    return f"{scene.path.parent.name}/{scene.path.name}"


RUNS = Page(
    "runs",
    runs,
    "r",
    "the runs of the folder",
    move=_move,
    actions=(
        Action("open-run", "enter", "open the dashboard of a run", _open),
        Action("pick-run", "space", "pick a run to be compared, and put it back", _pick),
        Action("compare", "c", "compare the runs that are picked", _compare),
        Action("filter-runs", "/", "show the runs that have a text, or meet a condition", _filter),
        Action("sort", "o", "sort by the next key, and by the one before", partial(_sort, 1)),
        Action("sort-back", "O", "sort by the next key, and by the one before", partial(_sort, -1)),
        Action("note-run", "n", "give a run tags, as #word, and a note", _note),
        Action("resume-run", "R", "resume a run (asks first)", partial(_ask, "resume run")),
        Action("delete-run", "D", "delete a run with its checkpoints (asks first)", partial(_ask, "delete run")),
        Action("first-run", "home", "to the first run, to the last", partial(_move, step=-(10**6))),
        Action("last-run", "end", "to the first run, to the last", partial(_move, step=10**6)),
    ),
    hints=lambda scene: [
        *(("open-run", "open"), ("pick-run", "pick"), ("compare", "compare"), ("filter-runs", "filter")),
        *(("sort", "sort"), ("note-run", "note"), ("resume-run", "resume"), ("delete-run", "delete")),
    ],
    head=head,
)
