"""Which runs of an index are shown, in which order, with which columns: filters, sorting, groups, keys that differ."""

import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from types import NoneType
from typing import Any

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.monitor.index import FACTS, Row, stated
from hookflow.numbers import age, number, out_of, span
from hookflow.pipeline.condition import ConditionError, parse_condition
from hookflow.text import GLYPHS

IN_OTHER_COLUMNS = ("run.name", "run.dir", "run.max_epochs")
"""Keys that are no column of their own where runs differ in them."""

DIFFERENT = 6
"""Keys in which runs differ that are shown unless columns are named."""

KEY = re.compile(r'"(?:[^"\\]|\\.)*"(?=:)')
"""The key at the beginning of a line of a pipeline's text."""

CONSTANTS = {"true": True, "false": False}


def known_keys(rows: Iterable[Row]) -> list[str]:
    """Return every key that a run has."""
    keys = dict.fromkeys(FACTS) | dict.fromkeys(chain.from_iterable(row.values for row in rows))
    return [*(keys | dict.fromkeys(chain.from_iterable(row.config for row in rows)))]


def check_keys(keys: Iterable[str], rows: Sequence[Row], place: str) -> None:
    """Raise UserError for each key that no run has, with the nearest that one has."""
    unknown = [key for key in dict.fromkeys(keys) if key not in FACTS and all(row.get(key) is None for row in rows)]
    known = known_keys(rows) if unknown else ()
    if problems := [
        Problem(f'no run has the key "{key}"', Where(place), _nearest(key, known))
        for key in unknown
        if key not in known
    ]:
        raise UserError(problems)


def _nearest(key: str, known: Collection[str]) -> str:
    if divided := next((name for name in known if "/" in name and key in name.split("/")), ""):
        return f'did you mean "{divided}"? A condition has it as value("{divided}")'
    longer = [name for name in known if name.endswith(f".{key}")]
    return f'did you mean "{longer[0]}"?' if longer else nearest(key, known)


def parse_filter(text: str, rows: Sequence[Row], place: str = "--filter") -> Callable[[Row], bool]:
    """Return whether a run is meant, as a function. Raises UserError where the filter cannot be understood."""
    try:
        condition = parse_condition(text, strings=True)
    except ConditionError as error:
        raise UserError(Problem(str(error), Where(place), error.hint)) from None
    check_keys(sorted(condition.names - CONSTANTS.keys()), rows, place)
    return lambda row: condition(lambda name: CONSTANTS[name] if name in CONSTANTS else row.get(name))


def select(
    rows: list[Row], condition: str | None, sort: str | None, keys: Sequence[str] = (), group: str | None = None
) -> list[Row]:
    """Return the runs that a condition holds for, sorted by a key.

    Raises UserError where the condition cannot be understood, or no run has a key that is named here or in `keys`.
    """
    if not rows:
        return rows
    check_keys(keys, rows, "--columns")
    check_keys([sort.removeprefix("-")] if sort is not None else [], rows, "--sort")
    check_keys([group] if group else [], rows, "--group")
    if condition is not None:
        rows = [*filter(parse_filter(condition, rows), rows)]
    return rows if sort is None else in_order_of(rows, sort)


def in_order_of(rows: Iterable[Row], key: str) -> list[Row]:
    """Return the runs by the value of a key, the largest first for "-KEY"; those without a value come last."""
    name = key.removeprefix("-")
    placed: list[tuple[Any, Row]] = []
    others: list[tuple[Any, Row]] = []
    for row in rows:
        rank = _rank(row.get(name))
        (others if rank is None else placed).append((rank, row))
    placed.sort(key=lambda item: item[0], reverse=key.startswith("-"))
    return [row for _, row in (*placed, *others)]


def _rank(value: Any) -> tuple[bool, Any] | None:
    """Return what to compare a value by: numbers come before strings."""
    if isinstance(value, int | float):
        return None if math.isnan(value) else (False, value)
    return None if value is None else (True, str(value))


def groups(rows: Iterable[Row], key: str) -> list[tuple[Any, list[Row]]]:
    """Return the runs by their values of a key, in the order of these."""
    by_value: dict[str, list[Row]] = {}
    for row in in_order_of(rows, key):
        by_value.setdefault(str(row.get(key)), []).append(row)
    return [(group[0].get(key), group) for group in by_value.values()]


def by_descent(rows: Sequence[Row]) -> list[tuple[int, Row]]:
    """Return the runs with the forks of each below it, and how many of their ancestors are listed above each."""
    ids = {row.id for row in rows}
    children: dict[str | None, list[Row]] = {}
    for row in rows:
        parent = row.values["parent"]
        children.setdefault(parent if parent in ids and parent != row.id else None, []).append(row)
    result: list[tuple[int, Row]] = []
    waiting = [(0, row) for row in reversed(children.pop(None, []))]
    while waiting:
        depth, row = waiting.pop()
        result.append((depth, row))
        waiting += [(depth + 1, child) for child in reversed(children.pop(row.id, []))]
    rest = [row for row in rows if all(row is not there for _, there in result)] if children else []
    return [*result, *((0, row) for row in rest)]  # records that name one another as parents


def differing(rows: Sequence[Row]) -> list[str]:
    """Return the keys of the pipelines in which these runs differ; of a hook that some of them lack, the first one."""
    names = {json.loads(key) for key in _different([row.written for row in rows])}
    keys = dict[str, None]()
    for row in rows:
        if len(keys) == len(names):
            break
        keys |= dict.fromkeys(key for key in row.config if key in names)
    parts = {key.removesuffix("use") for key in keys if key.endswith(".use")}
    lacking = tuple(part for part in parts if None in stated(rows, f"{part}use"))
    shown = (key for key in keys if key.endswith(".use") or not key.startswith(lacking))
    return [key for key in shown if key not in IN_OTHER_COLUMNS]


