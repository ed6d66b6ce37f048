"""The findings of `hookflow check` on a valid pipeline: forecasts, ambiguous pairs, warnings."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookflow.errors import Problem
from hookflow.events.rundir import all_runs
from hookflow.graph.plan import Binding, Plan, Reason
from hookflow.graph.render.text import edges_that_gave_way
from hookflow.graph.schedule import Forecast, Length, compute_forecasts
from hookflow.graph.swaps import OrderedPair, find_common_points, make_pair
from hookflow.graph.why import (
    MAX_AMBIGUITIES,
    Ambiguity,
    count_pairs,
    explain_neighbours,
    find_ambiguities,
    make_order_statements,
)
from hookflow.hooks.own_loop import needs_of_loop
from hookflow.hooks.registry import find_hook, find_without_import
from hookflow.hooks.spec import HookSpec, find_specs
from hookflow.numbers import format_count, size
from hookflow.pipeline.attached import is_attached
from hookflow.pipeline.components import Component, DataSection
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.schema import Pipeline, RunSection
from hookflow.pipeline.values import Interval

if TYPE_CHECKING:
    from hookflow.trials.commute import CommuteResult, OrderDifference


UNSTABLE_PAIR = (
    "one of them holds other values in two trials of one order, from the time or from an earlier"
    " trial"
)
"""The reason that a pair which was tried is not judged."""

MAX_ENTRIES = 6
"""How many entries of one kind are shown."""


def wrap_labelled(name: str, text: str, width: int) -> str:
    """Return a wrapped text behind its label; an option (`--set`) is not broken at its hyphen."""
    label = f"  {name:<10} "
    indent = " " * 15
    return textwrap.fill(
        text, width, initial_indent=label, subsequent_indent=indent, break_on_hyphens=False
    )


def format_commuted(
    plan: Plan, commuted: CommuteResult, settled: Sequence[Ambiguity]
) -> Iterator[tuple[str, str]]:
    """Yield the results of trials, each under its label in `check`.

    `settled` are alarms that they lift.
    """
    for step in commuted.steps:
        pairs = _describe_pairs(step.pairs)
        statements = "; ".join(_order_statements(plan, step))
        yield "differs", f"{pairs}: {step.difference}"
        yield "", f"({statements})"
    yield "commute", _format_trial_counts(commuted)
    if settled:
        pairs = _describe_pairs([make_pair(item.point, item.first, item.then) for item in settled])
        yield "", f"(so these need no edge, though they touch the same: {pairs})"

    pairs_by_reason: dict[str, list[OrderedPair]] = {}
    for pair, reason in commuted.untried:
        pairs_by_reason.setdefault(reason, []).append(pair)
    for reason, untried in pairs_by_reason.items():
        yield "", f"not tried, since {reason}: {_describe_pairs(untried)}"

    if commuted.leaking:
        yield "", f"not judged, since {UNSTABLE_PAIR}: {_describe_pairs(commuted.leaking)}"
    if commuted.noise:
        noise = ", ".join(commuted.noise[:MAX_ENTRIES])
        hidden = len(commuted.noise) - MAX_ENTRIES
        if hidden > 0:
            noise += f", and {hidden} more"
        yield "", f"not compared, since it differs in trials of one order: {noise}"


def _format_trial_counts(commuted: CommuteResult) -> str:
    """Return how many pairs were tried, how many made a difference, and how long that took.

    A tried pair was fired both ways.
    """
    same = len(commuted.same)
    differing_pairs: set[OrderedPair] = set()
    for step in commuted.steps:
        differing_pairs.update(step.pairs)
    differing = len(differing_pairs)
    tried = same + differing + len(commuted.leaking)
    if tried == 0:
        return "no pair of hooks that fire is without a declared order"
    pairs = format_count(tried, "pair")
    trials = format_count(commuted.trials, "trial")
    seconds = commuted.seconds / commuted.trials
    outcome = f"{differing} made a difference, {same} did not"
    return (
        f"{pairs} without a declared order, fired both ways: {outcome} ({trials} of"
        f" {seconds:.1f} s)"
    )


def _order_statements(plan: Plan, step: OrderDifference) -> Sequence[str]:
    """Return how a file says which order is right, or that either is.

    It is at this point alone if hooks meet at several.
    """
    pair = step.pairs[0]
    first, then = pair.hooks
    meeting = find_common_points(plan, first, then)
    if len(meeting) == 1:
        return make_order_statements(first, then)

    statements = [
        f"{first} first, as now: {_order_at_point(pair.point, first, then)}",
        f"{then} first: {_order_at_point(pair.point, then, first)}",
    ]
    operation = _shared_operation(plan, pair.point, meeting)
    if operation is not None and pair.first[1] == pair.then[1] == "whole":
        statements.append(
            f"each as one method around_{operation}: what is entered first is left last"
        )
    return statements


def _order_at_point(point: str, first: str, then: str) -> str:
    """Return how a file says that `first` fires before `then` at one point."""
    return f'points = [{{ at = "{point}", after = ["{first}"] }}, …] in [hooks.{then}]'


def _shared_operation(plan: Plan, point: str, meeting: set[str]) -> str | None:
    """Return the operation that `point` opens or closes if two hooks meet around it.

    It is None unless they meet both before and after it.
    """
    for operation, closing in plan.points.pairs.items():
        bounds = {f"before_{operation}", closing}
        if point in bounds and bounds <= meeting:
            return operation
    return None


def _describe_pairs(pairs: Iterable[OrderedPair]) -> str:
    """Return pairs in words, each once with all its points."""
    entries = [(" and ".join(pair.hooks), pair.point) for pair in pairs]
    return "; ".join(_merge_points(entries))


def _merge_points(entries: Iterable[tuple[str, str]]) -> list[str]:
    """Return the text of each (text, point) once, with all its points in their order."""
    points: dict[str, list[str]] = {}
    for text, point in entries:
        points_of_text = points.setdefault(text, [])
        if point not in points_of_text:
            points_of_text.append(point)
    return [f"{text} at {', '.join(of_text)}" for text, of_text in points.items()]


def check_offloading(
    loaded: Loaded, plan: Plan, *, imports: bool = True
) -> tuple[dict[str, str], Plan]:
    """Return by hook whether it fires beside the training, may do so, or what prevents it.

    The second value is the plan in which every hook that may fire there does.
    """
    from hookflow.hooks.compile import compile_pipeline

    tables = {}
    for name, table in loaded.pipeline.hooks.items():
        if table.offload:
            tables[name] = table
        else:
            tables[name] = table.model_copy(update={"offload": "auto"})
    pipeline = loaded.pipeline.model_copy(update={"hooks": tables})
    offloaded_plan = compile_pipeline(replace(loaded, pipeline=pipeline), imports=imports)
    obstacles = {hook.name: hook.obstacle for hook in offloaded_plan.hooks}

    answers = {}
    for hook in plan.hooks:
        if hook.queue and hook.in_process:
            answer = "offloaded to a process"
        elif hook.queue:
            answer = "offloaded"
        else:
            answer = obstacles[hook.name] or "may be offloaded: offload = true"
        answers[hook.name] = answer
    return answers, offloaded_plan


@dataclass(frozen=True, slots=True)
class Findings:
    """A valid pipeline and its plan, with what they come to; `forecasts` are by the binding's id.

    `commuted` is what trials have shown of pairs that nothing orders, if there have been any.
    """

    loaded: Loaded
    plan: Plan
    ambiguous: Sequence[Ambiguity]
    forecasts: Mapping[int, Forecast]
    hooks: Mapping[str, HookSpec]
    commuted: CommuteResult | None = None

    @classmethod
    def of(cls, loaded: Loaded, plan: Plan, *, imports: bool = True) -> Findings:
        """Look for everything; `plan` is a `valid_plan`."""
        forecasts = compute_forecasts(plan, Length.of(loaded.pipeline))
        ambiguous = list(islice(find_ambiguities(plan), MAX_AMBIGUITIES))
        if imports:
            find = find_hook
        else:
            find = find_without_import
        hooks = find_specs(loaded, [hook.name for hook in plan.hooks], loaded.source.parent, find)
        return cls(loaded, plan, ambiguous, forecasts, hooks)

    @property
    def problems(self) -> list[Problem]:
        """All that is doubtful.

        These are warnings, ambiguous pairs, data flow that gave way, notes, and what is unknown.
        """
        alarms = [self._make_ambiguity_problem(alarm) for alarm in self.alarms]
        flows = [Problem(text) for text in edges_that_gave_way(self.plan)]
        return [*self.plan.warnings, *alarms, *flows, *self.plan.notes, *self.plan.unknown]

    @property
    def doubtful(self) -> bool:
        """Whether there is anything that `--strict` does not let pass."""
        if self.alarms or self.plan.warnings:
            return True
        return self.commuted is not None and bool(self.commuted.steps)

    @property
    def alarms(self) -> Sequence[Ambiguity]:
        """The ambiguous pairs.

        Pairs that have been fired both ways without any difference are left out.
        """
        if self.commuted is None:
            return self.ambiguous
        same = set(self.commuted.same)
        return [
            pair
            for pair in self.ambiguous
            if make_pair(pair.point, pair.first, pair.then) not in same
        ]

    def lines(self, width: int) -> Iterator[str]:
        """Yield all of it for people."""
        yield self._format_verdict()
        for name, text in _summary(self.loaded.pipeline, self.plan):
            yield wrap_labelled(name, text, width)
        for name, text in self._iter_details():
            yield wrap_labelled(name, text, width)
        for warning in self.plan.warnings:
            yield f"\nwarning: {warning}"
        for note in self.plan.notes:
            yield f"\nnote: {note}"
        for unknown in self.plan.unknown:
            yield f"\nunknown: {unknown}"

    def _format_verdict(self) -> str:
        """Return that the file is valid, and how much of it is doubtful."""
        doubts = []
        ambiguous_pairs = count_pairs(self.alarms)
        if ambiguous_pairs:
            doubts.append(ambiguous_pairs)
        if self.commuted is not None and self.commuted.steps:
            differing = format_count(len(self.commuted.steps), "pair")
            doubts.append(f"{differing} whose order makes a difference")
        if self.plan.warnings:
            doubts.append(format_count(len(self.plan.warnings), "warning"))

        verdict = f"{self.loaded.source} is valid"
        if self.plan.unknown:
            verdict += ", as far as can be told without importing its hooks"
        if doubts:
            verdict += f", with {' and '.join(doubts)}"
        return verdict

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain lists, mappings and values, for an editor."""
        return {
            "file": str(self.loaded.source),
            "valid": True,
            "problems": [],
            "warnings": [problem.to_json() for problem in self.plan.warnings],
            "notes": [problem.to_json() for problem in self.plan.notes],
            "unknown": [problem.to_json() for problem in self.plan.unknown],
            "ambiguities": [self._make_ambiguity_json(alarm) for alarm in self.alarms],
            "given_way": list(edges_that_gave_way(self.plan)),
            "default_hooks": [hook.name for hook in self.plan.hooks if hook.default],
            "firings": [self._make_firing_json(binding) for binding in self.plan.bindings],
        }

    def _make_ambiguity_json(self, alarm: Ambiguity) -> dict[str, Any]:
        fields = {
            "point": alarm.point,
            "first": alarm.first.hook,
            "then": alarm.then.hook,
            "slots": alarm.slots,
        }
        return fields | self._make_ambiguity_problem(alarm).to_json()

    def _make_firing_json(self, binding: Binding) -> dict[str, Any]:
        summary = self.forecasts[binding.id]
        return {
            "hook": binding.hook,
            "point": binding.point,
            "trigger": str(binding.trigger),
            "first": summary.first,
            "times": summary.times,
            "text": summary.text,
        }

    def _make_ambiguity_problem(self, ambiguity: Ambiguity) -> Problem:
        first = ambiguity.first.hook
        then = ambiguity.then.hook
        slots = " and ".join(ambiguity.slots)
        message = (
            f'at {ambiguity.point}, "{first}" and "{then}" touch {slots}, and no edge orders them'
        )
        hint = f"state which is right. {'; '.join(make_order_statements(first, then))}"
        return Problem(message, self.loaded.places.of(f"hooks.{then}"), hint)

    def _format_trails(self) -> Iterator[str]:
        """Yield what the trails of hooks may take.

        That is bytes, and seconds by the newest run that has saved.
        """
        for name, spec in self.hooks.items():
            saved = spec.capabilities.saved_checkpoints
            if saved is None or not saved.trail_bytes:
                continue
            text = f"older checkpoints of {name} take {size(saved.trail_bytes)} on the disk at most"
            manifest = self._read_newest_manifest()
            if manifest is not None:
                text += self._describe_trail_room(name, saved.trail_bytes, manifest)
            yield text

    def _read_newest_manifest(self) -> Mapping[str, Any] | None:
        """Return the manifest of the newest checkpoint of the newest run of this name.

        It is None if none can be read.
        """
        from hookflow.runner.checkpoint.manifest import (
            DamagedError,
            list_checkpoints,
            read_manifest,
        )

        section = self.loaded.pipeline.run
        for run in all_runs(Path(section.dir)):
            if run.path.parent.name != section.name:
                continue
            checkpoints = list_checkpoints(run.checkpoints)
            if checkpoints:
                try:
                    return read_manifest(checkpoints[0])
                except DamagedError:
                    return None
        return None

    def _describe_trail_room(self, hook: str, trail_bytes: int, manifest: Mapping[str, Any]) -> str:
        """Return how many checkpoints like the last fit in a trail, and what saving them takes."""
        num_bytes = sum(file["bytes"] for file in manifest["files"].values()) or 1
        # These are the milliseconds that the training waits: for the copy, and not for the disk.
        ms = manifest.get("ms", 0.0)
        room = trail_bytes // num_bytes
        text = f": room for {room} like the last one, of {size(num_bytes)} and {ms:.1f} ms"

        saves = 0
        for binding in self.plan.bindings:
            if binding.hook == hook:
                saves += self.forecasts[binding.id].times or 0
        if saves:
            seconds = saves * ms / 1e3
            text += f"; {format_count(saves, 'save')} take about {seconds:.2g} s"
        return text

    def _iter_details(self) -> Iterator[tuple[str, str]]:
        """Yield ambiguous pairs, results of trials, and more details, each with its label.

        Others are flows that gave way, firings and trails.
        """
        alarms = self.alarms
        touching = [
            (f"{a.first.hook} and {a.then.hook} touch {', '.join(a.slots)},", a.point)
            for a in alarms
        ]
        yield from _first_few(
            "ambiguous", _merge_points(touching), more=len(alarms) == MAX_AMBIGUITIES
        )
        if alarms:
            yield (
                "",
                (
                    "(state which fires first, by after or before; or that either may, by"
                    " ambiguous_with)"
                ),
            )
        if self.commuted is not None:
            settled = [pair for pair in self.ambiguous if pair not in alarms]
            yield from format_commuted(self.plan, self.commuted, settled)
        yield from _first_few("gave way", edges_that_gave_way(self.plan))
        firings = []
        for binding in self.plan.bindings:
            if str(binding.trigger) and binding.half != "exit":
                summary = self.forecasts[binding.id]
                firings.append(f"{binding.hook} at {binding.point}: {summary.text}")
        yield from _first_few("fires", firings)
        yield from _first_few("trail", self._format_trails())


