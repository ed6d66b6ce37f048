"""Saving beside the training: who waits for whom, and what a disk that is slow, full or broken does to a run."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.events.records import TEXT_LIMIT
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from hookflow.runner.checkpoint import manager
from hookflow.runner.checkpoint import store as checkpoint
from hookflow.runner.checkpoint.manager import CheckpointManager, HostCopy, NotSavedError, Saving, begin
from hookflow.runner.checkpoint.manifest import EXCEPTION, MANIFEST, damage, list_checkpoints, read_manifest
from hookflow.runner.checkpoint.store import CheckpointStore, Saved, read
from hookflow.runner.distributed.rendezvous import Ranks
from tests.conftest import NewRun, Train, Trained, messages, records, wait_for
from tests.distributed.actors import asked_to_stop
from tests.limits import LIMIT
from tests.runner.same import assert_same, assert_same_end
from tests.runner.test_resume import EVERY_3, strikes

TRACER = 'hooks.tracer={use="./watchers.py:Tracer", phase="last", args={file="%s"}}'


def end(run_dir: RunDir) -> tuple[object, object]:
    record = records(run_dir, "end")[-1]
    return record["exit"], record["reason"]


def at_manifest(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> None:
    """Do something just before the last file of the checkpoint with this number is written."""
    written, seen = checkpoint._write, [0]

    def act_first(path: Path, *arguments: Any) -> Any:
        seen[0] += path.name == MANIFEST
        if path.name == MANIFEST and seen[0] == number:
            act()
        return written(path, *arguments)

    monkeypatch.setattr(checkpoint, "_write", act_first)


def test_the_training_does_not_wait_for_the_disk(
    new_run: NewRun, train_here: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    at_manifest(monkeypatch, 1, lambda: wait_for(lambda: "after_train_iter iter=8 " in trace.read_text()))
    assert train_here(new_run(TRACER % trace)) == 0
    reported = [line for line in trace.read_text().splitlines() if line.startswith("after_save_checkpoint")]
    assert 8 <= int(reported[0].split("iter=")[1].split()[0]) <= 10, "behind the write, and before the next one begins"
    assert reported[-1].startswith("after_save_checkpoint iter=15"), "it has ended before the run does"


def test_what_is_written_is_reported_at_the_next_safe_point(
    new_run: NewRun, train_here: Train, tmp_path: Path, written_at_once: None
) -> None:
    assert train_here(new_run(TRACER % (tmp_path / "trace"))) == 0
    lines = (tmp_path / "trace").read_text().splitlines()
    assert next(line.split()[1] for line in lines if line.startswith("after_save_checkpoint")) == "iter=6"


def test_it_is_told_for_how_many_milliseconds_the_training_waited(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count(step=0.25)
    monkeypatch.setattr(manager, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    run_dir = trained()
    assert {record["ms"] for record in records(run_dir, "checkpoint")} == {250.0}


def test_a_write_under_way_when_the_run_fails_is_reported(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    at_manifest(monkeypatch, 1, lambda: wait_for(lambda: "after_forward iter=5 " in trace.read_text()))
    run_dir = trained(TRACER % trace, 'hooks.raises={use="./watchers.py:Raises", args={at=5}}', code=1)
    assert [record["it"] for record in records(run_dir, "checkpoint")] == [5]


def test_a_full_disk_ends_the_run_in_words_and_leaves_the_last_one_good(
    new_run: NewRun, train_here: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    at_manifest(monkeypatch, 2, full)
    run_dir, trace = new_run(TRACER % (tmp_path / "trace")), tmp_path / "trace"
    assert train_here(run_dir) == 1
    code, reason = end(run_dir)
    assert code == 1
    assert "the checkpoint of iteration 10 could not be saved: [Errno 28] No space left on device" in str(reason)
    (left,) = CheckpointStore(run_dir.checkpoints).all()
    assert (left.name, damage(left)) == ("it00000005", "")
    assert not list(run_dir.checkpoints.glob(".*"))
    assert trace.read_text().count("after_save_checkpoint") == 1
    assert "on_exception" in trace.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_while_one_is_written(
    trained: Trained, new_run: NewRun, train_here: Train, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    alone = trained()
    broken = new_run()
    at_manifest(monkeypatch, 1, lambda: os.kill(os.getpid(), number))
    assert train_here(broken) == (130 if number == signal.SIGINT else 143)
    newest = CheckpointStore(broken.checkpoints).all()[0]
    assert read_manifest(newest)["it"] == records(broken, "end")[0]["it"], "what was done is kept"
    assert train_here(broken, resume=True) == 0
    assert_same_end(alone, broken)


def interrupt_twice(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what sends two signals, and waits until the run waits for what is being written."""
    waited_for = Event()
    join = Thread.join

    def notice(thread: Thread, timeout: float | None = None) -> None:
        if thread.name == "hookflow-checkpoint" and timeout is not None:  # without one, it is known to have ended
            waited_for.set()
        join(thread, timeout)

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: asked_to_stop() is not None)
        os.kill(os.getpid(), signal.SIGTERM)
        assert waited_for.wait(LIMIT)

    monkeypatch.setattr(Thread, "join", notice)
    monkeypatch.setattr(manager, "GRACE", LIMIT)
    return twice


