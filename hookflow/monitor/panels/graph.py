"""The graph: the loop with its phases and hooks in one order, the edges between them, and what each costs.

Below it, why the hook at the cursor fires where it does, and what it has taken over the run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.graph.render.loop import MARKS, Row, label, rows
from hookflow.graph.why import neighbours
from hookflow.monitor.charts import LABEL, Axis, Curve, chart, heights
from hookflow.monitor.costs import COSTS, Cost, cost
from hookflow.monitor.durations import ITERATION
from hookflow.monitor.panels.hooks import DECIDED, mark, reasons, tied
from hookflow.monitor.style import CONDITION_STYLES, Part, beside, boxed, cells, empty, row, window
from hookflow.monitor.view import Action, Notice, Page, Prompt, Scene
from hookflow.numbers import DURATIONS, aligned, counted, duration, factor, many, out_of, percent, rough
from hookflow.text import fit, fit_name


class Column(NamedTuple):
    """Figures beside the rows: the heading, the cells that they take, and what a row has there."""

    title: str
    width: int
    cell: Callable[[Row], Part]


LEAST_ROOM = 15
"""Cells that the names of the points leave on a narrow screen: a median and a share."""


class Table:
    """Draws rows of the loop with columns of figures, as many as have room, in the order in which they stand."""

    def __init__(self, rows: Sequence[Row], width: int, names: Callable[[Row], str]) -> None:
        self._width, self._names = width, names
        self.loop = max((cell_len(label(each, names(each))) for each in rows), default=8)
        self.lanes = max((len(each.lanes) for each in rows), default=0)
        longest = max((cell_len(each.binding.hook) for each in rows if each.binding), default=4)
        self.hook = min(longest, 24 if width >= 110 else 16 if width >= 70 else 12)
        self.rail = max((len(each.rail) for each in rows), default=0)
        room = width - 8 - self.lanes - self.hook - self.rail - 2 * bool(self.lanes)
        self.loop = min(self.loop, max(room - LEAST_ROOM, 14))
        self.room = room - self.loop

    def head(self, columns: Sequence[Column], last: str) -> Strip:
        left = f" {fit('the loop', self.loop)}  {fit('', self.lanes + 2 * bool(self.lanes))}"
        left += fit("hook", self.hook + self.rail + 1)
        figures = "".join(f" {each.title:>{each.width}}" for each in columns)
        return row(self._width, (f"{left}{figures}  {last}", "dim"))

    def line(self, each: Row, sign: Part, columns: Sequence[Column], last: Sequence[Part], style: str) -> Strip:
        """Return a row: a `sign`, the loop, the hook in a `style`, its figures, and what comes last."""
        text = fit_name(label(each, self._names(each)), self.loop)
        spine = len(each.within)
        name: list[Part] = [(text[spine:], "strong" if each.kind == "round" else "dim" if style == "dim" else "")]
        if each.kind == "phase":
            name = [" ", (MARKS[each.name], each.name), text[spine + 2 :]]
        parts: list[Part] = [sign, (text[:spine], "faint"), *name, "  "]
        parts += [(f"{each.lanes:>{self.lanes}}  ", "edge")] * bool(self.lanes)
        hook = each.binding.hook if each.binding else ""
        parts += [(fit_name(hook, self.hook), style), (f" {each.rail:<{self.rail}}", "edge")]
        for column in columns:
            cell = column.cell(each)
            shown, look = (cell, "") if isinstance(cell, str) else cell
            parts.append((f" {shown:>{column.width}}", look))
        return row(self._width, *parts, "  ", *last, picked=style == "picked")


def shown_rows(scene: Scene, lanes: int) -> list[Row]:
    """Return the rows of the loop, computed again only where the plan, or the part that is shown, has changed."""
    view = scene.view.graph
    made_from = (scene.view.idle, view.wanted, lanes)
    if view.kept is None or view.kept[0] is not scene.plan or view.kept[1] != made_from:
        word = view.wanted.lower()
        names = {each.id: f"{each.hook} {each.point} {scene.plan.hook(each.hook).use}" for each in scene.plan.bindings}
        only = {id_ for id_, name in names.items() if word in name.lower()} if word else None
        view.kept = (scene.plan, made_from, rows(scene.plan, idle=scene.view.idle, only=only, lanes=lanes))
    return view.kept[2]


def _named(scene: Scene, each: Row) -> str:
    """Return the name of a row, of a round with how far it is."""
    state = scene.state
    if each.kind == "round" and each.name == "epoch" and state.run:
        return f"epoch {_of(state.epoch, state.run.get('max_epochs', 0))}"
    if each.kind == "round" and each.name == STAGES.get(state.stage) and state.batches:
        return f"{'batch' if state.stage == 'train' else each.name} {_of(state.batch, state.batches)}"
    return each.name


def _of(count: int, whole: int) -> str:
    return out_of(count, whole).replace("/", " of ")


STAGES = {"train": "iteration", "val": "validation", "test": "test"}
POINTS = {"start": "before_train", "save": "before_save_checkpoint"}

STUCK = 1.0
"""Seconds inside a hook from which on the run is at its row: else the mark would jump about."""


def here(scene: Scene, shown: Sequence[Row]) -> int | None:
    """Return the row where the run is now: the hook that it is in for long, or its round; None where it is over."""
    state = scene.state
    if scene.health.over or state.end:
        return None
    binding, seconds = scene.inside.get(0, (-1, 0.0))
    if seconds >= STUCK and binding >= 0:
        for place, each in enumerate(shown):
            if each.binding and each.binding.id == binding:
                return place
    stage = "train" if state.stage == "paused" else state.stage
    name = STAGES.get(stage) or POINTS.get(stage, "")
    return next((place for place, each in enumerate(shown) if each.name == name), None)


def graph(scene: Scene, width: int, height: int, focused: bool = True) -> list[Strip]:
    """Return the rows around the cursor in a box."""
    inner, room = width - 2, height - 3
    shown = shown_rows(scene, _lanes(width))
    table = Table(shown, inner, lambda each: _named(scene, each))
    columns, left = _chosen(scene, table.room)
    spare = table.room - sum(each.width + 1 for each in columns) - left - 4
    reasons = _short_reasons(scene) if left == MOST and spare >= REASON else {}
    ids = [each.binding.id if each.binding else -1 for each in shown]
    at = ids.index(scene.picked.id) if scene.picked and scene.picked.id in ids else 0
    part, now = window(len(shown), room, at), here(scene, shown)
    last = (HISTORY if left > len(HISTORY) else "the run") if left else ""
    body = [table.head(columns, f"{last:<{MOST + 2}} why here" if reasons else last)]
    for place, each in enumerate(shown[part], part.start):
        picked = each.binding is not None and each.binding is scene.picked
        sign: Part = ("▸", "focus") if picked and focused else " "
        if place == now:
            sign = ("●", CONDITION_STYLES.get(scene.health.condition, "warn"))
        style = "picked" if picked and focused else "" if each.kind != "point" or _fired(scene, each) else "dim"
        past = _past(scene, each, left)
        if each.binding and each.binding.id in reasons:
            past += [" " * (2 - cells(*past[2:])), (fit(reasons[each.binding.id], spare), "dim")]
        body.append(table.line(each, sign, columns, past, style))
    if not scene.plan.bindings or not shown:
        why_none = "nothing matches the filter" if scene.plan.bindings else "no hooks are known yet"
        body.append(row(inner, (f" {why_none}", "dim")))
    return boxed(_title(scene), body, width, height, focused, _hint(scene, len(shown) - part.stop, inner))


def _fired(scene: Scene, each: Row) -> bool:
    return each.binding is not None and scene.state.first.timing(each.binding.id).count > 0


def _title(scene: Scene) -> str:
    plan, wanted = scene.plan, scene.view.graph.wanted
    filtered = f"  / {wanted}" * bool(wanted)
    return f"[g] graph: {counted(len(plan.hooks), 'hook')} at {counted(len(plan.bound_points), 'point')}{filtered}"


def _hint(scene: Scene, below: int, width: int) -> str:
    idle = len(scene.points) - len(scene.plan.bound_points)
    parts = [f"↓ {below} more"] if below > 0 else []
    parts += [f"{counted(idle, 'idle point')}: f"] if width >= 90 else []
    return "   ".join([*parts, "of the run: v" if scene.view.whole else "last 60 s: v"])


def _chosen(scene: Scene, room: int) -> tuple[list[Column], int]:
    """Return the columns that have room, and the cells that are left for the history; none where they are too few."""
    known: dict[int, Cost] = {}  # by the identity of the row: its hash takes longer than its cost

    def of(each: Row) -> Cost:
        if id(each) not in known:
            known[id(each)] = cost(scene.state, scene.plan, scene.pace, each, scene.view.whole)
        return known[id(each)]

    def style(each: Row) -> str:
        return "" if of(each).recent else "dim"

    def ratio(each: Row) -> Part:
        times = of(each).ratio
        return "" if times is None else (factor(times), "warn" if of(each).slower else "dim")

    def share(each: Row) -> Part:
        used = of(each).share
        if used is None:
            return ("·" if each.binding else "", "faint")
        return percent(used), "strong" if used >= COSTS and each.kind != "round" else style(each)

    def took(each: Row, ns: float | None) -> Part:
        return (aligned(ns), style(each)) if ns is not None else ""

    has_device = scene.state.first.device.iteration() is not None
    columns = [
        Column("every", 7, lambda each: (of(each).every, "dim")),
        Column("n", 5, lambda each: (many(of(each).count) if of(each).count else "", "dim")),
        Column("p50   ", 8, lambda each: took(each, of(each).ns)),
        *[Column("device", 8, lambda each: took(each, of(each).device))] * has_device,
        Column("p95   ", 8, lambda each: took(each, of(each).p95)),
        Column("max   ", 8, lambda each: took(each, of(each).longest)),
        Column("vs past", 7, ratio),
        *[Column("slowest", 9, lambda each: _slowest(scene, each))] * scene.several,
        Column("%it", 5, share),
    ]
    widths = {each.title: each.width for each in columns}
    chosen: set[str] = set()
    for title in BY_WORTH:
        spare = ROOMY if title in ("p95   ", "max   ") else 0
        if title in (*widths, HISTORY) and (wide := widths.get(title, LEAST)) < room - spare:
            chosen.add(title)
            room -= wide + 1
    return [each for each in columns if each.title in chosen], min(room + LEAST, MOST) if HISTORY in chosen else 0


def _short_reasons(scene: Scene) -> Mapping[int, str]:
    """Return in a few words why each hook comes behind the one above it at its point; made once of each plan."""
    kept = scene.view.graph.reasons
    if kept is None or kept[0] is not scene.plan:
        made: dict[int, str] = {}
        for point in scene.plan.bound_points:
            for answer in neighbours(scene.plan, point.name):
                waits = [f"{', '.join(hooks)} ({place})" for place, hooks in tied(scene.plan, answer.then).items()]
                made[answer.then.id] = f"after {'; '.join(waits) or f'{answer.first.hook}, {DECIDED[answer.reason]}'}"
        kept = scene.view.graph.reasons = (scene.plan, made)
    return kept[1]


REASON = 24
"""The cells from which on a reason has room beside its row."""

HISTORY = "over the run"
BY_WORTH = ("p50   ", "%it", "device", "slowest", HISTORY, "vs past", "every", "n", "p95   ", "max   ")
"""The columns in the order in which they get their room."""

LEAST, MOST = 8, 64
"""The cells that the history of a row has at least, where there is room for it, and at most."""

ROOMY = 24
"""The cells that p95 and max leave to the history, beyond the least."""


def _slowest(scene: Scene, each: Row) -> Part:
    """Return which rank takes longest there, and how many times as long as the others."""
    if each.binding is None:
        return ""
    ranks = {number: rank.timing(each.binding.id) for number, rank in scene.state.ranks.of.items()}
    begin = scene.since(each.binding)
    times = {number: timing.firings(begin).percentile(0.5) for number, timing in ranks.items() if timing.fired(begin)}
    if len(times) < 2:
        return ""
    slowest = max(times, key=lambda number: times[number])
    others = median(ns for number, ns in times.items() if number != slowest) or 1.0
    ratio = times[slowest] / others
    return (f"r{slowest} ×{rough(ratio)}", "warn" if ratio >= 1.5 and times[slowest] > 1e6 else "dim")


def _past(scene: Scene, each: Row, room: int) -> list[Part]:
    """Return the history of a row over the run, and what is wrong with the hook."""
    state = scene.state
    if not room or (each.kind == "round" and each.name != ITERATION):
        return [" " * room]
    drawn = heights(state.histories.of(each.binding or each.name).means(state.it + 1, room))
    return [(drawn, "heat2" if each.binding else "train"), " ", mark(scene, each.binding) if each.binding else ""]


def why(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return in a box why the hook at the cursor fires where it does: a fact a row."""
    binding, inner = scene.picked, width - 2
    if binding is None:
        return empty("why", "no hook is bound to this point", width, height, focused=False)
    facts = [*reasons(scene, binding)]
    body = [row(inner, (f" {name:<8}", "dim"), text) for name, text in facts]
    more = f"enter: {len(facts) - height + 2} more" if len(facts) > height - 2 else "enter: its page"
    return boxed(f"why {binding.hook} @ {binding.point}", body, width, height, hint=more)


