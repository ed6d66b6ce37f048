"""The dashboard application: a run in several pages.

It only reads the run directory, and sends commands through it.
"""

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer
from textual.worker import Worker, WorkerState

from hookflow.events.commands import COMMANDS, stop_now
from hookflow.events.rundir import RunDir
from hookflow.monitor.bindings import NAVIGATION_KEYS, REPLAY_KEYS, TERMINAL_KEYS, TRAINING_KEYS
from hookflow.monitor.dashboard import Dashboard, ViewChoices
from hookflow.monitor.health import ALIVE_CONDITIONS, Condition
from hookflow.monitor.palette import ActionProvider
from hookflow.monitor.process_watch import (
    MachineSensor,
    MachineState,
    ProcessView,
    StackRequest,
    inspect_process,
)
from hookflow.monitor.recording import Player
from hookflow.monitor.run_store import POLLS_PER_SECOND, RunStore
from hookflow.monitor.screens import questions
from hookflow.monitor.screens.compare import CompareScreen
from hookflow.monitor.screens.dialogs import ChoiceDialog, PromptDialog
from hookflow.monitor.screens.event_details import EventDetailsScreen
from hookflow.monitor.screens.help import HelpScreen
from hookflow.monitor.screens.hook_details import HookDetailsScreen
from hookflow.monitor.screens.hooks import HooksScreen
from hookflow.monitor.screens.log import LogScreen
from hookflow.monitor.screens.media import MediaScreen
from hookflow.monitor.screens.metrics import MetricsScreen
from hookflow.monitor.screens.overview import OverviewScreen
from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.screens.rerun import RerunScreen
from hookflow.monitor.screens.runs import RunsScreen
from hookflow.monitor.screens.stacks import StacksScreen
from hookflow.monitor.screens.system import SystemScreen
from hookflow.monitor.screens.trace import TraceScreen
from hookflow.monitor.settings import Preferences
from hookflow.monitor.state import RunState
from hookflow.monitor.terminal import DashboardResult, Severity, make_announcement
from hookflow.monitor.widgets.replay_bar import list_moments

CALM_AFTER = 5.0
"""Seconds without a change until there are fewer looks at the log."""

CALM_PAUSE = 2.0
"""Seconds between looks at the log then."""

SECONDS_BETWEEN_LOOKS, CALM_SECONDS_BETWEEN_LOOKS = 1.0, 10.0
"""Seconds between looks at the process and the machine; the second while nothing changes."""

SKIPPED_SHARE = 0.05
"""The share of a recording that a long step takes."""


PAGE_SCREENS: tuple[type[PageScreen], ...] = (
    OverviewScreen,
    HooksScreen,
    MetricsScreen,
    MediaScreen,
    LogScreen,
    TraceScreen,
    RunsScreen,
)
"""The pages, in the order of their digits."""

DETAIL_SCREENS: tuple[type[PageScreen], ...] = (
    HookDetailsScreen,
    CompareScreen,
    RerunScreen,
    EventDetailsScreen,
)
"""Screens that a page opens."""


class ProcessSeen(Message):
    """A worker has looked at the processes of a run and at the machine."""

    def __init__(
        self, directory: RunDir, process: ProcessView, machine: MachineState | None
    ) -> None:
        super().__init__()
        self.directory = directory
        self.process = process
        self.machine = machine


