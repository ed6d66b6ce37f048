"""A model that computes the same in one process and in several,
and data of which each example is known.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn import functional
from torch.utils.data import Dataset, get_worker_info

from hookflow.events.rundir import write_whole


class Plain(nn.Module):
    """Two layers whose result for an example depends on no other: no batch norm, no dropout."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.LayerNorm(width), nn.GELU())
        self.head = nn.Linear(width, 3)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs))  # type: ignore[no-any-return]


def distilled(run: Any, batch: Any) -> dict[str, Any]:
    """Train a student on its teacher's logits, too."""
    inputs, target = batch
    logits = run.models["student"](inputs)
    from_teacher = (logits - run.models["teacher"](inputs)).square().mean()
    return {
        "loss": functional.cross_entropy(logits, target) + from_teacher,
        "logits": logits,
        "target": target,
    }


class Normed(Plain):
    """With what is kept beside the parameters, and changes."""

    def __init__(self) -> None:
        super().__init__()
        self.body.append(nn.BatchNorm1d(8))
        self.body.append(nn.Dropout(0.1))


class Block(nn.Module):
    """A layer beside which its input goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.layer = nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.layer(self.norm(inputs))  # type: ignore[no-any-return]


class Deep(Plain):
    """With blocks that are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.body.extend([Block(), Block()])


class Tied(Plain):
    """Shares a weight, initialises it, and keeps buffers: of it, and out of checkpoints;
    `computes` with it, too.
    """

    def __init__(self, computes: bool = False) -> None:
        super().__init__()
        self.second, self.third = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.third.weight = self.second.weight
        nn.init.orthogonal_(self.second.weight)
        self.register_buffer("row", self.second.weight[0].detach().clone())
        self.register_buffer("scale", torch.rand(8), persistent=False)
        self.built = f"built on {self.second.weight.device.type}"
        self.norm = float(self.second.weight.detach().norm()) if computes else 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(
            self.third(self.second(self.body(inputs) * self.scale) + self.row) / self.norm
        )  # type: ignore[no-any-return]


def split_nothing(model: nn.Module, mesh: DeviceMesh) -> None:
    """Name a layer that there is not."""
    parallelize_module(model, mesh["tensor"], {"upp": ColwiseParallel()})


class Clouds(Dataset[Any]):
    """Points of three clouds."""

    def __init__(self, examples: int = 40, seed: int = 7) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.target = torch.randint(3, (examples,), generator=generator)
        self.inputs = 2 * torch.eye(3, 4)[self.target] + torch.randn(
            examples, 4, generator=generator
        )

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.target[index]


class WaitsOnce(Clouds):
    """A worker of rank 1 waits at its 10th example, once: it writes a mark with its pid,
    until "go on" is there.
    """

    def __init__(self, examples: int, mark: str) -> None:
        super().__init__(examples)
        self.mark, self.fetched = Path(mark), 0

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.fetched += 1
        if (
            get_worker_info()
            and os.environ["RANK"] == "1"
            and self.fetched == 10
            and not self.mark.exists()
        ):
            write_whole(self.mark, str(os.getpid()))
            while self.mark.read_text() != "go on":
                time.sleep(0.01)
        return super().__getitem__(index)


class HangsOnce(Clouds):
    """A worker of rank 1 hangs at its example `at` until it is killed: once,
    or each that comes to as many.
    """

    def __init__(
        self, examples: int, mark: str, at: int, always: bool = False, seed: int = 7
    ) -> None:
        super().__init__(examples, seed)
        self.mark, self.at, self.always, self.fetched = Path(mark), at, always, 0

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.fetched += 1
        hangs = get_worker_info() and os.environ["RANK"] == "1" and self.fetched == self.at
        if hangs and (self.always or not self.mark.exists()):
            write_whole(self.mark, str(os.getpid()))
            while True:
                time.sleep(0.01)
        inputs, target = super().__getitem__(index)
        return inputs + 0.1 * torch.rand(4), target


class Drawn(Clouds):
    """Points that are drawn behind whatever the model has drawn."""

    def __init__(self, examples: int) -> None:
        super().__init__(examples)
        self.inputs += torch.rand(4)


