"""The JSON Schema of a pipeline file, generated from the declarations that validate it."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from hookflow.errors import Problem, UserError, nearest
from hookflow.pipeline.components import Section
from hookflow.pipeline.problems import type_words
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.source_map import as_toml

Schema = dict[str, Any]

IS_REFERENCE = r"^\$\{[^{}]*\}$"
"""A text that is nothing but one reference becomes the value, of whatever type."""
HAS_REFERENCE = r"\$\{"


def make_table_schema(model: type[BaseModel]) -> Schema:
    """Return the schema of a table that holds the fields of `model`."""
    schema = with_definitions(model)
    return _table(schema, schema.pop("$defs", {}))


def with_definitions(model: type[BaseModel]) -> Schema:
    """Return the schema of a model as pydantic makes it, with references to `$defs`."""
    return model.model_json_schema(schema_generator=_Generator)


def make_suggestion_schema(values: Mapping[str, str], about: str) -> Schema:
    """Return keys that make editors offer the values, and refuse no others.

    Each value is shown with its sentence, if it has one.
    """
    if any(values.values()):
        sentences = {"x-taplo": {"docs": {"enumValues": [*values.values()]}}}
    else:
        sentences = {}
    return {"anyOf": [{"enum": [*values], "description": about, **sentences}, True]}


class _Generator(GenerateJsonSchema):
    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model.

        Each field of a section is described by the sentence below it.
        """
        result = super().model_schema(schema)
        model = schema["cls"]
        if issubclass(model, Section):
            for name, sentence in read_field_sentences(model).items():
                result["properties"][model.model_fields[name].alias or name].setdefault(
                    "description", sentence
                )
        return result

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def read_field_sentences(section: type[Section]) -> dict[str, str]:
    """Return the sentence below each field of a section, in its source and in that of its bases."""
    result: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if issubclass(kind, Section):
            (written,) = ast.parse(dedent(inspect.getsource(kind))).body
            assert isinstance(written, ast.ClassDef)
            for field, below in pairwise(written.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                        value=ast.Constant(value=str(text))
                    ):
                        result[name] = " ".join(text.split())
    return result


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
            case "oneOf" | "anyOf", list() if all(
                isinstance(_table(option, definitions).get("type"), str) for option in inner
            ):
                plain = _merge_schemas([_table(option, definitions) for option in inner]) | plain
            case _:
                plain[key] = inner
    return plain | ({"additionalProperties": False} if "patternProperties" in plain else {})


def _merge_schemas(options: list[Schema]) -> Schema:
    """Return one schema for several of different types, so that their keywords do not meet.

    A table is either one component, or holds several by name: any key that the first does not
    know is a name. The required keys then depend on the kind, and are not declared.
    """
    united = {}
    for option in options:
        united.update(option)
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
    if isinstance(types, str):
        types = [types]
    if "const" in plain:  # one value among those of other types
        plain["enum"] = [plain.pop("const")]
    values = plain.pop("enum", None)
    if values:
        pattern = f"^({'|'.join(map(re.escape, values))})$|{HAS_REFERENCE}"
        return (
            plain
            | {"pattern": pattern}
            | make_suggestion_schema(dict.fromkeys(values, ""), plain.get("description", ""))
        )
    if "pattern" in plain:
        return plain | {"pattern": f"{plain['pattern']}|{HAS_REFERENCE}"}
    if "string" in types:
        return plain
    return plain | {"type": [*types, "string"], "pattern": IS_REFERENCE}


ANY_KEY = "*"
"""Placeholder of a name that the user chooses, and of an index in a list."""


@dataclass(frozen=True, slots=True)
class DeclaredKey:
    """A key as it is declared; undeclared parts are empty, and `keys` are those of a table."""

    key: str
    about: str
    type: str
    required: bool = False
    default: str = ""
    example: str = ""
    keys: tuple[str, ...] = ()


def find_key(key: str) -> DeclaredKey:
    """Return what is declared of a key such as `hooks.*.every`; "" is the file.

    Raises UserError if it is none.
    """
    if key:
        parts = key.split(".")
    else:
        parts = []
    schema = _make_pipeline_schema()
    required = False
    for k, part in enumerate(parts):
        keys = _keys(schema)
        if (
            not keys and type_words(schema, _make_pipeline_schema()["$defs"]) == "table"
        ):  # whatever keys one likes, as in args
            key = ".".join(parts[:k])
            break
        if part in keys:
            name = part
        else:
            name = ANY_KEY
        if name not in keys:
            raise UserError(
                Problem(f'a pipeline file has no key "{key}"', hint=_nearest(parts, k, [*keys]))
            )
        schema, required = keys[name]
    shapes = [schema, *_iter_shapes(schema)]
    about = next((str(shape["description"]) for shape in shapes if shape.get("description")), "")
    examples = (shape["examples"][0] for shape in shapes if shape.get("examples"))
    return DeclaredKey(
        key=key,
        about=" ".join(about.split()),
        type=type_words(schema, _make_pipeline_schema()["$defs"]) or "any value",
        required=required,
        default="" if schema.get("default") is None else as_toml(schema["default"]),
        example=next(map(as_toml, examples), ""),
        keys=tuple(_keys(schema)),
    )