def test_a_second_signal_calls_the_write_off(
    trained: Trained, new_run: NewRun, train_here: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = trained()
    broken = new_run()
    at_manifest(monkeypatch, 2, interrupt_twice(monkeypatch))
    assert train_here(broken) == 143
    assert "twice" in str(end(broken)[1])
    assert [path.name for path in CheckpointStore(broken.checkpoints).all()] == ["it00000005"]
    assert not list(broken.checkpoints.glob(".*"))
    monkeypatch.undo()
    assert train_here(broken, resume=True) == 0
    assert_same_end(alone, broken)


def test_what_a_second_signal_comes_too_late_for_is_recorded(
    new_run: NewRun, train_here: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, save, twice = new_run(), CheckpointStore.save, interrupt_twice(monkeypatch)

    def then_interrupt(store: CheckpointStore, *what: Any) -> Saved:
        saved = save(store, *what)
        if saved.path.name == "it00000010":
            twice()
        return saved

    monkeypatch.setattr(CheckpointStore, "save", then_interrupt)
    assert train_here(run_dir) == 143
    there = [path.name for path in CheckpointStore(run_dir.checkpoints).all()]
    assert there == ["it00000010", "it00000005"]
    assert [Path(str(record["path"])).name for record in records(run_dir, "checkpoint")] == there[::-1]


def test_losing_the_terminal_harms_nothing(trained: Trained, tmp_path: Path) -> None:
    alone = trained()
    other = trained(*strikes(tmp_path, signal.SIGHUP, ("after_backward", 6), ("before_save_checkpoint", 10)))
    assert_same_end(alone, other)


def test_what_stands_after_an_error_is_saved_apart(new_run: NewRun, train_here: Train) -> None:
    points = 'hooks.checkpoint.points=[{at="after_train_iter", every=3}, "after_val", "on_exception"]'
    run_dir = new_run(points, 'hooks.raises={use="./watchers.py:Raises", args={at=7, megabytes=2}}')
    for attempt in range(2):
        assert train_here(run_dir, resume=attempt > 0) == 1
        (apart,) = list_checkpoints(run_dir.checkpoints, EXCEPTION)
        assert damage(apart) == ""
        assert read_manifest(apart)["exception"].startswith("RuntimeError: ")
        assert (apart / MANIFEST).stat().st_size < 2 * TEXT_LIMIT
        assert "model" in read(apart, torch.device("cpu"))
        assert any(apart.name in text for text in messages(run_dir))
    assert any("resumed from it00000006" in text for text in messages(run_dir))


def test_a_state_that_cannot_be_saved_after_an_error_does_not_hide_the_error(trained: Trained) -> None:
    raises = 'hooks.raises={use="./watchers.py:Raises", args={at=2}}'
    unstorable = 'hooks.fails={use="./watchers.py:Fails", args={place="state_dict"}}'
    run_dir = trained("hooks.checkpoint.points=['on_exception']", raises, unstorable, code=1)
    assert "as told" in str(end(run_dir)[1])
    (failure,) = [text for text in messages(run_dir) if "no checkpoint could be saved after the error" in text]
    assert "['fails']['kinds'] is a builtins.frozenset" in failure


def test_what_is_swapped_for_a_save_is_back_before_the_next_iteration(trained: Trained) -> None:
    alone, swapped = trained(EVERY_3), trained(EVERY_3, 'hooks.swaps={use="./savers.py:Swaps"}')
    states = [read(CheckpointStore(run.checkpoints).names()["last"], torch.device("cpu")) for run in (alone, swapped)]
    assert states[0]["model"]["head.weight"].any()
    assert not states[1]["model"]["head.weight"].any()
    assert torch.equal(states[0]["model"]["head.bias"], states[1]["model"]["head.bias"]), "it was trained as ever"


def test_a_copy_shares_nothing_with_the_run_and_inside_what_is_shared_there() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    image = torch.randn(1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    state = {"model": net.state_dict(), "again": dict(net.state_dict()), "image": image, "list": [(1, [2])]}
    copied = HostCopy(reuse=True).of(state)
    with torch.no_grad():
        net[0].weight.zero_()
    state["list"][0][1].append(3)
    assert copied["model"]["0.weight"].any()
    assert copied["model"]["0.weight"].data_ptr() == copied["again"]["0.weight"].data_ptr()
    assert copied["model"]._metadata == net.state_dict()._metadata  # type: ignore[attr-defined]
    assert copied["image"].stride() == image.stride()
    assert copied["list"] == [(1, [2])]
    sparse = torch.eye(2).to_sparse()
    copied = HostCopy(reuse=True).of({"sparse": sparse})["sparse"]
    sparse._values().zero_()
    assert torch.equal(copied.to_dense(), torch.eye(2))


@pytest.mark.parametrize("failing", [False, True])
def test_whoever_asked_is_woken_once_the_write_has_ended(tmp_path: Path, failing: bool) -> None:
    def write() -> Saved:
        if failing:
            raise OSError("No space left on device")
        return Saved(tmp_path, 1)

    saving, ended = Saving({}, ["last"], {"it": 3}, 0.0), list[bool]()
    begin(saving, write, lambda: ended.append(saving.ended))
    assert isinstance(saving.result(), NotSavedError if failing else Saved)
    assert saving.thread is not None
    saving.thread.join(LIMIT)
    assert ended == [True]
    assert saving.thread.daemon, "a process need not wait for it"


def of_two_ranks(saving: Saving | None, texts: list[str]) -> CheckpointManager:
    """Return what one of two ranks has when it has raised: nothing but itself, and what it says."""
    made = object.__new__(CheckpointManager)
    recorder = SimpleNamespace(say=lambda text, _: texts.append(text))
    vars(made).update(_ranks=Ranks(world=2), _saving=saving, _log=recorder)
    return made


@pytest.mark.parametrize("write", ["none", "of another rank", "well", "failing"])
def test_a_rank_that_has_raised_waits_for_its_own_write(tmp_path: Path, write: str) -> None:
    texts = list[str]()

    def written() -> Saved:
        if write == "failing":
            raise OSError("No space left on device")
        return Saved(tmp_path, 1)

    saving = None if write == "none" else Saving({}, ["last"], {"it": 3}, 0.0)
    if saving and write in ("well", "failing"):
        begin(saving, written, lambda: None)
    of_two_ranks(saving, texts).report_if_possible()
    assert saving is None or saving.ended == (saving.thread is not None)
    why = "no checkpoint could be saved after the error: "
    failed = [f"{why}the checkpoint of iteration 3 could not be saved: No space left on device"]
    assert texts == failed * (write == "failing")
    texts.clear()
    of_two_ranks(None, texts).save_after_error(RuntimeError("as told"))
    assert texts == [f"{why}that takes all ranks, and this one has raised"]


def test_a_copy_is_made_where_the_last_one_was() -> None:
    net, copy = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 3)), HostCopy(reuse=True)
    places = [
        {tensor.data_ptr() for tensor in copy.of({"model": net.state_dict()})["model"].values()} for _ in range(3)
    ]
    assert len(places[0]) == 6
    assert places[0] == places[1] == places[2]
    net[0].weight.data = torch.ones(3, 2).T
    other = copy.of({"model": net.state_dict(), "more": torch.ones(2, 2)})
    assert_same(other["model"], net.state_dict())
    assert len({tensor.data_ptr() for tensor in [*other["model"].values(), other["more"]]}) == 7


def test_who_is_given_the_copy_may_keep_it(trained: Trained, tmp_path: Path) -> None:
    other = f'hooks.told={{use="./savers.py:Told", args={{path="{tmp_path / "told"}"}}}}'
    run_dir = trained(EVERY_3, 'hooks.keeps={use="./savers.py:Keeps"}', other, "hooks.checkpoint.args.keep=9")
    assert any("all are as they were written" in text for text in messages(run_dir))


def test_what_fires_around_a_save_is_what_the_plan_says(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "told"
    overrides = ["run.max_epochs=1"]
    for name, more in (("w", ""), ("s", ', before=["w"]')):
        overrides.append(f'hooks.{name}={{use="./savers.py:Told", args={{path="{out}"}}{more}}}')
    run_dir = trained(*overrides)
    plan = Plan.from_json(json.loads(run_dir.plan.read_text()))
    words = {
        ("around_save_checkpoint", "enter"): "around enters",
        ("around_save_checkpoint", "exit"): "around leaves",
        ("before_save_checkpoint", "whole"): "before",
        ("after_copy_checkpoint", "whole"): "copied",
        ("after_save_checkpoint", "whole"): "saved",
    }
    planned = [f"{b.hook} {words[b.method, b.half]}" for b in plan.bindings if b.hook in ("w", "s")]
    assert planned == [
        "s around enters",
        "s before",
        "w around enters",
        "w before",
        "s copied",
        "w around leaves",
        "s around leaves",
        "w copied",
        "s saved",
        "w saved",
    ]
    assert out.read_text().splitlines()[: len(planned)] == planned
