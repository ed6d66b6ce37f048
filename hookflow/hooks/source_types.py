"""What a piece of source is as a value or as a type, as far as that is certain; none of it is evaluated."""

from __future__ import annotations

import ast
from typing import Any, Literal, Union

from hookflow.pipeline.layers import is_printable


class UnknownError(Exception):
    """The value cannot be told without running the source."""


def literal(node: ast.expr) -> Any:
    """Return the value of a literal. Raises UnknownError for everything else."""
    try:
        match node:
            case ast.Call(func=ast.Name(id="frozenset" | "set" | "tuple" as name), args=[inside], keywords=[]):
                return PLAIN[name](literal(inside))
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return dict(zip(map(literal, filter(None, keys)), map(literal, values), strict=True))
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise UnknownError from None
    if isinstance(value, int) and not is_printable(value):
        raise UnknownError
    return value


PLAIN: dict[str, Any] = {
    "bool": bool, "bytes": bytes, "float": float, "int": int, "str": str, "None": None,
    "dict": dict, "frozenset": frozenset, "list": list, "set": set, "tuple": tuple,
}  # fmt: skip


def annotated(node: ast.expr | None) -> Any:
    """Return the type that an annotation means, made of Python's own types alone; `Any` where it means another."""
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str() as text):
            try:
                return annotated(ast.parse(text, mode="eval").body)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return Any
        case ast.Name(id=name):
            return PLAIN.get(name, Any)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return Union[annotated(left), annotated(right)]  # noqa: UP007  # `None | Any` cannot be written
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), slice=inside):
            return _of_several(name, inside.elts if isinstance(inside, ast.Tuple) else [inside])
    return Any


def _of_several(name: str, inside: list[ast.expr]) -> Any:
    """Return the type `name[inside]`."""
    match name, inside:
        case "Literal", _ if inside and all(isinstance(one, ast.Constant) for one in inside):
            values = tuple(one.value for one in inside)  # type: ignore[attr-defined]
            return Literal[values] if all(isinstance(v, str | int | None) for v in values) else Any
        case "Optional", [one]:
            return Union[annotated(one), None]  # noqa: UP007
        case "Union", [_, *_]:
            return Union[tuple(map(annotated, inside))]  # noqa: UP007
        case "Annotated", [one, *_]:
            return annotated(one)
        case "tuple", [one, ast.Constant(value=x)] if x is ...:
            return tuple.__class_getitem__((annotated(one), ...))
        case "tuple", [_, *_]:
            return tuple.__class_getitem__(tuple(map(annotated, inside)))
        case (("list" | "set" | "frozenset"), [one]):
            return PLAIN[name][annotated(one)]
        case "dict", [key, value]:
            return dict[annotated(key), annotated(value)]  # type: ignore[misc]
    return Any
