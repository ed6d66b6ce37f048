"""Shell completion: hooks, points, runs and keys of the files at hand.

The shell asks with every press, so a pipeline is read as plain TOML and nothing of it is checked. An error offers no
completions, since a shell has no place for a message.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from hookflow.text import printable

Offer = tuple[str, str]
"""A word, and in a few words what it means (or nothing); zsh and fish show both."""


def _offering(offers: Callable[[typer.Context], Iterable[Offer]]) -> Callable[[typer.Context, str], list[Offer]]:
    """Return a completion: those of the offers that go on from what is typed, and that a terminal can show."""

    def complete(ctx: typer.Context, incomplete: str) -> list[Offer]:
        fitting = []
        with suppress(Exception):  # a file that is no TOML yet, a folder that may not be read
            for word, meaning in offers(ctx):
                if word.startswith(incomplete) and printable(word) == word:
                    fitting.append((word, printable(meaning)))
        return fitting

    return complete


@_offering
def hooks(ctx: typer.Context) -> Iterator[Offer]:
    """Offer the hooks of the pipeline that the command line names."""
    yield from ((name, str(hook.get("use", ""))) for name, hook in _tables(ctx, "hooks").items())


@_offering
def points(ctx: typer.Context) -> Iterator[Offer]:
    """Offer the points of every run, and the pipeline's own."""
    from hookflow.graph.points import STANDARD

    yield from ((point.name, point.about) for point in STANDARD)
    yield from ((name, str(point.get("about", ""))) for name, point in _tables(ctx, "points").items())


@_offering
def runs(ctx: typer.Context) -> Iterator[Offer]:
    """Offer the ids of all runs, the newest first, and their names."""
    return _runs(Path(ctx.params.get("dir") or "runs"))


@_offering
def commands(ctx: typer.Context) -> Iterator[Offer]:
    """Offer the commands that a run takes."""
    from hookflow.events.commands import COMMANDS

    yield from ((command.name, command.about) for command in COMMANDS.values())


@_offering
def files_and_runs(ctx: typer.Context) -> Iterator[Offer]:
    """Offer pipeline files and runs; where none of them fits, the shell goes on with files."""
    yield from ((str(path), "") for folder in (Path(), Path("pipelines")) for path in sorted(folder.glob("*.toml")))
    yield from _runs(Path("runs"))


@_offering
def keys(ctx: typer.Context) -> Iterator[Offer]:
    """Offer the keys of the pipeline, ready for a value."""
    from hookflow.pipeline.source_map import flat

    yield from ((f"{key}=", f"now {value!r}") for key, value in flat(_pipeline(ctx)))


@_offering
def explained(ctx: typer.Context) -> Iterator[Offer]:
    """Offer what `hookflow explain` explains: keys, hooks and lists."""
    from hookflow.hooks.registry import HOOKS
    from hookflow.pipeline.json_schema import all_keys

    yield from [("points", "where hooks can fire"), ("hooks", "the available hooks"), ("schema", "for editors")]
    yield from ((name, "") for name in (*HOOKS.names(), *all_keys()))


@_offering
def keys_of_runs(ctx: typer.Context) -> Iterator[Offer]:
    """Offer the keys that runs are listed by."""
    from hookflow.monitor.index import FACTS, Index
    from hookflow.monitor.selection import known_keys

    rows = Index(Path(ctx.params.get("dir") or "runs")).refresh()
    yield from ((key, FACTS.get(key, "")) for key in known_keys(rows))


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
