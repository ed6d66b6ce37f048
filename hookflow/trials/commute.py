"""Find the unordered pairs of hooks whose order makes a difference.

Trials fire each pair both ways.

A trial is two epochs of two iterations, each with a validation, then a checkpoint that is read
back, and the test if the run has one; it is fingerprinted at each point. Each trial builds its
models, optimizers and hooks from the seed; the batches are fetched once. Triggers keep their `when`
and lose their amounts, so that rare hooks fire too.
"""

import io
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any
from unittest.mock import patch

import torch

from hookflow.errors import Problem, UserError
from hookflow.events.packing import iter_series
from hookflow.events.records import Level, Record
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Binding, Plan, PlannedHook, Trigger, WantedPlaces
from hookflow.graph.slots import ARGUMENT_SLOTS
from hookflow.graph.swaps import (
    BindingKey,
    OrderedPair,
    apply_swaps,
    find_neighbours,
    find_swaps,
    find_turned,
    find_unordered,
    make_binding_key,
    order_key,
    order_pairs_adjacent,
)
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.registry import is_built_in
from hookflow.hooks.spec import find_specs
from hookflow.pipeline.by_epoch import batches_by_epoch
from hookflow.pipeline.load import Loaded
from hookflow.runner.attempt.main import collect_between
from hookflow.runner.builder.build import build
from hookflow.runner.data.batches import split_of
from hookflow.runner.data.source import RepeatedSource, Source, close
from hookflow.runner.device.precision import explain_oom, torch_settings
from hookflow.runner.device.random_state import random_state
from hookflow.runner.iteration.run import Run
from hookflow.runner.loop.trainer import Trainer
from hookflow.trials.run_tensors import Leaves, TensorFingerprints, iter_trained_values, of_bytes
from hookflow.trials.run_tensors import Path as Leaf
from hookflow.trials.temporary_run import (
    TRIAL_BATCHES,
    TRIAL_EPOCHS,
    TRIAL_ITERS,
    count_firings,
    in_temporary_run,
    without_amounts,
)

PROBE_NAME = "the probe"
"""The name of the probe among the hooks; no table can be called so."""


@dataclass(frozen=True, slots=True)
class PointVisit:
    """The values of a run after a firing of a point: the fingerprint of each value."""

    point: str
    iter: int
    leaves: Leaves


class ValueProbe:
    """Keeps what it has seen in `visits`."""

    def __init__(self, plan: Plan) -> None:
        self.visits: list[PointVisit] = []
        self._saved: dict[Path, Leaves] = {}
        for binding in make_probe_bindings(plan):
            setattr(
                self, binding.method, partial(self._record_visit, binding.point, binding.takes[1:])
            )

    def _record_visit(self, point: str, names: Sequence[str], run: Run, *offered: Any) -> None:
        leaves = dict(_of_run(run))
        other_hooks = {name: hook for name, hook in run.hooks.items() if hook is not self}
        known = [run, run.task, *run.optimizers.values(), *run.data.values(), *other_hooks.values()]
        for model in run.models.values():
            known += [*model.modules(), *model.parameters(), *model.buffers()]
        fingerprints = TensorFingerprints(known)
        for name, value in zip(names, offered, strict=True):
            if name == "checkpoint":
                value = _without_requesters(value)
            leaves.update(fingerprints.of(value, name))
        for name, hook in other_hooks.items():
            for attribute, value in getattr(hook, "__dict__", {}).items():
                leaves.update(fingerprints.of(value, "hooks", name, attribute))
        for attribute, value in getattr(run.task, "__dict__", {}).items():
            leaves.update(fingerprints.of(value, "task", attribute))
        leaves.update(_of_files(run.dir))
        for file, saved in self._saved.items():
            if not file.is_relative_to(run.dir):
                leaves.update(saved)
        self.visits.append(PointVisit(point, run.iter, leaves))

    @contextmanager
    def watch_saves(self) -> Iterator[None]:
        """See what `torch.save` writes meanwhile, wherever that is; of a name the latest."""
        save = torch.save

        def watched(thing: Any, to: Any, *args: Any, **named: Any) -> None:
            if isinstance(to, str | os.PathLike) and current_thread() is main_thread():
                self._saved[Path(to).absolute()] = dict(
                    TensorFingerprints().of(thing, "files", os.fspath(to))
                )
            save(thing, to, *args, **named)

        with patch.object(torch, "save", watched):
            yield


