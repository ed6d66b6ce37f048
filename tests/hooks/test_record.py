"""Hooks that record: what they log is what the quantity is by hand, or by an oracle of the field."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.errors import UserError
from hookflow.hooks.grad_norm import GradNorm
from hookflow.hooks.lr_monitor import LRMonitor
from hookflow.hooks.throughput import Throughput


class Recorded(SimpleNamespace):
    """As much of a run as such hooks look at, which keeps what is logged."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(rank=0, world=1, iter=0, device=torch.device("cpu"), logged={}, **parts)

    def log(self, name: str, value: Any) -> None:
        self.logged[name] = float(value)

    def stepped(self, model: str | None = None) -> Any:
        return self.model if model is None else self.models[model]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))


class TestLRMonitor:
    def test_logs_the_settings_of_each_group(self) -> None:
        one, two = net().parameters(), net().parameters()
        sgd = torch.optim.SGD([{"params": one}, {"params": two, "lr": 0.5, "name": "norms"}], lr=0.1, momentum=0.9)
        run = Recorded(optimizers={"optimizer": sgd})
        LRMonitor(["momentum"]).after_train_iter(run)  # type: ignore[arg-type]
        assert run.logged == {"lr/0": 0.1, "lr/norms": 0.5, "momentum/0": 0.9, "momentum/norms": 0.9}

    def test_several_optimizers_are_told_apart(self) -> None:
        optimizers = {
            "generator": torch.optim.Adam(net().parameters(), lr=0.1, betas=(0.5, 0.9)),
            "critic": torch.optim.SGD(net().parameters(), lr=0.2, weight_decay=0.01),
        }
        run = Recorded(optimizers=optimizers)
        LRMonitor(["momentum", "weight_decay"]).after_train_iter(run)  # type: ignore[arg-type]
        assert run.logged == {
            "lr/generator/0": 0.1,
            "momentum/generator/0": 0.5,
            "weight_decay/generator/0": 0.0,
            "lr/critic/0": 0.2,
            "momentum/critic/0": 0.0,
            "weight_decay/critic/0": 0.01,
        }


class TestGradNorm:
    def run(self) -> Recorded:
        model = net()
        model(torch.randn(5, 3)).square().sum().backward()
        return Recorded(model=model, models={"model": model})

    def test_the_norms_are_those_by_hand(self) -> None:
        run = self.run()
        GradNorm().before_optimizer_step(run)  # type: ignore[arg-type]
        by_hand = {
            name: sum(float((p.grad**2).sum()) for p in module.parameters(recurse=False)) ** 0.5
            for name, module in run.model.named_modules()
            if list(module.parameters(recurse=False))
        }
        total = float(torch.nn.utils.get_total_norm([p.grad for p in run.model.parameters()]))
        assert run.logged == pytest.approx({f"grad_norm/{k}": v for k, v in {**by_hand, "total": total}.items()})
        assert by_hand.keys() == {"0", "2"}

    def test_of_each_parameter(self) -> None:
        run = self.run()
        GradNorm("parameter").before_optimizer_step(run)  # type: ignore[arg-type]
        assert run.logged.keys() == {f"grad_norm/{name}" for name in ("0.weight", "0.bias", "2.weight", "total")}
        assert run.logged["grad_norm/0.bias"] == pytest.approx(float(run.model[0].bias.grad.norm()))

    def test_what_has_no_gradient_has_no_norm(self) -> None:
        run = self.run()
        run.model[0].requires_grad_(False).zero_grad()
        GradNorm().before_optimizer_step(run)  # type: ignore[arg-type]
        assert run.logged.keys() == {"grad_norm/2", "grad_norm/total"}
        run.logged.clear()
        run.model.zero_grad()
        GradNorm().before_optimizer_step(run)  # type: ignore[arg-type]
        assert run.logged == {}

    def test_sparse_gradients_count(self) -> None:
        model = nn.Embedding(10, 2, sparse=True)
        model(torch.tensor([1, 1, 3])).sum().backward()
        run = Recorded(model=model, models={"model": model})
        GradNorm().before_optimizer_step(run)  # type: ignore[arg-type]
        assert run.logged["grad_norm/total"] == pytest.approx((2 * 2**2 + 2 * 1) ** 0.5)


class TestThroughput:
    def test_tokens_and_utilization_follow_from_the_examples(self) -> None:
        hook = Throughput(tokens_per_sample=128, flops_per_sample=6e9, peak_flops=1e12)
        assert hook.figures(100.0, 2) == {"samples_per_s": 100, "tokens_per_s": 12800, "mfu": pytest.approx(0.3)}
        assert Throughput().figures(100.0, 2) == {"samples_per_s": 100}

    def test_the_clock_is_that_of_the_window(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [10.0]
        monkeypatch.setattr("time.perf_counter", lambda: now[0])
        hook, run = Throughput(2, tokens_per_sample=3), Recorded(batch_size=8, sum=lambda value: value)
        hook.before_train()
        for seconds in (1, 3):
            now[0] += seconds
            hook.after_train_iter(run)  # type: ignore[arg-type]
        assert run.logged == {"samples_per_s": 4, "tokens_per_s": 12}

    def test_one_figure_alone_gives_no_utilization(self) -> None:
        with pytest.raises(UserError, match="flops_per_sample is given alone"):
            Throughput.check_arguments({"flops_per_sample": 1e9})
