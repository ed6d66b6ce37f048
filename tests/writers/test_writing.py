"""Writers of a run: what they are given and by whom, also after a kill;
nothing a writer does reaches the training.
"""

import csv
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hookflow
from hookflow.events.log import LogAppender
from hookflow.events.rundir import RunDir
from hookflow.runner.logging import recorder, writers
from hookflow.runner.logging.recorder import EventRecorder
from hookflow.runner.logging.writers import (
    CONFIGURED,
    PROGRESS,
    EarlierLogs,
    WriterCall,
    WriterProgress,
    WriterThread,
    iter_calls,
)
from hookflow.service.runs import scalars
from tests.conftest import (
    TESTS,
    TOY,
    NewRun,
    Train,
    Trained,
    hookflow_here,
    messages,
    reason,
    records,
    strikes,
    wait_for,
)
from tests.distributed.several import carry_out
from tests.support.limits import LIMIT
from tests.support.own_writers import Blocks, Notes
from tests.support.processes import Training

LOGS = 'hooks.logs={use="./logging_hooks.py:Logs"}'
SHORT = "run.max_epochs=1"


class Fails(Notes):
    """Raises at scalars, the first `times` times."""

    def __init__(self, file: str, times: int) -> None:
        super().__init__(file)
        self.times = times

    def write_scalar(
        self, name: str, value: float, iteration: int, epoch: int, time: float
    ) -> None:
        super().write_scalar(name, value, iteration, epoch, time)
        self.times -= 1
        if self.times >= 0:
            raise ConnectionError("nobody answers")


class Steps:
    """A writer with one verb, which names what it wants of it; derived from nothing."""

    def __init__(self, dir: Path) -> None:  # noqa: A002
        self.file = dir / "steps"

    def write_scalar(self, name: str, value: float, step: int) -> None:
        with self.file.open("a") as file:
            file.write(f"{step} {name} {value}\n")


class Pictures(Notes):
    """Gives its images other arguments than its base class, and its figures none of their own."""

    def write_image(self, step: int, file: Path, quality: int = 3) -> None:  # type: ignore[override]
        self.note("image", file.name, step, quality)


class Asks:
    """Asks for what is not offered."""

    def write_text(self, name: str, txt: str) -> None: ...


