"""The keys that a pipeline removes from the one that it `extends`.

`unset` removes keys, and `replace = true` removes a table.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hookflow.errors import Problem, UserError, Where, nearest_or_all
from hookflow.pipeline.source_map import Key, SourceMap, format_key, split_key, walk

REPLACE_KEY = "replace"
UNSET = "unset"


def take_unset_keys(tree: dict[str, Any], places: SourceMap) -> list[tuple[Key, Where]]:
    """Take `unset` out of the tables of a file, and return its keys with their places.

    Raises UserError.
    """
    written = tree.pop(UNSET, [])
    where = places.of(UNSET)
    example = 'write e.g. unset = ["data.train.loader.batch_size"]'
    if not isinstance(written, list):
        message = "unset must be a list of keys, in quotes"
        raise UserError(Problem(message, where, example))
    keys = []
    problems = []
    for number, text in enumerate(written):
        place = places.of((UNSET, str(number)))
        key = _split(text)
        if key is None:
            problems.append(Problem(f"unset: {text!r} is no key", place, example))
        else:
            keys.append((key, place))
    if problems:
        raise UserError(problems)
    return keys


def _split(text: Any) -> Key | None:
    """Return the parts of a dotted key; None for what is none."""
    if not isinstance(text, str):
        return None
    try:
        key, rest = split_key(f"{text} = 0")
    except ValueError:
        return None
    if rest != "0" or not all(key):
        return None
    return key


def remove_keys(base: dict[str, Any], keys: list[tuple[Key, Where]], named: str) -> None:
    """Remove keys from the tables of a base, which is called `named`.

    Raises UserError for those that it lacks.
    """
    problems = []
    for key, where in keys:
        *route, last = key
        table: Any = base
        for part in route:
            if isinstance(table, dict):
                table = table.get(part)
            else:
                table = None
        if isinstance(table, dict) and last in table:
            del table[last]
            continue
        hint = ""
        if isinstance(table, list):
            hint = "no entry of a list can be unset: give the whole list"
        if isinstance(table, dict):
            hint = nearest_or_all(last, table)
        problems.append(Problem(f'unset: {named} has no "{format_key(key)}"', where, hint))
    if problems:
        raise UserError(problems)


def take_replacing_tables(tree: dict[str, Any]) -> set[Key]:
    """Take `replace = true` out of the tables of a file, and return their keys.

    In `args` it is an argument of what is made, and stays.
    """
    replacing = set()
    for key, value in [*walk(tree)]:
        if key[-1:] == (REPLACE_KEY,) and value is True and len(key) > 1 and "args" not in key:
            replacing.add(key[:-1])
    for key in replacing:
        table: Any = tree
        for part in key:
            if isinstance(table, list):
                table = table[int(part)]
            else:
                table = table[part]
        del table[REPLACE_KEY]
    return replacing


def merge_hint(key: Key, message: str, tree: Mapping[str, Any], places: SourceMap) -> str:
    """Return the way out where a table cannot be, since its keys come from two files.

    It is empty for any other message. The keys are those of the table that the message names.
    """
    table: Any = tree
    for part in key:
        if isinstance(table, Mapping):
            table = table.get(part)
        else:
            table = None
    if not isinstance(table, Mapping):
        return ""
    named = []
    for name in table:
        if _names(message, name):
            named.append((name, places.of((*key, name))))
    files = {where.source for _, where in named}
    if len(files) < 2:
        return ""
    stated = " and ".join(f"{name} is of {where.at_line}" for name, where in named)
    below = next(iter(_from_base(named)))
    whole = format_key(key)
    way_out = f'unset = ["{whole}.{below}"] at the top of the file takes it away'
    return (
        f"{stated}\n    {way_out}; or replace the whole table: {key[-1]} = {{ replace = true, … }}"
    )


def _names(message: str, key: str) -> bool:
    words = message.replace(",", " ").replace(";", " ").replace('"', " ").split()
    return key in words


def _from_base(named: list[tuple[str, Where]]) -> Iterator[str]:
    """Yield the keys that come from another file than the last one: tables of a base come first."""
    last = named[-1][1].source
    for name, where in named:
        if where.source != last:
            yield name
