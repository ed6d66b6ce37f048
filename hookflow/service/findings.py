"""The findings of `hookflow check` on a valid pipeline: forecasts, ambiguous pairs, warnings."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookflow.errors import Problem
from hookflow.events.rundir import all_runs
from hookflow.graph.plan import Plan
from hookflow.graph.render.text import edges_that_gave_way
from hookflow.graph.schedule import Forecast, Length, forecast
from hookflow.graph.why import (
    COUNTED,
    Ambiguity,
    Pair,
    Reason,
    ambiguities,
    in_number,
    meeting_points,
    neighbours,
    pair_of,
    ways_to_state,
)
from hookflow.numbers import counted, parse_size, size
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.schema import Pipeline

if TYPE_CHECKING:
    from hookflow.trials.commute import Commuted, Step


LEAKS = "one of them holds other values in two trials of one order, from the time or from an earlier trial"
"""Why a pair that has been tried is not judged."""

SHOWN = 6
"""How many entries of one kind are shown."""


def labelled(name: str, text: str, width: int) -> str:
    """Return a wrapped text behind its label; an option (`--set`) is not broken at its hyphen."""
    head, indent = f"  {name:<10} ", " " * 15
    return textwrap.fill(text, width, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False)


def commuted_lines(plan: Plan, commuted: Commuted, settled: Sequence[Ambiguity]) -> Iterator[tuple[str, str]]:
    """Yield what trials have shown, under the names of the lines of `check`; `settled` are alarms that they lift."""
    for step in commuted.steps:
        yield "differs", f"{_named(step.pairs)}: {step.difference}"
        yield "", f"({'; '.join(_ways(plan, step))})"
    same, differing = len(commuted.same), len({pair for step in commuted.steps for pair in step.pairs})
    if tried := same + differing + len(commuted.leaking):
        took = f"{counted(commuted.trials, 'trial')} of {commuted.seconds / commuted.trials:.1f} s"
        seen = f"{differing} made a difference, {same} did not"
        pairs = f"{counted(tried, 'pair')} without a declared order"
        yield "commute", f"{pairs}, fired both ways: {seen} ({took})"
    else:
        yield "commute", "no pair of hooks that fire is without a declared order"
    if settled:
        pairs = _named(pair_of(item.point, item.first, item.then) for item in settled)
        yield "", f"(so these need no edge, though they touch the same: {pairs})"
    for why in dict.fromkeys(why for _, why in commuted.untried):
        yield "", f"not tried, since {why}: {_named(pair for pair, reason in commuted.untried if reason == why)}"
    if commuted.leaking:
        yield "", f"not judged, since {LEAKS}: {_named(commuted.leaking)}"
    if commuted.noise:
        more = f", and {len(commuted.noise) - SHOWN} more" * (len(commuted.noise) > SHOWN)
        yield "", f"not compared, since it differs in trials of one order: {', '.join(commuted.noise[:SHOWN])}{more}"


def _ways(plan: Plan, step: Step) -> Sequence[str]:
    """Return how a file says which order is right, or that either is; at this point alone if hooks meet at several."""
    pair = step.pairs[0]
    first, then = pair.hooks
    meeting = meeting_points(plan, first, then)
    if len(meeting) == 1:
        return ways_to_state(first, then)
    here = [
        f'{a} first{now}: points = [{{ at = "{pair.point}", after = ["{a}"] }}, …] in [hooks.{b}]'
        for a, b, now in ((first, then, ", as now"), (then, first, ""))
    ]
    closings = {f"before_{opened}": closing for opened, closing in plan.points.pairs.items()}
    halves = next((both for both in closings.items() if pair.point in both and meeting.issuperset(both)), None)
    if halves and pair.first[1] == pair.then[1] == "whole":
        method = f"around_{halves[0].removeprefix('before_')}"
        here.append(f"each as one method {method}: what is entered first is left last")
    return here


def _named(pairs: Iterable[Pair]) -> str:
    """Return pairs in words, each once with all its points."""
    return "; ".join(_at_points((" and ".join(pair.hooks), pair.point) for pair in pairs))


def _at_points(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield each text once, with all its points."""
    points: dict[str, dict[str, None]] = {}
    for text, point in entries:
        points.setdefault(text, {})[point] = None
    yield from (f"{text} at {', '.join(at)}" for text, at in points.items())


