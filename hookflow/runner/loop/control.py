"""The commands of a user, executed at safe points: by all ranks, at the same iteration."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from hookflow.errors import UserError, nearest_or_all
from hookflow.events.commands import DEFAULT_TRACED_ITERATIONS, find_command_problem, split_setting
from hookflow.events.records import CommandRecord
from hookflow.runner.checkpoint.manifest import find_damage, is_weights_only
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.data.batches import sets_of
from hookflow.runner.dispatch.dispatcher import DisabledReason
from hookflow.runner.iteration.context import RunContext
from hookflow.runner.logging.capture import TraceCapture
from hookflow.runner.process.signals import Rewind, StopReason
from hookflow.runner.state.checkpoint_manager import CheckpointManager

CHANGING_COMMANDS = ("off", "on", "set")
"""The commands that are answered once a checkpoint has them.

A resumed run follows whatever has been answered.
"""

ALWAYS_FIRED_POINTS = (
    *("before_run", "before_train", "after_load_checkpoint"),
    *("before_save_checkpoint", "after_copy_checkpoint", "after_run"),
)
"""The points at which a hook that a command has switched off still fires.

There it sets up, saves and loads its state, so that it can be switched on again, also in a resumed
run.
"""

TRAINING_OVER = "the training is over"
"""Why a command is refused once every iteration is done."""


@dataclass
class CommandHandler:
    """Executes commands.

    The loop reads what they leave: `paused`, `stop`, `rewind`, and `validation_due`.
    """

    context: RunContext
    checkpoints: CheckpointManager
    store: CheckpointStore
    paused: bool = False
    validation_due: bool = False
    over: bool = False
    """Every iteration is done: nothing is left to command."""
    stop: StopReason | None = None
    rewind: Rewind | None = None
    _answers: list[dict[str, Any]] = field(default_factory=list)
    _steps_until: int = 0
    """The iteration up to which `step` lets a paused run train."""
    _traced_until: int = 0
    _changed_at: int = -1
    """The iteration of the latest command that changes a hook."""

    def __post_init__(self) -> None:
        self.state = self.context.state
        self._handlers: dict[str, Callable[..., str | None]] = {
            "pause": self._pause,
            "resume": self._resume,
            "step": self._step,
            "checkpoint": self._checkpoint,
            "stop": self._stop,
            "validate": self._validate,
            "trace": self._trace,
            "off": self._switch_hook_off,
            "on": self._switch_hook_on,
            "set": self._set,
            "rewind": self._rewind,
        }

    @property
    def waits(self) -> bool:
        """Whether the run waits at this safe point for the next command."""
        if not self.paused or self.state.iter < self._steps_until:
            return False
        must_go_on = self.validation_due or self.stop or self.rewind or self.over
        return not must_go_on

    def execute(self, command: CommandRecord) -> bool:
        """Execute a command, or refuse it.

        Returns whether the state is to be saved before `answer` is called.
        """
        name = command["cmd"]
        args = command["args"]
        note = ""
        if name in CHANGING_COMMANDS:
            self._changed_at = self.state.iter
        refused = find_command_problem(name, args, self.context.plan.settable)
        if not refused and self.over:
            refused = TRAINING_OVER
        if not refused:
            try:
                note = self._handlers[name](*args) or ""
            except UserError as error:
                refused = "; ".join(problem.message for problem in error.problems)
            except ValueError as error:
                refused = str(error)
        if name == "stop" and not refused:
            self.stop = StopReason(f"stopped by {command['by']}", "stopped", 0, save=True)
        about = {"id": command["id"], "cmd": name, "args": args, "sent": command["t"]}
        self._answers.append({**about, "ok": not refused, "note": refused or note})
        return not refused and name in ("checkpoint", *CHANGING_COMMANDS)

    def answer(self) -> None:
        """Record what has become of each command.

        A command `validate` is answered once the validation is over.
        """
        waiting = [
            answer
            for answer in self._answers
            if self.validation_due and answer["cmd"] == "validate"
        ]
        for answer in self._answers:
            if answer not in waiting:
                self.context.log.put("ack", **answer)
        self._answers = waiting

    def end(self) -> None:
        """Refuse what comes from here on, and a validation that a stop has left out."""
        self.over = True
        if not self.validation_due:
            return
        self.validation_due = False
        for answer in self._answers:
            if answer["cmd"] == "validate":
                answer["ok"] = False
                answer["note"] = TRAINING_OVER

    def _pause(self) -> None:
        _require(not self.paused, "the run is paused already")
        self.paused = True

    def _resume(self) -> None:
        _require(self.paused, "the run is not paused")
        self.paused = False
        self._steps_until = 0

    def _step(self) -> None:
        _require(self.paused, "the run is not paused; a step is one iteration of a paused run")
        self._steps_until = max(self._steps_until, self.state.iter) + 1

    def _checkpoint(self) -> None:
        """Nothing is left to do: `execute` says that the state is to be saved."""

    def _stop(self) -> None:
        """Nothing is left to do: `execute` sets `stop`, with the name of the sender."""

    def _validate(self) -> str:
        sets = sets_of("val", self.context.parts.data)
        _require(bool(sets), "the run has no validation data")
        state = self.state
        is_validated = all(state.validated.get(name) == state.iter for name in sets)
        # A user who asks in a pause, or after a change of a hook, wants another validation.
        if is_validated and not self.paused and self._changed_at != state.iter:
            return f"iteration {state.iter} is validated already"
        self.validation_due = True
        return ""

    def _trace(self, iters: str = str(DEFAULT_TRACED_ITERATIONS)) -> str:
        done = self.state.iter
        _require(
            done >= self._traced_until, f"iterations up to {self._traced_until} are being traced"
        )
        self._traced_until = done + int(iters)
        log = self.context.log
        ranks = self.context.parts.ranks
        background = self.context.engine.offloaded
        log.trace(
            TraceCapture(
                self.context.plan, done + 1, int(iters), perf_counter(), ranks.rank, background
            )
        )
        return f"iterations {done + 1} to {self._traced_until}"

    def _switch_hook_off(self, hook: str) -> None:
        disabled = self.context.engine.dispatcher.disabled
        _require(hook not in disabled, f"{hook} is switched off already")
        self.context.engine.switch(
            hook,
            DisabledReason(f"by a command at iteration {self.state.iter}", ALWAYS_FIRED_POINTS),
        )

    def _switch_hook_on(self, hook: str) -> None:
        _require(hook in self.context.engine.dispatcher.disabled, f"{hook} is switched on already")
        self.context.engine.switch(hook)

    def _set(self, setting: str) -> str:
        self.context.engine.settle()  # a hook that has a process is in this one then
        return self.context.settings.set(*split_setting(setting))

    def _rewind(self, name: str = "") -> str:
        is_attached = self.context.parts.is_attached
        _require(
            not is_attached,
            "the loop of this run is its program's own, which cannot go back: stop it and"
            " resume it",
        )
        self.checkpoints.report()  # waits for the checkpoint that is being written
        consensus = self.context.consensus
        checkpoint = consensus.broadcast_object(self._find(name) if consensus.ranks.first else "")
        if isinstance(checkpoint, str):
            raise ValueError(checkpoint)
        self.rewind = Rewind(checkpoint)
        return str(self.rewind)

    def _find(self, name: str) -> Path | str:
        """Return the checkpoint of this name, which may be that of its directory.

        Where the run cannot go back to it, return why, in words.
        """
        paths = {path.name: path for path in self.store.all()}
        if not paths:
            return "there is no checkpoint yet"
        path = (paths | self.store.names()).get(name or next(iter(paths)))
        if path is None:
            return (
                f"there is no checkpoint {name};"
                f" {nearest_or_all(name, [*self.store.names(), *paths])}"
            )
        if is_weights_only(path):
            return (
                f"checkpoint {path.name} has no state of the optimizers, so a run cannot go back to"
                " it: fork it"
            )
        wrong_with = find_damage(path)
        if wrong_with:
            return f"checkpoint {path.name} cannot be used ({wrong_with})"
        return path


def _require(is_met: bool, refusal: str) -> None:
    if not is_met:
        raise ValueError(refusal)
