"""The differences between two pipelines, as lines of text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from typing import TYPE_CHECKING, Any

from hookflow.pipeline.load import dump
from hookflow.pipeline.source_map import as_toml

if TYPE_CHECKING:
    from hookflow.graph.plan import Change, PlanDifference
    from hookflow.service.code_comparison import CodeComparison
    from hookflow.service.pipelines import Target

MAX_LINE_WIDTH = 100
"""Characters of a line about a difference."""


def difference_lines(
    old: Target, new: Target, result: PlanDifference, code: CodeComparison | None = None
) -> Iterator[str]:
    """Yield what differs, the code too where it was compared, as `hookflow compare` shows it."""
    if not result and not code:
        subject = f"{old.name} and {new.name}"
        if code is not None and code.unknown:
            subject = f"the pipelines of {subject}"
        yield f"{subject} amount to the same"
    else:
        yield f"- {old.name}"
        yield f"+ {new.name}"
        sections = {
            "keys": _key_lines(result.keys),
            "hooks": _hook_lines(old, new, result),
            "fire at": _format_bindings(result),
            "edges": _edge_lines(result),
            "order": _order_lines(result),
        }
        for title, lines in sections.items():
            shown = list(lines)
            if shown:
                yield ""
                yield title
                yield from (f"  {line}" for line in shown)
    if code is not None:
        yield from code.lines()


def unified_lines(old: Target, new: Target, code: CodeComparison) -> Iterator[str]:
    """Yield the whole difference of two pipelines and of their code, as `diff -u` prints it."""
    before = dump(old.loaded.public).splitlines()
    after = dump(new.loaded.public).splitlines()
    yield from unified_diff(before, after, old.name, new.name, lineterm="")
    for change in code.changes:
        if change.kind == "gone":
            yield f"Only in {old.name}: {change.path}"
        elif change.kind == "new":
            yield f"Only in {new.name}: {change.path}"
        else:
            yield f"--- {change.path}"
            yield f"+++ {change.path}"
            yield from change.diff
    for name in code.unknown:
        yield f"the code of {name} was not recorded"


def format_value(value: Any) -> str:
    """Return the value of a key as TOML; "nothing" where a pipeline lacks it."""
    if value is None:
        return "nothing"
    return as_toml(value)


def _key_lines(changes: Sequence[Change]) -> Iterator[str]:
    width = max((len(change.key) for change in changes), default=0)
    for change in changes:
        old = format_value(change.old)
        new = format_value(change.new)
        if width + len(old) + len(new) + 8 <= MAX_LINE_WIDTH:
            yield f"{change.key:<{width}}  {old} → {new}"
        else:
            yield change.key
            yield f"  - {old}"
            yield f"  + {new}"


def _hook_lines(old: Target, new: Target, result: PlanDifference) -> Iterator[str]:
    for sign, target, names in (("-", old, result.hooks_removed), ("+", new, result.hooks_added)):
        for name in names:
            hook = target.plan.hook(name)
            yield f"{sign} {hook.name}  {hook.use}({hook.written_args})"


def _format_bindings(result: PlanDifference) -> Iterator[str]:
    yield from _format_points("-", result.unbound)
    yield from _format_points("+", result.bound)


def _edge_lines(result: PlanDifference) -> Iterator[str]:
    for sign, edges in (("-", result.edges_removed), ("+", result.edges_added)):
        for edge in edges:
            yield from _wrap_names(f"{sign} {edge.first} → {edge.then}", edge.points)


def _order_lines(result: PlanDifference) -> Iterator[str]:
    for change in result.order:
        yield change.point
        for sign, hooks in (("-", change.old), ("+", change.new)):
            yield from textwrap.wrap(
                f"  {sign} {' → '.join(hooks)}", MAX_LINE_WIDTH, subsequent_indent="      "
            )


def _format_points(sign: str, points_by_hook: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for hook, points in points_by_hook.items():
        yield from _wrap_names(f"{sign} {hook}", points)


def _wrap_names(subject: str, points: Iterable[str]) -> Iterator[str]:
    yield from textwrap.wrap(
        f"{subject} at {', '.join(points)}", MAX_LINE_WIDTH, subsequent_indent="    "
    )
