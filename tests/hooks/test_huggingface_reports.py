"""What users of Trainer callbacks have reported as wrong, rebuilt here:
each right value is computed independently.
"""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.store import read
from tests.conftest import records, strikes
from tests.distributed.several import carry_out, printed
from tests.runner.same import final_state

pytest.importorskip("transformers", reason="needs transformers")
pytest.importorskip(
    "accelerate", reason="needs accelerate, which the module of the trainings imports"
)

pytestmark = pytest.mark.filterwarnings("ignore")

KEEPS = 'hooks.keeps={use="tests.hooks.hf_training:KeepsLosses"}'
RECORDER = 'hooks.recorder={use="tests.hooks.hf_training:Recorder"}'
SAVES = 'hooks.checkpoint={use="checkpoint", args={monitor="loss", mode="min"}}'


@pytest.fixture
def hf() -> Any:
    """The module `hf_training`, which takes long to import; no event has been seen."""
    from tests.hooks import hf_training

    hf_training.SEEN.clear()
    return hf_training


@pytest.fixture
def train(hf: Any, tmp_path: Path, new_run: Any, train_here: Any) -> Any:
    """Train the pipeline of `hf_training`; with `cut_at` a signal ends it after that iteration,
    and it is resumed.
    """

    def train(*hooks: str, epochs: int = 2, cut_at: int | None = None) -> RunDir:
        file = tmp_path / "hf.toml"
        file.write_text(hf.PIPELINE.replace("EPOCHS", str(epochs)))
        if cut_at is None:
            run_dir = new_run(*hooks, pipeline=file)
            assert train_here(run_dir) == 0, records(run_dir, "end")
            return run_dir
        strike = strikes(tmp_path, signal.SIGTERM, ("after_train_iter", cut_at), times=2)
        run_dir = new_run(*hooks, *strike, pipeline=file)
        assert train_here(run_dir) == 143
        assert train_here(run_dir, resume=True) == 0, records(run_dir, "end")
        return run_dir

    return train


def losses_by_hand(hf: Any, epochs: int, batches_per_step: int = 1) -> list[float]:
    """Return the loss of each step, in plain PyTorch: the mean over its batches,
    which have equally many examples.
    """
    model = hf.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(epochs):
        batches = [*hf.loader(12)]
        for first in range(0, len(batches), batches_per_step):
            group = batches[first : first + batches_per_step]
            optimizer.zero_grad()
            loss = torch.stack([model(**batch)["loss"] for batch in group]).mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
    return losses


def kept_state(run_dir: RunDir, hook: str) -> Any:
    state: Any = final_state(run_dir)
    return state["hooks"][hook]["trainer"]


@pytest.mark.parametrize("cut_at", [None, 4, 6, 7])
def test_the_patience_is_counted_on_after_a_resume(train: Any, cut_at: int | None) -> None:
    """No epoch improves by 1.0: the second counts one, the third counts two,
    and two is the patience.
    """
    args = "{early_stopping_patience=2, early_stopping_threshold=1.0}"
    stops = f'hooks.stops={{use="huggingface:EarlyStoppingCallback", args={args}}}'
    run_dir = train(stops, SAVES, epochs=9, cut_at=cut_at)
    end = records(run_dir, "end")[-1]
    assert (end["it"], end["ep"]) == (9, 3)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_logged_loss_is_the_mean_of_its_steps_and_not_a_sum_over_batches(
    hf: Any, train: Any, accumulate: int
) -> None:
    train(RECORDER, 'hooks.log={use="log", every=2}', f"run.accumulate={accumulate}")
    losses = losses_by_hand(hf, 2, accumulate)
    history = [entry for entry in hf.SEEN[-1][4] if "loss" in entry]
    assert [entry["step"] for entry in history] == [*range(2, len(losses) + 1, 2)]
    pairs = [losses[k : k + 2] for k in range(0, len(losses), 2)]
    assert [entry["loss"] for entry in history] == pytest.approx(
        [sum(pair) / 2 for pair in pairs], abs=2e-5
    )


@pytest.mark.parametrize("cut_at", [2, 3, 5])
def test_the_loss_of_a_resumed_training_is_that_of_all_its_steps(
    hf: Any, train: Any, cut_at: int
) -> None:
    """It was divided by all steps, and summed over those of the latest session alone."""
    train(RECORDER, KEEPS, SAVES, 'hooks.log={use="log", every=4}', cut_at=cut_at)
    losses = losses_by_hand(hf, 2)
    history = hf.SEEN[-1][4]
    (end,) = [entry for entry in history if "train_loss" in entry]
    assert end["train_loss"] == pytest.approx(sum(losses) / len(losses), abs=2e-5)
    (logged,) = [entry for entry in history if "loss" in entry]
    assert logged["loss"] == pytest.approx(sum(losses[:4]) / 4, abs=2e-5), (
        "also where the interval was cut"
    )


