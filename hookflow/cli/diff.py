"""`hookflow diff`: the difference between two pipelines or two runs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hookflow.cli.options import FormatOption, PipelineOrRun, RunsFolder
from hookflow.cli.output import echo, echo_json

if TYPE_CHECKING:
    from hookflow.graph.difference import Change, Difference
    from hookflow.service.pipelines import Target

WIDTH = 100


def diff(
    a: PipelineOrRun,
    b: PipelineOrRun,
    format_: FormatOption = "text",
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Show what differs between two pipelines, or two runs.

    These are keys, hooks and where they fire, edges, and the order in which hooks fire that both have. A run is
    compared by the pipeline and the plan that it was started with.

    Exits with 0 if nothing differs, with 1 if something does.

    Example: `hookflow diff pipelines/cifar.toml cifar` compares the file with its newest run.
    """
    from hookflow.graph.difference import difference
    from hookflow.service.pipelines import open_target

    old, new = open_target(a, runs=dir), open_target(b, runs=dir)
    result = difference((old.loaded.public, old.plan), (new.loaded.public, new.plan))
    if format_ == "json":
        echo_json(asdict(result))
    else:
        echo("\n".join(difference_lines(old, new, result)))
    raise typer.Exit(1 if result else 0)


def difference_lines(old: Target, new: Target, result: Difference) -> Iterator[str]:
    """Yield what differs, as `hookflow diff` shows it."""
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
        old, new = _written(change.old), _written(change.new)
        if width + len(old) + len(new) + 8 <= WIDTH:
            yield f"{change.key:<{width}}  {old} → {new}"
        else:
            yield from (change.key, f"  - {old}", f"  + {new}")


def _at(points: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    for subject, names in points:
        yield from textwrap.wrap(f"{subject} at {', '.join(names)}", WIDTH, subsequent_indent="    ")


def _order(sign: str, hooks: Sequence[str]) -> list[str]:
    return textwrap.wrap(f"  {sign} {' → '.join(hooks)}", WIDTH, subsequent_indent="      ")


def _written(value: Any) -> str:
    from hookflow.pipeline.source_map import as_toml

    return "nothing" if value is None else as_toml(value)
