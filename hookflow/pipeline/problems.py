"""Problems of a pipeline file in words.

They are made from pydantic's errors, types, and values as TOML writes them.
"""

from collections.abc import Iterator, Mapping
from datetime import date, time
from itertools import groupby, islice
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hookflow.errors import MAX_SHOWN_PROBLEMS, Problem, nearest, nearest_or_all
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.source_map import Key, SourceMap, as_toml, format_key

_TYPE_WORDS = {
    "integer": "int",
    "number": "float",
    "string": "str",
    "boolean": "bool",
    "array": "list",
    "object": "table",
}
_BOUND_SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def type_words(
    schema: Mapping[str, Any], definitions: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """Return the type that a JSON Schema describes, but for null.

    `definitions` are the schemas that its references name.
    """
    definitions = definitions or schema.get("$defs", {})
    match schema:
        case {"$ref": str(reference)}:
            return type_words(definitions[reference.rpartition("/")[2]], definitions)
        case {"anyOf": list(options)} | {"oneOf": list(options)}:
            choices = [type_words(option, definitions) for option in options]
            return " or ".join(dict.fromkeys(filter(None, choices)))
        case {"enum": list(values)}:
            return " or ".join(map(as_toml, values))
        case {"const": value}:
            return as_toml(value)
        case {"type": list(several)}:
            alternatives = [type_words({**schema, "type": item}, definitions) for item in several]
            return " or ".join(alternatives)
        case {"type": "array", "items": {} as items} if words := type_words(items, definitions):
            return f"list of {words}"
        case {"type": "object", "patternProperties": _} | {
            "type": "object",
            "additionalProperties": {"$ref": _},
        }:
            return "tables by name"
        case {"type": str(kind)}:
            words = _TYPE_WORDS.get(kind, "")
            bounds = _bounds_in_words(kind, schema)
            return f"{words} {bounds}".strip()
    return ""


def _bounds_in_words(kind: str, schema: Mapping[str, Any]) -> str:
    """Return the bounds of a number, as "≥ 1, ≤ 5"; "" for any other kind."""
    if kind not in ("integer", "number"):
        return ""
    bounds = []
    for name, sign in _BOUND_SIGNS.items():
        if name in schema:
            bounds.append(f"{sign} {schema[name]:g}")
    return ", ".join(bounds)


_BOOL = "true or false"
_ERROR_TYPE_WORDS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), _BOOL),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type"), "a table"),
    "string_type": "a string",
}
_BOUND_WORDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}
NO_TEXTS: Mapping[Key, str] = {}
_UNION_TAGS = ("<name>", "<table>", "<list>", "<one>", "<several>", "[key]")
_MEMBER_TYPES = ("bool", "int", "float")
_SECTION_EXAMPLES = {
    "run": '[run] with name = "…" and max_epochs = …',
    "model": '[model] with use = "package.module:Name"',
    "optimizer": '[optimizer] with use = "torch.optim:SGD"',
    "data": '[data.train] with use = "…"',
    "train": '[data.train] with use = "…"',
}


def explain(
    error: ValidationError,
    tree: Mapping[str, Any],
    places: SourceMap,
    written: Mapping[Key, str] = NO_TEXTS,
) -> list[tuple[Key, Problem]]:
    """Return a problem for each error, by the key that is at fault. `tree` is what was validated.

    Values of the environment are shown as `written`, by key: it may be a secret.
    """
    result = []
    for key, details in islice(iter_errors_by_key(error), 2 * MAX_SHOWN_PROBLEMS):
        match details["type"]:
            case "extra_forbidden":
                message, hint = _unknown(key, details["input"])
            case "missing":
                message, hint = _missing(key, tree)
            case _:
                message, hint = describe_value_problem(
                    details, format_key(key), written.get(key, "")
                )
        value = details["input"]
        is_text_for_table = details["type"] == "model_type" and isinstance(value, str)
        if is_text_for_table and key not in written and "use" in _keys_at(key):
            hint = hint or f'write {{ use = "{value}" }}'
        result.append((key, Problem(message, places.of(key), hint)))
    return result


def iter_errors_by_key(error: ValidationError) -> Iterator[tuple[Key, ErrorDetails]]:
    """Yield an error for each key that is at fault.

    The errors of a union's members are one, with the choices of all.
    """
    for key, errors in groupby(error.errors(include_url=False), key_of):
        members = [*errors]
        of_choices = [each for each in members if each["type"] == "literal_error"]
        if not of_choices:
            yield key, members[0]
            continue
        details = of_choices[0]
        kinds = [_ERROR_TYPE_WORDS.get(each["type"]) for each in members]
        if _BOOL in kinds:
            details["ctx"]["expected"] += ", true, false"
        yield key, details


