"""Losses and gradients that are not finite; and the sanity check before a training."""

import random
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from hookflow import Hook
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.checkpoint.manifest import (
    NONFINITE,
    find_damage,
    find_newest_good,
    list_checkpoints,
)
from hookflow.runner.checkpoint.store import CheckpointStore, read
from hookflow.runner.iteration.finite import LossCheck, host_sync_reason, suggest_remedies
from hookflow.runner.loop.sanity import _copy_parts, restore_afterwards
from tests.conftest import TESTS, TOY, NewRun, Train, Trained, messages, reason, records, strikes
from tests.runner.same import assert_same, assert_same_end, curve, final_state, logged
from tests.support.data_loaders import Clouds
from tests.support.gan import Adversarial
from tests.support.numeric_faults import NaNWithGradient
from tests.support.toy import Net

ONE_EPOCH = "run.max_epochs=1"
LOOKS = 'hooks.looks={use="./numeric_faults.py:Looks"}'
FUSED = "optimizer.args.fused=true"


class Counting:
    """Writes down each call, as t or v."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def _call(self, run: Any, batch: Any, letter: str) -> dict[str, Any]:
        with self.file.open("a") as file:
            file.write(letter)
        return {"loss": torch.nn.functional.cross_entropy(run.model(batch[0]), batch[1])}

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        return self._call(run, batch, "t")

    def evaluate(self, run: Any, batch: Any) -> dict[str, Any]:
        return self._call(run, batch, "v")


class UpsetAdversarial(Adversarial):
    def judged(self, run: Any, points: torch.Tensor, as_real: float) -> torch.Tensor:
        result = super().judged(run, points, as_real)
        return self.spoilt(result) if run.iter == 1 and not as_real else result

    def spoilt(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * torch.nan


class SoftlyUpsetAdversarial(UpsetAdversarial):
    """Spoils the loss, and not its gradient."""

    def spoilt(self, loss: torch.Tensor) -> torch.Tensor:
        return NaNWithGradient.apply(loss)


class Poisons:
    """Makes a weight NaN once an iteration is done."""

    writes = ("model",)

    def __init__(self, at: int) -> None:
        self.at = at

    @torch.no_grad()
    def after_train_iter(self, run: Any) -> None:
        if run.iter == self.at:
            next(run.model.parameters()).view(-1)[0] = torch.nan


class Compares(Hook):
    """Says at `on_exception` whether weights, buffers,
    gradients and generators are as before the backward pass.
    """

    def before_backward(self, run: Any) -> None:
        self.before = self.state(run)

    def on_exception(self, run: Any) -> None:
        after = self.state(run)
        same = len(after) == len(self.before) and all(map(torch.equal, self.before, after))
        run.say(f"{len(after)} tensors: {'the same' if same else 'changed'}")

    def state(self, run: Any) -> list[torch.Tensor]:
        gradients = [p.grad.clone() for p in run.model.parameters() if p.grad is not None]
        weights = [tensor.detach().clone() for tensor in run.model.state_dict().values()]
        return [torch.get_rng_state(), *weights, *gradients]


class SpoilsLoss:
    """Makes the loss of iteration 3 NaN, at the point that it is bound to."""

    writes = ("outputs",)

    def after_forward(self, run: Any, outputs: dict[str, Any]) -> None:
        self.spoil(run, outputs)

    def before_backward(self, run: Any, outputs: dict[str, Any]) -> None:
        self.spoil(run, outputs)

    def spoil(self, run: Any, outputs: dict[str, Any]) -> None:
        if run.iter == 2:
            outputs["loss"] = outputs["loss"] * torch.nan


class SpoilsOutput:
    """Makes the output of a module NaN in iteration 3."""

    def forward(
        self,
        run: Any,
        module: torch.nn.Module,
        input: Any,  # noqa: A002
        output: torch.Tensor,
    ) -> torch.Tensor:
        return output * torch.nan if run.iter == 2 else output


class SpoilsBatch:
    """Makes the inputs of iteration 3 NaN in place."""

    writes = ("batch",)

    def before_train_iter(self, run: Any, batch: Any) -> None:
        if run.iter == 2:
            batch[0].fill_(torch.nan)


class Meter:
    def __init__(self) -> None:
        self.sum, self.seen = 0.0, [0]


class Leaves(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        noise = torch.randn(()) + random.random() + np.random.rand() + 1e-3 * self.passes
        return super().forward(inputs) + noise


class Tracks:
    """A task whose losses depend on everything that was evaluated before,
    and which does all that a task may do.
    """

    def __init__(self) -> None:
        self.meter, self.evaluated = Meter(), 0
        self.own = torch.Generator().manual_seed(3)
        self.numpy, self.python = np.random.default_rng(3), random.Random(3)
        self.confusion, self.sums = np.zeros(3), torch.zeros(3)
        self.run: Any = None

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        trace = (
            self.evaluated
            + self.meter.sum
            + sum(self.meter.seen)
            + self.confusion.sum()
            + float(self.sums.sum())
        )
        drawn = (
            float(torch.rand((), generator=self.own)) + self.numpy.random() + self.python.random()
        )
        loss = functional.cross_entropy(run.model(batch[0]), batch[1])
        return {"loss": loss + 1e-3 * (trace + drawn), "drawn": drawn, "trace": float(trace)}

    def evaluate(self, run: Any, batch: Any) -> dict[str, Any]:
        self.run = run
        self.evaluated += 1
        self.meter.sum += 1
        self.meter.seen.append(len(batch[1]))
        self.confusion += 1
        self.sums += torch.rand(3, generator=self.own)
        run.log("logged", self.evaluated)
        run.say("evaluated")
        run.save_checkpoint("unasked")
        logits = run.model(batch[0])
        drawn = (
            torch.rand(())
            + random.random()
            + np.random.rand()
            + self.numpy.random()
            + self.python.random()
        )
        loss = functional.cross_entropy(logits, batch[1]) + drawn
        return {"loss": loss, "logits": logits, "target": batch[1]}

    def metrics(self, means: Mapping[str, float]) -> Mapping[str, float]:
        self.meter.sum = 0
        return {"twice": 2 * means["loss"]}


class Raises:
    def __init__(self, split: str = "evaluate") -> None:
        self.split = split

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        return {"loss": functional.cross_entropy(run.model(batch[0]), batch[1])}

    def evaluate(self, run: Any, batch: Any) -> dict[str, Any]:
        if self.split == "evaluate":
            raise KeyError("logits")
        return self.step(run, batch)

    def metrics(self, means: Mapping[str, float]) -> Mapping[str, float]:
        if self.split == "metrics":
            raise ZeroDivisionError("no positives in these examples")
        return {}


class Locked(Raises):
    def __init__(self) -> None:
        super().__init__("none")
        self.lock = threading.Lock()

    def evaluate(self, run: Any, batch: Any) -> dict[str, Any]:
        logits = run.model(batch[0])
        return {
            "loss": functional.cross_entropy(logits, batch[1]),
            "logits": logits,
            "target": batch[1],
        }


class Counts:
    """A hook that notes each call, as a metric of a name that it does not declare."""

    named = "calls"

    def __init__(self) -> None:
        self.calls = 0

    def before_val(self) -> None:
        self.calls += 1

    def after_val_iter(self) -> None:
        self.calls += 1

    def after_val_epoch(self, metrics: dict[str, float]) -> None:
        metrics[self.named] = self.calls


class Sets:
    def after_val_epoch(self, metrics: dict[str, float]) -> None:
        metrics["calls"] = 1


class SetsOfTheRun:
    def after_val_epoch(self, run: Any) -> None:
        run.metrics["calls"] = 1


def sets(run: Any) -> None:
    run.metrics["calls"] = 1


class Reads:
    def __init__(self, monitors: Any) -> None:
        pass

    @classmethod
    def capabilities_for(cls, args: Mapping[str, Any]) -> HookCapabilities:
        return HookCapabilities(monitors=args["monitors"])

    def after_val(self) -> None:
        pass


def validates() -> DataLoader[Any]:
    return DataLoader(
        Clouds(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(5)
    )


def upset(*batches: int, kind: str = "loss") -> str:
    return (
        f'task={{use="./numeric_faults.py:Upset", args={{batches={list(batches)}, kind="{kind}"}}}}'
    )


def test_the_diagnosis_leaves_no_trace(trained: Trained) -> None:
    compares = 'hooks.compares={use="tests.runner.test_finite:Compares"}'
    run_dir = trained(ONE_EPOCH, upset(3), compares, "run.accumulate=2", code=1)
    assert "Gradients that are not finite" in reason(run_dir)
    assert "16 tensors: the same" in messages(run_dir), "6 gradients of the first batch among them"


def test_the_advice_fits_the_run_and_who_makes_the_host_look_is_named() -> None:
    said = {
        precision: suggest_remedies(precision, clips=False, saved=False)
        for precision in ("fp32", "tf32", "bf16", "fp16")
    }
    assert said["fp32"] == said["tf32"]
    assert (
        "run.precision" not in said["fp32"]
        and "grad_clip" in said["fp32"]
        and "checkpoints" not in said["fp32"]
    )
    assert suggest_remedies("fp32", clips=True, saved=True).endswith(
        " Existing checkpoints are not affected."
    )
    assert '"fp32"' in said["bf16"] and "wider range" not in said["bf16"]
    assert 'wider range (run.precision = "bf16" or "fp32")' in said["fp16"]
    weights = [torch.nn.Parameter(torch.ones(2))]
    plan = compile_pipeline(load(TOY))
    alone = compile_pipeline(load(TOY, ("hooks.ema.enabled=false", "hooks.checkpoint.after=[]")))
    plain, fused = torch.optim.SGD(weights, lr=1.0), torch.optim.SGD(weights, lr=1.0, fused=True)
    assert "fused = true" in host_sync_reason(alone, {"optimizer": plain})
    assert '"ema"' in host_sync_reason(plan, {"optimizer": fused})
    assert host_sync_reason(alone, {"optimizer": fused}) == ""


def test_nobody_looks_where_it_is_ignored(trained: Trained) -> None:
    run_dir = trained(ONE_EPOCH, upset(2), 'run.on_nan="ignore"', "hooks.clip.enabled=false")
    weights = final_state(run_dir)["model"]["head.weight"]  # type: ignore[index]
    assert weights.isnan().all()


@pytest.mark.parametrize("kind", ["loss", "gradient", "constant", "finite gradient"])
def test_a_step_from_what_is_not_finite_is_left_out(trained: Trained, kind: str) -> None:
    run_dir = trained(ONE_EPOCH, upset(2, kind=kind), 'run.on_nan="skip"', LOOKS)
    lines = [line for line in messages(run_dir) if "weights" in line]
    taken = ["1: in taken out skipped=False", "2: in taken out skipped=False", "3:  skipped=True"]
    assert [line.split(" weights")[0] for line in lines][:3] == taken
    weights = [line.split("weights=")[1] for line in lines]
    assert len({*weights[1:3]}) == 1 and len({*weights}) == 4, "the third iteration changes nothing"
    assert [*logged(run_dir, "skipped_steps").values()] == [1.0]
    assert final_state(run_dir)["hooks"]["ema"]["updates"] == 4, "an average is one over steps"  # type: ignore[index]
    assert [line.partition(":")[0] for line in messages(run_dir) if "no step" in line] == [
        "iteration 3 takes no step"
    ]


SAYS_SKIPPED = 'hooks.says={use="./numeric_faults.py:SaysSkipped"}'
NO_HOOKS = ("hooks.ema.enabled=false", "hooks.checkpoint.after=[]")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-true", "fp16"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("waits", [True, False], ids=["waits", "on the device"])
def test_a_loss_that_is_not_finite_decides_whatever_its_gradients_are(
    trained: Trained, precision: str, accumulate: int, waits: bool
) -> None:
    more = (
        () if waits else (FUSED, 'hooks.unwaiting={use="./numeric_faults.py:Unwaiting"}', *NO_HOOKS)
    )
    run_dir = trained(
        ONE_EPOCH,
        upset(2, kind="finite gradient"),
        'run.on_nan="skip"',
        f'run.precision="{precision}"',
        f"run.accumulate={accumulate}",
        SAYS_SKIPPED,
        *more,
    )
    skipped = [line for line in messages(run_dir) if line.startswith("skipped")]
    assert skipped == [f"skipped {2 // accumulate + 1}"]
    assert [*logged(run_dir, "skipped_steps").values()] == [1.0]


def test_a_loss_whose_gradients_wait_for_their_step_is_not_forgotten(trained: Trained) -> None:
    """A hook adds the gradients of two iterations up; the NaN is in the first of the two."""
    schedule = 'hooks.adds={use="accumulation_schedule", args={batches=[[0, 2]]}}'
    run = (ONE_EPOCH, upset(2, kind="finite gradient"), 'run.on_nan="skip"', SAYS_SKIPPED, schedule)
    run_dir = trained(*run)
    skipped = [line for line in messages(run_dir) if line.startswith("skipped")]
    assert skipped == ["skipped 4"]
    assert [*logged(run_dir, "skipped_steps").values()] == [1.0]


@pytest.mark.parametrize(
    "more",
    [
        (),
        (FUSED, 'hooks.unwaiting={use="./numeric_faults.py:Unwaiting"}', "hooks.ema.enabled=false"),
    ],
)
def test_too_many_skipped_steps_in_a_row_end_the_run(
    trained: Trained, more: tuple[str, ...]
) -> None:
    after = ("hooks.checkpoint.after=[]",) if more else ()
    skips = (ONE_EPOCH, 'run.on_nan="skip"', "run.max_skipped_steps=2", *more, *after)
    trained(*skips, upset(0, 2, 4))
    together = trained(*skips, upset(1, 2, 3), code=1)
    assert "2 steps in a row were skipped, the last in iteration 3" in reason(together)


@pytest.mark.parametrize("on_nan", ["skip", "ignore"])
def test_a_checkpoint_of_weights_that_are_not_finite_is_kept_apart(
    trained: Trained, on_nan: str
) -> None:
    poisons = 'hooks.poisons={use="tests.runner.test_finite:Poisons", args={at=7}}'
    run_dir = trained(
        "run.max_epochs=2", f'run.on_nan="{on_nan}"', poisons, "hooks.checkpoint.args={}"
    )
    store = CheckpointStore(run_dir.checkpoints)
    broken = [line for line in messages(run_dir) if line.startswith("the weights are not finite")]
    assert len(broken) == 1
    if on_nan == "ignore":
        assert "saves them" in broken[0] and store.names()["last"].name == "it00000010"
        return
    assert "nonfinite-it00000010, and not as last" in broken[0]
    assert {path.name for path in store.names().values()} == {"it00000005"}
    assert find_newest_good(store.all())[0] == store.names()["last"].resolve()
    (apart,) = list_checkpoints(run_dir.checkpoints, NONFINITE)
    assert [saved["it"] for saved in records(run_dir, "checkpoint")] == [5], (
        "a resume takes this one"
    )
    assert not find_damage(apart) and read(apart)["position"]["iter"] == 10


def test_anomaly_mode_names_the_operation_and_is_put_back(trained: Trained) -> None:
    run_dir = trained(ONE_EPOCH, upset(2, kind="gradient"), "run.detect_anomaly=true", code=1)
    assert "MulBackward0' returned nan" in reason(run_dir)
    assert not torch.is_anomaly_enabled()


def test_a_group_of_batches_is_left_out_as_a_whole_and_a_skip_of_a_hook_is_seen_as_one_too(
    trained: Trained,
) -> None:
    accumulate = (
        "run.accumulate=2",
        "hooks.accuracy.enabled=false",
        "hooks.early_stop.enabled=false",
    )
    off = ("hooks.checkpoint.args={}",)
    run_dir = trained(ONE_EPOCH, upset(2), 'run.on_nan="skip"', LOOKS, *accumulate, *off)
    ends = [
        line.split(" weights")[0].split()[-1] for line in messages(run_dir) if "weights" in line
    ]
    assert ends == ["skipped=False", "skipped=True", "skipped=False"]
    run_dir = trained(ONE_EPOCH, LOOKS, 'hooks.skips={use="./common_hooks.py:Skips"}')
    lines = [line.partition(": ")[2] for line in messages(run_dir) if "weights" in line]
    assert len(lines) == 5 and len({*lines}) == 1 and " skipped=True weights=" in lines[0]


@pytest.mark.parametrize("task", ["UpsetAdversarial", "SoftlyUpsetAdversarial"])
def test_of_several_optimizers_the_one_alone_is_left_out(trained: Trained, task: str) -> None:
    gan = (TESTS / "support" / "gan.toml").read_text()
    toy = TOY.read_text()
    run_dir = trained(
        "run.max_epochs=1",
        'run.on_nan="skip"',
        LOOKS,
        f'task.use="tests.runner.test_finite:{task}"',
        swap=(toy, gan),
    )
    seen = [line.split(" weights")[0] for line in messages(run_dir) if "weights" in line]
    assert seen[:3] == [
        "1: in taken out skipped=False",
        "2: in taken out skipped=True",  # the generator's alone
        "3: in taken out skipped=False",
    ]


class Slow:
    def __init__(self) -> None:
        self.done = False

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.done = True


def test_what_is_behind_a_checkpoint_is_certain(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is so slow that nothing is known of a loss until somebody waits: a save does."""
    from hookflow.runner.iteration import finite
    from hookflow.runner.loop import trainer

    send = finite.AsyncScalarCopy.send

    def send_slowly(
        self: finite.AsyncScalarCopy[object], number: torch.Tensor, mark: object
    ) -> None:
        send(self, number, mark)
        copy, _, mark = self._under_way.pop()
        self._under_way.append((copy, Slow(), mark))  # type: ignore[arg-type]

    monkeypatch.setattr(finite.AsyncScalarCopy, "send", send_slowly)
    monkeypatch.setattr(
        trainer, "LossCheck", lambda device, state, explain: LossCheck(torch.device("cuda"), state)
    )
    run_dir = trained(upset(2), "hooks.clip.enabled=false", code=1)
    assert "iteration 3 (" in reason(run_dir)
    assert not CheckpointStore(run_dir.checkpoints).names(), (
        "the first would have been saved at the end of the epoch"
    )
    assert SimpleNamespace(**records(run_dir, "end")[-1]).it == 5  # type: ignore[arg-type]


