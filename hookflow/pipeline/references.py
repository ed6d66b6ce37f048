"""References in a pipeline file: `${key}`, `${env:NAME}`, and which of them a record may show."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from typing import Any, NamedTuple, NoReturn

from pydantic import ValidationError

from hookflow.errors import MAX_SHOWN_PROBLEMS, Problem, nearest
from hookflow.pipeline.layers import read_value
from hookflow.pipeline.problems import key_of
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.source_map import Key, SourceMap, walk

MOST_MADE = 1_000_000
"""Characters and entries that references may put in their places.

A few lines could double them with each line.
"""

ENVIRONMENT_PREFIX = "env:"
"""How the name of a reference begins that is a variable of the environment."""

FOLD_REFERENCE = "fold"
"""The reference to the number of the fold."""

_REFERENCE_PATTERN = re.compile(r"\$\$\{|\$\{(?P<name>[^{}]*)(?P<end>\}?)")


@dataclass(frozen=True, slots=True)
class Interpolation:
    """The tables of a pipeline with every reference replaced.

    `written` are the same with the references to the environment, and every string so written that
    a later `interpolate` gives it back. `problems` are by faulty key, `variables` are those of the
    environment that are named.
    """

    resolved: dict[str, Any]
    written: dict[str, Any]
    problems: dict[Key, Problem]
    variables: list[str]

    @property
    def is_public(self) -> bool:
        """Whether the resolved tables may be shown as they are.

        They may if nothing in them is from the environment or escaped.
        """
        if self.variables:
            return False
        return not any(isinstance(value, str) and "${" in value for _, value in walk(self.resolved))


def interpolate(
    tree: dict[str, Any], places: SourceMap, environ: Mapping[str, str] | None
) -> Interpolation:
    """Replace every reference.

    With None for the environment, references to it stay in `resolved`, too.
    """
    resolver = _Resolver(tree, places, environ)
    pair = resolver.resolve(tree, ())
    variables: dict[str, None] = {}
    for _, text in iter_environment_keys(tree):
        variables |= dict.fromkeys(list_variables(text))
    if environ is None:
        resolved = pair.written
    else:
        resolved = pair.value
    return Interpolation(resolved, pair.written, resolver.problems, list(variables))


def list_variables(text: str) -> list[str]:
    """Return the variables of the environment that a string of a pipeline refers to."""
    names = ((match["name"] or "").strip() for match in _REFERENCE_PATTERN.finditer(text))
    return [
        name.removeprefix(ENVIRONMENT_PREFIX).partition(":-")[0]
        for name in names
        if name.startswith(ENVIRONMENT_PREFIX)
    ]


class VariableInt(int):
    """An integer that a variable of the environment holds; `written` is the variable's text."""

    written: str


class VariableFloat(float):
    """A float that a variable of the environment holds; `written` is the variable's text."""

    written: str


NAMING_KEYS = frozenset(
    {
        *("use", "points", "at", "follows", "after", "before", "ambiguous_with", "reads", "writes"),
        *("phase", "every", "from", "until", "when"),
        *("monitor", "metric"),
    }
)
"""Keys whose values are names, and so no secrets.

They name classes, points, slots, hooks, triggers or metrics.
"""


def find_secrets(tree: Any) -> set[str]:
    """Return the variables that may be secrets.

    These are the ones at a key that does not name anything.

    `tree` has the references to the environment. An entry of a list has the key of its list.
    """
    result = set()
    for key, text in iter_environment_keys(tree):
        names = [part for part in key if not part.isdecimal()]
        if not names or names[-1] not in NAMING_KEYS:
            result.update(list_variables(text))
    return result


def read_variable(text: str) -> Any:
    """Return the value of a variable of the environment.

    It is what TOML reads in the variable, or else the text itself. A number keeps its text, which
    is the value where a text is wanted (`as_written`). One with more digits than a float has stays
    a text, since it is rather an identifier.
    """
    value = read_value(text)
    if (
        isinstance(value, float)
        and isfinite(value)
        and Decimal(text.replace("_", "")) != Decimal(repr(value))
    ):
        return text
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    number: VariableFloat | VariableInt
    if isinstance(value, float):
        number = VariableFloat(value)
    else:
        number = VariableInt(value)
    number.written = text
    return number