SIZED = 'model.use="tests.hooks.hf_training:SizedNet"'
OPERATIONS = 6 * (2 * 12 * 4) * 15
"""What Hugging Face's formula gives for two epochs of twelve examples of four numbers each,
and 15 parameters.
"""


@pytest.mark.parametrize("cut_at", [None, 2, 3, 5])
def test_the_operations_are_those_of_all_steps_also_after_a_resume(
    hf: Any, train: Any, cut_at: int | None
) -> None:
    """Those of the steps since the latest log were lost: the logs come later than the cut."""
    train(SIZED, RECORDER, SAVES, 'hooks.log={use="log", every=4}', cut_at=cut_at)
    (end,) = [entry for entry in hf.SEEN[-1][4] if "total_flos" in entry]
    assert end["total_flos"] == OPERATIONS


def test_the_operations_are_those_of_all_ranks(hf: Any, tmp_path: Path, new_run: Any) -> None:
    """Each rank has computed half of each batch."""
    file = tmp_path / "hf.toml"
    file.write_text(hf.PIPELINE.replace("EPOCHS", "2"))
    uses = [f'data.{split}.use="tests.hooks.hf_training:shares"' for split in ("train", "val")]
    log = 'hooks.log={use="log", every=1}'
    run_dir = new_run(SIZED, KEEPS, SAVES, log, *uses, pipeline=file)
    assert carry_out(run_dir, 2) == [0, 0], records(run_dir, "end")
    assert kept_state(run_dir, "keeps")["total_flos"] == OPERATIONS


def test_the_first_process_of_each_machine_is_its_local_one(
    hf: Any, tmp_path: Path, new_run: Any
) -> None:
    """Two machines with a process each: both log, as in their Trainer, and the first one saves."""
    file = tmp_path / "hf.toml"
    file.write_text(hf.PIPELINE.replace("EPOCHS", "1"))
    uses = [f'data.{split}.use="tests.hooks.hf_training:shares"' for split in ("train", "val")]
    tells = 'hooks.tells={use="tests.hooks.hf_training:TellsRank"}'
    run_dir = new_run(tells, *uses, pipeline=file)
    assert carry_out(run_dir, 2, num_local=1) == [0, 0], records(run_dir, "end")
    assert "ranks: (0, True, True) (0, True, True)" in printed(run_dir, 0)
    assert "ranks: (0, True, False) (1, True, False)" in printed(run_dir, 1)


def test_the_best_step_is_that_of_the_best_metric_and_its_checkpoint_is_kept(
    hf: Any, train: Any
) -> None:
    run_dir = train(KEEPS, SAVES, "optimizer.args.lr=0.8", "data.val.args.examples=7", epochs=6)
    measured = {record["it"]: record["v"]["loss"] for record in records(run_dir, "metrics")}
    best_step = min(measured, key=lambda step: measured[step])
    state = kept_state(run_dir, "keeps")
    assert (state["best_global_step"], state["best_metric"]) == (best_step, measured[best_step])
    model = hf.Net()
    assert state["best_is_saved"]
    saved: Any = read(run_dir.checkpoints / "best")
    model.load_state_dict(saved["model"])
    batches = [*hf.loader(7)]
    total = sum(len(batch["labels"]) * float(model(**batch)["loss"]) for batch in batches)
    assert total / 7 == pytest.approx(state["best_metric"])


@pytest.mark.parametrize(("iters", "expected"), [(6, [2, 4, 6]), (5, [2, 4, 5])])
def test_the_end_is_evaluated_once(hf: Any, train: Any, iters: int, expected: list[int]) -> None:
    train(RECORDER, 'run.val_every="2it"', f"run.max_iters={iters}")
    steps = [event[1]["global_step"] for event in hf.SEEN if event[0] == "on_evaluate"]
    assert steps == expected


@pytest.mark.parametrize("accumulate", [1, 2, 3, 5])
def test_an_epoch_ends_at_a_whole_number_whatever_the_groups_are(
    hf: Any, train: Any, accumulate: int
) -> None:
    """Three batches an epoch: an incomplete group ends it, too."""
    train(RECORDER, f"run.accumulate={accumulate}")
    ends = [event[1]["epoch"] for event in hf.SEEN if event[0] == "on_epoch_end"]
    assert ends == [1.0, 2.0]
    steps = [event[1]["global_step"] for event in hf.SEEN if event[0] == "on_epoch_end"]
    per_epoch = -(-3 // accumulate)
    assert steps == [per_epoch, 2 * per_epoch]