def over_time(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return in a box what the hook at the cursor has taken over the run."""
    binding, state, inner = scene.picked, scene.state, width - 2
    count = max(2 * (inner - LABEL - 2), 1)
    means = state.histories.of(binding).means(state.it + 1, count) if binding else []
    unit = duration(max((mean for mean in means if mean is not None), default=0.0)).split()[1]
    known = [(k + 0.5, mean / DURATIONS[unit]) for k, mean in enumerate(means) if mean is not None]
    name = f"{binding.hook} over the run" if binding else "over the run"
    if not known:
        return empty(name, "it has not fired yet", width, height, focused=False)
    points = [(state.it * part / count, mean, mean, mean) for part, mean in known]
    curves = chart([Curve("train", points)], Axis(0, state.it), inner, height - 2)
    return boxed(f"{name}, {unit}", curves, width, height)


def page(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the graph, and below it, where there is room, the reasons and the time of the hook at the cursor."""
    least = 0 if height < 18 else 7
    high = min(needed(scene, width), height - least)
    low = min(height - high, 16) if least else 0
    return [*graph(scene, width, height - low), *below(scene, width, low)]


def needed(scene: Scene, width: int) -> int:
    """Return the rows of a box that has all rows of the graph."""
    return len(shown_rows(scene, _lanes(width))) + 3


def _lanes(width: int) -> int:
    return max(width // 24, 2)


def below(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the reasons and the time of the hook at the cursor, side by side where there is room."""
    if not height:
        return []
    if width < 76:
        return why(scene, width, height)
    right = max(width * 2 // 5, 36)
    return beside(why(scene, width - right, height), over_time(scene, right, height))


def _move(scene: Scene, step: int) -> None:
    """Move the cursor by so many rows, and on from there to the next hook."""
    shown = shown_rows(scene, 2)
    bound = [place for place, each in enumerate(shown) if each.binding]
    here = next((place for place in bound if shown[place].binding is scene.picked), -1)
    ahead = [place for place in bound if (place - here) * step >= step * step]
    for place in (ahead[:1] if step > 0 else ahead[-1:]) or (bound[-1:] if step > 0 else bound[:1]):
        picked = shown[place].binding
        assert picked is not None
        scene.view.point, scene.view.hook = picked.point, scene.plan.at(picked.point).index(picked)


HIDDEN = "the filter hides the hook at the cursor: an arrow key goes to one that it shows"


def picked_is_shown(scene: Scene) -> bool:
    """Return whether the filter lets the hook at the cursor through."""
    return any(each.binding is not None and each.binding is scene.picked for each in shown_rows(scene, 2))


def _open_hook(scene: Scene) -> Notice | None:
    """Open the page of the hook at the cursor, unless the filter hides it."""
    if scene.picked is not None and not picked_is_shown(scene):
        return Notice(HIDDEN)
    scene.view.open("hook")
    return None


def _filter(scene: Scene) -> None:
    def apply(scene: Scene, text: str) -> None:
        scene.view.graph.wanted = text.strip()

    scene.view.prompt = Prompt("/", lambda scene, text: None, apply, text=scene.view.graph.wanted)


PANEL = Page(
    "graph",
    graph,
    move=_move,
    enter=_open_hook,
    actions=(Action("filter-graph", "/", "show the hooks with a text in their name, point or class", _filter),),
)
"""The graph on the first screen."""

GRAPH = replace(
    PANEL,
    draw=page,
    key="g",
    about="the graph: the loop with all hooks, their order, their times and the reasons; and back",
    hints=lambda scene: [
        ("up down", "hook"),
        ("open", "its page"),
        ("filter-graph", "filter"),
        ("whole-run", "window"),
        ("idle-points", "idle points"),
    ],
)
