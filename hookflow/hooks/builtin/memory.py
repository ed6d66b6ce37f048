"""Memory: its peak logged, its cache emptied, activations computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.tensors import matches, require_matches

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hookflow.hooks.run import Run

BYTES_PER_MIB = 2**20


class Memory(Hook):
    """Logs the memory of this process in MiB, on the host and on CUDA.

    The names are `memory/rss`, and on CUDA `memory/allocated` and `memory/peak`. `rss` is the
    resident set, `allocated` the memory of tensors on the device, and `peak` its maximum since the
    process began. PyTorch's allocator counts them, without waiting for the device. The workers of a
    data loader are processes of their own, and are not counted. Each rank logs its own.
    """

    phase = "late"
    capabilities = HookCapabilities(process_blocker="it measures the process that it fires in")

    def after_train_iter(self, run: Run) -> None:
        for name, value in measure_memory(run.device).items():
            run.log(f"memory/{name}", value)


def measure_memory(device: torch.device) -> dict[str, float]:
    """Return what this process holds of the host's memory, and of CUDA's, in MiB."""
    import psutil

    result = {"rss": psutil.Process().memory_info().rss / BYTES_PER_MIB}
    if device.type == "cuda":
        from torch import cuda

        result["allocated"] = cuda.memory_allocated(device) / BYTES_PER_MIB
        result["peak"] = cuda.max_memory_allocated(device) / BYTES_PER_MIB
    return result


class EmptyCache(Hook):
    """Calls `torch.cuda.empty_cache` after each epoch of training and after each validation.

    For a device that other processes use too, or where validation needs blocks of other sizes than
    training: what is given back has to be fetched again, so it costs time, and the run itself gets
    no more memory by it. It waits for the device. Where the run does not compute on CUDA it does
    nothing.
    """

    points = ("after_train_epoch", "after_val")
    phase = "last"
    capabilities = HookCapabilities(
        process_blocker="it empties the cache of the process that it fires in"
    )

    def after_train_epoch(self, run: Run) -> None:
        if run.device.type == "cuda":
            from torch import cuda

            cuda.empty_cache()

    after_train_iter = after_val = after_train_epoch


@dataclass(eq=False)
class ActivationCheckpoint(Hook):
    """Recomputes activations in the backward pass instead of storing them.

    They are those inside the modules that match `match`. That takes less memory and more time.
    Losses, gradients and statistics are the same to the bit: random numbers are drawn again as they
    were, and batch norms count a batch once. Module hooks inside of such a module fire in both
    passes. Of modules inside one another, the outermost is enough. By `torch.utils.checkpoint`.
    """

    writes: ClassVar[Slots] = {"before_run": ("model",), "after_run": ("model",)}

    match: Annotated[
        list[str], Field(min_length=1, description="globs over modules", examples=[["blocks.*"]])
    ]

    def __post_init__(self) -> None:
        self.wrapped: list[tuple[nn.Module, Callable[..., Any] | None]] = []
        """The modules, each with the forward pass that its object had beside that of its class."""

    def before_run(self, run: Run) -> None:
        for module in find_outermost_modules(run.model, self.match):
            self.wrapped.append((module, vars(module).get("forward")))
            module.forward = make_checkpointed_forward(module)

    def after_run(self) -> None:
        for module, own_forward in self.wrapped:
            if own_forward is None:
                del module.forward
            else:
                module.forward = own_forward
        self.wrapped = []


def find_outermost_modules(model: nn.Module, globs: list[str]) -> list[nn.Module]:
    """Return the modules that globs pick, but for those inside of others.

    Raises UserError when a glob picks none.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    require_matches(globs, modules, "module of the network")
    result: dict[str, nn.Module] = {}
    for name, module in modules.items():  # one that holds others comes before them
        if matches(name, globs) and not any(name.startswith(f"{outer}.") for outer in result):
            result[name] = module
    return [*result.values()]


def make_checkpointed_forward(module: nn.Module) -> Callable[..., Any]:
    """Return a module's forward pass such that a backward pass computes it again.

    Without gradients it is a plain one.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    plain = module.forward

    def make_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of the first and of the second computation."""
        return nullcontext(), _freeze_running_statistics(module)

    @wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        if not torch.compiler.is_compiling():  # a compiled network counts no batch a second time
            kwargs["context_fn"] = make_contexts
        return checkpoint(plain, *args, use_reentrant=False, **kwargs)

    return forward


@contextmanager
def _freeze_running_statistics(module: nn.Module) -> Iterator[None]:
    """Let norms leave their running statistics as they are.

    In training mode they do not compute with them.
    """
    norms: list[Any] = []
    for inner in module.modules():
        if (
            inner.training
            and getattr(inner, "track_running_stats", False)
            and inner.num_batches_tracked is not None
        ):
            norms.append(inner)
    kept = [(norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield  # an exception leaves it as soon as there is enough
    finally:
        for norm, (momentum, batches) in zip(norms, kept, strict=True):
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(batches)
