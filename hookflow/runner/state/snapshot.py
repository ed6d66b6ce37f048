"""The snapshot: the complete state of a run, captured and restored to the bit.

Every mutable state of the runner is either registered or follows from what is:
`tests/runner/test_resume.py` walks over all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

import torch

from hookflow.errors import Problem, UserError
from hookflow.hooks.checkpoint_files import is_without_optimizers, state_key
from hookflow.hooks.tensors import local
from hookflow.runner.checkpoint.shards import find_unreadable, mapped
from hookflow.runner.data.batches import is_for_training, list_own_parts, split_of
from hookflow.runner.data.lengths import changed_lengths, iter_sources
from hookflow.runner.distributed.parallel import local_state
from hookflow.runner.iteration.context import RunContext
from hookflow.runner.iteration.update import OptimizerUpdate
from hookflow.runner.state.state_registry import StateRegistry, StateScope
from hookflow.runner.state.stateful_parts import register_parts

GLOBAL_SIZES = "global_batch_sizes"
"""The method of a source whose batches are shared out whole among the ranks."""

Adapt = Callable[[dict[str, Any]], dict[str, Any]]
"""Returns what a fork takes over of a saved state."""


class RunSnapshot:
    """The state of every part of a run's context that has one."""

    def __init__(self, context: RunContext, update: OptimizerUpdate) -> None:
        self.context = context
        self.parts = context.parts
        self.plan = context.plan
        self.registry = StateRegistry()
        register_parts(self.registry, context, update)
        self._say = context.log.say

    def capture(self, *, validation_due: Sequence[str] = ()) -> dict[str, Any]:
        """Return the state between two iterations, without copies of tensors.

        With `validation_due` a run that is resumed from it begins with a validation on these sets
        of data.
        """
        # Offloaded hooks are waited for: they have a state, and numbers of this iteration to log.
        self.context.engine.settle()
        state = self.registry.capture()
        if validation_due:
            state["position"]["validation_due"] = list(validation_due)
        return state

    def check_states(self) -> None:
        """Raise UserError for a state that cannot be loaded again, tensors aside.

        It is of a hook, the data or the task.
        """
        self.context.engine.settle()
        owners: list[tuple[str, Any]] = [("task", self.parts.task)]
        owners += [(f"hooks.{name}", hook) for name, hook in self.parts.hooks.items()]
        for split, source in iter_sources(self.parts.data):
            if split_of(split) != "test" and hasattr(source, "state_dict"):
                owners += [(f"data.{split}", part) for part in list_own_parts(source)]
        for key, owner in owners:
            state: Any = None
            with suppress(Exception):  # it has none, or none before the first iteration
                state = mapped(owner.state_dict(), _without_tensors)
            wrong = find_unreadable(state)
            if wrong:
                hint = "a checkpoint holds tensors, numbers, strings, lists and dicts"
                raise UserError(
                    Problem(f"{key}: state_dict(){wrong}", self.parts.place(f"{key}.use"), hint)
                )

    def nonfinite_weights(self, state: Mapping[str, Any]) -> Iterator[str]:
        """Yield the names of parameters and running statistics of a state that are not finite."""
        parameters = {
            name for model in self.parts.models.values() for name, _ in model.named_parameters()
        }
        for entry, weights in state.items():
            if not entry.startswith("model"):
                continue
            for name, value in weights.items():
                counts = name in parameters or name.rpartition(".")[2].startswith("running_")
                if counts and isinstance(value, torch.Tensor) and not local(value).isfinite().all():
                    yield name if entry == "model" else f"{entry.removeprefix('model_')}.{name}"

    def restore(self, state: dict[str, Any], adapt: Adapt | None = None) -> None:
        """Restore the state of this rank; parts without an entry start anew, which is reported.

        Raises UserError when the checkpoint is that of another model or optimizer. A fork has the
        state adapted.
        """
        is_fork = adapt is not None
        ranks_before = 1 + len(state.get("ranks", []))
        self._compare_ranks(ranks_before, is_fork=is_fork)
        self._compare_lengths(state["position"].get("lengths", {}), ranks_before, is_fork=is_fork)
        state = local_state(state, self.parts.ranks, self.registry.names(StateScope.PER_RANK_ITEM))
        if adapt is not None:
            state = adapt(state)
        skipped = []
        if is_without_optimizers(state):
            skipped += [state_key("optimizer", name) for name in self.parts.optimizers]
        if is_fork or not state["hooks"].keys() <= self.parts.hooks.keys():
            skipped.append("without_grad")  # the hook that froze them may be gone
        self.registry.restore(_with_training_weights(state), skipped=skipped)

    def _compare_ranks(self, before: int, *, is_fork: bool) -> None:
        """Warn where the checkpoint was saved by other ranks.

        Raises UserError where these shared out the batches.
        """
        now = self.parts.ranks.world
        if before == now:
            return
        sources = dict(iter_sources(self.parts.data))
        shared_out = [
            name
            for name in sources
            if is_for_training(name) and hasattr(sources[name], GLOBAL_SIZES)
        ]
        if not is_fork and shared_out:
            message = (
                f"a batch_sampler shares out whole batches, and those of {before} ranks are others"
            )
            hint = f"resume it on {before} ranks; hookflow fork carries the place over by examples"
            raise UserError(
                Problem(
                    message, self.parts.place(f"data.{shared_out[0]}.loader.batch_sampler"), hint
                )
            )
        self._say(f"saved by {before} ranks, resumed on {now}: not bit-identical", "warn")

    def _compare_lengths(
        self, saved: Mapping[str, Any], ranks_before: int, *, is_fork: bool
    ) -> None:
        """Compare the data with those of the checkpoint.

        A fork says what has another length, as a resume does of validation data. Raises UserError
        where a resume has other training data: the rest of the epoch, the order of the next ones
        and the schedules would be others.
        """
        ranks = self.parts.ranks
        data_ranks = self.parts.data_ranks
        world_then = ranks_before * data_ranks.world // ranks.world
        changes = changed_lengths(
            saved,
            self.parts.data,
            rank=data_ranks.rank,
            world=data_ranks.world,
            world_then=world_then,
        )
        for change in changes:
            if is_for_training(change.split) and not is_fork:
                hint = "give it the same data; or go on with these: hookflow fork RUN"
                raise UserError(
                    Problem(str(change), self.parts.place(f"data.{change.split}.use"), hint)
                )
            after = "its metrics cannot be compared with the earlier ones"
            if is_for_training(change.split):
                after = "the rest of the epoch, and those to come, are in another order"
            self._say(f"{change}: {after}", "warn")


def _without_tensors(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return None
    return leaf


def _with_training_weights(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state whose models have the weights that optimizers with modes train from,
    in place of those for use.
    """
    result = dict(state)
    for by_model in state.get("training_weights", {}).values():
        for entry, weights in by_model.items():
            # `copy` keeps the versions that a state_dict carries beside its entries.
            result[entry] = copy(result[entry])
            result[entry].update(weights)
    return result
