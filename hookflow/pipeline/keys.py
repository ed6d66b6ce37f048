"""The keys of a pipeline file by their dotted names, with all that the schema declares of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hookflow.errors import Problem, UserError, nearest
from hookflow.pipeline.declared import Schema, with_definitions
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.type_words import as_toml, type_words

ANY = "*"
"""Stands for a name that the user chooses, and for the place of an item in a list."""


NAMES = {"hooks": "ema", "points": "after_densify", "model": "generator", "optimizer": "generator"}
"""What stands for a chosen name in examples, by the table that it stands in."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A key: its sentence, its type in words, whether it must be given, its default, and an example.

    What is not declared is empty. `keys` are those of a table.
    """

    key: str
    about: str
    type: str
    required: bool = False
    default: str = ""
    example: str = ""
    keys: tuple[str, ...] = ()


def find_key(key: str) -> Declared:
    """Return what is declared of a key such as `run.precision`, `hooks.*.every`, `model.weights`; "" is the file.

    Raises UserError, with the nearest right key, when there is none.
    """
    parts = key.split(".") if key else []
    place = _Place(_whole())
    for k, part in enumerate(parts):
        below = place.below(part)
        if below is None:
            raise UserError(Problem(f'a pipeline file has no key "{key}"', hint=_nearest(parts, k, place)))
        place = below
    return Declared(
        key=key,
        about=place.about(),
        type=type_words(place.schema, _definitions()) or "any value",
        required=place.required,
        default=as_toml(place.schema.get("default")),
        example=place.example(),
        keys=tuple(place.inner()),
    )


@cache
def all_keys() -> tuple[str, ...]:
    """Return every key, as one may write it: names that the user chooses are `*`."""
    return tuple(_walk(_Place(_whole()), ""))


def _walk(place: _Place, above: str) -> Iterator[str]:
    for name in place.inner():
        if inner := place.below(name):
            yield f"{above}{name}"
            yield from _walk(inner, f"{above}{name}.")


@cache
def _whole() -> Schema:
    return with_definitions(Pipeline)


def _definitions() -> Mapping[str, Schema]:
    return _whole()["$defs"]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _Place:
    """A key's schema, whether the key must be given, and how the way to it is written: names, "[]" for a list."""

    schema: Schema
    required: bool = False
    way: tuple[str, ...] = ()

    def inner(self) -> list[str]:
        """Return the keys of a table, `*` for those that the user chooses, or for the items of a list of tables."""
        names = [name for shape in _shapes(self.schema) for name in shape.get("properties", {})]
        return list(dict.fromkeys([*names, *([ANY] if self._each() else [])]))

    def below(self, part: str) -> _Place | None:
        """Return what a key of this table is; the first of its shapes that has the key counts."""
        for shape in _shapes(self.schema):
            if part in shape.get("properties", {}):
                return _Place(shape["properties"][part], part in shape.get("required", ()), (*self.way, part))
        if (each := self._each()) is None:
            return None
        schema, item = each
        chosen = NAMES.get(self.way[-1], "name") if part == ANY else part
        return _Place(schema, way=(*self.way, "[]" if item else chosen))

    def _each(self) -> tuple[Schema, bool] | None:
        """Return the schema of tables below names that the user chooses, or of those in a list, and which it is."""
        for shape in _shapes(self.schema):
            named = [*shape.get("patternProperties", {}).values(), shape.get("additionalProperties")]
            for inner in (*named, shape.get("items")):
                if isinstance(inner, dict) and any("properties" in deep for deep in _shapes(inner)):
                    return inner, "items" in shape
        return None

    def about(self) -> str:
        """Return the sentence of the key, or else that of what stands there."""
        told = (shape.get("description", "") for shape in (self.schema, *_shapes(self.schema)))
        return str(next(filter(None, told), ""))

    def example(self) -> str:
        """Return the key with a value, below its table; nothing for a table."""
        value = as_toml(_example(self.schema))
        if not value or self.way[-1:] == ("[]",):  # an item of a list is written with its list
            return ""
        *table, name = self.way
        path = ".".join(part for part in table if part != "[]")
        head = f"[[{path}]]" if table[-1:] == ["[]"] else f"[{path}]" if path else ""
        return f"{head}\n{name} = {value}".lstrip()


def _shapes(schema: Schema) -> Iterator[Schema]:
    """Yield the shapes that a value may have, each without a reference."""
    if reference := schema.get("$ref"):
        yield from _shapes(_definitions()[reference.rpartition("/")[2]])
    elif options := schema.get("oneOf") or schema.get("anyOf"):
        for option in options:
            yield from _shapes(option)
    else:
        yield schema


def _nearest(parts: list[str], k: int, place: _Place) -> str:
    """Return the right key that is nearest to a wrong one: a neighbour, or one elsewhere that ends so."""
    above = "".join(f"{part}." for part in parts[:k])
    if near := nearest(parts[k], place.inner()):
        return near.replace('"', f'"{above}', 1)
    if same := [key for key in all_keys() if key.rpartition(".")[2] == parts[-1]]:
        return f"there are {', '.join(same[:4])}" if len(same) > 1 else f'did you mean "{same[0]}"?'
    if far := nearest(".".join(parts), all_keys()):
        return far
    return f"there are {', '.join(above + name for name in place.inner())}" if place.inner() else "it is no table"


def _example(schema: Schema) -> Any:
    """Return a value that may be written, and that says more than the default; None where a table has keys."""
    if examples := schema.get("examples"):
        return examples[0]
    default = schema.get("default")
    for shape in _shapes(schema):
        if examples := shape.get("examples"):
            return examples[0]
        match shape:
            case {"enum": list(values)}:
                return next((value for value in values if value != default), values[0])
            case {"type": "boolean"}:
                return not default
            case {"type": "integer" | "number"}:
                return default if default else max(shape.get("minimum", 1), 1)
            case {"type": "string"}:
                return default or "…"
            case {"type": "array"}:
                return default or ["…"]
    return None