def _summary_of_hooks_alone(pipeline: Pipeline, plan: Plan) -> Iterator[tuple[str, str]]:
    purpose = "hooks for a loop of your own: hookflow.attach"
    if pipeline.run.max_iters:
        purpose += f", {format_count(pipeline.run.max_iters, 'iteration')}"
    yield pipeline.run.name, purpose
    yield "hooks", _hook_counts(plan)
    for call, hooks in needs_of_loop(plan).items():
        yield "needs", f"{call} in the loop: {', '.join(hooks)}"


def _summary(pipeline: Pipeline, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the parts of a pipeline, each with its label."""
    if is_attached(pipeline):
        yield from _summary_of_hooks_alone(pipeline, plan)
        return
    run = pipeline.run
    yield run.name, _length(pipeline)
    yield "model", _named_components(pipeline.models)
    yield "task", pipeline.task.use
    yield "optimizer", _named_components(pipeline.optimizers)
    yield "data", _data_sources(pipeline)
    if pipeline.data.train_sets:
        yield "mix", _describe_mix(pipeline.data)

    limits = _list_limits(run)
    if limits:
        yield "limited", ", ".join(limits)
    if _is_missing(run.device):
        yield "device", f'run.device = "{run.device}", and this machine has no such device'

    yield "hooks", _hook_facts(pipeline, plan)
    if pipeline.sweep is not None:
        searched = ", ".join(pipeline.sweep.searched)
        yield (
            "sweep",
            (
                f"{format_count(pipeline.sweep.count, 'trial')} of {searched}, by"
                f" {pipeline.sweep.metric}"
            ),
        )
    reasons: Counter[Reason] = Counter()
    for point in plan.bound_points:
        reasons.update(link.reason for link in explain_neighbours(plan, point.name))
    if reasons:
        yield "order", _order(reasons, plan.shuffle)


def _list_limits(run: RunSection) -> list[str]:
    """Return the keys of [run] that leave batches out, each with its value."""
    limits = []
    for key in ("limit_train", "limit_val", "limit_test", "overfit"):
        limit = getattr(run, key)
        if limit is not None:
            limits.append(f"run.{key} = {limit}")
    return limits


def _hook_facts(pipeline: Pipeline, plan: Plan) -> str:
    """Return how many hooks there are, and which of them are there by default or switched off."""
    facts = [_hook_counts(plan)]
    default_hooks = [hook.name for hook in plan.hooks if hook.default]
    if default_hooks:
        facts.append(f"by default: {', '.join(default_hooks)}")
    disabled = [name for name, hook in pipeline.hooks.items() if not hook.enabled]
    if disabled:
        facts.append(f"switched off: {', '.join(disabled)}")
    return "; ".join(facts)


def _hook_counts(plan: Plan) -> str:
    return (
        f"{format_count(len(plan.hooks), 'hook')} at"
        f" {format_count(len(plan.bound_points), 'point')}"
    )


def _named_components(components: Mapping[str, Component]) -> str:
    """Return what each component uses, behind its name if there are several."""
    if len(components) == 1:
        return next(iter(components.values())).use
    return ", ".join(f"{name} {component.use}" for name, component in components.items())


def _data_sources(pipeline: Pipeline) -> str:
    """Return the sources of the splits, and which splits have none."""
    parts = []
    for name, source in pipeline.data.sources().items():
        text = f"{name} {source.use}"
        if source.val_every:
            text += f" every {source.val_every}"
        parts.append(text)
    if not pipeline.data.val:
        parts.append("no val")
    if not pipeline.data.test:
        parts.append("no test")
    return ", ".join(parts)


def _describe_mix(data: DataSection) -> str:
    """Return in words how several training sets are mixed, and what an epoch of them is."""
    shares = ", ".join(f"{name} {share}" for name, share in data.shares.items())
    if data.mix_order == "together":
        order = "a batch of each set in a step"
    elif data.mix_order == "random":
        order = f"{shares}, at random"
    else:
        order = f"{shares}, in turns"
    if isinstance(data.mix_epoch, int):
        return f"{order}; an epoch has {format_count(data.mix_epoch, 'step')}"
    return f"{order}; an epoch ends with the {data.mix_epoch or 'longest'} set"


def _is_missing(device: str) -> bool:
    """Return whether this machine lacks a device, as far as it is seen without PyTorch."""
    if device.startswith("cuda"):
        # These devices are of NVIDIA, of a Jetson, of AMD, and of Windows' subsystem for Linux.
        prefixes = ("nvidia", "nvhost", "kfd", "dxg")
        return not any(entry.name.startswith(prefixes) for entry in Path("/dev").iterdir())
    return device == "mps" and sys.platform != "darwin"


def _length(pipeline: Pipeline) -> str:
    """Return how long the run trains, when it validates, and whether it tests."""
    run = pipeline.run
    lengths = []
    if run.is_endless:
        lengths.append("no limit of epochs")
    if run.epoch_limit:
        lengths.append(format_count(run.epoch_limit, "epoch"))
    if run.max_iters:
        lengths.append(format_count(run.max_iters, "iteration"))
    text = " or ".join(lengths)
    if len(lengths) > 1:
        text += ", whichever comes first"
    if pipeline.data.val:
        text += f", {_validation(pipeline)}"
    if run.test:
        text += ", then the test"
    return text


def _validation(pipeline: Pipeline) -> str:
    """Return when a run that has validation data validates."""
    run = pipeline.run
    if not pipeline.validated_sets:
        return "no validation"
    places = []
    if run.val_at_start:
        places.append("at the start")
    if run.validates.value > 0:  # else some of several sets have intervals of their own
        places.append(f"after {_validation_interval(run.validates)}")
    return " ".join(["validation", " and ".join(places)]).rstrip()


def _validation_interval(interval: Interval) -> str:
    unit = {"ep": "epoch", "it": "iteration", "s": "second"}[interval.unit]
    value = interval.value
    if value == 1:
        return f"each {unit}"
    if isinstance(value, int):
        return f"every {value:,} {unit}s"
    return f"every {float(value):,} {unit}s"


def _order(reasons: Counter[Reason], shuffle: int | None) -> str:
    """Return how many pairs of neighbours are ordered by each reason."""
    if shuffle is None:
        last_resort = "the file"
    else:
        last_resort = f"the shuffle with seed {shuffle}"
    words: dict[Reason, str] = {
        "edge": "by edges",
        "phase": "by phase",
        "file": f"by {last_resort} alone",
    }
    counts = [f"{reasons[reason]} {text}" for reason, text in words.items() if reasons[reason]]
    pairs = format_count(reasons.total(), "pair")
    text = f"{pairs} of neighbours: {', '.join(counts)}"
    if reasons["file"]:
        text += ", which is no fault by itself"
    return text


def _first_few(label: str, entries: Iterable[str], more: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the first few entries, and how many there are beyond.

    The first entry has the label. `more` may follow.
    """
    all_entries = list(entries)
    for entry in all_entries[:MAX_ENTRIES]:
        yield label, entry
        label = ""
    num_hidden = len(all_entries) - MAX_ENTRIES
    if num_hidden > 0 and more:
        yield "", f"and {num_hidden:,} or more"
    elif num_hidden > 0:
        yield "", f"and {num_hidden:,} more"
