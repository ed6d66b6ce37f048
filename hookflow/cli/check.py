"""`hookflow check`: validate a pipeline and report its warnings."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookflow.cli import options
from hookflow.cli.output import columns, echo, echo_json, exit_after_traceback, warn_of
from hookflow.errors import Problem, UserError
from hookflow.numbers import size
from hookflow.text import print_error

if TYPE_CHECKING:
    from hookflow.cli.observe_report import ObservationReport
    from hookflow.graph.plan import Plan
    from hookflow.pipeline.load import Loaded
    from hookflow.service.findings import Findings


OBSERVE_HELP = (
    "Train a few iterations, and report what each hook reads and writes without declaring it."
)
WRITE_HELP = "With --observe: add the missing declarations to the file."
COMMUTE_HELP = (
    "Fire every pair of unordered hooks both ways, in short runs, to see whether their order"
    " matters."
)
OFFLOAD_HELP = "Report which hooks may fire beside the training, and what keeps the others."


def check(
    pipeline: options.PipelineFile,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 on a warning or an ambiguous order.")
    ] = False,
    observe: Annotated[bool, typer.Option("--observe", help=OBSERVE_HELP)] = False,
    write: Annotated[bool, typer.Option("--write", help=WRITE_HELP)] = False,
    commute: Annotated[bool, typer.Option("--commute", help=COMMUTE_HELP)] = False,
    offload: Annotated[bool, typer.Option("--offload", help=OFFLOAD_HELP)] = False,
    format_: options.FormatOption = "text",
    set_: options.Overrides = None,
    without: options.Without = None,
    only: options.Only = None,
    shuffle: options.Shuffle = None,
    no_import: options.NoImport = False,
) -> None:
    """Validate a pipeline, summarise it, and report its warnings.

    `check` validates the keys, the hooks with their arguments, order and triggers, and the names of
    all components. It validates names and plain types of their arguments, where the source shows a
    signature. It builds nothing: `hookflow run --dry-run` does, and finds data without batches.
    Hooks are imported, so their files run; with `--no-import` none of them runs, and the hooks are
    listed.

    `--observe` trains in a temporary folder: two epochs of two iterations, with validations and one
    checkpoint. Each hook fires wherever it can, whatever its trigger. Later effects of a hook are
    not seen, nor are writes to files, globals or other things outside of the run.

    `--commute` repeats such a run from the same seed, each time with some pairs of hooks in the
    other order. It compares weights, gradients, optimizers, learning rates, random generators,
    metrics, logged scalars, checkpoints, attributes of hooks, and files in the run directory. Pairs
    that differ are named; ambiguous pairs without a difference are no longer reported. It takes
    about as many short runs as hooks fire at one point: at most 200, or ten minutes.

    `--offload` lists the hooks: those that are offloaded, those that could be, and for each other
    one the slot, edge or line of its source that keeps it in the training thread. A short run in a
    temporary folder measures the copies that a firing needs: their bytes, and their time in the
    training thread. JSON is without them.

    Exits with 0 if the pipeline is valid and with 2 if it is not; with `--strict`, with 1 if it has
    warnings, an ambiguous order, or a pair that differs.
    """
    as_json = format_ == "json"
    trains = observe or commute
    if write and not observe:
        raise UserError(Problem("--write needs --observe: what is missing is what was seen"))
    if as_json and trains:
        raise UserError(
            Problem("--format json is for editors, and --observe and --commute report in text")
        )
    if no_import and trains:
        raise UserError(Problem("--no-import runs nothing, --observe and --commute do"))
    from hookflow.service.pipelines import read_pipeline, valid_plan

    try:
        loaded = read_pipeline(
            pipeline, set_ or (), without=without or (), only=only or (), imports=not no_import
        )
        plan = valid_plan(loaded, shuffle=shuffle, imports=not no_import)
        result = _check_pipeline(
            loaded, plan, observe=observe, commute=commute, imports=not no_import
        )
    except UserError as error:
        if not as_json:
            raise
        echo_json({"file": str(pipeline), "valid": False, "problems": error.to_json()})
        raise typer.Exit(2) from None
    if as_json:
        echo_json(_json_report(result, offload=offload, imports=not no_import))
    else:
        echo("\n".join(_text_report(result, offload=offload, written=write, imports=not no_import)))
    if write and result.observed is not None:
        for line in result.observed.write():
            echo(line)
    if strict and result.is_doubtful():
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings in a pipeline.

    Where a short run has watched its hooks, they include what the hooks were seen to touch.
    """

    findings: "Findings"
    observed: "ObservationReport | None"

    def is_doubtful(self) -> bool:
        """Return whether there are warnings, ambiguous pairs, or undeclared observed slots."""
        if self.findings.doubtful:
            return True
        return self.observed is not None and self.observed.doubtful