def test_schedules_go_on_over_a_step_that_is_left_out(trained: Trained) -> None:
    chain = 'chain=[{use="StepLR", args={step_size=2, gamma=0.5}, length="1ep"}]'
    schedule = f'hooks.schedule={{use="scheduler", args={{{chain}}}}}'
    run = (schedule, ONE_EPOCH, "hooks.log.points=['after_train_iter']", 'run.on_nan="skip"')
    whole, upset_one = trained(*run), trained(*run, upset(0, 2))
    rates = [
        {at: v for (at, _, name), v in curve(item).items() if name == "lr"}
        for item in (whole, upset_one)
    ]
    assert rates[0] == rates[1] and len({*rates[0].values()}) == 3


def test_a_resumed_run_counts_on(resumes_alike: NewRun) -> None:
    run = (upset(1, 4), 'run.on_nan="skip"', "hooks.throughput.enabled=false", "run.max_epochs=2")
    assert [
        *logged(resumes_alike(*run, point="after_train_iter", at=3), "skipped_steps").values()
    ] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("loss", ["the loss is NaN in iteration 3 (epoch 1, batch 3)"]),
        ("constant", ["the loss is infinite in iteration 3 (epoch 1, batch 3)"]),
        (
            "module",
            [
                "First module with an output that is not finite: ",
                "(Linear)",
                "Gradients that are not finite: ",
            ],
        ),
        ("weights", ["Parameters that are not finite: "]),
        ("batch", ["Input that is not finite: batch"]),
        ("once", ["The diagnosis raised RuntimeError: called again."]),
    ],
)
def test_a_loss_that_is_not_finite_ends_the_run_with_its_cause(
    trained: Trained, kind: str, said: list[str]
) -> None:
    tells = 'hooks.tells={use="./common_hooks.py:tells", points=["on_exception"]}'
    asks = 'hooks.asks={use="./common_hooks.py:Asks", args={point="after_train_iter"}}'
    run_dir = trained(ONE_EPOCH, upset(2, kind=kind), tells, asks, code=1)
    text = reason(run_dir)
    saved = "The batch is saved as nonfinite-batch-it3.pt in the run directory."
    for part in (*said, "in iteration 3", 'run.on_nan = "skip"', saved):
        assert part in text
    assert "grad_clip" not in text, "it is in the pipeline"
    assert ("The diagnosis raised" in text) == (kind == "once")
    assert torch.load(run_dir.path / "nonfinite-batch-it3.pt", weights_only=True)
    (error,) = records(run_dir, "error")
    assert error["it"] == 3
    assert "--at 1 --with grad_norm" in text, "how to look into what led to it"
    assert "in test_" not in str(error["traceback"]) and "NonFiniteLossError" in str(
        error["traceback"]
    )
    assert "told" in messages(run_dir), "hooks are told of the loss"
    state = read(CheckpointStore(run_dir.checkpoints).names()["mine"])
    assert state["position"]["iter"] == 1 and all(
        tensor.isfinite().all() for tensor in state["model"].values()
    )


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (
            'use="tests.runner.test_finite:SpoilsLoss", points=["after_forward"]',
            'The hook "spoils" turns it into',
        ),
        (
            'use="tests.runner.test_finite:SpoilsLoss", points=["before_backward"]',
            'The hook "spoils" turns it into',
        ),
        (
            'use="tests.runner.test_finite:SpoilsOutput", modules=["head"]',
            'is not finite. The hooks there: "spoils".',
        ),
        (
            'use="tests.runner.test_finite:SpoilsBatch"',
            "Hooks that had this batch before the model: spoils.",
        ),
    ],
)
def test_a_hook_that_makes_the_loss_not_finite_is_named(
    trained: Trained, hook: str, said: str
) -> None:
    compares = 'hooks.compares={use="tests.runner.test_finite:Compares"}'
    run_dir = trained(ONE_EPOCH, f"hooks.spoils={{{hook}}}", compares, code=1)
    assert said in reason(run_dir)
    assert "random numbers" not in reason(run_dir) and "The diagnosis raised" not in reason(run_dir)
    # Then the statistics of batch norms are NaN, which equals nothing.
    if "SpoilsBatch" not in hook:
        assert any(line.endswith("the same") for line in messages(run_dir)), (
            "the passes leave no trace"
        )


