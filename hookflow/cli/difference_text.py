"""The difference between pipelines, and values of runs, as lines and cells of text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hookflow.graph.plan import Change, Difference
from hookflow.pipeline.source_map import as_toml
from hookflow.service.pipelines import Target

WIDTH = 100


def difference_lines(old: Target, new: Target, result: Difference) -> Iterator[str]:
    """Yield what differs, as `hookflow compare` shows it."""
    if not result:
        yield f"{old.name} and {new.name} amount to the same"
        return
    yield f"- {old.name}"
    yield f"+ {new.name}"
    hooks = [
        f"{sign} {hook.name}  {hook.use}({hook.written_args})"
        for sign, target, names in (("-", old, result.hooks_removed), ("+", new, result.hooks_added))
        for hook in map(target.plan.hook, names)
    ]
    bound = (("-", result.unbound), ("+", result.bound))
    points = [(f"{sign} {hook}", at) for sign, by_hook in bound for hook, at in by_hook.items()]
    changed = (("-", result.edges_removed), ("+", result.edges_added))
    edges = [(f"{sign} {edge.first} → {edge.then}", edge.points) for sign, arrows in changed for edge in arrows]
    for title, lines in (
        ("keys", _keys(result.keys)),
        ("hooks", hooks),
        ("fire at", _at(points)),
        ("edges", _at(edges)),
        ("order", [line for t in result.order for line in (t.point, *_order("-", t.old), *_order("+", t.new))]),
    ):
        if shown := list(lines):
            yield f"\n{title}"
            yield from (f"  {line}" for line in shown)


def _keys(changes: Sequence[Change]) -> Iterator[str]:
    width = max((len(change.key) for change in changes), default=0)
    for change in changes:
        old, new = written(change.old), written(change.new)
        if width + len(old) + len(new) + 8 <= WIDTH:
            yield f"{change.key:<{width}}  {old} → {new}"
        else:
            yield from (change.key, f"  - {old}", f"  + {new}")


def _at(points: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    for subject, names in points:
        yield from textwrap.wrap(f"{subject} at {', '.join(names)}", WIDTH, subsequent_indent="    ")


def _order(sign: str, hooks: Sequence[str]) -> list[str]:
    return textwrap.wrap(f"  {sign} {' → '.join(hooks)}", WIDTH, subsequent_indent="      ")


def written(value: Any) -> str:
    """Return the value of a key as TOML; "nothing" where a pipeline lacks it."""
    return "nothing" if value is None else as_toml(value)


def brief(value: Any) -> str:
    """Return a value of the environment on one short line."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "-" if value is None or not text else textwrap.shorten(text, 40, placeholder=" …")


def with_deltas(cells: Sequence[str], deltas: Sequence[str]) -> tuple[str, ...]:
    """Return the cells of runs, beside each but the first its difference from that."""
    first, *others = cells
    return first, *(cell for pair in zip(others, deltas, strict=True) for cell in pair)
