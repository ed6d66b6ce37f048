"""The layers of a pipeline: a TOML file, the files that it extends, overrides, and hooks switched off."""

import os.path
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.events.reading import open_regular
from hookflow.pipeline.components import names_component
from hookflow.pipeline.source_map import Key, SourceMap, dotted, split_key, walk

MOST_BYTES = 1_000_000
"""The largest pipeline file in bytes. To read fifty times as much would take minutes, and all memory."""

TOO_LONG = f"longer than {MOST_BYTES // 1_000_000} MB, which is too much for a pipeline"


def read(path: Path, named: Where | None = None, *, recorded: bool = False) -> str:
    """Return the text of a file; `named` is the place of another file that names it. Raises UserError."""
    where = named or Where(str(path))
    file = f'the file "{path}" ' if named else ""
    try:
        if named and path.exists() and not (path.is_file() or path.is_dir()):  # an endless device, or a pipe
            raise UserError(Problem(f'"{path}" is not a file', where))
        with open_regular(path) if recorded else path.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UserError(Problem(f"{file or 'this '}is {TOO_LONG}", where, "data belong in files of their own"))
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(Problem("this is not UTF-8 text", Where(str(path), line))) from None
    except FileNotFoundError:
        message = f'there is no file "{path}"' if named else "there is no such file"
        raise UserError(Problem(message, where, nearest_file(path))) from None
    except OSError as error:
        raise UserError(Problem(f"{file}cannot be read: {error.strerror}", where)) from None
    except ValueError:  # there is a NUL in it
        raise UserError(Problem(f"{path} is not the name of a file", where)) from None


def nearest_sibling(path: Path) -> str:
    """Return `did you mean "x.pt"?` for the file beside `path`, of its suffix, with the nearest name, or nothing."""
    return nearest(path.name, [file.name for file in path.parent.glob(f"*{path.suffix}")])


def nearest_file(path: Path) -> str:
    """Return `did you mean "x.toml"?` for the file beside `path` with the nearest name; empty when none is close."""
    beside = sorted(file.stem for file in path.parent.glob("*.toml"))
    return nearest(path.stem, beside).replace('"?', '.toml"?')


def tables(text: str, source: str) -> tuple[dict[str, Any], SourceMap]:
    """Return what a TOML text says, and where it says so; `source` is the name to show. Raises UserError."""
    try:
        result, places = tomli.loads(text), SourceMap.in_text(text, source)
    except tomli.TOMLDecodeError as error:
        raise UserError(_syntax(error, text, source)) from None
    except ValueError:  # Python converts no more digits
        line = text.count("\n", 0, digits.start()) + 1 if (digits := re.search(r"\d[\d_]{4300,}", text)) else 0
        raise UserError(Problem("this is not TOML: an integer has too many digits", Where(source, line))) from None
    except RecursionError:
        raise UserError(Problem("this is not TOML: nested too deep", Where(source))) from None
    if wrong := [Problem(message, places.of(key)) for key, message in impossible(result)]:
        raise UserError(wrong)
    return result, places


def impossible(tree: Any) -> Iterator[tuple[Key, str]]:
    """Yield the keys of integers that Python reads, in hexadecimal digits, but does not write out."""
    for key, value in walk(tree):
        if isinstance(value, int) and value.bit_length() > 14_000:  # Python writes no more than 4,300 digits
            yield key, f"{'.'.join(key)}: the integer has too many digits"


def _syntax(error: tomli.TOMLDecodeError, text: str, source: str) -> Problem:
    message = re.sub(r"\('(.+?)',?\)", lambda match: f"[{match[1]}]".replace("', '", "."), error.msg)
    hint = "a string must end on its line, with the quote that it began with" if "character '\\n'" in message else ""
    after = error.msg.startswith("Cannot") or error.lineno > text.count("\n") + 1  # the place is behind what it means
    where = Where(source, min(error.lineno, text.count("\n") + 1), 0 if after else error.colno)
    return Problem(f"this is not TOML: {message[:1].lower()}{message[1:]}", where, hint)


class Override(NamedTuple):
    """A `key=value`, and where it was said: by an option, or in Python, where each part of the value has its place."""

    text: str
    where: Where
    in_python: bool = False


OTHER_LENGTH = {"max_epochs": "max_iters", "max_iters": "max_epochs"}
"""The two lengths in `[run]`: either takes the place of the other in what it is laid over, unless that has both."""


def in_python(text: str) -> Override:
    """Return a `key=value` of the `overrides` that `hookflow.load` was given."""
    key, _ = split_key(text)
    return Override(text, Where(f"overrides{_subscript(dotted(key))}"), in_python=True)


