"""Every built-in hook that touches weights or gradients, over tensors of every kind: right, or
refused by name.

A new hook inherits it by what it declares: it is trained with here beside a weight of each kind.
Unless `CHANGES` says that it changes what is trained, the weights must be those of a training
without it. The hooks in `CHANGES`, the averages and the norms are compared with plain PyTorch
further below.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hookflow.errors import UserError
from hookflow.hooks.builtin.averaging import EMA, SWA, Average
from hookflow.hooks.builtin.freeze import Prune
from hookflow.hooks.builtin.gradients import SAM, GradClip, GradNorm
from hookflow.hooks.builtin.statistics import ParamStats
from hookflow.hooks.builtin.stops import SpikeGuard
from tests.conftest import Trained, reason
from tests.hooks.stand_ins import StandIn
from tests.runner.same import assert_same, final_state
from tests.support.built_in_hooks import NEEDS, SAMPLES, TOUCHING, inline

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
    "int64": torch.int64,
}
KINDS = (*DTYPES, "sparse")


class Mixed(nn.Module):
    """A network of points with one more weight of some kind: `other`,
    or an embedding of sparse gradients.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU())
        self.head = nn.Linear(8, 3)
        self.kind = kind
        if kind == "sparse":
            self.table = nn.Embedding(5, 3, sparse=True)
            return
        dtype = DTYPES[kind]
        is_number = dtype.is_floating_point or dtype.is_complex
        values = torch.linspace(0.1, 0.9, 3).to(dtype) if is_number else torch.arange(3)
        self.other = nn.Parameter(values, requires_grad=is_number)
        self.register_buffer("seen", values.detach().clone())

    def forward(self, inputs: Tensor) -> Tensor:
        result = self.head(self.body(inputs))
        if self.kind == "sparse":
            places = (inputs[:, 0] > 0).long()  # each row comes several times
            return result + self.table(places)
        other = self.other
        shift = torch.view_as_real(other).sum(-1) if other.is_complex() else other
        return result + shift.to(result.dtype)


REFUSED = {
    ("prune", "int64"): "prunes dense real and complex parameters",
}
"""What is refused, and what the message says beside the hook's name."""

ARGS: dict[str, dict[str, Any]] = {
    "prune": {"params": ["*"], "end": "8it", "every": 4},
    "lr_finder": {"start": 1e-4, "end": 1.0, "iters": 10},
    "spike_guard": {"window": 2, "sigmas": 1e-6, "patience": 100, "rollback": True},
}
"""Arguments with which a hook touches the weight of another kind; else those of its sample."""

CHANGES = {"freeze", "grad_clip", "lr_finder", "precise_bn", "prune", "sam", "spike_guard"}
"""Hooks that change what is trained; all others leave it as it is, to the bit."""

COMMON = (
    "hooks.accuracy.enabled=true",
    *(
        f"hooks.{name}.enabled=false"
        for name in ("clip", "schedule", "ema", "throughput", "log", "early_stop")
    ),
    "hooks.checkpoint={use='checkpoint'}",
    'optimizer={use="torch.optim:SGD", args={lr=0.05}}',
    "run.max_epochs=2",
)


def model_of(kind: str) -> str:
    return f'model={{use="{__file__}:Mixed", args={{kind="{kind}"}}}}'


def weights(run_dir: Any) -> dict[str, Any]:
    return dict(final_state(run_dir)["model"])  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TOUCHING)
def test_a_hook_takes_weights_of_every_kind_or_names_those_that_it_refuses(
    name: str, kind: str, trained: Trained, undisturbed: Trained
) -> None:
    other = {"int64": "head.bias", "sparse": "table.*"}.get(kind, "other")
    args = inline(
        {
            **ARGS.get(name, SAMPLES[name]),
            **({"params": ["body.*", other]} if name == "freeze" else {}),
        }
    )
    sample = f'hooks.sample={{use="{name}", args={args}}}'
    needs = NEEDS.get(name, ())
    if any(override.startswith("model.") for override in needs):
        pytest.skip("it needs a model of its own")
    refusal = REFUSED.get((name, kind))
    run_dir = trained(*COMMON, model_of(kind), sample, *needs, code=2 if refusal else 0)
    if refusal:
        assert refusal in reason(run_dir) and '"sample"' in reason(run_dir)
        return
    if name not in CHANGES:
        assert_same(weights(run_dir), weights(undisturbed(*COMMON, model_of(kind), *needs)))


def test_hooks_that_change_nothing_are_told_from_the_others() -> None:
    assert set(TOUCHING) >= CHANGES


