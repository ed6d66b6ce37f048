"""The layers of a pipeline: a TOML file, files that it extends, overrides, disabled hooks."""

import os.path
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.events.reading import open_regular
from hookflow.pipeline.base_removal import (
    UNSET,
    remove_keys,
    take_replacing_tables,
    take_unset_keys,
)
from hookflow.pipeline.components import names_component
from hookflow.pipeline.groups import GroupTable, is_group
from hookflow.pipeline.source_map import Key, SourceMap, format_key, split_key, walk

MOST_BYTES = 1_000_000
"""The largest pipeline file in bytes.

To read fifty times as much would take minutes, and all memory.
"""

TOO_LONG = f"longer than {MOST_BYTES // 1_000_000} MB, which is too much for a pipeline"


def read(path: Path, named: Where | None = None, *, recorded: bool = False) -> str:
    """Return the text of a file; `named` is the place of another file that names it.

    Raises UserError.
    """
    where = named or Where(str(path))
    file = ""
    if named:
        file = f'the file "{path}" '
    try:
        # A device may be endless, and a pipe may block.
        if named and path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(Problem(f'"{path}" is not a file', where))
        with open_regular(path) if recorded else path.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UserError(
                Problem(
                    f"{file or 'this '}is {TOO_LONG}", where, "data belong in files of their own"
                )
            )
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(Problem("this is not UTF-8 text", Where(str(path), line))) from None
    except FileNotFoundError:
        message = "there is no such file"
        if named:
            message = f'there is no file "{path}"'
        raise UserError(Problem(message, where, nearest_file(path))) from None
    except OSError as error:
        message = f"{file}cannot be read: {error.strerror}"
        raise UserError(Problem(message, where)) from None
    except ValueError:  # there is a NUL in it
        raise UserError(Problem(f"{path} is not the name of a file", where)) from None


def nearest_sibling(path: Path) -> str:
    """Return `did you mean "x.pt"?` for the file beside `path` with the nearest name.

    The file must have the suffix of `path`. The text is empty when there is none.
    """
    return nearest(path.name, [file.name for file in path.parent.glob(f"*{path.suffix}")])


def nearest_file(path: Path) -> str:
    """Return `did you mean "x.toml"?` for the file beside `path` with the nearest name.

    The text is empty when no name is close.
    """
    beside = sorted(file.stem for file in path.parent.glob("*.toml"))
    return nearest(path.stem, beside).replace('"?', '.toml"?')


def parse_toml(text: str, source: str) -> tuple[dict[str, Any], SourceMap]:
    """Return what a TOML text says, and where it says so; `source` is the name to show.

    Raises UserError.
    """
    try:
        result = tomli.loads(text)
        places = SourceMap.in_text(text, source)
    except tomli.TOMLDecodeError as error:
        raise UserError(_make_syntax_problem(error, text, source)) from None
    except ValueError:  # Python converts no more digits
        line = 0
        digits = re.search(r"\d[\d_]{4300,}", text)
        if digits:
            line = text.count("\n", 0, digits.start()) + 1
        message = "this is not TOML: an integer has too many digits"
        raise UserError(Problem(message, Where(source, line))) from None
    except RecursionError:
        raise UserError(Problem("this is not TOML: nested too deep", Where(source))) from None
    wrong = [Problem(message, places.of(key)) for key, message in find_impossible_integers(result)]
    if wrong:
        raise UserError(wrong)
    return result, places


def find_impossible_integers(tree: Any) -> Iterator[tuple[Key, str]]:
    """Yield the keys of integers that Python reads in hexadecimal digits but does not write out."""
    for key, value in walk(tree):
        # Python writes no integer of more than 4,300 digits, which are about 14,000 bits.
        if isinstance(value, int) and value.bit_length() > 14_000:
            yield key, f"{'.'.join(key)}: the integer has too many digits"


def _make_syntax_problem(error: tomli.TOMLDecodeError, text: str, source: str) -> Problem:
    message = re.sub(
        r"\('(.+?)',?\)", lambda match: f"[{match[1]}]".replace("', '", "."), error.msg
    )
    hint = ""
    if "character '\\n'" in message:
        hint = "a string must end on its line, with the quote that it began with"
    # The place of these errors is behind the mistake, so the column is left out.
    after = error.msg.startswith("Cannot") or error.lineno > text.count("\n") + 1
    where = Where(source, min(error.lineno, text.count("\n") + 1), 0 if after else error.colno)
    return Problem(f"this is not TOML: {message[:1].lower()}{message[1:]}", where, hint)


