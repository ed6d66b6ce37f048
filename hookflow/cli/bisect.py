"""`hookflow bisect`: which pair of hooks makes a shuffled order end differently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli.options import Format, Only, Overrides, PipelineFile, Without
from hookflow.cli.output import echo, echo_json, exits_after_traceback, warn_of

if TYPE_CHECKING:
    from hookflow.graph.plan import Plan
    from hookflow.pipeline.load import Loaded
    from hookflow.trials.commute import Bisected

SEEDS = range(8)
"""The orders that are tried where none is named."""


def bisect(
    pipeline: PipelineFile,
    shuffle: Annotated[
        int | None,
        typer.Option(
            metavar="SEED",
            help="The order whose result differs, as for `run --shuffle`; seeds 0 to 7 in turn if left out.",
            show_default=False,
        ),
    ] = None,
    set_: Overrides = None,
    without: Without = None,
    only: Only = None,
    format_: Annotated[Format, typer.Option("--format", "-f", help="How to show it.")] = Format.text,
) -> None:
    """Find a pair of hooks that makes a shuffled order differ.

    The declared order and the shuffled one are run for a few iterations from the same seed, as by
    `hookflow check --commute`, and so are orders halfway between the two, until two hooks that change places are left.
    Nothing is kept. To try every pair, and not only those that a seed turns, use `hookflow check --commute`.

    Exits with 0 if no difference is seen, with 1 if there is one.

    Example: `hookflow bisect pipelines/cifar.toml --shuffle 3`
    """
    from hookflow.cli.pipelines import read_pipeline, valid_plan
    from hookflow.trials import commute

    loaded = read_pipeline(pipeline, set_ or [], without=without or [], only=only or [])
    plan = valid_plan(loaded)
    with exits_after_traceback():
        seeds = SEEDS if shuffle is None else [shuffle]
        found = commute.bisect(loaded, plan, seeds, loaded.source.parent, warn_of)
    if format_ is Format.json:
        echo_json(_json(loaded, plan, found))
    else:
        echo("\n".join(_lines(loaded, plan, found, "seeds 0 to 7" if shuffle is None else f"seed {shuffle}")))
    raise typer.Exit(1 if found.step else 0)


def _lines(loaded: Loaded, plan: Plan, found: Bisected, asked: str) -> Iterator[str]:
    from hookflow.cli.commute_report import ways
    from hookflow.numbers import counted

    trials = f"{counted(found.trials, 'trial')}, {found.seconds:.1f} s"
    turns = counted(len(found.turned), "pair")
    if not found.step:
        yield f"{loaded.source}: no difference seen; {asked} turned {turns} of hooks ({trials})"
        return
    which = "it" if len(found.turned) == 1 else "at least one"
    yield f"{loaded.source}: seed {found.seed} turns {turns} of hooks, and {which} makes a difference ({trials})"
    for pair in found.step.pairs:
        yield f"  {' → '.join(pair.hooks)} at {pair.point} is declared; the other way round, the results"
    yield f"  {found.step.difference}"
    yield "state which is right:"
    yield from (f"  {way}" for way in ways(plan, found.step))
    if others := len({*found.turned} - {*found.step.pairs}):
        yield f"then run it again: {counted(others, 'other pair')} may make a difference too"


def _json(loaded: Loaded, plan: Plan, found: Bisected) -> dict[str, object]:
    from hookflow.cli.commute_report import step_to_json

    return {
        "file": str(loaded.source),
        "seed": found.seed,
        "turned": len(found.turned),
        "step": step_to_json(plan, found.step) if found.step else None,
        "trials": found.trials,
        "seconds": round(found.seconds, 3),
    }
