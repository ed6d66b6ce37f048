"""`hookflow.attach` on several ranks, whose program has formed
their group and wrapped the model.
"""

import os
from pathlib import Path

import pytest

import hookflow
from hookflow import UserError
from tests.attached.loops import net_and_optimizer
from tests.attached.ranked import ITERS
from tests.support.limits import LIMIT
from tests.support.processes import PYTHON, Spawned


def train(folder: Path, strike_at: int = -1) -> tuple[list[int], Path]:
    """Train on two ranks; return their exit codes, and the directory of the one run."""
    folder.mkdir(exist_ok=True)
    meeting = folder / f"meeting{len([*folder.iterdir()])}"
    runs = folder / "runs"
    code = (
        f"from tests.attached.ranked import main; main({str(runs)!r}, {str(meeting)!r},"
        f" {strike_at})"
    )
    ranks = []
    for rank in range(2):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
        with (folder / f"output{rank}").open("ab") as output:
            ranks.append(
                Spawned([PYTHON, "-c", code], env=environment, stdout=output, stderr=output)
            )
    codes = [rank.wait(LIMIT) for rank in ranks]
    (run_dir,) = (runs / "own").iterdir()
    return codes, run_dir


def test_ranks_train_stop_and_go_on_together(tmp_path: Path) -> None:
    codes, whole = train(tmp_path / "whole")
    assert codes == [0, 0], [
        (tmp_path / "whole" / f"output{rank}").read_text() for rank in range(2)
    ]
    digests = [(whole / f"weights.{rank}").read_text() for rank in range(2)]
    assert digests[0] == digests[1]
    codes, run_dir = train(tmp_path / "struck", strike_at=4)
    assert codes == [143, 143]
    at = hookflow.load_run(run_dir).checkpoint().iter
    assert 5 <= at < ITERS
    codes, again = train(tmp_path / "struck")
    assert (codes, again) == ([0, 0], run_dir)
    assert (run_dir / "weights.0").read_text() == digests[0]
    assert hookflow.load_run(run_dir).status == "finished"


def test_ranks_without_a_group_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    net, optimizer = net_and_optimizer()
    with pytest.raises(UserError, match="there is no process group"):
        hookflow.attach(
            {"run": {"name": "own"}}, model=net, optimizer=optimizer, max_iters=1, runs=tmp_path
        )
