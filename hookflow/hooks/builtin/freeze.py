"""Parameters that stay as they are.

They are frozen for a part of the run (`freeze`), or pruned by magnitude (`prune`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.builtin.schedules import ENDLESS, Progress, count_iterations
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.parameter_notes import find_notes
from hookflow.hooks.tensors import is_sharded, matches, matching, named_parameters, require_matches

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run


@dataclass(eq=False)
class Freeze(Hook):
    """Freezes the parameters that match `params` from `begin` until `end`; then they train again.

    While they are frozen they have no gradient, so no optimizer touches them, be it by weight decay
    or by momentum; an optimizer's state of them stays as it was. Norms whose parameters are all
    frozen keep their running statistics too: they are in eval mode. Several such hooks unfreeze a
    network part by part; no two of them should pick the same.

    On one process nothing is computed for frozen parameters (`requires_grad` is false), and a
    compiled network is compiled anew when they change. Where several train together, DDP and FSDP
    expect the same gradients all run long: they are computed, and dropped.
    """

    # The hook changes no weights and no gradients that others need, so two of them need no order.
    # It counts as an early reader: after the hooks that write gradients, and before those that look
    # at what is left of them.
    phase = "early"
    reads: ClassVar[Slots] = {"after_backward": ("grads",)}

    params: Annotated[
        list[str], Field(min_length=1, description="globs over parameters", examples=[["body.*"]])
    ]
    begin: Annotated[
        Progress, Field(description='when they freeze: 0, 100, "100it", "2ep", "30%" of the run')
    ] = 0
    end: Annotated[
        Progress | None, Field(description="when they train again, if ever", examples=["2ep"])
    ] = None
    norms: Annotated[
        bool, Field(description="whether frozen norms keep their running statistics, in eval mode")
    ] = True

    def __post_init__(self) -> None:
        self.first = self.last = 0
        """The iterations that are done when they freeze, and when they train again."""
        self.frozen = False
        self.is_single_process = True
        self.chosen: list[Any] = []
        self.suspended: list[str] = []
        """The norms that this hook has put into eval mode."""

    @classmethod
    def capabilities_for(cls, args: Mapping[str, Any]) -> HookCapabilities:
        if args.get("begin", 0) != 0:
            return cls.capabilities
        return replace(cls.capabilities, frozen_at_start=tuple(args.get("params") or ()))

    def before_train(self, run: Run) -> None:
        self.first = count_iterations(self.begin, run)
        if self.end is None:
            self.last = run.max_iters or ENDLESS
        else:
            self.last = count_iterations(self.end, run)
        self.is_single_process = run.world == 1
        held: set[int] = set()
        for opt in run.optimizers.values():
            for group in opt.param_groups:
                held.update(map(id, group["params"]))
        there = named_parameters(run.model).items()
        numbers = {name: p for name, p in there if p.is_floating_point() or p.is_complex()}
        trained = {name: p for name, p in numbers.items() if id(p) in held}
        self.chosen = [*frozen_parameters(trained, self.params).values()]
        lacks_gradients = not all(parameter.requires_grad for parameter in self.chosen)
        was_frozen = bool(self.suspended) or (run.iter > 0 and lacks_gradients)
        # In a checkpoint of the iteration at which they are to train again, they are still frozen.
        self.frozen = was_frozen and not self._is_due(run)
        self.before_train_iter(run)

    def _is_due(self, run: Run) -> bool:
        """Say whether the parameters are frozen in the iteration that comes next."""
        return self.first <= run.iter < self.last

    def before_train_iter(self, run: Run) -> None:
        is_due = self._is_due(run)
        if self.frozen == is_due:
            return
        self._switch(run.model, is_due)
        state = "train again"
        if self.frozen:
            state = "are frozen"
        weights = sum(parameter.numel() for parameter in self.chosen)
        run.say(f"{weights:,} weights {state}: {', '.join(self.params)}")

    def after_run(self, run: Run) -> None:
        """Leave the network as it was: in a notebook, others train it from here on."""
        if self.frozen:
            self._switch(run.model, False)

    def after_backward(self) -> None:
        if self.frozen and not self.is_single_process:
            self._drop()

    def _switch(self, model: nn.Module, frozen: bool) -> None:
        """Freeze the parameters and their norms, or let them train again."""
        self.frozen = frozen
        for parameter in self.chosen:
            find_notes(parameter).is_frozen = self.frozen
            if self.is_single_process:
                parameter.requires_grad_(not self.frozen)
        modules = dict(model.named_modules(remove_duplicate=False))
        if not self.frozen:
            for name in self.suspended:
                modules[name].train()
            self.suspended = []
            return
        self._drop()
        if self.norms:
            for name in frozen_norms(model, self.params):
                if modules[name].training:
                    modules[name].eval()
                    self.suspended.append(name)

    def _drop(self) -> None:
        for parameter in self.chosen:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {"suspended": list(self.suspended)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.suspended = state["suspended"]


def frozen_parameters(
    parameters: Mapping[str, nn.Parameter], globs: Sequence[str]
) -> dict[str, nn.Parameter]:
    """Return the parameters that globs pick.

    Raises UserError when a glob picks none, or all of them are picked.
    """
    require_matches(globs, parameters, "parameter that trains")
    result = matching(parameters, globs)
    if len(result) == len(set(parameters.values())):
        message = "every parameter of the network would be frozen"
        raise UserError(Problem(message, hint="leave some to train"))
    return result


def frozen_norms(model: nn.Module, globs: Sequence[str]) -> Iterable[str]:
    """Yield the names of the norms with running statistics of which globs pick every parameter.

    One that has none is taken as if it had a `weight`.
    """
    for name, module in model.named_modules(remove_duplicate=False):
        if getattr(module, "running_mean", None) is not None:
            own = [key for key, _ in module.named_parameters(recurse=False)] or ["weight"]
            if all(matches(f"{name}.{key}".removeprefix("."), globs) for key in own):
                yield name


@dataclass(eq=False)
class Prune(Hook):
    """Prunes the weights of smallest magnitude, and keeps them zero.

    It prunes more and more of them from `begin` to `end`. The masks are those of
    `torch.nn.utils.prune`: `global_unstructured` with `L1Unstructured`, or `l1_unstructured` of
    each parameter. The share grows by the cubic schedule of Zhu and Gupta, "To prune, or not to
    prune" (2017). Parameters keep their names, so that a checkpoint loads into the plain network;
    the masks are the hook's state. Pruned weights have no gradient, and are zero in the averages
    that `ema` and `swa` keep. On FSDP's shards, and for parameters that are integers or not dense,
    the hook is refused.
    """

    # The hook masks gradients before clipping and norms see them, and weights before averages take
    # them. `sam` takes its direction from the masked gradients and replaces them by others, which
    # are masked before the step.
    phase = "early"
    reads: ClassVar[Slots] = {"after_optimizer_step": ("model",)}
    writes: ClassVar[Slots] = {
        **dict.fromkeys(("after_backward", "before_optimizer_step"), ("grads",)),
        "after_optimizer_step": ("model",),
    }

    params: Annotated[
        list[str], Field(min_length=1, description="globs over parameters", examples=[["*.weight"]])
    ]
    amount: Annotated[float, Field(gt=0, lt=1, description="the share that is zero in the end")] = (
        0.5
    )
    begin: Annotated[
        Progress, Field(description='when it begins: 0, 100, "100it", "2ep", "30%" of the run')
    ] = 0
    end: Annotated[Progress, Field(description="when the share is reached")] = "50%"
    every: Annotated[int, Field(ge=1, description="iterations between two choices of weights")] = (
        100
    )
    scope: Annotated[
        Literal["global", "layer"], Field(description="which weights are compared")
    ] = "global"

    def __post_init__(self) -> None:
        self.masks: dict[str, Tensor] = {}
        self.chosen_at = -1
        """The iterations done when the masks were chosen."""

    def before_train(self, run: Run) -> None:
        there = named_parameters(run.model)
        require_matches(self.params, there, "parameter")
        self.pruned = matching(there, self.params)
        for name, parameter in self.pruned.items():
            self._check(name, parameter)
        self.first, self.last = count_iterations(self.begin, run), count_iterations(self.end, run)
        if self.last < self.first:
            message = (
                f'hook "{self.name}" would end at iteration {self.last}, before it begins at'
                f" {self.first}"
            )
            raise UserError(Problem(message))
        self.masks = {name: mask.to(self.pruned[name].device) for name, mask in self.masks.items()}
        self._record_masks()

    def _check(self, name: str, parameter: nn.Parameter) -> None:
        """Raise UserError for a parameter that cannot be pruned."""
        import torch

        if is_sharded(parameter):
            message = f'hook "{self.name}" prunes whole parameters, and FSDP has sharded them'
            raise UserError(Problem(message))
        is_number = parameter.is_floating_point() or parameter.is_complex()
        if is_number and parameter.layout is torch.strided:
            return
        kind = str(parameter.layout if is_number else parameter.dtype).removeprefix("torch.")
        message = (
            f'hook "{self.name}" prunes dense real and complex parameters, and "{name}" is {kind}'
        )
        raise UserError(Problem(message, hint="let params name others"))

    def after_backward(self) -> None:
        self._mask_gradients()

    def before_optimizer_step(self) -> None:
        self._mask_gradients()

    def after_optimizer_step(self, run: Run) -> None:
        done = run.iter + 1
        place = min(done, self.last)
        if place < self.last:
            place -= (place - self.first) % self.every
        # Weights are masked before a choice, too: momentum moves pruned ones, and it must see
        # zeros.
        self._mask_weights()
        if place >= self.first and place > self.chosen_at:
            self.chosen_at = place
            self.masks = self.choose(self.compute_amount_at(place))
            self._mask_weights()
            self._record_masks()

    def _mask_weights(self) -> None:
        import torch

        with torch.no_grad():
            for name, mask in self.masks.items():
                self.pruned[name].mul_(mask)

    def _mask_gradients(self) -> None:
        for name, mask in self.masks.items():
            gradient = self.pruned[name].grad
            if gradient is not None:
                gradient.mul_(mask)

    def _record_masks(self) -> None:
        """Let hooks that average the weights, or put back older ones, know which are to be zero."""
        for name, mask in self.masks.items():
            find_notes(self.pruned[name]).mask = mask

    def compute_amount_at(self, done: int) -> float:
        """Return the share that is zero after so many iterations, within the schedule."""
        left = (self.last - done) / max(self.last - self.first, 1)
        return self.amount * (1 - left**3)

    def choose(self, amount: float) -> dict[str, Tensor]:
        """Return masks that are false at the weights of smallest magnitude.

        Zeros come first, so what is pruned stays so.
        """
        import torch
        from torch.nn.utils.prune import L1Unstructured

        magnitudes = {
            name: parameter.detach().abs().flatten() for name, parameter in self.pruned.items()
        }
        if self.scope == "global":
            compared = [torch.cat([*magnitudes.values()])]
        else:
            compared = [*magnitudes.values()]
        method: Any = L1Unstructured(amount)  # PyTorch has no types for it
        masks: Tensor = torch.cat(
            [method.compute_mask(each, torch.ones_like(each)) for each in compared]
        )
        parts = torch.split(masks.bool(), [each.numel() for each in magnitudes.values()])
        return {
            name: part.view_as(self.pruned[name])
            for name, part in zip(magnitudes, parts, strict=True)
        }

    def state_dict(self) -> dict[str, Any]:
        return {"masks": dict(self.masks), "chosen_at": self.chosen_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.masks = dict(state["masks"])
        self.chosen_at = state["chosen_at"]
