"""Requests of hooks.

Skips are granted within the iteration, and saves and stops at the next safe point.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hookflow.errors import Problem, UserError
from hookflow.graph.plan import Binding, Plan
from hookflow.hooks.run import BEFORE_THE_GRADIENTS, WITH_A_BATCH, WRITE_CALLS, describe_declaration
from hookflow.runner.data.batches import BatchSizes, sets_of
from hookflow.runner.process.state import RunState

NO_MOVES: Mapping[str, int] = MappingProxyType({})
SKIP_MARKER: Any = object()
"""Marks a skipped batch: None is one, too, of a task that makes its own."""
TOO_LATE_TO_STOP = ("on_exception", "after_run")
MOST_NAMED_POINTS = 7
"""The points that an error names at most; where there are more, it says "in an iteration"."""


@dataclass(frozen=True, slots=True)
class FailureRequest:
    """A request to end the run as failed, and whether its state is saved before."""

    reason: str
    checkpoint: bool


@dataclass
class HookRequests:
    """The pending requests of a run, or of this rank.

    `hookflow.hooks.run.Run` documents the calls.

    `offered` is what the current point offers, where the batch may be replaced: the run, the batch,
    its index.
    """

    plan: Plan
    state: RunState
    current: Callable[[], Binding | None]
    sizes: Mapping[str, BatchSizes]
    say: Callable[..., None]
    several: bool
    least: tuple[int, int] = (0, 0)
    """The epochs and iterations before which no stop is granted.

    A stop that concerns this process alone is granted.
    """
    offered: list[Any] = field(default_factory=list)
    stops: dict[str, bool] = field(default_factory=dict)
    """The reasons to stop, in the order of asking, and whether each concerns this process alone.

    For a reason that does not, the run stops again if it is resumed from before.
    """
    failure: FailureRequest | None = None
    """The first request to end the run as failed. No resumed run grants it again."""
    ended_by: str | None = None
    """The reason for which the training has ended early.

    A run that is resumed unchanged ends by it, too.
    """
    validates: set[str] = field(default_factory=set)
    """The sets of data on which to validate at the next safe point.

    The clock of a set may add it from its thread while the loop takes others away. So it is changed
    in place alone, by methods of the set: each of them is one step, which no thread cuts in two.
    """
    epoch_end_reason: str | None = None
    skips_batch: bool = False
    skips_step: bool = False
    keeps_gradients: bool = False
    """The next iteration adds to the gradients of this one, which takes no step."""
    accumulates: int = 0
    """The batches of the group that the next loss is of; 0 where no hook accumulates gradients."""
    by_examples: bool = True
    """Whether that loss counts by its examples, or as one part of the batches."""
    saves: dict[str, int | None] = field(default_factory=dict)
    """The names to save by; with an iteration, the name of a checkpoint that exists."""
    keep: int | None = None

    def stop(self, reason: str, *, this_process: bool = False) -> None:
        """End the training at the next safe point, after `min_epochs` and `min_iters`.

        Requests about `this_process` alone wait for neither, and stop no other run that resumes
        from an earlier state.
        """
        self.check("stop", self._list_stop_points())
        if not this_process and not self._find_lasting_stop() and self.stop_waits:
            epochs, iters = self.least
            if self.state.epoch < epochs:
                until = f"epoch {epochs}, as run.min_epochs"
            else:
                until = f"iteration {iters}, as run.min_iters"
            self.say(f"the stop waits for {until} says: {reason}")
        self.stops[reason] = this_process and self.stops.get(reason, True)
        self.state.attention = True

    def fail(self, reason: str, *, checkpoint: bool) -> None:
        """End the training at the next safe point as failed; see `hookflow.hooks.run.Run.fail`."""
        self.check("fail", self._list_stop_points())
        if self.failure is None:
            self.failure = FailureRequest(reason, checkpoint)
        self.state.attention = True

    def _list_stop_points(self) -> list[str]:
        return [point.name for point in self.plan.points if point.name not in TOO_LATE_TO_STOP]

    def take_failure(self) -> FailureRequest | None:
        """Return the request to end the run as failed, if there is one, and forget it."""
        failure = self.failure
        self.failure = None
        return failure

    @property
    def stop_waits(self) -> bool:
        """Whether the run is shorter so far than `min_epochs` and `min_iters` say."""
        return self.state.epoch < self.least[0] or self.state.iter < self.least[1]

    def stop_reason(self) -> str | None:
        """Return the first reason for which the run is to stop by now."""
        early = self.stop_waits
        return next(
            (reason for reason, this_process in self.stops.items() if this_process or not early),
            None,
        )

    def accept_stop(self, reason: str) -> bool:
        """Forget the requests to stop.

        Returns whether this one is about this process alone, so that a resumed run trains on.
        """
        if not self.stop_waits:
            self.ended_by = self._find_lasting_stop()
        this_process = self.stops[reason]
        self.stops.clear()
        return this_process

    def end_again(self, *, is_changed: bool) -> None:
        """Stop for the reason that had ended the training which is resumed.

        Where something `is_changed`, the run trains on.
        """
        if is_changed:
            self.ended_by = None
        elif self.ended_by is not None:
            self.stops[self.ended_by] = False

    def _find_lasting_stop(self) -> str | None:
        return next(
            (reason for reason, this_process in self.stops.items() if not this_process), None
        )

    def validate(self) -> None:
        """Validate at the next safe point; see `hookflow.hooks.run.Run.validate`."""
        points = self.plan.points
        inside = [point.name for point in points if points.in_iteration(point.name)]
        self.check("validate", ["before_train_epoch", *inside, "after_train_epoch"])
        sets = sets_of("val", self.sizes)
        if not sets:
            raise _make_error(
                "run.validate needs validation data: [data.val], and run.val_every above 0"
            )
        self.validate_on(sets)

    def validate_on(self, sets: Iterable[str]) -> None:
        """Validate on these sets of data at the next safe point."""
        self.validates.update(sets)
        self.state.attention = True

    def stop_epoch(self, reason: str) -> None:
        points = self.plan.points
        self.check(
            "stop_epoch", [point.name for point in points if points.in_iteration(point.name)]
        )
        if not self.state.epoch_ends and self.epoch_end_reason is None:
            self.say(f"epoch {self.state.epoch + 1} ends early: {reason}")
            if self.several:  # who must agree with others first
                self.epoch_end_reason = reason
            else:
                self.end_epoch()
            self.state.attention = True

    def end_epoch(self) -> None:
        """Let the epoch end, on all ranks.

        Nothing ends where the epoch has come to its end before the ranks agreed.
        """
        self.state.epoch_ends = self.state.batch_idx > 0 or not self.several
        self.epoch_end_reason = None

    def skip_step(self) -> None:
        self.check("skip_step")
        self.skips_step = True

    def accumulate(self, batches: int, *, step: bool, by_examples: bool = True) -> None:
        """Take the batch into a group of so many.

        Its loss counts by its examples there, or as much as any other.
        """
        self.check("accumulate")
        self.accumulates = batches
        self.by_examples = by_examples
        self.keeps_gradients = not step

    def skip_batch(self) -> None:
        self.check("skip_batch")
        self.skips_batch = True

    def replace_batch(self, batch: Any) -> None:
        self.check("replace_batch")
        state = self.state
        self.offered[1] = batch
        state.batch_size = self.sizes[state.split].read_replaced_size(batch, state.batch_size)

    def save(
        self, names: Iterable[str], moved: Mapping[str, int] = NO_MOVES, keep: int | None = None
    ) -> None:
        """Save the state at the next safe point; see `hookflow.hooks.run.Run.save_checkpoint`."""
        self.saves.update(moved)
        self.saves.update(dict.fromkeys(names))
        if keep is not None:
            self.keep = max(self.keep or 0, keep)
        self.state.attention = True

    def take_saves(self) -> tuple[dict[str, int | None], int | None]:
        """Return the names to save by and how many checkpoints to keep, and forget them."""
        saves = self.saves
        self.saves = {}
        keep = self.keep
        self.keep = None
        return saves, keep

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must still grant.

        A skipped step may wait for iterations, where a task steps.
        """
        return {
            "stop": self._find_lasting_stop(),
            "ended_by": self.ended_by,
            "epoch_end": self.epoch_end_reason,
            "skips_step": self.skips_step,
            "saves": dict(self.saves),
            "keep": self.keep,
            "validates": sorted(self.validates),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.stops = {} if state["stop"] is None else {state["stop"]: False}
        self.ended_by = state.get("ended_by")
        self.validates = set(state["validates"])
        self.epoch_end_reason = state["epoch_end"]
        self.skips_step = state["skips_step"]
        self.saves = dict(state["saves"])
        self.keep = state["keep"]
        self.state.attention = True

    def check(self, call: str, points: Collection[str] = ()) -> None:
        """Raise UserError where the call is not allowed or its hook lacks the slot it writes."""
        here = self.current()
        slot, points = WRITE_CALLS.get(call, ("", points))
        if here is None:
            if points in (WITH_A_BATCH, BEFORE_THE_GRADIENTS):
                raise _make_error(
                    f"run.{call} is for hooks: a task need not ask to change its batch or its loss"
                )
            return
        if here.point not in points:
            where = "in an iteration"
            if len(points) <= MOST_NAMED_POINTS:
                where = f"at {', '.join(points)}"
            raise _make_error(
                f"run.{call} is not allowed at {here.point}", f"it may be called {where}"
            )
        is_inside_network = self.plan.points[here.point].kind == "module"
        if is_inside_network and self.state.stage != "train" and call not in ("stop", "fail"):
            raise _make_error(f"run.{call} is not allowed at {here.point} in {self.state.stage}")
        if slot and slot not in here.writes:
            message = (
                f'hook "{here.hook}" calls run.{call} at {here.point} without declaring that it'
                f' writes "{slot}"'
            )
            raise _make_error(message, describe_declaration(slot, here.hook, here.writes))


def _make_error(message: str, hint: str = "") -> UserError:
    return UserError(Problem(message, hint=hint))