class Override(NamedTuple):
    """A `key=value` and where it was written.

    It was written in an option, or in Python, where each part of the value has its place.
    """

    text: str
    where: Where
    in_python: bool = False


OTHER_LENGTH = {"max_epochs": "max_iters", "max_iters": "max_epochs"}
"""The two lengths in `[run]`.

A layer that states one of them replaces the other one below it, unless it states both.
"""


def in_python(text: str) -> Override:
    """Return a `key=value` of the `overrides` that `hookflow.load` was given."""
    key, _ = split_key(text)
    return Override(text, Where(f"overrides{_format_subscript(format_key(key))}"), in_python=True)


def _format_subscript(name: str) -> str:
    if name.isdecimal():
        return f"[{name}]"
    return f'["{name}"]'


def apply(
    overrides: Iterable[Override], tree: dict[str, Any], places: SourceMap
) -> Iterator[Problem]:
    """Lay each `key=value` over `tree`, in place; `null` takes the key away.

    Yields those that cannot be.
    """
    laid: set[Key] = set()
    unit = _unit(tree)
    for override, where, of_python in overrides:
        try:
            key, text = split_key(override)
        except ValueError:
            yield Problem("this is not KEY=VALUE", where, "write e.g. --set run.seed=1")
            continue
        if text == "null":
            problem = _take_away(key, tree, where)
            if problem:
                yield problem
            continue
        value = read_value(text)
        run = tree.get("run")
        both = isinstance(run, dict) and OTHER_LENGTH.keys() <= run.keys()
        problem = _find_value_problem(key, text, value, where) or _put(key, value, tree, where)
        if problem:
            yield problem
            continue
        laid.add(key)
        other = _find_other_length(key)
        if other and not both and ("run", other) not in laid:
            tree["run"].pop(other, None)
        places.put(key, where)
        if of_python:
            _record_part_places(key, value, where, places)
    _keep_unit(tree, unit, laid)


def _find_value_problem(key: Key, text: str, value: Any, where: Where) -> Problem | None:
    """Return why the text of an override cannot be meant as it is, though it was read as `value`.

    It is None where the text can be meant.
    """
    if text in PYTHONS_WORDS:
        hint = (
            f"write {PYTHONS_WORDS[text]}; the text itself needs quotes:"
            f" {format_key(key)}='\"{text}\"'"
        )
        return Problem(f"{text} is a word of Python's", where, hint)
    if value == text and is_unfinished(text):
        return Problem(
            f"unterminated value {text}", where, "perhaps the shell took its quotes: put '…' around"
        )
    return None


def _find_other_length(key: Key) -> str | None:
    """Return the key of [run] that states the length in the other unit.

    It is None where `key` states no length.
    """
    if len(key) == 2 and key[0] == "run":
        return OTHER_LENGTH.get(key[1])
    return None


def _record_part_places(key: Key, value: Any, where: Where, places: SourceMap) -> None:
    """Note for each part of a value of Python's that it stands in that value."""
    for part, _ in walk(value):
        subscripts = "".join(map(_format_subscript, part))
        places.put((*key, *part), Where(where.source + subscripts))


def _unit(tree: Mapping[str, Any]) -> str:
    """Return the unit of the loop; empty without a length."""
    match tree.get("run"):
        case {"max_epochs": _}:
            return "ep"
        case {"max_iters": _}:
            return "it"
    return ""


def _keep_unit(tree: Mapping[str, Any], unit: str, stated: Collection[Key]) -> None:
    """Write out the unit that a bare `val_every` had before another length was stated.

    A `val_every` that was stated together with that length stays as it is.
    """
    if "" in (unit, now := _unit(tree)) or unit == now:
        return
    for key, every in [*walk(tree)]:
        is_interval = key[-1:] == ("val_every",) and (len(key) == 2 or key[:2] == ("data", "val"))
        if is_interval and type(every) is int and every > 0 and key not in stated:
            _put(key, f"{every}{unit}", tree, Where(""))


def read_value(text: str) -> Any:
    """Return the TOML value that `text` is; text that is none, and a date, stands for itself.

    So does a number that a float cannot hold, since it is rather an identifier: of `12e45678`
    infinity would be left.
    """
    try:
        values = tomli.loads(f"values = [{text}]")["values"]
    except (ValueError, RecursionError):  # it is no TOML, or nested too deep
        return text
    stands = (
        len(values) == 1
        and not isinstance(values[0], date | time)
        and not any(find_impossible_integers(values))
    )
    if not stands or (isinstance(values[0], float) and _is_beyond_float(text, values[0])):
        return text
    return values[0]


