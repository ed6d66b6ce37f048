"""What hooks change in the network after the optimizers were built is trained, or reported by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.conftest import NewRun, Trained, messages, reason, records
from tests.runner.same import final_state

HEAD = "head.weight, head.bias"


def surgeon(**args: Any) -> str:
    table = ", ".join(
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in args.items()
    )
    return f'hooks.surgeon={{use="./surgeons.py:Surgeon", args={{{table}}}}}'


@pytest.mark.parametrize(
    "hook", [surgeon(adds=False), 'hooks.thaws={use="./surgeons.py:Thaws"}'], ids=["replaced", "thawed"]
)
def test_parameters_without_an_optimizer_end_the_run_before_the_first_iteration(trained: Trained, hook: str) -> None:
    (end,) = records(trained(hook, 'model.use="./surgeons.py:HalfFrozen"', code=2), "end")
    named = HEAD if "Surgeon" in hook else "body.0.weight"
    assert f"no optimizer trains {named}: " in str(end["reason"])
    assert "run.add_param_group(module.parameters())" in str(end["reason"])
    assert end["it"] == 0


def test_one_call_trains_them(trained: Trained) -> None:
    run_dir = trained(surgeon(lr=0.05))
    state: dict[str, Any] = final_state(run_dir)  # type: ignore[assignment]
    first, added = state["optimizer"]["param_groups"]
    assert (first["initial_lr"], added["initial_lr"], added["momentum"]) == (0.1, 0.05, 0.9)
    assert added["lr"] / added["initial_lr"] == first["lr"] / first["initial_lr"], "the schedule sets both"
    assert (len(first["params"]), len(added["params"])) == (4, 2), "the old head has left"
    torch.manual_seed(5)
    assert not torch.equal(state["model"]["head.weight"], torch.nn.Linear(8, 3).weight)
    assert not any("optimizer" in line for line in messages(run_dir, "warn"))


def test_pytorchs_schedulers_see_the_added_group(trained: Trained) -> None:
    chain = 'hooks.decay={use="scheduler", args={chain=[{use="ExponentialLR", args={gamma=0.5}}], per="epoch"}}'
    run_dir = trained(surgeon(lr=0.05), "hooks.schedule.enabled=false", chain)
    state: dict[str, Any] = final_state(run_dir)  # type: ignore[assignment]
    assert [group["lr"] for group in state["optimizer"]["param_groups"]] == [0.025, 0.0125]


def test_killed_and_resumed_it_ends_the_same(resumes_alike: NewRun) -> None:
    resumes_alike(surgeon(lr=0.05), point="after_train_iter", at=12)


def test_what_is_lost_later_is_a_warning_at_the_next_checkpoint(trained: Trained) -> None:
    run_dir = trained(surgeon(point="before_train_iter", at=7, adds=False))
    lost, kept = (line for line in messages(run_dir, "warn") if "optimizer" in line)
    assert lost.startswith(f"no optimizer trains {HEAD}: ")
    assert kept.startswith(f"an optimizer still trains {HEAD}, which the network no longer has; ")


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        (surgeon(point="after_forward"), "run.add_param_group is not allowed at after_forward"),
        (surgeon(rl=0.1), 'SGD has no setting "rl"'),
        (surgeon()[:-1] + ', writes=["model"]}', 'without declaring that it writes "optimizer"'),
    ],
)
def test_where_it_is_refused(trained: Trained, hook: str, expected: str) -> None:
    assert expected in reason(trained(hook, code=2))
