"""The command show: a page on a run."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookflow.cli import options
from hookflow.cli.output import columns, echo, echo_json
from hookflow.numbers import format_clock, format_frequency, format_span, number
from hookflow.text import cut

if TYPE_CHECKING:
    from hookflow.monitor.journal import Entry, Kind, RepeatedEntry
    from hookflow.service.run_facts import Fact, Row, RunFacts
    from hookflow.service.saved_checkpoints import SavedCheckpoint

TEXT_WIDTH = 80
MAX_ROWS = 8
"""The metrics, hooks or checkpoints that are shown; the commands that are about them show all."""

MAX_TEXTS = 20
"""The different warnings, and errors, that are shown; `hookflow watch --ui plain` shows all."""


def show(
    run: options.RunArgument = None,
    format_: options.FormatOption = "text",
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Show one page on a run.

    It has the result and its cause, attempts with their changes, warnings and errors by iteration,
    metrics, the costliest hooks, checkpoints, and the commands to continue with.

    Example: `hookflow show cifar | less`
    """
    from hookflow.service.run_facts import RunFacts
    from hookflow.service.runs import find_run

    facts = RunFacts.read(find_run(run, dir))
    if format_ == "json":
        echo_json(make_page_data(facts))
    else:
        echo("\n".join(format_page(facts)))


def make_page_data(facts: RunFacts) -> dict[str, Any]:
    """Return the page as data."""
    from hookflow.events.initial_weights import read_recorded_weights, weights_facts
    from hookflow.service.code import code_as_data

    state = facts.state
    description = facts.run.describe()
    parent = facts.run.parent()
    data: dict[str, Any] = {}
    data["id"] = facts.run.id
    data["name"] = facts.name
    data["path"] = str(facts.run.path)
    data["status"] = facts.health.condition
    data["reason"] = facts.health.sentence
    data["exit"] = state.end["exit"] if state.end else None
    data["world"] = state.ranks.world
    data["iteration"] = state.it
    data["iterations"] = state.total_iters
    data["epoch"] = state.epoch
    data["max_epochs"] = state.run.get("max_epochs")
    data["synthetic"] = [*state.synthetic]
    data["updated"] = state.now or None
    data["parent"] = parent._asdict() if parent else None
    data["pipeline"] = description.get("source")
    data["overrides"] = description.get("overrides", [])
    data["code"] = code_as_data(facts.run)
    data["weights"] = weights_facts(read_recorded_weights(facts.run))
    data["attempts"] = _attempt_data(facts)
    data["throttled"] = [*state.throttled.values()]
    data["commands"] = [
        {key: change[key] for key in ("it", "cmd", "args", "t")} for change in state.changes
    ]
    data["warnings"] = _make_trouble_data(facts, "warn")
    data["errors"] = _make_trouble_data(facts, "error")
    data["layers"] = state.run.get("layers", [])
    data["metrics"] = {
        name: points[-1][1] for name, points in state.metrics.by_name.items() if points
    }
    data["hooks"] = _make_timing_data(facts)
    data["checkpoints"] = [asdict(checkpoint) for checkpoint in facts.saved]
    return data


def _attempt_data(facts: RunFacts) -> list[dict[str, Any]]:
    data = []
    for attempt in facts.state.attempts:
        data.append(
            {
                "began": attempt.began,
                "from": attempt.resumed_from,
                "first": attempt.begin,
                "last": attempt.it,
                "ended": attempt.ended,
            }
        )
    return data


def _make_trouble_data(facts: RunFacts, kind: Kind) -> list[dict[str, Any]]:
    data = []
    for first, last, times in facts.state.journal.repeated.values():
        if first.kind == kind:
            data.append({"it": first.it, "last": last, "times": times, "text": first.text})
    return data


def _make_timing_data(facts: RunFacts) -> dict[str, dict[str, int]]:
    """Return how often each hook fired at each point, and the ns that this took."""
    data = {}
    for binding in facts.plan.bindings:
        timing = facts.state.first.timing(binding.id)
        if timing.count:
            data[f"{binding.hook}@{binding.point}"] = {"fired": timing.count, "ns": timing.total}
    return data


