"""A run in brief: the summary that stays on the screen, the table of its metrics, and its line in a list of runs."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from hookflow.events.log import Tail
from hookflow.events.reading import open_regular, read_record
from hookflow.events.records import Layer, Record
from hookflow.events.rundir import RunDir, run_argument, short
from hookflow.graph.plan import Plan
from hookflow.monitor.feed import SHARED, Live, logs_of_others
from hookflow.monitor.health import Health, end_reason, judge
from hookflow.monitor.ranks import NO_PLAN, can_compare
from hookflow.monitor.series import in_order
from hookflow.monitor.state import RunState
from hookflow.numbers import counted, duration, number, out_of, percent, size, span
from hookflow.text import printable

FRAME = b'{"k":"frame"'
SCALARS = b'{"k":"scalars"'
SKIPPED = (FRAME, SCALARS)
"""How the lines begin that make up most of a log."""

RUN = b'{"k":"run"'
"""How the line begins that an attempt at the run begins with."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The facts about a run in a list of runs; `refused` are logs of other ranks that cannot be read, in words."""

    run: RunDir
    state: RunState
    health: Health
    refused: list[str]

    @property
    def reason(self) -> str:
        """Why it has ended, or what is wrong; empty where there is nothing to say."""
        text = next(iter(end_reason(self.state)), self.health.sentence)
        return text.removeprefix(f"{self.health.condition}: ")


class Glance:
    """Reads on in the logs of a run: everything but the frames and scalars, and the last of these: how far it is."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._state = RunState()
        self._last: dict[bytes, bytes] = {}  # the last lines of the present attempt that were skipped
        self._scalars_before = b""  # those of the attempt before it
        self._tails: dict[int, Tail[Record]] = {}

    def read(self, clock: float) -> Overview:
        """Read on to the present end of the logs, and judge the run at the moment `clock`."""
        run, state, refused = self._run, self._state, []
        try:
            open_regular(run.events).close()
        except FileNotFoundError:
            pass  # it did not get as far as to have a log
        except OSError as error:
            why = f"its event log cannot be read: {error.strerror}"
            return Overview(run, state, Health("unreadable", why), [])
        self._fold(0, run.events)
        if state.ranks.world > 1 and (state.end is None or state.end["status"] in ("failed", "interrupted")):
            for rank, path, why in logs_of_others(run):  # another rank may have failed, which rank 0 does not know
                if why:
                    refused.append(why)
                else:
                    self._fold(rank, path)
        return Overview(run, state, judge(run, state, clock), refused)

    def _fold(self, rank: int, path: Path) -> None:
        tail = self._tails.setdefault(rank, Tail(path, self._parse_first if rank == 0 else _parse_other))
        records = tail.read_all()
        begins = [at for at, record in enumerate(records) if record["k"] == "run"]
        begin = begins[-1] + 1 if begins else 0  # where the last attempt begins
        self._apply_skipped(self._scalars_before)  # of which that attempt forgets what it trains again
        for record in records[:begin]:
            self._state.apply(record, rank)
        self._apply_skipped(self._last.get(SCALARS, b""))  # before the others, as they may be of an earlier iteration
        for record in records[begin:]:
            self._state.apply(record, rank)
        if self._state.end is None:
            self._apply_skipped(self._last.get(FRAME, b""))
        self._last.clear()
        self._scalars_before = b""

    def _apply_skipped(self, line: bytes) -> None:
        """Take a line that was skipped; nothing where there is none, or it is no record."""
        if line:
            with suppress(ValueError):
                self._state.apply(read_record(line))

    def _parse_first(self, line: bytes) -> Record | None:
        if line.startswith(RUN):  # another attempt: the last frame is of the one before, which may have got further
            self._scalars_before = self._last.pop(SCALARS, b"") or self._scalars_before
            self._last.clear()
        if not line.startswith(SKIPPED):
            return read_record(line)
        if line.endswith(b"}"):
            self._last[FRAME if line.startswith(FRAME) else SCALARS] = line
        return None


def _parse_other(line: bytes) -> Record | None:
    return None if line.startswith((*SKIPPED, *SHARED)) else read_record(line)


def read_overview(run: RunDir, clock: float) -> Overview:
    """Read the logs of a run to their present end, as a `Glance` does."""
    return Glance(run).read(clock)


def metric_rows(state: RunState, none: str = "") -> Iterator[tuple[str, ...]]:
    """Yield each metric with its last and best value, and the epoch and iteration of that; `none` where it has none."""
    for name in in_order(state.metrics.by_name, state.monitored):
        if points := state.metrics.by_name[name]:
            best = state.metrics.best.get(name)
            facts = (number(best.value), f"{best.ep:,}", f"{best.it:,}") if best else (none,) * 3
            yield (name, number(points[-1][1]), *facts)


def layer_rows(layers: Sequence[Layer]) -> Iterator[tuple[str, ...]]:
    """Yield each layer of a model: name, class, shapes, parameters, bytes, and what of it does not train."""
    for layer in layers:
        frozen = layer["parameters"] - layer["trainable"]
        note = "" if not frozen else "frozen" if not layer["trainable"] else f"{frozen:,} frozen"
        yield layer["name"], layer["kind"], layer["shapes"], f"{layer['parameters']:,}", size(layer["bytes"]), note


def metrics_table(state: RunState, scalars: Iterable[str] = ()) -> Table | None:
    """Return the table of the metrics, and of these scalars; None where there is no value yet."""
    rows = [(name if " " in name else f"val {name}", *facts) for name, *facts in metric_rows(state)]
    rows += [(name, number(state.scalars[name].last)) for name in scalars]
    table = Table("metric", box=SIMPLE_HEAD, header_style="bold")
    for heading in ("last", "best", "at epoch", "iteration"):
        table.add_column(heading, justify="right")
    for name, *facts in rows:
        table.add_row(Text(printable(name)), *facts)
    return table if rows else None


def print_summary(run: RunDir, out: TextIO) -> None:
    """Read the run's log to its present end and print the summary."""
    live = Live(run, kept=True)
    live.read_all()
    print("\n".join(summary(run, live.state, live.plan)), file=out, flush=True)


