"""The sanity check: two batches of validation before the training.

The pass leaves no trace. It has a world of its own: counters, requests and a plan in which no hook is bound, so that
no hook sees it, nothing is logged and nothing is timed; whatever the task, the model or the data have changed is put
back (`hookflow.runner.loop.untouched`). It finds the names of the metrics; hooks that read another one are reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from hookflow.errors import Problem, UserError, by_place, nearest, nearest_or_all
from hookflow.events.records import Put
from hookflow.graph.plan import Binding, Plan, PlannedHook
from hookflow.graph.slots import root
from hookflow.pipeline.condition import FACTS, METRICS, parse_condition
from hookflow.runner.builder.components import Parts
from hookflow.runner.data.batch_size import BatchSizes
from hookflow.runner.dispatch.dispatcher import Here
from hookflow.runner.dispatch.engine import Engine
from hookflow.runner.dispatch.module_hooks import ModuleHooks
from hookflow.runner.dispatch.triggers import Scalars
from hookflow.runner.distributed.consensus import AnyConsensus
from hookflow.runner.logging.recorder import SANITY
from hookflow.runner.logging.timing import Books, Timeline
from hookflow.runner.loop.evaluation import Evaluation
from hookflow.runner.loop.requests import Requests
from hookflow.runner.loop.run import Run
from hookflow.runner.loop.task import evaluation_of, steps_itself
from hookflow.runner.loop.untouched import untouched
from hookflow.runner.loop.update import Update
from hookflow.runner.numerics.precision import in_precision
from hookflow.runner.process.state import RunState
from hookflow.user_code import explained, only_showable

BATCHES = 2
SECONDS = 2.0
"""The pass ends after the first batch when that has taken longer."""

OFF = "run.sanity = false leaves the sanity pass out"
BEFORE = ("before_val", "before_val_epoch", "before_val_iter")
AFTER = ("after_val", "after_val_epoch", "after_train_epoch", "before_save_checkpoint")


def sanity_check(
    parts: Parts, plan: Plan, update: Update, consensus: AnyConsensus, folder: Path, say: Callable[..., None]
) -> None:
    """Validate two batches, and hold the metrics against what hooks read by name.

    Raises the exceptions of the task, and UserError for a metric that no hook makes. Where hooks prepare the batches
    there is no pass: without them the task could not be asked.
    """
    bound = [binding for point in BEFORE for binding in plan.at(point)]
    if any("batch" in binding.writes for binding in bound):
        return
    try:
        with only_showable(f"raised in {SANITY}, before the training; {OFF}"):
            names = _Pass(parts, plan, update, consensus, folder).names()
    except Exception as error:
        theirs = [b.hook for b in bound if not type(parts.hooks[b.hook]).__module__.startswith("hookflow.")]
        if theirs and not parts.strategy.several:  # it may need what they do
            text = f"{SANITY} raised {', '.join(explained(error))}"
            say(f"{text}; the hooks {', '.join(dict.fromkeys(theirs))} were not called in it; {OFF}", "warn")
            return
        raise
    if names is not None:
        _check_names(parts, plan, names, say)


class _Pass:
    """The pass, with all that stands in for the parts of a run."""

    def __init__(self, parts: Parts, plan: Plan, update: Update, consensus: AnyConsensus, folder: Path) -> None:
        self.parts = parts
        self.source = _Few(parts.data["val"], consensus)
        self.task = _Measured(parts.task, self.source)
        self.log = Nowhere()
        self.state = state = RunState()
        state.batches_per_epoch = parts.batches_per_epoch
        state.set_length(parts.section.max_epochs, parts.section.max_iters, parts.iters_per_epoch)
        alone = Plan(plan.pipeline, hooks=(), bindings=(), edges=(), own=plan.own)
        timeline, several = Timeline(), parts.ranks.world > 1
        here = Here()
        engine = Engine(alone, {}, {}, state, Books(0, timeline), here, _never)
        gather = consensus.all_gather_object
        sizes = {"val": BatchSizes(self.source, parts.task, "val", say=_never, world=parts.ranks.world, gather=gather)}
        requests = Requests(alone, state, lambda: None, sizes, _never, several=several)
        scalars = Scalars(alone, state, parts.strategy, parts.device, parts.ranks.rank)
        run = Run(
            parts,
            state,
            engine,
            ModuleHooks(engine, {}, state),
            update,
            requests,
            scalars,
            self.log,
            self.log,
            timeline,
            folder,
        )
        engine.bind(run)
        self.evaluate = Evaluation(
            state,
            run,
            parts.model,
            self.task,
            in_precision(evaluation_of(parts.task), parts.device, parts.precision),
            {"val": self.source},
            sizes,
            engine,
            requests,
            consensus,
            timeline,
            lambda batches: False,
            _never,
            own_steps=steps_itself(parts.task),
        )

    def names(self) -> set[str] | None:
        """Evaluate, and return the names of the metrics and of all that is logged; None where they are not certain."""
        parts = self.parts
        data = (parts.data["val"],)
        eager = torch.compiler.set_stance("force_eager") if parts.section.compile else nullcontext()
        with untouched(parts.model, parts.device, parts.task, data=data), eager:
            self.evaluate("val")
        return None if self.task.failed else {*self.state.metrics, *self.log.names}


class _Few:
    """The first batches of a source, as few as it takes."""

    def __init__(self, source: Any, consensus: AnyConsensus) -> None:
        self._source = source
        self._consensus = consensus

    def __len__(self) -> int:
        return min(BATCHES, len(self._source))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    @property
    def is_part(self) -> bool:
        """Whether there are more batches than these."""
        return len(self._source) > BATCHES

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        began = time.perf_counter()
        for count, batch in enumerate(islice(self._source.epoch(epoch, start), len(self)), 1):
            yield batch
            if count < len(self) and self._consensus.any_rank(time.perf_counter() - began > SECONDS):
                return


class _Measured:
    """The task as far as it makes more metrics of the means; of a part of the data it may not be able to."""

    def __init__(self, task: Any, source: _Few) -> None:
        self._task = task
        self._source = source
        self.failed = False

    def metrics(self, means: Mapping[str, float]) -> Mapping[str, float]:
        if not hasattr(self._task, "metrics"):
            return {}
        try:
            made: Mapping[str, float] = self._task.metrics(means)
        except Exception:
            if not self._source.is_part:
                raise
            self.failed = True
            return {}
        return made


class Nowhere:
    """Takes the place of recorder, media and scalars, and keeps nothing but the names."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.put: Put = _never

    def scalar(self, name: str, value: Any) -> None:
        self.names.add(name)

    def log(self, name: str, value: Any) -> None:
        pass

    def say(self, text: str, level: str = "info", source: str = "") -> None:
        pass

    def image(self, name: str, image: Any, caption: str, hook: str, *, figure: bool = False) -> None:
        pass

    def histogram(self, name: str, values: Any, bins: int, hook: str) -> None:
        pass