def format_page(facts: RunFacts) -> Iterator[str]:
    """Yield the lines of the page."""
    yield f"{facts.name}  {facts.run.id}"
    yield ""
    yield from _format_facts([*_result_facts(facts), *facts.iter_setting_facts()])
    lists = {
        "attempts": facts.attempt_facts(),
        "changed by commands, by iteration": _command_facts(facts),
        "throttled now, since iteration": _list_throttle_facts(facts),
        "warnings, by iteration": _list_trouble_facts(facts, "warn"),
        "errors, by iteration": _list_trouble_facts(facts, "error"),
    }
    for title, items in lists.items():
        lines = [*_format_facts(items, "  ")]
        if lines:
            yield ""
            yield title
            yield from lines
    tables = {
        "metrics": facts.metric_rows(),
        facts.hooks_title: facts.hook_rows(),
        "checkpoints": facts.checkpoint_rows(),
        "logged": _list_logged_rows(facts),
        "layers": _layer_rows(facts),
    }
    for title, rows in tables.items():
        if len(rows) > 1:
            yield ""
            yield title
            yield from _table_lines(rows)
    yield ""
    yield from _format_facts(_next_facts(facts))


def _format_facts(facts: Iterable[Fact], indent: str = "") -> Iterator[str]:
    """Yield a line or more for each fact, below one another."""
    below = indent + " " * 12
    for name, text in facts:
        head = f"{indent}{name:<11} "
        yield from textwrap.wrap(
            text, TEXT_WIDTH, initial_indent=head, subsequent_indent=below, break_on_hyphens=False
        )


