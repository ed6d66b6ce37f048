"""The JSON Schema of a pipeline file, for editors: from the same declarations that the file is checked with."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from hookflow.pipeline.declared import Schema, declared, suggested
from hookflow.pipeline.default_hooks import DEFAULT_HOOKS
from hookflow.pipeline.overrides import OTHER_LENGTH
from hookflow.pipeline.schema import Pipeline


def json_schema(hooks: Mapping[str, type[BaseModel]], points: Mapping[str, str]) -> Schema:
    """Return the schema of a pipeline file.

    `hooks` are the arguments of hooks by their short name, each as a model with the hook's sentence; `points` are
    names with a sentence. They are offered; others are taken too. What a file must hold may as well stand in one that
    it extends, so a file with `extends` need not hold it.
    """
    schema = declared(Pipeline)
    arguments = {name: declared(model) for name, model in hooks.items()}
    hook = _each(schema["properties"]["hooks"])
    binding = hook["properties"]["points"]["items"]
    _offer(hook["properties"]["use"], {name: table.pop("description", "") for name, table in arguments.items()})
    for point in (binding, binding["properties"]["at"], _each(schema["properties"]["points"])["properties"]["follows"]):
        _offer(point, points)
    epochs, iters = OTHER_LENGTH
    schema["properties"]["run"]["not"] = {"required": [epochs, iters]}
    needed = _take_needs(schema)
    needed["properties"]["run"] |= {"if": {"not": {"required": [iters]}}, "then": {"required": [epochs]}}
    arguments_needed = {name: needs for name, table in arguments.items() if (needs := _take_needs(table))}
    hooks_needed = needed["properties"]["hooks"]["patternProperties"]
    ((names, needs),) = hooks_needed.items()
    others = f"(?!({'|'.join(DEFAULT_HOOKS)})$)"  # a default hook is there without its `use`
    needed["properties"]["hooks"]["patternProperties"] = {names.replace("^", f"^{others}", 1): needs}
    _each(needed["properties"]["hooks"]).update(_by_use(arguments_needed, must=True))
    hook.update(_by_use(arguments))
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A hookflow pipeline",
        **schema,
        "type": "object",
        "if": {"not": {"required": ["extends"]}},
        "then": needed,
    }


def _each(table: Schema) -> Schema:
    """Return the schema of every value of a table whose keys the user chooses."""
    (schema,) = table.get("patternProperties", {"": table.get("additionalProperties")}).values()
    return schema  # type: ignore[no-any-return]


def _offer(schema: Schema, values: Mapping[str, str]) -> None:
    schema.update(suggested(values, schema.get("description", "")))


def _take_needs(schema: Schema) -> Schema:
    """Take what is required out of a table, and of the tables in it, and return it as a schema of its own.

    Items of lists keep theirs: a list is never merged with another one.
    """
    needs: Schema = {"required": required} if (required := schema.pop("required", [])) else {}
    for group in ("properties", "patternProperties"):
        inner = {name: found for name, value in schema.get(group, {}).items() if (found := _take_needs(value))}
        needs |= {group: inner} if inner else {}
    if isinstance(each := schema.get("additionalProperties"), dict) and (found := _take_needs(each)):
        needs["additionalProperties"] = found
    return needs


def _by_use(args: Mapping[str, Schema], must: bool = False) -> Schema:
    """Return keys that hold a hook's `args` against those of what it uses, if they are a table."""
    needed = {"required": ["args"]} if must else {}
    cases = [
        {"if": {"properties": {"use": {"const": name}}}, "then": {**needed, "properties": {"args": _any_type(schema)}}}
        for name, schema in args.items()
    ]
    return {"if": {"required": ["use"]}, "then": {"allOf": cases}}


def _any_type(schema: Schema) -> Schema:
    """Return the schema for a value that may be no table, too: its keywords then say nothing."""
    return {key: value for key, value in schema.items() if key != "type"}
