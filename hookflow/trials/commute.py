"""Find the unordered pairs of hooks whose order makes a difference, by trials that fire each pair both ways.

A trial is two epochs of two iterations, each with a validation, then a checkpoint that is read back, and the test if
the run has one; it is fingerprinted at each point. Each trial builds its models, optimizers and hooks from the seed;
the batches are fetched once. Triggers keep their `when` and lose their amounts, so that rare hooks fire too.
"""

import io
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any
from unittest.mock import patch

import torch

from hookflow.errors import Problem, UserError
from hookflow.events.packing import series
from hookflow.events.records import Level, Record
from hookflow.events.rundir import RunDir
from hookflow.graph.order import Places
from hookflow.graph.plan import Binding, Plan, PlannedHook, Trigger
from hookflow.graph.slots import OFFERED
from hookflow.graph.why import (
    Key,
    Pair,
    brought_together,
    key,
    keys,
    neighbouring,
    swapped,
    swaps_between,
    turned,
    unordered,
)
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.registry import BUILT_IN
from hookflow.pipeline.load import Loaded
from hookflow.runner.builder.build import build
from hookflow.runner.data.batches import split_of
from hookflow.runner.data.source import Repeated, close
from hookflow.runner.loop.run import Run
from hookflow.runner.loop.trainer import Trainer
from hookflow.runner.precision import explain_oom, torch_settings
from hookflow.runner.process.main import collected_between
from hookflow.runner.random_state import random_state
from hookflow.runner.run_tensors import Fingerprints, Leaves, of_bytes, trained
from hookflow.runner.run_tensors import Path as Leaf
from hookflow.trials.temporary_run import BATCHES, EPOCHS, ITERS, fired_in, in_temporary_run, without_amounts

NAME = "the probe"
"""The name of the probe among the hooks; no table can be called so."""


@dataclass(frozen=True, slots=True)
class Visit:
    """The values of a run after a firing of a point: the fingerprint of each value."""

    point: str
    iter: int
    leaves: Leaves


class Probe:
    """Keeps what it has seen in `visits`."""

    def __init__(self, plan: Plan) -> None:
        self.visits: list[Visit] = []
        self._saved: dict[Path, Leaves] = {}
        for binding in probed(plan):
            setattr(self, binding.method, partial(self._look, binding.point, binding.takes[1:]))

    def _look(self, point: str, names: Sequence[str], run: Run, *offered: Any) -> None:
        leaves = dict(_of_run(run))
        known = [run, run.task, *run.optimizers.values(), *run.data.values()]
        for model in run.models.values():
            known += [*model.modules(), *model.parameters(), *model.buffers()]
        owners: dict[tuple[str, ...], Any] = {
            ("hooks", name): hook for name, hook in run.hooks.items() if hook is not self
        }
        look = Fingerprints([*known, *owners.values()])
        for name, value in zip(names, offered, strict=True):
            leaves.update(look.of(_plainly(value) if name == "checkpoint" else value, name))
        for path, owner in {**owners, ("task",): run.task}.items():
            for attribute, value in getattr(owner, "__dict__", {}).items():
                leaves.update(look.of(value, *path, attribute))
        leaves.update(_of_files(run.dir))
        for file, saved in self._saved.items():
            leaves.update({} if file.is_relative_to(run.dir) else saved)
        self.visits.append(Visit(point, run.iter, leaves))

    @contextmanager
    def watching_saves(self) -> Iterator[None]:
        """See what `torch.save` writes meanwhile, wherever that is; of a name the latest."""
        save = torch.save

        def watched(thing: Any, to: Any, *args: Any, **named: Any) -> None:
            if isinstance(to, str | os.PathLike) and current_thread() is main_thread():
                self._saved[Path(to).absolute()] = dict(Fingerprints().of(thing, "files", os.fspath(to)))
            save(thing, to, *args, **named)

        with patch.object(torch, "save", watched):
            yield