def _never(*anything: Any, **more: Any) -> None:
    pass


def _check_names(parts: Parts, plan: Plan, result: set[str], say: Callable[..., None]) -> None:
    """Hold what hooks read by name against what the task and other hooks make. Raises UserError with all that is not.

    Where a hook puts in metrics of which it does not say the names, a name that is missing is a warning.
    """
    names, secretive = set(result), set()
    for binding in plan.at("after_val_epoch"):
        made = getattr(parts.hooks[binding.hook], "makes_metrics", None)
        if made is not None:
            names.update(_names(made))
        elif "metrics" in (*binding.takes, *map(root, binding.writes)):
            secretive.add(binding.hook)
    problems = []
    for hook, name, key in _read(parts, plan):
        if name in names:
            continue
        message = f'hook "{hook.name}" reads the metric "{name}", which the validation does not give'
        hint = nearest_or_all(name, sorted(names))
        if secretive:
            say(f'{message}, unless the hook "{min(secretive)}" makes it; {hint}', "warn")
        elif hook.on_error != "raise":
            say(f"{message}; {hint}", "warn")
        else:
            problems.append(Problem(message, parts.place(key), hint))
    for binding, name in _mentioned(plan):
        if name not in names and (near := nearest(name, names)) and not secretive:
            say(f'hook "{binding.hook}": the validation gives no "{name}", as its condition has it; {near}', "warn")
    if problems:
        raise UserError(sorted(problems, key=by_place))


def _read(parts: Parts, plan: Plan) -> Iterator[tuple[PlannedHook, str, str]]:
    """Yield each metric that a hook is certain to read by name, and the key of the pipeline that names it."""
    for hook in plan.hooks:
        bound = [binding for binding in plan.bindings if binding.hook == hook.name]
        if any(binding.point in ("after_val", "after_val_epoch") for binding in bound):
            for name in _names(getattr(parts.hooks[hook.name], "modes", ())):
                yield hook, name, f"hooks.{hook.name}{_argument(hook, name)}"
        for name in dict.fromkeys(name for binding in bound for name in _in_condition(binding)):
            if name.startswith(METRICS):
                yield hook, name.removeprefix(METRICS), f"hooks.{hook.name}.when"


def _names(message: Any) -> Iterable[str]:
    """Return the names that a hook says; what is none means something else in a class that knows nothing of this."""
    several = [message] if isinstance(message, str) else message if isinstance(message, Collection) else ()
    return (name for name in several if isinstance(name, str))


def _mentioned(plan: Plan) -> Iterator[tuple[Binding, str]]:
    """Yield the names in conditions after a validation, metrics or numbers that will be logged."""
    for binding in plan.bindings:
        if binding.point in AFTER:
            for name in _in_condition(binding):
                if not name.startswith(METRICS) and name not in (*FACTS, "loss", "lr"):
                    yield binding, name


def _in_condition(binding: Binding) -> list[str]:
    return sorted(parse_condition(binding.trigger.when).names) if binding.trigger.when else []


def _argument(hook: PlannedHook, name: str) -> str:
    """Return the key of the argument that holds a name, below the hook's own."""
    args = hook.args if isinstance(hook.args, Mapping) else {}
    return next((f".args.{k}" for k, v in args.items() if v == name or (isinstance(v, dict) and name in v)), ".use")