def test_optimizers_that_decide_by_themselves_decide_alike_and_the_iteration_knows(
    trained: Trained,
) -> None:
    plain = (
        "hooks.ema.enabled=false",
        "hooks.checkpoint.after=[]",
        upset(2, 4),
        'run.on_nan="skip"',
        FUSED,
        LOOKS,
    )
    knowing, blind = (
        trained(*plain),
        trained(*plain, 'hooks.unwaiting={use="./numeric_faults.py:Unwaiting"}'),
    )
    for part in ("model", "optimizer"):
        assert_same(final_state(knowing)[part], final_state(blind)[part])
    for run_dir in (knowing, blind):
        assert [*logged(run_dir, "skipped_steps").values()] == [1.0, 2.0]
        left_out = ["skipped=True" in line for line in messages(run_dir) if "weights" in line]
        assert left_out[:5] == [False, False, True, False, True]


TRACKS = (
    'task.use="tests.runner.test_finite:Tracks"',
    'model.use="tests.runner.test_finite:Leaves"',
    'hooks.counts.use="tests.runner.test_finite:Counts"',
)
VAL = 'data.val={use="./data_loaders.py:%s", args={examples=40}, loader={batch_size=8, workers=%d}}'


@pytest.mark.parametrize(
    "setup",
    [
        pytest.param((), id="the toy pipeline"),
        pytest.param((VAL % ("Clouds", 0),), id="a loader"),
        pytest.param((VAL % ("Clouds", 1),), id="a worker"),
        pytest.param(('data.val={use="tests.runner.test_finite:validates"}',), id="batches"),
        pytest.param((VAL % ("NumbersWithPlace", 0),), id="a stream that keeps its place"),
        pytest.param((VAL % ("Numbers", 2),), id="a stream with workers"),
        pytest.param(
            ('data.val={use="./data_loaders.py:stateful_loader"}',), id="a stateful loader"
        ),
        pytest.param((VAL % ("Clouds", 0), "run.limit_val=3"), id="limited"),
        pytest.param((*TRACKS,), id="a task and a network with states of their own"),
        pytest.param((*TRACKS, 'data.val={use="tests.runner.test_finite:validates"}'), id="both"),
        pytest.param(("run.accumulate=2", 'run.precision="bf16"'), id="bf16, accumulated"),
        pytest.param(
            ('run.on_nan="skip"', "run.max_epochs=2", "run.val_every='4it'"), id="iterations"
        ),
    ],
)
def test_the_run_is_the_same_to_the_bit_with_and_without(
    trained: Trained, setup: tuple[str, ...]
) -> None:
    """Weights, optimizer, generators, hooks, triggers, data,
    and all numbers that were logged and measured.
    """
    without, with_ = (
        trained("run.max_epochs=2", *setup, f"run.sanity={sanity}") for sanity in ("false", "true")
    )
    assert_same_end(without, with_)
    told = [
        [record for record in records(run, "message") if record["level"] != "info"]
        for run in (without, with_)
    ]
    assert len(told[0]) == len(told[1])
    kinds = [
        [(r["k"], r["it"]) for r in records(run) if r["k"] in ("metrics", "epoch")]
        for run in (without, with_)
    ]
    assert kinds[0] == kinds[1]