def probed(plan: Plan) -> list[Binding]:
    """Return the probe's bindings, with the numbers that follow those of the plan: it fires last at each point.

    Effects of hooks inside the network show at the next point of the loop; at some points it looks for them always.
    """
    always = ("after_train_iter", "after_train_epoch", "after_val", "before_save_checkpoint", "after_run")
    kinds = ("standard", "step", "own")
    points = [p for p in plan.points if p.kind in kinds and (plan.at(p.name) or p.name in always)]
    result = []
    for id_, point in enumerate(points, len(plan.bindings)):
        takes = [name for name in point.offers if name in OFFERED and point.name != "after_save_checkpoint"]
        method = f"at_{point.name}"
        result.append(Binding(id_, NAME, point.name, method, "whole", ("run", *takes), Trigger(), phase="last"))
    return result


def _of_run(run: Run) -> Iterator[tuple[tuple[str, ...], bytes]]:
    look = Fingerprints()
    for kind, _, path, value in trained(run.models, run.optimizers):
        if path[-1] != "params":
            yield from look.of(value, kind, *path)
    for owner, model in run.models.items():
        modes = [name for name, module in model.named_modules() if module.training]
        yield from look.of(modes, "modes", owner)
    yield from look.of(dict(run.metrics), "metrics")
    yield from look.of(random_state(run.device), "rng")


