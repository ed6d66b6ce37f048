"""A plan as the loop that a run walks: rounds, phases and hooks in one order, a row each.

before_train             ┌─  whiten
                         └─▶ ema
↻ epoch
┊ before_train_epoch         throughput
┊↻ iteration
┊┊ ░ data
┊┊   before_train_iter       lr_schedule
┊┊ █ forward
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from hookflow.graph.offload import threads
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.render.text import gutter, rails
from hookflow.graph.why import rows_of

OPENS = {
    "before_train_epoch": "epoch",
    "before_fetch": "iteration",
    "before_val": "validation",
    "before_test": "test",
    "before_predict": "prediction",
}
"""By the first point of a round its name."""

CLOSES = {"after_train": "epoch", "after_train_epoch": "iteration", "before_save_checkpoint": "validation"}
CLOSES |= {"before_predict": "test", "on_exception": "prediction"}
"""By the first point behind a round its name."""

BEGINS = {
    "before_train_iter": "data",
    "global_forward_pre": "forward",
    "global_full_backward_pre": "backward",
    "optimizer_step_pre": "optimizer",
}
"""By the first point in or behind a phase of the iteration its name."""

ALWAYS = ("epoch", "iteration")
"""The rounds that are shown though nothing is bound there."""


@dataclass(frozen=True, slots=True)
class Row:
    """A round, a phase, or a point with the binding that fires there; `within` are the rounds around it.

    `first`: the row names its point, which rows below share. A point to which nothing is bound has no binding. `lanes`
    are the edges to others of the point, `rail` the arounds and the threads of offloaded hooks that pass.
    """

    kind: Literal["round", "phase", "point"]
    name: str
    within: tuple[str, ...]
    binding: Binding | None = None
    first: bool = True
    lanes: str = ""
    rail: str = ""


def rows(plan: Plan, *, idle: bool = False, only: Collection[int] | None = None, lanes: int = 8) -> list[Row]:
    """Return the rows from the first point to the last; `idle` ones too, to which nothing is bound.

    `only` the bindings of these ids are shown, without edges: those to others would lead nowhere. There are `lanes` of
    edges at most.
    """
    drawn: list[Row] = []
    within: list[str] = []
    empty: list[str] = []  # rounds that are not shown until there is something in them
    every = [*_bound(plan)]
    beside = dict(zip((each.id for each in every), rails(every, 4, threads(plan, every)), strict=True))
    for point in plan.points:
        if (over := CLOSES.get(point.name)) in within:
            within.remove(over)
        if opened := OPENS.get(point.name):
            empty.append(opened)
            within.append(opened)
        bound = [each for each in plan.at(point.name) if only is None or each.id in only]
        phase = BEGINS.get(point.name) if only is None else None
        if bound or idle or phase:
            for name in [name for name in empty if name in within and (bound or idle or name in ALWAYS)]:
                empty.remove(name)
                drawn.append(Row("round", name, tuple(within[: within.index(name)])))
        if phase:
            drawn.append(Row("phase", phase, (*within,)))
        edges = gutter(len(bound), rows_of(plan, point.name), limit=lanes) if only is None else [""] * len(bound)
        for at, (each, drawing) in enumerate(zip(bound, edges, strict=True)):
            rail = beside[each.id] if only is None else ""
            drawn.append(Row("point", point.name, (*within,), each, at == 0, drawing, rail))
        if idle and not bound:
            drawn.append(Row("point", point.name, (*within,)))
    return drawn


def _bound(plan: Plan) -> Iterator[Binding]:
    for point in plan.bound_points:
        yield from plan.at(point.name)


MARKS = {"data": "░", "forward": "█", "backward": "▓", "optimizer": "▒"}
"""The fills of the phases, as in the bar of an iteration."""


def label(row: Row, name: str = "") -> str:
    """Return the text of the first column: as many strokes as there are rounds around it, and its name."""
    spine, name = "┊" * len(row.within), name or row.name
    if row.kind == "round":
        return f"{spine}↻ {name}"
    if row.kind == "phase":
        return f"{spine} {MARKS[row.name]} {name}"
    indent = 3 if row.within[-1:] == ("iteration",) else 2  # behind the marks of the phases
    return f"{spine}{' ' * indent}{name}" if row.first else spine