def _table_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the headings and the first rows."""
    for line in columns(rows[: MAX_ROWS + 1], "  "):
        yield cut(line, TEXT_WIDTH)
    left_out = len(rows) - 1 - MAX_ROWS
    if left_out > 0:
        yield f"  and {left_out:,} more"


def _result_facts(facts: RunFacts) -> Iterator[Fact]:
    """Yield how the run ended and why, how far it got, and its newest checkpoint."""
    from hookflow.monitor.health import end_reason

    state = facts.state
    health = facts.health
    result = f"{health.glyph} {health.condition} after {format_span(state.elapsed)}"
    if state.end and state.end["exit"]:
        result += f", exit code {state.end['exit']}"
    yield "result", result
    for line in end_reason(state) or [health.sentence]:
        if line:
            yield "", line
    # The further lines of a user's mistake are its place and a hint.
    if state.end and state.ranks.first_failure is None:
        for line in state.end["reason"].splitlines()[1:]:
            yield "", line
    reached = f"iteration {state.it:,} of {state.total_iters:,}"
    epochs = state.run.get("max_epochs")
    if epochs:
        reached = f"epoch {state.epoch:,} of {epochs:,}, {reached}"
    yield "reached", reached
    if state.synthetic:
        yield (
            "",
            (
                f"SYNTHETIC {', '.join(state.synthetic)} data: the scores say nothing about the"
                " real data set"
            ),
        )
    usable = [checkpoint for checkpoint in facts.saved if checkpoint.can_resume]
    if usable:
        yield "checkpoint", _checkpoint_text(usable[0])


def _checkpoint_text(checkpoint: SavedCheckpoint) -> str:
    text = checkpoint.name
    if checkpoint.names:
        text += f" ({', '.join(checkpoint.names)})"
    text += f", iteration {checkpoint.it:,}"
    metrics = [
        f"{name} {number(float(value))}" for name, value in (checkpoint.metrics or {}).items()
    ]
    if not metrics:
        return text
    text += f": {', '.join(metrics)}"
    if checkpoint.metrics_it != checkpoint.it:
        text += f" (of iteration {checkpoint.metrics_it:,})"
    return text


def _command_facts(facts: RunFacts) -> Iterator[Fact]:
    for change in facts.state.changes:
        yield f"{change['it']:,}", " ".join([change["cmd"], *change["args"]])


def _list_throttle_facts(facts: RunFacts) -> Iterator[Fact]:
    for hook, throttle in facts.state.throttled.items():
        yield (
            f"{throttle['it']:,}",
            f"{hook} {format_frequency(throttle['every'])}: {throttle['why']}",
        )


def _list_trouble_facts(facts: RunFacts, kind: Kind) -> Iterator[Fact]:
    """Yield the warnings or errors with the iterations that they are of, each text once.

    The messages that an attempt has recorded before it began are shown with the attempt.
    """
    prepared: set[int] = set()
    for attempt in facts.state.attempts[1:]:
        prepared.update(entry.number for entry in attempt.prepared)
    troubles = []
    for trouble in facts.state.journal.repeated.values():
        if trouble.first.kind == kind and trouble.first.number not in prepared:
            troubles.append(trouble)
    for trouble in troubles[:MAX_TEXTS]:
        text = f"{trouble.first.source}: {_format_trouble(facts, trouble.first)}"
        if trouble.times > 1:
            text += f" ({trouble.times:,} times)"
        yield _format_iterations(trouble), text
    if len(troubles) > MAX_TEXTS:
        yield "", f"and {len(troubles) - MAX_TEXTS:,} more: hookflow watch --ui plain"


def _format_iterations(trouble: RepeatedEntry) -> str:
    """Return the iterations of a warning or an error.

    For one outside the training it is the time of day.
    """
    first = trouble.first.it
    if first is None:
        return format_clock(trouble.first.t)
    last = trouble.it
    if last is None or last == first:
        return f"{first:,}"
    return f"{first:,} to {last:,}"


def _format_trouble(facts: RunFacts, entry: Entry) -> str:
    """Return the text of an entry, without an error that the result has already."""
    from hookflow.monitor.health import end_reason
    from hookflow.monitor.journal import ERROR_ACTION_LABELS

    ends_run = ERROR_ACTION_LABELS["raise"]
    place, _, error = entry.text.partition(f"{ends_run}: ")
    reasons = end_reason(facts.state)
    if error and reasons and reasons[0].endswith(error):
        return f"{place}{ends_run}, see the result"
    return entry.text


def _list_logged_rows(facts: RunFacts) -> list[Row]:
    """Return the images, texts and histograms by name, with the newest of each.

    The first row has the headings.
    """
    from hookflow.monitor.journal import describe_extent

    rows: list[Row] = [("image, text, histogram", "kind", "iteration", "size", "file")]
    gallery = facts.state.gallery
    for key in gallery.keys:
        newest = gallery.of(key)[-1].record
        path = "-"
        if newest["k"] == "image":
            path = newest["path"]
        rows.append(
            (newest["name"], newest["k"], f"{newest['it']:,}", describe_extent(newest), path)
        )
    return rows


def _layer_rows(facts: RunFacts) -> list[Row]:
    """Return the layers of the model in their order; the first row has the headings."""
    from hookflow.monitor.summary import layer_rows

    heads = ("layer", "class", "shapes", "parameters", "bytes", "")
    return [heads, *layer_rows(facts.state.run.get("layers", []))]


def _next_facts(facts: RunFacts) -> Iterator[Fact]:
    """Yield what can be done with the run as it is."""
    from hookflow.events.recorded_code import find_latest_code
    from hookflow.events.rundir import run_argument, short

    known = run_argument(facts.run)
    if facts.health.over:
        yield _make_continue_fact(facts)
        if not _can_continue(facts):
            yield from _start_facts(facts)
        yield "watch", f"hookflow watch {known}"
    else:
        yield "watch", f"hookflow watch {known}"
        yield "stop", f"hookflow stop {known}"
    if find_latest_code(facts.run) is not None:
        yield "its code", f"hookflow export {known} --code DIR"
    yield "files", str(short(facts.run.path))
    if facts.run.output.is_file() and facts.run.output.stat().st_size:
        yield "printed", str(short(facts.run.output))


def _is_complete(facts: RunFacts) -> bool:
    """Return whether the run has done all its iterations."""
    from hookflow.monitor.health import end_reason

    return facts.health.condition == "finished" and not end_reason(facts.state)


def _can_continue(facts: RunFacts) -> bool:
    return _is_complete(facts) or any(checkpoint.can_resume for checkpoint in facts.saved)


def _make_continue_fact(facts: RunFacts) -> Fact:
    """Return how to go on with a run that is over."""
    from hookflow.events.rundir import resume_command

    if not _can_continue(facts):
        return "resume", "not possible: it has no checkpoint"
    command = resume_command(facts.run)
    if not _is_complete(facts):
        return "resume", command
    if facts.run.describe().get("loop") == "own":
        return "extend", f"{command}, and a larger max_iters"
    run = facts.state.run
    epochs = run.get("max_epochs", 0)
    if epochs and facts.state.ep >= epochs:
        longer = f"max_epochs={2 * epochs}"
    else:
        longer = f"max_iters={2 * run.get('max_iters', 1)}"
    return "extend", f"{command} --set run.{longer}"


def _start_facts(facts: RunFacts) -> Iterator[Fact]:
    """Yield the command that starts the run anew, where a file of a pipeline has started it."""
    from hookflow.service.run_facts import format_override

    description = facts.run.describe()
    source = description.get("source", "")
    if source.endswith(".toml"):
        words = ["hookflow run", shlex.quote(source)]
        words += [format_override(override) for override in description.get("overrides", ())]
        yield "start anew", " ".join(words)
