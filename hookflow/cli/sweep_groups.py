"""The tables below a sweep.

One is of each cross-validation, and one of the settings with the mean over their folds and seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hookflow.cli.output import columns, format_cell
from hookflow.metric_mode import Mode
from hookflow.monitor.selection import make_headings
from hookflow.numbers import number
from hookflow.pipeline.schema import FOLD_KEY
from hookflow.pipeline.source_map import as_toml
from hookflow.sweep.trial_groups import TrialGroup, best_of, last_of

MEAN_ROW_NAME = "mean ± sd"
"""The name of the row below the folds."""


def cross_validation_lines(group: TrialGroup, metric: str) -> Iterator[str]:
    """Yield the table of the folds of a setting.

    It has best and last of each, and the mean ± sample deviation.
    """
    if group.values:
        setting = [f"{key}={as_toml(value)}" for key, value in group.values.items()]
        yield "  ".join(setting)
    keys = [FOLD_KEY]
    if "run.seed" in group.trials[0].values:
        keys.append("run.seed")
    rows = [[*make_headings(keys), f"best.{metric}", f"last.{metric}"]]
    for trial in group.trials:
        cells = [str(trial.values.get(key, "-")) for key in keys]
        rows.append(
            [*cells, format_cell(best_of(trial), number), format_cell(last_of(trial), number)]
        )
    empty = [""] * (len(keys) - 1)
    rows.append([MEAN_ROW_NAME, *empty, format_cell(group.best), format_cell(group.last)])
    yield from columns(rows)


def format_settings(groups: Sequence[TrialGroup], metric: str, mode: Mode) -> list[str]:
    """Return a table with a row for each setting, the best mean first."""
    # A sweep that goes on may search more keys than its first trials had.
    keys = [*dict.fromkeys(key for group in groups for key in group.values)]
    rows = [[*make_headings(keys), f"best.{metric}", f"last.{metric}"]]
    for group in sorted(groups, key=lambda group: _rank(group, mode)):
        cells = []
        for key in keys:
            if key in group.values:
                cells.append(as_toml(group.values[key]))
            else:
                cells.append("-")
        rows.append([*cells, format_cell(group.best), format_cell(group.last)])
    return columns(rows)


def _rank(group: TrialGroup, mode: Mode) -> float:
    """Return a number by which settings are ranked.

    The best mean comes first, and a setting without a mean last.
    """
    if group.best is None or math.isnan(group.best.mean):
        return math.inf
    if mode == "max":
        return -group.best.mean
    return group.best.mean