def as_written(value: Any) -> Any:
    """Return the value with the text of each variable in the place of the number that it holds."""
    match value:
        case VariableInt() | VariableFloat():
            return value.written
        case dict():
            return {key: as_written(item) for key, item in value.items()}
        case list():
            return [as_written(item) for item in value]
    return value


def with_texts_where_wanted(tree: Any, keys: Collection[Key], path: Key = ()) -> Any:
    """Return the tree with texts of variables in the place of their numbers at these keys."""
    if path in keys:
        return as_written(tree)
    if isinstance(tree, dict):
        return {
            key: with_texts_where_wanted(item, keys, (*path, key)) for key, item in tree.items()
        }
    if isinstance(tree, list):
        return [with_texts_where_wanted(item, keys, (*path, str(k))) for k, item in enumerate(tree)]
    return tree


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


class _ResolvedValue(NamedTuple):
    """A value with its references replaced, and the same as it may be recorded.

    The recorded one keeps the references to the environment.
    """

    value: Any
    written: Any


class _Resolver:
    def __init__(
        self, tree: dict[str, Any], places: SourceMap, environ: Mapping[str, str] | None
    ) -> None:
        self.problems: dict[Key, Problem] = {}
        self._tree = tree
        self._places = places
        self._environ = environ
        self._within: list[Key] = []
        self._made = 0

    def resolve(self, value: Any, path: Key) -> _ResolvedValue:
        """Return a value of the tree, which stands at `path`, with its references replaced."""
        if self._within and isinstance(value, dict | list):
            self._count(len(value), self._within[-1])
        if isinstance(value, dict):
            items = {key: self.resolve(item, (*path, key)) for key, item in value.items()}
            return _ResolvedValue(
                {key: item.value for key, item in items.items()},
                {key: item.written for key, item in items.items()},
            )
        if isinstance(value, list):
            entries = [self.resolve(item, (*path, str(k))) for k, item in enumerate(value)]
            return _ResolvedValue(
                [entry.value for entry in entries], [entry.written for entry in entries]
            )
        if isinstance(value, str) and "${" in value:
            return self._resolve_string(value, path)
        return _ResolvedValue(value, value)

    def _resolve_string(self, text: str, path: Key) -> _ResolvedValue:
        """Return what the string stands for.

        A failure is also a failure of every reference to it.
        """
        is_outermost = not self._within
        try:
            if path in self._within:
                circle = self._within[self._within.index(path) :]
                names = " → ".join(".".join(key) for key in (*circle, path))
                self._fail(circle[0], f"{names} refers to itself")
            self._within.append(path)
            try:
                whole = _REFERENCE_PATTERN.fullmatch(text)
                if whole and whole["name"] is not None:
                    return self._resolve_reference(whole, path)
                return self._fill_in(text, path)
            finally:
                self._within.pop()
        except _UnresolvedError:
            if is_outermost:
                return _ResolvedValue(text, text)
            raise

    def _fill_in(self, text: str, path: Key) -> _ResolvedValue:
        """Return a string with what its references stand for in their places."""
        values: list[str] = []
        written: list[str] = []
        end = 0
        for match in _REFERENCE_PATTERN.finditer(text):
            before = text[end : match.start()]
            part = self._resolve_part(match, path)
            values += [before, part.value]
            written += [before, part.written]
            end = match.end()
        result = _ResolvedValue("".join([*values, text[end:]]), "".join([*written, text[end:]]))
        self._count(max(len(result.value), len(result.written)), path)
        return result

    def _resolve_part(self, match: re.Match[str], path: Key) -> _ResolvedValue:
        """Return the two texts of a reference within a string."""
        if match["name"] is None:
            return _ResolvedValue("${", match.group())
        target = self._resolve_reference(match, path)
        name = match["name"].strip()
        if name.startswith(ENVIRONMENT_PREFIX):
            if self._environ is None:
                return target
            return _ResolvedValue(self._text_of_variable(name, self._environ), target.written)
        return _ResolvedValue(
            self._text_of(target.value, match, path), self._text_of(target.written, match, path)
        )

    def _text_of(self, value: Any, match: re.Match[str], path: Key) -> str:
        if isinstance(value, dict | list):
            kind = "list"
            if isinstance(value, dict):
                kind = "table"
            self._fail(path, f"{match.group()} is a {kind} and cannot stand within a string")
        if isinstance(value, bool):
            return str(value).lower()
        return str(value)

    def _resolve_reference(self, match: re.Match[str], path: Key) -> _ResolvedValue:
        """Return what a reference stands for."""
        name = match["name"].strip()
        self._count(len(match.group()), path)
        if not name or not match["end"]:
            self._fail(
                path,
                f"{match.group()} is no reference",
                "write ${section.key} or ${env:NAME:-default}",
            )
        if name.startswith(ENVIRONMENT_PREFIX):
            if self._environ is None:
                return _ResolvedValue(match.group(), match.group())
            variable, has_default, _ = name.removeprefix(ENVIRONMENT_PREFIX).partition(":-")
            if variable not in self._environ and not has_default:
                hint = f"set it, or give a default: ${{env:{variable}:-…}}"
                self._fail(path, f'the environment variable "{variable}" is not set', hint)
            value = read_variable(self._text_of_variable(name, self._environ))
            return _ResolvedValue(value, match.group())
        if name == FOLD_REFERENCE:
            return self._resolve_fold(path)
        target: Any = self._tree
        key = tuple(name.split("."))
        for part in key:
            if isinstance(target, dict) and part in target:
                target = target[part]
            elif isinstance(target, list) and part.isdecimal() and int(part) < len(target):
                target = target[int(part)]
            else:
                self._fail(
                    path, f'${{{name}}}: the pipeline sets no key "{name}"', self._nearest_key(name)
                )
        return self.resolve(target, key)

    def _resolve_fold(self, path: Key) -> _ResolvedValue:
        """Return the number of the fold: `run.fold`, or the first one where `[sweep]` has folds."""
        run = self._tree.get("run")
        if isinstance(run, dict) and "fold" in run:
            return self.resolve(run["fold"], ("run", "fold"))
        sweep = self._tree.get("sweep")
        if isinstance(sweep, dict) and "folds" in sweep:
            return _ResolvedValue(0, 0)
        return self._fail(
            path,
            "${fold}: there are no folds",
            "write folds = 5 in [sweep], or a number as run.fold",
        )

    def _nearest_key(self, name: str) -> str:
        if len(self.problems) >= MAX_SHOWN_PROBLEMS:  # each looks through all keys
            return ""
        return nearest(name, [".".join(key) for key, _ in walk(self._tree) if key])

    def _text_of_variable(self, name: str, environ: Mapping[str, str]) -> str:
        """Return the characters of a variable, or of its default."""
        variable, _, default = name.removeprefix(ENVIRONMENT_PREFIX).partition(":-")
        return environ.get(variable) or default

    def _count(self, made: int, path: Key) -> None:
        self._made += made
        if self._made > MOST_MADE:
            self._fail(
                path,
                f"the references of this pipeline put more than {MOST_MADE:,} characters and"
                " entries",
            )

    def _fail(self, path: Key, message: str, hint: str = "") -> NoReturn:
        problem = Problem(message, self._places.of(path), hint)
        for key in (path, *self._within):
            self.problems.setdefault(key, problem)
        raise _UnresolvedError


def public(resolved: dict[str, Any], written: dict[str, Any]) -> Pipeline:
    """Return the valid pipeline of `resolved` with the environment's references of `written`."""
    left = dict(iter_environment_keys(written))
    while True:
        try:
            return Pipeline.model_validate(written)
        except ValidationError as error:
            wrong = [key_of(details) for details in error.errors(include_url=False)]
            refused = [
                key for key in left if any(key[: len(item)] == item[: len(key)] for item in wrong)
            ]
            if not left:
                raise
            for key in refused or [*left]:
                del left[key]
                table = written
                value = resolved
                for part in key[:-1]:
                    table = _inside(table, part)
                    value = _inside(value, part)
                table[int(key[-1]) if isinstance(table, list) else key[-1]] = escape(
                    _inside(value, key[-1])
                )


def iter_environment_keys(tree: Any) -> Iterator[tuple[Key, str]]:
    """Yield the key of each string that refers to the environment, and the string."""
    return (
        (key, value)
        for key, value in walk(tree)
        if isinstance(value, str) and list_variables(value)
    )


def _inside(tree: Any, part: str) -> Any:
    return tree[int(part) if isinstance(tree, list) else part]
