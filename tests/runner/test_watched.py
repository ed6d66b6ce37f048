"""Watched mappings: who holds one cannot tell it from a dict, and what is done with it is noted."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hookflow.runner.observe.watched import WatchedDict

Operation = Callable[[Any], Any]
CONTENT = {"a": 1, "b": [2], "c": 3}
ALL = None
READS: dict[str, tuple[Operation, set[str | None]]] = {
    "by key": (lambda d: d["a"], {"a"}),
    "by a key that is not there": (lambda d: d["z"], {"z"}),
    "get": (lambda d: (d.get("a"), d.get("z"), d.get("z", 5)), {"a", "z"}),
    "in": (lambda d: ("a" in d, "z" in d), {"a", "z"}),
    "list": (lambda d: list(d), {ALL}),
    "keys": (lambda d: list(d.keys()), {ALL}),
    "values": (lambda d: list(d.values()), {ALL}),
    "items": (lambda d: list(d.items()), {ALL}),
    "copy": (lambda d: d.copy(), {ALL}),
    "copy.copy": (copy.copy, {ALL}),
    "deepcopy": (copy.deepcopy, {ALL}),
    "pickle": (lambda d: pickle.loads(pickle.dumps(d)), {ALL}),  # noqa: S301  # its own
    "json": (json.dumps, {ALL}),
    "equal": (lambda d: (d == CONTENT, d == {}), {ALL}),
    "unequal": (lambda d: (d != CONTENT, d != {}), {ALL}),
    "joined": (lambda d: d | {"e": 5}, {ALL}),
    "joined to another": (lambda d: {"e": 5} | d, {ALL, "a", "b", "c"}),
    "unpacked": (lambda d: {**d}, {ALL, "a", "b", "c"}),
    "as a dict": (dict, {ALL, "a", "b", "c"}),
    "backwards": (lambda d: list(reversed(d)), {ALL}),
    "shown": (repr, {ALL}),
}
WRITES: dict[str, tuple[Operation, set[str]]] = {
    "set": (lambda d: d.__setitem__("a", 9), {"a"}),
    "set anew": (lambda d: d.__setitem__("z", 9), {"z"}),
    "delete": (lambda d: d.__delitem__("a"), {"a"}),
    "delete what is not there": (lambda d: d.__delitem__("z"), set()),
    "update": (lambda d: d.update({"a": 9}, z=8), {"a", "z"}),
    "update by pairs": (lambda d: d.update([("a", 9)]), {"a"}),
    "joined in place": (lambda d: d.__ior__({"a": 9, "z": 8}), {"a", "z"}),
    "setdefault": (lambda d: (d.setdefault("a", 9), d.setdefault("z", 8), d.setdefault("y")), {"z", "y"}),
    "pop": (lambda d: (d.pop("a"), d.pop("z", 7), d.pop("z", None)), {"a"}),
    "pop what is not there": (lambda d: d.pop("z"), set()),
    "popitem": (lambda d: d.popitem(), {"c"}),
    "popitem until it is empty": (lambda d: [d.popitem() for _ in range(4)], {"a", "b", "c"}),
    "clear": (lambda d: d.clear(), {"a", "b", "c"}),
}


def done(operation: Operation, on: Any) -> Any:
    """Return what comes of it, or the kind of the exception."""
    try:
        return operation(on)
    except Exception as error:
        return type(error)


def watched(content: Mapping[str, Any], original: Any = None) -> tuple[WatchedDict, dict[str, set[str | None]]]:
    notes: dict[str, set[str | None]] = {"reads": set(), "writes": set()}
    return WatchedDict(content, lambda how, name: notes[how].add(name), original), notes


@pytest.mark.parametrize("name", READS)
def test_what_is_read_is_noted(name: str) -> None:
    operation, expected = READS[name]
    of, notes = watched(CONTENT)
    found = done(operation, of)
    assert found == done(operation, dict(CONTENT))
    assert type(found) is not WatchedDict, "what is made of it is nobody's to watch"
    assert notes == {"reads": expected, "writes": set()}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("kept", [True, False], ids=["over an original", "alone"])
def test_what_is_written_is_noted_and_done_to_the_original(name: str, kept: bool) -> None:
    operation, expected = WRITES[name]
    original, plain = dict(CONTENT), dict(CONTENT)
    of, notes = watched(CONTENT, original if kept else None)
    found = done(operation, of)
    assert found == done(operation, plain)
    assert notes["writes"] == expected
    assert of.quietly() == plain
    assert list(of.quietly()) == list(plain), "in this order"
    assert original == (plain if kept else CONTENT)


def test_it_takes_over_what_others_have_written() -> None:
    original = dict(CONTENT)
    of, notes = watched(CONTENT, original)
    del original["a"]
    original["d"] = 4
    of.take_over(original)
    assert of.quietly() == original
    assert notes == {"reads": set(), "writes": set()}
