"""`hookflow run FILE --dry-run`: everything once, a short report, and nothing is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hookflow.cli.output import echo, exits_after_traceback, warn_of
from hookflow.numbers import counted

if TYPE_CHECKING:
    from hookflow.graph.plan import Plan
    from hookflow.pipeline.load import Loaded
    from hookflow.trials.dry_run import DryRun


def print_dry_run(loaded: Loaded, plan: Plan) -> None:
    """Execute a dry run and print what it has found; exit with 1 when something raised, with 130 after Ctrl-C."""
    from hookflow.trials.dry_run import dry_run

    with exits_after_traceback():
        found = dry_run(loaded, plan, loaded.source.parent, warn_of)
    echo("\n".join(_lines(loaded, plan, found)))


def _by_reason(found: DryRun) -> dict[str, list[str]]:
    """Return what has not fired, as "hook at point", by the reason."""
    reasons: dict[str, list[str]] = {}
    for silent in found.silent:
        reasons.setdefault(silent.why, []).append(f"{silent.hook} at {silent.point}")
    return reasons


def _lines(loaded: Loaded, plan: Plan, found: DryRun) -> Iterator[str]:
    run = loaded.pipeline.run
    yield f"{loaded.source}: dry run passed in {found.seconds:.1f} s; nothing was kept"
    yield f"  {'model':<10} {found.model}, {found.params:,} parameters, on {found.device} in {found.precision}"
    for split, data in found.data.items():
        synthetic = "SYNTHETIC " * data["synthetic"]
        size = f" of {data['batch_size']:,}" if data["batch_size"] else ""
        yield f"  {split:<10} {synthetic}{data['name']}, {counted(data['batches'], 'batch')}{size}"
    of_each = counted(found.iters_per_epoch, "iteration")
    epochs = f"{counted(run.max_epochs, 'epoch')} of {of_each}: " if run.max_epochs else ""
    yield f"  {'length':<10} {epochs}{counted(found.max_iters, 'iteration')}"
    yield f"  {'fired':<10} {found.fired} of {len(plan.bindings)} bindings, at {counted(found.points, 'point')}"
    for k, (why, silent) in enumerate(_by_reason(found).items()):
        yield f"  {'' if k else 'not fired':<10} {why}: {', '.join(silent)}"
    yield f"  {'checkpoint':<10} written and read back, {found.checkpoint:,} bytes"
