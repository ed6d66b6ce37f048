"""Which runs of an index are shown, in which order, with which columns.

That is filters, sorting, groups, and keys that differ.
"""

import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.monitor.index import RUN_KEYS, Row, read_stated_values
from hookflow.numbers import format_age, format_span, number, out_of
from hookflow.pipeline.condition import ConditionError, parse_condition
from hookflow.text import CONDITION_GLYPHS

IN_OTHER_COLUMNS = ("run.name", "run.dir", "run.max_epochs")
"""Keys that are no column of their own where runs differ in them."""

MAX_DIFFERING_KEYS = 6
"""Keys in which runs differ that are shown unless columns are named."""

KEY_PATTERN = re.compile(r'"(?:[^"\\]|\\.)*"(?=:)')
"""The key at the beginning of a line of a pipeline's text."""

CONDITION_CONSTANTS = {"true": True, "false": False}


def list_keys(rows: Iterable[Row]) -> list[str]:
    """Return every key that a run has."""
    values = dict.fromkeys(RUN_KEYS)
    config: dict[str, None] = {}
    for row in rows:
        values |= dict.fromkeys(row.values)
        config |= dict.fromkeys(row.config)
    return [*(values | config)]


def check_keys(keys: Iterable[str], rows: Sequence[Row], place: str) -> None:
    """Raise UserError for each key that no run has, with the nearest that one has."""
    unknown = []
    for key in dict.fromkeys(keys):
        if key not in RUN_KEYS and all(row.get(key) is None for row in rows):
            unknown.append(key)
    if not unknown:
        return
    known = list_keys(rows)  # a key without any value is known, too
    problems = []
    for key in unknown:
        if key not in known:
            problems.append(
                Problem(f'no run has the key "{key}"', Where(place), _nearest(key, known))
            )
    if problems:
        raise UserError(problems)


def _nearest(key: str, known: Collection[str]) -> str:
    for name in known:
        if "/" in name and key in name.split("/"):
            return f'did you mean "{name}"? A condition has it as value("{name}")'
    for name in known:
        if name.endswith(f".{key}"):
            return f'did you mean "{name}"?'
    return nearest(key, known)


def parse_filter(text: str, rows: Sequence[Row], place: str = "--filter") -> Callable[[Row], bool]:
    """Return whether a run is meant, as a function.

    Raises UserError where the filter cannot be understood.
    """
    try:
        condition = parse_condition(text, strings=True)
    except ConditionError as error:
        raise UserError(Problem(str(error), Where(place), error.hint)) from None
    check_keys(sorted(condition.names - CONDITION_CONSTANTS.keys()), rows, place)

    def is_meant(row: Row) -> bool:
        return condition(
            lambda name: CONDITION_CONSTANTS[name] if name in CONDITION_CONSTANTS else row.get(name)
        )

    return is_meant


def select(
    rows: list[Row],
    condition: str | None,
    sort: str | None,
    keys: Sequence[str] = (),
    group: str | None = None,
) -> list[Row]:
    """Return the runs that a condition holds for, sorted by a key.

    Raises UserError where the condition cannot be understood, or no run has a key that is named
    here or in `keys`.
    """
    if not rows:
        return rows
    check_keys(keys, rows, "--columns")
    if sort is not None:
        check_keys([sort.removeprefix("-")], rows, "--sort")
    if group:
        check_keys([group], rows, "--group")
    if condition is not None:
        rows = [*filter(parse_filter(condition, rows), rows)]
    if sort is not None:
        rows = in_order_of(rows, sort)
    return rows


def in_order_of(rows: Iterable[Row], key: str) -> list[Row]:
    """Return the runs by the value of a key, the largest first for "-KEY".

    Those without a value come last.
    """
    name = key.removeprefix("-")
    ranked: list[tuple[tuple[bool, Any], Row]] = []
    without: list[Row] = []
    for row in rows:
        value = row.get(name)
        is_number = isinstance(value, int | float)
        if value is None or (is_number and math.isnan(value)):
            without.append(row)
        elif is_number:
            ranked.append(((False, value), row))  # numbers come before texts
        else:
            ranked.append(((True, str(value)), row))
    ranked.sort(key=lambda item: item[0], reverse=key.startswith("-"))
    return [row for _, row in ranked] + without


def groups(rows: Iterable[Row], key: str) -> list[tuple[Any, list[Row]]]:
    """Return the runs by their values of a key, in the order of these."""
    by_value: dict[str, list[Row]] = {}
    for row in in_order_of(rows, key):
        by_value.setdefault(str(row.get(key)), []).append(row)
    return [(group[0].get(key), group) for group in by_value.values()]


def sort_by_descent(rows: Sequence[Row]) -> list[tuple[int, Row]]:
    """Return the runs with the forks of each below it.

    With each is how many of its ancestors are listed above it.
    """
    ids = {row.id for row in rows}
    forks: dict[str, list[Row]] = {}
    waiting: list[tuple[int, Row]] = []
    for row in reversed(rows):
        parent = row.values["parent"]
        if parent in ids and parent != row.id:
            forks.setdefault(parent, []).append(row)
        else:
            waiting.append((0, row))
    result: list[tuple[int, Row]] = []
    while waiting:
        depth, row = waiting.pop()
        result.append((depth, row))
        waiting += [(depth + 1, fork) for fork in forks.pop(row.id, [])]
    if forks:  # records that name one another as parents
        listed = {row.path for _, row in result}
        result += [(0, row) for row in rows if row.path not in listed]
    return result


