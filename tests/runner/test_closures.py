"""Optimizers that compute the loss in a closure,
compared to the bit with loops of plain PyTorch.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from hookflow import Hook
from hookflow.events.rundir import RunDir
from tests.conftest import Train, Trained, messages, reason
from tests.runner.same import assert_same_end, logged, rest_of
from tests.support.own_tasks import Plain

LBFGS = (
    'optimizer={use="torch.optim:LBFGS", args={lr=0.5, max_iter=4, line_search_fn="strong_wolfe"}}'
)
RATES = 'hooks.schedule={use="scheduler", args={chain=[{use="ExponentialLR", args={gamma=0.9}}]}}'
HOOKS = (
    "run.device='cpu'",
    "run.precision='fp32'",
    "run.max_epochs=2",
    'model={use="tests.runner.test_closures:Net"}',
    RATES,
    "hooks.clip.args.max_norm=0.05",
    'hooks.counts={use="tests.runner.test_closures:Counts"}',
    'hooks.scales={use="tests.runner.test_closures:Scales", before=["clip"]}',
)


BATCHES: list[Any] = []
"""The batches of the training, in order."""


class Net(Plain):
    """A network of the same weights in each process."""

    def __init__(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            super().__init__()


class SAM(torch.optim.SGD):
    """Steps by the gradients at the worst weights nearby; it begins with gradients,
    or calls the closure for them.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, rho: float = 0.05, calls_first: bool = False
    ) -> None:
        super().__init__(params, lr=lr, momentum=0.9)
        self.rho, self.calls_first = rho, calls_first

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        if self.calls_first:
            closure()
        weights = [p for group in self.param_groups for p in group["params"]]
        moves = [self.rho * p.grad / (p.grad.norm() + 1e-12) for p in weights]
        for weight, move in zip(weights, moves, strict=True):
            weight.add_(move)
        self.zero_grad()
        loss = closure()
        for weight, move in zip(weights, moves, strict=True):
            weight.sub_(move)
        super().step()
        return loss


class Fitted:
    """Gives the optimizer a closure."""

    steps_itself = True

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        BATCHES.append(batch)

        def closure() -> Tensor:
            loss = self.loss(run, batch)
            run.backward(loss)
            return loss

        return {"loss": self.take_step(run, closure)}

    def take_step(self, run: Any, closure: Callable[[], Tensor]) -> Tensor:
        loss: Tensor = run.step(closure)
        return loss

    def loss(self, run: Any, batch: Any) -> Tensor:
        return cross_entropy(run.model(batch[0]), batch[1])

    def evaluate(self, run: Any, batch: Any) -> dict[str, Any]:
        logits = run.model(batch[0])
        return {"loss": cross_entropy(logits, batch[1]), "logits": logits, "target": batch[1]}


class FirstGradients(Fitted):
    """Computes the first gradients before the step, as most implementations of SAM want it."""

    def take_step(self, run: Any, closure: Callable[[], Tensor]) -> Tensor:
        loss = closure()
        run.step(closure)
        return loss


class Nested(Fitted):
    def take_step(self, run: Any, closure: Callable[[], Tensor]) -> Tensor:
        loss: Tensor = run.step(lambda: run.step(closure))
        return loss


