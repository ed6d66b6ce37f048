"""A run without a limit of epochs: what ends it, what it goes on without, and what is refused."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.monitor.progress_bars import make_progress_bars
from hookflow.monitor.summary import read_run_summary
from tests.conftest import NewRun, Train, Trained, ended, hookflow_here, reason, records, strikes
from tests.runner.same import assert_same_end, curve, final_state

ENDLESS = 'run.max_epochs="inf"'
WITHOUT_SCHEDULE = "hooks.schedule.enabled=false"
PARTS = "tests.runner.test_endless"


class StopsAt:
    """Ends the run after so many iterations."""

    def __init__(self, at: int) -> None:
        self.at = at

    def after_train_iter(self, run: Any) -> None:
        if run.iter == self.at:
            run.stop("enough")


def stops(at: int) -> str:
    return f'hooks.stops={{use="{PARTS}:StopsAt", args={{at={at}}}}}'


def test_a_hook_ends_it_and_all_before_is_as_with_a_limit(trained: Trained) -> None:
    """The run with a limit has three epochs of five iterations, and the same hook."""
    endless = trained(ENDLESS, WITHOUT_SCHEDULE, stops(15))
    limited = trained(WITHOUT_SCHEDULE, stops(15))
    assert ended(endless) == ("finished", 0)
    assert reason(endless).startswith("enough")
    assert curve(endless) == curve(limited)
    one: Any = final_state(endless)["model"]
    other: Any = final_state(limited)["model"]
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name])
    (began,) = records(endless, "run")
    assert (began["max_iters"], began["max_epochs"]) == (0, 0)


@pytest.mark.parametrize("written", ["inf", '"inf"'])
def test_no_limit_is_written_as_a_number_or_as_a_text(trained: Trained, written: str) -> None:
    run_dir = trained(f"run.max_epochs={written}", WITHOUT_SCHEDULE, stops(6))
    assert final_state(run_dir)["position"]["iter"] == 6  # type: ignore[index]


def test_a_limit_of_iterations_may_stand_beside_it(trained: Trained) -> None:
    """Then the run has a length, so that a schedule may go by it."""
    run_dir = trained(
        ENDLESS, "run.max_iters=12", swap=("max_epochs = 3", "max_epochs = 3\nmax_iters = 9")
    )
    assert records(run_dir, "run")[0]["max_iters"] == 12
    assert [record["ep"] for record in records(run_dir, "epoch")] == [1, 2]


def test_a_person_ends_it_and_it_is_resumed_with_the_same_bits(
    trained: Trained, new_run: NewRun, train_here: Train, tmp_path: Path
) -> None:
    whole = trained(ENDLESS, WITHOUT_SCHEDULE, stops(17))
    cut = new_run(
        ENDLESS,
        WITHOUT_SCHEDULE,
        stops(17),
        *strikes(tmp_path, signal.SIGTERM, ("after_train_iter", 8), times=2),
    )
    assert train_here(cut) == 143
    assert train_here(cut, resume=True) == 0
    assert_same_end(whole, cut)


def test_no_time_left_is_shown(trained: Trained) -> None:
    run_dir = trained(ENDLESS, WITHOUT_SCHEDULE, stops(8))
    state = read_run_summary(run_dir, 0.0).state
    assert state.total_iters == 0
    assert not any("ETA" in fact for bar in make_progress_bars(state) for fact in bar.facts)


PLATEAU = (
    'hooks.rates={use="scheduler", args={chain=[{use="LinearLR", length="1ep"},'
    ' {use="ReduceLROnPlateau"}], metric="loss"}}'
)


@pytest.mark.parametrize(
    "hook",
    [
        PLATEAU,
        (
            'hooks.rates={use="scheduler", args={chain=[{use="StepLR", args={step_size=4,'
            " gamma=0.5}}]}}"
        ),
        'hooks.rates={use="param_schedule", args={momentum=[[0, 0.9], ["2ep", 0.5]]}}',
        'hooks.rates={use="accumulation_schedule", args={batches=[["1ep", 2]]}}',
        'hooks.rates={use="freeze", args={params=["head.*"], begin=3}}',
    ],
)
def test_hooks_that_need_no_length_train(trained: Trained, hook: str) -> None:
    run_dir = trained(ENDLESS, WITHOUT_SCHEDULE, stops(12), hook)
    assert ended(run_dir) == ("finished", 0)


def test_a_scheduler_has_the_rates_of_pytorch(trained: Trained) -> None:
    hooks = (
        (
            'hooks.rates={use="scheduler", args={chain=[{use="StepLR", args={step_size=4,'
            " gamma=0.5}}]}}"
        ),
        'hooks.monitor={use="lr_monitor"}',
    )
    run_dir = trained(ENDLESS, WITHOUT_SCHEDULE, stops(12), *hooks)
    rates = [
        value
        for (it, _, name), value in sorted(curve(run_dir).items(), key=str)
        if name.startswith("lr")
    ]
    assert set(rates) == {0.1, 0.05, 0.025}


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ((), 'hook "schedule"'),
        (
            (WITHOUT_SCHEDULE, 'hooks.log.points=[{at="after_train_iter", every="10%"}]'),
            'hook "log"',
        ),
        ((WITHOUT_SCHEDULE, 'hooks.log.when="iter > 0.5 * max_iters"'), 'hook "log"'),
        (
            (
                WITHOUT_SCHEDULE,
                'hooks.rates={use="scheduler", args={chain=[{use="CosineAnnealingLR"}]}}',
            ),
            "T_max",
        ),
        (
            (WITHOUT_SCHEDULE, 'hooks.rates={use="freeze", args={params=["head.*"], begin="10%"}}'),
            '"10%"',
        ),
        (
            (WITHOUT_SCHEDULE, 'hooks.rates={use="param_schedule", args={momentum=[["5%", 0.9]]}}'),
            '"5%"',
        ),
    ],
)
def test_what_needs_a_length_is_refused_by_name(
    new_run: NewRun, tmp_path: Path, overrides: Any, says: str
) -> None:
    from tests.conftest import TOY

    sets = [argument for each in (ENDLESS, *overrides) for argument in ("--set", each)]
    done = hookflow_here(
        "run", str(TOY), "--in-process", "--ui", "plain", *sets, cwd=tmp_path, code=2
    )
    assert says in done.stderr
    assert "inf" in done.stderr
    assert "Traceback" not in done.stderr


def test_check_and_the_dry_run_know_no_length(tmp_path: Path) -> None:
    from tests.conftest import TOY

    sets = ["--set", ENDLESS, "--set", WITHOUT_SCHEDULE]
    assert (
        "no limit of epochs" in hookflow_here("check", str(TOY), *sets, cwd=tmp_path, code=0).stdout
    )
    dry = hookflow_here("run", str(TOY), "--dry-run", *sets, cwd=tmp_path, code=0)
    assert "no limit of epochs" in dry.stdout
