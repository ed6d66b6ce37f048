"""What a batch weighs, in accumulated steps and in all means,
beside plain PyTorch over all rows at once.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from hookflow.events.rundir import RunDir
from hookflow.hooks.tensors import WeightedSum, weighted
from hookflow.runner.iteration import context
from hookflow.runner.iteration.update import GradientAccumulator
from hookflow.runner.process.state import RunState
from hookflow.zoo.tasks import LanguageModelling
from tests.conftest import TESTS, Trained, messages, reason, records
from tests.runner.same import final_state, logged
from tests.support.language_model import TOKENS, Bigram, padded

MASKED = TESTS / "support" / "language_model.toml"
SGD = 'optimizer={use="torch.optim:SGD", args={lr=1.0}}'
SKIP = 'run.on_nan="skip"'
ALL = [*range(8)]


def loss_of(model: nn.Module, data: TensorDataset, rows: slice = slice(None)) -> Tensor:
    """Return the mean over all targets that count, of all these rows at once."""
    tokens, target = data.tensors
    return functional.cross_entropy(model(tokens[rows]).flatten(0, 1), target[rows].flatten())


class Divides(LanguageModelling):
    """Divides by the number of targets: of none the loss is NaN, and so are its gradients."""

    def step(self, run: Any, batch: Any) -> dict[str, Tensor]:
        tokens, target = batch
        losses = functional.cross_entropy(
            run.model(tokens).flatten(0, 1), target.flatten(), reduction="sum"
        )
        return {"loss": losses / target.ne(-100).sum()}


class Wrong(LanguageModelling):
    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def batch_weight(self, batch: Any) -> Any:
        return self.weight


def unweighted(
    run: Any,
    batch: Any,
    reduction: str = "mean",
    ignore_index: int = -100,
    weight: str | None = None,
) -> dict[str, Tensor]:
    """A step that leaves targets out or weighs classes, and does not say so."""
    tokens, target = batch
    logits = run.model(tokens).flatten(0, 1)
    weights = torch.arange(1.0, TOKENS + 1) if weight else None
    loss = functional.cross_entropy(
        logits, target.flatten(), weights, ignore_index=ignore_index, reduction=reduction
    )
    return {"loss": loss}


def weights_of(run_dir: RunDir) -> dict[str, torch.Tensor]:
    return final_state(run_dir)["model"]  # type: ignore[return-value]


def first_weights(trained: Trained) -> dict[str, torch.Tensor]:
    """Return the weights with which each run of the pipeline begins."""
    return weights_of(trained("optimizer.args={lr=0.0}", pipeline=MASKED))


def after_one_step(
    weights: dict[str, torch.Tensor], masked: tuple[int, ...] = ()
) -> tuple[nn.Module, float]:
    """Return the network after one step of SGD on the mean over all targets of
    the training data, and that mean.
    """
    model = Bigram()
    model.load_state_dict(weights)
    loss = loss_of(model, padded(3, masked=masked))
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    return model, loss.item()


def metrics_of(run_dir: RunDir) -> dict[str, float]:
    values: Any = records(run_dir, "metrics")[-1]["v"]
    return {name: float(value) for name, value in values.items()}


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let weights stay tensors, as on another device than the CPU."""
    monkeypatch.setattr(
        context,
        "weight_of_batch",
        lambda task: lambda batch: torch.as_tensor(task.batch_weight(batch)),
    )


