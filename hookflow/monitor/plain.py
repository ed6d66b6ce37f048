"""A run as plain lines, where there is no terminal: greppable, key=value, one fact a line, no control characters."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TextIO

from hookflow.events.records import PHASES, Record
from hookflow.events.rundir import RunDir, count_attempts
from hookflow.monitor.feed import Live
from hookflow.monitor.follower import follow_records
from hookflow.monitor.journal import Entry
from hookflow.monitor.output import Output
from hookflow.monitor.pace import Pace, costliest
from hookflow.monitor.paint import clean
from hookflow.monitor.rank import NO_PLAN
from hookflow.monitor.state import RunState
from hookflow.monitor.summary import summary
from hookflow.monitor.words import clock, number, one_line, percent, span

EVERY = 10.0
"""Seconds of the run between lines on its progress, when nothing else is told."""


def follow(run: RunDir, out: TextIO, *, child_exit: Callable[[], int | None] | None = None) -> int:
    """Print the run until it has ended or its process is gone; return the exit code to leave with.

    That is the run's own, or 1 when it went without an end record. `child_exit` returns the exit code of the process
    that trains once it has ended, when the caller is its parent. Of a resumed run only the newest attempt is told.
    A mistake that ends a run before it has begun is left for the caller to tell.
    """
    live = Live(run)
    attempts = count_attempts(run)
    printer = _Printer(live, out, skip=attempts if attempts > 1 and child_exit is None else 0)
    if child_exit is not None and attempts:
        while live.poll():  # what earlier attempts left
            pass
        printer.divide(time.time(), attempts + 1)
    printed = Output(run.output, from_now=attempts > (child_exit is None))

    def relay(over: bool) -> None:
        for line in printed.read(over):
            printer.relay(line)
        printer.warn()

    code = follow_records(run, live, printer.take, child_exit, relay)
    printer.warn()
    if not live.state.stillborn:
        print("\n".join(summary(run, live.state, live.plan)), file=out, flush=True)
    return code


class _Printer:
    """Prints a line for each fact; the attempts before the one numbered `skip` are folded in silence."""

    def __init__(self, live: Live, out: TextIO, skip: int = 0) -> None:
        self._live = live
        self._out = out
        self._skip = skip
        self._attempt = 0
        self._relayed: deque[str] = deque(maxlen=1000)
        self._seen = 0  # entries of the journal
        self._told = 0.0  # when the last line on progress was due

    def take(self, record: Record) -> None:
        """Print what a record says; frames and scalars only now and then."""
        self._attempt += record.get("k") == "run"
        if self._attempt < self._skip:
            self._warnings()
            return
        if self._attempt == self._skip and record.get("k") == "run":
            self.divide(record.get("t", 0.0), self._attempt)
        try:
            lines = self._lines(record)
        except (LookupError, TypeError, ValueError):
            lines = []  # the fold could not read it either, and warns
        for line in [*lines, *self._warnings()]:
            print(clean(line), file=self._out, flush=True)

    def warn(self) -> None:
        """Print what has come from other ranks, or was found, since the last record of rank 0."""
        lines = self._warnings()
        for line in lines if self._attempt >= self._skip else []:
            print(clean(line), file=self._out, flush=True)

    def divide(self, t: float, attempt: int) -> None:
        """Print that the run has been resumed, and pass over what has been warned of before."""
        self._warnings()
        print(f"{clock(t)} {_line('resumed', attempt=attempt)}", file=self._out, flush=True)

    def relay(self, line: str) -> None:
        """Print a line that the training printed."""
        self._relayed.append(line)
        print(f"output     | {line}".rstrip(), file=self._out, flush=True)

    def _warnings(self) -> list[str]:
        """Return lines for what the fold itself has warned of since the last time, and for what other ranks say."""
        fresh = self._live.state.journal.since(self._seen)
        self._seen = fresh[-1].number + 1 if fresh else self._seen
        return [line for entry in fresh if entry.own for line in self._found(entry)]

    def _found(self, entry: Entry) -> list[str]:
        lines = [_line(entry.kind, source=entry.source, text=entry.text), *self._traceback(entry.detail)]
        return [f"{clock(entry.t)} {line}" for line in lines]

    def _traceback(self, text: str) -> list[str]:
        """Return the lines of a traceback, unless the training has printed it and it was relayed."""
        told = set(map(str.rstrip, text.splitlines())) <= set(self._relayed)
        return [] if told else [f"error      | {line}" for line in text.splitlines()]

    def _lines(self, record: Record) -> list[str]:
        lines = self._told_of(record)
        return [f"{clock(record['t'])} {line}" for line in lines]

    def _told_of(self, record: Record) -> list[str]:
        """Return the lines without the time."""
        match record["k"]:
            case "run":
                self._told = record["t"]
                return _beginning(self._live)
            case "epoch":
                self._told = record["t"]
                return [self._progress(), f"epoch ep={record['ep']} seconds={record['seconds']:.1f}"]
            case "frame":
                if record["t"] - self._told < EVERY or record["stage"] != "train":
                    return []
                self._told = record["t"]
                return [self._progress()]
            case "error":
                return [*_event(record, self._live.state), *self._traceback(record["traceback"])]
            case "end" if self._live.state.stillborn:
                return []
        return _event(record, self._live.state)

    def _progress(self) -> str:
        state, plan = self._live.state, self._live.plan or NO_PLAN
        pace = Pace.of(state, plan)
        scalars = {
            name: number(state.scalars[name].last) for name in sorted(state.scalars, key=lambda name: name != "loss")
        }
        facts = {
            "ep": f"{state.epoch}/{state.run['max_epochs']}" if state.run["max_epochs"] else f"{state.epoch}",
            "it": f"{state.it}/{state.total_iters}",
            **scalars,
        }
        if pace.iters_per_s:  # else no iteration has been timed yet: a run may be over in no time
            facts |= {
                "it/s": f"{pace.iters_per_s:.1f}",
                **({"samples/s": f"{pace.samples_per_s:.0f}"} if pace.samples_per_s else {}),  # else nobody knows it
                "eta": span(pace.eta) if pace.eta is not None else "unknown",
                **{phase: f"{percent(pace.phases[phase])}%" for phase in PHASES},
            }
            if worst := costliest(state, plan, pace):
                facts["costliest"] = f"{worst[0][0]}:{percent(worst[0][1])}%"
        return _line("train", **facts)


def _line(kind: str, **facts: object) -> str:
    """Return one line; a value with blanks or quotes in it is quoted."""
    return " ".join([f"{kind:<10}", *(f"{name}={_value(fact)}" for name, fact in facts.items())])


def _value(fact: object) -> str:
    text = str(fact)
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(' "\t\n') else text


def _beginning(live: Live) -> list[str]:
    """Return the lines that say what runs, on what data, where."""
    record = live.state.run
    known: Mapping[str, object] = record
    keys = ("pipeline", "model", "params", "device", "precision", "seed", "torch", "python", "host", "pid")
    several = {"ranks": record["world"]} if record["world"] > 1 else {}
    facts = {key: known[key] for key in keys}
    lines = [_line("run", **facts, **several, resumed_from=record["resumed_from"] or "none")]
    for split, data in record["data"].items():
        mark = "SYNTHETIC " if data["synthetic"] else ""
        facts = {key: data[key] for key in ("name", "examples", "batches", "batch_size")}
        lines.append(_line(f"data {mark}", split=split, **facts, note=data["note"] or "none"))
    if live.plan:
        plan = live.plan
        facts = {"hooks": len(plan.hooks), "bindings": len(plan.bindings), "edges": len(plan.edges)}
        shuffled = {"shuffled_with_seed": plan.shuffle} if plan.shuffle is not None else {}
        lines.append(_line("plan", **facts, **shuffled))
        lines += [_line("WARNING", text=str(warning.message)) for warning in plan.warnings]
    return lines


def _event(record: Record, state: RunState) -> list[str]:
    """Return the lines of an event, none for a kind that is not told."""
    at = {"it": state.it, "ep": state.epoch}
    match record["k"]:
        case "metrics":
            values = {name: number(float(value)) for name, value in record["v"].items()}
            return [_line(record["split"], **at, **values, seconds=f"{record['seconds']:.1f}")]
        case "checkpoint":
            names = ",".join(record["names"]) or "none"
            return [
                _line(
                    "checkpoint",
                    **at,
                    path=record["path"],
                    names=names,
                    bytes=record["bytes"],
                    ms=f"{record['ms']:.0f}",
                )
            ]
        case "ack":
            return [_line("command", **at, cmd=record["cmd"], ok=record["ok"], note=record["note"] or "none")]
        case "message":
            return [_line(record["level"], **at, source=record["source"], text=record["text"])]
        case "error":
            place = {"hook": record["hook"], "point": record["point"], "type": record["type"]}
            return [_line("error", **at, **place, text=one_line(record["text"]), action=record["action"])]
        case "end":
            status, reason = record["status"], one_line(record["reason"]) or "none"
            seconds = f"{state.elapsed:.1f}"
            return [_line("end", **at, status=status, exit=record["exit"], reason=reason, seconds=seconds)]
    return []
