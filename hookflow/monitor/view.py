"""The view: page, cursor and filters that the user has chosen, and the scene drawn from it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from textual.strip import Strip

from hookflow.events.commands import split_setting, wrong
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.render.loop import Row
from hookflow.metric_mode import mode_by_name
from hookflow.monitor.charts import Pixels, Unit
from hookflow.monitor.compare import Side
from hookflow.monitor.costs import Traced, since
from hookflow.monitor.health import Health, Machine, Pace, share
from hookflow.monitor.index import Row as RunRow
from hookflow.monitor.journal import Entry, Key, Shown, Timeline
from hookflow.monitor.state import RunState


@dataclass(frozen=True, slots=True)
class Notice:
    """The answer of a key without effect."""

    text: str


Command = Callable[["Scene"], str | Notice | None]
"""Changes the view, and returns what the app is to do (see `MonitorApp`) or say."""


@dataclass(frozen=True, slots=True)
class Action:
    """What a key does, by a name: of the palette, and of `dashboard.toml`, which may give it other keys.

    `keys` are characters, or the names that Textual gives to other keys, separated by blanks. Where `about` is that of
    the action before it, the help shows both in one row. `only` in this kind of run; "question" is no action:
    it explains the answers to questions.
    """

    name: str
    keys: str
    about: str
    do: Command | str
    only: Literal["", "live", "replay", "question", "ranks"] = ""


Hints = Callable[["Scene"], Sequence[tuple[str, str]]]
"""Returns names of actions, separated by blanks, and a word about them for the footer."""

KeyMap = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of actions with the keys that the user has given them."""


@dataclass(slots=True)
class Prompt:
    """A line in which text is typed: all keys go to it until enter or esc closes it.

    `label` stands before the text. Enter calls `submit`, whose result is that of a key. `live` gets the text at each
    change, and what it was at first when esc closes the line. `complete` returns the candidates, shown above the line;
    each may have a sentence about it. The tab key takes the first one, or the one that `picked` names by its place.
    """

    label: str
    submit: Callable[["Scene", str], str | Notice | None]
    live: Callable[["Scene", str], None] | None = None
    complete: Callable[["Scene", str], Sequence[str | tuple[str, str]]] | None = None
    text: str = ""
    picked: int | None = None
    before: str = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.text


@dataclass(slots=True)
class RunsChoices:
    """The choices of the pages of runs. `at` is the path of the run at the cursor, `picked` has those to compare.

    `order` is the place of a key to sort by, `metric` that of the curves; `graph`: the loop of those that are compared;
    `kept` is what was listed last, behind the rows and the choices that it was made from.
    """

    at: str = ""
    picked: list[str] = field(default_factory=list)
    wanted: str = ""
    graph: bool = False
    order: int = 0
    metric: int = 0
    kept: tuple[Sequence[RunRow], object, Any] | None = None


@dataclass(slots=True)
class MetricChoices:
    """The choices of the page of the metrics.

    `name`: the row of the cursor, a metric or a group, whose name ends with "/"; `turned`: groups that were opened or
    closed; `smooth`: the factor of the moving average; `zoom`: how often the axis was halved; `at`: the iteration that
    is read off the chart, None for the newest.
    """

    name: str = ""
    turned: set[str] = field(default_factory=set)
    pattern: str = ""
    large: bool = False
    smooth: float = 0.0
    unit: Unit = "it"
    zoom: int = 0
    at: int | None = None


@dataclass(slots=True)
class LogChoices:
    """The choices of the page of the output: a source and the least level that is shown.

    `at` is the number of the last line that is shown; None follows the newest.
    """

    source: str = ""
    level: int = 0
    at: int | None = None