def make_probe_bindings(plan: Plan) -> list[Binding]:
    """Return the probe's bindings, with the numbers that follow those of the plan.

    It fires last at each point. Effects of hooks inside the network show at the next point of the
    loop; at some points it looks for them always.
    """
    always = (
        "after_train_iter",
        "after_train_epoch",
        "after_val",
        "before_save_checkpoint",
        "after_run",
    )
    kinds = ("standard", "step", "own")
    points = []
    for point in plan.points:
        if point.kind in kinds and (plan.at(point.name) or point.name in always):
            points.append(point)
    result = []
    for id_, point in enumerate(points, len(plan.bindings)):
        takes = []
        if point.name != "after_save_checkpoint":
            takes = [name for name in point.offers if name in ARGUMENT_SLOTS]
        method = f"at_{point.name}"
        arguments = ("run", *takes)
        result.append(
            Binding(
                PROBE_NAME, point.name, method, "whole", arguments, Trigger(), phase="last", id=id_
            )
        )
    return result


def _of_run(run: Run) -> Iterator[tuple[tuple[str, ...], bytes]]:
    fingerprints = TensorFingerprints()
    for kind, _, path, value in iter_trained_values(run.models, run.optimizers):
        if path[-1] != "params":
            yield from fingerprints.of(value, kind, *path)
    for owner, model in run.models.items():
        modes = [name for name, module in model.named_modules() if module.training]
        yield from fingerprints.of(modes, "modes", owner)
    yield from fingerprints.of(dict(run.metrics), "metrics")
    yield from fingerprints.of(random_state(run.device), "rng")


