"""The context of a run: the parts that the loop, the update, the evaluation and the checkpoints share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from hookflow.errors import UserError
from hookflow.events.now import Shared
from hookflow.events.records import HOOKFLOW, Level, Put
from hookflow.graph.plan import Binding, OnError, Plan
from hookflow.runner.builder.components import Parts
from hookflow.runner.data.batch_size import BatchSizes
from hookflow.runner.dispatch.dispatcher import Dispatcher, Firing, Here
from hookflow.runner.dispatch.engine import Engine
from hookflow.runner.dispatch.module_hooks import ModuleHooks
from hookflow.runner.dispatch.triggers import Scalars, Trigger, make_triggers
from hookflow.runner.distributed.consensus import AnyConsensus
from hookflow.runner.logging.timing import Books, Timeline
from hookflow.runner.loop.requests import SKIPPED, Requests
from hookflow.runner.process.state import RunState


class Log(Protocol):
    """The log of a run: its recorder, or one that records nothing."""

    put: Put
    """Records an event."""

    def scalar(self, name: str, value: float | torch.Tensor) -> None:
        """Record a number."""

    def say(self, text: str, level: Level = "info", source: str = HOOKFLOW) -> None:
        """Record a line for people."""

    def failure(self, error: BaseException, *, hook: str = "", point: str = "", action: OnError = "raise") -> None:
        """Record an exception with its traceback."""

    def flush(self, *, frame: bool = True) -> None:
        """Append everything that is recorded to the file."""


class Media(Protocol):
    """The images and histograms of a run."""

    def image(self, name: str, image: torch.Tensor, caption: str, hook: str, *, figure: bool = False) -> None:
        """Write an image, height × width × channels, which `hook` has logged."""

    def histogram(self, name: str, values: torch.Tensor, bins: int, hook: str) -> None:
        """Count numbers, which `hook` has logged."""


@dataclass(frozen=True, slots=True)
class Context:
    """The shared parts of one run. They are built once, and none is replaced."""

    parts: Parts
    plan: Plan
    folder: Path
    """The run directory."""
    state: RunState
    consensus: AnyConsensus
    log: Log
    media: Media
    timeline: Timeline
    sizes: Mapping[str, BatchSizes]
    """The batch sizes of each split."""
    scalars: Scalars
    triggers: Mapping[int, Trigger]
    """The trigger of each binding, by its id."""
    engine: Engine
    module_hooks: ModuleHooks
    requests: Requests


def make_context(
    parts: Parts,
    plan: Plan,
    folder: Path,
    state: RunState,
    consensus: AnyConsensus,
    log: Log,
    media: Media,
    shared: Shared | None = None,
) -> Context:
    """Build the shared parts of a run. `shared` is the memory in which other processes see the current binding."""
    section, ranks = parts.section, parts.ranks
    state.batches_per_epoch = parts.batches_per_epoch
    state.set_length(section.max_epochs, section.max_iters, parts.iters_per_epoch)
    state.seconds = consensus.seconds
    timeline = Timeline()
    scalars = Scalars(plan, state, parts.strategy, parts.device, ranks.rank)
    triggers = make_triggers(plan, state, scalars.condition)
    report = partial(_report_failure, parts, state, log)
    dispatcher = Dispatcher(plan, Books(len(plan.bindings), timeline), Here(shared), report)
    engine = Engine(plan, parts.hooks, triggers, state, dispatcher, ranks.rank)
    sizes = {split: _batch_sizes(parts, split, consensus, log) for split in parts.data}
    requests = Requests(plan, state, lambda: engine.current, sizes, log.say, several=ranks.world > 1)
    return Context(
        parts=parts,
        plan=plan,
        folder=folder,
        state=state,
        consensus=consensus,
        log=log,
        media=media,
        timeline=timeline,
        sizes=sizes,
        scalars=scalars,
        triggers=triggers,
        engine=engine,
        module_hooks=ModuleHooks(engine, parts.picked, state),
        requests=requests,
    )


def _batch_sizes(parts: Parts, split: str, consensus: AnyConsensus, log: Log) -> BatchSizes:
    return BatchSizes(
        parts.data[split],
        parts.task,
        split,
        say=log.say,
        world=parts.ranks.world,
        accumulate=parts.section.accumulate if split == "train" else 1,
        gather=consensus.all_gather_object,
    )


def _report_failure(
    parts: Parts, state: RunState, log: Log, binding: Binding, error: BaseException, action: OnError
) -> None:
    """Record the exception of a hook."""
    error.add_note(state.place)
    if isinstance(error, UserError):
        error.at(parts.place(f"hooks.{binding.hook}.use"))
    log.failure(error, hook=binding.hook, point=binding.point, action=action)
    if action == "disable":
        log.say(f'the hook "{binding.hook}" raised at {binding.point} and is switched off', "warn")


class Offering:
    """Offers each batch at one point; call it to learn what hooks have made of it."""

    def __init__(self, point: str, run: Any, context: Context) -> None:
        self._point = point
        self._run = run
        self._state = context.state
        self._engine = context.engine
        self._requests = context.requests
        self._consensus = context.consensus
        several = context.consensus.ranks.world > 1
        self._agreed = several and any("control" in binding.writes for binding in context.plan.at(point))

    def __call__(self, batch: Any, writers: Sequence[Firing] | None = None) -> Any:
        """Fire the point with a batch, or these firings of it alone; return the batch that comes of it, or SKIPPED."""
        dispatcher, requests = self._engine.dispatcher, self._requests
        requests.offered = offered = [self._run, batch, self._state.batch_idx]
        if writers is None:
            dispatcher.call_all(self._engine.firings(self._point), offered)
        else:
            for firing in writers:
                dispatcher.call_within(firing, offered)
        skips = requests.take_skip_batch()
        if self._agreed:
            skips = self._consensus.any_rank(skips)
        return SKIPPED if skips else offered[1]
