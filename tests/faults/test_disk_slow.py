"""A disk that is slow, or hangs: the training goes on, or waits and is told to; it is never kept from ending."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from hookflow.events.now import NOWHERE
from hookflow.monitor.feed import Live
from hookflow.monitor.health import examine
from hookflow.runner.checkpoint import manager
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.logging import recorder
from tests.conftest import NewRun, Train, Trained, records, wait_for
from tests.distributed.actors import asked_to_stop
from tests.distributed.several import Ranks, carry_out, printed
from tests.faults.disk import Disk
from tests.runner.same import assert_same_end

AT_FIRST = r"fsync .*it00000005.*/manifest\.json"
THREADS = ("hookflow-checkpoint", "hookflow-recorder")


def test_the_training_waits_for_a_disk_that_hangs_and_goes_on_when_it_answers(
    trained: Trained, new_run: NewRun, train_here: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, run = trained(), new_run()
    seen: list[str] = []

    def waits() -> bool:
        return any(frame["stage"] == "save" and frame["it"] == 10 for frame in records(run, "frame"))

    def hang(operation: str) -> None:
        if threading.current_thread().name == "hookflow-checkpoint" and not seen:
            wait_for(waits)
            live = Live(run)
            live.read_all()
            seen.append(examine(live.state, "alive", live.state.moved + 60, live.plan, {0: (NOWHERE, 60.0)}).sentence)

    Disk(run.path, monkeypatch, AT_FIRST, hang)
    assert train_here(run) == 0
    assert seen == ["no progress for 60 s, waiting for the disk"], "five iterations on, before the next one is saved"
    assert [saved["it"] for saved in records(run, "checkpoint")] == [5, 10, 15]
    assert_same_end(alone, run)


def test_two_signals_end_a_run_whose_disk_never_answers(
    trained: Trained,
    new_run: NewRun,
    train_here: Train,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    alone, run = trained(), new_run()
    monkeypatch.setattr(recorder, "GRACE", 0.1)
    monkeypatch.setattr(manager, "GRACE", 0.1)
    answered, sent = threading.Event(), threading.Lock()

    def hang(operation: str) -> None:
        if sent.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGINT)
            wait_for(lambda: asked_to_stop() is not None)  # of two at once, one may reach a thread that nobody wakes
            os.kill(os.getpid(), signal.SIGTERM)
        if threading.current_thread().name in THREADS and not answered.wait(60):
            answered.set()

    with monkeypatch.context() as patch:
        Disk(run.path, patch, AT_FIRST, hang)
        assert train_here(run) == 130
        assert "the disk does not answer; the end of the event log is lost" in capfd.readouterr().err
        answered.set()
        for thread in [each for each in threading.enumerate() if each.name in THREADS]:
            thread.join(60)
    assert train_here(run, resume=True) == 0
    assert_same_end(alone, run)


DATA = [f'data.{split}={{use="./loaders.py:Clouds", loader={{batch_size=8}}}}' for split in ("train", "val")]


def slow(hook: str, seconds: float) -> str:
    return f'hooks.{hook.lower()}={{use="./savers.py:{hook}", args={{seconds={seconds}}}}}'


@pytest.mark.long
def test_the_other_ranks_wait_longer_than_a_collective_for_the_disk_of_rank_0(new_run: NewRun) -> None:
    overrides = [slow("SlowDisk", 3.0), slow("SlowReads", 3.0), *DATA, "distributed.timeout=1", 'run.device="cpu"']
    run = new_run(*overrides, "run.max_epochs=2")
    assert carry_out(run, 2) == [0, 0], printed(run, 1)
    assert [saved["it"] for saved in records(run, "checkpoint")] == [5, 10]
    run.pipeline.write_text(run.pipeline.read_text().replace("max_epochs = 2", "max_epochs = 3"))
    assert carry_out(run, 2, resume=True) == [0, 0], printed(run, 1)
    assert [saved["it"] for saved in records(run, "checkpoint")] == [5, 10, 15]


def test_ranks_whose_disk_never_answers_are_reported_and_leave_at_two_signals(new_run: NewRun) -> None:
    run = new_run(slow("SlowDisk", 600.0), *DATA, 'run.device="cpu"')
    with Ranks(run, 2) as ranks:
        wait_for(lambda: any(frame["stage"] == "save" and frame["it"] == 10 for frame in records(run, "frame")))
        live = Live(run)
        live.read_all()
        health = examine(live.state, "alive", live.state.moved + 60, live.plan, {0: (NOWHERE, 60.0)})
        assert health.sentence == "no progress for 60 s, waiting for the disk"
        for training in ranks.trainings:
            os.kill(training.process.pid or 0, signal.SIGINT)
            os.kill(training.process.pid or 0, signal.SIGTERM)
        assert ranks.wait() == [130, 130]
    assert not CheckpointStore(run.checkpoints).all()
