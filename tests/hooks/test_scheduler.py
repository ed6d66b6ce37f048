"""The rates of an iteration are those of the usual loop around PyTorch's schedulers, to the bit."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.optim import SGD, AdamW, Optimizer, lr_scheduler
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.optim.swa_utils import SWALR

from hookflow.errors import UserError, Where
from hookflow.hooks.arguments import find_argument_problems
from hookflow.hooks.builtin.scheduler import Scheduler
from hookflow.pipeline.by_epoch import EpochLengths
from tests.conftest import Trained, records
from tests.support import schedulers
from tests.support.schedulers import EACH, ITERS, PER_EPOCH, Decay

DECAY = f"{schedulers.__file__}:decay"

if TYPE_CHECKING:
    from decimal import Decimal

Rates = list[list[float]]


def sgd() -> Optimizer:
    one, two = (torch.nn.Parameter(torch.ones(2)) for _ in "ab")
    return SGD([{"params": [one], "lr": 0.5}, {"params": [two]}], lr=0.1, momentum=0.9)


def adamw() -> Optimizer:
    return AdamW([torch.nn.Parameter(torch.ones(2))], lr=3e-3)


def by_hand(
    optimizer: Optimizer,
    made: Callable[[Optimizer], LRScheduler],
    per: str = "iter",
    until: int = ITERS,
) -> Rates:
    """Return the rates of each iteration in the loop of PyTorch's documentation;
    after `until` steps they stay.
    """
    scheduler = made(optimizer)
    rates, steps = [], 0
    for k in range(ITERS):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        if (per == "iter" or (k + 1) % PER_EPOCH == 0) and steps < until:
            scheduler.step()
            steps += 1
    return rates


def run_of(optimizer: Optimizer) -> Any:
    metrics: dict[str, float] = {}
    return SimpleNamespace(
        iter=0,
        epoch=0,
        max_iters=ITERS,
        iters_per_epoch=PER_EPOCH,
        epoch_lengths=EpochLengths.constant(PER_EPOCH),
        optimizer=optimizer,
        data={},
        metric=metrics.__getitem__,
    )


def by_hook(optimizer: Optimizer, cut: int | None = None, **args: Any) -> Rates:
    """Return the rates that the hook gives; at `cut`,
    all goes on from what a checkpoint would hold.
    """
    hook, run, rates = Scheduler(**args), run_of(optimizer), []
    hook.before_run(run)
    for k in range(ITERS):
        if k == cut:
            file = io.BytesIO()
            torch.save([optimizer.state_dict(), hook.state_dict()], file)
            saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
            optimizer, hook = sgd() if isinstance(optimizer, SGD) else adamw(), Scheduler(**args)
            run.optimizer = optimizer
            hook.before_run(run)
            optimizer.load_state_dict(saved[0])
            hook.load_state_dict(saved[1])
        run.iter, run.epoch = k, k // PER_EPOCH
        if "before_train_iter" in hook.points_for(args):
            hook.before_train_iter(run)
        elif k % PER_EPOCH == 0:
            hook.before_train_epoch(run)
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
    return rates


def warm_up_then_cosine(steps: int, then: int) -> Callable[[Optimizer], LRScheduler]:
    def made(optimizer: Optimizer) -> LRScheduler:
        warm_up = LinearLR(optimizer, start_factor=0.1, total_iters=steps)
        return SequentialLR(optimizer, [warm_up, CosineAnnealingLR(optimizer, T_max=then)], [steps])

    return made


def three(optimizer: Optimizer) -> LRScheduler:
    parts = [
        LinearLR(optimizer, total_iters=8),
        MultiStepLR(optimizer, milestones=[3, 9]),
        CosineAnnealingLR(optimizer, T_max=16, eta_min=1e-4),
    ]
    return SequentialLR(optimizer, parts, [8, 24])


def get_scheduler(
    name: str, optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int
) -> LRScheduler:
    """A function with the arguments of transformers' own."""
    assert name == "linear"

    def share(step: int) -> float:
        if step < num_warmup_steps:
            return step / num_warmup_steps
        return (num_training_steps - step) / (num_training_steps - num_warmup_steps)

    return LambdaLR(optimizer, share)


def no_scheduler(optimizer: Optimizer) -> float:
    return optimizer.param_groups[0]["lr"]  # type: ignore[no-any-return]


