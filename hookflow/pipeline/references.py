"""References in a pipeline file: `${key}`, `${env:NAME}`, and which of them a record may show."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from math import isfinite
from typing import Any

from pydantic import ValidationError

from hookflow.errors import SHOWN, Problem, nearest
from hookflow.pipeline.layers import read_value
from hookflow.pipeline.problems import key_of
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.source_map import Key, SourceMap, walk

MOST_MADE = 1_000_000
"""Characters and entries that references may put in their places. A few lines could double them with each line."""

ENVIRONMENT = "env:"
"""How the name of a reference begins that is a variable of the environment."""

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[^{}]*)(?P<end>\}?)")


def interpolate(
    tree: dict[str, Any], places: SourceMap, environ: Mapping[str, str] | None
) -> tuple[dict[str, Any], dict[Key, Problem], list[str]]:
    """Return the tree with every reference replaced, problems by faulty key, and the environment's variables in it.

    With None for the environment, references to it stay, and every string is escaped for a later `interpolate`.
    """
    resolver = _Resolver(tree, places, environ)
    return resolver.resolve(tree, ()), resolver.problems, [*resolver.variables]


def variables_of(text: str) -> list[str]:
    """Return the variables of the environment that a string of a pipeline refers to."""
    names = ((match["name"] or "").strip() for match in _REFERENCE.finditer(text))
    return [name.removeprefix(ENVIRONMENT).partition(":-")[0] for name in names if name.startswith(ENVIRONMENT)]


def read_variable(text: str) -> Any:
    """Return the value of a variable of the environment: what TOML reads in it, or else the text itself.

    A number that a float cannot hold stays a text, since it is rather an identifier: of `12e45678` infinity would be
    left, and of twenty digits with a fraction sixteen.
    """
    value = read_value(text)
    if isinstance(value, float) and any(character.isdigit() for character in text):
        written = Decimal(text.replace("_", ""))
        if not isfinite(value) or written != Decimal(repr(value)):
            return text
    return value


def escape(value: Any) -> Any:
    """Return the value so written that `interpolate` gives it back."""
    match value:
        case str():
            return value.replace("${", "$${")
        case dict():
            return {key: escape(item) for key, item in value.items()}
        case list():
            return [escape(item) for item in value]
    return value


class _UnresolvedError(Exception):
    """A reference has no value; the problem has been noted."""


class _Resolver:
    def __init__(self, tree: dict[str, Any], places: SourceMap, environ: Mapping[str, str] | None) -> None:
        self.tree, self.places, self.environ = tree, places, environ
        self.problems: dict[Key, Problem] = {}
        self.variables: dict[str, None] = {}
        self._within: list[Key] = []
        self._made = 0

    def resolve(self, value: Any, path: Key) -> Any:
        if self._within and isinstance(value, dict | list):
            self._count(len(value), self._within[-1])
        match value:
            case dict():
                return {key: self.resolve(item, (*path, key)) for key, item in value.items()}
            case list():
                return [self.resolve(item, (*path, str(k))) for k, item in enumerate(value)]
            case str() if "${" in value:
                return self._string(value, path)
        return value

    def _string(self, text: str, path: Key) -> Any:
        """Return what the string stands for. A failure is also a failure of every reference to it."""
        outermost = not self._within
        try:
            if path in self._within:
                circle = self._within[self._within.index(path) :]
                names = " → ".join(".".join(key) for key in (*circle, path))
                self._fail(circle[0], f"{names} refers to itself")
            self._within.append(path)
            try:
                whole = _REFERENCE.fullmatch(text)
                if whole and whole["name"] is not None:
                    return self._look_up(whole, path)
                written = _REFERENCE.sub(lambda match: self._written(match, path), text)
                self._count(len(written), path)
                return written
            finally:
                self._within.pop()
        except _UnresolvedError:
            if outermost:
                return text
            raise

    def _written(self, match: re.Match[str], path: Key) -> str:
        if match["name"] is None:
            return "${" if self.environ is not None else match.group()
        value = self._look_up(match, path)
        variable = self._text_of_variable(match["name"].strip())
        if variable is not None:
            return variable
        if isinstance(value, dict | list):
            kind = "table" if isinstance(value, dict) else "list"
            self._fail(path, f"{match.group()} is a {kind} and cannot stand within a string")
        return str(value).lower() if isinstance(value, bool) else str(value)

    def _look_up(self, match: re.Match[str], path: Key) -> Any:
        name = match["name"].strip()
        self._count(len(match.group()), path)
        if not name or not match["end"]:
            self._fail(path, f"{match.group()} is no reference", "write ${section.key} or ${env:NAME:-default}")
        if name.startswith(ENVIRONMENT):
            variable, has_default, default = name.removeprefix(ENVIRONMENT).partition(":-")
            self.variables[variable] = None
            if self.environ is None:
                return match.group()
            if variable not in self.environ and not has_default:
                hint = f"set it, or give a default: ${{env:{variable}:-…}}"
                self._fail(path, f'the environment variable "{variable}" is not set', hint)
            return read_variable(self.environ.get(variable) or default)
        target: Any = self.tree
        key = tuple(name.split("."))
        for part in key:
            if isinstance(target, dict) and part in target:
                target = target[part]
            elif isinstance(target, list) and part.isdecimal() and int(part) < len(target):
                target = target[int(part)]
            else:
                hinted = len(self.problems) < SHOWN  # each looks through all keys
                there = [".".join(known) for known, _ in walk(self.tree) if known] if hinted else []
                self._fail(path, f'${{{name}}}: the pipeline sets no key "{name}"', nearest(name, there))
        return self.resolve(target, key)

    def _text_of_variable(self, name: str) -> str | None:
        """Return what a reference to the environment stands for within a string: the characters themselves.

        None for other references, and where the reference is to stay.
        """
        if self.environ is None or not name.startswith(ENVIRONMENT):
            return None
        variable, _, default = name.removeprefix(ENVIRONMENT).partition(":-")
        return self.environ.get(variable) or default

    def _count(self, made: int, path: Key) -> None:
        self._made += made
        if self._made > MOST_MADE:
            self._fail(path, f"the references of this pipeline put more than {MOST_MADE:,} characters and entries")

    def _fail(self, path: Key, message: str, hint: str = "") -> None:
        problem = Problem(message, self.places.of(path), hint)
        for key in (path, *self._within):
            self.problems.setdefault(key, problem)
        raise _UnresolvedError


def public(resolved: dict[str, Any], written: dict[str, Any]) -> Pipeline:
    """Return the valid pipeline of `resolved` with the references to the environment that `written` has."""
    left = dict(environment_keys(written))
    while True:
        try:
            return Pipeline.model_validate(written)
        except ValidationError as error:
            wrong = [key_of(details) for details in error.errors(include_url=False)]
            refused = [key for key in left if any(key[: len(item)] == item[: len(key)] for item in wrong)]
            if not left:
                raise
            for key in refused or [*left]:
                del left[key]
                table, value = written, resolved
                for part in key[:-1]:
                    table, value = _inside(table, part), _inside(value, part)
                table[int(key[-1]) if isinstance(table, list) else key[-1]] = escape(_inside(value, key[-1]))


def environment_keys(tree: Any) -> Iterator[tuple[Key, str]]:
    """Yield the key of each string that refers to the environment, and the string."""
    return ((key, value) for key, value in walk(tree) if isinstance(value, str) and variables_of(value))


def _inside(tree: Any, part: str) -> Any:
    return tree[int(part) if isinstance(tree, list) else part]