def summary(run: RunDir, state: RunState, plan: Plan | None) -> list[str]:
    health, ranks, journal = judge(run, state, time.time()), state.ranks, state.journal
    whole = state.run.get("max_epochs")
    epoch = f" epoch {out_of(state.epoch, whole)}," if whole else ""
    lines = [
        f"{health.glyph} {run.path.parent.name} {run.id}: {health.condition} after {span(state.elapsed)},"
        f"{epoch} iteration {out_of(state.it, state.total_iters)}"
    ]
    lines += [f"  {line}" for line in end_reason(state) or [health.sentence] if line]
    if state.refused:
        lines.append(f"  not resumed: {' '.join(state.refused['reason'].split())}")
    if splits := state.synthetic:
        lines.append(f"  SYNTHETIC {', '.join(splits)} data: the scores say nothing about the real data set")
    if parts := state.limited:
        lines.append(f"  LIMITED data ({', '.join(parts)}): the scores are of a part of the data set")
    for name in in_order(state.metrics.best, state.monitored)[:3]:
        best = state.metrics.best[name]
        lines.append(f"  best {name} {number(best.value)} at epoch {best.ep}, iteration {best.it}")
    if state.checkpoints:
        lines.append(f"  checkpoint {short(run.path / state.checkpoints[-1]['path'])}")
    if costs := _costs(state, plan or NO_PLAN):
        lines.append(f"  costliest hooks: {costs}")
    for id_, beside in state.first.beside.items():
        if plan and id_ < len(plan.bindings):
            lines.append(f"  beside the training: {plan.bindings[id_].hook}, {beside}")
    if ranks.world > 1:
        even = "even" if can_compare(ranks.of) else "too few iterations to compare them"
        gone = f", no end record from rank {', '.join(map(str, ranks.gone))}" if ranks.gone else ""
        lines.append(f"  {ranks.world} ranks: {ranks.straggler.sentence if ranks.straggler else even}{gone}")
    if journal.warnings or journal.errors:
        counts = f"warnings {journal.warnings}, errors {journal.errors}"
        lines.append(f"  {counts}; in full: hookflow show {run_argument(run)}")
        if state.errors and run.output.is_file() and run.output.stat().st_size:
            lines.append(f"  whole tracebacks and what the run printed: {short(run.output)}")
    if state.unreadable:
        were = "was" if state.unreadable == 1 else "were"
        passed_over = f"cannot be read and {were} passed over ({state.complaint})"
        lines.append(f"  {counted(state.unreadable, 'line')} of its logs {passed_over}")
    if run.path.exists():
        known = run_argument(run)
        resumes_at = run.resumes_at()
        if resumes_at is not None and health.condition in ("interrupted", "stopped", "failed", "lost"):
            lines.append(f"  resume from iteration {resumes_at}: hookflow run --resume {known}")
        lines.append(f"  {_what_follows(state, health)}: hookflow watch {known}")
    return [printable(line) for line in lines]


def _what_follows(state: RunState, health: Health) -> str:
    """Return in words what comes after the summary, as an invitation to watch it."""
    if health.over:
        return "look again"
    if state.was_asked_to_stop:
        return "the run was asked to stop, and has not ended yet; watch it"
    return "the run goes on; watch it"


def _costs(state: RunState, plan: Plan) -> str:
    """Return the hooks that took most of the whole attempt: of its iterations, and outside them."""
    inside: Counter[str] = Counter()
    outside: Counter[str] = Counter()
    for binding in plan.bindings:
        if spent := state.first.timing(binding.id).total:
            (inside if plan.points.in_iteration(binding.point) else outside)[binding.hook] += spent
    costs = []
    shares = {hook: percent(ns / state.iterating) for hook, ns in inside.most_common(3)} if state.iterating else {}
    if large := [f"{hook} {share} %" for hook, share in shares.items() if share != "0.0"]:
        costs.append(f"{', '.join(large)} of the iterations")
    if outside:
        hook, ns = outside.most_common(1)[0]
        where = "outside them " if costs else "outside the iterations " if state.iterating else ""
        costs.append(f"{where}{hook} {duration(ns)}")
    return ", ".join(costs)
