"""Gradients: `grad_norm`, their bounds (`grad_clip`), `comm_hook` between ranks, and `sam`.

SAM: P. Foret and others, *Sharpness-aware minimization for efficiently improving generalization*,
ICLR 2021.
PowerSGD: T. Vogels and others, *PowerSGD: practical low-rank gradient compression for distributed
optimization*, 2019.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hookflow.errors import Problem, UserError, nearest
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.parameter_notes import find_notes
from hookflow.hooks.tensors import (
    find_wide_dtype,
    full,
    local,
    matching,
    named_parameters,
    require_matches,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run


@dataclass(eq=False)
class GradNorm(Hook):
    """Logs the Euclidean norm of each layer's gradients, and of all of them.

    The names are `grad_norm/<layer>` and `grad_norm/total`. A layer is a module with parameters of
    its own. The norms are those of the gradients that the optimizer steps with, so after clipping:
    hooks that write `grads` fire before. They stay on the device, so that nothing waits. Parameters
    that have received no gradient are left out. Where several optimizers step one after the other,
    each step logs the norms of its own model, whose name comes first where there are several:
    `grad_norm/generator.total`.
    """

    reads = ("grads",)

    per: Annotated[
        Literal["layer", "parameter"], Field(description="what has a norm of its own")
    ] = "layer"
    model: Annotated[str | None, Field(description="which of several models; each if left out")] = (
        None
    )

    def before_optimizer_step(self, run: Run) -> None:
        model = run.model_being_updated(self.model)
        if model is None:
            return
        of = name_of(model, run)
        for name, norm in compute_norms(collect_gradients(model), self.per).items():
            run.log(f"grad_norm/{of}.{name}" if of else f"grad_norm/{name}", norm)


def name_of(model: nn.Module, run: Run) -> str:
    """Return the name of a network where there are several; nothing for all of them together."""
    if len(run.models) == 1:
        return ""
    for name, network in run.models.items():
        if network is model:
            return name
    return ""


def collect_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients that parameters have, by the names of the parameters.

    Of sparse ones it is the values.
    """
    parameters = model.named_parameters()
    return {
        name: gradient_values(parameter)
        for name, parameter in parameters
        if parameter.grad is not None
    }


