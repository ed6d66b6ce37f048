"""Optimizers that train at one point and are evaluated at another: `train()` and `eval()`."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import hookflow
from hookflow.cli.resume import PipelineChanges
from hookflow.cli.run import make_fork
from hookflow.runner.checkpoint.store import CheckpointStore, read
from hookflow.runner.model.optimizer_modes import OptimizerModes
from tests.cli.conftest import invoke
from tests.conftest import NewRun, Train, Trained, messages, reason, records
from tests.runner.same import assert_same, final_state
from tests.support.toy import Net


class Averaged(Optimizer):
    """A schedule-free SGD: it steps `z`, trains between `z` and the mean of them, and is evaluated
    at the mean.

    The way to the mean and back is not exact to the bit.
    """

    def __init__(self, params: Any, lr: float = 0.1, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "train_mode": False})

    @torch.no_grad()
    def eval(self) -> None:
        for group in self.param_groups:
            if group["train_mode"]:
                self._move(group, 1 - 1 / group["beta"])
                group["train_mode"] = False

    @torch.no_grad()
    def train(self) -> None:
        for group in self.param_groups:
            if not group["train_mode"]:
                self._move(group, 1 - group["beta"])
                group["train_mode"] = True

    def _move(self, group: dict[str, Any], weight: float) -> None:
        for parameter in group["params"]:
            if "z" in self.state[parameter]:
                parameter.lerp_(self.state[parameter]["z"], weight)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            assert group["train_mode"], "it steps where it trains"
            group["k"] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "z" not in state:
                    state["z"] = parameter.clone()
                z, beta = state["z"], group["beta"]
                mean = parameter.lerp(z, 1 - 1 / beta)
                z.sub_(group["lr"] * parameter.grad)
                mean.lerp_(z, 1 / group["k"])
                parameter.copy_(mean.lerp(z, 1 - beta))


class Flagged(Averaged):
    """Keeps its mode outside of its state."""

    def __init__(self, params: Any, lr: float = 0.1, beta: float = 0.9) -> None:
        super().__init__(params, lr, beta)
        self.is_training = False

    def eval(self) -> None:
        for group in self.param_groups:
            group["train_mode"] = self.is_training
        super().eval()
        self.is_training = False

    def train(self) -> None:
        for group in self.param_groups:
            group["train_mode"] = self.is_training
        super().train()
        self.is_training = True


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w


def ones() -> Any:
    return torch.utils.data.TensorDataset(*[torch.ones(8, 1, dtype=torch.float64)] * 2)


def by_hand(steps: int, lr: float = 0.1, beta: float = 0.9) -> tuple[float, float]:
    """Return the point of training and the mean, after so many steps on (w - 1)²."""
    z = mean = w = 0.0
    for k in range(1, steps + 1):
        z -= lr * 2 * (w - 1)
        mean += (z - mean) / k
        w = beta * mean + (1 - beta) * z
    return w, mean


HERE = "tests.runner.test_optimizer_modes"
LINE = {
    "run": {"name": "modes", "max_epochs": 10, "device": "cpu", "test": True},
    "model": {"use": f"{HERE}:Line"},
    "optimizer": {"use": f"{HERE}:Averaged"},
    "task": {"use": "hookflow.zoo.tasks:Regression"},
    "data": {
        name: {"use": f"{HERE}:ones", "loader": {"batch_size": 8}}
        for name in ("train", "val", "test")
    },
    "hooks": {"checkpoint": {"use": "checkpoint", "args": {"monitor": "loss", "keep": 99}}},
}


@pytest.mark.parametrize("kind", ["Averaged", "Flagged"])
def test_validation_test_and_saved_weights_are_those_of_the_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = hookflow.train({**LINE, "optimizer": {"use": f"{HERE}:{kind}"}}, ui="none")
    w, mean = by_hand(10)
    assert abs(w - mean) > 0.01
    assert run.metrics["val"]["loss"] == pytest.approx((mean - 1) ** 2, rel=1e-6)
    assert run.metrics["test"]["loss"] == pytest.approx((mean - 1) ** 2, rel=1e-6)
    path = run.checkpoint().path
    assert torch.load(path / "model.pt", weights_only=True)["w"].item() == pytest.approx(
        mean, rel=1e-6
    )
    training = read(path)["training_weights"]["optimizer"]["model"]["w"].item()
    assert training == pytest.approx(w, rel=1e-6)
    assert f"loss {(mean - 1) ** 2:.4g}" in " ".join(invoke("val", str(run.dir)).split())
    early = path.parent / "it00000004"
    assert torch.load(early / "model.pt", weights_only=True)["w"].item() == pytest.approx(
        by_hand(4)[1], rel=1e-6
    )


AVERAGED = f'optimizer={{use="{HERE}:Averaged", args={{lr=0.05}}}}'
FLAGGED = AVERAGED.replace("Averaged", "Flagged")
PLAIN = ("hooks.ema.enabled=false", "hooks.schedule.enabled=false")
SAVES = 'hooks.checkpoint.points=[{at="after_train_iter", every=3}, "after_val"]'


@pytest.mark.parametrize("kind", [AVERAGED, FLAGGED], ids=["in its state", "beside its state"])
@pytest.mark.parametrize("more", [PLAIN, PLAIN[1:]], ids=["alone", "with an average"])
@pytest.mark.parametrize(
    ("point", "at", "number"),
    [("after_train_iter", 8, signal.SIGTERM), ("after_val_iter", 5, signal.SIGTERM)],
    ids=["in an epoch", "in a validation"],
)
def test_an_interrupted_run_goes_on_to_the_bit(
    resumes_alike: NewRun, kind: str, more: tuple[str, ...], point: str, at: int, number: int
) -> None:
    resumes_alike(kind, *more, SAVES, point=point, at=at, number=number)


def test_validations_and_saves_leave_the_training_as_it_is(trained: Trained) -> None:
    often = trained(AVERAGED, *PLAIN, "run.val_every=1", SAVES.replace("every=3", "every=1"))
    seldom = trained(
        AVERAGED, *PLAIN, "hooks.checkpoint.points=['after_train_epoch']", "run.val_every='3ep'"
    )
    states: list[Any] = [final_state(run_dir) for run_dir in (often, seldom)]
    for key in ("model", "training_weights", "optimizer"):
        assert_same(*(state[key] for state in states))


class Halves:
    """Halves the weights before a validation, and doubles them after it."""

    writes = ("model",)

    def before_val(self, run: Any) -> None:
        self.scale(run, 0.5)

    def after_val(self, run: Any) -> None:
        self.scale(run, 2.0)

    @torch.no_grad()
    def scale(self, run: Any, factor: float) -> None:
        for parameter in run.model.parameters():
            parameter.mul_(factor)


def test_what_a_hook_changes_in_a_validation_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is doubled at its end is twice as large;
    what is halved and doubled goes on as it was.
    """
    monkeypatch.chdir(tmp_path)
    hooks = {"first": {"use": f"{HERE}:Doubles"}}
    run = hookflow.train(
        {**LINE, "run": {**LINE["run"], "max_epochs": 1}, "hooks": hooks}, ui="none"
    )  # type: ignore[dict-item]
    _, mean = by_hand(1)
    weights: Any = torch.load(run.checkpoint().path / "model.pt", weights_only=True)
    assert weights["w"].item() == pytest.approx(2 * mean, rel=1e-6)
    halved = hookflow.train({**LINE, "hooks": {"first": {"use": f"{HERE}:Halves"}}}, ui="none")  # type: ignore[dict-item]
    weights = torch.load(halved.checkpoint().path / "model.pt", weights_only=True)
    assert weights["w"].item() == pytest.approx(by_hand(10)[1], rel=1e-6)
    assert halved.metrics["val"]["loss"] == pytest.approx((by_hand(10)[1] / 2 - 1) ** 2, rel=1e-6)


