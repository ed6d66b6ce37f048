"""The state of every optimizer comes back with its dtypes, devices and bits: at a resume,
a fork and a roll-back.
"""

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from hookflow.hooks.optimizer_state import host_tensors_of, load_optimizer_state
from tests.conftest import NewRun, Trained
from tests.runner.same import assert_same, final_state

STEPS = 4

OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    kind.__name__: (kind, {"lr": 0.01})
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
}
"""Every optimizer of PyTorch; a new one is tried as well."""

VARIANTS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "AdamW, amsgrad": (torch.optim.AdamW, {"amsgrad": True}),
    "RMSprop, centered": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "LBFGS with a search": (torch.optim.LBFGS, {"line_search_fn": "strong_wolfe"}),
    "Adam with a tensor as rate": (torch.optim.Adam, {"lr": torch.tensor(0.01)}),
    **{
        f"{kind.__name__}, {how}": (kind, {"lr": 0.01, how: True})
        for kind in (
            torch.optim.SGD,
            torch.optim.Adam,
            torch.optim.AdamW,
            torch.optim.Adagrad,
            torch.optim.NAdam,
        )
        for how in ("foreach", "fused")
        if (kind, how) != (torch.optim.NAdam, "fused")
    },
}


class MasterSGD(Optimizer):
    """Steps a float32 copy of its weights, and keeps entries of many types."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["master"] = parameter.detach().float().clone()
                    state["count"] = torch.zeros(1, dtype=torch.int64)
                    state["mask"] = torch.zeros_like(parameter, dtype=torch.bool)
                    state["mode"] = "plain"
                    state["nested"] = {
                        "history": [torch.zeros(2, dtype=torch.float64)],
                        "pair": ("a", 1),
                    }
                state["master"].sub_(group["lr"] * parameter.grad.float())
                state["count"] += 2**24 + 1  # which no float32 holds
                state["mask"].logical_not_()
                state["nested"]["history"].append(torch.full((2,), 1 / 3, dtype=torch.float64))
                parameter.copy_(state["master"])


class Renaming(MasterSGD):
    """Loads what an older version of it has saved."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = {
            n: {key.removeprefix("old_"): v for key, v in e.items()}
            for n, e in state_dict["state"].items()
        }
        super().load_state_dict({**state_dict, "state": state})
        for entries in self.state.values():
            assert entries["master"].dtype == torch.float32


def network(dtype: torch.dtype, kind: type[Optimizer]) -> nn.Module:
    torch.manual_seed(0)
    if kind is torch.optim.SparseAdam:
        return nn.Embedding(6, 3, sparse=True).to(dtype)
    return nn.Linear(3, 2, bias=kind is not torch.optim.Muon).to(dtype)


def step(model: nn.Module, optimizer: Optimizer, k: int) -> None:
    draw = torch.Generator().manual_seed(k)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        if isinstance(model, nn.Embedding):
            loss = model(torch.randint(6, (4,), generator=draw)).square().sum()
        else:
            generator = torch.Generator().manual_seed(k)
            weight: Any = model.weight
            loss = model(torch.randn(4, 3, generator=generator).to(weight.dtype)).square().sum()
        loss.backward()
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
        return
    closure()
    optimizer.step()


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)


def assert_equal(one: Any, other: Any) -> None:
    assert_same(one, other)
    assert [t.dtype for t in tensors_of(one)] == [t.dtype for t in tensors_of(other)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("kind", "args"),
    [*OPTIMIZERS.values(), *VARIANTS.values(), (MasterSGD, {}), (Renaming, {})],
    ids=[*OPTIMIZERS, *VARIANTS, "MasterSGD", "Renaming"],
)
def test_every_optimizer_goes_on_to_the_bit(
    kind: type[Optimizer], args: dict[str, Any], dtype: torch.dtype
) -> None:
    """Steps after a load are those without one, in state, settings and weights."""
    if kind is torch.optim.LBFGS and dtype == torch.bfloat16:
        pytest.skip("LBFGS computes no dot products in bfloat16 here")
    alone = network(dtype, kind)
    optimizer = kind(alone.parameters(), **copy.deepcopy(args))
    for k in range(STEPS):
        step(alone, optimizer, k)
    resumed = network(dtype, kind)
    resumed.load_state_dict(through_a_file(alone.state_dict()))
    saved = through_a_file(optimizer.state_dict())
    other = kind(resumed.parameters(), **copy.deepcopy(args))
    load_optimizer_state(other, saved)
    assert_equal(other.state_dict(), optimizer.state_dict())
    for k in range(STEPS, 2 * STEPS):
        step(alone, optimizer, k)
        step(resumed, other, k)
    assert_equal(other.state_dict(), optimizer.state_dict())
    assert_equal(dict(resumed.state_dict()), dict(alone.state_dict()))