class Ends:
    """Writes down how each attempt has ended, and that it was closed."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def write_scalar(self, name: str, value: float) -> None: ...

    def end(self, status: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{status}\n")

    def close(self) -> None:
        with self.file.open("a") as file:
            file.write("closed\n")


class NoWriter:
    """Is none."""

    def write(self) -> None: ...


class LogsTwice:
    """Logs one name again in the same iteration, also in the call that logs it."""

    def after_train_iter(self, run: Any) -> None:
        run.log("twice", run.iter)
        run.log_text("between", f"iteration {run.iter}")
        run.log("once", -run.iter)
        run.log("twice", 10 * run.iter)

    def on_log(self, run: Any, name: str, value: Any) -> None:
        if name == "loss":
            run.log(name, 7.0)


class LogsOnce:
    """Logs in the first iteration, and waits in the third until a file says that it was written."""

    def __init__(self, file: str, said: str = '"once"') -> None:
        self.file, self.said = Path(file), said

    def after_train_iter(self, run: Any) -> None:
        if run.iter == 1:
            run.log("once", 1.0)
        until = time.monotonic() + LIMIT
        while run.iter == 3 and self.said not in self.file.read_text():
            assert time.monotonic() < until, "it was never written"
            time.sleep(0.01)


class Watches:
    """Writes down the files whose functions the training thread calls between
    the first iteration and the last.
    """

    phase = "first"

    def __init__(self, file: str) -> None:
        self.file = Path(file)
        self.called: set[str] = set()

    def before_train(self) -> None:
        sys.setprofile(lambda frame, event, argument: self.called.add(frame.f_code.co_filename))

    def after_train(self) -> None:
        sys.setprofile(None)
        self.file.write_text("\n".join(sorted(self.called)))


def own(kind: str, file: Path, **args: Any) -> str:
    given = "".join(f", {name}={json.dumps(value)}" for name, value in args.items())
    return f'writers.own={{use="{__name__}:{kind}", args={{file="{file}"{given}}}}}'


def notes(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def kinds(file: Path) -> list[str]:
    return [method for method, *_ in notes(file)]


def test_a_writer_is_given_all_that_is_logged_and_closed_once(
    trained: Trained, tmp_path: Path
) -> None:
    run = trained(own("Notes", tmp_path / "notes"), LOGS)
    made, config, *calls, closed = notes(tmp_path / "notes")
    assert made == ["made", "MainThread"]
    assert {thread for _, thread, *_ in (config, *calls, closed)} == {"hookflow-writer-own"}
    assert config[2:] == ["toy", 3]
    assert closed[0] == "close"
    written = [(call[3], call[2], call[4]) for call in calls if call[0] == "scalar"]
    assert sorted(written) == sorted((row.iter, row.name, row.value) for row in scalars(run))
    assert {"loss", "val/accuracy"} <= {name for _, name, _ in written}
    image = next(call for call in calls if call[0] == "image")
    assert image[2:] == [
        "val/sample",
        1,
        str(run.path / "images/val/sample/it00000001.png"),
        "at 1",
    ]
    assert [call[3] for call in calls if call[0] == "text"] == list(range(1, 16))
    assert next(call for call in calls if call[0] == "histogram")[4:] == [[0.0, 1.0, 2.0], [1, 3]]
    assert messages(run, "warn") == []


def test_a_class_with_one_verb_is_a_writer_and_is_given_what_it_names(
    trained: Trained, tmp_path: Path
) -> None:
    run = trained(
        'writers.one={use="tests.writers.test_writing:Steps"}',
        own("Pictures", tmp_path / "notes"),
        LOGS,
    )
    steps = (run.writers / "one/steps").read_text().splitlines()
    assert sorted(steps) == sorted(f"{row.iter} {row.name} {row.value}" for row in scalars(run))
    images = [call[2:] for call in notes(tmp_path / "notes") if call[0] == "image"]
    logged = records(run, "image")
    assert images == [[Path(str(image["path"])).name, image["it"], 3] for image in logged]
    assert messages(run, "warn") == []


def test_the_training_thread_never_calls_what_writes(trained: Trained, tmp_path: Path) -> None:
    watches = (
        f'hooks.watches={{use="tests.writers.test_writing:Watches",'
        f' args={{file="{tmp_path / "called"}"}}}}'
    )
    trained(own("Notes", tmp_path / "notes"), LOGS, watches)
    called = {
        "/".join(Path(file).parts[-2:]) for file in (tmp_path / "called").read_text().splitlines()
    }
    assert {
        "iteration/run.py",
        "logging/media.py",
        "model/task.py",
    } <= called, "what it does call is seen"
    writes = (
        "tests/support/own_writers.py",
        "writers.py",
        "logging/writers.py",
        "hookflow/png.py",
    )
    assert called.isdisjoint(writes)


def test_what_is_logged_again_in_an_iteration_is_one_row_with_the_last_value(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the event log is written in between: by the training alone,
    as the recorder's thread rests.
    """
    monkeypatch.setattr(recorder, "POLL_PERIOD_SECONDS", LIMIT)
    real = EventRecorder.scalar

    def scalar_and_flush(self: EventRecorder, *number: Any) -> None:
        real(self, *number)
        self.flush()

    monkeypatch.setattr(EventRecorder, "scalar", scalar_and_flush)
    twice = 'hooks.twice={use="tests.writers.test_writing:LogsTwice"}'
    run = trained(
        own("Notes", tmp_path / "notes"),
        'writers.csv={use="csv"}',
        twice,
        'hooks.log={use="log"}',
        SHORT,
    )
    assert len([r for r in records(run, "scalars") if "twice" in r["v"]]) == 10, (
        "twice in each of five iterations"
    )  # type: ignore[operator]
    wanted = sorted((row.iter, row.name, row.value) for row in scalars(run))
    assert {value for _, name, value in wanted if name == "twice"} == {10.0, 20.0, 30.0, 40.0, 50.0}
    assert {value for _, name, value in wanted if name == "loss"} == {7.0}
    calls = notes(tmp_path / "notes")
    assert sorted((call[3], call[2], call[4]) for call in calls if call[0] == "scalar") == wanted
    assert [call[3] for call in calls if call[0] == "text"] == [1, 2, 3, 4, 5]
    with (run.writers / "csv/scalars.csv").open(newline="") as table:
        rows = [
            (int(row["iteration"]), row["name"], float(row["value"]))
            for row in csv.DictReader(table)
        ]
    assert sorted(rows) == wanted
    assert messages(run, "warn") == []