class Doubles(Halves):
    """Doubles the weights after a validation."""

    def before_val(self, run: Any) -> None:
        """Leave them."""


def test_the_best_are_the_weights_of_eval_everywhere(trained: Trained, train_here: Train) -> None:
    """With weights alone, put back at the end and tested,
    and in a fork that has another optimizer.
    """
    best = 'hooks.checkpoint.args={monitor="loss", keep=9, weights_only=true, restore_best=true}'
    run_dir = trained(
        AVERAGED, *PLAIN, best, "run.test=true", "data.test.args={split=1, examples=16}"
    )
    measured = {record["split"]: record["v"]["loss"] for record in records(run_dir, "metrics")}  # type: ignore[index]
    store = CheckpointStore(run_dir.checkpoints)
    path = store.names()["best"]
    assert "training_weights" not in read(path)
    lowest = min(
        record["v"]["loss"] for record in records(run_dir, "metrics") if record["split"] == "val"
    )  # type: ignore[index]
    assert measured["test"] == lowest
    assert f"loss {lowest:.4g}"[:9] in " ".join(invoke("val", str(path)).split())
    another = 'optimizer={use="torch.optim:SGD", args={lr=0.0}}'
    for name in ("best", "last"):
        child = make_fork(
            f"{run_dir.path}:{name}", None, PipelineChanges((another, "run.max_epochs=4"))
        )
        assert train_here(child) == 0, reason(child)
        weights: list[Any] = [final_state(child)["model"], read(store.names()[name])["model"]]
        assert_same(*({key: w[key] for key, _ in Net().named_parameters()} for w in weights))


def test_hooks_beside_such_an_optimizer_are_named(trained: Trained) -> None:
    lines = messages(trained(AVERAGED, PLAIN[1], "run.max_epochs=1"), "warn")
    assert any('the hook "ema" averages' in line for line in lines)


def test_without_modes_nothing_is_copied() -> None:
    model = nn.Linear(2, 2)
    modes = OptimizerModes({"optimizer": torch.optim.SGD(model.parameters(), 0.1)})
    assert not modes.optimizers
    with modes.evaluating():
        model.weight.data.add_(1)
    assert not list(modes.list_messages(model, {}))


def test_a_pass_that_raises_leaves_the_weights_as_they_were() -> None:
    model = nn.Linear(2, 2)
    optimizer = Averaged(model.parameters())
    modes = OptimizerModes({"optimizer": optimizer})
    modes.train()
    for _ in range(3):
        model(torch.ones(2)).square().sum().backward()
        optimizer.step()
    before = [tensor.detach().clone() for tensor in model.parameters()]
    with pytest.raises(ZeroDivisionError), torch.no_grad(), modes.evaluating():
        assert not torch.equal(model.weight, before[0])
        model.weight.zero_()
        raise ZeroDivisionError
    assert_same([p.detach() for p in model.parameters()], before)
    assert optimizer.param_groups[0]["train_mode"]
