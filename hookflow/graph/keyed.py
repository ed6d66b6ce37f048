"""Slots with keys: `metrics.accuracy` is a part of `metrics`.

Who touches a slot touches all of its parts; two parts have nothing to do with one another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator


def root(slot: str) -> str:
    return slot.partition(".")[0]


def wider(slot: str) -> Iterator[str]:
    """Yield the slots that a slot is a part of."""
    while "." in slot:
        slot = slot.rpartition(".")[0]
        yield slot


class Parts:
    """The slots that are touched at one point. Of two hooks that touch the same, the same name is among the parts."""

    def __init__(self, names: Iterable[str]) -> None:
        self._parts: dict[str, list[str]] = {}
        for name in dict.fromkeys(names):
            for slot in (name, *wider(name)):
                self._parts.setdefault(slot, []).append(name)

    def of(self, slots: Iterable[str]) -> set[str]:
        """Return the slots with all of their parts that anybody touches."""
        return {part for slot in slots for part in self._parts[slot]}


def widest(slots: Collection[str]) -> tuple[str, ...]:
    """Return the slots without those that are a part of another one."""
    return tuple(sorted(slot for slot in slots if not any(other in slots for other in wider(slot))))
