"""Types and values as people write them: `int ≥ 1`, `str`, one of "a", "b"; a value as in TOML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Definitions = Mapping[str, Mapping[str, Any]]

_TYPES = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "array": "list", "object": "table"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def type_words(schema: Mapping[str, Any], definitions: Definitions | None = None) -> str:
    """Return the type that a JSON Schema describes, but for null: TOML has none, one leaves the key out.

    `definitions` are what its references stand for.
    """
    definitions = definitions or schema.get("$defs", {})
    match schema:
        case {"$ref": str(reference)}:
            return type_words(definitions[reference.rpartition("/")[2]], definitions)
        case {"anyOf": list(options)} | {"oneOf": list(options)}:
            return " or ".join(dict.fromkeys(filter(None, (type_words(one, definitions) for one in options))))
        case {"enum": list(values)}:
            return " or ".join(map(as_toml, values))
        case {"const": value}:
            return as_toml(value)
        case {"type": list(several)}:
            return " or ".join(type_words({**schema, "type": one}, definitions) for one in several)
        case {"type": "array", "items": {} as items} if words := type_words(items, definitions):
            return f"list of {words}"
        case {"type": "object", "patternProperties": _} | {"type": "object", "additionalProperties": {"$ref": _}}:
            return "tables by name"
        case {"type": str(kind)}:
            return plain_type(kind, schema)
    return ""


def plain_type(kind: str, schema: Mapping[str, Any]) -> str:
    """Return a type of JSON Schema that is no list of others, with the bounds of a number."""
    bounded = _BOUNDS if kind in ("integer", "number") else {}
    bounds = ", ".join(f"{sign} {_bound(schema[bound])}" for bound, sign in bounded.items() if bound in schema)
    return f"{_TYPES.get(kind, '')} {bounds}".strip()


def _bound(bound: int | float) -> str:
    """Return a bound as people write it: a large power of two as that."""
    if isinstance(bound, int) and bound > 1 << 32 and bound.bit_count() == 1:
        return f"2^{bound.bit_length() - 1}"
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def as_toml(value: Any) -> str:
    """Return a plain value as TOML writes it; nothing for None."""
    match value:
        case None:
            return ""
        case dict():
            return f"{{ {', '.join(f'{key} = {as_toml(item)}' for key, item in value.items())} }}" if value else "{}"
        case list() | tuple():
            return f"[{', '.join(map(as_toml, value))}]"
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        return repr(value)
