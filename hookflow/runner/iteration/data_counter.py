"""The count of samples and tokens that a run has taken, where triggers are stated in them."""

from collections.abc import Callable
from typing import Any

from hookflow.errors import Problem, UserError
from hookflow.graph.plan import Plan
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.data.batches import BATCH_SIZE_HINT, BatchSizes, tokens_of_batch
from hookflow.runner.process.state import RunState


class DataCounter:
    """Counts the samples and tokens of each iteration, of all ranks, into the state of the run.

    An iteration calls `take` with each batch and `commit` at its end, so that both counts grow with
    that of the iterations. A batch that a hook skips or replaces counts as it has been read.
    """

    def __init__(
        self,
        state: RunState,
        sizes: BatchSizes,
        count_tokens: Callable[[Any], int] | None,
        gather: Callable[[int], list[int]] | None,
        *,
        counts_samples: bool,
    ) -> None:
        self._state = state
        self._sizes = sizes
        self._gather = gather
        self._count_tokens = count_tokens
        self._counts_samples = counts_samples
        self._samples = self._tokens = 0

    def take(self, index: int, batch: Any, total: int | None = None) -> None:
        """Count a batch by its index in the epoch.

        `total` is the samples of all ranks, where they are known. All ranks call it. Raises
        UserError where nothing says how many samples the batch has.
        """
        if self._counts_samples:
            samples = total
            if samples is None:
                samples = self._sizes.total(index, batch)
            if samples is None:
                message = (
                    "a trigger counts samples, and nothing says how many a batch of the training"
                    " data has"
                )
                raise UserError(Problem(message, hint=BATCH_SIZE_HINT))
            self._samples += samples
        if self._count_tokens is not None:
            tokens = self._count_tokens(batch)
            if self._gather is not None:
                tokens = sum(self._gather(tokens))
            self._tokens += tokens

    def commit(self) -> None:
        """Add what has been taken since the last call: the iteration is done."""
        self._state.samples += self._samples
        self._state.tokens += self._tokens
        self._samples = self._tokens = 0


def make_data_counter(
    parts: RunComponents,
    plan: Plan,
    state: RunState,
    sizes: BatchSizes | None,
    gather: Callable[[int], list[int]],
) -> DataCounter | None:
    """Return the counter that a plan's triggers need.

    It is None where they count neither samples nor tokens. Raises UserError where the loop is the
    user's own, or no method of the task counts tokens.
    """
    hooks: dict[str, str] = {}  # by unit: the first hook with such a trigger
    for binding in plan.bindings:
        for amount in binding.trigger.amounts:
            hooks.setdefault(amount.unit, binding.hook)
    if "samples" not in hooks and "tokens" not in hooks:
        return None
    if parts.is_attached:
        unit = "tokens"
        if "samples" in hooks:
            unit = "samples"
        message = (
            f'hook "{hooks[unit]}" counts {unit}, and in a loop of your own nothing counts them'
        )
        raise UserError(
            Problem(
                message, parts.place(f"hooks.{hooks[unit]}"), 'count iterations: every = "100it"'
            )
        )
    if sizes is None:  # nothing is trained
        return None
    count_tokens = None
    if "tokens" in hooks:
        count_tokens = tokens_of_batch(parts.task)
    if "tokens" in hooks and count_tokens is None:
        message = (
            f'hook "{hooks["tokens"]}" counts tokens, and {type(parts.task).__name__} does not say'
            " how many there are"
        )
        hint = "give the task a method batch_tokens(batch) that returns the tokens of a batch"
        raise UserError(Problem(message, parts.place(f"hooks.{hooks['tokens']}"), hint))
    several = None
    if parts.ranks.world > 1:
        several = gather
    return DataCounter(state, sizes, count_tokens, several, counts_samples="samples" in hooks)
