"""Runs that keep nothing: a dry run, the run that `check --observe` watches, the evaluation of a checkpoint."""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from hookflow.errors import Problem, UserError, Where, nearest_or_all
from hookflow.events.log import event_log
from hookflow.events.records import DataInfo, Layer, Level, Record
from hookflow.events.rundir import RunDir, short
from hookflow.graph.observation import Seen
from hookflow.graph.plan import Binding, Plan, Trigger
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import Loaded, dump, load
from hookflow.runner.builder.build import build
from hookflow.runner.builder.components import Parts
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.data.batches import sets_of, split_of
from hookflow.runner.data.source import Limited, close
from hookflow.runner.data.workers import explaining_worker_errors
from hookflow.runner.distributed.consensus import Consensus
from hookflow.runner.logging.recorder import Recorder
from hookflow.runner.loop.trainer import Trainer
from hookflow.runner.observer import Observer
from hookflow.runner.precision import describe, explain_oom, torch_settings
from hookflow.runner.process.signals import Signals
from hookflow.runner.process.state import RunState


@dataclass(frozen=True, slots=True)
class Silent:
    """A binding that has not fired, and why."""

    hook: str
    point: str
    why: str


def fired_in(recorded: Sequence[Record]) -> Counter[int]:
    """Return how often each binding has fired, by its id, as a run has recorded it."""
    result: Counter[int] = Counter()
    for record in recorded:
        if record["k"] == "frame":
            result.update({int(binding): times for binding, (times, *_) in record["hooks"].items()})
    return result


def silent_in(parts: Parts, plan: Plan, recorded: Sequence[Record]) -> Iterator[Silent]:
    """Yield each binding that has not fired, and each that has raised, with the reason."""
    fired = fired_in(recorded)
    raised = {(r["hook"], r["point"]): f"raised {r['type']}: {r['text']}" for r in recorded if r["k"] == "error"}
    off = {hook for hook, _ in raised}
    for binding in plan.bindings:
        why = raised.get((binding.hook, binding.point), "")
        if not why and not fired[binding.id]:
            why = "switched off: it has raised" if binding.hook in off else _why_silent(parts, plan, binding)
        if why:
            yield Silent(binding.hook, binding.point, why)


NO_VAL, NO_TEST = "there is no [data.val]", "run.test is off"
WHYS = {
    "own": "nobody has fired this point in the first iteration",
    "log": "nothing has been logged in the first iteration",
    "comm": "a single process averages no gradients",
    "module": "none of its modules was called in the first iteration",
    "parameter": "none of its parameters has been given a gradient in the first iteration",
}
"""Why a binding has not fired, by the kind of its point."""


def _why_silent(parts: Parts, plan: Plan, binding: Binding) -> str:
    evaluates = () if "train" in binding.stages else binding.stages
    if evaluates and {split_of(name) for name in parts.data}.isdisjoint(evaluates):
        return NO_VAL if "val" in evaluates else NO_TEST
    if "_test" in binding.point:
        return "the test was not reached" if sets_of("test", parts.data) else NO_TEST
    if "_val" in binding.point and not sets_of("val", parts.data):
        return NO_VAL
    if "_predict" in binding.point:
        return "it is a point of hookflow predict"
    if binding.point == "on_exception":
        return "nothing has raised"
    return WHYS.get(plan.points[binding.point].kind, "the first iteration did not come to it")


EPOCHS = ITERS = BATCHES = 2
"""Epochs, iterations in each, and batches of a validation: what lags by one shows in the second."""


def without_amounts(plan: Plan, *, keep_when: bool = False) -> Plan:
    """Return the plan with every binding due each time, so that a hook fires that would come only after hours.

    With `keep_when`, only where its `when` holds, as in the run itself.
    """
    whens = (binding.trigger.when if keep_when else None for binding in plan.bindings)
    bindings = (replace(b, trigger=Trigger(when=when)) for b, when in zip(plan.bindings, whens, strict=True))
    return replace(plan, bindings=tuple(bindings))


