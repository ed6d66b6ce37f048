"""What the schema found wrong, in words for the person who wrote the file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, time
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hookflow.errors import Problem, nearest
from hookflow.pipeline.places import Key, Places
from hookflow.pipeline.schema import Pipeline

_KINDS = {
    "int_type": "a whole number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
}
_BOUNDS = {"greater_than_equal": ("at least", "ge"), "less_than": ("below", "lt")}
_EXAMPLES = {
    "run": '[run] with name = "…" and max_epochs = …',
    "model": '[model] with use = "package.module:Name"',
    "optimizer": '[optimizer] with use = "torch.optim:SGD"',
    "data": '[data.train] with use = "…"',
    "train": '[data.train] with use = "…"',
}


def explain(error: ValidationError, tree: Mapping[str, Any], places: Places) -> list[tuple[Key, Problem]]:
    """Return a problem for each error, by the key that is at fault. `tree` is what was validated."""
    return [_explained(details, tree, places) for details in error.errors(include_url=False)]


def _explained(details: ErrorDetails, tree: Mapping[str, Any], places: Places) -> tuple[Key, Problem]:
    key = tuple(str(part) for part in details["loc"] if part not in ("<name>", "<table>", "[key]"))
    message, hint = _said(details, key, tree)
    return key, Problem(message, places.of(key), hint)


def _said(details: ErrorDetails, key: Key, tree: Mapping[str, Any]) -> tuple[str, str]:
    """Return the message and the hint."""
    name, value, context = ".".join(key), details["input"], details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            return _unknown(key)
        case "missing":
            return _missing(key, tree)
        case kind if kind in _KINDS:
            return f"{name} must be {_KINDS[kind]}, not {_shown(value)}", _mend(kind, key, value)
        case kind if kind in _BOUNDS:
            words, bound = _BOUNDS[kind]
            return f"{name} must be {words} {context[bound]}, not {_shown(value)}", ""
        case "literal_error":
            choices = [choice.strip("'") for choice in context["expected"].replace(" or ", ", ").split(", ")]
            one_of = ", ".join(f'"{choice}"' for choice in choices)
            return f"{name} must be one of {one_of}, not {_shown(value)}", nearest(str(value), choices)
        case "too_short":
            return f"{name} is empty, so the hook would never fire", "leave it out to bind every point of its class"
        case "value_error":
            return f"{name}: {context['error']}", ""
        case kind:  # a kind of error that the schema cannot raise today
            return f"{name} cannot be {_shown(value)} ({kind.replace('_', ' ')})", ""


def _unknown(key: Key) -> tuple[str, str]:
    *table, name = key
    known = _keys_of(_model_at(tuple(table)))
    hint = nearest(name, known)
    if not table:
        return f"there is no section [{name}]", hint or _there_are(known)
    message = f'[{".".join(table)}] has no key "{name}"'
    if not hint and "args" in known:
        hint = f'what "use" names takes its arguments in args: args = {{ {name} = … }}'
    return message, hint or _there_are(known)


def _missing(key: Key, tree: Mapping[str, Any]) -> tuple[str, str]:
    *table, name = key
    if name in _EXAMPLES:
        return f"the section [{'.'.join(key)}] is missing", f"add {_EXAMPLES[name]}"
    hint = ""
    if len(key) == 3 and key[0] == "hooks":
        hint = nearest(key[1], set(tree["hooks"]) - {key[1]}) or 'e.g. use = "ema"'
    return f'{_table(table)} lacks the key "{name}"', hint


def _table(path: list[str]) -> str:
    in_list = any(part.isdecimal() for part in path)
    return ".".join(path) if in_list else f"[{'.'.join(path)}]"


def _there_are(known: list[str]) -> str:
    return f"there are {', '.join(known)}"


def _keys_of(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(path: Key) -> type[BaseModel]:
    """Return the model of the table at `path`, which the schema knows."""
    model: Any = Pipeline
    for part in path:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        if part in fields:
            model = _model_in(fields[part].annotation) or model
    return model  # type: ignore[no-any-return]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside an annotation such as `list[Model] | None` or `dict[str, Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := _model_in(inner))), None)


def _shown(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'the text "{value}"' if len(value) <= 40 else "a long text"
        case int() | float():
            return str(value)
        case date() | time():
            return "a date or time"
        case list():
            return "a list"
        case _:
            return "a table"


def _mend(kind: str, key: Key, value: Any) -> str:
    """Return how to write a value that is right but for its shape."""
    plain = isinstance(value, str) and (value.isdecimal() or value in ("true", "false"))
    if kind in ("int_type", "bool_type") and plain:
        return f"without the quotes: {value}"
    if kind == "list_type" and isinstance(value, str):
        return f'write ["{value}"]'
    if kind == "model_type" and isinstance(value, str) and "use" in _keys_of(_model_at(key)):
        return f'write {{ use = "{value}" }}'
    return ""
