"""The context of a run.

It has the settings, and the parts that loop, update, evaluation and checkpoints share.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hookflow.errors import Problem, UserError, Where
from hookflow.events.now import NowMemory
from hookflow.graph.plan import Binding, OnError, Plan
from hookflow.hooks.arguments import (
    as_annotated,
    find_argument_problems,
    first_names,
    parameters_of,
)
from hookflow.hooks.run import WITH_A_BATCH
from hookflow.pipeline.layers import read_value
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.data.batches import BatchSizes, weight_of_batch
from hookflow.runner.data.refetch import can_refetch, refetched_epoch
from hookflow.runner.device.precision import in_precision
from hookflow.runner.dispatch.dispatcher import CurrentHook, Dispatcher, HookCall
from hookflow.runner.dispatch.engine import DispatchEngine
from hookflow.runner.dispatch.torch_hooks import ModuleHooks
from hookflow.runner.dispatch.triggers import LatestScalars, make_triggers
from hookflow.runner.distributed.consensus import RankConsensus
from hookflow.runner.iteration.data_counter import make_data_counter
from hookflow.runner.iteration.requests import SKIP_MARKER, HookRequests
from hookflow.runner.logging.budgets import HookThrottles
from hookflow.runner.logging.media import MediaRecorder
from hookflow.runner.logging.recorder import EventRecorder
from hookflow.runner.logging.timing import (
    DeviceClock,
    DeviceTimeline,
    DeviceTimingAggregator,
    Timeline,
    TimingAggregator,
)
from hookflow.runner.model.optimizer_modes import OptimizerModes
from hookflow.runner.process.state import RunState


class HookSettings:
    """The arguments that have been set: by hook and argument, as they were written."""

    def __init__(self, plan: Plan, hooks: Mapping[str, Any]) -> None:
        self._plan = plan
        self._hooks = hooks
        self._set: dict[str, dict[str, str]] = {}

    def set(self, hook: str, argument: str, text: str) -> str:
        """Set an attribute of the hook to a value written as in TOML.

        Returns what the value was, in words. Raises UserError or ValueError for a wrong value.
        """
        made = self._hooks[hook]
        value = read_value(text)
        kind = type(made)
        names = [parameter.name for parameter in parameters_of(kind)]
        called = f'hook "{hook}"'
        problem = next(
            find_argument_problems(
                kind, {argument: value}, called, lambda _: Where(""), filled=names
            ),
            None,
        )
        if problem:
            raise ValueError(f"{problem.message}; {problem.hint}".removesuffix("; "))
        if not hasattr(made, argument):
            raise ValueError(f'{called} has no attribute "{argument}"')
        check = getattr(kind, "check_arguments", None)
        if check:
            others = {
                name: read_value(written) for name, written in self._set.get(hook, {}).items()
            }
            check({**self._read_written_args(hook), **others, argument: value})
        before = getattr(made, argument)
        setattr(made, argument, dict(as_annotated(kind, {argument: value}))[argument])
        self._set.setdefault(hook, {})[argument] = text
        return f"it was {before!r}"

    def _read_written_args(self, hook: str) -> dict[str, Any]:
        args = self._plan.hook(hook).args
        names = first_names(type(self._hooks[hook]), len(args))
        if isinstance(args, Mapping):
            return dict(args)
        return dict(zip(names, args, strict=False))

    def state_dict(self) -> dict[str, Any]:
        """Return what is set, each with the value that the pipeline has for it."""
        return {
            hook: {
                name: [text, self._read_written_args(hook).get(name)]
                for name, text in settings.items()
            }
            for hook, settings in self._set.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Iterator[str]:
        """Take back what `state_dict` returned, and yield a line on each setting.

        An argument that the pipeline has changed since then is left as the pipeline has it.
        """
        settings = [
            (hook, name, *recorded)
            for hook, of_hook in state.items()
            for name, recorded in of_hook.items()
        ]
        for hook, name, text, before in settings:
            setting = f"{hook}.{name}={text}"
            planned = next((each for each in self._plan.hooks if each.name == hook), None)
            if planned is None or name not in planned.settable:
                yield (
                    f"{setting}, set before this run was resumed, is dropped: the hook no longer"
                    " declares it settable"
                )
            elif self._read_written_args(hook).get(name) != before:
                yield (
                    f"{setting}, set before this run was resumed, is dropped: the pipeline has"
                    " changed the argument"
                )
            else:
                self.set(hook, name, text)
                yield f"{setting} stays set, as before this run was resumed"


@dataclass
class RunContext:
    """The shared parts of one run. They are built once, and none is replaced.

    `folder` is the run directory, and `shared` the memory in which other processes see the current
    binding.
    """

    parts: RunComponents
    plan: Plan
    folder: Path
    state: RunState
    consensus: RankConsensus
    log: EventRecorder
    media: MediaRecorder
    shared: NowMemory | None = None

    def __post_init__(self) -> None:
        parts = self.parts
        plan = self.plan
        state = self.state
        consensus = self.consensus
        log = self.log
        section = parts.section
        ranks = parts.ranks
        several = ranks.world > 1
        ranks_per_share = ranks.world // parts.data_ranks.world
        state.batches_by_epoch = parts.batches_by_epoch
        state.accumulate_by_epoch = section.accumulate
        state.tell_epoch = getattr(parts.data.get("train"), "enter_epoch", None)
        state.set_length(section.epoch_limit, section.max_iters, parts.epoch_lengths)
        state.seconds = consensus.seconds
        clock = _device_clock(parts.device)
        self.timeline = DeviceTimeline(clock) if clock else Timeline()
        self.scalars = LatestScalars(plan, state, parts.strategy, parts.device, ranks.rank)
        self.throttles = HookThrottles(plan, state, log.put)
        self.triggers = make_triggers(plan, state, self.scalars.condition, self.throttles.every)
        timing = TimingAggregator(
            len(plan.bindings), self.timeline, DeviceTimingAggregator(clock) if clock else None
        )
        dispatcher = Dispatcher(plan, timing, CurrentHook(self.shared), self._report_failure)
        self.engine = engine = DispatchEngine(
            plan, parts.hooks, self.triggers, state, dispatcher, ranks.rank
        )
        engine.on_retry = self._report_retry
        if several:
            check_retries_on_all_ranks(plan, parts.place)
        self.settings = HookSettings(plan, parts.hooks)
        self.optimizer_modes = OptimizerModes(parts.optimizers)
        self.module_hooks = ModuleHooks(engine, parts.picked, state)

        def gather(mine: int) -> list[int]:
            return consensus.all_gather_object(mine)[::ranks_per_share]

        self.sizes = {
            split: BatchSizes(
                data,
                parts.task,
                split,
                say=log.say,
                world=ranks.world,
                accumulate=section.accumulate.most if split == "train" else 1,
                gather=gather,
            )
            for split, data in parts.data.items()
        }
        self.weigh = weight_of_batch(parts.task)
        """Returns the weight of a batch; None where the task does not say it."""
        self.data_counter = make_data_counter(parts, plan, state, self.sizes.get("train"), gather)
        """Counts samples and tokens; None where no trigger asks for them."""
        least = (section.min_epochs or 0, section.min_iters or 0)
        self.requests = HookRequests(
            plan, state, lambda: engine.current, self.sizes, log.say, several, least
        )
        steered: set[str] = set()
        if several:
            steered = {binding.point for binding in plan.bindings if "control" in binding.writes}
        self._agreeing_points = steered & {*WITH_A_BATCH}
        """The points at which all ranks agree on whether to skip the batch."""
        self.only_evaluates = False
        """Whether a checkpoint is evaluated, and nothing is trained.

        `before_train` does not fire then.
        """
        self.refetches_batches = several and can_refetch(parts.data)
        """Whether new workers fetch a batch of a hung worker.

        With several ranks, none can leave an iteration alone.
        """

    def epoch_of(self, split: str, epoch: int, start: int = 0) -> Iterator[Any]:
        """Return the batches of an epoch of these data, from batch `start` on."""
        source = self.parts.data[split]
        if self.refetches_batches:
            return refetched_epoch(source, epoch, start, self.log.say)
        return iter(source.epoch(epoch, start=start))

    def computed(self, method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return a task's method in the run's precision.

        Before each call, the hooks inside the network that are due are registered.
        """
        parts = self.parts
        return self.module_hooks.make_settling_step(
            in_precision(method, parts.device, parts.precision, parts.section.compile)
        )

    def fire_with_batch(
        self, point: str, batch: Any, writers: Sequence[HookCall] | None = None
    ) -> Any:
        """Fire a point at which hooks may replace or skip the batch.

        With `writers` only these firings of the point are called. Returns the batch that the hooks
        have left, or SKIP_MARKER.
        """
        dispatcher = self.engine.dispatcher
        requests = self.requests
        requests.offered = offered = [dispatcher.run, batch, self.state.batch_idx]
        if writers is None:
            dispatcher.call_all(self.engine.firings(point), offered)
        else:
            for firing in writers:
                dispatcher.call_within(firing, offered)
        skips = requests.skips_batch
        requests.skips_batch = False
        if point in self._agreeing_points:
            skips = self.consensus.any_rank(skips)
        if skips:
            return SKIP_MARKER
        return offered[1]

    def iteration_of(self, binding: Binding | None) -> int:
        """Return the number of the iteration in which this binding is called, from 1.

        The binding is None outside of all hooks. Between two iterations it is the one that is done.
        """
        done = self.state.iter
        if not self.state.iterating:
            return done
        if binding is not None:
            point = self.plan.points[binding.point]
            if "after_train_iter" in (point.name, point.follows):
                return done  # the counter has advanced before this point
        return done + 1

    def _report_retry(self, error: Exception, text: str) -> None:
        self.log.say(text, "warn")

    def _is_preparing_training(self, hook: str) -> bool:
        """Return whether a hook fires at `before_train`."""
        return any(binding.hook == hook for binding in self.plan.at("before_train"))

    def _report_failure(
        self, binding: Binding, error: BaseException, action: OnError, it: int | None = None
    ) -> None:
        if it is None:
            it = self.iteration_of(binding)
            if action == "raise" and it <= self.state.iter:
                # Otherwise the hooks that fire on the way out would name the next iteration.
                self.state.iterating = False
            error.add_note(self.state.place(it))
        if isinstance(error, UserError):
            error.at(self.parts.place(f"hooks.{binding.hook}.use"))
        if self.only_evaluates and self._is_preparing_training(binding.hook):
            error.add_note(
                f'the hook "{binding.hook}" has a before_train, which does not fire where a'
                " checkpoint is evaluated: what it needs there belongs into before_run; or leave"
                f" the hook out: --without {binding.hook}"
            )
        self.log.failure(error, hook=binding.hook, point=binding.point, action=action, it=it)
        if action == "disable":
            self.log.say(
                f'the hook "{binding.hook}" raised at {binding.point} and is switched off', "warn"
            )


def check_retries_on_all_ranks(plan: Plan, place: Callable[[str], Where]) -> None:
    """Raise UserError for a hook with `retry` that fires on every rank.

    The rank on which it raises would call it again, while the others wait or go on.
    """
    for hook in plan.hooks:
        if hook.retry and hook.ranks == "all":
            message = (
                f'"{hook.name}" fires on every rank, and one that called it again would lose step'
                " with the others"
            )
            raise UserError(
                Problem(
                    message, place(f"hooks.{hook.name}.retry"), 'ranks = "zero", or leave retry out'
                )
            )


def _device_clock(device: torch.device) -> DeviceClock | None:
    """Return the clock of an accelerator; None for a device without events that have times."""
    if device.type == "cpu":  # whose error of an event takes 2 MB of memory
        return None
    make = partial(torch.Event, device, enable_timing=True)
    try:
        make().record()
    except RuntimeError:
        return None
    return DeviceClock(make)