class Stops:
    """Ends the run once it has come to an iteration; never twice for one mark."""

    writes = ("control",)

    def __init__(self, at: int, mark: str) -> None:
        self.at, self.mark = at, Path(mark)

    def after_train_iter(self, run: Any) -> None:
        if run.iter >= self.at and not self.mark.exists():
            run.stop("as told", this_process=True)

    def after_train(self, run: Any) -> None:
        if run.iter >= self.at:
            self.mark.touch()


class Tells:
    """Says on every rank what it has: the shares of its batches,
    and at the end the sum of all weights.
    """

    def after_train_iter(self, run: Any, batch: Any) -> None:
        over_all = f"{run.sum(run.rank + 1)}, {run.mean(torch.ones(2) * run.rank)}"
        run.say(
            f"batch {len(batch[1])} of {run.data['train'].global_batch_size(run.batch_idx - 1)},"
            f" {over_all}"
        )

    def after_train(self, run: Any) -> None:
        run.say(
            "weights"
            f" {[float(tensor.double().sum()) for tensor in run.model.state_dict().values()]}"
        )
        run.say(f"drawn {float(torch.rand(()))}")


def built(run: Any) -> None:
    """Say where the weights were built."""
    run.say(run.model.built)


def far(run: Any) -> None:
    """Say that a condition holds here."""
    run.say(f"far at {run.iter}")


def sums(run: Any) -> None:
    """Ask for what all ranks must give."""
    run.sum(1.0)


class Across(Plain):
    """Has weights that lie in memory in another order than their dimensions'."""

    def __init__(self) -> None:
        super().__init__()
        weight = self.body[0].weight
        weight.data = weight.data.t().contiguous().t()


class Unused(Plain):
    """Has a layer that is to be trained, and is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen.requires_grad_(True)


def inside(run: Any, batch: Any) -> dict[str, Tensor]:
    """Compute by what is in the network, past the network itself."""
    inputs, target = batch
    return {"loss": functional.cross_entropy(run.model.head(run.model.body(inputs)), target)}


class NamesNumbers:
    """Give a loss, and a number `rank` by the names that each rank has."""

    def __init__(self, names: list[list[str]]) -> None:
        self.names = names

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        inputs, target = batch
        loss = nn.functional.cross_entropy(run.model(inputs), target)
        return {**{name: float(ord(name[0])) for name in self.names[run.rank]}, "loss": loss}


class Pair:
    """A task that steps two optimizers itself, each after a loss of its own."""

    steps_itself = True

    def step(self, run: Any, batch: Any) -> dict[str, Tensor]:
        inputs, target = batch
        first, second = run.models["first"], run.models["second"]
        one = functional.cross_entropy(first(inputs), target)
        run.backward(one, "first")
        run.step("first")
        two = (
            functional.cross_entropy(second(inputs), target)
            + (first(inputs) - second(inputs)).square().mean()
        )
        run.backward(two, "second")
        run.step("second")
        return {"one": one.detach(), "two": two.detach()}

    def evaluate(self, run: Any, batch: Any) -> dict[str, Tensor]:
        inputs, target = batch
        return {"loss": functional.cross_entropy(run.models["second"](inputs), target)}


def uneven(rank: int, world: int) -> list[Any]:
    """Give each rank another number of batches."""
    return [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))] * (world + rank + 1)


def computes(run: Any, module: nn.Linear, name: str, output: Tensor) -> None:
    """Say in which types of numbers a module has its weights and its result."""
    run.say(f"{name}: {module.weight.dtype}, {output.dtype}")


def statistics(run: Any) -> None:
    """Say what a norm keeps."""
    run.say(f"statistics {run.model.body[3].running_mean.tolist()}")


def own_batches(rank: int, world: int) -> list[tuple[Tensor, Tensor]]:
    """Return the share of a rank of two batches."""
    data = Clouds(16, 8)
    share = slice(rank, None, world)
    return [
        (inputs[share], target[share])
        for inputs, target in zip(data.inputs.split(8), data.target.split(8), strict=True)
    ]


class OwnOrder:
    """A sampler whose order is that of a generator of its own, which its state holds."""

    def __init__(self, data: Clouds) -> None:
        self.examples, self.generator = len(data), torch.Generator().manual_seed(3)

    def __len__(self) -> int:
        return self.examples

    def __iter__(self) -> Iterator[int]:
        order: list[int] = torch.randperm(self.examples, generator=self.generator).tolist()
        return iter(order)

    def state_dict(self) -> dict[str, Tensor]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.generator.set_state(state["generator"])
