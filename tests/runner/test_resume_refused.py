"""A resume that fails before its checkpoint has been read changes nothing of the run, and says why it failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.resume_rules import recorded
from hookflow.runner.process.launch import PROPOSED, adopt, propose, withdraw
from tests.conftest import NewRun, Trained, hookflow, hookflow_here, records, run_here
from tests.distributed.several import carry_out, printed

GATE = """
import os
from pathlib import Path

DOOR = Path(__file__).with_name("door")

class Gate:
    def before_run(self, run):
        if DOOR.exists() and DOOR.read_text() == f"kill {run.rank}":
            os.kill(os.getpid(), 9)

    def state_dict(self):
        return {"open": True}

    def load_state_dict(self, state):
        if DOOR.exists() and DOOR.read_text() == f"raise {os.environ.get('RANK', 0)}":
            raise RuntimeError("the gate is closed")
"""


@pytest.fixture
def gate(tmp_path: Path) -> str:
    (tmp_path / "gate.py").write_text(GATE)
    return f'hooks.gate={{use="{tmp_path / "gate.py"}:Gate", points=["before_run"]}}'


@pytest.fixture
def finished(trained: Trained, gate: str) -> RunDir:
    return trained(gate, "run.max_epochs=1")


def files(run: RunDir) -> dict[str, bytes | str]:
    """Return all that stands in the run directory, but for who trains and what was printed and recorded."""
    apart = ("run.json", "events.jsonl", "now.bin", "lock")
    paths = [path for path in run.path.rglob("*") if path.name not in apart and path.suffix != ".log"]
    result = {path for path in paths if path.is_file() or path.is_symlink()}
    return {str(path): str(path.readlink()) if path.is_symlink() else path.read_bytes() for path in result}


@pytest.mark.parametrize(
    ("door", "code", "reason"),
    [
        ("raise 0", 1, 'RuntimeError: the gate is closed; raised while the hook "gate" was given back its state'),
        ("kill 0", 137, "killed by SIGKILL"),
    ],
)
def test_nothing_changes_before_the_checkpoint_has_been_read(
    finished: RunDir, tmp_path: Path, door: str, code: int, reason: str
) -> None:
    before, log, facts = files(finished), finished.events.read_bytes(), finished.describe()
    (tmp_path / "door").write_text(door)
    resume = ("--resume", finished.id, "--set=run.max_epochs=2")
    if door.startswith("kill"):
        refused = hookflow("run", *resume, "--ui=plain", cwd=tmp_path)
        assert f"not resumed: {reason}" in refused.stdout
    else:
        refused = run_here(*resume, cwd=tmp_path)
    assert refused.returncode == code
    left = {path: text for path, text in files(finished).items() if "/proposed/" not in path}
    assert left == before
    assert finished.events.read_bytes().startswith(log)
    assert len(records(finished, "run")) == len(records(finished, "end")) == 1
    assert {fact: finished.describe()[fact] for fact in PROPOSED} == {fact: facts[fact] for fact in PROPOSED}
    assert "finished" in hookflow_here("runs", cwd=tmp_path).stdout
    shown = hookflow_here("show", finished.id, cwd=tmp_path).stdout
    assert "finished" in shown
    assert f"not resumed: {reason}" in " ".join(shown.split())
    (tmp_path / "door").unlink()
    assert run_here(*resume, cwd=tmp_path).returncode == 0
    assert "max_epochs = 2" in finished.pipeline.read_text()
    assert records(finished, "end")[-1]["ep"] == 2
    assert not finished.proposed.path.exists()


def test_an_adoption_that_was_cut_short_is_finished(finished: RunDir, new_run: NewRun) -> None:
    other = new_run("run.max_epochs=9")
    propose(*recorded(other.path), finished, other.path)
    withdraw(finished)
    assert "max_epochs = 9" not in finished.pipeline.read_text(), "it had not begun"
    propose(*recorded(other.path), finished, other.path)
    finished.proposed.plan.replace(finished.plan)
    withdraw(finished)
    assert "max_epochs = 9" in finished.pipeline.read_text()
    assert finished.describe()["source"] == str(recorded(other.path)[0].source)
    assert not finished.proposed.path.exists()
    adopt(finished)  # nothing is proposed


@pytest.mark.parametrize("rank", [0, 1])
def test_no_rank_changes_anything_before_all_have_read_the_checkpoint(
    new_run: NewRun, gate: str, tmp_path: Path, rank: int
) -> None:
    data = [f'data.{split}={{use="./loaders.py:Clouds", loader={{batch_size=8}}}}' for split in ("train", "val")]
    run = new_run(gate, *data, 'run.device="cpu"', "run.max_epochs=1")
    assert carry_out(run, 2) == [0, 0], printed(run, 1)
    before = files(run)
    (tmp_path / "door").write_text(f"raise {rank}")
    assert carry_out(run, 2, resume=True)[rank] == 1
    after = files(run)
    assert {path: after[path] for path in before if "rank1" not in path} == {
        path: text for path, text in before.items() if "rank1" not in path
    }
    assert len(records(run, "run")) == len(records(run, "end")) == 1
    (refused,) = records(run, "refused")
    assert "the gate is closed" in str(refused["reason"])
