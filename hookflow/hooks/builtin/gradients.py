"""Gradients: their norms (`grad_norm`), bounds (`grad_clip`), bytes between ranks (`comm_hook`), sharpness (`sam`).

SAM: P. Foret and others, *Sharpness-aware minimization for efficiently improving generalization*, ICLR 2021.
PowerSGD: T. Vogels and others, *PowerSGD: practical low-rank gradient compression for distributed optimization*, 2019.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.tensors import full

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run


@dataclass(eq=False)
class GradNorm(Hook):
    """Logs the Euclidean norm of each layer's gradients, `grad_norm/<layer>`, and of all, `grad_norm/total`.

    A layer is a module with parameters of its own. The norms are those of the gradients that the optimizer steps with,
    so after clipping: hooks that write `grads` fire before. They stay on the device, so that nothing waits. Parameters
    that have received no gradient are left out. Where several optimizers step one after the other, each step logs the
    norms of its own model, whose name comes first where there are several: `grad_norm/generator.total`.
    """

    reads = ("grads",)

    per: Annotated[Literal["layer", "parameter"], Field(description="what has a norm of its own")] = "layer"
    model: Annotated[str | None, Field(description="which of several models; each if left out")] = None

    def before_optimizer_step(self, run: Run) -> None:
        model = run.stepped(self.model)
        if model is None:
            return
        of = name_of(model, run)
        for name, norm in norms(gradients(model), self.per).items():
            run.log(f"grad_norm/{of}.{name}" if of else f"grad_norm/{name}", norm)


def name_of(model: nn.Module, run: Run) -> str:
    """Return the name of a network where there are several; nothing for all of them together."""
    several = run.models.items() if len(run.models) > 1 else ()
    return next((name for name, network in several if network is model), "")


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients that parameters have, by the names of the parameters; of sparse ones the values."""
    result = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {
        name: gradient.coalesce().values() if gradient.is_sparse else gradient
        for name, gradient in result.items()
        if gradient is not None
    }


def norms(gradients: Mapping[str, Tensor], per: Literal["layer", "parameter"] = "layer") -> dict[str, Tensor]:
    """Return the Euclidean norm of the gradients of each layer (or parameter), and of all together as `total`.

    The norms are tensors of no dimensions, in float32 or better. None at all where there are no gradients.
    """
    import torch

    single = {name: full(torch.linalg.vector_norm(tensor)).float() for name, tensor in gradients.items()}
    parts: dict[str, list[Tensor]] = {}
    for name, norm in single.items():
        layer = name.rpartition(".")[0] if per == "layer" else name
        parts.setdefault(layer or name, []).append(norm)
    result = {name: torch.linalg.vector_norm(torch.stack(several)) for name, several in parts.items()}
    return {**result, "total": torch.linalg.vector_norm(torch.stack(list(single.values())))} if single else {}


@dataclass(eq=False)
class GradClip(Hook):
    """Scales all gradients down together when their norm exceeds `max_norm`, and logs the norm before that.

    `norm_type` is the order of the norm, as in PyTorch's `clip_grad_norm_`: 2.0, 1.0, or inf for the largest absolute
    value. With `clip_value` in the place of `max_norm` each element is clamped by itself to ±`clip_value`, as by
    `clip_grad_value_`, and no norm is logged.

    Where several optimizers step one after the other, each step is bounded by itself; or that of `model` alone. The
    norm is `grad_norm`; that of one of several models `grad_norm/generator`.
    """

    settable = ("max_norm", "clip_value")
    reads = ("grads.{model}",)
    writes = ("grads.{model}",)

    max_norm: Annotated[
        float | None, Field(gt=0, description="the largest norm of all gradients together", examples=[1.0])
    ] = None
    model: Annotated[str | None, Field(description="which of several models; each if left out")] = None
    norm_type: Annotated[float, Field(gt=0, description="the order of the norm; inf: the largest value")] = 2.0
    clip_value: Annotated[float | None, Field(gt=0, description="the largest absolute value of an element")] = None

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if (args.get("max_norm") is None) == (args.get("clip_value") is None):
            raise UserError(Problem("grad_clip needs max_norm or clip_value, and not both", hint="max_norm = 1.0"))
        if args.get("clip_value") is not None and "norm_type" in args:
            raise UserError(Problem("norm_type belongs to max_norm: clip_value clamps each element by itself"))

    def before_optimizer_step(self, run: Run) -> None:
        from torch.nn.utils import clip_grad_norm_, clip_grad_value_

        model = run.stepped(self.model)
        if model is None:
            return
        if self.clip_value is not None:
            clip_grad_value_(model.parameters(), self.clip_value)
            return
        of = name_of(model, run)
        assert self.max_norm is not None
        clip = clip_grad_norm_ if run.world == 1 else clip_over_ranks
        norm = clip(model.parameters(), self.max_norm, self.norm_type)
        run.log(f"grad_norm/{of}" if of else "grad_norm", norm)