PLATEAU = (
    'hooks.plateau={use="scheduler", args={chain=[{use="ReduceLROnPlateau"}], metric="accuracy1"}}'
)


@pytest.mark.parametrize(
    ("hook", "overrides"),
    [
        ("early_stop", ['hooks.early_stop.args.monitor="accuracy1"']),
        ("checkpoint", ['hooks.checkpoint.args.monitor="accuracy1"']),
        ("checkpoint", ['hooks.checkpoint.args.monitor={accuracy1="max"}']),
        ("plateau", [PLATEAU, "hooks.schedule.enabled=false"]),
        ("log", ['hooks.log.when="metrics.accuracy1 > 1"']),
        (
            "reads",
            [
                'hooks.reads={use="tests.runner.test_finite:Reads", args={monitors={}},'
                ' reads=["metrics.accuracy1"]}'
            ],
        ),
        (
            "checkpoint",
            ['hooks.early_stop.args.monitor="mae"', 'hooks.checkpoint.args.monitor="accuracy1"'],
        ),
    ],
)
def test_a_metric_that_is_not_there_costs_no_iteration(
    trained: Trained, hook: str, overrides: list[str]
) -> None:
    run_dir = trained(*overrides, code=2)
    assert records(run_dir, "end")[0]["it"] == 0
    text, both = reason(run_dir), len(overrides) == 2 and hook != "plateau"
    assert f'hook "{hook}" reads the metric "accuracy1"' in text
    assert 'did you mean "accuracy"?' in text
    assert 'writes = ["metrics.accuracy1"]' in text
    for told in (
        'hook "early_stop" reads the metric "mae"',
        '; a hook that makes it declares writes = ["metrics.mae"]',
    ):
        assert (told in text) == both
    assert "--set" in text, "the place where it was written"


