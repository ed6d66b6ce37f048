"""Ctrl-C and its like: obeyed at once while nothing is done, at a boundary while training, and never twice."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from hookflow.events.commands import send
from hookflow.events.records import Record
from hookflow.runner.checkpoint.manifest import damage, read_manifest
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.logging.recorder import Recorder
from hookflow.runner.process.launch import start
from hookflow.runner.process.signals import SIGNALS, Signals, handlers_put_back
from tests.conftest import TRACER, NewRun, Train, Trained, ended, records, wait_for
from tests.processes import Training
from tests.runner.same import assert_same_end
from tests.runner.test_resume import EVERY_3, strikes

SLOW = 'hooks.slow={use="./watchers.py:slow", points=["after_backward"]}'


def test_before_python_has_even_started(new_run: NewRun) -> None:
    run_dir = new_run()
    child = start(run_dir)
    child.send_signal(signal.SIGINT)
    assert child.wait() == 130
    assert ended(run_dir) == ("interrupted", 130)
    assert not records(run_dir, "run")


def test_while_the_data_is_drawn(new_run: NewRun, tmp_path: Path) -> None:
    run_dir = new_run(f'data.train={{use="./toy.py:endless", args={{mark="{tmp_path / "mark"}"}}}}')
    child = Training(run_dir)
    wait_for((tmp_path / "mark").exists)
    child.signal(signal.SIGTERM)
    assert child.wait() == 143
    assert ended(run_dir) == ("interrupted", 143)
    assert "before the training began" in str(records(run_dir, "end")[0]["reason"])


@pytest.mark.parametrize("point", ["before_run", "before_train"])
def test_before_the_first_iteration(trained: Trained, tmp_path: Path, point: str) -> None:
    trace = tmp_path / "trace"
    run_dir = trained(*strikes(tmp_path, signal.SIGINT, (point, 0)), TRACER % trace, code=130)
    assert ended(run_dir) == ("interrupted", 130)
    assert "before_train_iter" not in trace.read_text()
    assert trace.read_text().splitlines()[-1].startswith("after_run")
    assert not records(run_dir, "error"), "no hook is to blame"


@pytest.mark.parametrize(
    ("point", "it", "number", "code"),
    [
        ("before_train_iter", 6, signal.SIGTERM, 143),
        ("after_backward", 6, signal.SIGINT, 130),
        ("before_save_checkpoint", 10, signal.SIGUSR1, 143),
    ],
)
def test_while_training(
    trained: Trained, train_here: Train, tmp_path: Path, point: str, it: int, number: signal.Signals, code: int
) -> None:
    alone = trained()
    broken = trained(*strikes(tmp_path, number, (point, it)), code=code)
    assert ended(broken) == ("interrupted", code)
    assert records(broken, "checkpoint")[-1]["it"] == records(broken, "end")[0]["it"], "what was done is kept"
    assert train_here(broken, resume=True) == 0
    assert_same_end(alone, broken)


@pytest.mark.parametrize(
    ("point", "length", "overrides", "at"),
    [
        ("before_val", "max_epochs = 3", (), 15),
        ("before_val_iter", "max_iters = 15", ("run.val_every=5", EVERY_3), 10),
        ("before_val_iter", "max_iters = 15", ("run.val_every=5", EVERY_3), 15),
        ("after_val_iter", "max_epochs = 3", (), 10),
    ],
)
def test_a_validation_is_cut_short_and_done_again(
    trained: Trained, train_here: Train, tmp_path: Path, point: str, length: str, overrides: tuple[str, ...], at: int
) -> None:
    swap = ("max_epochs = 3", length)
    trace, marks = tmp_path / "trace", tmp_path / "around"
    around = f'hooks.around={{use="./watchers.py:AroundVal", args={{file="{marks}"}}}}'
    alone = trained(*overrides, around.replace(str(marks), str(tmp_path / "marks of the other")), swap=swap)
    broken = trained(
        *overrides, *strikes(tmp_path, signal.SIGTERM, (point, at)), around, TRACER % trace, swap=swap, code=143
    )
    lines = [line.split()[0] for line in trace.read_text().splitlines() if f"iter={at} " in line]
    assert lines.count("after_val_iter") == 1, "the pass ends after the iteration at hand"
    assert "after_val_epoch" not in lines, "nobody gets half the metrics"
    assert "after_val" not in lines
    assert marks.read_text().split()[-1] == "left"
    assert len(records(broken, "metrics")) == at / 5 - 1
    assert train_here(broken, resume=True) == 0
    assert len(records(broken, "metrics")) == 3
    assert_same_end(alone, broken)


def test_a_test_is_cut_short_and_done_again(trained: Trained, train_here: Train, tmp_path: Path) -> None:
    run_dir = trained("run.test=true", *strikes(tmp_path, signal.SIGTERM, ("before_test_iter", 15)), code=143)
    assert not [record for record in records(run_dir, "metrics") if record["split"] == "test"]
    assert train_here(run_dir, resume=True) == 0
    assert records(run_dir, "metrics")[-1]["split"] == "test"


@pytest.mark.usefixtures("written_at_once")
@pytest.mark.parametrize("point", ["before_train_iter", "after_val_iter", "before_save_checkpoint"])
def test_a_second_signal_ends_it_at_once(trained: Trained, train_here: Train, tmp_path: Path, point: str) -> None:
    alone = trained()
    broken = trained(*strikes(tmp_path, signal.SIGINT, (point, 10), times=2), code=130)
    assert ended(broken) == ("interrupted", 130)
    assert "twice" in str(records(broken, "end")[0]["reason"])
    standing = CheckpointStore(broken.checkpoints).all()
    assert standing
    assert not [damage(path) for path in standing if damage(path)]
    assert train_here(broken, resume=True) == 0
    assert_same_end(alone, broken)


def test_a_second_signal_on_the_way_out_ends_that_too(trained: Trained, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    first, second = strikes(tmp_path, signal.SIGINT, ("before_train", 0), ("on_exception", 0))
    assert ended(trained(first, second, TRACER % trace, code=130)) == ("interrupted", 130)
    assert "after_run" not in trace.read_text()


def test_one_that_comes_while_the_beginning_is_written_down_loses_nothing_of_it(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = Recorder._news

    def interrupted(recorder: Recorder, framed: bool) -> list[Record]:
        taken = news(recorder, framed)
        if any(record["k"] == "run" for record in taken):
            os.kill(os.getpid(), signal.SIGINT)
        return taken

    monkeypatch.setattr(Recorder, "_news", interrupted)
    run_dir = trained(code=130)
    assert [record["k"] for record in records(run_dir) if record["k"] in ("run", "end")] == ["run", "end"]


def test_a_handler_waits_for_nothing_that_the_main_thread_holds() -> None:
    """A thread sends one signal after the other, while the main thread does little else than what a pause does."""
    flag = SimpleNamespace(attention=False)
    made = Signals(flag)  # type: ignore[arg-type]
    due, rounds = threading.Semaphore(0), 100

    def strike() -> None:
        for k in range(rounds):
            due.acquire()
            made.command({"id": str(k), "cmd": "pause", "t": 0.0, "by": "me"})
            os.kill(os.getpid(), SIGNALS[k % len(SIGNALS)])

    thread = threading.Thread(target=strike, daemon=True)
    with handlers_put_back():
        made.listen()
        made.be_graceful()
        thread.start()
        for _ in range(rounds):
            due.release()
            while made.stop is None:
                while made.commands:
                    made.commands.popleft()
            assert flag.attention
            made.stop, flag.attention = None, False
        thread.join()


def test_a_signal_ends_a_pause_and_what_is_done_is_saved(new_run: NewRun) -> None:
    run_dir = new_run("run.max_epochs=500", SLOW)
    child = Training(run_dir)
    wait_for(lambda: any(r["it"] for r in records(run_dir, "frame")))
    send(run_dir, "pause")
    wait_for(lambda: any(r["stage"] == "paused" for r in records(run_dir, "frame")))
    child.signal(signal.SIGTERM)
    assert child.wait() == 143
    newest = CheckpointStore(run_dir.checkpoints).all()[0]
    assert read_manifest(newest)["it"] == records(run_dir, "end")[0]["it"]