def clip_over_ranks(parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Tensor:
    """Scale gradients as `clip_grad_norm_` does, which refuses those on several meshes; return their norm."""
    import torch
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    by_mesh: dict[Any, list[Tensor]] = {}
    for parameter in parameters:
        by_mesh.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    gradients = [[p.grad for p in group if p.grad is not None] for group in by_mesh.values()]
    norms = [full(get_total_norm(group, norm_type)) for group in gradients if group]
    total = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), norm_type)
    for group in by_mesh.values():
        clip_grads_with_norm_(group, max_norm, total)
    return total


@dataclass(eq=False)
class SAM(Hook):
    """Replaces the gradients by those at the worst weights within `rho`: sharpness-aware minimisation.

    An iteration takes two forward and backward passes of its batch, which costs twice the time. The first one, whose
    outputs and loss the other hooks see, gives the direction in which the loss grows fastest. The weights move by `rho`
    along it, the second pass computes the gradients there, and the weights move back. Batch norms take no statistics
    in the second pass; dropout draws anew. Hooks inside the network fire in both passes. Over several ranks the
    direction is that of the mean gradient.

    It refuses fp16 and FSDP, gradient accumulation, and a task that steps its optimizers itself.
    """

    phase = "first"
    backward_twice = True
    reads: ClassVar[Slots] = {"after_backward": ("batch", "grads", "model")}
    writes: ClassVar[Slots] = {"after_backward": ("grads", "model", "rng")}

    rho: Annotated[float, Field(gt=0, description="the distance of the worst weights, in the Euclidean norm")] = 0.05

    def before_train(self, run: Any) -> None:  # the check is not of the public protocol
        run.check_backward_again(self.name)

    def after_backward(self, run: Run, batch: Any) -> None:
        import torch
        from torch.nn.modules.batchnorm import _NormBase

        moved = [parameter for parameter in run.model.parameters() if parameter.grad is not None]
        norms = [module for module in run.model.modules() if isinstance(module, _NormBase)]
        before, momenta = [parameter.detach().clone() for parameter in moved], [norm.momentum for norm in norms]
        gradients = [parameter.grad for parameter in moved]
        with torch.no_grad():
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
            scale = self.rho / (norm + 1e-12)
            for parameter, gradient in zip(moved, gradients, strict=True):
                parameter.add_(gradient * scale)
        for each in norms:
            each.momentum = 0.0
        try:
            for optimizer in run.optimizers.values():
                optimizer.zero_grad()
            run.loss(batch).backward()
        finally:
            for each, momentum in zip(norms, momenta, strict=True):
                each.momentum = momentum
            with torch.no_grad():
                for parameter, value in zip(moved, before, strict=True):
                    parameter.copy_(value)


@dataclass(eq=False)
class CommHook(Hook):
    """Compresses DDP's gradient all-reduce with one of PyTorch's communication hooks.

    For several ranks with `strategy = "ddp"`; elsewhere it is refused. The state that PowerSGD has learned is not kept:
    a resumed run averages in full for two iterations (DDP arranges its buckets anew in the first), and then begins with
    it anew.
    """

    reads: ClassVar[Slots] = {"ddp_comm": ("grads",)}
    writes: ClassVar[Slots] = {"ddp_comm": ("grads",)}

    algorithm: Annotated[
        Literal["fp16_compress", "bf16_compress", "power_sgd"],
        Field(description="send gradients in float16, in bfloat16, or as products of two thin matrices"),
    ]
    matrix_rank: Annotated[int, Field(ge=1, description="rank of `power_sgd`; a higher one sends more")] = 1
    start: Annotated[int, Field(ge=2, description="iterations before `power_sgd` begins to compress")] = 1000

    def __post_init__(self) -> None:
        self._before: dict[str, int] = {}
        """How many iterations of each model were averaged before this process."""
        self._power_sgd: dict[str, Any] = {}  # of each model, as it knows buckets by numbers that all models use

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        of_power_sgd = [name for name in ("matrix_rank", "start") if name in args]
        if of_power_sgd and args.get("algorithm") != "power_sgd":
            raise ValueError(f'{of_power_sgd[0]} is for algorithm = "power_sgd"')

    def before_train(self, run: Run) -> None:
        if any(before >= self.start for before in self._before.values()):
            run.say("PowerSGD's state is not saved: it restarts after two iterations of exact all-reduce", "warn")

    def ddp_comm(self, name: str, process_group: Any, bucket: Any) -> Any:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        if self.algorithm != "power_sgd":
            return getattr(default_hooks, f"{self.algorithm}_hook")(process_group, bucket)
        if name not in self._power_sgd:
            begins = max(self.start - self._before.get(name, 0), 2)
            self._power_sgd[name] = powerSGD_hook.PowerSGDState(process_group, self.matrix_rank, begins)
        return powerSGD_hook.powerSGD_hook(self._power_sgd[name], bucket)

    def state_dict(self) -> dict[str, Any]:
        counts = {name: self._before.get(name, 0) + state.iter for name, state in self._power_sgd.items()}
        return {"iterations": {**self._before, **counts}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._before, self._power_sgd = dict(state["iterations"]), {}