def accumulated(batch_size: int, *more: str) -> tuple[str, ...]:
    count = -(-8 // batch_size)
    return f"data.train.loader.batch_size={batch_size}", f"run.accumulate={count}", SGD, *more


STEPS_OF_TWO = ("data.train.loader.batch_size=2", "run.max_iters=4", SGD)
SCHEDULE = 'hooks.adds={use="accumulation_schedule", args={batches=[[0, 4]]}}'


@pytest.mark.parametrize("masked", [(), (0, 1, 6)], ids=["some", "whole batches"])
@pytest.mark.parametrize(
    "run",
    [
        pytest.param((SGD,), id="whole"),
        pytest.param(accumulated(2), id="4 x 2"),
        pytest.param(accumulated(1), id="8 x 1"),
        pytest.param(accumulated(3), id="3 x 3"),
        pytest.param(accumulated(2, SKIP), id="skip"),
        pytest.param((*STEPS_OF_TWO, SCHEDULE), id="schedule"),
        pytest.param(
            (SGD, 'task.use="tests.support.language_model:StepsItself"'), id="steps itself"
        ),
        pytest.param(
            accumulated(1, 'task.use="tests.runner.test_batch_weight:Divides"'),
            id="gradients of an empty batch are NaN",
        ),
    ],
)
def test_accumulated_batches_weigh_what_counts_in_them(
    trained: Trained, run: tuple[str, ...], masked: tuple[int, ...]
) -> None:
    run_dir = trained(*run, f"data.train.args.masked={[*masked]}", pipeline=MASKED)
    expected, loss = after_one_step(first_weights(trained), masked)
    torch.testing.assert_close(weights_of(run_dir), expected.state_dict(), rtol=1e-5, atol=1e-6)
    if SCHEDULE not in run:
        assert [*logged(run_dir, "loss").values()] == [pytest.approx(loss, rel=1e-5)]
    assert not logged(run_dir, "skipped_steps")


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize(
    "more", [(), (SKIP,), ('run.precision="fp16"', SKIP)], ids=["raise", "skip", "fp16"]
)
def test_weights_on_the_device_give_the_same(trained: Trained, more: tuple[str, ...]) -> None:
    masked = (0, 1, 6)
    run_dir = trained(
        *accumulated(1, *more), f"data.train.args.masked={[*masked]}", pipeline=MASKED
    )
    expected, loss = after_one_step(first_weights(trained), masked)
    close = (
        {"rtol": 1e-2, "atol": 1e-2} if "fp16" in "".join(more) else {"rtol": 1e-5, "atol": 1e-6}
    )
    torch.testing.assert_close(weights_of(run_dir), expected.state_dict(), **close)
    assert [*logged(run_dir, "loss").values()] == [pytest.approx(loss, rel=close["rtol"])]


def test_weights_on_the_device_are_not_waited_for() -> None:
    """A tensor on "meta" has no value: whoever asks for it raises."""
    state = RunState()
    group, total = GradientAccumulator(state), WeightedSum()
    state.batch_weight = torch.tensor(3, device="meta")
    for _ in range(2):
        assert group.share(2).device.type == "meta"  # type: ignore[union-attr]
        group.add(state.batch_weight, ("optimizer",))
        total.add(torch.ones((), device="meta"), state.batch_weight)
    assert group.close().device.type == "meta"  # type: ignore[union-attr]
    assert group.drop(("optimizer",)).device.type == "meta"  # type: ignore[union-attr]
    assert total.mean.device.type == "meta"  # type: ignore[union-attr]


@pytest.mark.parametrize("device", ["host", "device"])
@pytest.mark.parametrize("batch_size", [1, 3, 5, 10])
def test_a_validation_is_the_mean_over_all_targets_for_every_batch_size(
    trained: Trained, request: pytest.FixtureRequest, batch_size: int, device: str
) -> None:
    if device == "device":
        request.getfixturevalue("on_device")
    data = "data.val.args.masked=[0, 1, 2, 7]", f"data.val.loader.batch_size={batch_size}"
    run_dir = trained(*data, pipeline=MASKED)
    model = Bigram()
    model.load_state_dict(weights_of(run_dir))
    loss = loss_of(model, padded(4, 10, (0, 1, 2, 7))).item()
    metrics = metrics_of(run_dir)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-6)
    assert metrics["perplexity"] == pytest.approx(math.exp(loss), rel=1e-6)


def test_the_mean_of_nothing_is_nan(trained: Trained) -> None:
    run_dir = trained("data.val.args.examples=8", f"data.val.args.masked={ALL}", pipeline=MASKED)
    assert math.isnan(metrics_of(run_dir)["loss"]) and math.isnan(metrics_of(run_dir)["perplexity"])


@pytest.mark.parametrize("args", ['{mean="epoch"}', "{window=8}"])
def test_the_means_of_a_log_weigh_the_same(trained: Trained, args: str) -> None:
    still = (
        "run.max_iters=4",
        "data.train.loader.batch_size=2",
        "data.train.args.masked=[0, 1, 5]",
    )
    run_dir = trained(*still, "optimizer.args={lr=0.0}", f"hooks.log.args={args}", pipeline=MASKED)
    model = Bigram()
    model.load_state_dict(weights_of(run_dir))
    loss = loss_of(model, padded(3, masked=(0, 1, 5))).item()
    name = "loss_epoch" if "epoch" in args else "loss"
    assert [*logged(run_dir, name).values()][-1] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("on_nan", ["raise", "skip", "ignore"])
