"""Markdown for pages that are made from declarations: tables, code,
types and defaults in the usual words.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from pydantic import BaseModel

from hookflow.pipeline import problems
from hookflow.pipeline.amounts import AMOUNT_PATTERN, TRIGGER_PATTERN
from hookflow.pipeline.source_map import as_toml
from hookflow.text import first_paragraph

CODE_WITH_BAR = re.compile(r"`([^`]*\|[^`]*)`")


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table.

    A bar within code is written such that GitHub and MkDocs both show it as one.
    """
    lines = [[*head], ["---" for _ in head], *([_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return CODE_WITH_BAR.sub(_as_html, text).replace("|", "\\|")


def _as_html(match: re.Match[str]) -> str:
    return f"<code>{escape(match[1], quote=False).replace('|', '&#124;')}</code>"


def slug(heading: str) -> str:
    """Return the anchor that Markdown gives a heading."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def type_words(
    schema: Mapping[str, Any], anchors: Mapping[str, str], definitions: Mapping[str, Any]
) -> str:
    """Return the type that a JSON Schema describes, as Markdown; null is left out, since TOML has
    none.

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
            case {"pattern": pattern} if pattern in (AMOUNT_PATTERN, TRIGGER_PATTERN):
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
            case {"type": str()}:
                return code(problems.type_words(schema))
        return "any"

    return words(schema)


def _several(table: str) -> str:
    return f"{table.replace('[table]', '[tables]')} by name"


def toml(value: Any) -> str:
    """Return a value as TOML writes it; nothing for None, nor for a table that is all defaults."""
    if isinstance(value, BaseModel):
        return toml(value.model_dump(exclude_defaults=True)) if value.model_fields_set else ""
    return "" if value is None else as_toml(value)


def rows_of_fields(
    model: type[BaseModel], sentences: Mapping[str, str], anchors: Mapping[str, str]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, type, default and sentence of every field of a model, as Markdown."""
    schema = model.model_json_schema()
    for name, field in model.model_fields.items():
        key = field.alias or name
        declared = schema["properties"][key]
        default = (
            "required"
            if field.is_required()
            else toml(field.get_default(call_default_factory=True))
        )
        about = sentence(sentences.get(name) or declared.get("description", ""))
        examples = " or ".join(code(toml(example)) for example in declared.get("examples", ()))
        words = type_words(declared, anchors, schema.get("$defs", {}))
        shown = f"**{default}**" if field.is_required() else code(default)
        yield key, words, shown, f"{about} Example: {examples}." if examples else about


def sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!")) or not text else ".")


def doc(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def summary(thing: Any) -> str:
    """Return the first paragraph of a docstring as one line."""
    return first_paragraph(doc(thing))
