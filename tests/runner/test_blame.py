"""What an error in a forward pass says of the user's line,
and runs that end as failed by `run.fail`.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hookflow import Hook
from hookflow.events.rundir import RunDir
from hookflow.monitor.summary import read_run_summary
from tests.conftest import Train, Trained, ended, hookflow_here, reason, records
from tests.runner.same import assert_same, final_state

WRONG = 'model={use="tests.runner.test_blame:WrongWidth"}'
NO_SANITY = "run.sanity=false"


FILE = Path(__file__)


class WrongWidth(nn.Module):
    """Its second layer takes another width than the first gives."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.head = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs))  # type: ignore[no-any-return] # THE LINE OF THE LAYER


class RaisesItself(nn.Linear):
    """Raises in its own forward."""

    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        raise ValueError("as told")  # THE LINE OF THE MODEL


class WrongTarget:
    """Its loss is given a target of another length."""

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        logits = run.model(batch[0])
        return {"loss": cross_entropy(logits, batch[1][1:])}  # THE LINE OF THE LOSS


def line_of(text: str) -> int:
    lines = FILE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


class FailsAt(Hook):
    """Calls `run.fail` at a point of the third iteration, or of the first validation."""

    def __init__(self, point: str = "after_train_iter", checkpoint: bool = False) -> None:
        self.point, self.checkpoint = point, checkpoint

    def _visit(self, run: Any, point: str) -> None:
        if point == self.point and (run.iter >= 3 or point == "before_train"):
            run.fail("memory over 10 GB", checkpoint=self.checkpoint)

    def before_train(self, run: Any) -> None:
        self._visit(run, "before_train")

    def after_train_iter(self, run: Any) -> None:
        self._visit(run, "after_train_iter")

    def after_val(self, run: Any) -> None:
        self._visit(run, "after_val")

    def after_train(self, run: Any) -> None:
        self._visit(run, "after_train")

    def after_run(self, run: Any) -> None:
        self._visit(run, "after_run")


class PreparedInTraining(Hook):
    """Needs in a validation what it makes before the training."""

    def before_train(self) -> None:
        self.table = torch.ones(3)

    def after_val_epoch(self, metrics: dict[str, float]) -> None:
        metrics["weighted"] = float(self.table.sum())


def causes_of(run_dir: RunDir) -> list[str]:
    return str(records(run_dir, "error")[-1]["causes"]).splitlines()


