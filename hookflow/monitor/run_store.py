"""The dashboard's knowledge of one run. The screens read it; the app's thread alone changes it."""

import math
import os
import pickle
import time
from collections.abc import Mapping, Sequence
from functools import cached_property

from hookflow.events.commands import find_command_problem, send
from hookflow.events.log import READ_CHUNK_BYTES
from hookflow.events.rundir import RunDir, short
from hookflow.graph.plan import Binding, Plan
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.health import Health, assess_health
from hookflow.monitor.hook_costs import find_unreached_bindings, find_window_start
from hookflow.monitor.journal import Moment
from hookflow.monitor.printed_output import PrintedOutput
from hookflow.monitor.process_watch import LocalRanks, MachineState, Place, ProcessView
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.recording import Player, Recording
from hookflow.monitor.state import RunState
from hookflow.monitor.throughput import Throughput, share

LONG_LOG = 1 << 23
"""Bytes of the logs that are still to be read, from which on the last minutes are shown first."""

POLLS_PER_SECOND, POLLS_OVER_SSH = 4.0, 2.0

SECONDS_BETWEEN_PIECES = 0.01
"""The pause between two pieces of a long log."""


class RunStore:
    """The state of a run, folded from its log, live or as a recording.

    The store also has its process as it was seen last.

    `revision` grows whenever something has changed that a screen may show. `process` and `machine`
    are set from the results of looks, see `hookflow.monitor.process_watch`.
    """

    def __init__(self, run: RunDir, *, replay: float | None = None, readonly: bool = False) -> None:
        self.directory = run
        self.readonly = readonly
        self.process = ProcessView(run.life())
        self.machine: MachineState | None = None
        self.revision = 0
        self.printed = PrintedOutput(run.output)
        self.player: Player | None = None
        self.sent_ids: set[str] = set()
        """The commands that were sent from here."""
        self._live = LogFollower(run, kept=True)
        self._newest: LogFollower | None = None
        if replay is not None:
            self.player = Player(Recording(run), replay)
        elif self._live.unread[0] > LONG_LOG:
            self._newest = LogFollower(run, newest=True)
        self.is_behind = self.player is None and self._live.unread[0] > 0
        """Whether the log is not read to its end yet: it may come in pieces."""
        self._was_read_to_end = False
        self._frozen: RunState | None = None
        self._facts: object = None
        self._pace: Throughput | None = None
        self._unreached: frozenset[int] | None = None
        self.health = self._assess_health()

    # The facts

    @property
    def live_state(self) -> RunState:
        """The run as far as it has been read, also while the view is frozen."""
        if self.player is not None:
            return self.player.recording.state
        shown = self._newest or self._live
        return shown.state

    @property
    def state(self) -> RunState:
        """The run as it is shown."""
        return self._frozen or self.live_state

    @property
    def plan(self) -> Plan:
        """The plan of the attempt that is shown; an empty one before it is written."""
        if self.player is not None:
            return self.player.recording.plan or NO_PLAN
        shown = self._newest or self._live
        return shown.plan or NO_PLAN

    @property
    def pace(self) -> Throughput:
        """The last minute."""
        if self._pace is None:
            self._pace = Throughput.of(self.state)
        return self._pace

    @property
    def unreached(self) -> frozenset[int]:
        """The ids of the bindings to whose points the run does not come."""
        if self._unreached is None:
            self._unreached = find_unreached_bindings(self.state, self.plan)
        return self._unreached

    @property
    def clock(self) -> float:
        """The moment that is shown, in seconds since 1970."""
        if self.player is not None:
            return self.player.moment
        return time.time()

    @property
    def is_replay(self) -> bool:
        return self.player is not None

    @property
    def is_frozen(self) -> bool:
        return self._frozen is not None

    @property
    def is_remote(self) -> bool:
        """Whether the run is on another machine."""
        return self.process.life == "remote"

    @property
    def has_several_ranks(self) -> bool:
        return self.state.ranks.world > 1

    @property
    def inside(self) -> Mapping[int, Place]:
        """Where the training threads of this machine are, by rank."""
        return self.process.inside

    @property
    def stacks(self) -> Mapping[int, Sequence[str]]:
        """The stacks of training threads, by rank."""
        return self.process.stacks

    @property
    def badge(self) -> str:
        """The view: LIVE, ENDED, FROZEN or REPLAY, with what belongs to it."""
        if self.player is not None:
            sign = "‖"
            if self.player.playing:
                sign = "▶"
            return f"REPLAY {self.player.speed:g}x {sign}"
        if self._frozen is not None:
            return f"FROZEN +{self.live_state.frames - self._frozen.frames}"
        if self.health.over:
            return "ENDED"
        return "LIVE"

    @property
    def path(self) -> str:
        """The run directory, as people read it."""
        return str(short(self.directory.path))

    @property
    def name(self) -> str:
        return self.directory.path.parent.name

    @property
    def short_id(self) -> str:
        """The end of the run's id."""
        return self.directory.path.name.rsplit("-", 1)[-1]

    @property
    def command_name(self) -> str:
        """The name by which commands find the run.

        It is the short id, or its directory where they would not look.
        """
        path = short(self.directory.path)
        if str(path.parent.parent) == "runs":
            return self.short_id
        return str(path)

    @cached_property
    def recorded_moments(self) -> Sequence[Moment]:
        """The moments of a recording that a key goes to; none where the run is no replay."""
        if self.player is None:
            return ()
        return self.player.recording.timeline.moments

    def find_window_start(self, binding: Binding) -> float:
        """Return when the window of the last minute begins for a binding."""
        return find_window_start(self.state, self.plan, binding)

    def share(self, *bindings: Binding) -> float:
        """Return the share of the last minute's iterations that these bindings took."""
        return share(self.state, self.plan, self.pace, *bindings)

    def current_directory(self) -> RunDir:
        """Return the run directory where it is now: it may have been moved."""
        return self._live.moved() or self.directory

    # Changes

    def poll(self) -> float:
        """Read on; return after how many seconds to do so again."""
        if self.player is not None:
            self.player.tick()
        else:
            self._read_on()
        self.refresh()
        if self.is_behind:
            return SECONDS_BETWEEN_PIECES
        if "SSH_CONNECTION" in os.environ:
            return 1 / POLLS_OVER_SSH
        return 1 / POLLS_PER_SECOND

    def _read_on(self) -> None:
        """Read a piece of the log and what was printed: the newest minutes of a long log first."""
        if self._newest is not None and self._newest.poll():
            self.is_behind = True
        else:
            self.is_behind = self._live.poll()
        if not self.is_behind:
            self._newest = None
            self._was_read_to_end = True
        self.printed.poll(self.clock)

    def refresh(self) -> None:
        """Judge the run again, and count a revision if anything has changed."""
        self._pace = None
        self._unreached = None
        self.health = self._assess_health()
        facts = self._collect_screen_facts()
        if facts != self._facts:
            self._facts = facts
            self.revision += 1

    def _collect_screen_facts(self) -> tuple[object, ...]:
        """Return what the pages depend on.

        The machine, which changes all the time, and the keys are not in it.
        """
        answers = [
            request.answer["t"] for request in self.state.requests.values() if request.answer
        ]
        has_ages = bool(self.state.pending) or any(self.clock - t < 7.0 for t in answers)
        player = self.player
        process = self.process
        return (
            self.plan,
            self.live_state.news,
            self.printed.marker,
            self._frozen is None,
            self.health,
            None if player is None else (player.moment, player.playing, player.speed),
            (process.life, process.suspicion, process.looked),
            {rank: binding for rank, (binding, _) in process.inside.items()},
            int(time.time()) if has_ages else 0,
        )

    def _assess_health(self) -> Health:
        if self.is_behind:
            unread, whole = self._live.unread
            # The end of the log has not been read yet.
            if unread > READ_CHUNK_BYTES or not self._was_read_to_end:
                text = (
                    f"reading {(whole - unread) / 1e6:.0f} of {whole / 1e6:.0f} MB of the event log"
                )
                if self._newest is not None:
                    text += ": older curves and times follow"
                return Health("reading", text)
            return self.health  # as it was when the log had been read to its end
        process = self.process
        if self.player is not None:
            return assess_health(self.state, "alive", self.clock, self.plan)
        moved = None
        if process.life == "missing":
            moved = self._live.moved()
        return assess_health(
            self.state,
            process.life,
            self.clock,
            self.plan,
            process.inside,
            process.suspicion,
            moved,
            process.stacks,
        )

    def assess_live_health(self) -> Health:
        """Return the health of the run as it has been read, also while the view is frozen."""
        process = self.process
        return assess_health(
            self.live_state,
            process.life,
            time.time(),
            self.plan,
            process.inside,
            process.suspicion,
            stacks=process.stacks,
        )

    def make_ranks_here(self) -> LocalRanks:
        """Return what a look at the processes needs."""
        return LocalRanks.of(self._live.state)

    def toggle_freeze(self) -> None:
        """Hold the view as it is, or let it go on."""
        if self._frozen is None:
            self._frozen = pickle.loads(pickle.dumps(self.state))  # noqa: S301  # quicker than a copy
        else:
            self._frozen = None
        self.refresh()

    # Commands to the run

    def find_command_obstacle(self, command: str, *args: str) -> str:
        """Return why a command cannot be sent to the run; empty if it can."""
        if self.is_replay:
            return "this is a replay: nothing can be asked of the run"
        if self.health.over:
            return "the run is over: nothing can be asked of it"
        if self.readonly:
            return "opened with --readonly: nothing is asked of the run"
        return find_command_problem(command, args, self.plan.settable)

    @property
    def can_act(self) -> bool:
        """Whether commands can be sent to the run."""
        return not (self.is_replay or self.readonly or self.health.over)

    @property
    def can_kill(self) -> bool:
        """Whether to offer to end the process at once.

        It stalls here, or has not stopped on request.
        """
        is_stopping = any(request.cmd == "stop" for request in self.state.pending)
        return not self.is_remote and (is_stopping or self.health.condition == "stalled")

    def send(self, command: str, *args: str) -> None:
        """Send a command to the run.

        A frozen view goes on, as it would not show the answer. Raises OSError.
        """
        self._frozen = None
        self.sent_ids.add(send(self.directory, command, *args))
        self._live.poll()
        self.refresh()

    def choose_undoing_command(self, on: str, off: str, *args: str, is_on: bool) -> str:
        """Return which of two commands undoes the latest of them.

        The run may not have answered that yet.
        """
        if is_on:
            latest = on
        else:
            latest = off
        for request in self.state.pending:
            if tuple(request.args) == args and request.cmd in (on, off):
                latest = request.cmd
        if latest == on:
            return off
        return on

    def is_ended_by_mistake(self, since: float) -> bool:
        """Return whether a user's mistake has ended the attempt before it began, after a moment."""
        state = self.live_state
        if since == math.inf:
            return False
        if state.refused:
            return state.refused["t"] >= since
        if state.end is not None and state.failed_to_start:
            return state.end["t"] >= since
        return False