class WithoutCall(torch.optim.SGD):
    """Steps with the gradients that are there."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()


class Counts(Hook):
    """Logs after each iteration how often the points of its step have fired;
    only the first writes no gradients.
    """

    reads = ("grads",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def after_forward(self) -> None:
        self._count("after_forward")

    def after_backward(self) -> None:
        self._count("after_backward")

    def before_optimizer_step(self) -> None:
        self._count("before_optimizer_step")

    def around_optimizer_step(self) -> Any:
        self._count("entered")
        yield
        self._count("left")

    def after_optimizer_step(self) -> None:
        self._count("after_optimizer_step")

    def after_train_iter(self, run: Any) -> None:
        for name, count in self.counts.items():
            run.log(f"counts/{name}", count)
        self.counts.clear()


class Scales(Hook):
    """Halves gradients before each step, and logs how often in an iteration."""

    writes = {"before_optimizer_step": ("grads",)}  # noqa: RUF012

    def __init__(self) -> None:
        self.calls = 0

    def before_optimizer_step(self, run: Any) -> None:
        self.calls += 1
        for parameter in run.model.parameters():
            parameter.grad.mul_(0.5)

    def after_train_iter(self, run: Any) -> None:
        run.log("scales", self.calls)
        self.calls = 0


class SkipsThird(Hook):
    """Asks to skip the step of the third iteration: at the first call of the closure,
    or at a later one.
    """

    writes = {"after_backward": ("control",), "before_optimizer_step": ("control",)}  # noqa: RUF012

    def __init__(self, call: int = 1, at_step: bool = False) -> None:
        self.call, self.at_step, self.calls = call, at_step, 0

    def before_train_iter(self) -> None:
        self.calls = 0

    def after_backward(self, run: Any) -> None:
        self.calls += 1
        if run.iter == 2 and self.calls == self.call and not self.at_step:
            run.skip_step()

    def before_optimizer_step(self, run: Any) -> None:
        if run.iter == 2 and self.at_step:
            run.skip_step()

    def after_train_iter(self, run: Any) -> None:
        run.log("skipped", float(run.step_skipped))


class Weighs(Fitted):
    """The third batch of the training counts nothing, and its loss is NaN."""

    def __init__(self) -> None:
        self.weight = 1.0

    def loss(self, run: Any, batch: Any) -> Tensor:
        loss = super().loss(run, batch)
        return loss if self.weight else loss * torch.nan

    def batch_weight(self, batch: Any) -> float:
        self.weight = 0.0 if len(BATCHES) == 2 else 1.0
        return self.weight


def with_task(task: str, optimizer: str = LBFGS) -> tuple[str, ...]:
    return (f'task={{use="tests.runner.test_closures:{task}"}}', optimizer, *HOOKS)


@pytest.fixture(autouse=True)
def _forget_batches() -> Iterator[None]:
    yield
    BATCHES.clear()


class PlainLoop:
    """A loop by hand: the gradients are halved and clipped in each call of the closure."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        self.model = Net()
        self.average = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.optimizer = make(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.9)
        self.calls: list[int] = []
        self.precision: torch.dtype | None = None

    def train(self, batches: list[Any], *, gradients_first: bool = False) -> None:
        for step, (inputs, target) in enumerate(batches):
            self.calls.append(0)

            @torch.enable_grad()
            def closure(inputs: Any = inputs, target: Any = target) -> torch.Tensor:
                self.calls[-1] += 1
                self.optimizer.zero_grad()
                with torch.autocast(
                    "cpu", self.precision, enabled=self.precision is not None, cache_enabled=False
                ):
                    loss = cross_entropy(self.model(inputs), target)
                loss.backward()
                for parameter in self.model.parameters():
                    assert parameter.grad is not None
                    parameter.grad.mul_(0.5)
                clip_grad_norm_(self.model.parameters(), 0.05)
                return loss

            if gradients_first:
                closure()
            self.optimizer.step(closure)  # type: ignore[arg-type]
            momentum = max(0.1, 1 / (step + 2))
            for name, value in self.model.state_dict().items():
                self.average[name].lerp_(value, momentum)
            self.scheduler.step()


def assert_same_weights(run_dir: RunDir, loop: PlainLoop) -> None:
    saved = torch.load(run_dir.checkpoints / "last" / "model.pt", weights_only=True)
    average = torch.load(run_dir.checkpoints / "last" / "model_ema.pt", weights_only=True)
    for name, value in loop.model.state_dict().items():
        assert torch.equal(saved[name], value), name
        assert torch.equal(average[name], loop.average[name]), name
    start = Net().state_dict()
    assert all(not torch.equal(saved[name], start[name]) for name in start)


def assert_counts(run_dir: RunDir, calls: list[int]) -> None:
    """Look whether the points have fired as often as the reference says."""
    iterations = range(1, len(calls) + 1)
    for name in ("before_optimizer_step", "after_optimizer_step", "entered", "left"):
        assert logged(run_dir, f"counts/{name}") == dict.fromkeys(iterations, 1), name
    for name in ("counts/after_forward", "counts/after_backward", "scales"):
        assert logged(run_dir, name) == dict(zip(iterations, calls, strict=True)), name


