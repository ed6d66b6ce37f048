"""Markdown for pages that are made from declarations: tables, code, types and defaults in the usual words."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from pydantic import BaseModel

from hookflow.pipeline.units import PATTERN

TYPES = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "array": "list", "object": "table"}
CODE_WITH_BAR = re.compile(r"`([^`]*\|[^`]*)`")
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table. A bar within code is written such that GitHub and MkDocs both show it as one."""
    lines = [[*head], ["---" for _ in head], *([_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return CODE_WITH_BAR.sub(_as_html, text).replace("|", "\\|")


def _as_html(found: re.Match[str]) -> str:
    return f"<code>{escape(found[1], quote=False).replace('|', '&#124;')}</code>"


def slug(heading: str) -> str:
    """Return the anchor that Markdown gives a heading."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def type_words(schema: Mapping[str, Any], anchors: Mapping[str, str], definitions: Mapping[str, Any]) -> str:
    """Return the type that a JSON Schema describes, as Markdown; null is left out, since TOML has none.

    `anchors` says which of the `definitions` have a heading to link to.
    """

    def words(schema: Mapping[str, Any]) -> str:
        match schema:
            case {"$ref": ref}:
                name = ref.rpartition("/")[2]
                return f"[table](#{anchors[name]})" if name in anchors else words(definitions[name])
            case {"anyOf": options} | {"oneOf": options}:
                return " or ".join(dict.fromkeys(filter(None, map(words, options))))
            case {"enum": values}:
                return f"one of {', '.join(code(toml(value)) for value in values)}"
            case {"const": value}:
                return code(toml(value))
            case {"pattern": pattern} if pattern == PATTERN:
                return "[amount](#amounts)"
            case {"type": list(kinds)}:
                return " or ".join(dict.fromkeys(words({**schema, "type": kind}) for kind in kinds))
            case {"type": "array", "items": {"type": _} | {"$ref": _} | {"oneOf": _} as items}:
                return f"list of {words(items)}"
            case {"type": "object", "additionalProperties": {"$ref": _} as items}:
                return _several(words(items))
            case {"type": "object", "patternProperties": dict(properties)}:
                return _several(words(next(iter(properties.values()))))
            case {"type": "null"}:
                return ""
            case {"type": str(kind)}:
                bounded = BOUNDS if kind in ("integer", "number") else {}
                bounds = [f"{sign} {_bound(schema[bound])}" for bound, sign in bounded.items() if bound in schema]
                return code(f"{TYPES[kind]} {', '.join(bounds)}".strip())
        return "any"

    return words(schema)


def _several(table: str) -> str:
    return f"{table.replace('[table]', '[tables]')} by name"


def _bound(bound: float) -> str:
    """Return a bound as people write it: a large power of two as that."""
    large = isinstance(bound, int) and bound > 1 << 32 and bound.bit_count() == 1
    return f"2^{bound.bit_length() - 1}" if large else f"{bound:g}"


def toml(value: Any) -> str:
    """Return a value as TOML writes it; nothing for None, nor for a table that is all defaults."""
    match value:
        case None:
            return ""
        case BaseModel():
            return toml(value.model_dump(exclude_defaults=True)) if value.model_fields_set else ""
        case dict():
            return f"{{ {', '.join(f'{key} = {toml(item)}' for key, item in value.items())} }}" if value else "{}"
        case list() | tuple():
            return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def rows_of_fields(
    model: type[BaseModel], sentences: Mapping[str, str], anchors: Mapping[str, str]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, type, default and sentence of every field of a model, as Markdown."""
    schema = model.model_json_schema()
    for name, field in model.model_fields.items():
        key = field.alias or name
        declared = schema["properties"][key]
        default = "required" if field.is_required() else toml(field.get_default(call_default_factory=True))
        said = sentence(sentences.get(name) or declared.get("description", ""))
        examples = " or ".join(code(toml(example)) for example in declared.get("examples", ()))
        words = type_words(declared, anchors, schema.get("$defs", {}))
        shown = f"**{default}**" if field.is_required() else code(default)
        yield key, words, shown, f"{said} Example: {examples}." if examples else said


def sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!")) or not text else ".")


def doc(thing: Any) -> str:
    return inspect.getdoc(thing) or ""