@pytest.mark.parametrize(
    ("monitors", "code"), [('{accuracy="max"}', 0), ("{}", 0), ('{los="min"}', 2)]
)
def test_a_hook_of_ones_own_may_say_what_it_reads(
    trained: Trained, monitors: str, code: int
) -> None:
    trained(
        f'hooks.reads={{use="tests.runner.test_finite:Reads", args={{monitors={monitors}}}}}',
        code=code,
    )


@pytest.mark.parametrize(
    ("hook", "unsure"),
    [
        pytest.param(
            'use="tests.runner.test_finite:Counts"', True, id="under a name that is computed"
        ),
        pytest.param(
            'use="tests.runner.test_finite:Counts", writes=["metrics.calls"]',
            False,
            id="declared in the file",
        ),
        pytest.param('use="tests.runner.test_finite:Sets"', False, id="in an argument"),
        pytest.param('use="tests.runner.test_finite:SetsOfTheRun"', False, id="in run.metrics"),
        pytest.param(
            'use="tests.runner.test_finite:sets", points=["after_val_epoch"]',
            False,
            id="by a function",
        ),
    ],
)
def test_a_metric_of_a_hook_is_known_by_declaration_or_source(
    trained: Trained, hook: str, unsure: bool
) -> None:
    run_dir = trained(
        f"hooks.counts={{{hook}}}", 'hooks.early_stop.args={monitor="calls", mode="max"}'
    )
    told = [text for text in messages(run_dir) if '"calls"' in text]
    assert len(told) == unsure
    assert all('writes = ["metrics.calls"] in' in text for text in told)


