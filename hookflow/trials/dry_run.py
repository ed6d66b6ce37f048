"""Short runs that keep nothing: `hookflow run --dry-run`, and the run that `hookflow check --observe` watches."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from hookflow.errors import UserError
from hookflow.events.log import event_log
from hookflow.events.records import Level, Record
from hookflow.events.rundir import RunDir
from hookflow.graph.observation import Seen
from hookflow.graph.plan import Binding, Plan, Trigger
from hookflow.pipeline.load import Loaded
from hookflow.runner.builder.build import build
from hookflow.runner.builder.components import Parts
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.data.limited import Limited
from hookflow.runner.data.source import close
from hookflow.runner.data.workers import explaining_worker_errors
from hookflow.runner.distributed.consensus import Alone
from hookflow.runner.logging.recorder import Recorder
from hookflow.runner.loop.trainer import Trainer
from hookflow.runner.numerics.memory import explain_oom
from hookflow.runner.numerics.precision import describe, torch_settings
from hookflow.runner.observe.observer import Observer
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
            for binding, (times, *_) in record["hooks"].items():
                result[int(binding)] += times
    return result


def silent_in(parts: Parts, plan: Plan, fired: Counter[int], recorded: Sequence[Record]) -> Iterator[Silent]:
    """Yield each binding that has not fired, and each that has raised, with the reason."""
    raised = {(r["hook"], r["point"]): f"raised {r['type']}: {r['text']}" for r in recorded if r["k"] == "error"}
    for binding in plan.bindings:
        if why := raised.get((binding.hook, binding.point)):
            yield Silent(binding.hook, binding.point, why)
        elif not fired[binding.id]:
            off = any(hook == binding.hook for hook, _ in raised)
            yield Silent(
                binding.hook, binding.point, "switched off: it has raised" if off else _why(parts, plan, binding)
            )


WHYS = {
    "own": "nobody has fired this point in the first iteration",
    "log": "nothing has been logged in the first iteration",
    "comm": "a single process averages no gradients",
    "module": "none of its modules was called in the first iteration",
    "parameter": "none of its parameters has been given a gradient in the first iteration",
}
"""Why a binding has not fired, by the kind of its point."""


def _why(parts: Parts, plan: Plan, binding: Binding) -> str:
    point = plan.points[binding.point]
    evaluates = () if "train" in binding.stages else binding.stages
    if evaluates and parts.data.keys().isdisjoint(evaluates):
        return "there is no [data.val]" if "val" in evaluates else "run.test is off"
    if point.name == "on_exception":
        return "nothing has raised"
    if "_test" in point.name:
        return "the test was not reached" if "test" in parts.data else "run.test is off"
    if "_val" in point.name and "val" not in parts.data:
        return "there is no [data.val]"
    return WHYS.get(point.kind, "the first iteration did not come to it")


EPOCHS = ITERS = BATCHES = 2
"""Epochs, iterations in each, and batches of a validation: what lags by one shows in the second."""


def without_amounts(plan: Plan, *, keep_when: bool = False) -> Plan:
    """Return the plan with every binding due each time, so that a hook fires that would come only after hours.

    With `keep_when`, only where its `when` holds, as in the run itself.
    """
    return replace(
        plan,
        bindings=tuple(
            replace(binding, trigger=Trigger(when=binding.trigger.when) if keep_when else Trigger())
            for binding in plan.bindings
        ),
    )


def shortened(parts: Parts, batches: int, option: str) -> Parts:
    """Return the parts with so many batches for a validation and a test; `option` has limited them."""
    evaluated = parts.data.keys() - {"train"}
    few = {split: Limited(parts.data[split], min(batches, len(parts.data[split])), option) for split in evaluated}
    return replace(parts, data={**parts.data, **few})


Found = TypeVar("Found")


def in_temporary_run(
    parts: Parts,
    plan: Plan,
    execute: Callable[[Trainer, CheckpointStore], Found],
    say: Callable[[str, Level], None],
    *,
    observer: Observer | None = None,
    prints_failure: bool = True,
) -> tuple[Found, list[Record]]:
    """Let `execute` use a trainer and the store of its checkpoints; return what comes of it, and what was recorded.

    `say` is given the messages; `observer`, if any, watches the hooks. The sources are closed. Exceptions propagate; a
    traceback is printed unless the pipeline is at fault or `prints_failure` is off.
    """
    with tempfile.TemporaryDirectory(prefix="hookflow-") as folder:
        run_dir = RunDir(Path(folder))
        recorder = Recorder(run_dir, lambda command: None, prints_failure=prints_failure)
        recorder.start()
        try:
            state = RunState()
            store = CheckpointStore(run_dir.checkpoints)
            trainer = Trainer(parts, plan, run_dir, store, recorder, Signals(state), Alone(), observer)
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
        parts, device = shortened(whole, 1, "--dry-run"), describe(whole.device)
        _, recorded = in_temporary_run(parts, plan, partial(Trainer.train_once, test=run.test, sanity=run.sanity), say)
    fired = fired_in(recorded)
    return DryRun(
        parts=whole,
        device=device,
        fired=[binding for binding in plan.bindings if fired[binding.id]],
        silent=list(silent_in(parts, plan, fired, recorded)),
        checkpoint=next(record["bytes"] for record in reversed(recorded) if record["k"] == "checkpoint"),
        seconds=time.perf_counter() - began,
    )


@dataclass(frozen=True, slots=True)
class Observed:
    """The results of an observed run."""

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
            iters, recorded = in_temporary_run(parts, plan, train, say, observer=observer)
        finally:
            observer.end()
    return Observed(
        seen=observer.observed(),
        silent=list(silent_in(parts, plan, fired_in(recorded), recorded)),
        by_content=observer.by_content,
        iters=iters,
        seconds=time.perf_counter() - began,
    )
