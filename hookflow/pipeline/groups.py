"""Groups of hooks: `[groups.metrics] hooks = ["acc", "f1*"]`.

Elsewhere a group is written `group:metrics`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from hookflow.errors import Problem, Where, nearest, nearest_or_all

GROUP_PREFIX = "group:"
"""The begin of a name that means a group. No hook's name has a colon."""


def is_group(name: str) -> bool:
    """Say whether a name means a group, not a hook."""
    return name.startswith(GROUP_PREFIX)


def group_name(name: str) -> str:
    """Return the name of a group, which may be written with or without its prefix."""
    return name.removeprefix(GROUP_PREFIX)


def find_members(entries: Iterable[str], hooks: Iterable[str]) -> list[str]:
    """Return the hooks that the entries of a group name, in the order of `hooks`, each once."""
    hooks = list(hooks)
    members: set[str] = set()
    for entry in entries:
        members.update(match_entry(entry, hooks))
    return [hook for hook in hooks if hook in members]


def match_entry(entry: str, hooks: Iterable[str]) -> list[str]:
    """Return the hooks that one entry of a group names.

    The entry is a glob or a name. A hook named "name?" may be missing.
    """
    pattern = entry.removesuffix("?")
    if is_glob(pattern):
        return [hook for hook in hooks if fnmatchcase(hook, pattern)]
    return [hook for hook in hooks if hook == pattern]


def is_glob(entry: str) -> bool:
    return "*" in entry or "[" in entry


def missing_group(name: str, groups: Iterable[str], where: Where | None, statement: str) -> Problem:
    """Return the problem of a group that is not declared; `statement` begins its message."""
    names = list(groups)
    hint = "the pipeline has no groups: [groups.NAME] declares one"
    if names:
        hint = nearest_or_all(name, names, "there are")
    message = f'{statement} the group "{name}", which is not in this pipeline'
    return Problem(message, where, hint)


class GroupTable:
    """The members of each group of tables that may be invalid.

    A group that is no list of names has no members.
    """

    def __init__(self, tables: object, hooks: Sequence[str]) -> None:
        self.members: dict[str, list[str]] = {}
        if not isinstance(tables, Mapping):
            return
        for name, table in tables.items():
            entries: Any = None
            if isinstance(table, Mapping):
                entries = table.get("hooks")
            if isinstance(entries, list):
                names = [entry for entry in entries if isinstance(entry, str)]
                self.members[name] = find_members(names, hooks)

    def expand(self, names: Iterable[str]) -> list[str]:
        """Return hooks by name, with the members of a group in its place.

        An unknown group is left out.
        """
        expanded: dict[str, None] = {}
        for name in names:
            if is_group(name):
                expanded |= dict.fromkeys(self.members.get(group_name(name), ()))
            else:
                expanded[name] = None
        return list(expanded)

    def unknown(self, option: str, names: Iterable[str]) -> Iterator[Problem]:
        """Yield a problem for each unknown group that an option of the command line names."""
        for name in names:
            if is_group(name) and group_name(name) not in self.members:
                hint = nearest(group_name(name), self.members)
                message = f'there is no group "{group_name(name)}"'
                yield Problem(message, Where(f"{option} {name}"), hint)