def test_a_value_is_written_once_its_iteration_is_over(trained: Trained, tmp_path: Path) -> None:
    """Whether or not anything else is logged."""
    file = tmp_path / "notes"
    once = f'hooks.once={{use="tests.writers.test_writing:LogsOnce", args={{file="{file}"}}}}'
    trained(own("Notes", file), once, "hooks.log.enabled=false", SHORT)


def test_the_training_comes_to_its_end_beside_one_that_blocks_all_the_while(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nothing of the training waits for it, whatever is logged; only the end does,
    for as long as is set.
    """
    released = threading.Event()
    monkeypatch.setattr(writers, "MAX_QUEUED_CALLS", 7)
    monkeypatch.setattr(writers, "GRACE", 0.1)
    monkeypatch.setattr(writers, "CLOSING", 0.1)
    monkeypatch.setattr("tests.support.own_writers.Blocks.released", released)
    blocks = own("Blocks", tmp_path / "notes").replace(__name__, Blocks.__module__)
    run = trained(blocks, LOGS)
    assert kinds(tmp_path / "notes") == [
        "made",
        "config",
        "scalar",
    ], "it has not come back from its first call"
    end = records(run, "end")[-1]
    assert (end["it"], end["status"]) == (15, "finished")
    logged = sum(1 for record in records(run) for _ in iter_calls(record, run.path))  # type: ignore[arg-type]
    message = (
        rf"has not written {logged} of {logged} values \((\d+) dropped, as it was too slow; (\d+)"
        r" left at the end\)"
    )
    result = re.search(message + " and has not closed$", messages(run, "warn")[-1])
    assert result, messages(run, "warn")
    assert any('"own" is slower than the run logs' in text for text in messages(run, "warn"))
    dropped, left = map(int, result.groups())
    assert dropped + left == logged
    assert left in (7, 8), "as many as may wait, and that which it is in"
    released.set()
    wait_for(lambda: kinds(tmp_path / "notes")[-1] == "close")


def test_a_signal_ends_the_wait_for_a_writer_that_hangs(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(writers, "GRACE", LIMIT)
    monkeypatch.setattr(writers, "CLOSING", LIMIT)
    monkeypatch.setattr("tests.support.own_writers.Blocks.released", released)
    finish = WriterThread.finish

    def press_while_it_waits(thread: WriterThread) -> None:
        finish(thread)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(WriterThread, "finish", press_while_it_waits)
    run = trained(
        own("Blocks", tmp_path / "notes").replace(__name__, Blocks.__module__),
        LOGS,
        SHORT,
    )
    assert records(run, "end")[-1]["status"] == "finished"
    assert "has not closed" in messages(run, "warn")[-1]
    released.set()
    wait_for(lambda: kinds(tmp_path / "notes")[-1] == "close")


def test_an_error_is_told_once_and_loses_one_value(trained: Trained, tmp_path: Path) -> None:
    run = trained(own("Fails", tmp_path / "notes", times=3))
    (error,) = records(run, "error")
    assert (error["type"], error["text"], error["action"]) == (
        "ConnectionError",
        "nobody answers",
        "ignore",
    )
    assert 'in write_scalar of the writer "own"' in str(error["traceback"])
    first, last = [text for text in messages(run, "warn") if 'the writer "own"' in text]
    assert first.startswith('the writer "own" raised in write_scalar')
    assert last.endswith(f" 3 of {len(scalars(run))} values (3 failed)")


def test_one_that_always_raises_is_switched_off_and_closed(
    trained: Trained, tmp_path: Path
) -> None:
    run = trained(own("Fails", tmp_path / "notes", times=10_000))
    assert kinds(tmp_path / "notes") == ["made", "config", *10 * ["scalar"], "close"]
    assert any("raised 10 times in a row" in text for text in messages(run, "warn"))
    assert re.search(r"\(10 failed; \d+ given when ", messages(run, "warn")[-1])
    assert len(records(run, "error")) == 1


@pytest.mark.parametrize(
    ("code", "status"), [(0, "finished"), (0, "stopped"), (1, "failed"), (143, "interrupted")]
)
def test_it_is_told_how_the_attempt_has_ended(
    code: int, status: str, trained: Trained, tmp_path: Path
) -> None:
    """MLflow would have it as finished otherwise: as mlflow/mlflow#5963 and Lightning#10397."""
    ends: tuple[str, ...] = ()
    if status == "failed":
        ends = ('hooks.bad={use="./common_hooks.py:Raises"}',)
    elif status == "interrupted":
        ends = (*strikes(tmp_path, signal.SIGTERM, ("after_train_iter", 3)),)
    elif status == "stopped":
        ends = ('hooks.limit={use="time_limit", args={limit="0.001s"}}',)
    run = trained(own("Ends", tmp_path / "ends"), *ends, code=code)
    assert records(run, "end")[-1]["status"] == status
    assert (tmp_path / "ends").read_text().split() == [status, "closed"]


@pytest.mark.parametrize("code", [1, 143])
def test_it_is_closed_however_the_run_ends(code: int, trained: Trained, tmp_path: Path) -> None:
    signalled = strikes(tmp_path, signal.SIGTERM, ("after_train_iter", 3))
    ends = ['hooks.bad={use="./common_hooks.py:Raises"}'] if code == 1 else signalled
    trained(own("Notes", tmp_path / "notes"), *ends, code=code)
    assert kinds(tmp_path / "notes").index("close") == len(notes(tmp_path / "notes")) - 1


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            "tests.writers.test_writing:Asks",
            'Asks.write_text asks for "txt", which is not offered (did you mean "text"?)',
        ),
        (
            "tests.writers.test_writing:NoWriter",
            "write_histogram, write_config, and NoWriter has none",
        ),
        ("tensorbord", 'there is nothing called "tensorbord"'),
        ("csv", 'writers.own takes no argument "fil"'),
    ],
)
def test_what_is_no_writer_ends_the_run_before_it_trains(
    use: str, message: str, trained: Trained
) -> None:
    args = ', args={fil="x"}' if use == "csv" else ""
    run = trained(f'writers.own={{use="{use}"{args}}}', code=2)
    assert message in reason(run)
    assert "run" not in {record["k"] for record in records(run)}


