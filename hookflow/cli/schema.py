"""`hookflow schema`: the JSON Schema of a pipeline file, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookflow.cli.output import echo_json, write_file

if TYPE_CHECKING:
    from pydantic import BaseModel


def schema(
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file, not to the terminal.")] = None,
) -> None:
    """Print the JSON Schema of a pipeline file, for editors.

    With it they complete and check the file. A pipeline names it in its first line: #:schema ./schema.json
    """
    if out is None:
        echo_json(schema_of_pipelines())
    else:
        write_file(out, json.dumps(schema_of_pipelines(), indent=1) + "\n")


def schema_of_pipelines() -> dict[str, Any]:
    """Return the schema, with what the points and the built-in hooks say of themselves."""
    from hookflow.graph.points import POINTS
    from hookflow.hooks.registry import BUILT_IN
    from hookflow.pipeline.json_schema import json_schema
    from hookflow.pipeline.use import refer

    points = {point.name: point.about for point in POINTS}
    pairs = {f"around_{pair}": f"from before_{pair} to {closing}" for pair, closing in POINTS.pairs.items()}
    hooks = {name: arguments(refer(use, Path(), None)) for name, use in BUILT_IN.items()}
    return json_schema(hooks, {**points, **pairs})


def arguments(hook: Any) -> type[BaseModel]:
    """Return the arguments of a hook's class as the fields of a model."""
    import inspect
    import typing

    from pydantic import ConfigDict, create_model

    from hookflow.hooks.inspect import about

    hints = typing.get_type_hints(hook.__init__, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints.get(name, Any), ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(hook).parameters.items()
    }
    return create_model(hook.__name__, __config__=ConfigDict(extra="forbid"), __doc__=about(hook), **fields)
