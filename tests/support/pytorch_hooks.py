"""A net with hooks of its own, and hooks as PyTorch's documentation writes them: each notes what it
was called with.

The same functions are hooks of a pipeline, and are registered by hand; `NOTES` tells the two apart
if anything does.
"""

# ruff: noqa: A002  # `input` is what PyTorch's documentation calls it

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

NOTES: list[tuple[Any, ...]] = []
NETS: "list[Net]" = []
"""The nets of this process, the latest last."""


def plain(value: Any) -> Any:
    """Return plain numbers for what a hook is given."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def note(who: str, module: nn.Module, *given: Any) -> None:
    NOTES.append((who, module.label, *map(plain, given)))


class Scaled(nn.Linear):
    def forward(self, input: Tensor, *, scale: float = 1.0) -> Tensor:
        return super().forward(input) * scale


class Block(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.Tanh())
        self[1].register_forward_pre_hook(lambda module, args: note("own pre", module, args))
        self[1].register_forward_hook(lambda module, args, output: note("own", module, output))
        self[1].register_forward_hook(lambda module, args, output: output * 0.9)
        self[1].register_full_backward_hook(
            lambda module, *gradients: note("own backward", module, *gradients)
        )
        self[1].register_full_backward_pre_hook(
            lambda module, gradient: note("own backward pre", module, gradient)
        )


class Net(nn.Module):
    """A block, a layer that is called with a keyword, and a head;
    it raises at the call `fails`, if that is not 0.
    """

    def __init__(self, fails: int = 0, kind: str = "ValueError") -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.block, self.scaled, self.head = Block(), Scaled(6, 6), nn.Linear(6, 3)
        self.fails, self.kind, self.calls = fails, kind, 0
        for name, module in self.named_modules():
            module.label = name  # type: ignore[assignment]
        NETS.append(self)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.scaled(self.block(inputs), scale=0.5)
        self.calls += 1
        if self.calls == self.fails:
            raise {"ValueError": ValueError, "KeyboardInterrupt": KeyboardInterrupt}[self.kind](
                "as told"
            )
        return self.head(hidden)  # type: ignore[no-any-return]


class Batches:
    """Three batches, the same in each epoch."""

    def __init__(self) -> None:
        size = {"examples": 6, "batches": 3, "batch_size": 2}
        self.info: dict[str, Any] = {"name": "three", **size, "synthetic": True, "note": ""}

    def __len__(self) -> int:
        return 3

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        numbers = torch.linspace(-1, 1, 24).reshape(3, 2, 4)
        yield from ((numbers[k], torch.tensor([0, k])) for k in range(start, 3))


def step(run: Any, batch: Any) -> dict[str, Tensor]:
    return {"loss": functional.cross_entropy(run.model(batch[0]), batch[1])}


# The signatures of PyTorch's documentation.


def forward(module: Any, input: Any, output: Any) -> None:
    note("forward", module, input, output)


def forward_kwargs(module: Any, args: Any, kwargs: Any, output: Any) -> None:
    note("forward_kwargs", module, args, kwargs, output)


def forward_replaces(module: Any, input: Any, output: Any) -> Any:
    note("forward_replaces", module, input, output)
    return output * 0.7


def forward_pre(module: Any, input: Any) -> None:
    note("forward_pre", module, input)


def forward_pre_replaces(module: Any, input: Any) -> Any:
    note("forward_pre_replaces", module, input)
    return input[0] + 0.1


def forward_pre_kwargs(module: Any, args: Any, kwargs: Any) -> Any:
    note("forward_pre_kwargs", module, args, kwargs)
    return tuple(arg * 1.1 for arg in args), {name: value * 2 for name, value in kwargs.items()}


def full_backward_pre(module: Any, grad_output: Any) -> Any:
    note("full_backward_pre", module, grad_output)
    return tuple(gradient * 0.8 for gradient in grad_output)


def full_backward(module: Any, grad_input: Any, grad_output: Any) -> None:
    note("full_backward", module, grad_input, grad_output)


def full_backward_replaces(module: Any, grad_input: Any, grad_output: Any) -> Any:
    note("full_backward_replaces", module, grad_input, grad_output)
    return tuple(None if gradient is None else gradient * 0.5 for gradient in grad_input)


def raises_late(module: Any, input: Any, output: Any) -> None:
    note("raises_late", module, input, output)
    if NETS[-1].calls == 1:
        raise ValueError("the hook, as told")


# The names of tutorials, which PyTorch never sees: it gives arguments by position.


def terse_forward(self: Any, inp: Any, out: Any) -> Any:
    note("terse_forward", self, inp, out)
    return out * 1.1


def terse_forward_pre(m: Any, x: Any) -> Any:
    note("terse_forward_pre", m, x)
    return x[0] - 0.1


def terse_full_backward(module: Any, gin: Any, gout: Any, scale: float = 0.5) -> Any:
    note("terse_full_backward", module, gin, gout)
    return tuple(None if gradient is None else gradient * scale for gradient in gin)


def misplaced(output: Any, inp: Any, module: Any) -> None: ...


def metrics_wanted(module: Any, inp: Any, metrics: Any) -> None: ...


def two_of_three(m: Any, i: Any) -> None: ...


def by_name_alone(*, m: Any, i: Any, o: Any) -> None: ...