def test_a_writer_that_cannot_forget_gets_no_step_again_or_back_after_a_kill(
    new_run: NewRun, tmp_path: Path
) -> None:
    every = 'hooks.checkpoint.points=[{at="after_train_iter", every=3}, "after_val"]'
    kills = strikes(tmp_path, signal.SIGKILL, ("after_val", 10), ("after_train_iter", 14))
    file = tmp_path / "notes"
    run = new_run(own("Notes", file), LOGS, every, *kills)
    assert [Training(run, resume=resume).wait() for resume in (False, True, True)] == [-9, -9, 0]
    assert kinds(file).count("config") == 1, "once in the whole run"
    assert kinds(file).count("close") == 1
    written: dict[tuple[str, str], list[int]] = {}
    for method, _, *args in notes(file):
        if method in ("scalar", "image", "text", "histogram"):
            written.setdefault((method, args[0]), []).append(args[1])
    for series, its in written.items():
        assert its == sorted(set(its)), series
    assert written["scalar", "val/accuracy"][-1] == 15
    logged = {(row.name, row.iter) for row in scalars(run)}
    result = {(name, it) for (kind, name), its in written.items() if kind == "scalar" for it in its}
    assert len(logged - result) <= 2, (
        "one call at most is lost in each kill: that which was being made"
    )


