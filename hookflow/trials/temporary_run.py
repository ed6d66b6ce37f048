"""Runs that keep nothing.

These are a dry run, the run that `check --observe` watches, the evaluation of a checkpoint.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from hookflow.errors import Problem, UserError, Where, nearest_or_all
from hookflow.events.initial_weights import read_recorded_weights
from hookflow.events.log import event_log
from hookflow.events.records import DataInfo, Layer, Level, Record
from hookflow.events.rundir import RunDir, short
from hookflow.events.temporary_files import find_temporary_folder
from hookflow.graph.observation import ObservedBinding
from hookflow.graph.plan import Binding, Plan, Trigger
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import Loaded, dump, load
from hookflow.runner.builder.build import build
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.data.batches import sets_of, split_of
from hookflow.runner.data.lengths import iter_sources
from hookflow.runner.data.source import LimitedSource, close
from hookflow.runner.data.workers import call_explaining_worker_errors
from hookflow.runner.device.precision import describe, explain_oom, torch_settings
from hookflow.runner.distributed.consensus import RankConsensus
from hookflow.runner.logging.recorder import EventRecorder
from hookflow.runner.loop.trainer import Trainer
from hookflow.runner.process.signals import SignalCollector
from hookflow.runner.process.state import RunState
from hookflow.trials.observer import HookObserver


@dataclass(frozen=True, slots=True)
class SilentBinding:
    """A binding that has not fired, and why."""

    hook: str
    point: str
    why: str


def count_firings(recorded: Sequence[Record]) -> Counter[int]:
    """Return how often each binding has fired, by its id, as a run has recorded it."""
    result: Counter[int] = Counter()
    for record in recorded:
        if record["k"] == "frame":
            result.update({int(binding): times for binding, (times, *_) in record["hooks"].items()})
    return result


def find_silent_bindings(
    parts: RunComponents, plan: Plan, recorded: Sequence[Record]
) -> Iterator[SilentBinding]:
    """Yield each binding that has not fired, and each that has raised, with the reason."""
    fired = count_firings(recorded)
    errors: dict[tuple[str, str], str] = {}  # by hook and point
    for record in recorded:
        if record["k"] == "error":
            errors[record["hook"], record["point"]] = f"raised {record['type']}: {record['text']}"
    disabled_hooks = {hook for hook, _ in errors}
    for binding in plan.bindings:
        error = errors.get((binding.hook, binding.point))
        if error is not None:
            yield SilentBinding(binding.hook, binding.point, error)
        elif not fired[binding.id] and binding.hook in disabled_hooks:
            yield SilentBinding(binding.hook, binding.point, "switched off: it has raised")
        elif not fired[binding.id]:
            yield SilentBinding(
                binding.hook, binding.point, _find_silence_reason(parts, plan, binding)
            )


NO_TEST = "run.test is off"
SILENCE_REASONS = {
    "own": "nobody has fired this point in the first iteration",
    "log": "nothing has been logged in the first iteration",
    "comm": "a single process averages no gradients",
    "module": "none of its modules was called in the first iteration",
    "parameter": "none of its parameters has been given a gradient in the first iteration",
}
"""Why a binding has not fired, by the kind of its point."""


def _why_no_validation(parts: RunComponents) -> str:
    if parts.val_every:  # there are data, of which none are built
        return "run.val_every is 0"
    return "there is no [data.val]"


def _find_silence_reason(parts: RunComponents, plan: Plan, binding: Binding) -> str:
    splits = {split_of(name) for name in parts.data}
    if binding.stages and "train" not in binding.stages and splits.isdisjoint(binding.stages):
        if "val" in binding.stages:
            return _why_no_validation(parts)
        return NO_TEST
    if "_test" in binding.point and sets_of("test", parts.data):
        return "the test was not reached"
    if "_test" in binding.point:
        return NO_TEST
    if "_val" in binding.point and not sets_of("val", parts.data):
        return _why_no_validation(parts)
    if "_predict" in binding.point:
        return "it is a point of hookflow predict"
    if binding.point == "on_exception":
        return "nothing has raised"
    return SILENCE_REASONS.get(
        plan.points[binding.point].kind, "the first iteration did not come to it"
    )


TRIAL_EPOCHS = TRIAL_ITERS = TRIAL_BATCHES = 2
"""Epochs, iterations in each, and batches of a validation: what lags by one shows in the second."""


def without_amounts(plan: Plan, *, keep_when: bool = False) -> Plan:
    """Return the plan with every binding due each time.

    A hook then fires that would come only after hours. With `keep_when`, only where its `when`
    holds, as in the run itself.
    """
    bindings = []
    for binding in plan.bindings:
        trigger = Trigger()
        if keep_when:
            trigger = Trigger(when=binding.trigger.when)
        bindings.append(replace(binding, trigger=trigger))
    return replace(plan, bindings=tuple(bindings))


def limit_batches(parts: RunComponents, batches: int, option: str) -> RunComponents:
    """Return the parts with so many batches for a validation and a test.

    `option` has limited them.
    """
    data = dict(parts.data)
    for name, source in parts.data.items():
        if name != "train":
            data[name] = LimitedSource(source, min(batches, len(source)), option)
    return replace(parts, data=data)


Result = TypeVar("Result")


def in_temporary_run(
    loaded: Loaded,
    parts: RunComponents,
    plan: Plan,
    execute: Callable[[Trainer, CheckpointStore], Result],
    say: Callable[[str, Level], None],
    *,
    observer: HookObserver | None = None,
    prints_failure: bool = True,
) -> tuple[Result, list[Record]]:
    """Let `execute` use a trainer and the store of its checkpoints; return what comes of it, and
    what was recorded.

    `say` is given the messages; `observer`, if any, watches the hooks. The sources are closed.
    Exceptions propagate; a traceback is printed unless the pipeline is at fault or `prints_failure`
    is off.
    """
    with tempfile.TemporaryDirectory(prefix="hookflow-", dir=find_temporary_folder()) as folder:
        run_dir = RunDir(Path(folder))
        # Hooks of other frameworks show this file as their config.
        run_dir.pipeline.write_text(dump(loaded.public), "utf-8")
        recorder = EventRecorder(run_dir, lambda command: None, prints_failure=prints_failure)
        recorder.start()
        try:
            state = RunState()
            store = CheckpointStore(run_dir.checkpoints)
            trainer = Trainer(
                parts,
                plan,
                run_dir,
                store,
                recorder,
                SignalCollector(state),
                RankConsensus(),
                observer,
            )
            trainer.run.is_temporary = True
            result = call_explaining_worker_errors(partial(execute, trainer, store))
        except Exception as error:
            if recorder.reported is not error and not isinstance(error, UserError):
                recorder.failure(error)
            raise
        finally:
            recorder.close()
            for source in parts.data.values():
                close(source)
        recorded = event_log(run_dir.events).read_all()
    for record in recorded:
        if record["k"] == "message":
            say(record["text"], record["level"])
    return result, recorded


@dataclass(frozen=True, slots=True)
class DryRun:
    """The results of a dry run of these `parts`. `fired` and `silent` are its bindings."""

    parts: RunComponents
    data: Mapping[str, DataInfo]
    """The data by split, as the whole run has them: the dry run takes less."""
    layers: Sequence[Layer]
    device: str
    fired: Sequence[Binding]
    silent: Sequence[SilentBinding]
    checkpoint: int
    """The bytes of the checkpoint."""
    seconds: float


def run_dry(loaded: Loaded, plan: Plan, base: Path, say: Callable[..., None]) -> DryRun:
    """Do everything once.

    `say` takes lines for people. Files of the pipeline are relative to `base`.

    Exceptions propagate, with a traceback unless the pipeline is at fault.
    """
    began = time.perf_counter()
    run = loaded.pipeline.run
    plan = without_amounts(plan)
    with explain_oom(loaded.pipeline, lambda: False), torch_settings(run, say):
        whole = build(loaded, plan, base, say)
        data = {split: source.info for split, source in whole.data.items()}
        parts = limit_batches(whole, 1, "--dry-run")
        device = describe(whole.device)
        execute = partial(Trainer.train_once, test=run.test, sanity=run.sanity)
        layers, recorded = in_temporary_run(loaded, parts, plan, execute, say)
    fired = count_firings(recorded)
    checkpoint_sizes = [record["bytes"] for record in recorded if record["k"] == "checkpoint"]
    return DryRun(
        parts=whole,
        data=data,
        layers=layers,
        device=device,
        fired=[binding for binding in plan.bindings if fired[binding.id]],
        silent=list(find_silent_bindings(parts, plan, recorded)),
        checkpoint=checkpoint_sizes[-1],
        seconds=time.perf_counter() - began,
    )


@dataclass(frozen=True, slots=True)
class ObservationResult:
    seen: Sequence[ObservedBinding]
    silent: Sequence[SilentBinding]
    """The bindings that have not fired, or have raised."""
    by_content: bool
    """Whether the contents of weights were compared; those of a large network are not."""
    iters: int
    seconds: float


def observe(loaded: Loaded, plan: Plan, base: Path, say: Callable[..., None]) -> ObservationResult:
    """Train for a few iterations and watch.

    `say` takes lines for people. Files of the pipeline are relative to `base`.

    Exceptions outside of hooks propagate; a traceback is printed unless the pipeline is at fault.
    """
    began = time.perf_counter()
    run = loaded.pipeline.run.model_copy(update={"compile": False})
    loaded = replace(loaded, pipeline=loaded.pipeline.model_copy(update={"run": run}))
    hooks = tuple(replace(hook, on_error="ignore") for hook in plan.hooks)
    plan = replace(without_amounts(plan), hooks=hooks)
    with explain_oom(loaded.pipeline, lambda: False), torch_settings(run, say):
        parts = limit_batches(build(loaded, plan, base, say), TRIAL_BATCHES, "--observe")
        observer = HookObserver(plan, parts)
        epochs = min(TRIAL_EPOCHS, run.epoch_limit or TRIAL_EPOCHS)

        def train(trainer: Trainer, store: CheckpointStore) -> int:
            trainer.train_once(store, test=run.test, epochs=epochs, iters=TRIAL_ITERS)
            return trainer.state.iter

        try:
            iters, recorded = in_temporary_run(loaded, parts, plan, train, say, observer=observer)
        finally:
            observer.end()
    return ObservationResult(
        seen=observer.observed(),
        silent=list(find_silent_bindings(parts, plan, recorded)),
        by_content=observer.by_content,
        iters=iters,
        seconds=time.perf_counter() - began,
    )


def measure_copies(
    loaded: Loaded, plan: Plan, base: Path, say: Callable[..., None]
) -> dict[str, tuple[int, float]]:
    """Return for each offloaded hook the bytes and the milliseconds of its largest copy.

    A training of a few steps shows them.

    Files of the pipeline are relative to `base`. A hook that has not fired has no entry.
    """
    run = loaded.pipeline.run
    plan = without_amounts(plan)
    queue = TRIAL_ITERS * TRIAL_BATCHES * run.accumulate.most  # no firing waits for another one
    hooks = []
    for hook in plan.hooks:
        if hook.queue:
            hook = replace(hook, queue=queue)
        hooks.append(hook)
    plan = replace(plan, hooks=tuple(hooks))
    with explain_oom(loaded.pipeline, lambda: False), torch_settings(run, say):
        parts = limit_batches(build(loaded, plan, base, say), TRIAL_BATCHES, "--offload")

        def train(trainer: Trainer, store: CheckpointStore) -> Mapping[int, tuple[int, int]]:
            trainer.train_once(store, test=False, iters=TRIAL_ITERS)
            return trainer.copies

        by_binding, _ = in_temporary_run(loaded, parts, plan, train, say)
    result: dict[str, tuple[int, float]] = {}
    for binding in plan.bindings:
        if binding.id in by_binding:
            size, ns = by_binding[binding.id]
            largest = result.get(binding.hook, (0, 0.0))
            result[binding.hook] = max(largest, (size, ns / 1e6))
    return result


@dataclass(frozen=True, slots=True)
class EvaluationResult(Generic[Result]):
    """The `result` of a checkpoint on some data.

    It has how far the training was: iterations and epochs done.
    """

    it: int
    ep: int
    data: Mapping[str, DataInfo]
    """The description of the data, by the name of each set."""
    result: Result


def with_checkpoint(
    execute: Callable[[Trainer, Path, str], Result],
    run_dir: RunDir,
    checkpoint: Path,
    name: str,
    overrides: Sequence[str],
    say: Callable[..., None],
    *,
    single: bool = False,
    without: Sequence[str] = (),
) -> EvaluationResult[Result]:
    """Execute `Trainer.evaluate` or `Trainer.predict` with a checkpoint.

    The pipeline is that with which it was saved.

    The data are a split ("val") or one of its sets ("val.ood"); a `single` set where several have
    no common rows. `overrides` are laid over the pipeline, and hooks and groups in `without` are
    off. The run's directory is only read: what hooks log goes to a temporary folder. Exceptions
    propagate; a traceback is printed where a hook raised. Raises UserError when there are no such
    data.
    """
    recorded = short(checkpoint.absolute() / run_dir.pipeline.name)
    loaded = load(recorded, overrides, without=without, recorded=True)
    loaded = replace(loaded, weights=read_recorded_weights(run_dir))
    sources = loaded.pipeline.data.sources()
    sets = sets_of(name, sources)
    where = Where(str(recorded))
    if not sets:
        hint = nearest_or_all(name, sources)
        if single:
            hint = f"--split: {hint}"
        raise UserError(Problem(f"the pipeline has no [data.{name}]", where, hint))
    if single and len(sets) > 1:
        hint = f"choose by --split: {', '.join(sets)}"
        raise UserError(Problem(f"[data.{name}] has several sets", where, hint))
    base = run_dir.base()
    plan = compile_pipeline(loaded, base)

    def with_state(trainer: Trainer, store: CheckpointStore) -> tuple[Result, RunState]:
        return execute(trainer, checkpoint.absolute(), name), trainer.state

    with torch_settings(loaded.pipeline.run, say):
        parts = build(loaded, plan, base, say, [split_of(name)], fresh=False)
        # One of several training sets may be evaluated alone, so each is a source of its own.
        parts = replace(parts, data=dict(iter_sources(parts.data)))
        (result, state), _ = in_temporary_run(loaded, parts, plan, with_state, say)
    return EvaluationResult(
        state.iter, state.epoch, {name: parts.data[name].info for name in sets}, result
    )