@dataclass(slots=True)
class GraphChoices:
    """The choices of the graph: a text that hooks must have in their names, points or classes.

    `kept` are its rows, behind the plan and the choices that they were made from; `reasons` by binding, likewise.
    """

    wanted: str = ""
    kept: tuple[Plan, object, list[Row]] | None = None
    reasons: tuple[Plan, Mapping[int, str]] | None = None


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The panels as the user has them: names of those that are hidden, and rows more for the lower ones."""

    hidden: tuple[str, ...] = ()
    lower: int = 0


@dataclass(slots=True)
class View:
    """The choices. `page` is "main" for the dashboard, in which `focus` is the number of a panel: 0 is the graph.

    `point` empty means the busiest; `event` is an entry's number, None follows the newest; `idle` lists the points too
    to which nothing is bound; `whole`: the figures are of the run, and not of that minute. In the
    gallery, `logged` is the selected name (None: the first), `shown` the number of an item of that name (None: the
    newest); `beside`: earlier images stand beside it. `traced`: the place of an iteration in its trace.
    `search`: the text that stands out in all rows. `offered`: the names of the checkpoints to go back to, as they were
    when the question was first shown: a key means what it meant then, whatever the run saves meanwhile.
    """

    focus: int = 0
    zoomed: bool = False
    page: str = "main"
    asking: Literal["", "quit", "stop", "rewind", "rerun", "delete run", "resume run"] = ""
    prompt: Prompt | None = None
    point: str = ""
    hook: int = 0
    event: int | None = None
    rank: int = 0
    metric: int = 0
    log: bool = False
    whole: bool = False
    idle: bool = False
    logged: Key | None = None
    shown: int | None = None
    traced: int = 0
    beside: bool = False
    scroll: int = 0
    graph: GraphChoices = field(default_factory=GraphChoices)
    search: str = ""
    offered: Sequence[str] | None = None
    runs: RunsChoices = field(default_factory=RunsChoices)
    metrics: MetricChoices = field(default_factory=MetricChoices)
    output: LogChoices = field(default_factory=LogChoices)
    panels: Arrangement = Arrangement()

    def open(self, page: str) -> None:
        self.page, self.scroll = page, 0


class Line(NamedTuple):
    """A line of the output or of the messages: its number, how serious it is (0 to 2), its origin, and its text."""

    number: int
    level: int
    origin: str
    text: str


@dataclass(slots=True)
class Scene:
    """Everything that a screen is drawn from. `badge` is LIVE, FROZEN, REPLAY or ENDED, with what belongs to it.

    `path`: the run directory, as people read it. `remote`: the run is on another machine. `output`: the lines that the
    training printed, while they are shown. `kept`: the checkpoints on the disk and their files of weights, while an
    event is shown or the run is to go back. `images`: the logged images that are looked at, by their numbers, or why
    there is none; `trace` likewise. `rerun`: the report of a rerun,
    each line with its style. `inside`: where the training threads are, see `look_inside`; `stacks`: theirs,
    taken at the moment `looked`. `visible`: the panels that the whole dashboard has room for. `rows`: the runs of the
    folder, and `compared` those beside each other, while they are shown; `listing`: what is still being read of them,
    in words. `timeline`: of a recording. `keymap`: the user's keys.
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
    output: Sequence[Line] = ()
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    images: Mapping[int, Pixels | str] = field(default_factory=dict)
    trace: Sequence[Traced] | str = ""
    rerun: Sequence[tuple[str, str]] = ()
    replay: bool = False
    timeline: Timeline | None = None
    readonly: bool = False
    notice: str = ""
    inside: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    visible: Collection[int] = range(5)
    rows: Sequence[RunRow] = ()
    compared: Sequence[Side] = ()
    listing: str = ""
    stacks: Mapping[int, Sequence[str]] = field(default_factory=dict)
    looked: float = 0.0
    keymap: KeyMap = ()
    points: list[str] = field(init=False)
    pace: Pace = field(init=False)
    busiest: str = field(init=False)

    def __post_init__(self) -> None:
        self.points = [point.name for point in self.plan.points]
        self.pace = Pace.of(self.state)
        bound = [point for point in self.points if self.plan.at(point)]
        self.busiest = max(bound, key=self._cost, default="")
        if (failure := self.state.ranks.first_failure) and not self.view.point:
            _, error = failure
            hooks = [binding.hook for binding in self.plan.at(error["point"])]
            if error["hook"] in hooks:
                self.view.point, self.view.hook = error["point"], hooks.index(error["hook"])

    def _cost(self, point: str) -> tuple[int, bool, int]:
        """Return what to compare points by: the time of their hooks in iterations, then how many hooks they have."""
        bindings = self.plan.at(point)
        inside = self.plan.points.in_iteration(point)
        spent = sum(self.state.first.timing(binding.id).total for binding in bindings) if inside else 0
        return spent, point == "after_train_iter", len(bindings)

    @property
    def short_id(self) -> str:
        """The end of the run's id."""
        return self.path.name.rsplit("-", 1)[-1]

    @property
    def known_as(self) -> str:
        """The name by which commands find the run: the short id, or its directory where they would not look."""
        return self.short_id if self.path.parent.parent == Path("runs") else str(self.path)

    @property
    def can_kill(self) -> bool:
        """Whether to offer to end the process at once: it stalls here, or has not stopped though asked to."""
        requested = any(request.cmd == "stop" for request in self.state.pending)
        return not self.remote and (requested or self.health.condition == "stalled")

    @property
    def can_act(self) -> bool:
        """Whether commands can be sent to the run."""
        return not (self.replay or self.readonly or self.health.over)

    @property
    def several(self) -> bool:
        return self.state.ranks.world > 1

    @property
    def focus(self) -> int:
        """The number of the panel that the keys act on: beside others, it is one that has room."""
        alone = self.view.zoomed or not self.visible
        return self.view.focus if alone or self.view.focus in self.visible else 0

    def since(self, binding: Binding) -> float:
        """Return when the window of a binding begins."""
        return since(self.state, self.plan, binding)

    def spent(self, binding: Binding) -> int:
        return self.state.first.timing(binding.id).spent(self.since(binding))

    def share(self, *bindings: Binding) -> float:
        """Return the share of the last minute's iterations that these bindings took."""
        return share(self.state, self.plan, self.pace, *bindings)

    @property
    def point(self) -> str:
        """The point whose hooks are shown."""
        return self.view.point or self.busiest

    @property
    def picked(self) -> Binding | None:
        """The binding that the cursor is on."""
        bound = self.plan.at(self.point)
        return bound[min(self.view.hook, len(bound) - 1)] if bound else None

    @property
    def entry(self) -> Entry | None:
        """The event that the cursor is on."""
        entries = list(self.state.journal)
        if self.view.event is not None:
            entries = [entry for entry in entries if entry.number >= self.view.event][:1] or entries
        return entries[-1] if entries else None

    @property
    def logged(self) -> Key | None:
        keys = self.state.gallery.keys
        return self.view.logged if self.view.logged in keys else next(iter(keys), None)

    @property
    def shown(self) -> Shown | None:
        held = self.state.gallery.of(self.logged) if self.logged else []
        chosen = [shown for shown in held if shown.number == self.view.shown]
        return next(iter([*chosen, *held[::-1]]), None)


