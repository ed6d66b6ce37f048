"""The facts on a run, in rows of texts: `hookflow show` and the report lay them out."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hookflow.events.initial_weights import read_recorded_weights
from hookflow.events.recorded_code import find_latest_code
from hookflow.events.rundir import RunDir, short
from hookflow.graph.plan import Plan
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.health import Health, judge
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.state import RunState
from hookflow.monitor.summary import metric_rows
from hookflow.numbers import duration, format_count, format_percent, size
from hookflow.service.saved_checkpoints import SavedCheckpoint, list_saved

Row = tuple[str, ...]

Fact = tuple[str, str]
"""A name and a text; one without a name goes on with the fact before it."""

MAX_ATTEMPTS = 8
"""The attempts that are listed: the last ones."""


def format_date(t: float) -> str:
    """Return the date and the time of day, where the reader is."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))


def format_override(override: str) -> str:
    """Return an override as it is written on the command line."""
    return f"--set {shlex.quote(override)}"


@dataclass(frozen=True, slots=True)
class HookTotals:
    """The time of a hook over the last attempt.

    `inside` and `outside` are ns within the iterations and outside them. `on_device` is the share
    of the iterations on the device.
    """

    hook: str
    calls: int
    inside: int
    outside: int
    on_device: float


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run as it was read from its directory."""

    run: RunDir
    state: RunState
    plan: Plan
    health: Health
    saved: Sequence[SavedCheckpoint]

    @classmethod
    def read(cls, run: RunDir) -> RunFacts:
        """Read the logs of a run to their present end."""
        live = LogFollower(run, kept=True)
        live.read_all()
        health = judge(run, live.state, time.time())
        return cls(run, live.state, live.plan or NO_PLAN, health, list_saved(run))

    @property
    def name(self) -> str:
        """The name by which runs of its pipeline are known."""
        return self.run.path.parent.name

    def attempt_facts(self) -> Iterator[Fact]:
        """Yield each attempt of several: when it began, what had changed, and how it ended."""
        attempts = self.state.attempts
        if len(attempts) < 2:
            return
        earlier = max(len(attempts) - MAX_ATTEMPTS, 0)
        if earlier:
            yield "", f"{earlier:,} earlier"
        for number, attempt in enumerate(attempts[earlier:], earlier + 1):
            ended = attempt.ended
            if not ended:
                if number < len(attempts):
                    ended = "no end record"
                else:
                    ended = self.health.condition
            origin = ""
            if attempt.resumed_from:
                origin = f", from {attempt.resumed_from}"
            began = format_date(attempt.began)
            yield f"{number}", f"{began}{origin}, iteration {attempt.begin:,} to {attempt.it:,}"
            for entry in attempt.prepared:
                yield "", entry.text
            yield "", f"{format_date(attempt.until)} {ended}"

    def iter_setting_facts(self) -> Iterator[Fact]:
        """Yield what the run was executed on, as far as it got to tell."""
        description = self.run.describe()
        began = description.get("created") or self.state.run.get("t")
        if began:
            yield "begun", format_date(began)
        parent = self.run.parent()
        if parent is not None:
            yield "forked from", f"{parent} (iteration {parent.it:,})"
        for model, weights in read_recorded_weights(self.run).items():
            yield "weights", f"{model} began with {weights} (iteration {weights.it:,})"
        source = description.get("source")
        if source:
            words = [str(short(Path(source).absolute()))]
            words += [format_override(override) for override in description.get("overrides", ())]
            yield "pipeline", " ".join(words)
        code = find_latest_code(self.run)
        if code is not None:
            yield "code", str(code)
        if self.state.run:
            yield "model", self._model_text()
            yield "on", self._device_text()
            yield from self._data_facts()

    def _model_text(self) -> str:
        run = self.state.run
        text = f"{run['model']}, {format_count(run['params'], 'parameter')}"
        layers = run["layers"]
        if not layers:
            return text
        trainable = sum(layer["trainable"] for layer in layers)
        held = sum(layer["bytes"] for layer in layers)
        return f"{text}, {trainable:,} trainable, {size(held)} of weights"

    def _device_text(self) -> str:
        run = self.state.run
        text = f"{run['device']} in {run['precision']}"
        if run["world"] > 1:
            text += f", {run['world']} ranks ({run['strategy']})"
        return f"{text}, seed {run['seed']}, torch {run['torch']}"

    def _data_facts(self) -> Iterator[Fact]:
        for split, data in self.state.run["data"].items():
            text = f"{data['name']}, {format_count(data['batches'], 'batch')}"
            if data["examples"]:  # of a stream they are unknown
                text = f"{format_count(data['examples'], 'example')} of {text}"
            yield split, text

    def metric_rows(self) -> list[Row]:
        """Return the metrics with their last and best values; the first row has the headings."""
        return [
            ("metric", "last", "best", "at epoch", "iteration"),
            *metric_rows(self.state, none="-"),
        ]

    def hook_totals(self) -> list[HookTotals]:
        """Return the hooks that were called, by what they took of the last attempt.

        The largest comes first.
        """
        calls = dict.fromkeys((hook.name for hook in self.plan.hooks), 0)
        inside = dict(calls)
        outside = dict(calls)
        bindings: dict[str, list[int]] = {hook: [] for hook in calls}
        for binding in self.plan.bindings:
            timing = self.state.first.timing(binding.id)
            calls[binding.hook] += timing.count
            bindings[binding.hook].append(binding.id)
            if self.plan.points.in_iteration(binding.point):
                inside[binding.hook] += timing.total
            else:
                outside[binding.hook] += timing.total
        totals = []
        for hook, count in calls.items():
            if count:
                on_device = self.state.first.device.share(bindings[hook]) or 0.0
                totals.append(HookTotals(hook, count, inside[hook], outside[hook], on_device))
        iterating = self.state.iterating
        totals.sort(
            key=lambda each: each.inside + each.outside + each.on_device * iterating, reverse=True
        )
        return totals

    @property
    def hooks_title(self) -> str:
        """The title of `hook_rows`."""
        if len(self.state.attempts) > 1:
            return "hooks, in the last attempt"
        return "hooks"

    def hook_rows(self) -> list[Row]:
        """Return the hooks with what they took in the last attempt.

        It is the time within iterations and outside of them. The first row has the headings.
        """
        has_device = self.state.first.device.iteration() is not None
        heads = ["hook", "fired", "of iterations", "outside them"]
        if has_device:
            heads.insert(3, "on the device")
        rows: list[Row] = [tuple(heads)]
        iterating = self.state.iterating
        for each in self.hook_totals():
            share = "-"
            if each.inside and iterating:
                share = f"{format_percent(each.inside / iterating)} %"
            cells = [
                each.hook,
                f"{each.calls:,}",
                share,
                duration(each.outside) if each.outside else "-",
            ]
            if has_device:
                cells.insert(3, f"{format_percent(each.on_device)} %" if each.on_device else "-")
            rows.append(tuple(cells))
        return rows

    def checkpoint_rows(self) -> list[Row]:
        """Return the checkpoints, the newest first; the first row has the headings."""
        rows: list[Row] = [("checkpoint", "names", "iteration", "epoch", "size")]
        for each in self.saved:
            iteration = "-"
            epoch = "-"
            if each.it is not None and each.ep is not None:
                iteration = f"{each.it:,}"
                epoch = f"{self.state.epoch_of(each.it, each.ep):,}"
            if each.damage:
                weight = f"unusable: {each.damage}"
            else:
                weight = size(each.bytes or 0)
            rows.append((each.name, ",".join(each.names) or "-", iteration, epoch, weight))
        return rows