def _without_requesters(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is saved, without who has requested it first.

    A stop is a stop, and a save a save.
    """
    requests = dict(checkpoint.get("requests", {}))
    requests["saves"] = sorted(requests.get("saves", {}))
    for name in ("stop", "ended_by", "epoch_end"):
        if name in requests:
            requests[name] = requests[name] is not None
    return {**checkpoint, "requests": requests}


def _of_files(folder: Path) -> Iterator[tuple[tuple[str, ...], bytes]]:
    for path in _list_hook_files(folder):
        name = str(path.relative_to(folder))
        state = None
        if path.suffix in (".pt", ".pth", ".ckpt"):
            # A file that `torch.save` has not written is compared by its bytes.
            with suppress(pickle.UnpicklingError, RuntimeError, EOFError, ValueError):
                state = torch.load(path, map_location="cpu", weights_only=True)
        if state is None:
            yield ("files", name), of_bytes(path.read_bytes())
        else:
            yield from TensorFingerprints().of(state, "files", name)


def _list_hook_files(folder: Path) -> list[Path]:
    """Return the files that hooks have written in a run directory, sorted.

    Files of the runner are left out.
    """
    run_dir = RunDir(folder)
    of_runner = {
        run_dir.events,
        run_dir.commands,
        run_dir.output,
        run_dir.now,
        run_dir.lock,
        run_dir.identity,
        run_dir.pipeline,
        run_dir.plan,
        run_dir.checkpoints,
        run_dir.images,
        run_dir.writers,
    }
    files = []
    for top in folder.iterdir():
        if top not in of_runner:
            files += [path for path in (top, *top.rglob("*")) if path.is_file()]
    return sorted(files)


MAX_TRIALS = 200
"""The number of trials after which no other one begins."""

MAX_SECONDS = 600.0
"""The seconds of trials after which no other one begins."""

MAX_KNOWN_TRACES = 16
"""How many traces are kept: one takes megabytes where a network has many tensors."""


class TrialLimitError(Exception):
    """The limit of the trials, or of their time, is reached."""


@dataclass(frozen=True, slots=True)
class TrialTrace:
    """The values of a trial after each firing of a point, and the logged numbers.

    `fired` are the bindings that have fired. `raised` says what has ended it, if anything has.
    """

    visits: tuple[PointVisit, ...]
    fired: frozenset[tuple[str, BindingKey]]
    raised: str = ""


class FewBatches(RepeatedSource):
    """The first batches of a source, fetched once; an epoch keeps its length."""

    def __init__(self, source: Source, batches: int, key: str, seed: int) -> None:
        super().__init__(source, batches, key, seed)
        self.batches_by_epoch = batches_by_epoch(source)

    def __len__(self) -> int:
        return self.whole


@dataclass
class TrialRunner:
    """Makes trials of one pipeline.

    `count` is how many there have been, `seconds` how long they have taken.
    """

    loaded: Loaded
    base: Path
    data: Mapping[str, Any]
    say: Callable[[str, Level], None]
    collect: Callable[[], object]
    """Called before each trial: the models of all before it are not to be there still."""
    count: int = 0
    seconds: float = 0.0
    _known: dict[Any, TrialTrace] = field(default_factory=dict)
    """The latest traces by their order."""

    def compiled(self, wanted: WantedPlaces) -> Plan:
        """Return the plan with its hooks in an order as near to the wanted one as can be."""
        return compile_pipeline(self.loaded, self.base, wanted=wanted)

    def of(self, plan: Plan) -> TrialTrace:
        order = order_key(plan)
        trace = self._known.pop(order, None) or self.again(plan)
        self._known[order] = trace
        if len(self._known) > MAX_KNOWN_TRACES:
            del self._known[next(iter(self._known))]
        return trace

    def again(self, plan: Plan, *, may_raise: bool = True) -> TrialTrace:
        """Make a trial, whether there has been one or not.

        Exceptions propagate, unless it `may_raise`.
        """
        if self.count >= MAX_TRIALS or self.seconds > MAX_SECONDS:
            raise TrialLimitError
        self.collect()
        began = time.perf_counter()
        run = self.loaded.pipeline.run
        plan = without_amounts(plan, keep_when=True)
        probe = ValueProbe(plan)
        planned_probe = PlannedHook(PROBE_NAME, "", {}, "last", "", "", "raise")
        hooks = (*plan.hooks, planned_probe)
        bindings = (*plan.bindings, *make_probe_bindings(plan))
        plan_with_probe = replace(plan, hooks=hooks, bindings=bindings)

        is_first = self.count == 0
        self.count += 1
        say = self.say
        errors: AbstractContextManager[object] = nullcontext()
        if not is_first:  # it would say the same once more
            say = _discard
            errors = redirect_stderr(io.StringIO())
        recorded: list[Record] = []
        raised = ""
        try:
            parts = build(self.loaded, plan, self.base, say, splits=())
            # Compiling would take longer than all the rest.
            section = run.model_copy(update={"compile": False})
            parts = replace(
                parts, section=section, data=self.data, hooks={**parts.hooks, PROBE_NAME: probe}
            )
            execute = partial(
                Trainer.train_once, test=run.test, epochs=TRIAL_EPOCHS, iters=TRIAL_ITERS
            )
            with redirect_stdout(io.StringIO()), errors, probe.watch_saves():
                _, recorded = in_temporary_run(
                    self.loaded, parts, plan_with_probe, execute, say, prints_failure=not may_raise
                )
        except Exception as error:
            if not may_raise:
                raise
            message = str(error)
            if isinstance(error, UserError):
                message = error.problems[0].message
            raised = f"{type(error).__name__}: {message}"
        self.seconds += time.perf_counter() - began

        times_fired = count_firings(recorded)
        fired = set()
        for binding in plan.bindings:
            if times_fired[binding.id]:
                fired.add((binding.point, make_binding_key(binding)))
        visits = (*probe.visits, _collect_logged(recorded))
        return TrialTrace(visits, frozenset(fired), raised)


def _discard(*message: object) -> None:
    """Take a message and do nothing with it."""


@contextmanager
def trials(
    loaded: Loaded, plan: Plan, base: Path, say: Callable[[str, Level], None]
) -> Iterator[TrialRunner]:
    """Fetch the batches that trials need.

    `say` is given the messages of the first one. Files are relative to `base`. Raises UserError
    where something cannot be built, or when there have been too many for an answer.
    """
    run = loaded.pipeline.run
    with explain_oom(loaded.pipeline, lambda: False), torch_settings(run, _discard):
        whole = build(loaded, plan, base, _discard).data
        most_batches = {
            "train": TRIAL_ITERS * run.accumulate.most,
            "val": TRIAL_BATCHES,
            "test": TRIAL_BATCHES,
        }
        data = {}
        for name, source in whole.items():
            num_batches = min(most_batches[split_of(name)], len(source))
            data[name] = FewBatches(source, num_batches, "a trial", run.seed)
        try:
            with collect_between() as collect:
                yield TrialRunner(loaded, base, data, say, collect)
        except TrialLimitError:
            hint = "try a smaller model, or fewer hooks: --only HOOK"
            message = f"no answer within {MAX_TRIALS} trials, or {MAX_SECONDS:g} s of them"
            raise UserError(Problem(message, hint=hint)) from None
        finally:
            for source in whole.values():
                close(source)


def _collect_logged(recorded: Sequence[Record]) -> PointVisit:
    """Return what hooks have logged in all iterations.

    Of one name the last number of each counts.
    """
    numbers: dict[str, dict[int, float]] = {}
    for record in recorded:
        if record["k"] == "scalars":
            for name, iterations, values in iter_series(record):
                numbers.setdefault(name, {}).update(zip(iterations, values, strict=True))
    leaves: Leaves = {}
    for name, by_iteration in numbers.items():
        text = repr(sorted(by_iteration.items()))
        leaves["logged", name] = of_bytes(text.encode())
    return PointVisit("on_log", 0, leaves)


PART_ORDER = (
    "model",
    "grads",
    "modes",
    "optimizer",
    "lr",
    "rng",
    "metrics",
    "outputs",
    "batch",
    "checkpoint",
    "logged",
)
"""The parts of a trace in the order of reports; hooks, files and the task follow."""

PART_WORDS = {
    "grads": "gradients",
    "modes": "training or evaluation mode of modules",
    "lr": "learning rates",
    "rng": "random generators",
}
"""Names of parts in reports, where they are not called so themselves."""

MAX_NAMED = 3
"""How many values are named, of a part in which several differ."""


def difference(a: TrialTrace, b: TrialTrace, noise: frozenset[Leaf]) -> str:
    """Return the difference between the trials of two orders in words, without noise.

    It is "" where they are equal.
    """
    if a.raised != b.raised:
        texts = []
        if a.raised:
            texts.append(f"as it is it raises {a.raised}")
        if b.raised:
            texts.append(f"the other way round it raises {b.raised}")
        return "; ".join(texts)

    differences = list(_visit_differences(a, b, noise))
    if not differences:
        if _list_visited_points(a) == _list_visited_points(b):
            return ""
        return "differ in which points are fired"

    texts_by_part = _describe_parts(differences[0])
    later_parts = _list_later_parts(differences[1:], texts_by_part)
    text = f"differ in {'; in '.join(texts_by_part.values())}"
    if later_parts:
        text += f"; later in {', '.join(later_parts[:MAX_NAMED])}"
    num_hidden = len(later_parts) - MAX_NAMED
    if num_hidden > 0:
        text += f" and {num_hidden} more"
    return text


def _list_visited_points(trace: TrialTrace) -> list[tuple[str, int]]:
    return [(visit.point, visit.iter) for visit in trace.visits]


@dataclass(frozen=True, slots=True)
class VisitDifference:
    """The same firing of a point in two trials, and the `leaves` that differ after it."""

    a: PointVisit
    b: PointVisit
    leaves: list[Leaf]


def _visit_differences(
    a: TrialTrace, b: TrialTrace, noise: frozenset[Leaf] = frozenset()
) -> Iterator[VisitDifference]:
    """Yield the visits after which values differ.

    It ends where the trials do not fire the same points any more.
    """
    for in_a, in_b in zip(a.visits, b.visits, strict=False):
        if (in_a.point, in_a.iter) != (in_b.point, in_b.iter):
            return
        differing = []
        for leaf in {**in_a.leaves, **in_b.leaves}:
            if in_a.leaves.get(leaf) != in_b.leaves.get(leaf) and unit_of(leaf) not in noise:
                differing.append(leaf)
        if differing:
            yield VisitDifference(in_a, in_b, differing)


def _list_later_parts(differences: Sequence[VisitDifference], known: Collection[str]) -> list[str]:
    """Return the parts, each once, in which later visits differ.

    Parts of the first visit, in `known`, are left out.
    """
    parts: list[str] = []
    for difference in differences:
        for leaf in difference.leaves:
            part = _find_part(leaf)
            if part not in known and part not in parts:
                parts.append(part)
    return parts


def find_noise(a: TrialTrace, b: TrialTrace) -> frozenset[Leaf]:
    """Return what differs between two trials of the same order.

    That is times, and what follows from them.
    """
    units: set[Leaf] = set()
    for visit_difference in _visit_differences(a, b):
        units.update(unit_of(leaf) for leaf in visit_difference.leaves)
    return frozenset(units)


def unit_of(leaf: Leaf) -> Leaf:
    """Return the unit that is noise or not.

    It is all values of a hook, which may depend on one another, or one value.
    """
    path = leaf
    if leaf[:2] == ("checkpoint", "hooks"):
        path = leaf[1:]
    if path[0] == "hooks":
        return path[:2]
    return leaf


def _find_part(leaf: Leaf) -> str:
    """Return the part of a trace that a value belongs to, as reports call it."""
    if len(leaf) > 1 and leaf[0] == "hooks":
        return f"`{leaf[1]}`"
    if len(leaf) > 1 and leaf[0] == "files":
        return f"the file {leaf[1]}"
    return PART_WORDS.get(leaf[0], leaf[0])


def _describe_parts(visit_difference: VisitDifference) -> dict[str, str]:
    """Return by part what differs in it, in the order of reports."""
    leaves_by_part: dict[str, list[Leaf]] = {}
    for leaf in visit_difference.leaves:
        leaves_by_part.setdefault(_find_part(leaf), []).append(leaf)
    all_leaves = {**visit_difference.a.leaves, **visit_difference.b.leaves}
    totals = Counter(_find_part(leaf) for leaf in all_leaves)
    places = {PART_WORDS.get(part, part): place for place, part in enumerate(PART_ORDER)}

    texts = {}
    for part in sorted(leaves_by_part, key=lambda part: (places.get(part, len(places)), part)):
        leaves = leaves_by_part[part]
        if len(leaves) > MAX_NAMED:
            unit = "values"
            if part in ("model", "gradients"):
                unit = "tensors"
            text = f"{part}: {len(leaves)} of {totals[part]} {unit}"
        else:
            names = ", ".join(_name_in_part(leaf) for leaf in leaves)
            text = f"{part}: {names}".removesuffix(": ")
        texts[part] = text
    return texts


def _name_in_part(leaf: Leaf) -> str:
    if leaf[0] in ("hooks", "files"):
        return ".".join(leaf[2:])
    return ".".join(leaf[1:])


@dataclass(frozen=True, slots=True)
class OrderDifference:
    """The smallest change of the order that makes a difference.

    `pairs` are those that it turns, mostly one.
    """

    pairs: tuple[OrderedPair, ...]
    difference: str


@dataclass(frozen=True, slots=True)
class CommuteResult:
    """The results of trials.

    These are the `steps` that differ, the pairs that make no difference (`same`), and the rest.

    `noise` differs between two trials of the same order, and so do hooks of the `leaking` pairs.
    `untried` pairs have their reason.
    """

    steps: tuple[OrderDifference, ...]
    same: tuple[OrderedPair, ...]
    leaking: tuple[OrderedPair, ...]
    untried: tuple[tuple[OrderedPair, str], ...]
    noise: tuple[str, ...]
    trials: int
    seconds: float


def run_commute_trials(
    loaded: Loaded, plan: Plan, base: Path, say: Callable[[str, Level], None]
) -> CommuteResult:
    """Try every pair that nothing orders.

    `say` takes the messages of the run. Files are relative to `base`.

    Exceptions in the order of the plan propagate, as in a dry run.
    """
    pairs = list(find_unordered(plan))
    if not pairs:
        return CommuteResult((), (), (), (), noise=(), trials=0, seconds=0.0)
    with trials(loaded, plan, base, say) as runner:
        specs = find_specs(loaded, [hook.name for hook in plan.hooks], base)
        user_hooks = {name for name, spec in specs.items() if not is_built_in(spec.make)}
        search = _OrderSearch(runner, plan, user_hooks)
        firing = [pair for pair in pairs if search.fires(pair)]
        outcome = search.all(firing)

        untried = []
        for pair in pairs:
            if not search.fires(pair):
                untried.append((pair, "one of them does not fire in a trial"))
        untried += outcome.untried
        leaking = []
        same = []
        for pair in outcome.same:
            if search.is_noisy(pair):
                leaking.append(pair)
            else:
                same.append(pair)
        return CommuteResult(
            steps=tuple(outcome.steps),
            same=tuple(same),
            leaking=tuple(leaking),
            untried=tuple(untried),
            noise=tuple(sorted(_format_noise(unit) for unit in search.noise)),
            trials=runner.count,
            seconds=runner.seconds,
        )


def _format_noise(unit: Leaf) -> str:
    if unit[0] == "hooks":
        return ".".join(unit[1:])
    return ".".join(unit)


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The results of turning pairs.

    These are the `steps` that differ, the equal pairs, and the untried ones with reasons.
    """

    steps: list[OrderDifference]
    same: list[OrderedPair]
    untried: list[tuple[OrderedPair, str]]


class _OrderSearch:
    """Compares orders of one pipeline.

    Differences between two trials of the same order are noise, and not compared.
    """

    def __init__(self, runner: TrialRunner, plan: Plan, own_hooks: Collection[str] = ()) -> None:
        self._runner = runner
        self._plan = plan
        self._own_hooks = own_hooks
        """The names of the hooks that are code of the user's."""
        self._first = runner.again(plan, may_raise=False)
        second = runner.again(plan, may_raise=False)
        self.noise = find_noise(self._first, second)
        self._free = frozenset(find_unordered(plan))
        noisy_parts = {leaf[0] for leaf in self.noise}
        unstable = sorted(noisy_parts & {"model", "grads", "optimizer", "lr", "rng"})
        if unstable:
            parts = " and ".join(unstable)
            message = (
                f"two runs of the same order differ in {parts}, so other orders cannot be judged"
            )
            raise UserError(
                Problem(
                    message,
                    hint="set run.deterministic = true, or look for what depends on the time",
                )
            )

    def fires(self, pair: OrderedPair) -> bool:
        return {(pair.point, pair.first), (pair.point, pair.then)} <= self._first.fired

    def is_noisy(self, pair: OrderedPair) -> bool:
        """Say whether noise may hide a difference between a pair.

        The state of one is noise, by code of the user. Built-in hooks keep nothing from trial to
        trial: their noise is the time.
        """
        return any(name in self._own_hooks and ("hooks", name) in self.noise for name in pair.hooks)

    def _find_smallest_steps(
        self, begin: Plan, swaps: Sequence[OrderedPair], low: int, high: int
    ) -> Iterator[OrderDifference]:
        """Yield the smallest steps that differ between two orders, by halving.

        These are the orders after `low` and `high` swaps.
        """
        a = self._runner.compiled(apply_swaps(begin, swaps[:low]))
        b = self._runner.compiled(apply_swaps(begin, swaps[:high]))
        if not difference(self._runner.of(a), self._runner.of(b), self.noise):
            return
        if high - low > 1:
            half = (low + high) // 2
            yield from self._find_smallest_steps(begin, swaps, low, half)
            yield from self._find_smallest_steps(begin, swaps, half, high)
        else:
            step = self._confirm_step(a, b)
            if step is not None:
                yield step

    def _confirm_step(self, a: Plan, b: Plan) -> OrderDifference | None:
        """Return the step between two orders if it makes the same difference once more.

        The declared order is the first.
        """
        # A pair that was turned before is turned back by this step, so the declared order is the
        # second.
        if find_turned(a, b)[0] not in find_turned(self._plan, b):
            a, b = b, a
        noise_of_a = find_noise(self._runner.of(a), self._runner.again(a))
        noise_of_b = find_noise(self._runner.of(b), self._runner.again(b))
        self.noise = self.noise | noise_of_a | noise_of_b
        text = difference(self._runner.of(a), self._runner.of(b), self.noise)
        if not text:
            return None
        return OrderDifference(tuple(find_turned(a, b)), text)

    def all(self, pairs: Sequence[OrderedPair]) -> SearchOutcome:
        """Turn each of these pairs once.

        Returns the steps that differ, the equal pairs, and the untried with reasons.

        Each round turns all pairs that stand side by side, as in a sort. Then it turns the
        differing ones back: the next round starts from an order with the results of the declared
        one.
        """
        left = dict.fromkeys(pairs)  # a set that keeps its order
        steps: list[OrderDifference] = []
        same: list[OrderedPair] = []
        stuck: list[OrderedPair] = []
        order = self._plan
        try:
            while left:
                begin = self._with_neighbours(order, left)
                if begin is None:
                    break
                swaps = find_neighbours(begin, left)
                order = self._runner.compiled(apply_swaps(begin, swaps))
                turned = set(find_turned(begin, order))
                tried = [pair for pair in left if pair.is_among(turned)]
                swaps_made = find_swaps(begin, order)
                steps.extend(self._find_smallest_steps(begin, swaps_made, 0, len(swaps_made)))

                differing: set[OrderedPair] = set()
                for step in steps:
                    differing.update(step.pairs)
                same += [pair for pair in tried if pair not in differing]
                if not differing.isdisjoint(tried):
                    kept = [swap for swap in swaps if not swap.is_among(differing)]
                    order = self._runner.compiled(apply_swaps(begin, kept))
                if not tried:
                    stuck += [pair for pair in left if pair.is_among(swaps)]
                for pair in (*tried, *stuck):
                    left.pop(pair, None)
        except TrialLimitError:
            reason = f"the limit of {MAX_TRIALS} trials, or {MAX_SECONDS:g} s, was reached"
            return SearchOutcome(steps, same, [(pair, reason) for pair in left])
        reason = "no order was found in which one follows right upon the other"
        return SearchOutcome(steps, same, [(pair, reason) for pair in (*stuck, *left)])

    def _with_neighbours(self, order: Plan, pairs: Collection[OrderedPair]) -> Plan | None:
        """Return an order in which some of the pairs are adjacent.

        It is this one, the declared one, or another.
        """
        for begin in (order, self._plan):
            if find_neighbours(begin, pairs):
                return begin
        together = self._runner.compiled(order_pairs_adjacent(self._plan, pairs, self._free))
        if find_neighbours(together, pairs):
            return together
        return None
