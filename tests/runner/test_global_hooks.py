"""Global module hooks: against the same ones by hand, in the process that trains alone, gone whatever happens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.data import Dataset

from hookflow.events.rundir import RunDir
from hookflow.runner.builder.components import Parts
from hookflow.runner.process.state import RunState
from tests.conftest import NewRun, Train, Trained, records
from tests.runner.by_hand import (
    CALLS,
    SHORT,
    SWAP,
    ByHand,
    assert_same_weights,
    calls_of,
    hook,
    plainly,
)

__all__ = ["plainly"]

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")  # it is what they do


class Everywhere:
    """Halves what goes into batch norm and what comes out of GELU, and sees all."""

    def global_forward_pre(self, name: str | None, module: nn.Module, args: Any) -> Any:
        return everywhere("pre", module, args)

    def global_forward(self, name: str | None, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        assert not kwargs
        return everywhere("forward", module, args, output)

    def global_full_backward_pre(self, module: nn.Module, grad_output: Any) -> Any:
        return everywhere("backward pre", module, grad_output)

    def global_full_backward(self, module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        return everywhere("backward", module, grad_input, grad_output)


def everywhere(what: str, module: nn.Module, *offered: Any) -> Any:
    CALLS.append((what, type(module).__name__))
    match what, module:
        case "pre", nn.BatchNorm1d():
            return offered[0][0] * 0.5
        case "forward", nn.GELU():
            return offered[1] * 0.5
        case "backward pre", nn.GELU():
            return (offered[0][0] * 2,)
        case "backward", nn.GELU():
            return (offered[0][0] + 0.1,)
    return None


def instance(module: nn.Module, args: Any) -> None:
    CALLS.append("forward_pre of one")


def globally(parts: Parts, state: RunState) -> Iterator[Any]:
    def fire(what: str) -> Callable[..., Any]:
        return lambda module, *offered: everywhere(what, module, *offered) if state.stage == "train" else None

    yield torch_module.register_module_forward_pre_hook(fire("pre"))
    yield torch_module.register_module_forward_hook(fire("forward"))
    yield torch_module.register_module_full_backward_pre_hook(fire("backward pre"))
    yield torch_module.register_module_full_backward_hook(fire("backward"))


GLOBAL = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks", "_global_backward_hooks")


def test_on_every_module_as_by_hand(
    new_run: NewRun, train_here: Train, plainly: Callable[[RunDir, ByHand], list[Any]]
) -> None:
    """They come before those of a module, whatever order they were registered in, and are gone afterwards."""
    one = hook("one", instance, "forward_pre", modules=["head"])
    ours, plain, untouched = (
        new_run(hook("all", Everywhere), one, *SHORT, swap=SWAP),
        *(new_run(*more, *SHORT, swap=SWAP) for more in ([one], [])),
    )
    seen = calls_of(train_here, ours)
    assert seen == plainly(plain, globally)
    assert seen[seen.index("forward_pre of one") - 1] == ("pre", "Linear")
    assert train_here(untouched) == 0
    assert_same_weights(ours, plain, but=untouched)
    assert not any(getattr(torch_module, hooks) for hooks in GLOBAL)


def raises(module: nn.Module) -> None:
    raise RuntimeError("as told")


def test_global_ones_are_gone_after_an_error(trained: Trained) -> None:
    run_dir = trained(hook("bad", raises, "global_full_backward"), hook("all", Everywhere), *SHORT, swap=SWAP, code=1)
    assert [(r["hook"], r["point"]) for r in records(run_dir, "error")] == [("bad", "global_full_backward")]
    assert not any(getattr(torch_module, hooks) for hooks in GLOBAL)


def names(name: str | None) -> None:
    CALLS.append(name)


def with_outsider(run: Any, batch: Any) -> dict[str, torch.Tensor]:
    return {"loss": nn.MSELoss()(run.model(batch[0]), torch.zeros(len(batch[0]), 3))}


def test_they_are_told_the_name_in_the_network(new_run: NewRun, train_here: Train) -> None:
    off = [f"hooks.{name}.enabled=false" for name in ("accuracy", "early_stop", "checkpoint")]
    task = [f'task.use="{__name__}:with_outsider"', "data={train={use='./toy.py:Points'}}"]
    run_dir = new_run(hook("names", names, "global_forward"), *off, *task, "run.max_iters=1", swap=SWAP)
    assert calls_of(train_here, run_dir) == ["body.0", "body.1", "body.2", "body.3", "body", "head", "", None]


class Transformed(Dataset[Any]):
    """Examples that a module changes, as the transforms of torchvision do."""

    def __init__(self) -> None:
        self.transform = nn.Identity()

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(torch.full((4,), index / 16)), index % 3


def notes(file: str, module: nn.Module) -> None:
    with Path(file).open("a") as opened:
        opened.write(f"{type(module).__name__} {os.getpid()}\n")


@pytest.mark.parametrize("workers", [0, 1])
def test_they_fire_in_the_process_that_trains_alone(trained: Trained, tmp_path: Path, workers: int) -> None:
    data = f'data={{train={{use="{__name__}:Transformed", loader={{batch_size=8, workers={workers}}}}}}}'
    noted = hook("notes", notes, "global_forward", args={"file": str(tmp_path / "notes")})
    trained(data, noted, *SHORT, swap=SWAP)
    seen = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert {pid for _, pid in seen} == {str(os.getpid())}
    assert ("Identity" in {name for name, _ in seen}) is (workers == 0)
