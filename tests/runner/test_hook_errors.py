"""A hook that raises, anywhere: named, recorded once, printed whole; and what `on_error` makes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from tests.conftest import NewRun, records

Train = Callable[..., int]
TRACER = 'hooks.tracer={use="./watchers.py:Tracer", phase="last", args={file="%s"}}'
PLACES = [
    "before_run",
    "before_train",
    "before_train_epoch",
    "after_forward",
    "before_val",
    "after_val_iter",
    "after_val_epoch",
    "before_save_checkpoint",
    "after_copy_checkpoint",
    "after_save_checkpoint",
    "after_train",
    "after_run",
    "around_val first",
    "around_val second",
    "around_run second",
]


def fails(place: str, on_error: str = "raise", kind: str = "RuntimeError") -> str:
    args = f'{{place="{place}", kind="{kind}"}}'
    return f'hooks.bad={{use="./watchers.py:Fails", args={args}, on_error="{on_error}"}}'


def ended(run_dir: RunDir) -> tuple[object, object]:
    (end,) = records(run_dir, "end")
    return end["status"], end["exit"]


def point_of(place: str) -> str:
    name, _, half = place.partition(" ")
    return name.replace("around", "before" if half == "first" else "after")


@pytest.mark.parametrize("place", PLACES)
def test_it_ends_the_run_unless_told_otherwise(
    new_run: NewRun, train_here: Train, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = new_run(fails(place))
    assert train_here(run_dir) == 1
    (error,) = records(run_dir, "error")
    assert (error["hook"], error["point"], error["action"]) == ("bad", point_of(place), "raise")
    assert ended(run_dir) == ("failed", 1)
    printed = capfd.readouterr().err
    assert printed == error["traceback"], "the whole traceback, once"
    assert f'raised by the hook "bad" at {point_of(place)}' in printed
    assert 'raise KINDS[self.kind]("as told")' in printed


@pytest.mark.parametrize("on_error", ["ignore", "disable"])
@pytest.mark.parametrize("place", PLACES)
def test_it_may_fail_where_it_may_fail(new_run: NewRun, train_here: Train, place: str, on_error: str) -> None:
    run_dir = new_run(fails(place, on_error))
    assert train_here(run_dir) == 0
    errors = records(run_dir, "error")
    assert {(error["hook"], error["point"], error["action"]) for error in errors} == {
        ("bad", point_of(place), on_error)
    }
    if on_error == "disable":
        assert len(errors) == 1
    assert ended(run_dir) == ("finished", 0)
    assert records(run_dir, "checkpoint")[-1]["it"] == 15


@pytest.mark.parametrize("place", ["on_exception", "after_run"])
def test_on_the_way_out_every_hook_has_its_turn(new_run: NewRun, train_here: Train, tmp_path: Path, place: str) -> None:
    trace = tmp_path / "trace"
    first = 'hooks.first={use="./watchers.py:Raises", args={at=3}}'
    run_dir = new_run(first, fails(place), TRACER % trace)
    assert train_here(run_dir) == 1
    assert [(error["hook"], error["action"]) for error in records(run_dir, "error")] == [
        ("first", "raise"),
        ("bad", "ignore"),
    ]
    assert "as told" in str(records(run_dir, "end")[0]["reason"])
    assert [line.split()[0] for line in trace.read_text().splitlines()[-2:]] == ["on_exception", "after_run"]


@pytest.mark.parametrize("on_error", ["raise", "ignore"])
@pytest.mark.parametrize("kind", ["SystemExit", "GeneratorExit"])
def test_what_is_no_exception_ends_the_run_and_names_the_hook(
    new_run: NewRun, train_here: Train, kind: str, on_error: str
) -> None:
    run_dir = new_run(fails("after_forward", on_error, kind))
    assert train_here(run_dir) == 1
    (error,) = records(run_dir, "error")
    assert (error["hook"], error["type"], error["action"]) == ("bad", kind, "raise")


@pytest.mark.parametrize(
    ("kind", "built_in", "raised"),
    [
        ("NoTextError", "RuntimeError", "KeyError"),
        ("NoReprError", "Exception", "ValueError"),
        ("NoNotesError", "LookupError", "OSError"),
        ("OwnNotesError", "UnicodeError", "TypeError"),
        ("NoTextOfExitError", "SystemExit", "KeyError"),
    ],
)
def test_an_exception_that_cannot_be_shown_ends_the_run_like_any_other(
    new_run: NewRun, train_here: Train, capfd: pytest.CaptureFixture[str], kind: str, built_in: str, raised: str
) -> None:
    run_dir = new_run(fails("after_train", kind=kind), "run.max_epochs=1")
    assert train_here(run_dir) == 1
    (error,) = records(run_dir, "error")
    said = f"{kind}, which cannot be shown: that raises {raised}"
    assert (error["hook"], error["point"], error["type"], error["text"]) == ("bad", "after_train", built_in, said)
    printed = capfd.readouterr().err
    assert printed == error["traceback"]
    assert 'raised by the hook "bad" at after_train' in printed
    assert 'raise KINDS[self.kind]("as told")' in printed
    assert records(run_dir, "end")[0]["reason"] == f"{built_in}: {said}"


@pytest.mark.parametrize("on_error", ["ignore", "disable"])
@pytest.mark.parametrize("kind", ["NoTextError", "NoNotesError"])
def test_and_is_passed_over_like_any_other(new_run: NewRun, train_here: Train, kind: str, on_error: str) -> None:
    run_dir = new_run(fails("after_forward", on_error, kind), "run.max_epochs=1")
    assert train_here(run_dir) == 0
    errors = records(run_dir, "error")
    assert {(error["hook"], error["point"], error["action"]) for error in errors} == {
        ("bad", "after_forward", on_error)
    }
    assert len(errors) == (1 if on_error == "disable" else records(run_dir, "end")[0]["it"])


def test_one_of_a_task_ends_the_run_too(new_run: NewRun, train_here: Train) -> None:
    run_dir = new_run('task={use="./watchers.py:BadTask", args={kind="NoTextError"}}', "run.max_epochs=1")
    assert train_here(run_dir) == 1
    (error,) = records(run_dir, "error")
    assert "NoTextError, which cannot be shown" in str(error["text"])


@pytest.mark.parametrize("kind", ["NoText", "NoNotes"])
def test_so_does_one_of_a_constructor(new_run: NewRun, train_here: Train, kind: str) -> None:
    run_dir = new_run(f'hooks.bad={{use="./watchers.py:CannotBeMade", args={{kind="{kind}Error"}}}}')
    assert train_here(run_dir) == 1
    (error,) = records(run_dir, "error")
    assert f"{kind}Error, which cannot be shown" in str(error["text"])


def test_a_users_mistake_found_by_a_hook_stays_one(new_run: NewRun, train_here: Train) -> None:
    """It stands where the hook does in the pipeline, as any other."""
    bad = fails("before_train", kind="UserError")
    run_dir = new_run(bad)
    assert train_here(run_dir) == 2
    (error,) = records(run_dir, "error")
    assert error["hook"] == "bad"
    assert ended(run_dir) == ("failed", 2)
    said = f'--set {bad}: as told\n    raised by the hook "bad" at before_train\n    iteration 0, epoch 0'
    assert records(run_dir, "end")[0]["reason"] == said


def test_a_hook_that_fails_when_a_checkpoint_has_been_read(new_run: NewRun, train_here: Train) -> None:
    run_dir = new_run(fails("after_load_checkpoint"))
    assert train_here(run_dir) == 0
    assert train_here(run_dir, resume=True) == 1
    (refused,) = records(run_dir, "refused")
    assert 'hook "bad" at after_load_checkpoint: ' in str(refused["reason"])
    assert records(run_dir, "error") == [], "the run is as it was"


@pytest.mark.parametrize(
    ("kind", "text"),
    [("RuntimeError", "as told"), ("NoTextError", "NoTextError, which cannot be shown: that raises KeyError")],
)
def test_state_that_a_hook_does_not_take_back_names_the_hook(
    new_run: NewRun, train_here: Train, kind: str, text: str
) -> None:
    run_dir = new_run(fails("load_state_dict", kind=kind), "run.max_epochs=1")
    assert train_here(run_dir) == 0
    assert train_here(run_dir, resume=True) == 1
    (refused,) = records(run_dir, "refused")
    note = 'raised while the hook "bad" was given back its state'
    assert refused["reason"] == f"RuntimeError: {text}; {note}"
    assert note in str(refused["traceback"])


def test_what_is_not_a_hooks_fault_is_recorded_and_printed_once(
    new_run: NewRun, train_here: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = new_run('task={use="./watchers.py:BadTask", args={kind="raises"}}')
    assert train_here(run_dir) == 1
    (error,) = records(run_dir, "error")
    assert (error["hook"], error["point"], error["text"]) == ("", "", "the task cannot")
    assert capfd.readouterr().err == error["traceback"]


def test_a_number_that_is_none_names_the_hook_and_the_name(new_run: NewRun, train_here: Train) -> None:
    bad = 'hooks.bad={use="./watchers.py:logs", points=["after_train_iter"]}'
    run_dir = new_run(bad)
    assert train_here(run_dir) == 1
    (error,) = records(run_dir, "error")
    assert error["hook"] == "bad"
    assert 'run.log("weights", …) needs a number' in str(error["text"])


def test_a_metric_that_is_no_number_is_named(new_run: NewRun, train_here: Train) -> None:
    run_dir = new_run('hooks.bad={use="./watchers.py:measures", points=["after_val_epoch"], args={value=["a"]}}')
    assert train_here(run_dir) == 1
    (error,) = records(run_dir, "error")
    assert 'metrics["mine"] needs a number' in str(error["text"])


def test_state_that_a_checkpoint_cannot_give_back_is_told_when_it_is_saved(new_run: NewRun, train_here: Train) -> None:
    run_dir = new_run(fails("state_dict"))
    assert train_here(run_dir) == 1
    (error,) = records(run_dir, "error")
    assert "checkpoint['hooks']['bad']['kinds'] is a builtins.frozenset" in str(error["text"])
    assert not list(run_dir.checkpoints.glob("*"))
