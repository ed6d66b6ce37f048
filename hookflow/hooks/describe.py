"""The description of a hook for `hookflow explain NAME`: its summary, methods and arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from hookflow.errors import Problem, UserError
from hookflow.graph.points import Points
from hookflow.hooks.arguments import VARIADIC, argument_type, parameters_of
from hookflow.hooks.base import Hook
from hookflow.hooks.foreign import foreign_arguments
from hookflow.hooks.inspect import Inspection, points_for
from hookflow.pipeline.problems import type_words
from hookflow.pipeline.source_map import as_toml

EXAMPLES: tuple[Any, ...] = (1.0, 1, 0.5, "…", True, ["…"], {})
"""Values for an argument that must be given; the first that is allowed is as good as any."""


COMMON = {"name", "input"}
"""Arguments that functions of all kinds take: one that takes nothing else is hardly a hook."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a hook, in words; `default` is None where it must be given, and `example` a value that may be.

    `shown` says whether the example of the whole hook gives it: it must be given, or its declaration has examples.
    """

    name: str
    kind: str
    about: str
    default: str | None
    example: str
    shown: bool


class Description(Inspection):
    """A hook's class, or a plain function, as `hookflow explain` shows it. Raises UserError when it can be no hook.

    `methods` are in the order of a run, an `around` at its first half; `bound` names those that fire unless the file
    says otherwise, `elsewhere` says where the others do. `reads` and `writes` are slots by the method's name. `place`
    holds what it states of its place among others. `fits` is a point whose arguments are enough for a function.
    """

    def __init__(self, hook: Callable[..., Any], points: Points) -> None:
        super().__init__(hook, points)
        is_class = isinstance(hook, type)
        if is_class and not self.methods:
            raise UserError(Problem(message, hint=hint) for message, hint in self.issues)
        order = {point.name: k for k, point in enumerate(points)}
        once = [method for method in self.methods if method.half != "exit"]
        self.methods = sorted(once, key=lambda method: order[method.point])
        wanted = points_for(hook, {})
        bound = [method for method in self.methods if wanted is None or {method.point, method.name} & set(wanted)]
        self.bound = [method.name for method in bound]
        bases = hook.__mro__ if isinstance(hook, type) else ()
        of_arguments = any("points_for" in vars(base) for base in bases if base is not Hook)
        self.elsewhere = "where an argument or `points` says" if of_arguments else "where `points` says"
        self.fits = "" if is_class else fitting_point(hook, points) or ""
        at = [points[name] for name in ([self.fits] if self.fits else [method.point for method in bound])]
        picks = {key: self.names(key) for key in dict.fromkeys(point.picks for point in at) if key}
        self._needs = [key for key, globs in picks.items() if not globs]
        (self.reads, wrong_reads), (self.writes, wrong_writes) = self.slots("reads"), self.slots("writes")
        stated = {key: str(getattr(hook, key, usual)) for key, usual in (("phase", "normal"), ("ranks", "all"))}
        stated |= {key: ", ".join(self.names(key)) for key in ("after", "before", "requires", *picks)}
        self.place = {key: value for key, value in stated.items() if value not in ("normal", "all", "")}
        offered = set() if is_class else {name for point in points for name in point.offers}
        self.arguments = list(_arguments(hook, offered))
        function = [] if is_class else foreign_arguments(hook, getattr(hook, "__name__", repr(hook)), required=True)
        self.issues = [*function, *self.issues, *wrong_reads, *wrong_writes]

    def as_toml(self, name: str, use: str) -> str:
        """Return a table for a pipeline file: with all that must be given, and what has an example."""
        lines = [f"[hooks.{name}]", f"use = {as_toml(use)}"]
        if self.fits:
            lines.append(f"points = [{as_toml(self.fits)}]")
        lines += (f'{key} = ["*"]' for key in self._needs)
        provided = [f"{argument.name} = {argument.example}" for argument in self.arguments if argument.shown]
        return "\n".join(lines + ([f"args = {{ {', '.join(provided)} }}"] if provided else []))


def fitting_point(function: Callable[..., Any], points: Points) -> str | None:
    """Return a point that offers all that a plain function must be given; None when there is none."""
    needed = {p.name for p in parameters_of(function) if p.kind not in VARIADIC and p.default is p.empty}
    if needed and needed <= COMMON:
        return None
    seldom_last = sorted(points, key=lambda point: point.kind in ("global", "state"))
    usual = ("after_train_epoch", "after_train_iter", *(point.name for point in seldom_last))
    return next((name for name in usual if needed <= set(points[name].offers)), None)


def _arguments(hook: Callable[..., Any], offered: set[str]) -> Iterator[Argument]:
    for parameter in parameters_of(hook):
        if parameter.kind in VARIADIC or parameter.name in offered:
            continue
        kind = argument_type(hook, parameter.name)
        schema: Mapping[str, Any] = {}
        with suppress(PydanticInvalidForJsonSchema, NameError):  # a type that no file could write, or not imported
            schema = kind.json_schema()
        has_default = parameter.default is not parameter.empty
        default = "" if parameter.default is None else as_toml(parameter.default)
        yield Argument(
            name=parameter.name,
            kind=type_words(schema) or "any value",
            about=str(schema.get("description", "")),
            default=default if has_default else None,
            example=as_toml(schema["enum"][0] if "enum" in schema else _example(kind, schema)),
            shown=not has_default or bool(schema.get("examples")),
        )


def _example(kind: TypeAdapter[Any], schema: Mapping[str, Any]) -> Any:
    for example in (*schema.get("examples", ()), *EXAMPLES):
        with suppress(ValidationError, NameError):
            kind.validate_json(json.dumps(example), strict=True)
            return example
    return "…"
