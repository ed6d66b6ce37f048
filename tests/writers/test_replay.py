"""What a killed process has left unwritten, a resumed one writes from the event log: nothing twice, nothing backwards.

A killed attempt is what it leaves behind: the event log, how far the writer had come, and what the writer holds.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hookflow.events.log import Appender
from hookflow.events.rundir import RunDir
from hookflow.runner.logging.writers import CONFIGURED, PROGRESS, History, WriterCall, WriterProgress, WriterThread
from tests.own_writers import Notes

Held = tuple[str, int, Any]
"""What a writer holds of a call: the name, the iteration, the value."""

CONFIG = {"run": {"name": "toy", "max_epochs": 1}}


class Holds(Notes):
    """Holds scalars and texts; one that forgets drops those after the iteration at which a run is resumed."""

    def __init__(self, held: list[Held], forgets: bool) -> None:
        self.held, self.forgets = held, forgets
        self.methods: list[str] = []

    def note(self, method: str, *args: Any) -> None:
        self.methods.append(method)
        if method in ("scalar", "text"):
            self.held.append((args[0], args[1], args[2]))

    def resume_at(self, iteration: int) -> bool:
        if self.forgets:
            self.held[:] = [held for held in self.held if held[1] <= iteration]
        return self.forgets


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir.create(tmp_path, "toy")
    (run.writers / "own").mkdir(parents=True)
    return run


def log(run: RunDir, *records: tuple[str, int, Any]) -> None:
    """Append attempts ("run", where it begins), losses and texts to the event log."""
    fields = {"run": lambda value: {}, "loss": lambda value: {"v": {"loss": value}}}
    other = lambda value: {"name": "sample", "text": value, "hook": ""}  # noqa: E731
    kinds = {"run": "run", "loss": "scalars"}
    Appender(run.events).append(
        {"k": kinds.get(kind, kind), "t": 0.0, "it": it, "ep": 0, **fields.get(kind, other)(value)}
        for kind, it, value in records
    )


def losses(begin: int, end: int, value: float = 0.0) -> list[tuple[str, int, Any]]:
    return [("loss", it, value) for it in range(begin, end + 1)]


def resume(
    run: RunDir, iteration: int, writer: Holds, *left: int, gives: tuple[int, ...] = (), new: bool = False
) -> None:
    """Resume at an iteration: `left` is how far the writer had come, `gives` the iterations that are logged then."""
    folder = run.writers / "own"
    if not new:
        (folder / CONFIGURED).touch()
    if left:
        WriterProgress(folder / PROGRESS, 10_000).save(begun=left[0], safe=left[1])
    recorder: Any = SimpleNamespace(say=pytest.fail, failure=pytest.fail)
    history = History(run, iteration)
    thread = WriterThread("own", writer, CONFIG, folder, recorder, history)
    thread.start()
    log(run, ("run", iteration, None), *(("loss", it, 9.0) for it in gives))
    for number, it in enumerate(gives, history.calls):
        thread.give(number, WriterCall("write_scalar", ("scalar", "loss"), it, ("loss", 9.0, it, 0, 0.0)))
    thread.finish()
    thread.join(60)
    assert not thread.is_alive()
    assert not thread.shortcomings()


def its(writer: Holds, name: str = "loss") -> list[int]:
    return [it for of, it, _ in writer.held if of == name]


@pytest.mark.parametrize(("forgets", "kept"), [(True, 4), (True, 6), (False, 5), (False, 6)])
def test_one_that_cannot_forget_lacks_at_most_the_call_that_was_being_made(
    run: RunDir, forgets: bool, kept: int
) -> None:
    log(run, ("run", 0, None), *losses(1, 8), ("run", 8, None), *losses(9, 9))
    writer = Holds([("loss", it, 0.0) for it in range(1, kept + 1)], forgets)
    resume(run, 8, writer, 6, 4, gives=(9, 10))
    wanted = [("loss", it, 9.0 if it > 8 else 0.0) for it in range(1, 11) if forgets or it <= kept or it > 6]
    assert writer.held == wanted


@pytest.mark.parametrize("forgets", [True, False])
def test_what_two_attempts_have_logged_of_one_iteration_is_written_once(run: RunDir, forgets: bool) -> None:
    """As the metrics of a validation after which the checkpoint was saved, that the resumed run did again."""
    log(run, ("run", 0, None), *losses(0, 3, 0.1), ("run", 3, None), ("loss", 3, 0.2), ("run", 3, None))
    writer = Holds([("loss", 0, 0.1)], forgets)
    resume(run, 3, writer, 1, 1, gives=(3, 4))
    assert writer.held == [*(("loss", it, 0.1) for it in range(4)), ("loss", 4, 9.0)]


@pytest.mark.parametrize("forgets", [True, False])
def test_what_a_later_attempt_has_trained_again_does_not_stand(run: RunDir, forgets: bool) -> None:
    log(run, ("run", 0, None), *losses(1, 9, 0.1), ("run", 4, None), *losses(5, 7, 0.2))
    writer = Holds([("loss", it, 0.1) for it in range(1, 8)], forgets)
    resume(run, 6, writer, 7, 7, gives=(7, 8))
    values = [0.1] * 4 + ([0.2, 0.2, 9.0] if forgets else [0.1, 0.1, 0.1]) + [9.0]
    assert writer.held == [("loss", it, value) for it, value in zip(range(1, 9), values, strict=True)]


def test_what_was_logged_late_of_an_early_iteration_is_made_up_for_too(run: RunDir) -> None:
    log(run, ("run", 0, None), *losses(1, 5), ("text", 3, "late"), *losses(6, 7))
    writer = Holds([("loss", it, 0.0) for it in range(1, 6)], forgets=True)
    resume(run, 7, writer, 5, 5)
    assert its(writer) == [1, 2, 3, 4, 5, 6, 7]
    assert its(writer, "sample") == [3]


@pytest.mark.parametrize("forgets", [True, False])
def test_what_was_logged_again_in_an_iteration_is_made_up_for_by_its_last_value(run: RunDir, forgets: bool) -> None:
    again = ("loss", 2, 0.1), ("text", 2, "between"), ("loss", 2, 0.2)
    log(run, ("run", 0, None), ("loss", 1, 0.1), *again, ("loss", 3, 0.1), ("loss", 3, 0.2))
    writer = Holds([("loss", 1, 0.1), ("sample", 2, "between")], forgets)
    resume(run, 3, writer, 3, 1, gives=(4,))
    values = [value for name, _, value in writer.held if name == "loss"]
    assert (its(writer), values, its(writer, "sample")) == ([1, 2, 3, 4], [0.1, 0.2, 0.2, 9.0], [2])


@pytest.mark.parametrize("forgets", [True, False])
def test_what_was_lost_and_is_trained_again_is_written_whatever_happens_then(run: RunDir, forgets: bool) -> None:
    """Of 1 to 5 the writer had 2 at the first kill, and of what was trained again 3 at the second."""
    log(run, ("run", 0, None), *losses(1, 5))
    writer = Holds([("loss", it, 0.0) for it in range(1, 3)], forgets)
    resume(run, 1, writer, 2, 2, gives=(2, 3))
    assert its(writer) == [1, 2, 3]
    resume(run, 3, writer, gives=(4, 5, 6))
    assert its(writer) == [1, 2, 3, 4, 5, 6]


def test_a_run_without_a_note_of_how_far_the_writer_had_come_makes_up_for_nothing(run: RunDir) -> None:
    log(run, ("run", 0, None), *losses(1, 5))
    writer = Holds([("loss", 1, 0.0)], forgets=False)
    resume(run, 4, writer, gives=(5, 6))
    assert its(writer) == [1, 6]


def test_a_writer_that_is_new_in_a_resumed_run_is_given_what_is_trained_from_there_on(run: RunDir) -> None:
    log(run, ("run", 0, None), *losses(1, 5))
    writer = Holds([], forgets=False)
    resume(run, 3, writer, gives=(4, 5, 6), new=True)
    assert (its(writer), writer.methods.count("config")) == ([4, 5, 6], 1)
    assert (run.writers / "own" / CONFIGURED).exists()
