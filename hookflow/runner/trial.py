"""Trials: the same short run again and again, each with its hooks in another order, and compared with one another.

A trial is two epochs of two iterations, with a validation of two batches after each, a checkpoint that is written and
read back, and the test if the run has one. The models, the optimizers and the hooks are built anew for each, from the
seed; the batches are fetched once. Amounts in triggers do not count, so that a hook fires that would come only after
hours; a `when` holds or does not, as in the run itself. The run directory is a temporary one.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hookflow.errors import Problem, UserError
from hookflow.events.records import Level, Record
from hookflow.graph.order import Places
from hookflow.graph.plan import Plan
from hookflow.graph.turning import Key, key, keys
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import Loaded
from hookflow.runner.build import build
from hookflow.runner.data.limited import Repeated
from hookflow.runner.data.source import close
from hookflow.runner.fingerprint import Leaves, of_bytes
from hookflow.runner.garbage import collected_between
from hookflow.runner.numerics.memory import explain_oom
from hookflow.runner.numerics.settings import torch_settings
from hookflow.runner.probe import NAME, Probe, Visit, with_probe
from hookflow.runner.short_run import BATCHES, EPOCHS, ITERS, without_amounts
from hookflow.runner.silent import fired_in
from hookflow.runner.temporary_run import in_temporary_run
from hookflow.runner.trainer import Trainer

TRIALS, SECONDS = 200, 600.0
"""After how many trials, or after how many seconds of them, no other one begins."""

KEPT = 16
"""How many traces are kept."""


class EnoughError(Exception):
    """There have been as many trials, or they have taken as long, as may be."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trial held whenever a point had been fired, and what its hooks have logged.

    `fired` are the bindings that have fired. `raised` says what has ended it, if anything has.
    """

    visits: tuple[Visit, ...]
    fired: frozenset[tuple[str, Key]]
    raised: str = ""


class FewBatches(Repeated):
    """The first batches of a source, fetched once; an epoch is as long as before, for whoever asks."""

    def __len__(self) -> int:
        return self.whole


@dataclass
class Trials:
    """Makes trials of one pipeline. `count` is how many there have been, `seconds` how long they have taken."""

    loaded: Loaded
    base: Path
    data: Mapping[str, Any]
    say: Callable[[str, Level], None]
    collect: Callable[[], object]
    """Called before each trial: the models of all before it are not to be there still."""
    count: int = 0
    seconds: float = 0.0
    _known: dict[Any, Trace] = field(default_factory=dict)
    """The latest traces by their order: one takes megabytes where a network has many tensors."""

    def compiled(self, wanted: Places) -> Plan:
        """Return the plan with its hooks in an order as near to the wanted one as can be."""
        return compile_pipeline(self.loaded, self.base, wanted=wanted)

    def of(self, plan: Plan) -> Trace:
        """Return the trace of a plan; one of the same order is seldom made twice."""
        order = keys(plan)
        trace = self._known.pop(order, None) or self.again(plan)
        self._known[order] = trace
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]
        return trace

    def again(self, plan: Plan, *, may_raise: bool = True) -> Trace:
        """Make a trial, whether there has been one or not. Whatever raises goes through, unless it `may_raise`."""
        if self.count >= TRIALS or self.seconds > SECONDS:
            raise EnoughError
        self.collect()
        began = time.perf_counter()
        run = self.loaded.pipeline.run
        plan = without_amounts(plan, keep_when=True)
        probe = Probe(plan)
        first = not self.count
        say = self.say if first else _silence
        self.count += 1
        recorded: list[Record] = []
        raised = ""
        try:
            parts = build(self.loaded, plan, self.base, say, splits=())
            section = run.model_copy(update={"compile": False})  # it would take longer than all the rest
            parts = replace(parts, section=section, data=self.data, hooks={**parts.hooks, NAME: probe})
            execute = partial(Trainer.train_once, test=run.test, epochs=EPOCHS, iters=ITERS)
            quiet = nullcontext() if first else redirect_stderr(io.StringIO())
            with redirect_stdout(io.StringIO()), quiet, probe.watching_saves():
                _, recorded = in_temporary_run(parts, with_probe(plan), execute, say, prints_failure=not may_raise)
        except Exception as error:
            if not may_raise:
                raise
            raised = f"{type(error).__name__}: {error}"
        self.seconds += time.perf_counter() - began
        fired = fired_in(recorded)
        bound = frozenset((one.point, key(one)) for one in plan.bindings if fired[one.id])
        return Trace((*probe.visits, _logged(recorded)), bound, raised)


@contextmanager
def trials(loaded: Loaded, plan: Plan, base: Path, say: Callable[[str, Level], None]) -> Iterator[Trials]:
    """Fetch the batches that trials need; `say` is given the messages of the first one. Files are relative to `base`.

    Raises UserError where something cannot be built, or when there have been too many for an answer.
    """
    run = loaded.pipeline.run
    with explain_oom(loaded.pipeline, lambda: False), torch_settings(run, _silence):
        whole = build(loaded, plan, base, _silence).data
        batches = {"train": ITERS * run.accumulate, "val": BATCHES, "test": BATCHES}
        data = {
            split: FewBatches(source, min(batches[split], len(source)), "a trial", run.seed)
            for split, source in whole.items()
        }
        try:
            with collected_between() as collect:
                yield Trials(loaded, base, data, say, collect)
        except EnoughError:
            hint = "try a smaller model, or fewer hooks: --only HOOK"
            raise UserError(Problem(f"no answer within {TRIALS} trials, or {SECONDS:g} s of them", hint=hint)) from None
        finally:
            for source in whole.values():
                close(source)


def _logged(recorded: Sequence[Record]) -> Visit:
    """Return what hooks have logged, in all iterations; of one name the last number of each counts."""
    found: dict[str, dict[int, float]] = {}
    for record in recorded:
        if record["k"] == "scalars":
            for name, value in record["v"].items():
                found.setdefault(name, {})[record["it"]] = value
    leaves: Leaves = {
        ("logged", name): of_bytes(repr(sorted(values.items())).encode()) for name, values in found.items()
    }
    return Visit("on_log", 0, leaves)


def _silence(text: str, level: Level = "info") -> None:
    """Say nothing: the first trial has said it."""