def test_of_two_ranks_the_first_alone_writes(new_run: NewRun, tmp_path: Path) -> None:
    writer = own("Notes", tmp_path / "notes")
    run = new_run(
        writer,
        'hooks.logs={use="tests.support.logging_hooks:Logs"}',
        pipeline=TESTS / "distributed" / "clouds.toml",
    )
    assert carry_out(run, 2) == [0, 0]
    assert kinds(tmp_path / "notes").count("made") == kinds(tmp_path / "notes").count("close") == 1
    assert (
        len(list((run.path / "images/val/sample").glob("*.rank1.png")))
        == len(records(run, "image"))
        > 0
    )


def test_a_class_or_an_object_from_python(tmp_path: Path) -> None:
    class Mine(Notes):
        """A class of the program."""

    for file in (tmp_path / "class", tmp_path / "object"):
        own = (
            {"use": Mine, "args": {"file": str(file)}}
            if file.name == "class"
            else {"use": Mine(str(file))}
        )
        base = {"threads": 1, "max_epochs": 1, "dir": str(tmp_path / "runs")}
        assert (
            hookflow.train({"extends": str(TOY), "run": base, "writers": {"own": own}}).status
            == "finished"
        )
        first, *others, last = kinds(file)
        assert (first, last, "scalar" in others) == ("made", "close", True)