def test_an_evaluation_that_raises_costs_no_iteration(trained: Trained) -> None:
    run_dir = trained('task.use="tests.runner.test_finite:Raises"', code=1)
    (end,) = records(run_dir, "end")
    message = "in the sanity check over the validation: 'logits'"
    assert (end["it"], end["reason"]) == (0, f"KeyError: {message}")
    (error,) = records(run_dir, "error")
    assert (error["type"], error["text"]) == ("KeyError", message)
    assert "run.sanity = false" in str(error["traceback"])


def test_a_hook_that_prepares_the_validation_makes_an_error_a_warning(trained: Trained) -> None:
    counts = 'hooks.counts.use="tests.runner.test_finite:Counts"'
    run_dir = trained('task.use="tests.runner.test_finite:Raises"', counts, code=1)
    assert records(run_dir, "end")[0]["it"] == 5, "the validation itself raises, too"
    assert any("hooks counts were not called" in text for text in messages(run_dir))
    declared = trained(
        'task.use="tests.runner.test_finite:Raises"',
        counts,
        'hooks.counts.writes=["metrics.calls"]',
        code=1,
    )
    assert records(declared, "end")[0]["it"] == 0, "one that writes metrics alone prepares nothing"


def test_a_task_that_cannot_be_copied_is_trained_without(trained: Trained) -> None:
    run_dir = trained('task.use="tests.runner.test_finite:Locked"', "run.max_epochs=1")
    assert any("the task cannot be copied" in text for text in messages(run_dir))