def cosine_then_swa(optimizer: Optimizer) -> LRScheduler:
    return SequentialLR(
        optimizer, [CosineAnnealingLR(optimizer, 24, 1e-3), SWALR(optimizer, 0.05, 4)], [24]
    )


CHAIN = [
    {"use": "LinearLR", "args": {"start_factor": 0.1}, "length": "10%"},
    {"use": "CosineAnnealingLR"},
]
THREE = [
    {"use": "torch.optim.lr_scheduler:LinearLR", "length": "1ep"},
    {"use": "MultiStepLR", "args": {"milestones": [3, 9]}, "length": 16},
    {"use": "CosineAnnealingLR", "args": {"eta_min": 1e-4}},
]
SWA = {"use": "torch.optim.swa_utils:SWALR", "args": {"swa_lr": 0.05, "anneal_epochs": 4}}
ONE = [{"use": "OneCycleLR", "args": {"max_lr": 0.3}}]
CASES: dict[str, tuple[dict[str, Any], Callable[[Optimizer], LRScheduler], int]] = {
    "warm-up then cosine": ({"chain": CHAIN}, warm_up_then_cosine(4, 36), ITERS),
    "three in a row": ({"chain": THREE}, three, ITERS),
    "one cycle": (
        {"chain": ONE},
        lambda optimizer: OneCycleLR(optimizer, 0.3, total_steps=ITERS),
        ITERS,
    ),
    "shorter than the run": (
        {"chain": [{"use": "CosineAnnealingLR", "length": "25it"}]},
        lambda optimizer: CosineAnnealingLR(optimizer, T_max=25),
        25,
    ),
    "one cycle, shorter than the run": (
        {"chain": [{**ONE[0], "length": "50%"}]},
        lambda optimizer: OneCycleLR(optimizer, 0.3, total_steps=20),
        19,
    ),
    "cosine, then the rate of weights that are averaged": (
        {"chain": [{"use": "CosineAnnealingLR", "length": 24, "args": {"eta_min": 1e-3}}, SWA]},
        cosine_then_swa,
        ITERS,
    ),
    "a function of the step": (
        {
            "chain": [
                {"use": "LambdaLR", "args": {"lr_lambda": {"use": DECAY, "args": {"rate": 0.8}}}}
            ]
        },
        lambda optimizer: LambdaLR(optimizer, lambda step: 0.8**step),
        ITERS,
    ),
    "an object with a state": (
        {
            "chain": [
                {
                    "use": "LambdaLR",
                    "args": {"lr_lambda": {"use": f"{__file__}:Decay", "args": {"rate": 0.9}}},
                }
            ]
        },
        lambda optimizer: LambdaLR(optimizer, Decay(0.9)),
        ITERS,
    ),
    "a function that makes the scheduler": (
        {
            "chain": [
                {
                    "use": f"{__file__}:get_scheduler",
                    "args": {"name": "linear", "num_warmup_steps": 5},
                }
            ]
        },
        lambda optimizer: get_scheduler("linear", optimizer, 5, ITERS),
        ITERS,
    ),
    "chained by epochs": (
        {"chain": [{**CHAIN[0], "length": "2ep"}, CHAIN[1]], "per": "epoch"},
        warm_up_then_cosine(2, 3),
        ITERS,
    ),
}


@pytest.mark.parametrize("make", [sgd, adamw])
@pytest.mark.parametrize("name", CASES)
def test_the_rates_are_those_by_hand_also_from_a_checkpoint_on(
    make: Callable[[], Optimizer], name: str
) -> None:
    args, made, until = CASES[name]
    expected = by_hand(make(), made, args.get("per", "iter"), until)
    assert len({rate for (rate, *_) in expected}) > 2
    assert all(by_hook(make(), cut=cut, **args) == expected for cut in (None, 1, 4, 17, 30))


def test_a_hook_that_the_checkpoint_does_not_know_catches_up() -> None:
    optimizer, expected = sgd(), by_hook(sgd(), chain=CHAIN)
    hook, run = Scheduler(CHAIN), run_of(optimizer)  # type: ignore[arg-type]
    hook.before_run(run)
    run.iter = 20
    hook.before_train_iter(run)
    assert [group["lr"] for group in optimizer.param_groups] == expected[20]