def _different(texts: Sequence[str]) -> set[str]:
    """Return the keys, as JSON, whose lines differ between these texts: quickly, as there may be 10,000."""
    keys = set[str]()
    lines = texts[0].split("\n") if texts else []
    alike = texts[:1]  # the stretches of the first text up to each value that differs
    for text in texts:
        at = 0
        for stretch in alike:
            if not text.startswith(stretch, at):
                break
            at = text.find("\n", at + len(stretch))
        else:
            if at < 0:  # it has all of them, and nothing else
                continue
        keys |= {match[0] for match in map(KEY.match, {*lines}.symmetric_difference(text.split("\n"))) if match}
        alike = [""]
        for line in lines[1:-1]:
            differs = (match := KEY.match(line)) and match[0] in keys
            alike[-1] += f"\n{match[0]}:" if match and differs else f"\n{line}"
            alike += [""] * bool(differs)
        alike[-1] += "\n"
    return keys


def default_columns(rows: Sequence[Row], differ: Sequence[str]) -> list[str]:
    """Return the columns of a table of these runs: what they are, in what they `differ`, what came of it."""
    needed = ("metric", "name", "data", "parent", "tags", "note", "reason")
    values = dict(zip(needed, zip(*map(itemgetter(*needed), (row.values for row in rows)), strict=True), strict=True))
    metrics = Counter(filter(None, values["metric"]))

    def if_any(key: str) -> list[str]:
        return [key] * any(values[key])

    return [
        "id",
        *["name"] * (len({*values["name"]}) > 1),
        *if_any("parent"),
        *("status", "epoch", "iter"),
        *differ[:DIFFERENT],
        *(f"best.{metric}" for metric, _ in metrics.most_common(2)),
        "updated",
        *["data"] * ("SYNTHETIC" in values["data"]),
        *(key for name in ("tags", "note", "reason") for key in if_any(name)),
    ]


def headings(columns: Iterable[str]) -> list[str]:
    """Return the columns by the last parts of their keys, as many as tell them apart."""
    result = []
    columns = [column.removesuffix(".use") for column in columns]
    for column in columns:
        parts = [column] if column.startswith("best.") else column.split(".")
        endings = (".".join(parts[at:]) for at in range(len(parts) - 1, -1, -1))
        alike = [other for other in columns if other != column]
        alone = (end for end in endings if not any(f".{other}".endswith(f".{end}") for other in alike))
        result.append(next(alone, column))
    return result


def cell(row: Row, key: str, now: float) -> str:
    """Return a value as a table shows it; "-" where there is none, so that columns can be cut out in a pipe."""
    return column([row], key, now)[0]


def column(rows: Sequence[Row], key: str, now: float) -> list[str]:
    """Return the cells of several runs: quickly, as there may be 10,000."""
    values: list[Any] = [row.values.get(key) for row in rows]
    match key:
        case "status":
            several = (f" ({count} ranks)" if (count := row.values["ranks"]) > 1 else "" for row in rows)
            return [f"{GLYPHS.get(value, '?')} {value}{more}" for value, more in zip(values, several, strict=True)]
        case "epoch":
            return [out_of(value, row.values["epochs"]) for row, value in zip(rows, values, strict=True)]
        case "begun":
            return [time.strftime("%Y-%m-%d %H:%M", time.localtime(value)) for value in values]
        case "updated":
            return ["-" if value is None else f"{age(now - value)} ago" for value in values]
        case "duration":
            return [*map(span, values)]
    if None not in values:
        return _texts(values, number)
    of_pipelines = _texts(stated(rows, key), lambda value: min(str(value), number(value), key=len))
    if values.count(None) == len(values):
        return of_pipelines
    texts = _texts(values, number)
    return [other if value is None else text for value, text, other in zip(values, texts, of_pipelines, strict=True)]


def _texts(values: Sequence[Any], write_float: Callable[[float], str]) -> list[str]:
    write: dict[type, Callable[[Any], str]] = {
        float: write_float,
        bool: lambda value: str(value).lower(),
        list: lambda value: ", ".join(map(str, value)) or "-",
        str: lambda value: value or "-",
        NoneType: lambda value: "-",
    }
    types = {*map(type, values)}
    if len(types) == 1:
        return [*map(write.get(types.pop(), str), values)]
    return [write.get(type(value), str)(value) for value in values]


def html_table(rows: Sequence[Row]) -> str:
    """Return the runs as a table of HTML, with the curve of each one's metric."""
    from html import escape

    keys, now = default_columns(rows, differing(rows)), time.time()
    cells = [map(escape, column(rows, key, now)) for key in keys]
    return html_of([*headings(keys), "curve"], zip(*cells, (curve_svg(row.curve) for row in rows), strict=True))


def html_of(names: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a table of HTML with these headings; its cells are HTML."""
    from html import escape

    heads = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{each}</td>' for each in line)}</tr>" for line in lines)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def curve_svg(values: Sequence[float]) -> str:
    """Return a curve as SVG, which needs no library and no network."""
    finite = [(k, value) for k, value in enumerate(values) if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    low, high = min(value for _, value in finite), max(value for _, value in finite)
    places = [(80 * k / (len(values) - 1), 18 - 16 * (value - low) / ((high - low) or 1)) for k, value in finite]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    line = f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    return f'<svg width="80" height="20" role="img">{line}</svg>'
