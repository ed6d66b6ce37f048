"""`hookflow test`: test a checkpoint."""

from __future__ import annotations

from pathlib import Path

from hookflow.cli.evaluate import CheckpointArgument, FormatOption, evaluate
from hookflow.cli.options import Format, Overrides, RunsFolder


def test(
    checkpoint: CheckpointArgument = None,
    format_: FormatOption = Format.text,
    set_: Overrides = None,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Test a checkpoint, and print the metrics.

    The data are the pipeline's test data. The pipeline is the one recorded with the run, and its hooks fire as in the
    test of a training: where there is an average of the weights, that is what is evaluated. The run itself is left as
    it is.

    Example: `hookflow test cifar:best`
    """
    evaluate("test", checkpoint, format_, set_ or [], dir)