def test_a_plateau_looks_at_its_metric_after_each_validation_once_the_warm_up_is_through() -> None:
    losses = [5.0, 4.0, 4.0, 4.0, 4.0, 4.0, 3.0, 3.0, 3.0]
    chain = [
        {"use": "LinearLR", "length": "2ep"},
        {"use": "ReduceLROnPlateau", "args": {"patience": 1}},
    ]
    args = {"per": "epoch", "metric": "loss"}
    assert Scheduler.points_for(args) == ("before_run", "before_train_epoch", "after_val")
    expected, seen = sgd(), sgd()
    warm_up, plateau = LinearLR(expected, total_iters=2), ReduceLROnPlateau(expected, patience=1)
    hook, run = Scheduler(chain, per="epoch", metric="loss"), run_of(seen)  # type: ignore[arg-type]
    hook.before_run(run)
    for k, loss in enumerate(losses):
        run.epoch = k
        hook.before_train_epoch(run)
        assert [group["lr"] for group in seen.param_groups] == [
            group["lr"] for group in expected.param_groups
        ]
        for optimizer in (seen, expected):
            optimizer.step()
        if k < 2:
            warm_up.step()
        if k + 1 >= 2:
            plateau.step(loss)
        run.epoch, run.metric = k + 1, {"loss": loss}.__getitem__
        hook.after_val(run)
        if k == 4:
            state, optimizer_state = json.loads(json.dumps(hook.state_dict())), seen.state_dict()
            hook, run.optimizer = Scheduler(chain, per="epoch", metric="loss"), seen  # type: ignore[arg-type]
            hook.before_run(run)
            seen.load_state_dict(optimizer_state)
            hook.load_state_dict(state)
    assert (
        seen.param_groups[0]["lr"] == expected.param_groups[0]["lr"] == pytest.approx(0.5 * 0.1**3)
    )


def test_a_plateau_of_an_accuracy_waits_for_more() -> None:
    chain = [{"use": "ReduceLROnPlateau", "args": {"patience": 0}}]
    optimizer = sgd()
    hook, run = Scheduler(chain, metric="val/acc"), run_of(optimizer)  # type: ignore[arg-type]
    hook.before_run(run)
    for accuracy in (0.1, 0.2, 0.3, 0.2):
        assert optimizer.param_groups[0]["lr"] == 0.5, "it was improving"
        run.metric = {"val/acc": accuracy}.__getitem__
        hook.after_val(run)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_no_scheduler_of_pytorch_is_forgotten() -> None:
    public = {kind for name, kind in vars(lr_scheduler).items() if not name.startswith("_")}
    kinds = {kind for kind in public if isinstance(kind, type) and issubclass(kind, LRScheduler)}
    of_functions = {LambdaLR, MultiplicativeLR}
    assert kinds | {SWALR} == {*EACH, *of_functions, ReduceLROnPlateau}


@pytest.mark.parametrize("per", ["iter", "epoch"])
@pytest.mark.parametrize("base", EACH)
def test_every_scheduler_of_pytorch_gives_the_rates_of_a_plain_loop(base: type, per: str) -> None:
    kind, args = EACH[base]
    expected = by_hand(sgd(), lambda optimizer: kind(optimizer, **args), per)
    assert len({rate for (rate, *_) in expected}) > 1
    link = {"use": f"{kind.__module__}:{kind.__name__}", "args": args}
    assert all(by_hook(sgd(), cut=cut, chain=[link], per=per) == expected for cut in (None, 4, 17))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"chain": ["LinearLR"]}, 'must be a table, not the string "LinearLR"'),
        ({"chain": []}, '"chain" must not be empty'),
        (
            {"chain": [{"use": "LinearLR", "lenght": 3}]},
            'the unknown key "lenght"\n    did you mean "length"?',
        ),
        (
            {"chain": [{"use": "LinearLR", "gamma": 3}]},
            "an argument belongs in args: { gamma = … }",
        ),
        ({"chain": [{}]}, 'without the key "use"'),
        ({"chain": [{"use": "LinearLR", "args": 3}]}, "must be a table, not 3"),
        ({"chain": [{"use": "LinearLR"}, {"use": "StepLR"}]}, "1 of 2 needs a length"),
        (
            {"chain": [{"use": "LinearLR", "length": "9s"}]},
            "epochs or a percentage, not seconds; write 100",
        ),
        ({"chain": "LinearLR"}, "must be a list"),
        (
            {"chain": [{"use": "SequentialLR"}]},
            "SequentialLR takes schedulers: list them in the chain",
        ),
        (
            {"chain": [{"use": "ChainedScheduler"}]},
            "name a function that returns it, as ./file.py:name",
        ),
        ({"chain": CHAIN, "per": "batch"}, '"per" must be one of "iter", "epoch"'),
    ],
)
def test_what_is_wrong_with_a_chain_is_told_without_torch(args: dict[str, Any], said: str) -> None:
    (problem,) = find_argument_problems(Scheduler, args, "schedule", lambda key: Where("test"))
    assert said in str(problem)