def floats(tensor: Tensor) -> Tensor:
    """Return a tensor in the widest dtype of its kind."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def averaged(kind: str) -> dict[str, Tensor]:
    return {
        name: value
        for name, value in Mixed(kind).state_dict().items()
        if value.dtype != torch.int64
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", [EMA, SWA])
def test_an_average_is_that_of_float64_and_a_validation_gives_the_weights_back(
    use: type[Average], kind: str
) -> None:
    model = Mixed(kind)
    hook = EMA(decay=0.999, gamma=0.0) if use is EMA else SWA(begin=0, every=1)
    hook.name = "average"
    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1), max_iters=300)
    hook.before_train(run)
    samples = (
        [{name: floats(value).clone() for name, value in averaged(kind).items()}]
        if use is EMA
        else []
    )
    for _ in range(300):
        with torch.no_grad():
            for value in model.state_dict().values():
                if value.dtype != torch.int64:
                    value.add_(torch.randn_like(value) * 0.01 - 0.002)
        if isinstance(hook, EMA):
            hook.after_optimizer_step(run)
        run.iter += 1
        if isinstance(hook, SWA):
            hook.after_train_iter(run)
        samples.append({name: floats(value).clone() for name, value in model.state_dict().items()})
    for name, average in hook.average.items():
        every = torch.stack([sample[name] for sample in samples])
        share = 0.999 ** torch.arange(300, -1, -1, dtype=torch.float64)
        share[1:] *= 0.001
        expected = (
            (every.flatten(1) * share[:, None]).sum(0).view_as(average)
            if use is EMA
            else every.mean(0)
        )
        if use is SWA and name in dict(model.named_buffers()):
            expected = every[-1]
        assert average.dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128)
        torch.testing.assert_close(floats(average), expected, rtol=1e-4, atol=1e-5)
    assert hook.average.keys() == averaged(kind).keys()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kept = {name: value.clone() for name, value in hook.average.items()}
    inside = hook.around_test(run)
    with torch.no_grad():
        next(inside)
        for name, value in model.state_dict().items():
            if name in kept:
                assert torch.equal(value, kept[name].to(value.dtype)), name
        assert not list(inside)
    assert_same(dict(model.state_dict()), before)
    assert_same(hook.average, kept)


def test_what_a_validation_changes_of_a_narrow_average_stays_and_the_rest_keeps_its_precision() -> (
    None
):
    model = nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
    hook = EMA()
    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1))
    hook.before_train(run)
    fine = torch.tensor([[1.001, 2.001, 3.001, float("nan")]])
    hook.average["weight"].copy_(fine)
    inside = hook.around_test(run)
    with torch.no_grad():
        next(inside)
        model.weight[0, 1] = 7.0
        list(inside)
    expected = fine.clone()
    expected[0, 1] = 7.0
    torch.testing.assert_close(hook.average["weight"], expected, rtol=0, atol=0, equal_nan=True)


def test_a_run_in_bf16_saves_its_average_in_float32_and_is_resumed_to_the_bit(
    trained: Trained, resumes_alike: Callable[..., Any]
) -> None:
    run_dir = resumes_alike('run.precision="bf16-true"', point="before_val_iter", at=3)
    state: Any = final_state(run_dir)
    assert {value.dtype for name, value in state["model_ema"].items() if "tracked" not in name} == {
        torch.float32
    }
    assert {value.dtype for name, value in state["model"].items() if "tracked" not in name} == {
        torch.bfloat16
    }


def test_a_weight_that_is_not_dense_is_refused() -> None:
    model = nn.Module()
    model.table = nn.Parameter(torch.eye(3).to_sparse())
    hook = EMA()
    hook.name = "average"
    with pytest.raises(
        UserError,
        match='hook "average" cannot average "table", a tensor with the layout sparse_coo',
    ):
        hook.before_train(StandIn(model))  # type: ignore[arg-type]


def with_gradients(kind: str) -> Mixed:
    """Return a network with gradients, that of the table with an index that comes several times."""
    model = Mixed(kind)
    torch.manual_seed(3)
    model(torch.randn(16, 4)).square().sum().backward()
    return model


def dense_gradients(model: nn.Module) -> dict[str, Tensor]:
    parameters = model.named_parameters()
    return {name: floats(p.grad.to_dense()).clone() for name, p in parameters if p.grad is not None}


def norm_over(gradients: dict[str, Tensor], order: float) -> Tensor:
    return torch.cat([each.abs().flatten() for each in gradients.values()]).norm(order)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [2.0, 1.0, float("inf")])
def test_gradients_of_every_kind_are_clipped_by_their_norm(kind: str, order: float) -> None:
    model = with_gradients(kind)
    before = dense_gradients(model)
    norm = norm_over(before, order)
    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1))
    clip, logs = GradClip(max_norm=0.5, norm_type=order), GradNorm()
    clip.before_train(run)
    clip.before_optimizer_step(run)
    assert run.last["grad_norm"] == pytest.approx(float(norm), rel=1e-3)
    for name, gradient in dense_gradients(model).items():
        torch.testing.assert_close(gradient, before[name] * (0.5 / norm), rtol=1e-2, atol=1e-6)
    logs.before_optimizer_step(run)
    assert run.last["grad_norm/total"] == pytest.approx(
        float(norm_over(dense_gradients(model), 2.0)), rel=1e-3
    )


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_every_kind_are_clamped_or_refused(kind: str) -> None:
    model = with_gradients(kind)
    before = dense_gradients(model)
    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1))
    clip = GradClip(clip_value=0.5)
    clip.name = "clip"
    if kind.startswith("complex"):
        with pytest.raises(
            UserError, match='hook "clip": clip_value cannot clamp the complex gradient of "other"'
        ):
            clip.before_train(run)
        return
    clip.before_train(run)
    clip.before_optimizer_step(run)
    for name, gradient in dense_gradients(model).items():
        torch.testing.assert_close(gradient, before[name].clamp(-0.5, 0.5), rtol=1e-2, atol=1e-6)


def test_a_norm_is_not_computed_in_float16() -> None:
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float16))
    weight.grad = torch.full((4,), 60000.0, dtype=torch.float16)
    model = nn.ParameterList([weight])
    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1))
    GradNorm().before_optimizer_step(run)
    GradClip(max_norm=1.0).before_optimizer_step(run)
    assert run.last["grad_norm"] == run.last["grad_norm/total"] == 120000.0
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad.float(), torch.full((4,), 0.5), rtol=1e-3, atol=0)


@pytest.mark.parametrize("kind", ["fp16", "bf16", "complex64", "fp64"])
def test_weights_of_every_kind_are_pruned_by_magnitude(kind: str) -> None:
    model = Mixed(kind)
    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1))
    hook = Prune(params=["other", "head.*"], amount=0.5, begin=1, end=1)
    hook.name = "prune"
    hook.before_train(run)
    magnitudes = {
        name: floats(dict(model.named_parameters())[name].detach()).abs() for name in hook.pruned
    }
    threshold = torch.cat([each.flatten() for each in magnitudes.values()]).median()
    hook.after_optimizer_step(run)
    for name, magnitude in magnitudes.items():
        assert torch.equal(hook.pruned[name] != 0, magnitude > threshold)


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_of_a_complex_weight_are_those_of_its_absolute_values(kind: str) -> None:
    model = Mixed(kind)
    run: Any = StandIn(model)
    ParamStats(stats=("mean", "max", "norm")).after_train_iter(run)
    for name, parameter in model.named_parameters():
        values = floats(parameter.detach())
        values = values.abs() if values.is_complex() else values
        expected = {"mean": values.mean(), "max": values.max(), "norm": values.norm()}
        for stat, value in expected.items():
            assert run.last[f"param/{name}/{stat}"] == pytest.approx(
                float(value), rel=1e-3, abs=1e-6
            )


class TestWhichGradientsAreClipped:
    def test_those_of_chosen_parameters(self) -> None:
        model = with_gradients("sparse")
        before = dense_gradients(model)
        run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1))
        hook = GradClip(max_norm=0.1, params=["head.*", "table.*"])
        hook.name = "clip"
        hook.before_train(run)
        hook.before_optimizer_step(run)
        chosen = {name: each for name, each in before.items() if name.startswith(("head", "table"))}
        norm = norm_over(chosen, 2.0)
        assert run.last == {"grad_norm/clip": pytest.approx(float(norm), rel=1e-4)}
        for name, gradient in dense_gradients(model).items():
            factor = 0.1 / norm if name in chosen else 1.0
            torch.testing.assert_close(gradient, before[name] * factor, rtol=1e-4, atol=1e-7)

    @pytest.mark.parametrize("stepping", ["first", "second"])
    def test_those_of_an_optimizer_when_it_steps(self, stepping: str) -> None:
        model = with_gradients("fp32")
        before = dense_gradients(model)
        optimizers = {
            "first": torch.optim.SGD(model.body.parameters(), 0.1),
            "second": torch.optim.SGD([*model.head.parameters(), model.other], 0.1),
        }
        run: Any = StandIn(model, optimizers=optimizers, stepping={stepping: optimizers[stepping]})
        hook = GradClip(max_norm=0.1, optimizer="second")
        hook.name = "clip"
        hook.before_train(run)
        hook.before_optimizer_step(run)
        held = {name: each for name, each in before.items() if not name.startswith("body")}
        factor = 0.1 / norm_over(held, 2.0) if stepping == "second" else 1.0
        for name, gradient in dense_gradients(model).items():
            torch.testing.assert_close(gradient, before[name] * (factor if name in held else 1.0))

    def test_a_name_or_a_glob_that_fits_nothing_is_refused(self) -> None:
        model = Mixed("fp32")
        run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1))
        with pytest.raises(UserError, match='no parameter of the network matches "haed'):
            GradClip(max_norm=1.0, params=["haed.*"]).before_train(run)
        with pytest.raises(UserError, match='there is no optimizer "optimiser"'):
            GradClip(max_norm=1.0, optimizer="optimiser").before_train(run)
        with pytest.raises(UserError, match="model or optimizer, and not both"):
            GradClip.check_arguments({"max_norm": 1.0, "model": "a", "optimizer": "b"})


TRAINED = ("fp64", "fp32", "bf16", "complex64")
CLOSE = {"fp64": 1e-12, "fp32": 1e-6, "bf16": 2e-2, "complex64": 1e-6}
"""Two roundings of the dtype, and some more."""


def vectors(kind: str, seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(size, dtype=DTYPES[kind]) for size in (3, 5)]


@pytest.mark.parametrize("kind", TRAINED)
def test_sam_computes_the_gradients_at_the_worst_weights(kind: str) -> None:
    """Of the sum of a |w|² / 2 the gradient is a w:
    at w + rho a w / norm it is a (w + rho a w / norm).
    """
    factors, rho = (2.0, 0.5), 0.25
    model = nn.ParameterList(vectors(kind, 4))
    before = [floats(parameter.detach()).clone() for parameter in model]
    norm = torch.cat(
        [factor * weight.abs() for factor, weight in zip(factors, before, strict=True)]
    ).norm()

    def loss(batch: Any) -> Tensor:
        terms = [
            factor * parameter.abs().square().sum() / 2
            for factor, parameter in zip(factors, model, strict=True)
        ]
        return terms[0] + terms[1]

    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1))
    run.loss = loss
    loss(None).backward()
    SAM(rho=rho).after_backward(run, None)
    for factor, parameter, weight in zip(factors, model, before, strict=True):
        worst = weight + rho * factor * weight / norm
        assert parameter.grad is not None
        assert not torch.allclose(floats(parameter.grad), factor * weight, rtol=CLOSE[kind])
        torch.testing.assert_close(
            floats(parameter.grad), factor * worst, rtol=CLOSE[kind], atol=CLOSE[kind]
        )
        torch.testing.assert_close(floats(parameter.detach()), weight, rtol=0, atol=0)


@pytest.mark.parametrize("kind", TRAINED)
def test_a_spike_puts_back_the_bits_of_the_weights_and_of_the_optimizer(kind: str) -> None:
    model = nn.ParameterList(vectors(kind, 5))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    run: Any = StandIn(model, optimizer, batch_weight=2)

    def step() -> None:
        for parameter in model:
            parameter.grad = parameter.detach() * 3
        optimizer.step()

    step()
    hook = SpikeGuard(window=4, sigmas=2.0, rollback=True)
    hook.name = "guard"
    losses = [1.0, 1.25, 0.75, 1.5, 1.0, 1.875]
    for k, loss in enumerate(losses):
        last = losses[max(k - 4, 0) : k]
        is_spike = len(last) == 4 and loss > np.mean(last) + 2.0 * np.std(last)
        dtype = torch.float32 if kind == "complex64" else DTYPES[kind]  # a loss is real
        hook.after_forward(run, {"loss": torch.tensor(loss, dtype=dtype)})
        assert hook.spiked == is_spike == (k == 5)
        if is_spike:
            break
        hook.after_train_iter(run)
        step()
        if k == 2:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "hooks": {}}
            hook.before_save_checkpoint(run, states)
            saved = deepcopy({key: states[key] for key in ("model", "optimizer")})
    hook.after_train_iter(run)
    assert run.skipped == 1
    assert_same({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