class MonitorApp(Dashboard):
    """Shows the run in `run`, live; or its recording, `replay` times as fast as it was.

    It begins with `page`; another run of the folder can be opened from there. With `readonly` no
    key asks anything of the run. An attempt that a mistake ends before it has begun, after the
    moment `since` (seconds since 1970), closes the dashboard: there is nothing to see. `child_exit`
    is called now and then, where the caller is the parent of the process that trains: see
    `hookflow.runner.distributed.failures`.
    """

    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        page.page_name: page for page in PAGE_SCREENS
    }
    COMMANDS: ClassVar[set[Any]] = {ActionProvider}

    BINDINGS: ClassVar[list[BindingType]] = [
        *NAVIGATION_KEYS,
        *TRAINING_KEYS,
        *REPLAY_KEYS,
        *TERMINAL_KEYS,
    ]

    def __init__(
        self,
        run: RunDir,
        *,
        replay: float | None = None,
        readonly: bool = False,
        since: float = math.inf,
        child_exit: Callable[[], int | None] = lambda: None,
        page: str = "overview",
        preferences: Preferences | None = None,
    ) -> None:
        super().__init__(
            RunStore(run, replay=replay, readonly=readonly), preferences or Preferences()
        )
        self._since = since
        self._child_exit = child_exit
        self._own_run = run
        self._first_page = page
        self._sensor: MachineSensor | None = None
        self._timer: Timer | None = None
        self._looked_at = -math.inf
        self._changed_at = time.monotonic()
        self._shown_revision = -1
        self._condition: Condition | None = None
        self._wants_stacks = False
        self._trouble_number: int | None = None
        """The number of the warning or error in the journal that was gone to."""
        self._answered_ids: set[str] = set()
        """The commands whose answers have been shown."""
        self.set_keymap(self.preferences.settings.make_keymap())

    @property
    def state(self) -> RunState:
        """The run as far as it has been read."""
        return self.store.live_state

    @property
    def run_dir(self) -> RunDir:
        """The run, where its directory is now."""
        return self.store.current_directory()

    @property
    def page(self) -> PageScreen | None:
        """The page on the screen.

        It is None while something is above it, or while another page is being made.
        """
        if not self.screen_stack:
            return None
        if isinstance(self.screen, PageScreen):
            return self.screen
        return None

    def get_default_screen(self) -> Screen[Any]:
        return Screen(id="_default")

    async def on_mount(self) -> None:
        self.title = f"hookflow {self.store.name}"
        self.take_terminal()
        await self.switch_mode(self._first_page)
        if not self.store.is_replay:
            self._sensor = MachineSensor()
        self._tick()

    # Reading

    def _tick(self) -> None:
        """Read on, show what has changed, and come back: soon while a long log comes in pieces."""
        if not self.screen_stack:  # the app is on its way out
            return
        pause = self.store.poll()
        if self.store.is_ended_by_mistake(self._since) and self.store.directory == self._own_run:
            self.exit(DashboardResult.ENDED)
            return
        if self.store.revision != self._shown_revision:
            self._shown_revision = self.store.revision
            self._changed_at = time.monotonic()
        self._announce_condition()
        self._tell_answers()
        self._close_vain_question()
        self._read_sensors_if_due()
        if self.page is not None:
            self.page.update_run()
        plays = self.store.player is not None and self.store.player.playing
        if self._is_calm and not plays:
            pause = CALM_PAUSE
        self._timer = self.set_timer(pause, self._tick)

    @property
    def _is_calm(self) -> bool:
        return time.monotonic() - self._changed_at > CALM_AFTER

    def show_changes(self) -> None:
        """Show what has changed, now; what was asked for is soon to be seen."""
        was_calm = self._is_calm
        self.store.refresh()
        self._changed_at = time.monotonic()
        if self.page is not None:
            self.page.update_run(now=True)
        if was_calm and self._timer is not None:  # else the next look is near
            self._timer.stop()
            self._timer = self.set_timer(1 / POLLS_PER_SECOND, self._tick)

    def _announce_condition(self) -> None:
        """Let the terminal announce an end, a failure or a stall of a watched run."""
        store = self.store
        if store.is_replay or store.is_behind:
            return
        health = store.assess_live_health()
        before = self._condition
        self._condition = health.condition
        is_new = before in ALIVE_CONDITIONS and before != health.condition
        if is_new and health.occasion in self.preferences.settings.notify:
            self.write(make_announcement(store.directory, health))

    def _tell_answers(self) -> None:
        """Say what the run has answered to the commands that were sent from here."""
        for id_ in self.store.sent_ids - self._answered_ids:
            request = self.store.live_state.requests.get(id_)
            if request is None or request.answer is None:
                continue
            self._answered_ids.add(id_)
            answer = request.answer
            outcome = "refused"
            severity: Severity = "warning"
            if answer["ok"]:
                outcome = "done"
                severity = "information"
            notice = f"◉ {request.text} {outcome} at iteration {answer['it']}"
            if answer["note"]:
                notice += f": {answer['note']}"
            self.say(notice, severity=severity)

    def _close_vain_question(self) -> None:
        """Close a question about the training once it has no answer any more.

        It has none once the training has ended.
        """
        dialog = self.screen
        if isinstance(dialog, ChoiceDialog) and dialog.about_training and self.store.health.over:
            dialog.dismiss("")

    # Looks at the process and the machine

    def _read_sensors_if_due(self) -> None:
        if self._sensor is None:
            return
        if self._is_calm:
            pause = CALM_SECONDS_BETWEEN_LOOKS
        else:
            pause = SECONDS_BETWEEN_LOOKS
        if time.monotonic() - self._looked_at >= pause:
            self._read_sensors(self._sensor)

    def read_stacks(self) -> None:
        """Take the stacks of all ranks again."""
        self._wants_stacks = True
        if self._sensor is not None:
            self._read_sensors(self._sensor)

    def _read_sensors(self, sensor: MachineSensor) -> None:
        """Look at the process, and at the machine while the run goes on.

        A thread does it, since it may take seconds.
        """
        store = self.store
        directory = store.directory
        before = store.process
        over = store.health.over
        request = StackRequest(
            store.make_ranks_here(),
            store.plan,
            shown=isinstance(self.page, StacksScreen) and not store.readonly,
            stalls=store.health.condition == "stalled" and not store.readonly,
            again=self._wants_stacks,
        )
        self._wants_stacks = False
        self._looked_at = time.monotonic()

        def inspect_once() -> None:
            self._child_exit()
            process = inspect_process(directory, before, request)
            if over or process.life == "remote":
                machine = None
            else:
                machine = sensor.look()
            self.post_message(ProcessSeen(directory, process, machine))

        self.run_worker(
            inspect_once, thread=True, group="look", exclusive=True, exit_on_error=False
        )

    def on_process_seen(self, message: ProcessSeen) -> None:
        if message.directory == self.store.directory:
            self.store.process = message.process
            self.store.machine = None if self.store.health.over else message.machine
            if self.page is not None:
                self.page.update_machine()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Say what has gone wrong in a thread."""
        if event.state == WorkerState.ERROR and event.worker.error is not None:
            self.say(f"{event.worker.group}: {event.worker.error!r}", severity="error")

    # Pages

    async def action_show_page(self, name: str) -> None:
        self.show_page(name)

    def show_page(self, name: str) -> None:
        self.switch_mode(name)

    def open_run(self, store: RunStore) -> None:
        """Show another run; the choices among the runs stay."""
        self.store = store
        self.choices = ViewChoices(by_order=self.choices.by_order)
        self.title = f"hookflow {store.name}"
        self._condition = None
        self._trouble_number = None
        self._shown_revision = -1
        self._looked_at = -math.inf
        self.show_page("overview")
        self.show_changes()

    def action_help(self) -> None:
        self._toggle_screen(HelpScreen, lambda: HelpScreen(self.page))

    def action_system(self) -> None:
        self._toggle_screen(SystemScreen, SystemScreen)

    def action_stacks(self) -> None:
        self._toggle_screen(StacksScreen, StacksScreen)

    def _toggle_screen(self, kind: type[Screen[Any]], make: Callable[[], Screen[Any]]) -> None:
        """Open a screen above the page; close it where it is on top."""
        if isinstance(self.screen, kind):
            self.pop_screen()
        else:
            self.push_screen(make())

    def action_toggle_window(self) -> None:
        self.choices.whole_attempt = not self.choices.whole_attempt
        window = "the last 60 s"
        if self.choices.whole_attempt:
            window = "the whole attempt"
        self.say(f"times of hooks: {window}")
        self.show_changes()

    def action_freeze_or_play(self) -> None:
        if self.store.player is not None:
            self.store.player.toggle()
        else:
            self.store.toggle_freeze()
        self.show_changes()

    def action_older_trouble(self) -> None:
        self._go_to_trouble(-1)

    def action_newer_trouble(self) -> None:
        self._go_to_trouble(1)

    def _go_to_trouble(self, step: int) -> None:
        """Go to the newest warning or error in the log, then to older ones, or back.

        It goes round and round.
        """
        numbers = [entry.number for entry in self.store.state.journal if entry.trouble]
        if not numbers:
            self.say("no warnings or errors")
            return
        if step < 0:
            at = len(numbers)
            if self._trouble_number is not None:
                at = bisect_left(numbers, self._trouble_number)
            place = at - 1  # behind the oldest one the newest comes again
        else:
            place = 0
            if self._trouble_number is not None:
                place = bisect_right(numbers, self._trouble_number) % len(numbers)
        self._trouble_number = numbers[place]
        self.choices.log_entry = self._trouble_number
        self.show_page("log")
        self.show_changes()

    # The training

    def action_command(self, name: str) -> None:
        self.send_command(name)

    def action_pause(self) -> None:
        is_paused = self.store.state.stage == "paused"
        self.send_command(self.store.choose_undoing_command("pause", "resume", is_on=is_paused))

    def action_switch_hook(self) -> None:
        """Switch the hook at the cursor off, or on again."""
        page = self.page
        binding = None
        if page is not None:
            binding = page.hook_at_cursor
        if binding is None:
            self.say("no hook is at the cursor")
            return
        is_on = binding.hook not in self.store.state.disabled
        command = self.store.choose_undoing_command("on", "off", binding.hook, is_on=is_on)
        if self.send_command(command, binding.hook) and command == "off":
            self.say(f'hook "{binding.hook}" off; the same key switches it on again')

    def action_set_argument(self) -> None:
        questions.ask_for_setting(self)

    def action_rewind(self) -> None:
        questions.ask_for_rewind(self)

    def action_stop(self) -> None:
        self.ask_to_stop()

    def ask_to_stop(self) -> None:
        questions.ask_to_stop(self, self._kill)

    def _kill(self) -> None:
        """End the run's process, from a thread: it may take its time."""
        directory = self.store.directory

        def kill() -> None:
            with self.telling("cannot end the process"):
                stop_now(directory, lambda step: self.say(step, 30.0, severity="warning"))

        self.run_worker(kill, thread=True, group="kill", exclusive=True, exit_on_error=False)

    def run_command(self, name: str) -> None:
        """Send a command of the palette, after asking for what it takes."""
        takes = COMMANDS[name].takes
        if name == "rewind":
            self.action_rewind()
        elif name == "stop":
            self.action_stop()
        elif name == "set":
            self.action_set_argument()
        elif takes and not takes.startswith("["):
            questions.ask_for_argument(self, name)
        else:
            self.send_command(name)

    # A replay

    def action_replay_step(self, frames: int) -> None:
        self._change_replay(lambda player: player.step(frames))

    def action_replay_skip(self, direction: int) -> None:
        self._change_replay(lambda player: player.skip(direction * SKIPPED_SHARE))

    def action_replay_start(self) -> None:
        self._change_replay(lambda player: player.go_to(player.recording.first))

    def action_replay_end(self) -> None:
        self._change_replay(lambda player: player.go_to(player.recording.last))

    def action_replay_speed(self, by: float) -> None:
        self._change_replay(lambda player: player.change_speed(by))

    def _change_replay(self, change: Callable[[Player], None]) -> None:
        player = self._find_player()
        if player is not None:
            change(player)
            self.show_changes()

    def _find_player(self) -> Player | None:
        """Return the player of a replay; where the run is no replay, a notice says so."""
        if self.store.player is None:
            self.say("only a replay has this: hookflow watch --replay")
        return self.store.player

    def action_epoch(self, step: int) -> None:
        """Go to the end of an epoch before the moment, or after it."""
        player = self._find_player()
        if player is None:
            return
        times = [moment.t for moment in list_moments(self.store) if moment.kind == "epoch"]
        if step > 0:
            ahead = [t for t in times if t > player.moment]
        else:
            ahead = [t for t in reversed(times) if t < player.moment]
        if not ahead:
            self.say("no end of an epoch there")
            return
        player.go_to(ahead[0])
        self.show_changes()

    def action_replay_iteration(self) -> None:
        player = self._find_player()
        if player is None:
            return

        def go(text: str | None) -> None:
            if text is None:
                return
            digits = text.strip().replace(",", "").replace("_", "")
            if not digits.isdecimal():
                self.say(f'"{text}" is no iteration', severity="warning")
            elif not player.go_to_iteration(int(digits)):
                self.say(f"iteration {digits} is not in this recording", severity="warning")
            self.show_changes()

        self.push_screen(PromptDialog("go to iteration"), go)

    def resume_replay(self) -> None:
        """Let a replay go on from where it was: it was not watched meanwhile."""
        if self.store.player is not None:
            self.store.player.restart_clock()

    # The terminal

    def action_next_theme(self) -> None:
        self.next_theme()
        self.show_changes()

    def action_switch_mouse(self) -> None:
        self.switch_mouse()

    def action_save_image(self) -> None:
        self.save_image(self.store.directory.path)

    def action_leave(self) -> None:
        """Leave; ask first whether the training goes on, where it can be stopped."""
        store = self.store
        if store.can_act:
            questions.ask_to_leave(self)
        else:
            self.leave()

    async def action_quit(self) -> None:
        self.action_leave()

    def leave(self) -> None:
        """Leave the dashboard; the training goes on, if it does."""
        is_own_run = self.store.directory == self._own_run
        has_ended = self.store.is_replay or self.store.health.over
        if is_own_run and has_ended:
            self.exit(DashboardResult.ENDED)
        else:
            self.exit(DashboardResult.DETACHED)

    def stop_and_leave(self) -> None:
        """Ask the run to stop, and leave where that was possible; else a notice says why not."""
        if self.send_command("stop"):
            self.exit(DashboardResult.STOP)


def list_bindings_by_page() -> dict[str, list[Binding]]:
    """Return the keys of the dashboard that have a name.

    The keys of every page are under "", and those of each page come after them.
    """
    pages: dict[str, list[Binding]] = {
        "": [*_named_bindings(MonitorApp), *_named_bindings(PageScreen)]
    }
    screens: tuple[type[PageScreen], ...] = (*PAGE_SCREENS, StacksScreen, *DETAIL_SCREENS)
    for screen in screens:
        own = _named_bindings(screen)
        if own:
            pages[screen.page_name] = own
    return pages


def _named_bindings(owner: type[DOMNode]) -> list[Binding]:
    """Return the bindings that a class itself declares and names, one a name."""
    declared = owner.__dict__.get("BINDINGS", [])
    return [each for each in declared if isinstance(each, Binding) and each.id]


def list_pages_of_actions() -> dict[str, list[str]]:
    """Return the names that `dashboard.toml` may give keys to, each with its pages.

    "" stands for every page.
    """
    pages: dict[str, list[str]] = {}
    for page, bindings in list_bindings_by_page().items():
        for binding in bindings:
            assert binding.id is not None
            pages.setdefault(binding.id, []).append(page)
    return pages