def _subscript(name: str) -> str:
    return f"[{name}]" if name.isdecimal() else f'["{name}"]'


def apply(overrides: Iterable[Override], tree: dict[str, Any], places: SourceMap) -> Iterator[Problem]:
    """Lay each `key=value` over `tree`, in place; `null` takes the key away. Yields those that cannot be."""
    laid: set[Key] = set()
    unit = _unit(tree)
    for override, where, of_python in overrides:
        try:
            key, text = split_key(override)
        except ValueError:
            yield Problem("this is not KEY=VALUE", where, "write e.g. --set run.seed=1")
            continue
        if text == "null":
            if problem := _take_away(key, tree, where):
                yield problem
            continue
        value = read_value(text)
        if value == text and is_unfinished(text):
            yield Problem(f"unterminated value {text}", where, "perhaps the shell took its quotes: put '…' around")
            continue
        run = tree.get("run")
        both = isinstance(run, dict) and OTHER_LENGTH.keys() <= run.keys()
        if problem := _put(key, value, tree, where):
            yield problem
            continue
        laid.add(key)
        other = OTHER_LENGTH.get(key[1]) if len(key) == 2 and key[0] == "run" else None
        if other and not both and ("run", other) not in laid:
            tree["run"].pop(other, None)
        places.put(key, where)
        for part, _ in walk(value) if of_python else ():
            places.put((*key, *part), Where(where.source + "".join(map(_subscript, part))))
    _keep_unit(tree, unit, laid)


def _unit(tree: Mapping[str, Any]) -> str:
    """Return the unit of the loop; empty without a length."""
    match tree.get("run"):
        case {"max_epochs": _}:
            return "ep"
        case {"max_iters": _}:
            return "it"
    return ""


def _keep_unit(tree: Mapping[str, Any], unit: str, stated: Collection[Key]) -> None:
    """Write out the unit that a bare `val_every` had before another length was stated, but for those stated with it."""
    if "" in (unit, now := _unit(tree)) or unit == now:
        return
    for key, every in [*walk(tree)]:
        is_interval = key[-1:] == ("val_every",) and (len(key) == 2 or key[:2] == ("data", "val"))
        if is_interval and type(every) is int and key not in stated:
            _put(key, f"{every}{unit}", tree, Where(""))


def read_value(text: str) -> Any:
    """Return the TOML value that `text` is; text that is none, and a date, stands for itself."""
    try:
        values = tomli.loads(f"values = [{text}]")["values"]
    except (ValueError, RecursionError):  # it is no TOML, or nested too deep
        return text
    stands = len(values) == 1 and not isinstance(values[0], date | time) and not any(impossible(values))
    return values[0] if stands else text