def test_the_networks_of_a_task_are_not_copied_but_restored_on_their_device() -> None:
    task = SimpleNamespace(teacher=Net(), metric=Meter(), net=None)
    parts: Any = SimpleNamespace(task=task, model=Net(), models={})
    copied = _copy_parts(parts)
    assert copied.teacher is task.teacher
    assert copied.metric is not task.metric
    net = nn.BatchNorm1d(3, device="meta")  # from which any copy to the host raises
    with restore_afterwards(net, torch.device("meta")):
        net(torch.ones(2, 3, device="meta"))
    assert net.running_mean is not None and net.running_mean.is_meta


def test_it_takes_two_batches_and_a_resumed_run_has_none(
    trained: Trained, train_here: Train, tmp_path: Path
) -> None:
    """Else the tests above would hold for nothing."""
    calls = tmp_path / "calls"
    counts = f'task={{use="tests.runner.test_finite:Counting", args={{file="{calls}"}}}}'
    off = (
        "hooks.early_stop.enabled=false",
        "hooks.accuracy.enabled=false",
        "hooks.checkpoint.args={}",
    )
    trained(counts, *off, "run.sanity=false")
    assert calls.read_text().startswith("t")
    calls.unlink()
    run_dir = trained(counts, *off, *strikes(tmp_path, 15, ("after_backward", 2)), code=143)
    begun = calls.read_text()
    assert begun.startswith("vvt")
    assert train_here(run_dir, resume=True) == 0
    assert calls.read_text()[len(begun)] == "t"
