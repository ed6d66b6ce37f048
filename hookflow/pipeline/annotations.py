"""Types of annotations, read from the source of a file that may come from anybody.

Nothing of the source is evaluated.
"""

import ast
from typing import Annotated, Any, Literal, Union

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter
from pydantic_core import SchemaError

_PLAIN_TYPES: dict[str, Any] = {
    each.__name__: each
    for each in (bool, int, float, str, bytes, list, dict, tuple, set, frozenset, object)
}
_TYPES_BY_NAME: dict[str, Any] = {**_PLAIN_TYPES, "Any": Any, "Tensor": type("Tensor", (), {})}
"""The names that have a meaning alone.

A file holds no tensor, so `Tensor` is a class without instances.
"""

_GENERIC_NAMES = {"list", "dict", "tuple", "set", "frozenset"}


class _UnknownError(Exception):
    """An annotation says something that the source does not show."""


def annotated_type(annotation: ast.expr) -> Any:
    """Return the type that an annotation means.

    It is `Any` where the annotation has names or calls of its own, which are not known.
    """
    try:
        kind = _type_of(annotation)
        TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    except (_UnknownError, SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return Any
    # An annotation may have bounds that its type cannot have, or a pattern that is not valid.
    except (PydanticUserError, SchemaError):
        return Any
    return kind


def _type_of(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str(text)):
            return _type_of(ast.parse(text, mode="eval").body)
        case ast.Name(id=name) if name in _TYPES_BY_NAME:
            return _TYPES_BY_NAME[name]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return Union[_type_of(left), _type_of(right)]  # noqa: UP007  # of values, which `|` refuses for None
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            if isinstance(inner, ast.Tuple):
                parts = inner.elts
            else:
                parts = [inner]
            return _make_subscripted(name, parts)
    raise _UnknownError


def _make_subscripted(name: str, parts: list[ast.expr]) -> Any:
    """Return the type `name[parts]`."""
    if name == "Literal":
        values = [ast.literal_eval(part) for part in parts]
        if not all(isinstance(value, str | int | bytes | None) for value in values):
            raise _UnknownError
        return Literal[tuple(values)]
    if name == "Annotated":
        fields = [field for field in map(_field, parts[1:]) if field is not None]
        kind = _type_of(parts[0])
        if fields:
            return Annotated[(kind, *fields)]
        return kind
    if name == "Optional":
        (part,) = parts
        return Union[_type_of(part), None]  # noqa: UP007
    if name == "Union":
        return Union[tuple(_type_of(part) for part in parts)]  # noqa: UP007
    if name not in _GENERIC_NAMES:
        raise _UnknownError
    arguments = [... if _is_ellipsis(part) else _type_of(part) for part in parts]
    return _TYPES_BY_NAME[name][tuple(arguments)]


def _field(node: ast.expr) -> Any:
    """Return the `Field(…)` of an annotation.

    It is None for other metadata, and for a `Field` whose arguments are no literals.
    """
    match node:
        case ast.Call(func=ast.Name(id="Field"), args=[], keywords=keywords):
            try:
                return Field(
                    **{str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
                )
            except ValueError:
                return None
    return None


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...
