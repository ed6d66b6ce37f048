"""The command show: the report of a run, on one page."""

from __future__ import annotations

import shlex
import textwrap
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookflow.cli import options
from hookflow.cli.output import columns, echo, echo_json
from hookflow.numbers import clock, counted, duration, frequency, number, percent, size, span

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.graph.plan import Plan
    from hookflow.monitor.health import Health
    from hookflow.monitor.journal import Kind
    from hookflow.monitor.state import RunState

WIDTH = 80
ROWS = 8
"""How many attempts, metrics, hooks or checkpoints are shown; the commands that are about them show all."""

TEXTS = 20
"""How many different warnings, and errors, are shown; `hookflow watch --ui plain` shows all."""


def show(
    run: options.RunArgument = None,
    format_: options.FormatOption = "text",
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Show one page on a run.

    It has the result and its cause, attempts with their changes, warnings and errors by iteration, metrics, the
    costliest hooks, checkpoints, and the commands to continue with.

    Example: `hookflow show cifar | less`
    """
    from hookflow.service.runs import find_run

    page = Page.of(find_run(run, dir))
    if format_ == "json":
        echo_json(page.to_json())
    else:
        echo("\n".join(page.lines()))


@dataclass(frozen=True, slots=True)
class Page:
    """A run as it is now, and what its page says of it; `saved` are the facts of its checkpoints."""

    run: RunDir
    state: RunState
    plan: Plan
    health: Health
    saved: list[dict[str, Any]]

    @classmethod
    def of(cls, run: RunDir) -> Page:
        """Read the logs of a run to their present end."""
        from hookflow.cli.checkpoints import saved
        from hookflow.monitor.feed import Live
        from hookflow.monitor.health import judge
        from hookflow.monitor.ranks import NO_PLAN

        live = Live(run, kept=True)
        live.read_all()
        return cls(run, live.state, live.plan or NO_PLAN, judge(run, live.state, time.time()), saved(run))

    def to_json(self) -> dict[str, Any]:
        """Return the page as data."""
        state, facts = self.state, self.run.describe()
        attempts = [
            {"began": item.began, "from": item.resumed_from, "first": item.begin, "last": item.it, "ended": item.ended}
            for item in state.attempts
        ]
        troubles: dict[str, list[dict[str, Any]]] = {"warn": [], "error": []}
        for first, last, times in state.journal.repeated.values():
            if first.kind in troubles:
                troubles[first.kind].append({"it": first.it, "last": last, "times": times, "text": first.text})
        timings = {
            f"{binding.hook}@{binding.point}": {"fired": timing.count, "ns": timing.total}
            for binding in self.plan.bindings
            if (timing := state.first.timing(binding.id)).count
        }
        best = {name: {"value": best.value, "it": best.it, "ep": best.ep} for name, best in state.metrics.best.items()}
        return {
            "id": self.run.id,
            "name": self.run.path.parent.name,
            "path": str(self.run.path),
            "status": self.health.condition,
            "reason": self.health.sentence,
            "exit": state.end["exit"] if state.end else None,
            "world": state.ranks.world,
            "iteration": state.it,
            "iterations": state.total_iters,
            "epoch": state.epoch,
            "max_epochs": state.run.get("max_epochs"),
            "best": best,
            "synthetic": [*state.synthetic],
            "updated": state.now or None,
            "parent": parent._asdict() if (parent := self.run.parent()) else None,
            "pipeline": facts.get("source"),
            "overrides": facts.get("overrides", []),
            "attempts": attempts,
            "throttled": [*state.throttled.values()],
            "commands": [{key: change[key] for key in ("it", "cmd", "args", "t")} for change in state.changes],
            "warnings": troubles["warn"],
            "errors": troubles["error"],
            "layers": state.run.get("layers", []),
            "metrics": {name: points[-1][1] for name, points in state.metrics.by_name.items() if points},
            "hooks": timings,
            "checkpoints": self.saved,
        }

    def lines(self) -> Iterator[str]:
        from hookflow.monitor.summary import metric_rows

        yield f"{self.run.path.parent.name}  {self.run.id}"
        yield ""
        yield from _facts([*self._result(), *self.setting()])
        warned, failed = self._troubles("warn"), self._troubles("error")
        changed = ((f"{each['it']:,}", " ".join([each["cmd"], *each["args"]])) for each in self.state.changes)
        skips = self.state.throttled.items()
        throttled = ((f"{each['it']:,}", f"{hook} {frequency(each['every'])}: {each['why']}") for hook, each in skips)
        parts = {"attempts": self.attempts(), "changed by commands, by iteration": changed}
        parts |= {"throttled now, since iteration": throttled}
        parts |= {"warnings, by iteration": warned, "errors, by iteration": failed}
        for title, facts in parts.items():
            if lines := [*_facts(facts, "  ")]:
                yield from ("", title, *lines)
        metrics = [("metric", "last", "best", "at epoch", "iteration"), *metric_rows(self.state, none="-")]
        tables = {"metrics": metrics, "hooks": self.hooks(), "checkpoints": self.checkpoints()}
        for title, rows in {**tables, "logged": self._logged(), "layers": self.layers()}.items():
            if len(rows) > 1:
                yield from ("", title)
                for line in columns(rows[: ROWS + 1], "  "):
                    yield line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"
                if len(rows) > ROWS + 1:
                    yield f"  and {len(rows) - ROWS - 1:,} more"
        yield ""
        yield from _facts(self._next())

    def _result(self) -> Iterator[tuple[str, str]]:
        from hookflow.monitor.health import end_reason

        state, health = self.state, self.health
        code = f", exit code {state.end['exit']}" if state.end and state.end["exit"] else ""
        yield "result", f"{health.glyph} {health.condition} after {span(state.elapsed)}{code}"
        for line in end_reason(state) or [health.sentence]:
            if line:
                yield "", line
        if state.end and state.ranks.first_failure is None:  # a mistake of the user's, with its place and a hint
            yield from (("", line) for line in state.end["reason"].splitlines()[1:])
        epochs = f"epoch {state.epoch:,} of {state.run['max_epochs']:,}, " if state.run.get("max_epochs") else ""
        yield "reached", f"{epochs}iteration {state.it:,} of {state.total_iters:,}"
        if splits := state.synthetic:
            yield "", f"SYNTHETIC {', '.join(splits)} data: the scores say nothing about the real data set"
        if newest := next(filter(_usable, self.saved), None):
            text = Path(newest["path"]).name + f" ({', '.join(newest['names'])})" * bool(newest["names"])
            text += f", iteration {newest['it']:,}"
            if metrics := [f"{name} {number(float(value))}" for name, value in (newest["metrics"] or {}).items()]:
                text += f": {', '.join(metrics)}"
                if newest["metrics_it"] != newest["it"]:
                    text += f" (of iteration {newest['metrics_it']:,})"
            yield "checkpoint", text

    def attempts(self) -> Iterator[tuple[str, str]]:
        """Yield each attempt of several: when it began, what had changed by then, and how it ended."""
        attempts = self.state.attempts
        if len(attempts) < 2:
            return
        if earlier := len(attempts[:-ROWS]):
            yield "", f"{earlier:,} earlier"
        for k, attempt in enumerate(attempts[earlier:], earlier + 1):
            ended = attempt.ended or ("no end record" if k < len(attempts) else self.health.condition)
            origin = f", from {attempt.resumed_from}" if attempt.resumed_from else ""
            yield f"{k}", f"{at_time(attempt.began)}{origin}, iteration {attempt.begin:,} to {attempt.it:,}"
            yield from (("", f"{entry.text}") for entry in attempt.prepared)
            yield "", f"{at_time(attempt.until)} {ended}"

    def _troubles(self, kind: Kind) -> Iterator[tuple[str, str]]:
        """Yield the warnings or errors with the iterations that they are of, each text once.

        The messages that an attempt has recorded before it began are shown with the attempt.
        """
        from hookflow.monitor.health import end_reason
        from hookflow.monitor.journal import BECAME

        prepared = {entry.number for attempt in self.state.attempts[1:] for entry in attempt.prepared}
        end = next(iter(end_reason(self.state)), "")
        all_texts = self.state.journal.repeated.values()
        texts = [text for text in all_texts if text.first.kind == kind and text.first.number not in prepared]
        for first, last, times in texts[:TEXTS]:
            it = clock(first.t) if first.it is None else f"{first.it:,}"
            until = "" if last is None or last == first.it else f" to {last:,}"
            what, _, error = first.text.partition(f"{BECAME['raise']}: ")
            text = f"{what}{BECAME['raise']}, see the result" if error and end.endswith(error) else first.text
            yield f"{it}{until}", f"{first.source}: {text}{f' ({times:,} times)' * (times > 1)}"
        if len(texts) > TEXTS:
            yield "", f"and {len(texts) - TEXTS:,} more: hookflow watch --ui plain"

    def setting(self) -> Iterator[tuple[str, str]]:
        """Yield what the run was executed on, as far as it got to tell."""
        from hookflow.events.rundir import short

        facts, run = self.run.describe(), self.state.run
        if began := facts.get("created") or run.get("t"):
            yield "begun", at_time(began)
        if parent := self.run.parent():
            yield "forked from", f"{parent} (iteration {parent.it:,})"
        if source := facts.get("source"):
            yield "pipeline", " ".join([str(short(Path(source).absolute())), *map(_set, facts.get("overrides", ()))])
        if run:
            ranks = f", {run['world']} ranks ({run['strategy']})" if run["world"] > 1 else ""
            trainable, held = (sum(layer[key] for layer in run["layers"]) for key in ("trainable", "bytes"))
            of_these = f", {trainable:,} trainable, {size(held)} of weights" * bool(run["layers"])
            yield "model", f"{run['model']}, {counted(run['params'], 'parameter')}{of_these}"
            yield "on", f"{run['device']} in {run['precision']}{ranks}, seed {run['seed']}, torch {run['torch']}"
            for split, data in run["data"].items():
                examples = f"{counted(data['examples'], 'example')} of " if data["examples"] else ""
                yield split, f"{examples}{data['name']}, {counted(data['batches'], 'batch')}"

    def hooks(self) -> list[tuple[str, ...]]:
        """Return the hooks by what they took of the last attempt: within iterations, and outside them."""
        state, plan = self.state, self.plan
        inside, outside, fired = (dict.fromkeys((hook.name for hook in plan.hooks), 0) for _ in range(3))
        for binding in plan.bindings:
            timing = state.first.timing(binding.id)
            (inside if plan.points.in_iteration(binding.point) else outside)[binding.hook] += timing.total
            fired[binding.hook] += timing.count
        device, known = state.first.device, state.first.device.iteration() is not None
        there = {name: device.share(each.id for each in plan.bindings if each.hook == name) or 0.0 for name in fired}
        rows: list[tuple[str, ...]] = [("hook", "fired", "of iterations", *["on the device"] * known, "outside them")]
        for name in sorted(fired, key=lambda name: -inside[name] - outside[name] - there[name] * state.iterating):
            if fired[name]:
                share = f"{percent(inside[name] / state.iterating)} %" if inside[name] and state.iterating else "-"
                beside = [f"{percent(there[name])} %" if there[name] else "-"] * known
                elsewhere = duration(outside[name]) if outside[name] else "-"
                rows.append((name, f"{fired[name]:,}", share, *beside, elsewhere))
        return rows

    def layers(self) -> list[tuple[str, ...]]:
        """Return the layers of the model in their order."""
        from hookflow.monitor.summary import layer_rows

        heads = ("layer", "class", "shapes", "parameters", "bytes", "")
        return [heads, *layer_rows(self.state.run.get("layers", []))]

    def checkpoints(self) -> list[tuple[str, ...]]:
        """Return the checkpoints, the newest first."""
        rows: list[tuple[str, ...]] = [("checkpoint", "names", "iteration", "epoch", "size")]
        for item in self.saved:
            it, ep = item["it"], item["ep"]
            text = ("-", "-") if it is None or ep is None else (f"{it:,}", f"{self.state.epoch_of(it, ep):,}")
            weight = f"unusable: {item['damage']}" if item["damage"] else size(item["bytes"])
            rows.append((Path(item["path"]).name, ",".join(item["names"]) or "-", *text, weight))
        return rows

    def _logged(self) -> list[tuple[str, ...]]:
        """Return the images, texts and histograms by name, with the newest of each."""
        from hookflow.monitor.journal import extent

        rows: list[tuple[str, ...]] = [("image, text, histogram", "kind", "iteration", "size", "file")]
        for key in self.state.gallery.keys:
            newest = self.state.gallery.of(key)[-1].record
            path = newest["path"] if newest["k"] == "image" else "-"
            rows.append((newest["name"], newest["k"], f"{newest['it']:,}", extent(newest), path))
        return rows

    def _next(self) -> Iterator[tuple[str, str]]:
        """Yield what can be done with the run as it is."""
        from hookflow.events.rundir import run_argument, short
        from hookflow.monitor.health import end_reason

        known, facts = run_argument(self.run), self.run.describe()
        if not self.health.over:
            yield "watch", f"hookflow watch {known}"
            yield "stop", f"hookflow stop {known}"
        elif self.health.condition == "finished" and not end_reason(self.state):
            run = self.state.run
            epochs = run.get("max_epochs") if self.state.ep >= run.get("max_epochs", 0) else 0
            longer = f"max_epochs={2 * epochs}" if epochs else f"max_iters={2 * run.get('max_iters', 1)}"
            yield "extend", f"hookflow run --resume {known} --set run.{longer}"
        elif any(map(_usable, self.saved)):
            yield "resume", f"hookflow run --resume {known}"
        else:
            yield "resume", "not possible: it has no checkpoint"
            if (source := facts.get("source", "")).endswith(".toml"):
                command = ["hookflow run", shlex.quote(source), *map(_set, facts.get("overrides", ()))]
                yield "start anew", " ".join(command)
        if self.health.over:
            yield "watch", f"hookflow watch {known}"
        yield "files", str(short(self.run.path))
        if self.run.output.is_file() and self.run.output.stat().st_size:
            yield "printed", str(short(self.run.output))


def _usable(checkpoint: dict[str, Any]) -> bool:
    return not checkpoint["damage"] and not checkpoint["exception"]


def at_time(t: float) -> str:
    """Return the date and the time of day, where the reader is."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))


def _set(override: str) -> str:
    return f"--set {shlex.quote(override)}"


def _facts(facts: Iterable[tuple[str, str]], indent: str = "") -> Iterator[str]:
    """Yield a line or more for each fact, below one another."""
    for name, text in facts:
        head, below = f"{indent}{name:<11} ", indent + " " * 12
        yield from textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=below, break_on_hyphens=False)