def test_the_example_works_and_a_dry_run_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (TESTS.parent / "docs" / "how-to" / "writers.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n# mine\.py\n(.*?)```", page, re.DOTALL)
    (table,) = re.findall(r"```toml\n(\[writers\.best\]\n.*?)```", page, re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    file = tmp_path / "mine.toml"
    file.write_text(
        f'extends = "{TOY}"\n[run]\nmax_epochs = 1\nthreads = 1\ndir ='
        f' "{tmp_path / "runs"}"\n{table}'
    )
    monkeypatch.chdir(tmp_path)
    assert hookflow_here("run", str(file), "--dry-run", cwd=tmp_path).returncode == 0
    assert not list(tmp_path.rglob("best.json"))
    run = hookflow.train(file)
    best = json.loads((run.dir / "writers/best/best.json").read_text())
    assert best["best"]["loss"] == min(run.scalars("loss")["value"])


Held = tuple[str, int, Any]
"""What a writer holds of a call: the name, the iteration, the value."""

CONFIG = {"run": {"name": "toy", "max_epochs": 1}}


class Holds(Notes):
    """Holds scalars and texts; one that forgets drops those after the
    iteration at which a run is resumed.
    """

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
    LogAppender(run.events).append(
        {"k": kinds.get(kind, kind), "t": 0.0, "it": it, "ep": 0, **fields.get(kind, other)(value)}
        for kind, it, value in records
    )


def losses(begin: int, end: int, value: float = 0.0) -> list[tuple[str, int, Any]]:
    return [("loss", it, value) for it in range(begin, end + 1)]


def resume(
    run: RunDir,
    iteration: int,
    writer: Holds,
    *left: int,
    gives: tuple[int, ...] = (),
    new: bool = False,
) -> None:
    """Resume at an iteration: `left` is how far the writer had come,
    `gives` the iterations that are logged then.
    """
    folder = run.writers / "own"
    if not new:
        (folder / CONFIGURED).touch()
    if left:
        WriterProgress(folder / PROGRESS, 10_000).save(begun=left[0], safe=left[1])
    recorder: Any = SimpleNamespace(say=pytest.fail, failure=pytest.fail)
    history = EarlierLogs(run, iteration)
    thread = WriterThread("own", writer, CONFIG, folder, recorder, history)
    thread.start()
    log(run, ("run", iteration, None), *(("loss", it, 9.0) for it in gives))
    for number, it in enumerate(gives, history.calls):
        thread.queue_call(
            number, WriterCall("write_scalar", ("scalar", "loss"), it, ("loss", 9.0, it, 0, 0.0))
        )
    thread.finish()
    thread.join(60)
    assert not thread.is_alive()
    assert not thread.describe_shortcomings()


def its(writer: Holds, name: str = "loss") -> list[int]:
    return [it for of, it, _ in writer.held if of == name]


@pytest.mark.parametrize(("forgets", "kept"), [(True, 4), (True, 6), (False, 5), (False, 6)])
def test_one_that_cannot_forget_lacks_at_most_the_call_under_way(
    run: RunDir, forgets: bool, kept: int
) -> None:
    log(run, ("run", 0, None), *losses(1, 8), ("run", 8, None), *losses(9, 9))
    writer = Holds([("loss", it, 0.0) for it in range(1, kept + 1)], forgets)
    resume(run, 8, writer, 6, 4, gives=(9, 10))
    wanted = [
        ("loss", it, 9.0 if it > 8 else 0.0)
        for it in range(1, 11)
        if forgets or it <= kept or it > 6
    ]
    assert writer.held == wanted


@pytest.mark.parametrize("forgets", [True, False])
def test_what_two_attempts_have_logged_of_one_iteration_is_written_once(
    run: RunDir, forgets: bool
) -> None:
    """As the metrics of a validation after which the checkpoint was saved,
    that the resumed run did again.
    """
    log(
        run,
        ("run", 0, None),
        *losses(0, 3, 0.1),
        ("run", 3, None),
        ("loss", 3, 0.2),
        ("run", 3, None),
    )
    writer = Holds([("loss", 0, 0.1)], forgets)
    resume(run, 3, writer, 1, 1, gives=(3, 4))
    assert writer.held == [*(("loss", it, 0.1) for it in range(4)), ("loss", 4, 9.0)]


@pytest.mark.parametrize("forgets", [True, False])
def test_what_a_later_attempt_has_trained_again_does_not_stand(run: RunDir, forgets: bool) -> None:
    log(run, ("run", 0, None), *losses(1, 9, 0.1), ("run", 4, None), *losses(5, 7, 0.2))
    writer = Holds([("loss", it, 0.1) for it in range(1, 8)], forgets)
    resume(run, 6, writer, 7, 7, gives=(7, 8))
    values = [0.1] * 4 + ([0.2, 0.2, 9.0] if forgets else [0.1, 0.1, 0.1]) + [9.0]
    assert writer.held == [
        ("loss", it, value) for it, value in zip(range(1, 9), values, strict=True)
    ]


def test_what_was_logged_late_of_an_early_iteration_is_made_up_for_too(run: RunDir) -> None:
    log(run, ("run", 0, None), *losses(1, 5), ("text", 3, "late"), *losses(6, 7))
    writer = Holds([("loss", it, 0.0) for it in range(1, 6)], forgets=True)
    resume(run, 7, writer, 5, 5)
    assert its(writer) == [1, 2, 3, 4, 5, 6, 7]
    assert its(writer, "sample") == [3]


@pytest.mark.parametrize("forgets", [True, False])
def test_what_was_logged_again_in_an_iteration_is_made_up_for_by_its_last_value(
    run: RunDir, forgets: bool
) -> None:
    again = ("loss", 2, 0.1), ("text", 2, "between"), ("loss", 2, 0.2)
    log(run, ("run", 0, None), ("loss", 1, 0.1), *again, ("loss", 3, 0.1), ("loss", 3, 0.2))
    writer = Holds([("loss", 1, 0.1), ("sample", 2, "between")], forgets)
    resume(run, 3, writer, 3, 1, gives=(4,))
    values = [value for name, _, value in writer.held if name == "loss"]
    assert (its(writer), values, its(writer, "sample")) == ([1, 2, 3, 4], [0.1, 0.2, 0.2, 9.0], [2])


@pytest.mark.parametrize("forgets", [True, False])
def test_what_was_lost_and_is_trained_again_is_written_whatever_happens_then(
    run: RunDir, forgets: bool
) -> None:
    """Of 1 to 5 the writer had 2 at the first kill,
    and of what was trained again 3 at the second.
    """
    log(run, ("run", 0, None), *losses(1, 5))
    writer = Holds([("loss", it, 0.0) for it in range(1, 3)], forgets)
    resume(run, 1, writer, 2, 2, gives=(2, 3))
    assert its(writer) == [1, 2, 3]
    resume(run, 3, writer, gives=(4, 5, 6))
    assert its(writer) == [1, 2, 3, 4, 5, 6]


def test_a_run_without_a_note_of_how_far_the_writer_had_come_makes_up_for_nothing(
    run: RunDir,
) -> None:
    log(run, ("run", 0, None), *losses(1, 5))
    writer = Holds([("loss", 1, 0.0)], forgets=False)
    resume(run, 4, writer, gives=(5, 6))
    assert its(writer) == [1, 6]


def test_a_writer_that_is_new_in_a_resumed_run_is_given_what_is_trained_from_there_on(
    run: RunDir,
) -> None:
    log(run, ("run", 0, None), *losses(1, 5))
    writer = Holds([], forgets=False)
    resume(run, 3, writer, gives=(4, 5, 6), new=True)
    assert (its(writer), writer.methods.count("config")) == ([4, 5, 6], 1)
    assert (run.writers / "own" / CONFIGURED).exists()


class RemovesFolder:
    """Removes the folder of all writers after the first epoch."""

    def after_train_epoch(self, run: Any) -> None:
        if run.epoch == 1:
            shutil.rmtree(run.dir / "writers")


def test_a_removed_folder_is_named_and_a_resume_writes_it_again(
    trained: Trained, train_here: Train, tmp_path: Path
) -> None:
    removes = 'hooks.removes={use="tests.writers.test_writing:RemovesFolder"}'
    cut = strikes(tmp_path, signal.SIGTERM, ("after_train_iter", 8))
    run = trained('writers.csv={use="csv"}', LOGS, removes, *cut, code=143)
    (said,) = [text for text in messages(run, "warn") if "removed" in text]
    assert '"csv"' in said
    assert not run.writers.exists()
    assert train_here(run, resume=True) == 0
    text = (run.writers / "csv" / "scalars.csv").read_text()
    written = [
        (int(row["iteration"]), row["name"], float(row["value"]))
        for row in csv.DictReader(text.splitlines())
    ]
    assert sorted(written) == sorted((row.iter, row.name, row.value) for row in scalars(run))


@pytest.mark.parametrize("forgets", [True, False])
def test_a_writer_whose_folder_was_removed_is_given_all_again_if_it_can_forget(
    run: RunDir, forgets: bool
) -> None:
    log(run, ("run", 0, None), *losses(1, 5))
    writer = Holds([("loss", 1, 0.0)], forgets)
    thread = WriterThread(
        "own",
        writer,
        CONFIG,
        run.writers / "own",
        SimpleNamespace(say=lambda *text: None, failure=pytest.fail),  # type: ignore[arg-type]
        EarlierLogs(run, 3),
        was_removed=True,
    )
    thread.start()
    thread.finish()
    thread.join(60)
    assert its(writer) == ([1, 2, 3] if forgets else [1])