def shortened(parts: Parts, batches: int, option: str) -> Parts:
    """Return the parts with so many batches for a validation and a test; `option` has limited them."""
    evaluated = {split: source for split, source in parts.data.items() if split != "train"}
    few = {split: Limited(source, min(batches, len(source)), option) for split, source in evaluated.items()}
    return replace(parts, data={**parts.data, **few})


Result = TypeVar("Result")


def in_temporary_run(
    loaded: Loaded,
    parts: Parts,
    plan: Plan,
    execute: Callable[[Trainer, CheckpointStore], Result],
    say: Callable[[str, Level], None],
    *,
    observer: Observer | None = None,
    prints_failure: bool = True,
) -> tuple[Result, list[Record]]:
    """Let `execute` use a trainer and the store of its checkpoints; return what comes of it, and what was recorded.

    `say` is given the messages; `observer`, if any, watches the hooks. The sources are closed. Exceptions propagate; a
    traceback is printed unless the pipeline is at fault or `prints_failure` is off.
    """
    with tempfile.TemporaryDirectory(prefix="hookflow-") as folder:
        run_dir = RunDir(Path(folder))
        run_dir.pipeline.write_text(dump(loaded.public), "utf-8")  # hooks of other frameworks show it as their config
        recorder = Recorder(run_dir, lambda command: None, prints_failure=prints_failure)
        recorder.start()
        try:
            state = RunState()
            store = CheckpointStore(run_dir.checkpoints)
            trainer = Trainer(parts, plan, run_dir, store, recorder, Signals(state), Consensus(), observer)
            trainer.run.is_temporary = True
            result = explaining_worker_errors(partial(execute, trainer, store))
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

    parts: Parts
    data: Mapping[str, DataInfo]
    """The data by split, as the whole run has them: the dry run takes less."""
    layers: Sequence[Layer]
    device: str
    fired: Sequence[Binding]
    silent: Sequence[Silent]
    checkpoint: int
    """The bytes of the checkpoint."""
    seconds: float


def dry_run(loaded: Loaded, plan: Plan, base: Path, say: Callable[..., None]) -> DryRun:
    """Do everything once; `say` takes lines for people. Files of the pipeline are relative to `base`.

    Exceptions propagate, with a traceback unless the pipeline is at fault.
    """
    began = time.perf_counter()
    run = loaded.pipeline.run
    plan = without_amounts(plan)
    with explain_oom(loaded.pipeline, lambda: False), torch_settings(run, say):
        whole = build(loaded, plan, base, say)
        data = {split: source.info for split, source in whole.data.items()}
        parts, device = shortened(whole, 1, "--dry-run"), describe(whole.device)
        trained, recorded = in_temporary_run(
            loaded, parts, plan, partial(Trainer.train_once, test=run.test, sanity=run.sanity), say
        )
    fired = fired_in(recorded)
    return DryRun(
        parts=whole,
        data=data,
        layers=trained,
        device=device,
        fired=[binding for binding in plan.bindings if fired[binding.id]],
        silent=list(silent_in(parts, plan, recorded)),
        checkpoint=next(record["bytes"] for record in reversed(recorded) if record["k"] == "checkpoint"),
        seconds=time.perf_counter() - began,
    )


@dataclass(frozen=True, slots=True)
class Observed:
    seen: Sequence[Seen]
    silent: Sequence[Silent]
    """The bindings that have not fired, or have raised."""
    by_content: bool
    """Whether the contents of weights were compared; those of a large network are not."""
    iters: int
    seconds: float


