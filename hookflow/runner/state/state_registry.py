"""The registry of state.

It has every part of a run that a checkpoint holds, in the order in which it is restored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from hookflow.errors import Problem, UserError
from hookflow.runner.checkpoint.shards import clone_leaf, mapped

SAME_MODEL = (
    "model and optimizer must be those of the checkpoint once after_load_checkpoint has fired; else"
    " start a new run"
)


class StateScope(Enum):
    """Which ranks have a state of their own."""

    SHARED = "shared"
    """All ranks have the same; that of the first is saved."""
    SHARDED = "sharded"
    """All ranks have the same, or each has a shard of its tensors."""
    PER_RANK = "per rank"
    """Each rank has its own."""
    PER_RANK_ITEM = "per rank, by item"
    """A dict, of which each item that differs between ranks is each rank's own.

    Other items are shared.
    """


class Stateful(Protocol):
    """An object with a state."""

    def state_dict(self) -> Any:
        """Return the state; its tensors may be those that go on changing."""

    def load_state_dict(self, state: Any, /) -> object:
        """Go on from what `state_dict` returned."""


@dataclass(frozen=True)
class StatefulPart:
    """A part of a run, registered by the name of its entry in a checkpoint."""

    name: str
    part: Stateful
    scope: StateScope
    is_optional: bool
    """Whether a checkpoint of this format may lack the entry."""
    changes_before_step: bool
    """Whether an iteration changes the state before its optimizer step."""
    is_large: bool
    """Whether the state is tensors that the run trains.

    A copy of these is made for a save alone.
    """


class StateRegistry:
    """The parts of a run that have a state. The order of registration is the order of restore."""

    def __init__(self) -> None:
        self._parts: dict[str, StatefulPart] = {}

    def register(
        self,
        name: str,
        part: Stateful,
        scope: StateScope = StateScope.SHARED,
        *,
        is_optional: bool = False,
        changes_before_step: bool = False,
        is_large: bool = False,
    ) -> None:
        """Add a part, which is restored after those before it."""
        if name in self._parts:
            raise ValueError(f'there are two states of the name "{name}"')
        self._parts[name] = StatefulPart(
            name, part, scope, is_optional, changes_before_step, is_large
        )

    def __iter__(self) -> Iterator[StatefulPart]:
        return iter(self._parts.values())

    def names(self, scope: StateScope) -> list[str]:
        """Return the names of the parts with a scope."""
        return [each.name for each in self if each.scope is scope]

    def capture(self) -> dict[str, Any]:
        """Return the state of every part by its name, without copies of tensors."""
        return {each.name: each.part.state_dict() for each in self}

    def copy(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a captured state with copies of what goes on changing.

        The tensors that the run trains are not copied.
        """
        copied = {}
        for name, entry in state.items():
            if name in self._parts and self._parts[name].is_large:
                copied[name] = entry
            else:
                copied[name] = mapped(entry, clone_leaf)
        return copied

    def restore(self, state: Mapping[str, Any], *, skipped: Collection[str] = ()) -> None:
        """Restore every part but those skipped.

        Raises UserError where the checkpoint lacks one that it must have.
        """
        for each in self:
            if each.name in skipped:
                continue
            if each.name in state:
                each.part.load_state_dict(state[each.name])
            elif not each.is_optional:
                message = f"the checkpoint does not fit this pipeline: it has no {each.name}"
                raise UserError(Problem(message, hint=SAME_MODEL))
