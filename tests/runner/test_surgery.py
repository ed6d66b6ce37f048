"""What hooks change in the network after the optimizers were built is trained, or reported by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import NewRun, records
from tests.processes import Training
from tests.runner.same import assert_same_end, final_state
from tests.runner.test_resume import strikes

HEAD = "head.weight, head.bias"


def surgeon(**args: Any) -> str:
    table = ", ".join(
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in args.items()
    )
    return f'hooks.surgeon={{use="./surgeons.py:Surgeon", args={{{table}}}}}'


def warned(run_dir: RunDir) -> list[str]:
    return [str(record["text"]) for record in records(run_dir, "message") if record["level"] == "warn"]


@pytest.mark.parametrize(
    "hook", [surgeon(adds=False), 'hooks.thaws={use="./surgeons.py:Thaws"}'], ids=["replaced", "thawed"]
)
def test_parameters_without_an_optimizer_end_the_run_before_the_first_iteration(
    new_run: NewRun, train_here: Any, hook: str
) -> None:
    run_dir = new_run(hook, 'model.use="./surgeons.py:HalfFrozen"')
    assert train_here(run_dir) == 2
    (end,) = records(run_dir, "end")
    named = HEAD if "Surgeon" in hook else "body.0.weight"
    assert f"no optimizer trains {named}: " in str(end["reason"])
    assert "run.add_param_group(module.parameters())" in str(end["reason"])
    assert end["it"] == 0


def test_one_call_trains_them(new_run: NewRun, train_here: Any) -> None:
    run_dir = new_run(surgeon(lr=0.05))
    assert train_here(run_dir) == 0
    state: dict[str, Any] = final_state(run_dir)  # type: ignore[assignment]
    first, added = state["optimizer"]["param_groups"]
    assert (first["initial_lr"], added["initial_lr"], added["momentum"]) == (0.1, 0.05, 0.9)
    assert added["lr"] / added["initial_lr"] == first["lr"] / first["initial_lr"], "the schedule sets both"
    assert (len(first["params"]), len(added["params"])) == (4, 2), "the old head has left"
    torch.manual_seed(5)
    assert not torch.equal(state["model"]["head.weight"], torch.nn.Linear(8, 3).weight)
    assert not any("optimizer" in line for line in warned(run_dir))


def test_pytorchs_schedulers_see_the_added_group(new_run: NewRun, train_here: Any) -> None:
    chain = 'hooks.decay={use="scheduler", args={chain=[{use="ExponentialLR", args={gamma=0.5}}], per="epoch"}}'
    run_dir = new_run(surgeon(lr=0.05), "hooks.schedule.enabled=false", chain)
    assert train_here(run_dir) == 0
    state: dict[str, Any] = final_state(run_dir)  # type: ignore[assignment]
    assert [group["lr"] for group in state["optimizer"]["param_groups"]] == [0.025, 0.0125]


def test_killed_and_resumed_it_ends_the_same(new_run: NewRun, train_here: Any, tmp_path: Path) -> None:
    alone, killed = (
        new_run(surgeon(lr=0.05)),
        new_run(surgeon(lr=0.05), *strikes(tmp_path, 9, ("after_train_iter", 12))),
    )
    assert train_here(alone) == 0
    assert Training(killed).wait() == -9
    assert CheckpointStore(killed.checkpoints).all()
    assert train_here(killed, resume=True) == 0
    assert_same_end(killed, alone)


def test_what_is_lost_later_is_a_warning_at_the_next_checkpoint(new_run: NewRun, train_here: Any) -> None:
    run_dir = new_run(surgeon(point="before_train_iter", at=7, adds=False))
    assert train_here(run_dir) == 0
    lost, kept = (line for line in warned(run_dir) if "optimizer" in line)
    assert lost.startswith(f"no optimizer trains {HEAD}: ")
    assert kept.startswith(f"an optimizer still trains {HEAD}, which the network no longer has; ")


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        (surgeon(point="after_forward"), "run.add_param_group is not allowed at after_forward"),
        (surgeon(rl=0.1), 'SGD has no setting "rl"'),
        (surgeon()[:-1] + ', writes=["model"]}', 'without declaring that it writes "optimizer"'),
    ],
)
def test_where_it_is_refused(new_run: NewRun, train_here: Any, hook: str, reason: str) -> None:
    run_dir = new_run(hook)
    assert train_here(run_dir) == 2
    assert reason in str(records(run_dir, "end")[0]["reason"])