def _plainly(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is saved, without who has asked for it first: a stop is a stop, and a save a save."""
    requested = checkpoint.get("requests", {})
    saves = sorted(requested.get("saves", {}))
    plain = {name: value is not None for name, value in requested.items() if name in ("stop", "epoch_end")}
    return {**checkpoint, "requests": {**requested, **plain, "saves": saves}}


def _of_files(folder: Path) -> Iterator[tuple[tuple[str, ...], bytes]]:
    own = RunDir(folder)
    runners = {own.events, own.commands, own.output, own.now, own.lock, own.identity, own.pipeline, own.plan}
    runners |= {own.checkpoints, own.images, own.writers}
    hooks = (path for top in {*folder.iterdir()} - runners for path in (top, *top.rglob("*")))
    for path in sorted(path for path in hooks if path.is_file()):
        name = str(path.relative_to(folder))
        state = None
        if path.suffix in (".pt", ".pth", ".ckpt"):
            with suppress(pickle.UnpicklingError, RuntimeError, EOFError, ValueError):  # not written by torch.save
                state = torch.load(path, map_location="cpu", weights_only=True)
        if state is None:
            yield ("files", name), of_bytes(path.read_bytes())
        else:
            yield from Fingerprints().of(state, "files", name)


TRIALS, SECONDS = 200, 600.0
"""After how many trials, or after how many seconds of them, no other one begins."""


class EnoughError(Exception):
    """The limit of the trials, or of their time, is reached."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The values of a trial after each firing of a point, and the logged numbers.

    `fired` are the bindings that have fired. `raised` says what has ended it, if anything has.
    """

    visits: tuple[Visit, ...]
    fired: frozenset[tuple[str, Key]]
    raised: str = ""


class FewBatches(Repeated):
    """The first batches of a source, fetched once; an epoch keeps its length."""

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
    """The latest 16 traces by their order: one takes megabytes where a network has many tensors."""

    def compiled(self, wanted: Places) -> Plan:
        """Return the plan with its hooks in an order as near to the wanted one as can be."""
        return compile_pipeline(self.loaded, self.base, wanted=wanted)

    def of(self, plan: Plan) -> Trace:
        order = keys(plan)
        trace = self._known.pop(order, None) or self.again(plan)
        self._known[order] = trace
        if len(self._known) > 16:
            del self._known[next(iter(self._known))]
        return trace

    def again(self, plan: Plan, *, may_raise: bool = True) -> Trace:
        """Make a trial, whether there has been one or not. Exceptions propagate, unless it `may_raise`."""
        if self.count >= TRIALS or self.seconds > SECONDS:
            raise EnoughError
        self.collect()
        began = time.perf_counter()
        run = self.loaded.pipeline.run
        plan = without_amounts(plan, keep_when=True)
        probe, planned = Probe(plan), PlannedHook(NAME, "", {}, "last", "", "", "raise")
        probing = replace(plan, hooks=(*plan.hooks, planned), bindings=(*plan.bindings, *probed(plan)))
        first = not self.count
        say = self.say if first else lambda *message: None
        self.count += 1
        recorded, raised = list[Record](), ""
        try:
            parts = build(self.loaded, plan, self.base, say, splits=())
            section = run.model_copy(update={"compile": False})  # it would take longer than all the rest
            parts = replace(parts, section=section, data=self.data, hooks={**parts.hooks, NAME: probe})
            execute = partial(Trainer.train_once, test=run.test, epochs=EPOCHS, iters=ITERS)
            quiet = nullcontext() if first else redirect_stderr(io.StringIO())
            with redirect_stdout(io.StringIO()), quiet, probe.watching_saves():
                _, recorded = in_temporary_run(self.loaded, parts, probing, execute, say, prints_failure=not may_raise)
        except Exception as error:
            if not may_raise:
                raise
            message = error.problems[0].message if isinstance(error, UserError) else error
            raised = f"{type(error).__name__}: {message}"
        self.seconds += time.perf_counter() - began
        fired = fired_in(recorded)
        bound = frozenset((binding.point, key(binding)) for binding in plan.bindings if fired[binding.id])
        return Trace((*probe.visits, _logged(recorded)), bound, raised)


@contextmanager
def trials(loaded: Loaded, plan: Plan, base: Path, say: Callable[[str, Level], None]) -> Iterator[Trials]:
    """Fetch the batches that trials need; `say` is given the messages of the first one. Files are relative to `base`.

    Raises UserError where something cannot be built, or when there have been too many for an answer.
    """
    run = loaded.pipeline.run
    with explain_oom(loaded.pipeline, lambda: False), torch_settings(run, lambda *message: None):
        whole = build(loaded, plan, base, lambda *message: None).data
        batches = {"train": ITERS * run.accumulate, "val": BATCHES, "test": BATCHES}
        data = {
            split: FewBatches(source, min(batches[split_of(split)], len(source)), "a trial", run.seed)
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
    result: dict[str, dict[int, float]] = {}
    for record in recorded:
        if record["k"] == "scalars":
            for name, its, values in series(record):
                result.setdefault(name, {}).update(zip(its, values, strict=True))
    leaves: Leaves = {
        ("logged", name): of_bytes(repr(sorted(values.items())).encode()) for name, values in result.items()
    }
    return Visit("on_log", 0, leaves)


PARTS = ("model", "grads", "modes", "optimizer", "lr", "rng", "metrics", "outputs", "batch", "checkpoint", "logged")
"""The parts of a trace in the order of reports; hooks, files and the task follow."""

WORDS = {
    "grads": "gradients",
    "modes": "training or evaluation mode of modules",
    "lr": "learning rates",
    "rng": "random generators",
}
"""Names of parts in reports, where they are not called so themselves."""

NAMED = 3
"""How many values are named, of a part in which several differ."""


def difference(a: Trace, b: Trace, noise: frozenset[Leaf]) -> str:
    """Return the difference between the trials of two orders in words, without noise; "" where they are equal."""
    result = list(_visits(a, b, noise))
    if a.raised != b.raised:
        ways = (("as it is", a), ("the other way round", b))
        return "; ".join(f"{name} it raises {trace.raised}" for name, trace in ways if trace.raised)
    if not result:
        places = [[(visit.point, visit.iter) for visit in trace.visits] for trace in (a, b)]
        return "" if places[0] == places[1] else "differ in which points are fired"
    (item, other, differing), *rest = result
    parts = dict(_parts(item.leaves, other.leaves, differing))
    every = dict.fromkeys(_part(leaf) for *_, leaves in rest for leaf in leaves)
    later = [name for name in every if name not in parts]
    more = f" and {len(later) - NAMED} more" * (len(later) > NAMED)
    then = f"; later in {', '.join(later[:NAMED])}{more}" * bool(later)
    return f"differ in {'; in '.join(parts.values())}{then}"


def _visits(a: Trace, b: Trace, noise: frozenset[Leaf] = frozenset()) -> Iterator[tuple[Visit, Visit, list[Leaf]]]:
    for item, other in zip(a.visits, b.visits, strict=False):
        if (item.point, item.iter) != (other.point, other.iter):
            return
        here, there = item.leaves, other.leaves
        differing = [
            leaf for leaf in {**here, **there} if here.get(leaf) != there.get(leaf) and unit_of(leaf) not in noise
        ]
        if differing:
            yield item, other, differing


def changing(a: Trace, b: Trace) -> frozenset[Leaf]:
    """Return what differs between two trials of the same order: times, and what follows from them."""
    return frozenset(unit_of(leaf) for *_, leaves in _visits(a, b) for leaf in leaves)


def unit_of(leaf: Leaf) -> Leaf:
    """Return the unit that is noise or not: all values of a hook, which may depend on one another, or one value."""
    own = leaf[1:] if leaf[:2] == ("checkpoint", "hooks") else leaf
    return own[:2] if own[0] == "hooks" else leaf


def _part(leaf: Leaf) -> str:
    names = {"hooks": f"`{leaf[1]}`", "files": f"the file {leaf[1]}"} if len(leaf) > 1 else {}
    return names.get(leaf[0]) or WORDS.get(leaf[0], leaf[0])


def _parts(a: Leaves, b: Leaves, differing: Sequence[Leaf]) -> Iterator[tuple[str, str]]:
    grouped: dict[str, list[Leaf]] = {}
    for leaf in differing:
        grouped.setdefault(_part(leaf), []).append(leaf)
    totals = Counter(map(_part, {**a, **b}))
    order = {WORDS.get(part, part): place for place, part in enumerate(PARTS)}
    for name in sorted(grouped, key=lambda name: (order.get(name, len(order)), name)):
        leaves = grouped[name]
        names = [".".join(leaf[2:] if leaf[0] in ("hooks", "files") else leaf[1:]) for leaf in leaves]
        text = f"{name}: {', '.join(names)}".removesuffix(": ")
        if len(leaves) > NAMED:
            unit = "tensors" if name in ("model", "gradients") else "values"
            text = f"{name}: {len(leaves)} of {totals[name]} {unit}"
        yield name, text


@dataclass(frozen=True, slots=True)
class Step:
    """The smallest change of the order that makes a difference: `pairs` are those that it turns, mostly one."""

    pairs: tuple[Pair, ...]
    difference: str


@dataclass(frozen=True, slots=True)
class Commuted:
    """The results of trials: the `steps` that differ, the pairs that make no difference (`same`), and the rest.

    `noise` differs between two trials of the same order, and so do hooks of the `leaking` pairs. `untried` pairs have
    their reason.
    """

    steps: tuple[Step, ...]
    same: tuple[Pair, ...]
    leaking: tuple[Pair, ...]
    untried: tuple[tuple[Pair, str], ...]
    noise: tuple[str, ...]
    trials: int
    seconds: float


def commute(loaded: Loaded, plan: Plan, base: Path, say: Callable[[str, Level], None]) -> Commuted:
    """Try every pair that nothing orders. `say` takes the messages of the run; files are relative to `base`.

    Exceptions in the order of the plan propagate, as in a dry run.
    """
    pairs = list(unordered(plan))
    if not pairs:
        return Commuted((), (), (), (), noise=(), trials=0, seconds=0.0)
    with trials(loaded, plan, base, say) as made:
        search = _Search(made, plan)
        steps, same, left = search.all([pair for pair in pairs if search.fires(pair)])
        silent = ((pair, "one of them does not fire in a trial") for pair in pairs if not search.fires(pair))
        leaking = tuple(pair for pair in same if search.leaks(pair))
        same = [pair for pair in same if pair not in leaking]
        noise = tuple(sorted(".".join(leaf[1:] if leaf[0] == "hooks" else leaf) for leaf in search.noise))
        return Commuted(tuple(steps), tuple(same), leaking, (*silent, *left), noise, made.count, made.seconds)


class _Search:
    """Compares orders of one pipeline. Differences between two trials of the same order are noise, and not compared."""

    def __init__(self, made: Trials, plan: Plan) -> None:
        self._made = made
        self._plan = plan
        self._first = made.again(plan, may_raise=False)
        self.noise = changing(self._first, made.again(plan, may_raise=False))
        self._free = frozenset(unordered(plan))
        if loud := sorted({leaf[0] for leaf in self.noise} & {"model", "grads", "optimizer", "lr", "rng"}):
            message = f"two runs of the same order differ in {' and '.join(loud)}, so other orders cannot be judged"
            raise UserError(Problem(message, hint="set run.deterministic = true, or look for what depends on the time"))

    def fires(self, pair: Pair) -> bool:
        return {(pair.point, pair.first), (pair.point, pair.then)} <= self._first.fired

    def leaks(self, pair: Pair) -> bool:
        """Say whether noise may hide a difference between a pair: the state of one is noise, by code of the user.

        Built-in hooks keep nothing from trial to trial: their noise is the time.
        """
        hooks = [self._plan.hook(name) for name in pair.hooks]
        own = [hook for hook in hooks if not {hook.use}.intersection((*BUILT_IN, *BUILT_IN.values()))]
        return any(("hooks", hook.name) in self.noise for hook in own)

    def _steps(self, begin: Plan, swaps: Sequence[Pair], low: int, high: int) -> Iterator[Step]:
        """Yield the smallest steps that differ between the orders after `low` and `high` swaps, by halving."""
        a, b = (self._made.compiled(swapped(begin, swaps[:done])) for done in (low, high))
        if not difference(self._made.of(a), self._made.of(b), self.noise):
            return
        if high - low > 1:
            half = (low + high) // 2
            yield from self._steps(begin, swaps, low, half)
            yield from self._steps(begin, swaps, half, high)
        elif result := self._confirmed(a, b):
            yield result

    def _confirmed(self, a: Plan, b: Plan) -> Step | None:
        """Return the step between two orders if it makes the same difference once more, the declared order first."""
        if turned(a, b)[0] not in turned(self._plan, b):  # it has been turned before, and this turns it back
            a, b = b, a
        self.noise |= changing(self._made.of(a), self._made.again(a)) | changing(self._made.of(b), self._made.again(b))
        result = difference(self._made.of(a), self._made.of(b), self.noise)
        return Step(tuple(turned(a, b)), result) if result else None

    def all(self, pairs: Sequence[Pair]) -> tuple[list[Step], list[Pair], list[tuple[Pair, str]]]:
        """Turn each of these pairs once; return the steps that differ, the equal pairs, and the untried with reasons.

        Each round turns all pairs that stand side by side, as in a sort. Then it turns the differing ones back: the
        next round starts from an order with the results of the declared one.
        """
        left = dict.fromkeys(pairs)
        steps: list[Step] = []
        same: list[Pair] = []
        stuck: list[Pair] = []
        order = self._plan
        try:
            while left and (begin := self._with_neighbours(order, left)):
                swaps = neighbouring(begin, left)
                order = self._made.compiled(swapped(begin, swaps))
                either = {either for pair in turned(begin, order) for either in (pair, pair.turned)}
                tried = [pair for pair in left if pair in either]
                swaps_made = swaps_between(begin, order)
                steps.extend(self._steps(begin, swaps_made, 0, len(swaps_made)))
                differing = {pair for step in steps for pair in step.pairs}
                same += [pair for pair in tried if pair not in differing]
                if not differing.isdisjoint(tried):
                    kept = [pair for pair in swaps if differing.isdisjoint((pair, pair.turned))]
                    order = self._made.compiled(swapped(begin, kept))
                stuck += [] if tried else [pair for pair in left if pair in swaps or pair.turned in swaps]
                left = {pair: None for pair in left if pair not in tried and pair not in stuck}
        except EnoughError:
            why = f"the limit of {TRIALS} trials, or {SECONDS:g} s, was reached"
            return steps, same, [(pair, why) for pair in left]
        why = "no order was found in which one follows right upon the other"
        return steps, same, [(pair, why) for pair in (*stuck, *left)]

    def _with_neighbours(self, order: Plan, pairs: Collection[Pair]) -> Plan | None:
        """Return an order in which some of the pairs stand side by side: this one, the declared one, or another."""
        for begin in (order, self._plan):
            if neighbouring(begin, pairs):
                return begin
        together = self._made.compiled(brought_together(self._plan, pairs, self._free))
        return together if neighbouring(together, pairs) else None