def observe(loaded: Loaded, plan: Plan, base: Path, say: Callable[..., None]) -> Observed:
    """Train for a few iterations and watch; `say` takes lines for people. Files of the pipeline are relative to `base`.

    Exceptions outside of hooks propagate; a traceback is printed unless the pipeline is at fault.
    """
    began = time.perf_counter()
    run = loaded.pipeline.run.model_copy(update={"compile": False})
    loaded = replace(loaded, pipeline=loaded.pipeline.model_copy(update={"run": run}))
    plan = replace(without_amounts(plan), hooks=tuple(replace(hook, on_error="ignore") for hook in plan.hooks))
    with explain_oom(loaded.pipeline, lambda: False), torch_settings(run, say):
        parts = shortened(build(loaded, plan, base, say), BATCHES, "--observe")
        observer = Observer(plan, parts)
        epochs = min(EPOCHS, run.max_epochs or EPOCHS)

        def train(trainer: Trainer, store: CheckpointStore) -> int:
            trainer.train_once(store, test=run.test, epochs=epochs, iters=ITERS)
            return trainer.state.iter

        try:
            iters, recorded = in_temporary_run(loaded, parts, plan, train, say, observer=observer)
        finally:
            observer.end()
    return Observed(
        seen=observer.observed(),
        silent=list(silent_in(parts, plan, recorded)),
        by_content=observer.by_content,
        iters=iters,
        seconds=time.perf_counter() - began,
    )


def copies_made(loaded: Loaded, plan: Plan, base: Path, say: Callable[..., None]) -> dict[str, tuple[int, float]]:
    """Return for each offloaded hook the bytes and the milliseconds of its largest copy, in a training of a few steps.

    Files of the pipeline are relative to `base`. A hook that has not fired has no entry.
    """
    run = loaded.pipeline.run
    plan = without_amounts(plan)
    waiting = ITERS * BATCHES * run.accumulate  # no firing waits for another one
    plan = replace(plan, hooks=tuple(replace(h, queue=waiting) if h.queue else h for h in plan.hooks))
    with explain_oom(loaded.pipeline, lambda: False), torch_settings(run, say):
        parts = shortened(build(loaded, plan, base, say), BATCHES, "--offload")

        def train(trainer: Trainer, store: CheckpointStore) -> Mapping[int, tuple[int, int]]:
            trainer.train_once(store, test=False, iters=ITERS)
            return trainer.copies

        by_binding, _ = in_temporary_run(loaded, parts, plan, train, say)
    result: dict[str, tuple[int, float]] = {}
    for binding in plan.bindings:
        if binding.id in by_binding:
            size, ns = by_binding[binding.id]
            result[binding.hook] = max(result.get(binding.hook, (0, 0.0)), (size, ns / 1e6))
    return result


@dataclass(frozen=True, slots=True)
class Evaluated(Generic[Result]):
    """The `result` of a checkpoint on some data, and how far its training was: iterations and epochs done."""

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
) -> Evaluated[Result]:
    """Execute `Trainer.evaluate` or `Trainer.predict` with a checkpoint, and the pipeline that it was saved with.

    The data are a split ("val") or one of its sets ("val.ood"); a `single` set where several have no common rows.
    `overrides` are laid over the pipeline. The run's directory is only read: what hooks log goes to a temporary folder.
    Exceptions propagate; a traceback is printed where a hook raised. Raises UserError when there are no such data.
    """
    recorded = short(checkpoint.absolute() / run_dir.pipeline.name)
    loaded = load(recorded, overrides, recorded=True)
    sources = loaded.pipeline.data.sources()
    sets = sets_of(name, sources)
    if not sets or (single and len(sets) > 1):
        message = f"[data.{name}] has several sets" if sets else f"the pipeline has no [data.{name}]"
        hint = f"choose by --split: {', '.join(sets)}" if sets else "--split: " * single + nearest_or_all(name, sources)
        raise UserError(Problem(message, Where(str(recorded)), hint))
    base = run_dir.base()
    plan = compile_pipeline(loaded, base)

    def with_state(trainer: Trainer, store: CheckpointStore) -> tuple[Result, RunState]:
        return execute(trainer, checkpoint.absolute(), name), trainer.state

    with torch_settings(loaded.pipeline.run, say):
        parts = build(loaded, plan, base, say, [split_of(name)], fresh=False)
        (result, state), _ = in_temporary_run(loaded, parts, plan, with_state, say)
    return Evaluated(state.iter, state.epoch, {name: parts.data[name].info for name in sets}, result)