def send(scene: Scene, name: str, *args: str) -> str | Notice:
    """Return what lets the app send a command to the run, or why it is not sent."""
    if scene.replay:
        return Notice("this is a replay: nothing can be asked of the run")
    if scene.health.over:
        return Notice("the run is over: nothing can be asked of it")
    if scene.readonly:
        return Notice("opened with --readonly: nothing is asked of the run")
    if why := wrong(name, args, scene.plan.settable):
        return Notice(why)
    return " ".join(["send", name, *args])


def setting_now(scene: Scene, name: str) -> str:
    """Return the value of an argument of a hook, by both their names: as it was set, or as the pipeline has it."""
    hook, _, argument = name.rpartition(".")
    if change := scene.state.setting(hook, argument):
        return split_setting(change["args"][0])[2]
    args = scene.plan.hook(hook).args
    return f"{args[argument]}" if isinstance(args, Mapping) and argument in args else "the default"


def scroll(scene: Scene, step: int) -> None:
    """Move a page by so many lines."""
    scene.view.scroll = min(max(scene.view.scroll + step, 0), 10**6)


def flip(choice: Literal["zoomed", "log", "idle", "whole", "beside"], scene: Scene) -> None:
    """Turn a choice of the view on, or off again."""
    setattr(scene.view, choice, not getattr(scene.view, choice))


@dataclass(frozen=True, slots=True)
class Page:
    """A page, or a panel of the dashboard: what draws it, and the effect of keys there.

    `key` opens the page and goes back; `about` is the help on it. `move` takes the steps of the arrows, where there is
    something to move in; enter calls `enter`. The keys of `actions` come before the general ones; `hints` are for the
    footer. `only` for several ranks is there, if it is "ranks". `head` draws the first two rows, in place of those
    about the run. Escape goes back to the page `above`. `pause`: seconds between two drawings where no key is pressed,
    for a page that costs much to draw and changes little.
    """

    name: str
    draw: Callable[[Scene, int, int], list[Strip]]
    key: str = ""
    about: str = ""
    move: Callable[[Scene, int], Notice | None] | None = scroll
    enter: Callable[[Scene], str | Notice | None] = lambda scene: scene.view.open("main")
    actions: Sequence[Action] = ()
    hints: Hints = lambda scene: [("up down", "scroll")]
    only: Literal["", "ranks"] = ""
    head: Callable[[Scene, int], list[Strip]] | None = None
    pause: float = 0.0
    above: str = "main"


def charts(state: RunState) -> list[str]:
    """Return what can be drawn over the iterations: the loss, then validation's metrics, then the rest."""
    metrics = state.metrics.by_name
    names = {base(name) for name in state.scalars} | set(metrics)
    return sorted(names, key=lambda name: (name != "loss", name not in metrics, mode_by_name(name) == "min", name))


def base(scalar: str) -> str:
    """Return a scalar's name as validation would name it: `train/loss` is the loss."""
    return scalar.removeprefix("train/").removeprefix("train_")
