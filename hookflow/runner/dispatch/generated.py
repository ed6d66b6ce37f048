"""A point of the iteration as one generated function: the dispatch core without its loop.

What `Dispatcher.call_all` does for each binding is written out, in Python source that is compiled once a run, so that
a firing costs the call of the hook's own method, one reading of the clock, and the note of where the run is. The stamps
of all bindings are put down in one row. It is for points whose bindings are plain methods with triggers that count
iterations: there nothing fires within anything else, and no trigger takes time worth booking. For two hooks at
after_train_iter, of which the second fires every 50 iterations, it is:

    def after_train_iter(batch, batch_idx, outputs):
        _t0 = _clock()
        _times[0] = _t0
        _here[0] = _ids[0] = 7
        try:
            _method7(_run, outputs)
        except BaseException as _error:
            _failed(_binding7, _error)
        _t1 = _clock()
        if _state.iter >= _gate8.next and _gate8():
            _times[0] = _t1
            …
            _t2 = _clock()
        else:
            _t2 = _t1
        _here[0] = _ids[0] = -1
        _chunk = _rows.chunk
        _at = _chunk.at
        _pack(_chunk.data, _at, _t0, _t1, _t2)
        _chunk.at = _at = _at + 24
        if _at >= _end:
            _rows.turn()
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

from hookflow.events.now import NOWHERE
from hookflow.graph.plan import Plan
from hookflow.graph.points import Point
from hookflow.graph.schedule import parsed
from hookflow.runner.dispatch.dispatcher import Dispatcher, Firing, Here, by_position
from hookflow.runner.logging.timing import Books, Rows
from hookflow.runner.process.state import RunState


def can_be_generated(plan: Plan, point: Point, firings: Sequence[Firing]) -> bool:
    """Say whether these firings of a point are plain enough, in a plan where nothing fires within something else."""
    nested = any(plan.at(other.name) for other in plan.points if other.nested)
    in_iteration = point.unit == "it" and point.kind in ("standard", "step")
    return in_iteration and not nested and all(map(_is_plain, firings))


def _is_plain(firing: Firing) -> bool:
    binding, trigger = firing.binding, firing.binding.trigger
    amounts = (trigger.every, trigger.since, trigger.until)
    counted = all(parsed(a).unit != "s" for a in amounts if a is not None)
    changes = "batch" in binding.writes or "control" in binding.writes
    return binding.half == "whole" and counted and trigger.when is None and not changes and firing.announce is None


def generate(
    point: Point, firings: Sequence[Firing], dispatcher: Dispatcher, books: Books, here: Here, state: RunState
) -> Callable[..., None]:
    """Return a function of what the point offers after the run, which calls the firings and books their time."""
    rows = Rows(len(firings) + 1)
    names: dict[str, Any] = {
        "_run": dispatcher.run,
        "_clock": perf_counter,
        "_failed": dispatcher.failed,
        "_here": here.binding,
        "_ids": here.ids,
        "_times": here.times,
        "_state": state,
        "_rows": rows,
        "_pack": rows.pack,
        "_end": rows.end,
    }
    for firing in firings:
        id_ = firing.binding.id
        names |= {f"_method{id_}": firing.method, f"_binding{id_}": firing.binding, f"_gate{id_}": firing.gate}
    source = "\n".join(_lines(point, firings, rows))
    file = f"{__file__}:{point.name}"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file  # for tracebacks
    exec(compile(source, file, "exec"), names)  # noqa: S102  # the source is ours: names of bindings are numbers in it
    books.points.append((tuple(firing.binding.id for firing in firings), rows))
    made: Callable[..., None] = names[point.name]
    return made


def _lines(point: Point, firings: Sequence[Firing], rows: Rows) -> Iterator[str]:
    yield f"def {point.name}({', '.join(point.offers[1:])}):"
    yield "    _t0 = _clock()"
    for k, firing in enumerate(firings):
        if firing.gate is None:
            yield from _call(firing, k, "    ")
        else:
            yield f"    if _state.iter >= _gate{firing.binding.id}.next and _gate{firing.binding.id}():"
            yield from _call(firing, k, "        ")
            yield "    else:"
            yield f"        _t{k + 1} = _t{k}"
    yield f"    _here[0] = _ids[0] = {NOWHERE}"
    yield "    _chunk = _rows.chunk"
    yield "    _at = _chunk.at"
    yield f"    _pack(_chunk.data, _at, {', '.join(f'_t{k}' for k in range(len(firings) + 1))})"
    yield f"    _chunk.at = _at = _at + {rows.size}"
    yield "    if _at >= _end:"
    yield "        _rows.turn()"


def _call(firing: Firing, k: int, indent: str) -> Iterator[str]:
    id_, takes = firing.binding.id, firing.binding.takes
    given = {name: "_run" if name == "run" else name for name in takes}
    positional = by_position(firing.method, takes)
    arguments = ", ".join(value if positional else f"{name}={value}" for name, value in given.items())
    yield f"{indent}_times[0] = _t{k}"
    yield f"{indent}_here[0] = _ids[0] = {id_}"
    yield f"{indent}try:"
    yield f"{indent}    _method{id_}({arguments})"
    yield f"{indent}except BaseException as _error:"
    yield f"{indent}    _failed(_binding{id_}, _error)"
    yield f"{indent}_t{k + 1} = _clock()"