def test_a_tensor_in_the_hosts_memory_stays_there() -> None:
    parameter = nn.Parameter(torch.empty(3, device="meta"))
    optimizer = MasterSGD([parameter])
    entries = {
        "master": torch.empty(3, device="meta"),
        "count": torch.ones(1),
        "list": [torch.ones(2)],
    }
    optimizer.state[parameter] = entries
    places = through_a_file(host_tensors_of(optimizer))
    assert places == [(0, "count"), (0, "list", 0)]
    saved = optimizer.state_dict()
    other = MasterSGD([nn.Parameter(torch.empty(3, device="meta"))])
    load_optimizer_state(other, saved, host_tensors=places)
    (loaded,) = other.state.values()
    assert [tensor.device.type for tensor in tensors_of(loaded)] == ["meta", "cpu", "cpu"]


def test_state_follows_a_parameter_that_has_another_dtype_now() -> None:
    """As in a fork with another precision: what had the dtype of its parameter has it again."""
    model = network(torch.bfloat16, MasterSGD)
    optimizer = MasterSGD(model.parameters())
    step(model, optimizer, 0)
    for entries in optimizer.state.values():
        entries["like"] = torch.full((2,), 0.5, dtype=torch.bfloat16)
    other = network(torch.float64, MasterSGD)
    loaded = MasterSGD(other.parameters())
    before = dict.fromkeys(other.parameters(), torch.bfloat16)
    load_optimizer_state(loaded, through_a_file(optimizer.state_dict()), saved_dtypes=before)
    for entries in loaded.state.values():
        assert (entries["like"].dtype, entries["master"].dtype) == (torch.float64, torch.float32)


MASTER = (
    f'optimizer={{use="{__file__}:MasterSGD", args={{lr=0.05}}}}',
    "run.precision='bf16-true'",
    "hooks.ema.enabled=false",
)


def test_a_resumed_run_has_the_bits_of_one_in_one_go(resumes_alike: NewRun) -> None:
    run_dir = resumes_alike(*MASTER, point="after_train_iter", at=8)
    saved: Any = final_state(run_dir)["optimizer"]
    assert {entries["master"].dtype for entries in saved["state"].values()} == {torch.float32}
    assert {entries["mode"] for entries in saved["state"].values()} == {"plain"}


def test_a_roll_back_puts_the_state_back_as_it_was(trained: Trained) -> None:
    guard = (
        'hooks.guard={use="spike_guard", args={window=2, sigmas=1e-3, patience=99, rollback=true}}'
    )
    saved: Any = final_state(trained(*MASTER, guard))["optimizer"]
    assert {entries["master"].dtype for entries in saved["state"].values()} == {torch.float32}


class Ahead(Optimizer):
    """Wraps an optimizer, whose groups and state are its own, as those that look ahead do."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        self.inner = MasterSGD(params, lr)
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)


class Shell(Ahead):
    """Calls no `__init__` of PyTorch, and has no state of its own."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        self.inner = MasterSGD(params, lr)
        self.param_groups, self.defaults = self.inner.param_groups, self.inner.defaults


@pytest.mark.parametrize("kind", [Ahead, Shell])
def test_a_wrapper_keeps_the_groups_of_what_it_wraps(kind: type[Ahead]) -> None:
    """A rate that is set on the wrapper after a load is the one that its step uses."""
    model = network(torch.bfloat16, kind)
    optimizer = kind(model.parameters())
    step(model, optimizer.inner, 0)
    saved = through_a_file(optimizer.state_dict())
    other = kind(network(torch.bfloat16, kind).parameters())
    load_optimizer_state(other, saved)
    other.param_groups[0]["lr"] = 0.5
    assert other.inner.param_groups[0]["lr"] == 0.5
    assert_equal(other.inner.state_dict()["state"], optimizer.inner.state_dict()["state"])
    assert host_tensors_of(other) == []


def test_a_wrapper_goes_on_to_the_bit_with_its_schedule(resumes_alike: NewRun) -> None:
    wrapped = MASTER[0].replace("MasterSGD", "Ahead")
    resumes_alike(wrapped, *MASTER[1:], point="after_train_iter", at=8)