def offloading(loaded: Loaded, plan: Plan, *, imports: bool = True) -> tuple[dict[str, str], Plan]:
    """Return by hook whether it fires beside the training, may do so, or what keeps it in the training thread.

    The second value is the plan in which every hook that may fire there does.
    """
    from hookflow.hooks.compile import compile_pipeline

    every = loaded.pipeline.hooks.items()
    tables = {name: table if table.offload else table.model_copy(update={"offload": "auto"}) for name, table in every}
    pipeline = loaded.pipeline.model_copy(update={"hooks": tables})
    tried = compile_pipeline(replace(loaded, pipeline=pipeline), imports=imports)
    yes, may_be = {False: "offloaded", True: "offloaded to a process"}, "may be offloaded: offload = true"
    no = {hook.name: hook.obstacle or may_be for hook in tried.hooks}
    return {hook.name: yes[hook.in_process] if hook.queue else no[hook.name] for hook in plan.hooks}, tried


@dataclass(frozen=True, slots=True)
class Findings:
    """A valid pipeline and its plan, with what they come to; `forecasts` are by the binding's id.

    `commuted` is what trials have shown of pairs that nothing orders, if there have been any.
    """

    loaded: Loaded
    plan: Plan
    ambiguous: Sequence[Ambiguity]
    forecasts: Mapping[int, Forecast]
    commuted: Commuted | None = None

    @classmethod
    def of(cls, loaded: Loaded, plan: Plan, *, imports: bool = True) -> Findings:
        """Look for everything; `plan` is a `valid_plan`. Raises UserError where a trial of its sweep has none."""
        if loaded.pipeline.sweep is not None:
            from hookflow.service.sweeps import Sweep

            Sweep(Path(), loaded).check(imports=imports)
        forecasts = forecast(plan, Length.of(loaded.pipeline))
        return cls(loaded, plan, list(islice(ambiguities(plan), COUNTED)), forecasts)

    @property
    def problems(self) -> list[Problem]:
        """All that is doubtful: warnings, ambiguous pairs, data flow that gave way, notes, and what is unknown."""
        flows = (Problem(text) for text in edges_that_gave_way(self.plan))
        return [*self.plan.warnings, *map(self._ambiguity, self.alarms), *flows, *self.plan.notes, *self.plan.unknown]

    @property
    def doubtful(self) -> bool:
        """Whether there is anything that `--strict` does not let pass."""
        return bool(self.alarms or self.plan.warnings or (self.commuted and self.commuted.steps))

    @property
    def alarms(self) -> Sequence[Ambiguity]:
        """The ambiguous pairs but for those that have been fired both ways without any difference."""
        same = set(self.commuted.same) if self.commuted else ()
        return [pair for pair in self.ambiguous if pair_of(pair.point, pair.first, pair.then) not in same]

    def lines(self, width: int) -> Iterator[str]:
        """Yield all of it for people."""
        limit = ", as far as can be told without importing its hooks" * bool(self.plan.unknown)
        steps = len(self.commuted.steps) if self.commuted else 0
        doubts = [pairs] if (pairs := in_number(self.alarms)) else []
        doubts += [f"{counted(steps, 'pair')} whose order makes a difference"] * bool(steps)
        doubts += [counted(len(self.plan.warnings), "warning")] * bool(self.plan.warnings)
        yield f"{self.loaded.source} is valid{limit}" + f", with {' and '.join(doubts)}" * bool(doubts)
        for name, text in (*_summary(self.loaded.pipeline, self.plan), *self._details()):
            yield labelled(name, text, width)
        plan = self.plan
        for label, problems in (("warning", plan.warnings), ("note", plan.notes), ("unknown", plan.unknown)):
            yield from (f"\n{label}: {problem}" for problem in problems)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain lists, mappings and values, for an editor."""
        return {
            "file": str(self.loaded.source),
            "valid": True,
            "problems": [],
            "warnings": [problem.to_json() for problem in self.plan.warnings],
            "notes": [problem.to_json() for problem in self.plan.notes],
            "unknown": [problem.to_json() for problem in self.plan.unknown],
            "ambiguities": [
                {"point": alarm.point, "first": alarm.first.hook, "then": alarm.then.hook, "slots": alarm.slots}
                | self._ambiguity(alarm).to_json()
                for alarm in self.alarms
            ],
            "given_way": [*edges_that_gave_way(self.plan)],
            "default_hooks": [hook.name for hook in self.plan.hooks if hook.default],
            "firings": [
                {"hook": binding.hook, "point": binding.point, "trigger": str(binding.trigger)}
                | {"first": summary.first, "times": summary.times, "text": summary.text}
                for binding in self.plan.bindings
                for summary in [self.forecasts[binding.id]]
            ],
        }

    def _ambiguity(self, ambiguity: Ambiguity) -> Problem:
        first, then = ambiguity.first.hook, ambiguity.then.hook
        slots = " and ".join(ambiguity.slots)
        message = f'at {ambiguity.point}, "{first}" and "{then}" touch {slots}, and no edge orders them'
        hint = f"state which is right. {'; '.join(ways_to_state(first, then))}"
        return Problem(message, self.loaded.places.of(f"hooks.{then}"), hint)

    def _trails(self) -> Iterator[str]:
        """Yield what the trail of each `checkpoint` may take: bytes, and seconds by the newest run that has saved."""
        section = self.loaded.pipeline.run
        for name, hook in self.loaded.pipeline.hooks.items():
            trail = hook.args.get("trail") if hook.use == "checkpoint" and isinstance(hook.args, Mapping) else None
            if not trail or not hook.enabled:
                continue
            from hookflow.runner.checkpoint.manifest import DamagedError, list_checkpoints, read_manifest

            text = f"older checkpoints of {name} take {trail} on the disk at most"
            runs = (run for run in all_runs(Path(section.dir)) if run.path.parent.name == section.name)
            with suppress(DamagedError, StopIteration):
                newest = next(path for run in runs for path in list_checkpoints(run.checkpoints))
                manifest = read_manifest(newest)
                held = sum(file["bytes"] for file in manifest["files"].values()) or 1
                times = [self.forecasts[each.id].times for each in self.plan.bindings if each.hook == name]
                saves = sum(filter(None, times))
                ms = manifest.get("ms", 0.0)  # of the training, which waits for the copy and not for the disk
                waits = f"; {counted(saves, 'save')} take about {saves * ms / 1e3:.2g} s" * bool(saves)
                room = parse_size(trail) // held
                text += f": room for {room} like the last one, of {size(held)} and {ms:.1f} ms{waits}"
            yield text

    def _details(self) -> Iterator[tuple[str, str]]:
        touching = ((f"{a.first.hook} and {a.then.hook} touch {', '.join(a.slots)},", a.point) for a in self.alarms)
        yield from _first_few("ambiguous", _at_points(touching), more=len(self.alarms) == COUNTED)
        if self.alarms:
            yield "", "(state which fires first, by after or before; or that either may, by ambiguous_with)"
        if self.commuted:
            settled = [pair for pair in self.ambiguous if pair not in self.alarms]
            yield from commuted_lines(self.plan, self.commuted, settled)
        yield from _first_few("gave way", edges_that_gave_way(self.plan))
        firings = [
            f"{binding.hook} at {binding.point}: {self.forecasts[binding.id].text}"
            for binding in self.plan.bindings
            if str(binding.trigger) and binding.half != "exit"
        ]
        yield from _first_few("fires", firings)
        yield from _first_few("trail", self._trails())


def _summary(pipeline: Pipeline, plan: Plan) -> Iterator[tuple[str, str]]:
    yield pipeline.run.name, _length(pipeline)
    for label, parts in (("model", pipeline.models), ("task", {"": pipeline.task}), ("optimizer", pipeline.optimizers)):
        named = (f"{name} {part.use}" if len(parts) > 1 else part.use for name, part in parts.items())
        yield label, ", ".join(named)
    sources = pipeline.data.sources().items()
    data = [f"{name} {part.use}" + (f" every {part.val_every}" if part.val_every else "") for name, part in sources]
    data += [f"no {split}" for split in ("val", "test") if not getattr(pipeline.data, split)]
    yield "data", ", ".join(data)
    keys = ("limit_train", "limit_val", "limit_test", "overfit")
    limits = [f"run.{key} = {limit}" for key in keys if (limit := getattr(pipeline.run, key)) is not None]
    if limits:
        yield "limited", ", ".join(limits)
    if _absent(pipeline.run.device):
        yield "device", f'run.device = "{pipeline.run.device}", and this machine has no such device'
    hooks = [f"{counted(len(plan.hooks), 'hook')} at {counted(len(plan.bound_points), 'point')}"]
    if defaults := [hook.name for hook in plan.hooks if hook.default]:
        hooks.append(f"by default: {', '.join(defaults)}")
    if off := [name for name, hook in pipeline.hooks.items() if not hook.enabled]:
        hooks.append(f"switched off: {', '.join(off)}")
    yield "hooks", "; ".join(hooks)
    if pipeline.sweep is not None:
        searched = ", ".join(pipeline.sweep.searched)
        yield "sweep", f"{counted(pipeline.sweep.count, 'trial')} of {searched}, by {pipeline.sweep.metric}"
    reasons = Counter(link.reason for point in plan.bound_points for link in neighbours(plan, point.name))
    if reasons:
        yield "order", _order(reasons, plan.shuffle)


def _absent(device: str) -> bool:
    """Return whether this machine lacks a device, as far as it is seen without PyTorch."""
    if device.startswith("cuda"):  # of NVIDIA, of a Jetson, of AMD, of Windows' subsystem
        return not any(entry.name.startswith(("nvidia", "nvhost", "kfd", "dxg")) for entry in Path("/dev").iterdir())
    return device == "mps" and sys.platform != "darwin"


def _length(pipeline: Pipeline) -> str:
    run = pipeline.run
    lengths = [counted(run.max_epochs, "epoch")] if run.max_epochs else []
    lengths += [counted(run.max_iters, "iteration")] if run.max_iters else []
    often, what = run.validates.value, {"ep": "epoch", "it": "iteration", "s": "second"}[run.validates.unit]
    every = f"each {what}" if often == 1 else f"every {often if isinstance(often, int) else float(often):,} {what}s"
    validation = f", validation {'at the start and ' * run.val_at_start}after {every}" if pipeline.data.val else ""
    first = f"{' or '.join(lengths)}{', whichever comes first' if len(lengths) > 1 else ''}"
    return f"{first}{validation}{', then the test' if run.test else ''}"


def _order(reasons: Counter[Reason], shuffle: int | None) -> str:
    last = "the file" if shuffle is None else f"the shuffle with seed {shuffle}"
    words: dict[Reason, str] = {"edge": "by edges", "phase": "by phase", "file": f"by {last} alone"}
    lines = [f"{reasons[reason]} {message}" for reason, message in words.items() if reasons[reason]]
    harmless = ", which is no fault by itself" if reasons["file"] else ""
    return f"{counted(reasons.total(), 'pair')} of neighbours: {', '.join(lines)}{harmless}"


def _first_few(name: str, entries: Iterable[str], more: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the first few entries under their name, and how many there are beyond."""
    every = list(entries)
    for k, entry in enumerate(every[:SHOWN]):
        yield name if k == 0 else "", entry
    if len(every) > SHOWN:
        yield "", f"and {len(every) - SHOWN:,}{' or' * more} more"