def gradient_values(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter that has one; of a sparse gradient its values.

    An index that comes several times in a sparse gradient means the sum of its values.
    """
    gradient = parameter.grad
    assert gradient is not None
    if gradient.is_sparse:
        return gradient.coalesce().values()
    return gradient


def writable_gradient_values(parameter: Tensor) -> Tensor:
    """Return the same in the memory of the gradient, which is coalesced for that."""
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        return gradient
    if not gradient.is_coalesced():
        gradient = gradient.coalesce()
        parameter.grad = gradient
    values: Tensor = gradient._values()
    return values


def compute_norms(
    gradients: Mapping[str, Tensor], per: Literal["layer", "parameter"] = "layer"
) -> dict[str, Tensor]:
    """Return the Euclidean norm of the gradients of each layer (or parameter), and the `total`.

    The norms are tensors of no dimensions, in float32 or better. None at all where there are no
    gradients.
    """
    single = {name: full(norm_of(tensor)) for name, tensor in gradients.items()}
    if not single:
        return {}
    parts: dict[str, list[Tensor]] = {}
    for name, norm in single.items():
        if per == "layer":
            layer = name.rpartition(".")[0]
        else:
            layer = name
        parts.setdefault(layer or name, []).append(norm)
    result = {name: norm_of_norms(several) for name, several in parts.items()}
    return {**result, "total": norm_of_norms([*single.values()])}


def norm_of(tensor: Tensor, order: float = 2.0) -> Tensor:
    """Return the norm of a tensor's values, computed in float32 at least.

    In float16 that of 70 times 8000 would be inf.
    """
    import torch

    norm: Tensor = torch.linalg.vector_norm(tensor, order, dtype=find_wide_dtype(tensor.dtype))
    return norm


def norm_of_norms(norms: Sequence[Tensor], order: float = 2.0) -> Tensor:
    """Return the norm of several tensors together, by the norm of each."""
    import torch

    norm: Tensor = torch.linalg.vector_norm(torch.stack([*norms]), order)
    return norm


@dataclass(eq=False)
class GradClip(Hook):
    """Scales all gradients down together when their norm exceeds `max_norm`.

    It logs the norm before that. `norm_type` is the order of the norm, as in PyTorch's
    `clip_grad_norm_`: 2.0, 1.0, or inf for the largest absolute value. With `clip_value` in the
    place of `max_norm` each element is clamped by itself to ±`clip_value`, as by
    `clip_grad_value_`, and no norm is logged. The norm is computed in float32 at least. A sparse
    gradient counts by its values, of which those of one index are summed up first. Complex
    gradients have a norm, but `clip_value` is refused.

    Where several optimizers step one after the other, each step is bounded by itself; or that of
    `model` alone, or that of `optimizer`. With `params` the gradients of some parameters are
    bounded, and the others left alone.

    The norm is logged as `grad_norm`; that of one of several models as `grad_norm/generator`; with
    `params` or `optimizer` as `grad_norm/<name of the hook>`.
    """

    capabilities = HookCapabilities(clips_gradients=True)
    settable = ("max_norm", "clip_value")
    reads: ClassVar[Slots] = {"before_optimizer_step": ("grads.{model}",)}
    writes: ClassVar[Slots] = {"before_optimizer_step": ("grads.{model}",)}

    max_norm: Annotated[
        float | None,
        Field(gt=0, description="the largest norm of all gradients together", examples=[1.0]),
    ] = None
    model: Annotated[str | None, Field(description="which of several models; each if left out")] = (
        None
    )
    norm_type: Annotated[
        float, Field(gt=0, description="the order of the norm; inf: the largest value")
    ] = 2.0
    clip_value: Annotated[
        float | None, Field(gt=0, description="the largest absolute value of an element")
    ] = None
    params: Annotated[
        list[str] | None,
        Field(min_length=1, description="globs over parameters; all of them if left out"),
    ] = None
    optimizer: Annotated[
        str | None, Field(description="which of several optimizers; each if left out")
    ] = None

    def __post_init__(self) -> None:
        self._matched: frozenset[nn.Parameter] = frozenset()
        """The parameters that `params` picks."""
        self._known: frozenset[nn.Parameter] = frozenset()
        """All parameters that the network had when `params` was matched."""

    @classmethod
    def points_for(cls, args: Mapping[str, Any]) -> tuple[str, ...]:
        chosen = [args.get(name) for name in ("params", "optimizer", "clip_value")]
        if any(value is not None for value in chosen):
            return ("before_train", "before_optimizer_step")
        return ("before_optimizer_step",)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if (args.get("max_norm") is None) == (args.get("clip_value") is None):
            message = "grad_clip needs max_norm or clip_value, and not both"
            raise UserError(Problem(message, hint="max_norm = 1.0"))
        if args.get("clip_value") is not None and "norm_type" in args:
            message = "norm_type belongs to max_norm: clip_value clamps each element by itself"
            raise UserError(Problem(message))
        if args.get("model") is not None and args.get("optimizer") is not None:
            message = "grad_clip takes model or optimizer, and not both: an optimizer has one model"
            raise UserError(Problem(message))

    def before_train(self, run: Run) -> None:
        if self.optimizer is not None and self.optimizer not in run.optimizers:
            hint = (
                nearest(self.optimizer, run.optimizers) or f"there are {', '.join(run.optimizers)}"
            )
            message = f'hook "{self.name}": there is no optimizer "{self.optimizer}"'
            raise UserError(Problem(message, hint=hint))
        if self.params is not None:
            require_matches(self.params, named_parameters(run.model), "parameter of the network")
            self._match(run.model, self.params)
        if self.clip_value is None:
            return
        if self.model is None:
            network = run.model
        else:
            network = run.models[self.model]
        names = {parameter: name for name, parameter in network.named_parameters()}
        for parameter in self._selected(run, names):
            if parameter.is_complex() and parameter.requires_grad:
                message = (
                    f'hook "{self.name}": clip_value cannot clamp the complex gradient of'
                    f' "{names[parameter]}"'
                )
                raise UserError(
                    Problem(message, hint="bound its norm: max_norm; or choose others: params")
                )

    def before_optimizer_step(self, run: Run) -> None:
        model = run.model_being_updated(self.model)
        if model is None or (self.optimizer is not None and self.optimizer not in run.stepping):
            return
        if self.params is None and self.optimizer is None:
            parameters = [*model.parameters()]
            of = name_of(model, run)
        else:
            parameters = self._selected(run, model.parameters())
            of = self.name
        if self.clip_value is not None:
            clip_values(parameters, self.clip_value)
            return
        assert self.max_norm is not None
        norm = clip_norm(parameters, self.max_norm, self.norm_type)
        run.log(f"grad_norm/{of}" if of else "grad_norm", norm)

    def _selected(self, run: Run, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Return those of the parameters that `params` and `optimizer` pick."""
        result = [*parameters]
        if self.params is not None:
            if not self._known.issuperset(result):  # a hook has added parameters
                self._match(run.model, self.params)
            result = [parameter for parameter in result if parameter in self._matched]
        if self.optimizer is not None:
            groups = run.optimizers[self.optimizer].param_groups
            held = set()
            for group in groups:
                held.update(group["params"])
            result = [parameter for parameter in result if parameter in held]
        return result

    def _match(self, model: nn.Module, globs: Sequence[str]) -> None:
        parameters = named_parameters(model)
        self._known = frozenset(parameters.values())
        self._matched = frozenset(matching(parameters, globs).values())


def clip_norm(parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Tensor:
    """Scale gradients as `clip_grad_norm_` does.

    That function refuses sparse gradients and those on several meshes. Return the norm before that,
    in float32 at least.
    """
    import torch
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    usual: dict[Any, list[Tensor]] = {}
    """The parameters whose gradients PyTorch's functions serve, by their mesh of ranks.

    They are sharded over that mesh.
    """
    others: list[Tensor] = []
    """The parameters whose gradients are sparse, or have fewer than 32 bits."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse or find_wide_dtype(gradient.dtype) != gradient.dtype:
            others.append(parameter)
        else:
            usual.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    gradients = [[p.grad for p in group if p.grad is not None] for group in usual.values()]
    norms = [full(get_total_norm(group, norm_type)) for group in gradients]
    norms += [full(norm_of(gradient_values(parameter), norm_type)) for parameter in others]
    if not norms:
        return torch.tensor(0.0)
    if len(norms) == 1:
        total = norms[0]
    else:
        total = norm_of_norms(norms, norm_type)
    for group in usual.values():
        clip_grads_with_norm_(group, max_norm, total)
    if others:
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)  # as clip_grads_with_norm_ does
        for parameter in others:
            local(writable_gradient_values(parameter)).mul_(factor)
    return total


def clip_values(parameters: Iterable[Tensor], largest: float) -> None:
    """Clamp each element of the gradients as `clip_grad_value_` does, which refuses sparse ones."""
    from torch.nn.utils import clip_grad_value_

    dense: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            writable_gradient_values(parameter).clamp_(-largest, largest)
        else:
            dense.append(parameter)
    clip_grad_value_(dense, largest)


@dataclass(eq=False)
class SAM(Hook):
    """Replaces the gradients by those at the worst weights within `rho`.

    That is sharpness-aware minimisation. An iteration takes two forward and backward passes of its
    batch, which costs twice the time. The first one, whose outputs and loss the other hooks see,
    gives the direction in which the loss grows fastest. The weights move by `rho` along it, the
    second pass computes the gradients there, and the weights move back. The buffers are put back,
    too: batch norms take no statistics in the second pass. Dropout draws anew. Hooks inside the
    network fire in both passes. Over several ranks the direction is that of the mean gradient.

    It refuses fp16 and FSDP, gradient accumulation, and a task that steps its optimizers itself.
    """

    phase = "first"
    capabilities = HookCapabilities(
        runs_backward_twice=True,
        attach_blocker=(
            "it computes the loss of each batch a second time, and only the loop can compute a loss"
        ),
    )
    reads: ClassVar[Slots] = {"after_backward": ("batch", "grads", "model")}
    writes: ClassVar[Slots] = {"after_backward": ("grads", "model", "rng")}

    rho: Annotated[
        float, Field(gt=0, description="the distance of the worst weights, in the Euclidean norm")
    ] = 0.05

    def before_train(self, run: Run) -> None:
        run.check_second_backward(self.name)

    def after_backward(self, run: Run, batch: Any) -> None:
        import torch

        with_gradient = [
            parameter for parameter in run.model.parameters() if parameter.grad is not None
        ]
        moved = [parameter for parameter in with_gradient if not find_notes(parameter).is_frozen]
        if not moved:
            return
        weights = [parameter.detach().clone() for parameter in moved]
        holders = []
        for module in run.model.modules():
            if module._buffers:
                holders.append((module._buffers, dict(module._buffers)))
        buffers = [(buffer, buffer.clone()) for buffer in run.model.buffers()]
        with torch.no_grad():
            norm = norm_of_norms([norm_of(gradient_values(parameter)) for parameter in moved])
            scale = self.rho / (norm + 1e-12)
            for parameter in moved:
                assert parameter.grad is not None
                parameter.add_(parameter.grad * scale)
        try:
            for optimizer in run.optimizers.values():
                optimizer.zero_grad()
            run.loss(batch).backward()
        finally:
            with torch.no_grad():
                for parameter, weight in zip(moved, weights, strict=True):
                    parameter.copy_(weight)
                for buffer, value in buffers:
                    buffer.copy_(value)
            for holder, before in holders:  # a forward pass may have put another tensor there
                holder.update(before)


@dataclass(eq=False)
class CommHook(Hook):
    """Compresses DDP's gradient all-reduce with one of PyTorch's communication hooks.

    For several ranks with `strategy = "ddp"`; elsewhere it is refused. The state that PowerSGD has
    learned is not kept: a resumed run averages in full for two iterations (DDP arranges its buckets
    anew in the first), and then begins with it anew.
    """

    reads: ClassVar[Slots] = {"ddp_comm": ("grads",)}
    writes: ClassVar[Slots] = {"ddp_comm": ("grads",)}

    algorithm: Annotated[
        Literal["fp16_compress", "bf16_compress", "power_sgd"],
        Field(
            description=(
                "send gradients in float16, in bfloat16, or as products of two thin matrices"
            )
        ),
    ]
    matrix_rank: Annotated[
        int, Field(ge=1, description="rank of `power_sgd`; a higher one sends more")
    ] = 1
    start: Annotated[
        int, Field(ge=2, description="iterations before `power_sgd` begins to compress")
    ] = 1000

    def __post_init__(self) -> None:
        self._before: dict[str, int] = {}
        """How many iterations of each model were averaged before this process."""
        # Each model has its own state: PowerSGD knows buckets by numbers that all models use.
        self._power_sgd: dict[str, Any] = {}

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        of_power_sgd = [name for name in ("matrix_rank", "start") if name in args]
        if of_power_sgd and args.get("algorithm") != "power_sgd":
            raise ValueError(f'{of_power_sgd[0]} is for algorithm = "power_sgd"')

    def before_train(self, run: Run) -> None:
        if any(before >= self.start for before in self._before.values()):
            run.say(
                "PowerSGD's state is not saved: it restarts after two iterations of exact"
                " all-reduce",
                "warn",
            )

    def ddp_comm(self, name: str, process_group: Any, bucket: Any) -> Any:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        if self.algorithm != "power_sgd":
            return getattr(default_hooks, f"{self.algorithm}_hook")(process_group, bucket)
        if name not in self._power_sgd:
            begins = max(self.start - self._before.get(name, 0), 2)
            self._power_sgd[name] = powerSGD_hook.PowerSGDState(
                process_group, self.matrix_rank, begins
            )
        return powerSGD_hook.powerSGD_hook(self._power_sgd[name], bucket)

    def state_dict(self) -> dict[str, Any]:
        counts = {
            name: self._before.get(name, 0) + state.iter for name, state in self._power_sgd.items()
        }
        return {"iterations": {**self._before, **counts}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._before = dict(state["iterations"])
        self._power_sgd = {}