def _check_pipeline(
    loaded: "Loaded", plan: "Plan", *, observe: bool, commute: bool, imports: bool
) -> CheckResult:
    """Return what is found in a pipeline whose plan is valid, after the short runs that are wanted.

    Raises UserError where its sweep or its initial weights are wrong.
    """
    from hookflow.service.findings import Findings
    from hookflow.sweep.sweep import check_sweep

    observed = None
    if observe:
        from hookflow.cli.observe_report import ObservationReport
        from hookflow.graph.observation import with_observed

        observed = ObservationReport.of(loaded, plan)
        # From here on each pair of hooks is judged by the slots that it was seen to touch.
        plan = with_observed(plan, observed.observed.seen)
    check_sweep(loaded, imports=imports)
    if imports:
        _check_initial_weights(loaded)
    findings = Findings.of(loaded, plan, imports=imports)
    if commute:
        from hookflow.trials.commute import run_commute_trials as fire_both_ways

        with exit_after_traceback():
            commuted = fire_both_ways(loaded, plan, loaded.source.parent, warn_of)
        findings = replace(findings, commuted=commuted)
    return CheckResult(findings, observed)


def _check_initial_weights(loaded: "Loaded") -> None:
    """Check that weights fit the models that begin with them, and print what cannot be known.

    Raises UserError.
    """
    if not any(model.begins_with for model in loaded.pipeline.models.values()):
        return
    from hookflow.runner.builder.initial_weights import check_fit

    for line in check_fit(loaded, loaded.source.parent):
        print_error(f"unknown: {line}")


def _json_report(result: CheckResult, *, offload: bool, imports: bool) -> dict[str, Any]:
    """Return the findings for editors.

    They have the state of each hook's offloading where that is wanted.
    """
    from hookflow.service.findings import check_offloading

    findings = result.findings
    report = findings.to_json()
    if offload:
        states, _ = check_offloading(findings.loaded, findings.plan, imports=imports)
        report["offload"] = states
    return report


def _text_report(result: CheckResult, *, offload: bool, written: bool, imports: bool) -> list[str]:
    """Return the lines of the report for a terminal."""
    findings = result.findings
    width = shutil.get_terminal_size().columns
    lines = list(findings.lines(width))
    if result.observed is not None:
        lines += result.observed.lines(findings.ambiguous, width, written=written)
    if offload:
        lines.append("")
        lines += _format_offload_table(findings.loaded, findings.plan, width, imports=imports)
    return lines


def _format_offload_table(
    loaded: "Loaded", plan: "Plan", width: int, *, imports: bool
) -> Iterator[str]:
    """Yield a row for each hook: its firings' copies, and whether it fires beside the training."""
    from hookflow.service.findings import check_offloading

    states, offloaded_plan = check_offloading(loaded, plan, imports=imports)
    copies: dict[str, str] = {}
    if imports:
        copies = _describe_copies(loaded, offloaded_plan)
    rows = [("hook", "copies", "beside the training")]
    for hook, state in states.items():
        rows.append((hook, copies.get(hook, ""), state))
    yield from columns(rows, "  ", width)


def _describe_copies(loaded: "Loaded", plan: "Plan") -> dict[str, str]:
    """Return the bytes and the time of the copies of each offloaded hook.

    A short run has measured them.
    """
    if not any(hook.queue for hook in plan.hooks):
        return {}
    from hookflow.trials.temporary_run import measure_copies

    # Hooks may print, and stdout is for the report alone.
    with exit_after_traceback(), redirect_stdout(sys.stderr):
        copies = measure_copies(loaded, plan, loaded.source.parent, warn_of)
    return {hook: f"{size(num_bytes)} in {ms:.2g} ms" for hook, (num_bytes, ms) in copies.items()}
