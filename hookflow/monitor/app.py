"""The dashboard application: one canvas, one clock, keys. It only reads the run directory."""

import math
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby, takewhile

from rich.segment import Segment
from textual import events
from textual.app import ComposeResult
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from hookflow.events.commands import send, stop_now
from hookflow.events.log import CHUNK
from hookflow.events.records import Trace
from hookflow.events.rundir import Life, RunDir, short
from hookflow.graph.plan import Plan
from hookflow.monitor import pointer
from hookflow.monitor.charts import Pixels, half_blocks, read_image
from hookflow.monitor.costs import Traced, read_trace
from hookflow.monitor.feed import Live, Player, Recording
from hookflow.monitor.health import ALIVE, Condition, Health, Machine, Process, RanksHere, Sensor, examine
from hookflow.monitor.keys import PAGES, press
from hookflow.monitor.layout import MACHINE, screen, visible
from hookflow.monitor.panels.compare import COMPARE
from hookflow.monitor.panels.frame import RECENT
from hookflow.monitor.panels.gallery import beside_each_other
from hookflow.monitor.panels.now import NOW
from hookflow.monitor.panels.output import level_of
from hookflow.monitor.panels.rerun import RERUN, Rerun
from hookflow.monitor.panels.runs import RUNS, Folder, delete, resume
from hookflow.monitor.plain import Output
from hookflow.monitor.prompt import insert
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.settings import Preferences
from hookflow.monitor.state import RunState
from hookflow.monitor.style import ThemeName, row
from hookflow.monitor.terminal import Outcome, Terminal, announcement
from hookflow.monitor.view import Line, Notice, Scene, View


class Canvas(Widget):
    """The whole screen, row by row."""

    DEFAULT_CSS = "Canvas { width: 100%; height: 100%; }"

    def __init__(self) -> None:
        super().__init__()
        self._rows: Sequence[Strip] = ()

    def show(self, rows: Sequence[Strip]) -> None:
        before, self._rows = self._rows, rows
        if len(before) != len(rows):
            self.refresh()
            return
        different: list[Region] = []
        for y, (old, new) in enumerate(zip(before, rows, strict=True)):
            if new != old:  # only what differs is painted, to the segment
                start = _common(new, old)
                end = new.cell_length - _common(reversed(list(new)), reversed(list(old)))
                different.append(Region(start, y, end - start, 1))
        if different:
            self.refresh(*different)

    def get_line_filters(self) -> list[LineFilter]:
        """Return the filters of a row without the one that converts ANSI colours: the themes have none."""
        return [each for each in super().get_line_filters() if not isinstance(each, ANSIToTruecolor)]

    def render_line(self, y: int) -> Strip:
        return self._rows[y] if y < len(self._rows) else row(self.size.width)


def _common(segments: Iterable[Segment], others: Iterable[Segment]) -> int:
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(segments, others, strict=False))
    return sum(segment.cell_length for segment, _ in pairs)


LINES = 10_000
"""Lines of the output that are held."""

LONG = 1 << 23
"""Bytes of the logs that are still to be read, from which on the last minutes are shown first."""

OF_A_TRAINING = ("quit", "stop", "rewind")
"""The questions that have no answer any more once the training has ended."""

MOST_OFFERED = 6
"""Checkpoints that are offered to go back to, the newest first."""

RATE, RATE_OVER_SSH, RATE_CALM = 4.0, 2.0, 0.5
"""Looks at the log per second: usually, and once nothing has changed for CALM seconds."""

CALM = 5.0
"""Seconds without a change until there are fewer looks."""

SENSE, SENSE_CALM = 1.0, 10.0
"""Seconds between looks at the machine; while a run is paused or over, CALM between looks at its process."""

LISTED = 2.0
"""Seconds between looks through the runs of the folder."""

DEFAULTS = Preferences()