def test_lbfgs_with_clipping_is_that_of_a_plain_loop(trained: Trained) -> None:
    run_dir = trained(*with_task("Fitted"))
    loop = PlainLoop(
        lambda params: torch.optim.LBFGS(params, lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    )
    loop.train(BATCHES)
    assert len(loop.calls) == 10 and max(loop.calls) > 2
    assert_same_weights(run_dir, loop)
    assert_counts(run_dir, loop.calls)
    assert not any("run.step" in text for text in messages(run_dir, "warn"))


@pytest.mark.parametrize("task", ["Fitted", "FirstGradients"])
def test_sam_is_that_of_a_plain_loop(trained: Trained, task: str) -> None:
    """Where it calls the closure for its first gradients,
    and where the task has computed them before the step.
    """
    calls_first = task == "Fitted"
    arguments = f"lr=0.5, calls_first={str(calls_first).lower()}"
    run_dir = trained(
        *with_task(
            task, f'optimizer={{use="tests.runner.test_closures:SAM", args={{{arguments}}}}}'
        )
    )
    loop = PlainLoop(lambda params: SAM(params, lr=0.5, calls_first=calls_first))
    loop.train(BATCHES, gradients_first=not calls_first)
    assert set(loop.calls) == {2}
    assert_same_weights(run_dir, loop)
    assert_counts(run_dir, loop.calls)


def test_a_resume_in_the_middle_ends_with_the_same_bits(
    trained: Trained, train_here: Train, tmp_path: Path, written_at_once: None
) -> None:
    saves = (
        'hooks.checkpoint={use="checkpoint", points=[{at="after_train_iter", every=3}],'
        " args={keep=9}}"
    )
    run_dir = trained(*with_task("Fitted"), saves)
    resumed = rest_of(run_dir, 6, tmp_path / "resumed", train_here)
    assert_same_end(run_dir, resumed)


def test_in_bf16_each_call_sees_the_weights_of_its_own(trained: Trained) -> None:
    run_dir = trained(*with_task("Fitted"), "run.precision='bf16'", "run.max_epochs=1")
    loop = PlainLoop(
        lambda params: torch.optim.LBFGS(params, lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    )
    loop.precision = torch.bfloat16
    loop.train(BATCHES)
    assert_same_weights(run_dir, loop)


@pytest.mark.parametrize("arguments", ["", ", args={at_step=true}"])
def test_a_hook_skips_a_step(trained: Trained, arguments: str) -> None:
    """The weights stay where they are, what was entered is left,
    and the other steps are as if it had not been.
    """
    skips = f'hooks.skips={{use="tests.runner.test_closures:SkipsThird"{arguments}}}'
    run_dir = trained(*with_task("Fitted"), skips, "run.max_epochs=1")
    assert logged(run_dir, "skipped") == {1: 0.0, 2: 0.0, 3: 1.0, 4: 0.0, 5: 0.0}
    assert logged(run_dir, "counts/after_backward")[3] == 1
    assert logged(run_dir, "counts/after_optimizer_step").keys() == {1, 2, 4, 5}
    assert logged(run_dir, "counts/entered") == logged(run_dir, "counts/left")


def test_a_request_to_skip_that_comes_too_late_is_a_warning(trained: Trained) -> None:
    skips = 'hooks.skips={use="tests.runner.test_closures:SkipsThird", args={call=2}}'
    run_dir = trained(*with_task("Fitted"), skips, "run.max_epochs=1")
    assert set(logged(run_dir, "skipped").values()) == {0.0}
    assert sum("run.skip_step" in text for text in messages(run_dir, "warn")) == 1


def test_a_hook_with_a_trigger_decides_once_a_step(trained: Trained) -> None:
    every_second = (
        'hooks.scales={use="tests.runner.test_closures:Scales", before=["clip"],'
        ' points=["after_train_iter", '
    )
    every_second += '{at="before_optimizer_step", every=2}]}'
    run_dir = trained(*with_task("Fitted"), every_second, "run.max_epochs=1")
    calls = logged(run_dir, "counts/after_backward")
    assert logged(run_dir, "scales") == {it: calls[it] if it % 2 else 0 for it in calls}


def test_a_batch_that_counts_nothing_takes_no_step(trained: Trained) -> None:
    run_dir = trained(
        *with_task("Weighs"), "run.max_epochs=1", "run.on_nan='ignore'", "run.sanity=false"
    )
    assert logged(run_dir, "counts/after_optimizer_step").keys() == {1, 2, 4, 5}
    saved = torch.load(run_dir.checkpoints / "last" / "model.pt", weights_only=True)
    assert all(value.isfinite().all() for value in saved.values())


SGD = 'optimizer={use="torch.optim:SGD", args={lr=0.1}}'
WITHOUT_CALL = 'optimizer={use="tests.runner.test_closures:WithoutCall", args={lr=0.1}}'
TWO = (
    'optimizer={a={use="torch.optim:SGD", args={lr=0.1}, parameters=["body.*"]},'
    ' b={use="torch.optim:SGD"}}'
)


@pytest.mark.parametrize(
    ("task", "optimizer", "override", "said"),
    [
        (
            "Fitted",
            LBFGS,
            "run.precision='fp16'",
            'run.precision = "fp16" cannot leave out a step with a closure',
        ),
        (
            "Fitted",
            LBFGS,
            "run.on_nan='skip'",
            'run.on_nan = "skip" cannot leave out a step with a closure',
        ),
        (
            "Fitted",
            SGD,
            "run.on_nan='skip'",
            'run.on_nan = "skip" cannot leave out a step with a closure',
        ),
        (
            "Fitted",
            WITHOUT_CALL,
            "run.max_epochs=1",
            "WithoutCall has stepped without a call of the closure",
        ),
        ("Nested", SGD, "run.max_epochs=1", "within the closure of a step"),
        (
            "Fitted",
            TWO,
            RATES.replace("chain", 'optimizer="a", chain'),
            "a closure is for the step of one optimizer",
        ),
    ],
)
def test_mistakes(trained: Trained, task: str, optimizer: str, override: str, said: str) -> None:
    run_dir = trained(*with_task(task, optimizer), override, code=2)
    assert said in reason(run_dir)
