"""The view: page, cursor and filters that the user has chosen, and the scene drawn from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hookflow.graph.plan import Binding, Plan
from hookflow.monitor.charts import Pixels
from hookflow.monitor.health import Health, Pace, share
from hookflow.monitor.journal import Entry, Key, Shown
from hookflow.monitor.machine import Machine
from hookflow.monitor.series import lower_is_better
from hookflow.monitor.state import RunState

PANELS = {1: "points", 2: "hooks", 3: "metrics", 4: "system", 5: "events", 6: "ranks"}

RANKS = 6
"""The panel that there is only where several processes train together."""


@dataclass(slots=True)
class View:
    """The choices. `point` empty means the busiest; `event` is an entry's number, None follows the newest;
    `unbound` lists the points where nothing is bound too. In the gallery, `logged` is the selected name (None:
    the first), `shown` the number of one of it (None: the newest)."""

    focus: int = 2
    zoomed: bool = False
    page: Literal["main", "hook", "event", "help", "output", "gallery"] = "main"
    asking: Literal["", "quit", "stop"] = ""
    point: str = ""
    hook: int = 0
    event: int | None = None
    rank: int = 0
    metric: int = 0
    log: bool = False
    unbound: bool = False
    logged: Key | None = None
    shown: int | None = None
    scroll: int = 0


@dataclass(slots=True)
class Scene:
    """Everything that a screen is drawn from. `badge` is LIVE, FROZEN, REPLAY or ENDED, with what belongs to it.

    `path`: the run directory, as people read it. `remote`: the run is on another machine. `output`: the last lines that
    the training printed, while they are shown. `kept`: the checkpoints on the disk and their files of weights, while
    an event is shown. `image`: the logged image that is looked at, or why there is none. `visible`: the
    panels that the whole dashboard has room for.
    """

    state: RunState
    plan: Plan
    health: Health
    view: View
    path: Path
    badge: str = "LIVE"
    clock: float = 0.0
    machine: Machine | None = None
    remote: bool = False
    output: Sequence[str] = ()
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    image: Pixels | str = ""
    replay: bool = False
    readonly: bool = False
    notice: str = ""
    visible: Collection[int] = tuple(PANELS)
    points: list[str] = field(init=False)
    pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self.points = [point.name for point in self.plan.points]
        self.pace = Pace.of(self.state, self.plan)

    @property
    def short_id(self) -> str:
        """Return the end of the run's id."""
        return self.path.name.rsplit("-", 1)[-1]

    @property
    def known_as(self) -> str:
        """Return by what the commands find the run: that, or its directory where they would not look."""
        return self.short_id if self.path.parent.parent == Path("runs") else str(self.path)

    @property
    def can_kill(self) -> bool:
        """Return whether to offer to end the process at once: it stalls here, or has not stopped though asked to."""
        requested = any(request.cmd == "stop" for request in self.state.pending)
        return not self.remote and (requested or self.health.condition == "stalled")

    @property
    def several(self) -> bool:
        """Return whether several processes train together."""
        return self.state.ranks.world > 1

    @property
    def panels(self) -> list[int]:
        """Return the panels that there are of this run."""
        return [number for number in PANELS if number != RANKS or self.several]

    def share(self, *bindings: Binding) -> float:
        """Return the share of the last minute's iterations that these bindings took."""
        return share(self.state, self.plan, self.pace, *bindings)

    @property
    def point(self) -> str:
        """Return the point whose hooks are shown."""
        if self.view.point:
            return self.view.point
        bound = [point for point in self.points if self.plan.at(point)]
        return max(bound, key=lambda point: (point == "after_train_iter", len(self.plan.at(point))), default="")

    @property
    def shown_points(self) -> list[str]:
        """Return the points to list."""
        return [point for point in self.points if self.view.unbound or self.plan.at(point) or point == self.view.point]

    @property
    def picked(self) -> Binding | None:
        """Return the binding that the cursor is on."""
        bound = self.plan.at(self.point)
        return bound[min(self.view.hook, len(bound) - 1)] if bound else None

    @property
    def entry(self) -> Entry | None:
        """Return the event that the cursor is on."""
        entries = list(self.state.journal)
        if self.view.event is not None:
            entries = [entry for entry in entries if entry.number >= self.view.event][:1] or entries
        return entries[-1] if entries else None

    @property
    def logged(self) -> Key | None:
        """Return the name in the gallery that is looked at."""
        keys = self.state.gallery.keys
        return self.view.logged if self.view.logged in keys else next(iter(keys), None)

    @property
    def shown(self) -> Shown | None:
        """Return what is looked at in the gallery."""
        held = self.state.gallery.of(self.logged) if self.logged else []
        chosen = [shown for shown in held if shown.number == self.view.shown]
        return next(iter([*chosen, *held[::-1]]), None)


def charts(state: RunState) -> list[str]:
    """Return what can be drawn over the iterations: the loss, then validation's metrics, then the rest."""
    metrics = state.metrics.by_name
    names = {base(name) for name in state.scalars} | set(metrics)
    return sorted(names, key=lambda name: (name != "loss", name not in metrics, lower_is_better(name), name))


def base(scalar: str) -> str:
    """Return a scalar's name as validation would name it: `train/loss` is the loss."""
    return scalar.removeprefix("train/").removeprefix("train_")
