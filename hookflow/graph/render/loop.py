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

from hookflow.graph.offload import iter_threads
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.render.text import draw_gutter, draw_rails
from hookflow.graph.why import list_drawn_edges

OPENING_POINTS = {
    "before_train_epoch": "epoch",
    "before_fetch": "iteration",
    "before_val": "validation",
    "before_test": "test",
    "before_predict": "prediction",
}
"""By the first point of a round its name."""

CLOSING_POINTS = {
    "after_train": "epoch",
    "after_train_epoch": "iteration",
    "before_save_checkpoint": "validation",
}
CLOSING_POINTS |= {"before_predict": "test", "on_exception": "prediction"}
"""By the first point behind a round its name."""

PHASE_POINTS = {
    "before_train_iter": "data",
    "global_forward_pre": "forward",
    "global_full_backward_pre": "backward",
    "optimizer_step_pre": "optimizer",
}
"""By the first point in or behind a phase of the iteration its name."""

PERMANENT_ROUNDS = ("epoch", "iteration")
"""The rounds that are shown though nothing is bound there."""


@dataclass(frozen=True, slots=True)
class Row:
    """A round, a phase, or a point with the binding that fires there.

    `within` are the rounds around it.

    `first`: the row names its point, which rows below share. A point to which nothing is bound has
    no binding. `lanes` are the edges to others of the point, `rail` the arounds and the threads of
    offloaded hooks that pass.
    """

    kind: Literal["round", "phase", "point"]
    name: str
    within: tuple[str, ...]
    binding: Binding | None = None
    first: bool = True
    lanes: str = ""
    rail: str = ""


def make_rows(
    plan: Plan, *, idle: bool = False, only: Collection[int] | None = None, lanes: int = 8
) -> list[Row]:
    """Return the rows from the first point to the last; `idle` ones too, to which nothing is bound.

    `only` the bindings of these ids are shown, without edges: those to others would lead nowhere.
    There are `lanes` of edges at most.
    """
    every = _bound(plan)
    rail_of = dict(
        zip(
            (binding.id for binding in every),
            draw_rails(every, 4, iter_threads(plan, every)),
            strict=True,
        )
    )
    drawn: list[Row] = []
    rounds = _OpenRounds()
    for point in plan.points:
        rounds.enter(point.name)
        within = tuple(rounds.within)
        bound = [binding for binding in plan.at(point.name) if only is None or binding.id in only]
        phase = None
        if only is None:
            phase = PHASE_POINTS.get(point.name)
        if bound or idle:
            drawn += rounds.show()
        elif phase:
            drawn += rounds.show(PERMANENT_ROUNDS)
        if phase:
            drawn.append(Row("phase", phase, within))
        edges = [""] * len(bound)
        if only is None:
            edges = draw_gutter(len(bound), list_drawn_edges(plan, point.name), limit=lanes)
        for number, binding in enumerate(bound):
            rail = ""
            if only is None:
                rail = rail_of[binding.id]
            drawn.append(
                Row("point", point.name, within, binding, number == 0, edges[number], rail)
            )
        if idle and not bound:
            drawn.append(Row("point", point.name, within))
    return drawn


class _OpenRounds:
    """The rounds around a point, the outermost first.

    Each is hidden until there is something in it.
    """

    def __init__(self) -> None:
        self.within: list[str] = []
        self._hidden: list[str] = []

    def enter(self, point: str) -> None:
        """Close the round that is over at a point, and open the one that begins there."""
        closed = CLOSING_POINTS.get(point)
        if closed in self.within:
            self.within.remove(closed)
        opened = OPENING_POINTS.get(point)
        if opened:
            self._hidden.append(opened)
            self.within.append(opened)

    def show(self, names: Collection[str] | None = None) -> Iterator[Row]:
        """Yield the rows of the rounds that are hidden, or of those among `names`."""
        for name in list(self._hidden):
            if name in self.within and (names is None or name in names):
                self._hidden.remove(name)
                around = self.within[: self.within.index(name)]
                yield Row("round", name, tuple(around))


def _bound(plan: Plan) -> list[Binding]:
    bindings: list[Binding] = []
    for point in plan.bound_points:
        bindings += plan.at(point.name)
    return bindings


PHASE_MARKS = {"data": "░", "forward": "█", "backward": "▓", "optimizer": "▒"}
"""The fills of the phases, as in the bar of an iteration."""


def label(row: Row, name: str = "") -> str:
    """Return the text of the first column: a stroke for each round around it, and its name."""
    spine = "┊" * len(row.within)
    name = name or row.name
    if row.kind == "round":
        return f"{spine}↻ {name}"
    if row.kind == "phase":
        return f"{spine} {PHASE_MARKS[row.name]} {name}"
    if not row.first:
        return spine
    is_in_iteration = row.within[-1:] == ("iteration",)
    indent = "  "  # behind the marks of the phases
    if is_in_iteration:
        indent = "   "
    return f"{spine}{indent}{name}"