@cache
def all_keys() -> tuple[str, ...]:
    """Return every key, as one may write it: names that the user chooses are `*`."""

    def walk(schema: Schema, above: str) -> Iterator[str]:
        for name, (below, _) in _keys(schema).items():
            yield f"{above}{name}"
            yield from walk(below, f"{above}{name}.")

    return tuple(walk(_make_pipeline_schema(), ""))


@cache
def _make_pipeline_schema() -> Schema:
    return with_definitions(Pipeline)


def _keys(schema: Schema) -> dict[str, tuple[Schema, bool]]:
    """Return the keys of a table, each with its schema and whether it must be given.

    `*` stands for those that the user chooses, or for the items of a list.
    """
    shapes = [*_iter_shapes(schema)]
    result: dict[str, tuple[Schema, bool]] = {}
    for shape in shapes:
        for name, inner in shape.get("properties", {}).items():
            result.setdefault(name, (inner, name in shape.get("required", ())))
    for shape in shapes:
        chosen = [
            *shape.get("patternProperties", {}).values(),
            shape.get("additionalProperties"),
            shape.get("items"),
        ]
        for inner in chosen:
            if isinstance(inner, dict) and any(
                "properties" in deep for deep in _iter_shapes(inner)
            ):
                result.setdefault(ANY_KEY, (inner, False))
    return result


def _iter_shapes(schema: Schema) -> Iterator[Schema]:
    reference = schema.get("$ref")
    if reference:
        yield from _iter_shapes(_make_pipeline_schema()["$defs"][reference.rpartition("/")[2]])
    elif options := schema.get("oneOf") or schema.get("anyOf"):
        for option in options:
            yield from _iter_shapes(option)
    else:
        yield schema


def _nearest(parts: list[str], k: int, beside: list[str]) -> str:
    """Return the right key that is nearest to a wrong one.

    It is a key of the same table, or one of another table that ends so.
    """
    above = "".join(f"{part}." for part in parts[:k])
    near = nearest(parts[k], beside)
    if near:
        return near.replace('"', f'"{above}', 1)
    same = [key for key in all_keys() if key.rpartition(".")[2] == parts[-1]]
    if len(same) > 1:
        return f"there are {', '.join(same[:4])}"
    far = nearest(same[0] if same else ".".join(parts), all_keys())
    return far or (
        f"there are {', '.join(above + name for name in beside)}" if beside else "it is no table"
    )


def json_schema(hooks: Mapping[str, type[BaseModel]], points: Mapping[str, str]) -> Schema:
    """Return the schema of a pipeline file.

    `hooks` are the arguments of hooks by their short name, each as a model with the hook's
    sentence; `points` are names with a sentence. They are offered; others are taken too. No key is
    required: it may be in the extended file.
    """
    schema = make_table_schema(Pipeline)
    arguments = {name: make_table_schema(model) for name, model in hooks.items()}
    hook = _find_entry_schema(schema["properties"]["hooks"])
    binding = hook["properties"]["points"]["items"]
    use = hook["properties"]["use"]
    use.update(
        make_suggestion_schema(
            {name: table.pop("description", "") for name, table in arguments.items()},
            use["description"],
        )
    )
    follows = _find_entry_schema(schema["properties"]["points"])["properties"]["follows"]
    for point in (binding, binding["properties"]["at"], follows):
        point.update(make_suggestion_schema(points, point.get("description", "")))
    _drop_required(schema)
    cases = []
    for name, table in arguments.items():
        _drop_required(table)
        # Without their type, these keywords say nothing about arguments that are a list.
        keywords = {key: value for key, value in table.items() if key != "type"}
        cases.append(
            {
                "if": {"properties": {"use": {"const": name}}},
                "then": {"properties": {"args": keywords}},
            }
        )
    hook.update({"if": {"required": ["use"]}, "then": {"allOf": cases}})
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A hookflow pipeline",
        **schema,
        "type": "object",
    }


def _find_entry_schema(table: Schema) -> Schema:
    (schema,) = table.get("patternProperties", {"": table.get("additionalProperties")}).values()
    return schema  # type: ignore[no-any-return]


def _drop_required(schema: Schema) -> None:
    """Remove which keys a table requires, but not for items of lists.

    A list is never merged with another one.
    """
    schema.pop("required", None)
    for group in ("properties", "patternProperties"):
        for inner in schema.get(group, {}).values():
            _drop_required(inner)
    each = schema.get("additionalProperties")
    if isinstance(each, dict):
        _drop_required(each)
