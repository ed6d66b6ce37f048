"""The context of a run: the parts that the loop, the update, the evaluation and the checkpoints share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookflow.errors import UserError
from hookflow.events.now import Shared
from hookflow.graph.plan import Binding, OnError, Plan
from hookflow.runner.builder.components import Parts
from hookflow.runner.data.batch_size import BatchSizes
from hookflow.runner.dispatch.dispatcher import Dispatcher, Firing, Here
from hookflow.runner.dispatch.engine import Engine
from hookflow.runner.dispatch.module_hooks import ModuleHooks
from hookflow.runner.dispatch.triggers import Scalars, make_triggers
from hookflow.runner.distributed.consensus import AnyConsensus
from hookflow.runner.logging.media import Media
from hookflow.runner.logging.recorder import Recorder
from hookflow.runner.logging.timing import Books, Timeline
from hookflow.runner.loop.requests import SKIPPED, WITH_A_BATCH, Requests
from hookflow.runner.loop.settings import Settings
from hookflow.runner.numerics.precision import in_precision
from hookflow.runner.process.state import RunState


@dataclass
class Context:
    """The shared parts of one run. They are built once, and none is replaced.

    `folder` is the run directory, and `shared` the memory in which other processes see the current binding.
    """

    parts: Parts
    plan: Plan
    folder: Path
    state: RunState
    consensus: AnyConsensus
    log: Recorder
    media: Media
    shared: Shared | None = None

    def __post_init__(self) -> None:
        parts, plan, state, consensus, log = self.parts, self.plan, self.state, self.consensus, self.log
        section, ranks = parts.section, parts.ranks
        state.batches_per_epoch = parts.batches_per_epoch
        state.set_length(section.max_epochs, section.max_iters, parts.iters_per_epoch)
        state.seconds = consensus.seconds
        self.timeline = Timeline()
        looked_up = [getattr(hook, "looks_up", ()) for hook in parts.hooks.values()]
        monitored = [name for names in looked_up if isinstance(names, tuple) for name in names]
        self.scalars = Scalars(plan, state, parts.strategy, parts.device, ranks.rank, monitored)
        self.triggers = make_triggers(plan, state, self.scalars.condition)
        dispatcher = Dispatcher(plan, Books(len(plan.bindings), self.timeline), Here(self.shared), self._report_failure)
        self.engine = engine = Engine(plan, parts.hooks, self.triggers, state, dispatcher, ranks.rank)
        self.settings = Settings(plan, parts.hooks)
        self.module_hooks = ModuleHooks(engine, parts.picked, state)
        self.sizes = {
            split: BatchSizes(
                data,
                parts.task,
                split,
                say=log.say,
                world=ranks.world,
                accumulate=section.accumulate if split == "train" else 1,
                gather=consensus.all_gather_object,
            )
            for split, data in parts.data.items()
        }
        several, least = ranks.world > 1, (section.min_epochs or 0, section.min_iters or 0)
        self.requests = Requests(plan, state, lambda: engine.current, self.sizes, log.say, several, least)
        skipping = {b.point for b in plan.bindings if "control" in b.writes} if ranks.world > 1 else set()
        self._skips_agreed = skipping & {*WITH_A_BATCH}

    def computed(self, method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return a task's method in the run's precision, before which the hooks inside the network are settled."""
        parts = self.parts
        return self.module_hooks.settled(in_precision(method, parts.device, parts.precision, parts.section.compile))

    def offer(self, point: str, batch: Any, writers: Sequence[Firing] | None = None) -> Any:
        """Fire a point with a batch, or these firings of it alone; return the batch after the hooks, or SKIPPED."""
        dispatcher, requests = self.engine.dispatcher, self.requests
        requests.offered = offered = [dispatcher.run, batch, self.state.batch_idx]
        if writers is None:
            dispatcher.call_all(self.engine.firings(point), offered)
        else:
            for firing in writers:
                dispatcher.call_within(firing, offered)
        skips, requests.skips_batch = requests.skips_batch, False
        if point in self._skips_agreed:
            skips = self.consensus.any_rank(skips)
        return SKIPPED if skips else offered[1]

    def _report_failure(self, binding: Binding, error: BaseException, action: OnError) -> None:
        error.add_note(self.state.place)
        if isinstance(error, UserError):
            error.at(self.parts.place(f"hooks.{binding.hook}.use"))
        self.log.failure(error, hook=binding.hook, point=binding.point, action=action)
        if action == "disable":
            self.log.say(f'the hook "{binding.hook}" raised at {binding.point} and is switched off', "warn")
