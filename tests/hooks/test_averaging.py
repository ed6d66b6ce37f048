"""Averages of the weights: EMA by its formula, SWA as torch does it, and the checkpoints that are their best."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_swa_multi_avg_fn

from hookflow.hooks.builtin.averaging import EMA, SWA, Average
from tests.conftest import NewRun, records
from tests.hooks.stand_ins import StandIn
from tests.runner.same import final_state
from tests.toy import Net


def trained(hook: Average, model: nn.Module, steps: int = 20) -> Iterator[StandIn]:
    """Let a hook watch a training of noise, and yield the run after each step."""
    torch.manual_seed(0)
    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.5), max_iters=steps)
    hook.name = "averaged"
    hook.before_train(run)
    for _ in range(steps):
        if isinstance(hook, SWA):
            hook.before_train_iter(run)
        with torch.no_grad():
            for tensor in model.state_dict().values():
                if tensor.is_floating_point():
                    tensor += torch.randn_like(tensor)
        if isinstance(hook, EMA):
            hook.after_optimizer_step(run)
        run.iter += 1
        if isinstance(hook, SWA):
            hook.after_train_iter(run)
        yield run


def floats(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if tensor.is_floating_point()}


class TestEMA:
    @pytest.mark.parametrize(("begin", "first"), [(0, 0), (4, 4), ("4it", 4), ("1ep", 5), ("50%", 10)])
    def test_it_is_the_formula_from_begin_on(self, begin: int | str, first: int) -> None:
        model, hook = Net(), EMA(decay=0.9, begin=begin, gamma=3.0)
        expected = floats(model) if first == 0 else {}
        updates = 0
        for run in trained(hook, model):
            if run.iter == first:
                expected = floats(model)
            elif run.iter > first:
                updates += 1
                share = max(0.1, 3 / (3 + updates))
                expected = {name: (1 - share) * expected[name] + share * new for name, new in floats(model).items()}
            assert hook.average.keys() == expected.keys()
            torch.testing.assert_close(hook.average, expected)
        assert hook.updates == 20 - first

    def test_without_annealing_the_momentum_is_constant(self) -> None:
        model, hook = Net(), EMA(decay=0.75, gamma=0)
        before = floats(model)["head.bias"]
        run = next(trained(hook, model))
        torch.testing.assert_close(hook.average["head.bias"], 0.75 * before + 0.25 * floats(run.model)["head.bias"])

    def test_its_best_is_the_best_of_the_average_not_of_the_weights_before_it(self) -> None:
        hook = EMA(begin=3, monitor="accuracy")
        for run, value in zip(trained(hook, Net(), 5), [0.9, 0.8, 0.5, float("nan"), 0.6], strict=True):
            validation = hook.around_val(run)
            with torch.no_grad():
                next(validation)
                run.metrics = {"accuracy": value}
                list(validation)
                list(hook.around_val(run))  # a pass that was cut short has no metrics of its own
        assert run.saved == ["best-averaged", "best-averaged"]
        assert hook.best == 0.6

    def test_a_monitor_of_none_is_the_same_as_none_given(self) -> None:
        EMA.check_arguments({"monitor": None})

    def test_tied_weights_come_back_from_a_validation(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        model[1].weight = model[0].weight
        hook = EMA(decay=0.5, gamma=0)
        (run,) = trained(hook, model, 1)
        kept, average = model[0].weight.clone(), hook.average["0.weight"].clone()
        inside = hook.around_val(run)
        with torch.no_grad():
            next(inside)
            assert torch.equal(model[1].weight, average)
            list(inside)
        assert torch.equal(model[0].weight, kept)
        checkpoint: dict[str, Any] = {}
        hook.before_save_checkpoint(run, checkpoint)
        assert torch.equal(checkpoint["model_averaged"]["0.weight"], average)
        assert torch.equal(checkpoint["model_averaged"]["1.weight"], average)


class TestSWA:
    def test_the_mean_is_that_of_torch_to_the_bit(self) -> None:
        model, hook = Net(), SWA(begin="1ep", every="3it")
        oracle = AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn())  # which is torch's default on a GPU
        for run in trained(hook, model):
            if run.iter > 5 and run.iter % 3 == 0:
                oracle.update_parameters(run.model)
        state = oracle.module.state_dict()
        assert hook.updates == 5
        assert all(torch.equal(tensor, state[name]) for name, tensor in hook.average.items())
        assert hook.average.keys() == floats(model).keys()

    @pytest.mark.parametrize(("shape", "torchs"), [("cosine", "cos"), ("linear", "linear")])
    @pytest.mark.parametrize("anneal", [0, 4, 10])
    def test_the_rates_are_those_of_torch(self, shape: Any, torchs: Any, anneal: int) -> None:
        model, hook = Net(), SWA(begin=0, lr=0.05, anneal=anneal, shape=shape)
        optimizer = torch.optim.SGD(Net().parameters(), 0.5)
        scheduler = SWALR(optimizer, 0.05, anneal, torchs)
        optimizer.step()
        rates, expected = [], []
        for run in trained(hook, model):
            rates.append(run.optimizers["optimizer"].param_groups[0]["lr"])
            expected.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
        assert rates == pytest.approx(expected, rel=1e-6)

    def test_it_takes_the_rate_over_from_a_schedule_and_is_judged(self, new_run: NewRun, train_here: Any) -> None:
        swa = 'hooks.swa={use="swa", args={begin="2ep", every="2it", lr=0.03, anneal="2it", monitor="accuracy"}}'
        whole = new_run("hooks.ema.enabled=false", "hooks.log.points=['after_train_iter']", swa)
        assert train_here(whole) == 0
        rates = {r["it"]: r["v"]["lr"] for r in records(whole, "scalars") if "lr" in r["v"]}  # type: ignore[index,operator]
        assert rates[11] == rates[10] + (rates[10] - rates[9])  # the last one of the schedule
        assert rates[12] == pytest.approx((rates[11] + 0.03) / 2)
        assert [rates[k] for k in (13, 14, 15)] == [0.03] * 3
        assert "model_swa" in final_state(whole)
        assert [r for r in records(whole, "checkpoint") if "best-swa" in r["names"]]  # type: ignore[operator]
