"""`hookflow.load`: a pipeline from a file or from a dict, checked."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.plan import Plan
from hookflow.pipeline.layers import Override, in_python
from hookflow.pipeline.load import Loaded, dump
from hookflow.pipeline.source_map import as_toml, split_key
from hookflow.pipeline.use import ObjectRegistry, use_objects
from hookflow.service.findings import Findings
from hookflow.service.pipelines import read_pipeline, valid_plan
from hookflow.sweep.sweep import check_sweep

if TYPE_CHECKING:
    import networkx


def load(
    source: str | os.PathLike[str] | Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> "Pipeline":
    """Load a pipeline: a file, or a dict of what a file would say.

    `overrides` go over it: `{"run.max_epochs": 2}`. In a dict (and in `overrides`), an object may
    stand where a file has `use`: a model that exists, a DataLoader or a dataset, a function or an
    instance as a hook. Raises UserError with everything that is wrong.
    """
    objects = ObjectRegistry()
    written = [_override(key, value, objects) for key, value in (overrides or {}).items()]
    if isinstance(source, Mapping):
        tables = objects.replace(source)
    else:
        tables = Path(source)
    with use_objects(objects):
        return Pipeline(read_pipeline(tables, written), objects)


class Pipeline:
    """A pipeline whose keys are valid, as `hookflow.load` returns it.

    Nothing of it has been built yet.
    """

    def __init__(self, loaded: Loaded, objects: ObjectRegistry) -> None:
        self.loaded = loaded
        self._objects = objects

    @property
    def name(self) -> str:
        """The name of its runs: `run.name`."""
        return self.loaded.pipeline.run.name

    @property
    def objects(self) -> tuple[str, ...]:
        """The texts that stand for objects, as its runs record them: "<object Net>"."""
        return tuple(self._objects.makers)

    @cached_property
    def plan(self) -> Plan:
        """Which hooks fire where, and in which order.

        Raises UserError with everything that is wrong with the hooks. `plan.order` is a dict of
        hooks by point, `str(plan)` has a line for each point.
        """
        with self.in_use():
            return valid_plan(self.loaded)

    def graph(self, point: str | None = None, *, dropped: bool = False) -> "networkx.MultiDiGraph":
        """Return the graph of the hooks at a point, or at all points.

        `Plan.graph` says what it holds. With `dropped` it has the data flows that gave way, too.
        Raises UserError for an unknown point, and with everything that is wrong with the hooks.
        """
        return self.plan.graph(point, dropped=dropped)

    def check(self) -> list[Problem]:
        """Do what `hookflow check` does, and return all that is doubtful.

        Raises UserError with everything that is wrong. That is what the command prints: warnings,
        ambiguous orders, data flow that gave way to edges, and notes.
        """
        with self.in_use():
            check_sweep(self.loaded)
            return Findings.of(self.loaded, self.plan).problems

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Make the objects of the pipeline available to this thread."""
        with use_objects(self._objects):
            yield

    def __str__(self) -> str:
        """Return the whole pipeline as TOML, as its runs record it."""
        return dump(self.loaded.public, Where(str(self.loaded.source)))

    def __repr__(self) -> str:
        return f"<Pipeline {self.name} of {self.loaded.source}>"


def _override(key: str, value: Any, objects: ObjectRegistry) -> Override:
    """Return the override that `--set` would make of a key and a value.

    It has the place to show where it is wrong.
    """
    try:
        path, _ = split_key(f"{key}=")
    except ValueError:
        raise UserError(
            Problem(f'"{key}" is not a key', Where("overrides"), 'write e.g. "run.seed"')
        ) from None
    return in_python(f"{key}={as_toml(objects.replace(value, path))}")