def _is_beyond_float(text: str, value: float) -> bool:
    """Say whether a number in digits is too large for a float, or too small and not 0."""
    if not any(character.isdigit() for character in text):  # inf and nan
        return False
    return not isfinite(value) or (value == 0 and Decimal(text.replace("_", "")) != 0)


PYTHONS_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Python's words in TOML, and `null` for `--set`.

As texts they would be true in an `if`, each of them.
"""


def is_unfinished(text: str) -> bool:
    """Say whether a text that is no TOML was meant as a list, a table or a string.

    `{run}/x` and `[ab]*.w` are names. A name has more behind its brackets, or a single word in its
    braces.
    """
    if text.startswith(('"', "'")):
        return True
    if text.startswith("{"):
        return re.match(r"\{\w+\}", text) is None
    if text.startswith("["):
        return re.match(r"\[[^\[\],]+\][^\[\],]", text) is None
    return False


def _put(key: Key, value: Any, tree: Any, where: Where) -> Problem | None:
    """Set the value, making tables on the way. The whole is validated later."""
    for depth, name in enumerate(key):
        last = depth == len(key) - 1
        if isinstance(tree, list):
            if not name.isdecimal() or int(name) >= len(tree):
                there = f"its {len(tree)} entries are counted from 0"
                message = f'"{".".join(key[:depth])}" is a list and has no "{name}"'
                return Problem(message, where, there)
            index: Any = int(name)
        elif isinstance(tree, dict):
            index = name
        else:
            message = f'"{".".join(key[:depth])}" is a plain value and has no keys'
            return Problem(message, where)
        if last:
            tree[index] = value
        elif isinstance(tree, dict):
            tree = tree.setdefault(index, {})
        else:
            tree = tree[index]
    return None


def _take_away(key: Key, tree: Any, where: Where) -> Problem | None:
    """Remove a key.

    That one is not there is a mistake, but for a length, which may have given way already.
    """
    *route, last = key
    for depth, name in enumerate(route):
        if isinstance(tree, dict):
            tree = tree.get(name)
        elif isinstance(tree, list) and name.isdecimal() and int(name) < len(tree):
            tree = tree[int(name)]
        elif isinstance(tree, list):
            there = f"its {len(tree)} entries are counted from 0"
            message = f'"{format_key(tuple(key[:depth]))}" is a list and has no "{name}"'
            return Problem(message, where, there)
        else:
            tree = None
    if isinstance(tree, list):
        whole = format_key(tuple(route))
        hint = f"give the whole list: {whole}=[…]"
        message = f"null takes a key away, and no entry of the list {whole}"
        return Problem(message, where, hint)
    if isinstance(tree, dict) and last in tree:
        del tree[last]
    elif last not in OTHER_LENGTH or route != ["run"]:
        hint = ""
        if isinstance(tree, dict):
            hint = nearest(last, tree)
        message = f'there is no "{format_key(key)}" to take away'
        return Problem(message, where, hint)
    return None


def extended(
    tree: dict[str, Any],
    places: SourceMap,
    source: Path,
    on_the_way: tuple[tuple[Path, Where], ...] = (),
) -> tuple[dict[str, Any], SourceMap]:
    """Return the tables of a file merged over those that it extends, and the position of each key.

    Tables are merged key by key, and anything else is replaced; so is a table that `use`s something
    else than the one below it, because its arguments would not fit, and one with `replace = true`.
    The keys that the file says to `unset` are taken away from the base first. `on_the_way` are the
    files that each extend the next one, and where they say so. Raises UserError when a file cannot
    be read, or extends itself.
    """
    if "extends" not in tree:
        if UNSET in tree:
            message = "unset takes keys away from what a file extends, and this one extends nothing"
            raise UserError(Problem(message, places.of(UNSET)))
        return tree, places
    named = tree.pop("extends")
    where = places.of("extends")
    if not isinstance(named, str) or "\0" in named:
        hint = "one file; what that one extends, it says itself"
        message = "extends must be the name of a file, in quotes"
        raise UserError(Problem(message, where, hint))
    route = (*on_the_way, (source, where))
    base = _find_base(named, route)
    whole, base_places = extended(*parse_toml(read(base, where), str(base)), base, route)
    folder = os.path.dirname(named)  # noqa: PTH120  # a Path would drop the "./" that a file begins with
    if folder:
        _rebase_file_paths(whole, folder)
    unset = take_unset_keys(tree, places)
    remove_keys(whole, unset, str(base))
    replacing = take_replacing_tables(tree)
    unit = _unit(whole)
    _replace_length(whole.get("run"), tree.get("run"))
    whole_places = SourceMap(str(source))
    for name in whole:
        whole_places.take((name,), base_places)
    _merge_tables(whole, tree, (), whole_places, places, replacing)
    _keep_unit(whole, unit, {key for key, _ in walk(tree)})
    return whole, whole_places


def _find_base(named: str, route: tuple[tuple[Path, Where], ...]) -> Path:
    """Return the file that the last one of `route` extends.

    Raises UserError where it is on the route already.
    """
    source, _ = route[-1]
    path = source.parent / named
    base = Path(os.path.normpath(path))
    if os.path.realpath(base) != os.path.realpath(path):
        base = path  # a link lies on its way: its ".." must stay
    files = [os.path.realpath(file) for file, _ in route]
    if os.path.realpath(base) not in files:
        return base
    circle = route[files.index(os.path.realpath(base)) :]
    names = " → ".join(str(file) for file, _ in (*circle, circle[0]))
    lines = "\n    ".join(str(place) for _, place in circle[1:])
    hint = ""
    if lines:
        hint = f"it goes on at {lines}"
    message = f"a pipeline cannot be built on itself: {names}"
    raise UserError(Problem(message, circle[0][1], hint))


def _replace_length(base_run: Any, run: Any) -> None:
    """Remove the base's length of a run where the file states it in the other unit."""
    if not isinstance(base_run, dict) or not isinstance(run, dict):
        return
    if OTHER_LENGTH.keys() <= base_run.keys():
        return
    for length, other in OTHER_LENGTH.items():
        if length in run:
            base_run.pop(other, None)


