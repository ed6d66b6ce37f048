"""A resume or a fork to another length: schedules follow the curve of the new length;
what is given in steps stays.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, SequentialLR

from hookflow.cli.resume import PipelineChanges
from hookflow.cli.run import make_fork
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.hooks.builtin.scheduler import Scheduler
from hookflow.hooks.builtin.schedules import AccumulationSchedule, at_iterations
from tests.conftest import NewRun, Train, Trained, messages, reason
from tests.hooks.stand_ins import StandIn
from tests.runner.same import logged
from tests.support.schedulers import EACH, Decay, decay

Rates = list[float]
PER_EPOCH = 4


def sgd() -> Optimizer:
    return SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)


def by_hand(made: Callable[[Optimizer], LRScheduler], until: int, per: str) -> Rates:
    optimizer = sgd()
    scheduler = made(optimizer)
    rates = []
    for k in range(until):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        if per == "iter" or (k + 1) % PER_EPOCH == 0:
            scheduler.step()
    return rates


def run_of(optimizer: Optimizer, until: int) -> Any:
    run: Any = StandIn(None, optimizer, max_iters=until, iters_per_epoch=PER_EPOCH)
    run.optimizer = optimizer
    return run


def step(hook: Scheduler, run: Any) -> float:
    run.epoch = run.iter // PER_EPOCH
    if hook.per == "iter" or run.iter % PER_EPOCH == 0:
        hook.before_train_iter(run)
    rate = float(run.optimizer.param_groups[0]["lr"])
    run.optimizer.step()
    run.iter += 1
    return rate


def resumed(args: dict[str, Any], until: int, at: int, then: int) -> tuple[Rates, Any]:
    """Return the rates of a run of length `until` that is resumed at `at` with
    the length `then`, and that run.
    """
    optimizer, hook = sgd(), Scheduler(**args)
    run = run_of(optimizer, until)
    hook.before_run(run)
    rates = [step(hook, run) for _ in range(at)]
    other, again = sgd(), Scheduler(**args)
    run_then = run_of(other, then)
    again.before_run(run_then)
    other.load_state_dict(optimizer.state_dict())
    again.load_state_dict(hook.state_dict())
    run_then.iter = at
    return rates + [step(again, run_then) for _ in range(at, then)], run_then


def chain_of(kind: type, args: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"use": f"{kind.__module__}:{kind.__name__}", "args": args}]


LENGTHS = ("total_iters", "T_max", "total_steps")


@pytest.mark.parametrize("per", ["iter", "epoch"])
@pytest.mark.parametrize(("until", "then"), [(24, 48), (48, 24)], ids=["longer", "shorter"])
@pytest.mark.parametrize("base", EACH)
@pytest.mark.parametrize(
    "given", [False, True], ids=["its length is the run's", "its length is given"]
)
def test_every_scheduler_follows_the_new_length(
    base: type, until: int, then: int, per: str, given: bool
) -> None:
    kind, args = EACH[base]
    own = [name for name in LENGTHS if name in inspect.signature(kind).parameters]
    if not given:
        args = {name: value for name, value in args.items() if name not in LENGTHS}
    if given and base is OneCycleLR:
        args = {**args, "total_steps": 48}  # with fewer it is refused
    steps = then if per == "iter" else then // PER_EPOCH
    filled = {} if given else dict.fromkeys(own, steps)
    expected = by_hand(lambda optimizer: kind(optimizer, **args, **filled), then, per)
    at = 14  # in the middle of an epoch
    rates, run = resumed({"chain": chain_of(kind, args), "per": per}, until, at, then)
    assert rates[at:] == pytest.approx(expected[at:], rel=1e-12)
    assert any("another length" in text for text in run.messages) == bool(filled)


@pytest.mark.parametrize(("until", "then"), [(24, 48), (48, 24)], ids=["longer", "shorter"])
@pytest.mark.parametrize("at", [3, 14, 23])
def test_a_chain_of_shares_follows_the_new_length(until: int, then: int, at: int) -> None:
    chain = [
        {"use": "LinearLR", "length": "25%", "args": {"start_factor": 0.1}},
        {"use": "ExponentialLR", "length": "50%", "args": {"gamma": 0.9}},
        {"use": "CosineAnnealingLR"},
    ]

    def made(optimizer: Optimizer) -> LRScheduler:
        parts = [
            lr_scheduler.LinearLR(optimizer, 0.1, total_iters=then // 4),
            lr_scheduler.ExponentialLR(optimizer, 0.9),
            lr_scheduler.CosineAnnealingLR(optimizer, then // 4),
        ]
        return SequentialLR(optimizer, parts, [then // 4, 3 * then // 4])

    rates, _ = resumed({"chain": chain}, until, at, then)
    assert rates[at:] == pytest.approx(by_hand(made, then, "iter")[at:], rel=1e-12)


@pytest.mark.parametrize("function", [decay, Decay])
@pytest.mark.parametrize("kind", ["LambdaLR", "MultiplicativeLR"])
def test_a_function_of_the_step_stays(kind: str, function: Any) -> None:
    use = {"use": f"{function.__module__}:{function.__name__}", "args": {"rate": 0.9}}
    chain = [{"use": kind, "args": {"lr_lambda": use}}]
    own = (lambda step: 0.9**step) if function is decay else Decay(0.9)
    expected = by_hand(lambda optimizer: getattr(lr_scheduler, kind)(optimizer, own), 48, "iter")
    rates, run = resumed({"chain": chain}, 24, 14, 48)
    assert rates == pytest.approx(expected, rel=1e-12)
    assert not run.messages


def test_a_rate_that_another_hook_has_set_stays_where_the_curve_has_no_length() -> None:
    optimizer, hook = sgd(), Scheduler(chain=[{"use": "ExponentialLR", "args": {"gamma": 0.5}}])  # type: ignore[list-item]
    run = run_of(optimizer, 8)
    hook.before_run(run)
    for _ in range(3):
        step(hook, run)
    optimizer.param_groups[0]["lr"] /= 2
    again, run.max_iters = Scheduler(hook.chain), 16
    state, settings = hook.state_dict(), optimizer.state_dict()
    again.before_run(run)
    optimizer.load_state_dict(settings)
    again.load_state_dict(state)
    assert step(again, run) == pytest.approx(0.1 * 0.5**4)


@pytest.mark.parametrize(("at", "warms_up"), [(4, True), (14, False)])
def test_a_plateau_in_charge_keeps_its_rate(at: int, warms_up: bool) -> None:
    """The warm-up is 6 iterations of 24, and 12 of 48; once it is through,
    it does not begin again.
    """
    args: Any = {
        "chain": [{"use": "LinearLR", "length": "25%"}, {"use": "ReduceLROnPlateau"}],
        "metric": "loss",
    }
    rates, run = resumed(args, 24, at, 48)
    warm = by_hand(lambda optimizer: lr_scheduler.LinearLR(optimizer, total_iters=12), 48, "iter")
    assert rates[at:] == pytest.approx(warm[at:] if warms_up else [0.1] * (48 - at))
    assert bool(run.messages) == warms_up


def test_a_scheduler_that_ends_before_its_turn_does_is_refused() -> None:
    hook = Scheduler(chain=chain_of(OneCycleLR, {"max_lr": 0.3, "total_steps": 40}))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="ends after 40 steps, and is in charge for 48"):
        hook.before_run(run_of(sgd(), 48))


@pytest.mark.parametrize(("then", "groups"), [(10, [2]), (12, [4])], ids=["shorter", "longer"])
def test_a_group_of_batches_ends_with_the_run(then: int, groups: list[int]) -> None:
    """A group of four begins at iteration 8 of 20; a run of ten ends after its second batch."""
    hook, run = (
        AccumulationSchedule(batches=[("40%", 4)]),
        StandIn(max_iters=20, iters_per_epoch=20, batch_idx=0),
    )
    hook.places = at_iterations("batches", hook.batches, run)
    took: list[int] = []
    stepped: list[int] = []

    def accumulate(batches: int, *, step: bool) -> None:
        took.append(batches)
        if step:
            stepped.append(len(took))

    run.accumulate = accumulate
    run.iter = run.batch_idx = 8
    hook.before_backward(run)
    again = AccumulationSchedule(batches=[("40%", 4)])
    again.load_state_dict(hook.state_dict())
    run.max_iters = then
    again.places = at_iterations("batches", again.batches, run)
    for run.iter in range(9, 8 + groups[0]):
        run.batch_idx = run.iter
        again.before_backward(run)
    assert stepped == groups


KEEPS = (
    'hooks.checkpoint.points=[{at="after_train_iter", every=1}]',
    "hooks.checkpoint.args.keep=99",
)
LOGS = ('hooks.lr={use="lr_monitor"}', 'hooks.log.points=["after_train_iter"]')
SCHEDULES = {
    "lr_schedule": 'hooks.schedule={use="lr_schedule", args={warmup="20%"}}',
    "cosine": (
        'hooks.schedule={use="scheduler", args={chain=[{use="LinearLR", length="20%"}, '
        '{use="CosineAnnealingLR"}]}}'
    ),
    "one cycle, by epochs": (
        'hooks.schedule={use="scheduler", args={per="epoch", chain=[{use="OneCycleLR", '
        "args={max_lr=0.3}}]}}"
    ),
    "cosine, by epochs": (
        'hooks.schedule={use="scheduler", args={per="epoch", chain=[{use="CosineAnnealingLR"}]}}'
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize(("until", "then"), [(3, 6), (6, 3)], ids=["longer", "shorter"])
def test_a_run_goes_on_by_the_curve_of_its_new_length(
    new_run: NewRun, trained: Trained, train_here: Train, schedule: str, until: int, then: int
) -> None:
    """At a fork and at a resume, in the middle of an epoch of five iterations."""
    overrides = (
        schedule,
        *LOGS,
        *KEEPS,
        "hooks.ema.enabled=false",
        "hooks.early_stop.enabled=false",
    )
    stops = 'hooks.stops={use="../hooks/test_schedules_of_another_length.py:Stops"}'
    parent = trained(f"run.max_epochs={until}", stops, *overrides)
    always = rates(trained(f"run.max_epochs={then}", *overrides))
    child = make_fork(
        f"{parent.path}:it00000007", None, PipelineChanges((f"run.max_epochs={then}",))
    )
    assert train_here(child) == 0, reason(child)
    other = new_run(f"run.max_epochs={then}", stops, *overrides)
    parent.checkpoints.rename(other.checkpoints)
    assert train_here(other, resume=True) == 0, reason(other)
    for run_dir in (child, other):
        seen = {it: rate for it, rate in rates(run_dir).items() if it > 7}
        assert len(seen) == then * 5 - 7
        assert seen == pytest.approx({it: always[it] for it in seen}, rel=1e-9)
        assert any(
            "has 30 iterations" in text or "has 15 iterations" in text for text in messages(run_dir)
        )


def rates(run_dir: RunDir) -> dict[int, float]:
    return logged(run_dir, "lr")


class Stops:
    """Stops the run after the seventh iteration, once."""

    writes = ("control",)

    def after_train_iter(self, run: Any) -> None:
        if run.iter == 7:
            run.stop("enough")
