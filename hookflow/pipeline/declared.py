"""What a pydantic model declares, as JSON Schema of draft 7 for a TOML file: the part that editors can follow.

TOML language servers know draft 7 and lose what stands beside a reference, so everything is written in place. TOML
has no null. A value of any type may be a `${…}` instead, and one schema with several types says so: an `anyOf` would
only be told to have failed.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from hookflow.pipeline.schema import Section

Schema = dict[str, Any]

IS_REFERENCE = r"^\$\{[^{}]*\}$"
"""A text that is nothing but one reference becomes the value, of whatever type."""
HAS_REFERENCE = r"\$\{"


def declared(model: type[BaseModel]) -> Schema:
    """Return the schema of a table that holds the fields of `model`."""
    schema = with_definitions(model)
    return _table(schema, schema.pop("$defs", {}))


def with_definitions(model: type[BaseModel]) -> Schema:
    """Return the schema of a model as pydantic makes it, with references to `$defs`."""
    return model.model_json_schema(schema_generator=_Generator)


def suggested(values: Mapping[str, str], about: str) -> Schema:
    """Return keys that make editors offer the values, each with its sentence if it has one, and refuse no others."""
    sentences = {"x-taplo": {"docs": {"enumValues": [*values.values()]}}} if any(values.values()) else {}
    return {"anyOf": [{"enum": [*values], "description": about, **sentences}, True]}


class _Generator(GenerateJsonSchema):
    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model; each field of a section is described by the sentence below it."""
        found, model = super().model_schema(schema), schema["cls"]
        if issubclass(model, Section):
            for name, sentence in sentences(model).items():
                found["properties"][model.model_fields[name].alias or name].setdefault("description", sentence)
        return found

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def sentences(section: type[Section]) -> dict[str, str]:
    """Return the sentence below each field of a section, in its source and in that of the sections it is made from."""
    found: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if issubclass(kind, Section):
            (written,) = ast.parse(dedent(inspect.getsource(kind))).body
            assert isinstance(written, ast.ClassDef)
            for field, below in pairwise(written.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[name] = inspect.cleandoc(text)
    return found


def _table(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Return a schema without references, titles and nulls."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].removeprefix("#/$defs/")] | schema
    plain: Schema = {}
    for key, inner in schema.items():
        match key, inner:
            case ("$ref" | "title", _) | ("default", None):
                continue
            case "properties" | "patternProperties", dict():
                plain[key] = {name: _value(value, definitions) for name, value in inner.items()}
            case (("items" | "additionalProperties"), {"type": _} | {"$ref": _} | {"oneOf": _}):
                plain[key] = _value(inner, definitions)
            case "oneOf" | "anyOf", list() if all(isinstance(_type(option, definitions), str) for option in inner):
                plain = _united([_table(option, definitions) for option in inner]) | plain
            case _:
                plain[key] = inner
    return plain | ({"additionalProperties": False} if "patternProperties" in plain else {})


def _type(schema: Schema, definitions: Mapping[str, Schema]) -> object:
    return _table(schema, definitions).get("type")


def _united(options: list[Schema]) -> Schema:
    """Return one schema for several, which are of different types, so that their keywords do not meet.

    Of two tables, one is to be written alone and the other holds such ones by name: any key that the first does not
    know is a name. Which keys must be there then depends on which of them it is, and is not told.
    """
    united = {key: value for option in options for key, value in option.items()}
    types = [option["type"] for option in options]
    if types == ["object", "object"]:
        (named,) = united.pop("patternProperties").values()
        del united["required"], named["required"]
        return united | {"additionalProperties": named}
    return united | {"type": types}


def _value(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Return the schema of a value, or of a `${…}` in its place."""
    plain = _table(schema, definitions)
    types = plain.get("type", [])
    types = [types] if isinstance(types, str) else types
    if values := plain.pop("enum", None):
        pattern = f"^({'|'.join(map(re.escape, values))})$|{HAS_REFERENCE}"
        return plain | {"pattern": pattern} | suggested(dict.fromkeys(values, ""), plain.get("description", ""))
    if "pattern" in plain:
        return plain | {"pattern": f"{plain['pattern']}|{HAS_REFERENCE}"}
    return plain if "string" in types else plain | {"type": [*types, "string"], "pattern": IS_REFERENCE}