def find_differing_keys(rows: Sequence[Row]) -> list[str]:
    """Return the keys of the pipelines in which these runs differ.

    A hook that some of them lack counts by its first key.
    """
    names = _find_differing_names([row.config_json for row in rows])
    keys: dict[str, None] = {}
    for row in rows:
        if len(keys) == len(names):
            break
        keys |= dict.fromkeys(key for key in row.config if key in names)
    lacking = []  # how the keys of hooks begin that some runs lack
    for key in keys:
        if key.endswith(".use") and None in read_stated_values(rows, key):
            lacking.append(key.removesuffix("use"))
    shown = []
    for key in keys:
        is_part_of_lacking = key.startswith(tuple(lacking)) and not key.endswith(".use")
        if key not in IN_OTHER_COLUMNS and not is_part_of_lacking:
            shown.append(key)
    return shown


def _find_differing_names(texts: Sequence[str]) -> set[str]:
    """Return the keys whose lines are not the same in all of these texts.

    This is quick, as there may be 10,000.
    """
    if not texts:
        return set()
    first_lines = texts[0].split("\n")
    keys: set[str] = set()  # as JSON
    stretches = [texts[0]]  # what of the first text lies between the values that differ
    for text in texts:
        if _has_stretches(text, stretches):
            continue
        for line in set(first_lines).symmetric_difference(text.split("\n")):
            match = KEY_PATTERN.match(line)
            if match:
                keys.add(match[0])
        stretches = _split_without_values(keys, first_lines)
    return {json.loads(key) for key in keys}


def _has_stretches(text: str, stretches: Sequence[str]) -> bool:
    """Return whether a text has these stretches and nothing else.

    The rest of a line is between each two.
    """
    at = 0
    for stretch in stretches:
        if not text.startswith(stretch, at):
            return False
        at = text.find("\n", at + len(stretch))
    return at < 0


def _split_without_values(keys: Collection[str], lines: Sequence[str]) -> list[str]:
    """Return the stretches of a text between the values of these keys."""
    stretches = [""]
    for line in lines[1:-1]:
        match = KEY_PATTERN.match(line)
        if match and match[0] in keys:
            stretches[-1] += f"\n{match[0]}:"
            stretches.append("")
        else:
            stretches[-1] += f"\n{line}"
    stretches[-1] += "\n"
    return stretches


def default_columns(rows: Sequence[Row], differ: Sequence[str]) -> list[str]:
    """Return the columns of a table of these runs.

    They are what the runs are, what came of them, in what they `differ`.
    """
    names = {row.values["name"] for row in rows}
    metrics = Counter(row.values["metric"] for row in rows if row.values["metric"])
    given = {
        key for key in ("parent", "tags", "note", "reason") if any(row.values[key] for row in rows)
    }
    columns = ["id"]
    if len(names) > 1:
        columns.append("name")
    if "parent" in given:
        columns.append("parent")
    columns += ["status", "epoch", "iter"]
    columns += [f"best.{metric}" for metric, _ in metrics.most_common(2)]
    columns += differ[:MAX_DIFFERING_KEYS]
    columns.append("updated")
    if any(row.values["data"] == "SYNTHETIC" for row in rows):
        columns.append("data")
    columns += [key for key in ("tags", "note", "reason") if key in given]
    return columns


def make_headings(columns: Iterable[str]) -> list[str]:
    """Return the columns by the last parts of their keys, as many as tell them apart."""
    names = [column.removesuffix(".use") for column in columns]
    return [_make_heading(name, names) for name in names]


def _make_heading(name: str, names: Sequence[str]) -> str:
    """Return the shortest ending of a name that no other name has."""
    is_of_metric = name.startswith(("best.", "last."))
    if is_of_metric:
        parts = [name]
    else:
        parts = name.split(".")
    others = [f".{other}" for other in names if other != name]
    for first in reversed(range(len(parts))):
        ending = ".".join(parts[first:])
        if not any(other.endswith(f".{ending}") for other in others):
            return ending
    return name


def cell(row: Row, key: str, now: float) -> str:
    """Return a value as a table shows it.

    It is "-" where there is none, so that columns can be cut out in a pipe.
    """
    return make_cells([row], key, now)[0]


def make_cells(rows: Sequence[Row], key: str, now: float) -> list[str]:
    """Return the cells of several runs: quickly, as there may be 10,000."""
    values: list[Any] = [row.values.get(key) for row in rows]
    match key:
        case "status":
            return [_status(row) for row in rows]
        case "epoch":
            return [out_of(row.values["epoch"], row.values["epochs"]) for row in rows]
        case "begun":
            return [time.strftime("%Y-%m-%d %H:%M", time.localtime(value)) for value in values]
        case "updated":
            return ["-" if value is None else f"{format_age(now - value)} ago" for value in values]
        case "duration":
            return [format_span(value) for value in values]
    cells = [_text(value, number) for value in values]
    if None in values:
        of_pipelines = [_text(value, _format_shortest) for value in read_stated_values(rows, key)]
        for place, value in enumerate(values):
            if value is None:
                cells[place] = of_pipelines[place]
    return cells


def _status(row: Row) -> str:
    status = row.values["status"]
    text = f"{CONDITION_GLYPHS.get(status, '?')} {status}"
    if row.values["ranks"] > 1:
        text += f" ({row.values['ranks']} ranks)"
    return text


def _format_shortest(value: float) -> str:
    """Return a number of a pipeline, in which a rate may be written as 3e-05."""
    return min(str(value), number(value), key=len)


def _text(value: Any, write_float: Callable[[float], str]) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return write_float(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return str(value) or "-"
