"""hookflow runs: what has been run, and how it went."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from hookflow.cli.options import RunsFolder
from hookflow.cli.output import columns, echo

if TYPE_CHECKING:
    from hookflow.monitor.overview import Overview

HEADS = ("id", "name", "state", "epoch", "iter", "best", "age", "data")


def runs(
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """List the runs, the newest first."""
    from hookflow.events.rundir import all_runs
    from hookflow.monitor.overview import read_overview

    unreadable: list[str] = []
    clock = time.time()
    every = [read_overview(run, clock) for run in all_runs(dir, unreadable.append)]
    echo("\n".join(columns([HEADS, *(_row(seen, clock) for seen in every)])) if every else f"no runs in {dir}")
    for why in unreadable:
        echo(why)
    for seen in every:
        if seen.health.condition == "unreadable":
            echo(f"{seen.run.id} is unreadable: {seen.health.sentence}")
        for why in seen.refused:
            echo(f"{seen.run.id}: {why}")


def _row(seen: Overview, clock: float) -> tuple[str, ...]:
    """Return the cells; "-" for what is not known, so that columns can be cut out in a pipe."""
    from hookflow.monitor.formatting import age, number, out_of
    from hookflow.monitor.monitored import in_order

    state = seen.state
    name = next(iter(in_order(state.metrics.best, seen.plan)), "")
    return (
        seen.run.id,
        seen.run.path.parent.name,
        f"{seen.health.glyph} {seen.health.condition}" + f" ({state.ranks.world} ranks)" * (state.ranks.world > 1),
        out_of(state.epoch, state.run.get("max_epochs")),
        str(state.it),
        f"{name}={number(state.metrics.best[name].value)}" if name else "-",
        age(clock - state.now) if state.now else "-",
        "SYNTHETIC" if state.synthetic else "real" if state.run.get("data") else "-",
    )