def _rebase_file_paths(base: dict[str, Any], folder: str) -> None:
    """Name each file of a base as a pipeline outside `folder` does, in place."""
    for key, text in [*walk(base)]:
        if isinstance(text, str) and (match := re.match(file_form(key), text)):
            path = os.path.join(folder, match[1].removeprefix("./"))  # noqa: PTH118  # it stays as its reader wrote it
            _put(key, text[: match.start(1)] + path + text[match.end(1) :], base, Where(""))


def file_form(key: Key) -> str:
    """Return the pattern of a value that names a file beside the pipeline, with its group.

    For a key of another kind it is a pattern that matches nothing.
    """
    if names_component(key) or key == ("distributed", "parallelize"):
        return r"(.*\.py):"
    is_weights = key[-1:] == ("weights",) or key[-2:] == ("weights", "file")
    if key[:1] == ("model",) and is_weights and "args" not in key:
        return r"([^~$].*)"
    return "(?!)"


def _merge_tables(
    base: dict[str, Any],
    tree: dict[str, Any],
    key: Key,
    whole: SourceMap,
    places: SourceMap,
    replacing: Collection[Key],
) -> None:
    for name, value in tree.items():
        below: Any = base.get(name)
        merged = (
            isinstance(value, dict) and isinstance(below, dict) and (*key, name) not in replacing
        )
        if merged and "use" in value and "use" in below:
            uses = [
                os.path.normpath(use) if ".py:" in str(use) else use
                for use in (value["use"], below["use"])
            ]
            merged = uses[0] == uses[1]
        if merged:
            _merge_tables(below, value, (*key, name), whole, places, replacing)
        else:
            base[name] = value
            whole.take((*key, name), places)


def make_disabling_overrides(
    hooks: Iterable[str], groups: GroupTable, without: Sequence[str], only: Sequence[str]
) -> list[Override]:
    """Return an override for each hook that is to be off.

    These are the hooks in `without`, and all but those in `only` if it has any.
    """
    off: dict[str, Where] = {}
    kept = groups.expand(only)
    for name in hooks:
        if only and name not in kept:
            off[name] = Where(f"--only {' --only '.join(only)}")
    for written in without:
        for name in groups.expand([written]):
            off[name] = Where(f"--without {written}")
    return [
        Override(f"{format_key(('hooks', name, 'enabled'))}=false", where)
        for name, where in off.items()
    ]


def unknown_hooks(
    hooks: Sequence[str], groups: GroupTable, without: Sequence[str], only: Sequence[str]
) -> Iterator[Problem]:
    """Yield a problem for each name that is no hook's, and no group's."""
    named = [("--without", name) for name in without] + [("--only", name) for name in only]
    for option, name in dict.fromkeys(named):
        if is_group(name):
            yield from groups.unknown(option, [name])
        elif name not in hooks:
            hint = nearest(name, hooks) or (
                f"its hooks are {', '.join(hooks)}" if hooks else "it has no hooks"
            )
            message = f'there is no hook "{name}" in this pipeline'
            yield Problem(message, Where(f"{option} {name}"), hint)
