"""Pipelines of hooks alone, for `hookflow.attach`.

The model, the optimizer and the data are those of a user's loop.
"""

from collections.abc import Iterator
from typing import Any

from hookflow.errors import Problem, Where
from hookflow.pipeline.schema import Pipeline, RunSection
from hookflow.pipeline.source_map import SourceMap
from hookflow.pipeline.use import LOOP_OBJECT

SECTIONS_OF_OWN_LOOP = ("model", "optimizer", "task", "data")
"""The sections of which a pipeline of hooks alone has none."""

RUN_KEYS = ("name", "seed", "max_iters", "min_iters", "dir", "default_hooks", "budget", "on_nan")
"""The keys of [run] that a pipeline of hooks alone may have."""

OTHER_SECTIONS = {
    "distributed": "the loop starts its ranks and wraps its model itself",
    "sweep": "a sweep trains pipelines that have a model",
}
"""The other sections that it may not have, and why."""


def complete_attached(tree: dict[str, Any], places: SourceMap) -> Iterator[Problem]:
    """Fill in the sections of a pipeline of hooks alone, in place.

    Yields a problem for each setting that only hookflow's own loop can follow. The length of the
    loop may be unknown: then it is one epoch of unknown iterations.
    """
    run = tree.get("run")
    if not isinstance(run, dict) or any(section in tree for section in SECTIONS_OF_OWN_LOOP):
        return
    for key in run:
        if key in RunSection.model_fields and key not in RUN_KEYS:
            message = f"run.{key} is for hookflow's own loop, and this pipeline has no [model]"
            yield Problem(
                message, places.of(f"run.{key}"), "in a loop of your own, its code does that"
            )
    if run.get("on_nan") == "skip":
        message = (
            'on_nan = "skip" leaves out steps of hookflow\'s own loop, and this pipeline has no'
            " [model]"
        )
        yield Problem(message, places.of("run.on_nan"), 'write "raise" or "ignore"')
    for section, why in OTHER_SECTIONS.items():
        if section in tree:
            yield Problem(
                f"[{section}] is not for a pipeline of hooks alone", places.of(section), why
            )
    if "max_iters" not in run:
        run.setdefault("max_epochs", 1)
    part = {"use": LOOP_OBJECT}
    parts: dict[str, Any] = {
        "model": part,
        "optimizer": part,
        "task": part,
        "data": {"train": part, "val": part},
    }
    for section, table in parts.items():
        tree[section] = table
        places.put((section,), Where("the loop"))


def is_attached(pipeline: Pipeline) -> bool:
    """Return whether a pipeline has hooks for a user's own loop, and neither model nor data."""
    return pipeline.task.use == LOOP_OBJECT


def no_loop(where: Where | None) -> Problem:
    """Return the problem that a pipeline of hooks alone cannot be trained by itself.

    Its [run] is at `where`.
    """
    message = (
        "this pipeline has no [model], [optimizer] and [data]: its hooks are for a loop of your own"
    )
    hint = "start the program that calls hookflow.attach, or write the three sections"
    return Problem(message, where, hint)