@pytest.mark.parametrize(
    "run",
    [
        pytest.param((), id="plain"),
        pytest.param(("run.accumulate=2", "data.train.loader.batch_size=4"), id="accumulated"),
        pytest.param(('task.use="tests.support.language_model:StepsItself"',), id="steps itself"),
        pytest.param(
            ('task.use="tests.runner.test_batch_weight:Divides"',), id="gradients that are NaN"
        ),
    ],
)
def test_where_nothing_counts_no_step_is_taken(
    trained: Trained, run: tuple[str, ...], on_nan: str
) -> None:
    says = 'hooks.says={use="tests.support.numeric_faults:SaysSkipped"}'
    empty = f"data.train.args.masked={ALL}"
    run_dir = trained(
        *run, empty, f'run.on_nan="{on_nan}"', "run.max_iters=3", says, pipeline=MASKED
    )
    torch.testing.assert_close(weights_of(run_dir), first_weights(trained), rtol=0, atol=0)
    assert not logged(run_dir, "skipped_steps"), "it is no step that is not finite"
    assert [line for line in messages(run_dir) if line.startswith("skipped")] == [
        "skipped 1",
        "skipped 2",
        "skipped 3",
    ]
    (told,) = (line for line in messages(run_dir, "warn") if "weight 0" in line)
    assert "iteration 1" in told


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize(
    "more",
    [(), (SKIP, 'hooks.unwaiting={use="tests.support.numeric_faults:Unwaiting"}')],
    ids=["raise", "skip"],
)
def test_an_optimizer_leaves_an_empty_step_out_by_itself(
    trained: Trained, more: tuple[str, ...]
) -> None:
    run = (
        "optimizer.args.fused=true",
        "data.train.loader.batch_size=2",
        "run.accumulate=2",
        "run.max_iters=2",
        "data.train.args.masked=[4, 5, 6, 7]",
    )
    run_dir = trained(*run, *more, pipeline=MASKED)
    once = trained(*run, "run.max_iters=1", pipeline=MASKED)
    torch.testing.assert_close(weights_of(run_dir), weights_of(once), rtol=0, atol=0)
    assert not logged(run_dir, "skipped_steps")


@pytest.mark.usefixtures("on_device")
def test_an_optimizer_that_cannot_leave_an_empty_step_out_is_named(trained: Trained) -> None:
    run = ("run.accumulate=2", "data.train.loader.batch_size=4", f"data.train.args.masked={ALL}")
    (told,) = (
        line for line in messages(trained(*run, pipeline=MASKED), "warn") if "weight 0" in line
    )
    assert "fused = true" in told


@pytest.mark.parametrize("weight", ["-1", "nan", "inf", "'many'", "[1, 2]"])
def test_what_is_no_weight_is_refused(trained: Trained, weight: str) -> None:
    run_dir = trained(
        f'task={{use="tests.runner.test_batch_weight:Wrong", args={{weight={weight}}}}}',
        pipeline=MASKED,
        code=2,
    )
    assert "batch_weight has returned" in reason(run_dir)


def test_a_nan_that_weighs_nothing_is_no_nan() -> None:
    nothing: Any = torch.tensor(0)
    assert weighted(torch.tensor(math.nan), 0) == weighted(torch.tensor(math.nan), nothing) == 0


@pytest.mark.parametrize(
    ("loss", "data", "warned"),
    [
        ({}, "", True),
        ({"reduction": "sum"}, "", False),
        ({"ignore_index": -1}, ", masked=[], unpadded=true", False),
        ({"weight": "classes"}, ", unpadded=true", True),
    ],
)
def test_a_task_that_leaves_targets_out_and_does_not_say_so_is_named(
    trained: Trained, loss: dict[str, Any], data: str, warned: bool
) -> None:
    args = ", ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
        for key, value in loss.items()
    )
    task = f'task={{use="tests.runner.test_batch_weight:unweighted", args={{{args}}}}}'
    sets = [f"data.{name}.args={{seed=3{data}}}" for name in ("train", "val")]
    run_dir = trained(
        task, *sets, "run.accumulate=2", "data.train.loader.batch_size=4", pipeline=MASKED
    )
    told = [line for line in messages(run_dir, "warn") if "batch_weight" in line]
    assert len(told) == (2 if warned else 0), "once of each data"
