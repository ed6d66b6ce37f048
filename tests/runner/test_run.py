"""Whole runs: what a hook may do to one, what people may ask of it, and what becomes of errors."""

from __future__ import annotations

import re
import time
from pathlib import Path

from hookflow.events.stop import send
from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import NewRun, Train, Trained, records, wait_for
from tests.processes import Training
from tests.runner.same import assert_same, curve, final_state

SLOW = 'hooks.slow={use="./watchers.py:slow", points=["after_backward"]}'


def test_a_hook_that_does_nothing_changes_no_bit(trained: Trained) -> None:
    without, with_it = trained(), trained('hooks.nothing={use="./watchers.py:Nothing", phase="first"}')
    assert curve(without) == curve(with_it)
    assert len([at for at in curve(without) if at[1:] == (None, "loss")]) == 7
    assert_same(final_state(without)["model"], final_state(with_it)["model"])


def test_an_error_of_a_hook_names_it_and_ends_the_run(trained: Trained, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    around = f'hooks.around={{use="./watchers.py:Around", args={{file="{marks}"}}}}'
    run_dir = trained('hooks.bad={use="./watchers.py:Raises", args={at=6}}', around, code=1)
    (error,) = records(run_dir, "error")
    assert (error["hook"], error["point"], error["it"], error["action"]) == ("bad", "after_backward", 6, "raise")
    assert "raise RuntimeError(self.message)" in str(error["traceback"])
    assert re.fullmatch(r".*/tests/watchers\.py:\d+", str(error["at"]))
    (end,) = records(run_dir, "end")
    assert (end["status"], end["exit"]) == ("failed", 1)
    assert marks.read_text().split() == ["entered", "left", "entered", "left"], "left, though what lay between raised"
    assert CheckpointStore(run_dir.checkpoints).names()["last"].name == "it00000005", "the last checkpoint stands"


def test_what_is_said_is_signed(trained: Trained) -> None:
    named = 'hooks.mine={use="./callables.py:named", args=["from a hook"], points=["%s"]}'
    threaded = 'hooks.threaded={use="./callables.py:says_from_a_thread", points=["after_train"]}'
    steps = ("run.max_epochs=1", 'task={use="./own_tasks.py:talks"}', threaded)
    for point in ("after_train_iter", "after_train_epoch"):  # the first is generated, the second is not
        run_dir = trained(*steps, named % point)
        said = {str(r["text"]).split(" at ")[0]: r["source"] for r in records(run_dir, "message")}
        assert said["from a hook"] == "mine"
        assert said["from the task"] == "task"
        assert said["from a thread"] == "hookflow", "nobody knows whose it is"


def test_early_stopping_ends_the_run(trained: Trained) -> None:
    off = "hooks.early_stop.args={monitor='loss', mode='max', patience=1, min_delta=1000}"
    (end,) = records(trained("run.max_epochs=9", off), "end")
    assert end["ep"] == 2
    assert "loss has not improved" in str(end["reason"])


def test_commands_are_obeyed_and_answered(new_run: NewRun) -> None:
    run_dir = new_run("run.max_epochs=500", SLOW)
    child = Training(run_dir)
    wait_for(lambda: any(r["k"] == "frame" and r["it"] for r in records(run_dir)))
    asked = [send(run_dir, "pause")]

    def paused() -> list[dict[str, object]]:
        return [r for r in records(run_dir, "frame") if r["stage"] == "paused"]

    wait_for(lambda: len(paused()) >= 3)
    assert len({frame["it"] for frame in paused()[1:]}) == 1, "of the first it may have moved on"
    asked += [send(run_dir, command) for command in ("checkpoint", "resume")]
    wait_for(lambda: len(records(run_dir, "ack")) == 3)
    asked.append(send(run_dir, "stop"))
    assert child.wait() == 0
    answers = records(run_dir, "ack")
    assert [answer["id"] for answer in answers] == asked
    assert all(answer["ok"] for answer in answers)
    (end,) = records(run_dir, "end")
    assert end["status"] == "stopped"
    assert records(run_dir, "checkpoint")[-1]["it"] == end["it"], "what was done is kept"


def test_every_nanosecond_of_an_iteration_is_booked(new_run: NewRun, train_here: Train) -> None:
    run_dir = new_run("run.max_epochs=2")
    started = time.perf_counter_ns()
    assert train_here(run_dir) == 0
    elapsed = time.perf_counter_ns() - started
    frames = records(run_dir, "frame")
    phases = sum(sum(frame["phases"].values()) for frame in frames)  # type: ignore[attr-defined]
    iterations = sum(frame["iters"][1] for frame in frames)  # type: ignore[index]
    assert sum(frame["iters"][0] for frame in frames) == 10  # type: ignore[index]
    assert iterations <= phases <= elapsed, "the points around the epochs are booked too, and nothing twice"