def is_unfinished(text: str) -> bool:
    """Say whether a text that is no TOML was meant as a list, a table or a string; `{run}/x` and `[ab]*.w` are names.

    A name has more behind its brackets, or a single word in its braces.
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
                return Problem(f'"{".".join(key[:depth])}" is a list and has no "{name}"', where, there)
            index: Any = int(name)
        elif isinstance(tree, dict):
            index = name
        else:
            return Problem(f'"{".".join(key[:depth])}" is a plain value and has no keys', where)
        if last:
            tree[index] = value
        else:
            tree = tree.setdefault(index, {}) if isinstance(tree, dict) else tree[index]
    return None


def _take_away(key: Key, tree: Any, where: Where) -> Problem | None:
    """Remove a key. That one is not there is a mistake, but for a length, which may have given way already."""
    *route, last = key
    for depth, name in enumerate(route):
        if isinstance(tree, dict):
            tree = tree.get(name)
        elif isinstance(tree, list) and name.isdecimal() and int(name) < len(tree):
            tree = tree[int(name)]
        elif isinstance(tree, list):
            there = f"its {len(tree)} entries are counted from 0"
            return Problem(f'"{dotted(tuple(key[:depth]))}" is a list and has no "{name}"', where, there)
        else:
            tree = None
    if isinstance(tree, list):
        whole = dotted(tuple(route))
        hint = f"give the whole list: {whole}=[…]"
        return Problem(f"null takes a key away, and no entry of the list {whole}", where, hint)
    if isinstance(tree, dict) and last in tree:
        del tree[last]
    elif last not in OTHER_LENGTH or route != ["run"]:
        hint = nearest(last, tree) if isinstance(tree, dict) else ""
        return Problem(f'there is no "{dotted(key)}" to take away', where, hint)
    return None


def extended(
    tree: dict[str, Any], places: SourceMap, source: Path, on_the_way: tuple[tuple[Path, Where], ...] = ()
) -> tuple[dict[str, Any], SourceMap]:
    """Return the tables of a file merged over those that it extends, and the position of each key.

    Tables are merged key by key, and anything else is replaced; so is a table that `use`s something else than the
    one below it, because its arguments would not fit. `on_the_way` are the files that each extend the next one, and
    where they say so. Raises UserError when a file cannot be read, or extends itself.
    """
    if "extends" not in tree:
        return tree, places
    named, where = tree.pop("extends"), places.of("extends")
    if not isinstance(named, str) or "\0" in named:
        hint = "one file; what that one extends, it says itself"
        raise UserError(Problem("extends must be the name of a file, in quotes", where, hint))
    route = (*on_the_way, (source, where))
    path = source.parent / named
    base = Path(os.path.normpath(path))
    if os.path.realpath(base) != os.path.realpath(path):
        base = path  # a link lies on its way: its ".." must stay
    files = [os.path.realpath(file) for file, _ in route]
    if os.path.realpath(base) in files:
        circle = route[files.index(os.path.realpath(base)) :]
        names = " → ".join(str(file) for file, _ in (*circle, circle[0]))
        lines = "\n    ".join(str(place) for _, place in circle[1:])
        hint = f"it goes on at {lines}" if lines else ""
        raise UserError(Problem(f"a pipeline cannot be built on itself: {names}", circle[0][1], hint))
    whole, base_places = extended(*tables(read(base, where), str(base)), base, route)
    if folder := os.path.dirname(named):  # noqa: PTH120  # a Path would drop the "./" that a file begins with
        _aim(whole, folder)
    unit, below, stated = _unit(whole), whole.get("run"), tree.get("run")
    if isinstance(below, dict) and isinstance(stated, dict) and not OTHER_LENGTH.keys() <= below.keys():
        for length, other in OTHER_LENGTH.items():
            if length in stated:
                below.pop(other, None)
    whole_places = SourceMap(str(source))
    for name in whole:
        whole_places.take((name,), base_places)
    _lay_over(whole, tree, (), whole_places, places)
    _keep_unit(whole, unit, {key for key, _ in walk(tree)})
    return whole, whole_places


def _aim(base: dict[str, Any], folder: str) -> None:
    """Name each file of a base as a pipeline outside `folder` does, in place."""
    for key, text in [*walk(base)]:
        if isinstance(text, str) and (match := re.match(file_form(key), text)):
            path = os.path.join(folder, match[1].removeprefix("./"))  # noqa: PTH118  # it stays as its reader wrote it
            _put(key, text[: match.start(1)] + path + text[match.end(1) :], base, Where(""))


def file_form(key: Key) -> str:
    """Return the pattern of a value that names a file beside the pipeline, its group; of other keys one of nothing."""
    if names_component(key) or key == ("distributed", "parallelize"):
        return r"(.*\.py):"
    is_weights = key[-1:] == ("weights",) or key[-2:] == ("weights", "file")
    return r"([^~$].*)" if key[:1] == ("model",) and is_weights and "args" not in key else "(?!)"


def _lay_over(base: dict[str, Any], tree: dict[str, Any], key: Key, whole: SourceMap, places: SourceMap) -> None:
    for name, value in tree.items():
        below: Any = base.get(name)
        merged = isinstance(value, dict) and isinstance(below, dict)
        if merged and "use" in value and "use" in below:
            uses = [os.path.normpath(use) if ".py:" in str(use) else use for use in (value["use"], below["use"])]
            merged = uses[0] == uses[1]
        if merged:
            _lay_over(below, value, (*key, name), whole, places)
        else:
            base[name] = value
            whole.take((*key, name), places)


def switched_off(hooks: Iterable[str], without: Sequence[str], only: Sequence[str]) -> list[Override]:
    """Return an override for each hook that is to be off: those in `without`, and, if `only` has any, all others."""
    off = {name: Where(f"--only {' --only '.join(only)}") for name in hooks if only and name not in only}
    off |= {name: Where(f"--without {name}") for name in without}
    return [Override(f"{dotted(('hooks', name, 'enabled'))}=false", where) for name, where in off.items()]


def unknown_hooks(hooks: Sequence[str], without: Sequence[str], only: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each name that is no hook's."""
    named = [("--without", name) for name in without] + [("--only", name) for name in only]
    for option, name in dict.fromkeys(named):
        if name not in hooks:
            hint = nearest(name, hooks) or (f"its hooks are {', '.join(hooks)}" if hooks else "it has no hooks")
            yield Problem(f'there is no hook "{name}" in this pipeline', Where(f"{option} {name}"), hint)