@pytest.mark.parametrize("sanity", [NO_SANITY, "run.sanity=true"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_error_in_a_layer_names_the_line_and_the_layer(
    trained: Trained, sanity: str, accumulate: int
) -> None:
    """In the training, in both of its forms, and in the first batch of a validation."""
    run_dir = trained(
        WRONG,
        sanity,
        f"run.accumulate={accumulate}",
        "run.device='cpu'",
        "run.precision='fp32'",
        code=1,
    )
    layer, batch = causes_of(run_dir)
    place = f"{FILE}:{line_of('THE LINE OF THE LAYER')}"
    assert layer.removeprefix("at ") in (
        f"{place}, layer head (Linear 6→3) was given (8, 8) float32",
        (
            f"tests/runner/test_blame.py:{line_of('THE LINE OF THE LAYER')}, "
            "layer head (Linear 6→3) was given (8, 8) float32"
        ),
    )
    assert batch == "the batch: (8, 4) float32, (8,) int64"
    error = records(run_dir, "error")[-1]
    assert error["at"] == place
    assert str(error["traceback"]).splitlines()[-3:-1] != [
        layer,
        batch,
    ], "the place of the iteration follows"
    assert layer in str(error["traceback"]) and batch in str(error["traceback"])


def test_an_error_of_the_forward_itself_names_the_model(trained: Trained) -> None:
    run_dir = trained('model={use="tests.runner.test_blame:RaisesItself"}', NO_SANITY, code=1)
    layer, _ = causes_of(run_dir)
    assert (
        f":{line_of('THE LINE OF THE MODEL')}, the model (RaisesItself 4→3) was given (8, 4)"
        " float32" in layer
    )
    assert reason(run_dir).startswith("ValueError: as told")


def test_an_error_of_the_loss_shows_the_batch_alone(trained: Trained) -> None:
    run_dir = trained('task={use="tests.runner.test_blame:WrongTarget"}', NO_SANITY, code=1)
    assert causes_of(run_dir) == ["the batch: (8, 4) float32, (8,) int64"]
    assert str(records(run_dir, "error")[-1]["at"]).endswith(
        f"test_blame.py:{line_of('THE LINE OF THE LOSS')}"
    )


def test_an_error_of_a_hook_is_that_of_the_hook(trained: Trained) -> None:
    run_dir = trained(
        'hooks.bad={use="./common_hooks.py:Fails", args={place="after_train_iter"}}', code=1
    )
    assert not any("the batch" in line or "layer" in line for line in causes_of(run_dir))


def test_the_user_sees_the_line_first(trained: Trained) -> None:
    """The summary names the place once, with the layer."""
    run_dir = trained(WRONG, NO_SANITY, code=1)
    printed = hookflow_here("show", str(run_dir.path), cwd=run_dir.path).stdout
    named = f"test_blame.py:{line_of('THE LINE OF THE LAYER')}, layer head (Linear 6→3) was given"
    assert named in " ".join(printed.split()), "wherever the lines are broken"


@pytest.mark.parametrize("point", ["after_train_iter", "before_train", "after_val"])
def test_a_run_that_a_hook_fails(trained: Trained, point: str) -> None:
    fails = f'hooks.fails={{use="tests.runner.test_blame:FailsAt", args={{point="{point}"}}}}'
    keys = (
        "run.max_epochs=2",
        "run.test=true",
        'hooks.checkpoint.points=[{at="after_train_iter", every=1000}]',
    )
    run_dir = trained(fails, *keys, code=1)
    assert ended(run_dir) == ("failed", 1)
    assert reason(run_dir) == "memory over 10 GB"
    assert (
        records(run_dir, "end")[-1]["it"]
        == {"after_train_iter": 3, "before_train": 0, "after_val": 5}[point]
    )
    assert not [record for record in records(run_dir, "metrics") if record["split"] == "test"]
    assert read_run_summary(run_dir, 0.0).state.outcome == "failed"
    assert not (run_dir.checkpoints / "last").exists(), "nothing was asked to be saved"


def test_a_run_that_fails_with_a_checkpoint_is_resumed_to_the_bit(
    trained: Trained, train_here: Train
) -> None:
    fails = 'hooks.fails={use="tests.runner.test_blame:FailsAt", args={checkpoint=true}}'
    run_dir = trained(fails, "run.max_epochs=1", code=1)
    for iteration in (3, 4, 5):  # the hook fails it again after each
        assert (run_dir.checkpoints / "last").resolve().name.startswith(f"it{iteration:08d}")
        assert records(run_dir, "end")[-1]["it"] == iteration
        if iteration < 5:
            assert train_here(run_dir, resume=True) == 1
    whole = trained("run.max_epochs=1")
    assert_same(final_state(run_dir)["model"], final_state(whole)["model"])


def test_a_failure_that_comes_too_late_is_refused(trained: Trained) -> None:
    run_dir = trained(
        'hooks.fails={use="tests.runner.test_blame:FailsAt", args={point="after_run"}}',
        "run.max_epochs=1",
        code=2,
    )
    assert "run.fail is not allowed" in reason(run_dir)


PREPARED = 'hooks.prepared={use="tests.runner.test_blame:PreparedInTraining"}'


def test_val_tells_that_before_train_does_not_fire_and_leaves_hooks_out(
    trained: Trained, tmp_path: Path
) -> None:
    run_dir = trained(PREPARED, "run.max_epochs=1")
    failed = hookflow_here("val", str(run_dir.path), cwd=tmp_path, code=1)
    assert '"prepared" has a before_train' in failed.stderr
    assert "--without prepared" in failed.stderr
    assert (
        "weighted"
        not in hookflow_here(
            "val", str(run_dir.path), "--without", "prepared", cwd=tmp_path, code=0
        ).stdout
    )
    unknown = hookflow_here(
        "val", str(run_dir.path), "--without", "prepaired", cwd=tmp_path, code=2
    ).stderr
    assert 'did you mean "prepared"?' in unknown
