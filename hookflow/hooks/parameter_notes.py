"""Notes of hooks for other hooks on a parameter or a buffer, without naming one another.

A note lives as long as its tensor. It holds the mask of a hook by a weak reference, so that it ends
with the hook.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(eq=False)
class ParameterNotes:
    """The notes on one parameter or buffer."""

    is_frozen: bool = False
    """Whether a hook keeps the parameter as it is in this iteration.

    The parameter may still have a gradient.
    """
    is_recomputed: bool = False
    """Whether a hook computes the buffer anew before each validation."""
    mask_reference: weakref.ref[Tensor] | None = None
    mask_changes: ClassVar[int] = 0
    """How often a mask of any parameter has been set in this process."""

    @property
    def mask(self) -> Tensor | None:
        """The mask that a hook keeps the parameter within: false where it is to be zero."""
        if self.mask_reference is None:
            return None
        return self.mask_reference()

    @mask.setter
    def mask(self, mask: Tensor) -> None:
        self.mask_reference = weakref.ref(mask)
        ParameterNotes.mask_changes += 1


def find_notes(tensor: Tensor) -> ParameterNotes:
    """Return the notes of a parameter or a buffer, which are empty at first."""
    notes = _all_notes()
    if tensor not in notes:
        notes[tensor] = ParameterNotes()
    result: ParameterNotes = notes[tensor]
    return result


@cache
def _all_notes() -> Any:
    from torch.utils.weak import WeakTensorKeyDictionary

    return WeakTensorKeyDictionary()