@pytest.mark.parametrize(
    ("args", "said", "hint"),
    [
        (
            {"chain": [{"use": "LinerLR"}]},
            'there is nothing called "LinerLR"',
            'did you mean "LinearLR"?',
        ),
        (
            {"chain": [{"use": "torch.optim.lr_scheduler:StpLR"}]},
            'there is no "StpLR"',
            'did you mean "StepLR"?',
        ),
        ({"chain": [{"use": "torch.nn:Linear"}]}, "must be a subclass of LRScheduler", ""),
        ({"chain": [{"use": "./a.py:B"}]}, 'there is no file "./a.py"', ""),
        (
            {"chain": [{"use": "LambdaLR", "args": {"lr_lambda": {"use": f"{__file__}:CHAIN"}}}]},
            "a function or a",
            "",
        ),
        (
            {
                "chain": [
                    {"use": "LambdaLR", "args": {"lr_lambda": {"use": DECAY, "args": {"rat": 1}}}}
                ]
            },
            'takes no argument "rat"',
            'did you mean "rate"?',
        ),
        (
            {"chain": [{"use": "StepLR", "args": {"stepsize": 3, "step_size": 3}}]},
            'argument "stepsize"',
            "step_size",
        ),
        ({"chain": [{"use": "StepLR"}]}, 'StepLR needs the argument "step_size"', ""),
        (
            {"chain": [{"use": "LinearLR", "args": {"start_factor": "x"}}]},
            '"start_factor" must be a number',
            "",
        ),
        (
            {"chain": [{"use": "ReduceLROnPlateau"}]},
            "ReduceLROnPlateau needs a metric",
            'metric = "loss"',
        ),
        ({"chain": CHAIN, "metric": "loss"}, "no ReduceLROnPlateau that looks at it", ""),
        (
            {"chain": [{"use": "LinearLR", "length": "3it"}], "per": "epoch"},
            "goes by epochs",
            'per = "iter"',
        ),
        (
            {"chain": [{"use": "ReduceLROnPlateau", "length": 3}, *CHAIN], "metric": "loss"},
            "must be the last",
            "",
        ),
    ],
)
def test_what_only_torch_knows_is_told_when_the_hook_is_made(
    args: dict[str, Any], said: str, hint: str
) -> None:
    with pytest.raises(UserError) as raised:
        Scheduler(**args)
    (problem,) = raised.value.problems
    assert said in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (
            [{**CHAIN[0], "length": ITERS}, CHAIN[1]],
            "nothing is left of the run for CosineAnnealingLR: those before",
        ),
        (
            [{"use": "LinearLR", "args": {"start_factor": -1.0}}],
            "LinearLR: Starting multiplicative factor",
        ),
        (
            [{"use": f"{__file__}:no_scheduler"}],
            "makes a float, and not a torch.optim.lr_scheduler.LRScheduler",
        ),
    ],
)
def test_what_only_the_run_knows_is_told_before_it_begins(chain: list[Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Scheduler(chain).before_run(run_of(sgd()))


def test_where_there_are_several_optimizers_one_is_named() -> None:
    run, other = run_of(sgd()), adamw()
    run.optimizers = {"one": run.optimizer, "other": other}
    hook = Scheduler(CHAIN, optimizer="other")  # type: ignore[arg-type]
    hook.before_run(run)
    assert other.param_groups[0]["lr"] == pytest.approx(3e-4)
    assert run.optimizer.param_groups[0]["lr"] == 0.5


class Typed:
    def __init__(self, exact: Decimal, plain: int) -> None: ...


def test_a_type_that_is_imported_for_type_checkers_alone_is_no_obstacle() -> None:
    assert not list(
        find_argument_problems(Typed, {"exact": 1, "plain": 2}, "it", lambda key: Where("test"))
    )
    (problem,) = find_argument_problems(
        Typed, {"exact": 1, "plain": "x"}, "it", lambda key: Where("test")
    )
    assert '"plain" must be an integer' in problem.message


def test_a_file_is_relative_to_the_folder_of_the_pipeline(trained: Trained) -> None:
    use = (
        "{use='../hooks/test_scheduler.py:get_scheduler', args={name='linear', num_warmup_steps=5}}"
    )
    run_dir = trained(f"hooks.schedule={{use='scheduler', args={{chain=[{use}]}}}}")
    logged = [row["v"]["lr"] for row in records(run_dir, "scalars") if "lr" in row["v"]]  # type: ignore[index,operator]
    assert logged[:3] == [pytest.approx(0.1 * done / 5) for done in (1, 3, 5)]


@pytest.mark.parametrize("cut", [None, 20])
@pytest.mark.parametrize("at", [0, 9])
@pytest.mark.parametrize("base", EACH)
def test_a_group_that_a_hook_adds_follows_the_curve_from_its_first_step_on(
    base: type, at: int, cut: int | None
) -> None:
    """Also in a resume, where the group is added before the hook is given its state."""
    kind, args = EACH[base]
    one, two = (torch.nn.Parameter(torch.ones(2)) for _ in "ab")
    whole = SGD([{"params": [one], "lr": 0.5}, {"params": [two]}], lr=0.1, momentum=0.9)
    expected = by_hand(whole, lambda optimizer: kind(optimizer, **args))
    link = {"use": f"{kind.__module__}:{kind.__name__}", "args": args}

    def begun() -> tuple[Scheduler, Any]:
        first = SGD([torch.nn.Parameter(torch.ones(2))], lr=0.5, momentum=0.9)
        run = run_of(first)
        hook = Scheduler([link])  # type: ignore[list-item]
        hook.before_run(run)
        return hook, run

    def add(optimizer: Optimizer) -> None:
        optimizer.add_param_group(
            {"params": [torch.nn.Parameter(torch.ones(2))], "lr": 0.1, "initial_lr": 0.1}
        )

    hook, run = begun()
    for k in range(ITERS):
        if k == at:
            add(run.optimizer)
        if k == cut:
            state, settings = hook.state_dict(), run.optimizer.state_dict()
            hook, run = begun()
            add(run.optimizer)
            run.optimizer.load_state_dict(settings)
            hook.load_state_dict(state)
        run.iter = k
        hook.before_train_iter(run)
        rates = [group["lr"] for group in run.optimizer.param_groups]
        assert rates == pytest.approx(expected[k][: len(rates)], rel=1e-9), k
        run.optimizer.step()


@pytest.mark.parametrize(
    "chain",
    [CHAIN, [{"use": "CosineAnnealingWarmRestarts", "args": {"T_0": 5}}], ONE],
    ids=["chain", "restarts", "cycle"],
)
def test_a_rate_that_is_a_tensor_stays_that_tensor_and_has_the_same_values(
    chain: list[Any],
) -> None:
    """PyTorch's chain of schedulers changes the rate that it begins with,
    where that is a tensor.
    """
    rate = torch.tensor(0.1, dtype=torch.float64)
    optimizer, plain = (SGD([torch.nn.Parameter(torch.ones(2))], lr=lr) for lr in (rate, 0.1))
    if chain is ONE:
        chain = [{**ONE[0], "args": {"max_lr": 0.3, "cycle_momentum": False}}]
    held = optimizer.param_groups[0]["lr"]
    hook, other, runs = Scheduler(chain), Scheduler(chain), (run_of(optimizer), run_of(plain))
    for made, run in zip((hook, other), runs, strict=True):
        made.before_run(run)
    for k in range(ITERS):
        for made, run in zip((hook, other), runs, strict=True):
            run.iter = k
            made.before_train_iter(run)
        assert optimizer.param_groups[0]["lr"] is held
        assert float(held) == pytest.approx(plain.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
