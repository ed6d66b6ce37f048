"""The number of examples in a batch, from the task, the source or the batch itself; never guessed.

A batch of lists has no size that could be read off it: eight images of 3×H×W are not three examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from inspect import signature
from operator import index as as_int
from typing import Any

from torch import Tensor

from hookflow.errors import Problem, UserError

HINT = (
    "let the source have a method batch_size(index), or the task a method batch_size(batch), that returns it; "
    "or give a dataset with a loader, which knows it"
)

Size = Callable[[int, Any], int | None]
"""From a batch's index in the epoch, and the batch, to its number of examples; None where unknown."""


class BatchSizes:
    """The sizes of the batches of one split. The source of these numbers is chosen here, before the first iteration.

    In this order: the task, by a method `batch_size(batch)`; the source, by the methods `batch_size(index)` for this
    rank and `global_batch_size(index)` for all of them; the batch itself, by `size_of`.

    `local(index, batch)` returns the examples of this rank in the source's latest batch, and `total(index, batch)`
    those of all ranks, which must all call it. If they are unknown, both return None, with one warning; over ranks and
    in gradient accumulation they raise UserError. `exact` says that no size will be None.
    """

    def __init__(
        self,
        source: Any,
        task: Any,
        split: str,
        *,
        say: Callable[..., None],
        world: int = 1,
        accumulate: int = 1,
        gather: Callable[[int], list[int]] = lambda mine: [mine],
    ) -> None:
        """Raises UserError when a method is there that cannot be called as it will be."""
        by_task = _method(task, "batch_size", "batch")
        here, everywhere = (_method(source, name, "index") for name in ("batch_size", "global_batch_size"))
        if world == 1:
            here = here or everywhere
        self.exact = bool(by_task or here or world > 1)
        self._of_batch: Callable[[Any], int | None] = by_task or size_of
        self.local: Size
        if by_task:
            self.local = lambda index, batch: by_task(batch)
        elif here:
            self.local = lambda index, batch: here(index)
        else:
            must = "over several ranks" if world > 1 else "in gradient accumulation" if accumulate > 1 else ""
            self.local = _of_batch(split, must, say)
        self.total = local = self.local
        if world > 1 and everywhere and not by_task:  # what a task counts need not be what the source counts
            self.total = lambda index, batch: everywhere(index)
        elif world > 1:
            self.total = lambda index, batch: sum(gather(local(index, batch) or 0))

    def replaced(self, batch: Any, before: int) -> int:
        """Return the size of a batch that a hook has put in the place of one of `before` examples."""
        size = self._of_batch(batch)
        return before if size is None else size


def size_of(batch: Any) -> int | None:
    """Return how many examples a batch has, where that cannot be mistaken; else None.

    That is the first dimension of a tensor; or of all tensors in a dict or a tuple, and in dicts within these, if they
    agree in it. In a list the tensors must also differ in their number of dimensions: `[images (N, C, H, W), classes
    (N,)]` is a batch of N, and a list of images may be of any size. The size of anything else is its length.
    """
    if isinstance(batch, Tensor):
        return batch.size(0) if batch.ndim else None
    listed = isinstance(batch, list)
    if listed or isinstance(batch, tuple):
        parts = [*batch]
    elif isinstance(batch, Mapping):
        parts = [*batch.values()]
    else:
        return len(batch) if isinstance(batch, Sized) else None
    size = dimensions = None
    could_be_examples = listed  # one tensor each, all alike
    for part in parts:  # which grows meanwhile by what is in dicts
        if isinstance(part, Tensor):
            if ndim := part.ndim:
                first = part.size(0)
                if size is None:
                    size, dimensions = first, ndim
                elif first != size:
                    return None
                elif ndim != dimensions:
                    could_be_examples = False
        elif not listed and isinstance(part, Mapping):
            parts += part.values()
    return None if could_be_examples else size


def _of_batch(split: str, must: str, say: Callable[..., None]) -> Size:
    """Return `size_of`, which raises UserError where it `must` know, and else warns once."""
    warned = False

    def size(index: int, batch: Any) -> int | None:
        nonlocal warned
        size = size_of(batch)
        if size is None and not warned:
            unknown = f"nothing says how many examples a batch of the {split} data has"
            if must:
                raise UserError(Problem(f"{unknown}; {must} it must be known", hint=HINT))
            warned = True
            without = "there is no samples/s" if split == "train" else "each batch counts alike in the means"
            say(f"{unknown}: {without}; {HINT}", "warn")
        return size

    return size


def _method(owner: Any, name: str, takes: str) -> Callable[[Any], int] | None:
    """Return a method as one that returns an int, if there is such a method: a number of that name is none."""
    method = getattr(owner, name, None)
    if not callable(method):
        return None
    try:
        signature(method).bind(None)
    except TypeError:
        message = f"{type(owner).__name__}.{name} must take the {takes}, and nothing else: {name}({takes})"
        raise UserError(Problem(message)) from None
    except ValueError:
        pass  # written in C, without a signature to read

    return lambda provided: as_int(method(provided))
