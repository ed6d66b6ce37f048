"""What the classes of a pipeline's hooks say of themselves: each is looked into once, however many hooks are of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from hookflow.errors import Where
from hookflow.graph.points import Points
from hookflow.graph.slots import Verb
from hookflow.hooks.inspect import Issue, Method, about, methods, names_of, slots, wrong_attributes


class Inspected:
    """The hooks of one compilation by their `use`, as `find` finds them."""

    def __init__(self, find: Callable[[str, Where | None], Callable[..., Any]], points: Points) -> None:
        self._find = find
        self._points = points
        self._found: dict[str, Callable[..., Any]] = {}
        self._about: dict[str, str] = {}
        self._names: dict[tuple[str, str], tuple[str, ...]] = {}
        self._methods: dict[str, tuple[list[Method], list[Issue]]] = {}
        self._slots: dict[tuple[str, Verb], tuple[dict[str, tuple[str, ...]], list[Issue]]] = {}

    def find(self, use: str, where: Where | None) -> Callable[..., Any]:
        """Return the class or function that `use` names. Raises UserError at `where` if there is none."""
        if use not in self._found:
            self._found[use] = self._find(use, where)
        return self._found[use]

    def about(self, use: str) -> str:
        """Return the first line of what a class or function says of itself."""
        if use not in self._about:
            self._about[use] = about(self._found[use])
        return self._about[use]

    def names(self, use: str, key: str) -> tuple[str, ...]:
        """Return the names that an attribute holds."""
        if (use, key) not in self._names:
            self._names[use, key] = names_of(self._found[use], key)
        return self._names[use, key]

    def methods(self, use: str) -> tuple[list[Method], list[Issue]]:
        """Return the methods of a class that are named like points (a plain function has none), and what is wrong."""
        if use not in self._methods:
            hook = self._found[use]
            there, issues = methods(hook, self._points) if isinstance(hook, type) else ([], [])
            self._methods[use] = there, [*issues, *wrong_attributes(hook, self._points)]
        return self._methods[use]

    def slots(self, use: str, kind: Verb, names: Collection[str]) -> tuple[dict[str, tuple[str, ...]], list[Issue]]:
        """Return the slots that each method reads or writes, and what is wrong; `names` are those of its methods."""
        if (use, kind) not in self._slots:
            self._slots[use, kind] = slots(self._found[use], kind, names)
        return self._slots[use, kind]