def key_of(details: ErrorDetails) -> Key:
    """Return the key that an error is about, without the union's member that refuses its value."""
    key = tuple(str(part) for part in details["loc"] if part not in _UNION_TAGS)
    last = ""
    if key:
        last = key[-1]
    is_member = last.startswith("literal[") or (
        last in _MEMBER_TYPES and details["type"].startswith(f"{last}_")
    )
    if is_member:
        return key[:-1]
    return key


def describe_value_problem(details: ErrorDetails, name: str, written: str = "") -> tuple[str, str]:
    """Return what is wrong with the value of `name`, and a hint.

    `written` replaces a value of the environment.
    """
    value = details["input"]
    context = details.get("ctx", {})
    if written:
        shown = f"the value of {written}"
    else:
        shown = _format_value(value)
    match details["type"]:
        case kind if kind in _ERROR_TYPE_WORDS:
            message = f"{name} must be {_ERROR_TYPE_WORDS[kind]}, not {shown}"
            if not written:
                return message, _suggest_value(kind, value)
            is_text = kind == "string_type"
            return (
                message,
                "quotes in the variable make it a text: NAME='\"12\"'" if is_text else "",
            )
        case kind if kind in _BOUND_WORDS:
            words, bound = _BOUND_WORDS[kind]
            return f"{name} must be {words} {context[bound]}, not {shown}", ""
        case _ if written:
            return f"{name} cannot be {shown}", ""
        case "literal_error":
            choices = context["expected"].replace("'", '"').replace(" or ", ", ")
            return f"{name} must be one of {choices}, not {shown}", _nearest_choice(value, choices)
        case "union_tag_invalid":
            return f"{name} cannot be {shown}", ""
        case "too_short":
            return f"{name} must not be empty", ""
        case "value_error":
            message = f"{f'[{name}]' if isinstance(value, dict) else name}: {context['error']}"
            return message, getattr(context["error"], "hint", "")
        case kind:  # one of the many kinds that no type in the project raises today
            return f"{name} cannot be {shown} ({kind.replace('_', ' ')})", ""


def _nearest_choice(value: Any, choices: str) -> str:
    """Return a hint for a value that is none of the choices.

    The choices in the message are quoted, with commas between.
    """
    if "true" in choices:
        mended = _suggest_value("bool_type", value)
        if mended:
            return mended
    return nearest(str(value), [choice.strip('"') for choice in choices.split(", ")])


def _unknown(key: Key, value: Any) -> tuple[str, str]:
    *table, name = key
    known = _keys_at(tuple(table))
    if not table:
        if isinstance(value, dict | list):
            kind = f"section [{format_key(key)}]"
        else:
            kind = f'key "{name}"'
        of_run = name in _keys_at(("run",))
        return f"there is no {kind}", f'did you mean "run.{name}"?' if of_run else nearest_or_all(
            name, known
        )
    hint = nearest_or_all(name, known)
    if table[:1] == ["data"] and isinstance(value, dict) and "use" in value:
        several = f"where there are several, each has a name: {_table([*table, 'NAME'])}"
        hint = f'{_table(table)} with "use" is the only set; {several}'
    elif "args" in known and not nearest(name, known):
        hint = f'an argument of what "use" names belongs in args: args = {{ {name} = … }}'
    return f'{_table(table)} has no key "{name}"', hint


def _missing(key: Key, tree: Mapping[str, Any]) -> tuple[str, str]:
    *table, name = key
    if name in _SECTION_EXAMPLES:
        return f"the section [{'.'.join(key)}] is missing", f"add {_SECTION_EXAMPLES[name]}"
    hint = ""
    if len(key) == 3 and key[0] == "hooks":
        hint = nearest(key[1], set(tree["hooks"]) - {key[1]}) or 'e.g. use = "ema"'
    return f'{_table(table)} lacks the key "{name}"', hint


def _table(path: list[str]) -> str:
    in_list = any(part.isdecimal() for part in path)
    if in_list:
        return format_key(tuple(path))
    return f"[{format_key(tuple(path))}]"


def _keys_at(path: Key) -> list[str]:
    model: type[BaseModel] = Pipeline
    for part in path:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        if part not in fields:
            continue
        inner = _model_in(fields[part].annotation)
        if inner is not None:
            model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside an annotation such as `list[Model] | None` or `dict[str, Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        model = _model_in(inner)
        if model is not None:
            return model
    return None


def _format_value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            if len(value) <= 40:
                return f'the string "{value}"'
            return "a long string"
        case int() | float():
            return str(value)
        case date() | time():
            return "a date or time"
        case list():
            return "a list"
        case _:
            return "a table"


def _suggest_value(kind: str, value: Any) -> str:
    """Return how to write a value that is right but for its shape."""
    if not isinstance(value, str):
        return ""
    wanted = _ERROR_TYPE_WORDS[kind]
    is_quoted_bool = wanted == _BOOL and value in ("true", "false")
    is_quoted_integer = wanted == "an integer" and value.isdecimal()
    if is_quoted_bool or is_quoted_integer:
        return f"without the quotes: {value}"
    if kind == "list_type":
        return f'write ["{value}"]'
    return ""