class MonitorApp(Terminal):
    """Shows the run in `run`, live; or its recording, `replay` times as fast as it was.

    It begins with `page`; another run of the folder can be opened from there. With `readonly` no key asks anything of
    the run. An attempt that a mistake ends before it has begun, after the moment `since` (seconds since 1970), closes
    the dashboard: there is nothing to see. `child_exit` is called now and then, where the caller is the parent of the
    process that trains: see `hookflow.runner.distributed.failures`.
    """

    def __init__(
        self,
        run: RunDir,
        *,
        replay: float | None = None,
        readonly: bool = False,
        since: float = math.inf,
        child_exit: Callable[[], int | None] = lambda: None,
        page: str = "main",
        preferences: Preferences = DEFAULTS,
    ) -> None:
        super().__init__(preferences)
        self._since = since
        self._child_exit = child_exit
        self._readonly = readonly
        self._own = run
        self._folder = Folder(run.path.parent.parent)
        self._machine: Machine | None = None
        self._view = View(page=page, panels=preferences.settings.panels)
        self._open(run, replay)
        self._canvas = Canvas()
        self._painted, self._changed, self._sensed = 0.0, 0.0, -math.inf  # the last times, by a clock that is never set
        self._painted_machine: Machine | None = None
        self._known: object = None
        self._sensor: Sensor | None = None
        self._timer: Timer | None = None

    def _open(self, run: RunDir, replay: float | None = None) -> None:
        """Show a run, live or as a recording; the choices among the runs stay."""
        self.title = f"hookflow {run.path.parent.name}"
        self._dir = run
        self._live = Live(run, kept=True)
        self._newest = Live(run, newest=True) if self._live.unread[0] > LONG and replay is None else None
        self._player = Player(Recording(run), replay) if replay is not None else None
        self._view = View(page=self._view.page, runs=self._view.runs, panels=self._view.panels)
        self._frozen: RunState | None = None
        self._behind = False  # a long log comes in pieces
        self._process = Process(run)
        self._condition: Condition | None = None  # that was seen last
        self._images: dict[int, Pixels | str] = {}
        self._printed = Output(run.output, back=CHUNK)
        self._lines: deque[Line] = deque(maxlen=LINES)
        self._trace: tuple[Trace, list[Traced] | str] | None = None
        self._rerun: Rerun | None = None

    @property
    def _shown(self) -> Live | Recording:
        return self._player.recording if self._player else self._newest or self._live

    @property
    def state(self) -> RunState:
        """The run as far as it has been read; while a long log is read, its events and its last minutes."""
        return self._shown.state

    @property
    def run_dir(self) -> RunDir:
        """The run, where its directory is now."""
        return self._live.moved() or self._dir

    @property
    def plan(self) -> Plan:
        return self._shown.plan or NO_PLAN

    def compose(self) -> ComposeResult:
        yield self._canvas

    def on_mount(self) -> None:
        self.take_terminal()
        self._sensor = Sensor() if self._player is None else None
        self._tick()

    def on_resize(self) -> None:
        self.call_after_refresh(self._paint)

    def _sense(self, sensor: Sensor) -> None:
        """Look at the process and the machine, from a thread; at the machine only while the run goes on.

        What is known of the run is worked out before: the thread must not read a state that goes on meanwhile.
        """
        process, ranks, plan = self._process, RanksHere.of(self._live.state), self.plan
        is_shown = self._view.page == NOW.name
        stalls = self._health(self._live.state, time.time()).condition == "stalled"
        over = self._health(self.state, time.time()).over

        def look() -> None:
            self._child_exit()
            process.look(ranks)
            if not self._readonly:
                process.look_at_stacks(ranks, plan, is_shown=is_shown, stalls=stalls)
            if not over:
                self._machine = sensor.look() if process.life != "remote" else None

        self._sensed = time.monotonic()
        self.run_worker(look, thread=True, exclusive=True, exit_on_error=True)

    @property
    def _calm(self) -> bool:
        """Whether nothing has changed for long."""
        return time.monotonic() - self._changed > CALM

    def _tick(self) -> None:
        """Read on, paint if anything has changed, and come back: soon while a long log comes in pieces."""
        again = self._read_on()
        health = self._health(self.state, time.time())
        if not self._player and not self._behind:
            self._announce(health)
        if (facts := self._facts(health)) != self._known:
            self._known, self._changed = facts, time.monotonic()
        if health.over and self._view.asking in OF_A_TRAINING:
            self._view.asking = ""
        if self._sensor and time.monotonic() - self._sensed >= (SENSE_CALM if self._calm else SENSE):
            self._sense(self._sensor)
        page = PAGES.get(self._view.page)
        is_new = self._changed > self._painted or (self._shows_machine and self._machine is not self._painted_machine)
        pause = 1 / RATE if self._behind else page.pause if page else 0.0  # to read on is what counts then
        if is_new and time.monotonic() - self._painted >= pause:
            self._paint()
        self._timer = self.set_timer(max(again, 1 / RATE_CALM if self._calm else 0.0), self._tick)

    @property
    def _shows_machine(self) -> bool:
        return self._view.zoomed or MACHINE in self._visible

    @property
    def _visible(self) -> tuple[int, ...]:
        """The panels that the whole dashboard has room for."""
        width, height = self.size
        height -= self._player is not None
        return visible(width, height, several=self.state.ranks.world > 1, hidden=self._view.panels.hidden)

    def _facts(self, health: Health) -> tuple[object, ...]:
        """Return what a screen depends on beside keys and the machine: it is painted when one of them has changed."""
        state, clock, page, folder = self.state, time.time(), self._view.page, self._folder
        answers = [request.answer["t"] for request in state.requests.values() if request.answer]
        ages = bool(state.pending) or clock - max(answers, default=0.0) < RECENT + 1  # the footer shows seconds
        return (
            self._dir,
            self.plan,
            state.news,
            health,
            self._player and (self._player.moment, self._player.badge),
            self.notice[0] if time.monotonic() < self.notice[1] else "",
            int(clock) if ages else 0,
            self._process.looked,
            self._dir.output.stat().st_size if page == "output" and self._dir.output.exists() else 0,
            tuple(self._rerun.report()) if self._rerun and page == RERUN.name else (),
            (folder.listed, folder.listing) if page == RUNS.name else (),
            (folder.reading, *(side.state.news for side in folder.sides.values())) if page == COMPARE.name else (),
        )

    def _read_on(self) -> float:
        """Read what is new; return when to go on, in seconds."""
        again = 1 / (RATE_OVER_SSH if "SSH_CONNECTION" in os.environ else RATE)
        if self._player:
            self._player.tick()
        elif (self._newest and self._newest.poll()) or self._live.poll():
            self._behind, again = True, 0.01
        else:
            self._behind, self._newest = False, None
            end = self.state.refused or (self.state.end if self.state.failed_to_start else None)
            if end and end["t"] >= self._since and self._dir == self._own:
                self.exit(Outcome.ENDED)
        if self._view.page in (RUNS.name, COMPARE.name):
            again = self._read_runs() or again
        return again

    def _read_runs(self) -> float:
        """Read on in the runs that are compared, and list all of them now and then; return when to go on."""
        if time.monotonic() - self._folder.listed > LISTED:
            self._folder.listed = math.inf
            self.run_worker(self._folder.refresh, thread=True, group="runs", exit_on_error=True)
        return 0.01 * self._folder.read(self._view.runs.picked if self._view.page == COMPARE.name else ())

    def _paint(self) -> None:
        width, height = self.size
        self._painted, self._painted_machine = time.monotonic(), self._machine
        self._canvas.show(screen(self._scene(), width, height))

    def _scene(self) -> Scene:
        state = self._frozen or self.state
        clock = self._player.moment if self._player else time.time()
        notice, until = self.notice
        health = self._health(state, clock)
        kept = self._kept() if self._view.page == "event" or self._view.asking == "rewind" else {}
        if self._view.asking == "rewind" and self._view.offered is None:
            self._view.offered = sorted(kept, reverse=True)[:MOST_OFFERED]
        badge = f"FROZEN +{self.state.frames - state.frames}" if self._frozen else "ENDED" if health.over else "LIVE"
        scene = Scene(
            state=state,
            plan=self.plan,
            health=health,
            view=self._view,
            path=short(self._dir.path),
            badge=self._player.badge if self._player else badge,
            clock=clock,
            machine=self._machine,
            remote=self._process.life == "remote",
            output=self._output() if self._view.page == "output" else (),
            kept=kept,
            inside=self._process.inside,
            visible=self._visible,
            rows=self._folder.rows,
            compared=[*self._folder.sides.values()] if self._view.page == COMPARE.name else (),
            stacks=self._process.stacks,
            looked=self._process.looked,
            listing=self._folder.reading if self._view.page == COMPARE.name else self._folder.listing,
            rerun=self._rerun.report() if self._rerun and self._view.page == RERUN.name else (),
            replay=self._player is not None,
            timeline=self._player.recording.timeline if self._player else None,
            readonly=self._readonly,
            keymap=self.preferences.settings.keymap,
            notice=notice if time.monotonic() < until else "",
        )
        if self._view.page == "trace" and state.traces:
            if self._trace is None or self._trace[0] != state.traces[-1]:  # it is read once
                self._trace = (state.traces[-1], read_trace(self._dir.path / state.traces[-1]["path"]))
            scene.trace = self._trace[1]
        looked_at = beside_each_other(scene, self.size.width) if self._view.page == "gallery" else []
        scene.images = self._images = {  # each is read once
            shown.number: self._images.get(shown.number) or read_image(self._dir.path / shown.record["path"])
            for shown in looked_at
            if shown.record["k"] == "image"
        }
        return scene

    def _output(self) -> list[Line]:
        """Return what was printed, up to the line that has no end yet."""
        first = self._lines[-1].number + 1 if self._lines else 0
        fresh = [*self._printed.read(), self._printed.unfinished]
        lines = [Line(number, level_of(text), "", text) for number, text in enumerate(fresh, first)]
        self._lines.extend(lines[:-1])
        return [*self._lines, *lines[-1:]] if fresh[-1] else [*self._lines]

    def _kept(self) -> dict[str, list[str]]:
        paths = sorted(self._dir.checkpoints.glob("it*/*"))
        files = (path for path in paths if path.match("model*.pt") or path.suffix == ".distcp")
        return {name: [file.name for file in group] for name, group in groupby(files, lambda file: file.parent.name)}

    def _health(self, state: RunState, clock: float) -> Health:
        process = self._process
        life: Life = "alive" if self._player else process.life
        unread, whole = self._live.unread if self._behind else (0, 0)
        if unread > CHUNK:  # what the log says at its end is not known yet
            text = f"reading {(whole - unread) / 1e6:.0f} of {whole / 1e6:.0f} MB of the event log"
            return Health("reading", text + ": older curves and times follow" * (self._newest is not None))
        moved = self._live.moved() if life == "missing" else None
        return examine(state, life, clock, self.plan, process.inside, process.suspicion, moved)

    async def on_event(self, event: events.Event) -> None:
        """Take every key itself: none has a meaning to Textual here."""
        if isinstance(event, events.Key):
            self.notice = ("", 0.0)  # which was about the key before
            self._do(press(event.key, self._scene(), event.character or "" if event.is_printable else ""))
        elif isinstance(event, events.MouseEvent):
            self._point(event)
        else:
            await super().on_event(event)

    def on_paste(self, event: events.Paste) -> None:
        scene = self._scene()
        if scene.view.prompt:
            insert(scene.view.prompt, scene, event.text)
            self._paint()

    def _point(self, event: events.MouseEvent) -> None:
        """Handle a click or the wheel; a prompt or a question takes keys alone."""
        scene, at = self._scene(), (int(event.x), int(event.y))
        if scene.view.prompt or scene.view.asking:
            return
        match event:
            case events.MouseDown(button=1):
                self._do(pointer.click(scene, self._draw, *at))
            case events.MouseScrollUp() | events.MouseScrollDown():
                step = -1 if isinstance(event, events.MouseScrollUp) else 1
                self._do(pointer.wheel(scene, self._draw, *at, step))

    def _draw(self, scene: Scene) -> list[Strip]:
        return screen(scene, *self.size)

    def _do(self, answer: str | Notice) -> None:
        """Do what a key or the mouse has asked of the app, and show it."""
        match answer:
            case Notice(text):
                self.say(text)
            case "detach":
                over = self._dir == self._own and (self._player is not None or self._scene().health.over)
                self.exit(Outcome.ENDED if over else Outcome.DETACHED)
            case "stop and leave":
                if self._send("stop"):  # else the notice says why not, and the dashboard stays
                    self.exit(Outcome.STOP)
            case str() as action if action.startswith("send "):
                self._send(*action.split(" ", 2)[1:])
            case "kill":
                self.run_worker(self._kill, thread=True, group="kill", exclusive=True, exit_on_error=True)
            case "look":
                self._process.wanted, self._sensed = True, -math.inf
            case "rerun" if self._rerun and not self._rerun.over:
                self.say(f"iteration {self._rerun.it} is being done again: one rerun at a time")
                self._view.open(RERUN.name)
            case "rerun":
                with self.telling("cannot start a rerun"):
                    if self._rerun:
                        self._rerun.remove()
                    self._rerun = Rerun(self._dir, self._view.metrics.at or self.state.it)
                    self._view.open(RERUN.name)
            case "list runs":
                self._folder.listed = -math.inf
            case "delete run" | "resume run" as action:
                change = partial(self._change, action, self._folder.run(self._view.runs.at))
                self.run_worker(change, thread=True, group="change", exit_on_error=True)
            case "freeze":
                self._frozen = None if self._frozen else pickle.loads(pickle.dumps(self.state))  # noqa: S301  # quicker than a copy
            case "open":
                self._open(self._folder.run(self._view.runs.at))
                self._view.open("main")
            case "suspend":
                self.action_suspend_process()
            case "theme":
                self.next_theme()
            case "mouse":
                self.switch_mouse()
            case "remember hidden":
                self.remember("hidden", [*self._view.panels.hidden])
            case "remember lower":
                self.remember("lower", self._view.panels.lower)
            case "search":
                pointer.search(self._scene(), self.size.width)
            case "find next" | "find previous" as find:
                self._do(pointer.find(1 if find == "find next" else -1, self._scene(), self.size.width))
            case "copy row" | "copy panel" as copy:
                scene = self._scene()
                self.copy(pointer.copied(scene, self._draw(scene), copy == "copy panel"))
            case str() as action if action.startswith("copy text "):
                self.copy(text := action.removeprefix("copy text "))
                self.say(f"sent to the terminal's clipboard: {text}")
            case "image":
                self.save_image(self._dir.path)
            case str() as action if self._player:
                if why := self._player.obey(action):
                    self.say(why)
        self._paint()
        if self._calm and self._timer:  # what was asked for is soon to be seen
            self._changed = time.monotonic()
            self._timer.stop()
            self._timer = self.set_timer(1 / RATE, self._tick)

    def colour(self, name: ThemeName) -> None:
        super().colour(name)
        half_blocks.cache_clear()  # they have been drawn on the ground that was
        self._images = {}

    def _announce(self, health: Health) -> None:
        """Let the terminal announce an end, a failure or a stall that comes while the run is watched."""
        before, self._condition = self._condition, health.condition
        if before in ALIVE and health.occasion in self.preferences.settings.notify:
            self.write(announcement(self._dir, health) * (before != health.condition))

    def _send(self, command: str, *args: str) -> bool:
        """Send a command to the run, and return whether that was possible.

        A frozen view goes on, as it would show neither the answer nor its effect.
        """
        self._frozen = None
        with self.telling(f"cannot ask the run to {command}"):
            send(self._dir, command, *args)
            self._live.poll()
            return True
        return False

    def _change(self, action: str, run: RunDir) -> None:
        """Delete or resume a run of the folder, from a thread: it takes its time."""
        if action == "resume run":
            self.say(f"resuming {run.id} …", math.inf)
        self.say(delete(run) if action == "delete run" else resume(run))
        self._folder.listed = -math.inf

    def continued(self) -> None:
        """Let a replay go on from where it was: nobody has watched it meanwhile."""
        if self._player:
            self._player.restart_clock()

    def _kill(self) -> None:
        """End the run's process, from a thread: it may take its time."""
        with self.telling("cannot end the process"):
            stop_now(self._dir, lambda step: self.say(step, math.inf))  # each stays until the next
            self.say(self.notice[0])
