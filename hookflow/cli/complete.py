"""Shell completion: hooks, points, runs and keys of the files at hand.

The shell asks with every press, so a pipeline is read as plain TOML and nothing of it is checked. An error offers no
completions, since a shell has no place for a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from hookflow.text import printable

Offer = tuple[str, str]
"""A word, and in a few words what it means (or nothing); zsh and fish show both."""


def hooks(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Offer the hooks of the pipeline that the command line names."""
    return _fitting(
        incomplete, lambda: ((name, str(hook.get("use", ""))) for name, hook in _tables(ctx, "hooks").items())
    )


def points(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Offer the points of every run, and the pipeline's own."""
    from hookflow.graph.points import STANDARD

    own = _fitting(
        incomplete, lambda: ((name, str(point.get("about", ""))) for name, point in _tables(ctx, "points").items())
    )
    return [*_fitting(incomplete, lambda: ((point.name, point.about) for point in STANDARD)), *own]


def runs(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Offer the ids of all runs, the newest first, and their names."""
    return _fitting(incomplete, lambda: _runs(Path(ctx.params.get("dir") or "runs")))


def files_and_runs(incomplete: str) -> list[Offer]:
    """Offer pipeline files and runs; where none of them fits, the shell goes on with files."""
    files = (path for folder in (Path(), Path("pipelines")) for path in sorted(folder.glob("*.toml")))
    return [
        *_fitting(incomplete, lambda: ((str(path), "") for path in files)),
        *_fitting(incomplete, lambda: _runs(Path("runs"))),
    ]


def keys(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Offer the keys of the pipeline, ready for a value."""
    from hookflow.pipeline.values import flat

    return _fitting(incomplete, lambda: ((f"{key}=", f"now {value!r}") for key, value in flat(_pipeline(ctx))))


def explained(incomplete: str) -> list[Offer]:
    """Offer what `hookflow explain` explains: keys, hooks and lists."""
    from hookflow.hooks.registry import HOOKS
    from hookflow.pipeline.json_schema import all_keys

    lists = [("points", "where hooks can fire"), ("hooks", "the available hooks"), ("schema", "for editors")]
    return _fitting(incomplete, lambda: [*lists, *((name, "") for name in (*HOOKS.names(), *all_keys()))])


def _fitting(incomplete: str, offers: Callable[[], Iterable[Offer]]) -> list[Offer]:
    """Return those of the offers that go on from what is typed, and that a terminal can show."""
    try:
        fitting = [(word, printable(meaning)) for word, meaning in offers() if word.startswith(incomplete)]
        return [offer for offer in fitting if printable(offer[0]) == offer[0]]
    except Exception:  # a file that is no TOML yet, a folder that may not be read
        return []


def _runs(root: Path) -> Iterator[Offer]:
    from hookflow.events.rundir import all_runs

    runs = all_runs(root)
    yield from ((run.id, run.path.parent.name) for run in runs)
    yield from ((name, "its newest run") for name in dict.fromkeys(run.path.parent.name for run in runs))


def _tables(ctx: typer.Context, name: str) -> dict[str, Any]:
    tables: dict[str, Any] = _pipeline(ctx).get(name, {})
    return tables


def _pipeline(ctx: typer.Context) -> dict[str, Any]:
    """Return, as plain TOML, the pipeline file that the command line names so far, or else the only one here."""
    import tomli

    from hookflow.pipeline.layers import read
    from hookflow.service.pipelines import only_pipeline

    # where an option is completed, click has left the arguments before it unread
    unread = (word for word in ctx.args if word.endswith(".toml") and Path(word).is_file())
    named = ctx.params.get("pipeline") or ctx.params.get("target") or next(unread, None)
    return tomli.loads(read(Path(named or only_pipeline())))
