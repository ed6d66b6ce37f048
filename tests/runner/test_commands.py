"""Commands and signals: accepted or refused with a reason,
obeyed at a boundary while training, and never twice.
"""

import json
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import pytest

from hookflow.events.commands import COMMANDS, send
from hookflow.events.records import Record
from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.manifest import find_damage, parse_iteration, read_manifest
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.logging.recorder import EventRecorder
from hookflow.runner.loop.control import CommandHandler
from hookflow.runner.process.launch import start
from hookflow.runner.process.signals import END_SIGNALS, SignalCollector, handlers_put_back
from tests.conftest import (
    TRACER,
    NewRun,
    Train,
    Trained,
    ended,
    messages,
    reason,
    records,
    strikes,
    wait_for,
)
from tests.runner.same import assert_same_end, curve
from tests.support.overrides import EVERY_3, commander
from tests.support.processes import Training
from tests.support.run_results import answers
from tests.support.toy import Points

KEEP = "hooks.checkpoint.args.keep=20"
OFTEN = 'hooks.checkpoint.points=[{at="after_train_iter", every=4}, "after_val"]'


EXAMPLES: dict[str, str] = {
    "off": "off ema",
    "on": "on ema",
    "set": "set clip.max_norm=0.5",
    "trace": "trace 2",
}
PAUSED = {
    "pause": ["pause", "resume"],
    "resume": ["pause", "resume"],
    "step": ["pause", "step", "resume"],
}


def endless(mark: str) -> Points:
    """Make a mark, and then no data for a very long time."""
    Path(mark).touch()
    time.sleep(3600)
    raise AssertionError("nobody has ended this")


def log_iter(run: Any) -> None:
    run.log("tenth", run.iter)


class Networks:
    """Records how many networks of the run's attempts are alive when one begins."""

    alive: ClassVar[WeakKeyDictionary[Any, Path]] = WeakKeyDictionary()

    def before_run(self, run: Any) -> None:
        self.alive[run.model] = run.dir
        run.say(f"{[*self.alive.values()].count(run.dir)} alive")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_answered_twice_in_a_row(
    trained: Trained, tmp_path: Path, name: str
) -> None:
    text = EXAMPLES.get(name, name)
    sent = [*PAUSED.get(name, [text]), text]
    if name == "pause":
        sent = ["pause", "pause", "resume"]
    run_dir = trained(
        OFTEN, commander(tmp_path / "mark", *((6, each) for each in sent)), "run.max_epochs=2"
    )
    given = answers(run_dir)
    assert [command for _, command, *_ in given] == sent
    assert all(it == 6 or command == "step" for it, command, *_ in given)
    assert all(ok or note for _, _, ok, note in given), "a refusal has its reason"


REFUSED = {
    "validat": 'there is no command "validat"; did you mean "validate"?',
    "trace 0": "N must be an integer from 1 to 1000, not 0",
    "trace 1 2": "usage: trace [N]",
    "off": "usage: off HOOK",
    "off emma": 'there is no hook "emma"; did you mean "ema"?',
    "on ema": "ema is switched on already",
    "set clip": "usage: set HOOK.ARGUMENT=VALUE",
    "set clip.max_nrom=1": (
        'hook "clip" does not declare "max_nrom" settable; did you mean "max_norm"?'
    ),
    "set throughput.window=1": (
        'hook "throughput" does not declare "window" settable; settable are none'
    ),
    "set clip.max_norm=-1": 'hook "clip": "max_norm" must be above 0.0, not -1',
    "set clip.max_norm=big": 'hook "clip": "max_norm" must be a number, not the string "big"',
    "resume": "the run is not paused",
    "step": "the run is not paused; a step is one iteration of a paused run",
    "rewind": "there is no checkpoint yet",
}


def test_a_refused_command_says_why_and_changes_nothing(
    left_alone: RunDir, trained: Trained, tmp_path: Path
) -> None:
    run_dir = trained(commander(tmp_path / "mark", *((2, text) for text in REFUSED)))
    given = answers(run_dir)
    assert [answer[:3] for answer in given] == [(2, text, False) for text in REFUSED]
    assert [
        why for (*_, note), why in zip(given, REFUSED.values(), strict=True) if why not in note
    ] == []
    assert curve(run_dir) == curve(left_alone)


def test_a_hook_is_off_from_the_next_iteration_on_and_on_again(
    trained: Trained, tmp_path: Path
) -> None:
    """Its trigger does not catch up."""
    tenth = (
        'hooks.tenth={use="tests.runner.test_commands:log_iter", points=["after_train_iter"],'
        " every=3}"
    )
    script = commander(
        tmp_path / "mark", (4, "off tenth"), (4, "off clip"), (8, "on tenth"), (10, "on clip")
    )
    run_dir = trained(tenth, script)
    seen = sorted({it for it, _, name in curve(run_dir) if name == "tenth"})
    assert seen == [3, 9, 12, 15]
    clipped = sorted({it for it, _, name in curve(run_dir) if name == "grad_norm"})
    assert clipped == [1, 2, 3, 4, 11, 12, 13, 14, 15]


def test_a_hook_that_sees_every_iteration_does_not_catch_up_either(
    trained: Trained, tmp_path: Path
) -> None:
    script = commander(tmp_path / "mark", (2, "off log"), (7, "on log"))
    run_dir = trained('hooks.log.points=[{at="after_train_iter", every=3}]', script)
    assert sorted(it for it, _, name in curve(run_dir) if name == "lr") == [9, 12, 15]


SCRIPT = (
    (4, "set clip.max_norm=0.05"),
    (6, "off ema"),
    (7, "validate"),
    (9, "on ema"),
    (11, "set ema.decay=0.5"),
)


def test_a_resume_follows_the_commands_to_the_bit(
    new_run: NewRun, train_here: Train, tmp_path: Path
) -> None:
    """Killed in the iteration after `at`, wherever that lies between commands and checkpoints."""

    def begun(name: str, at: int) -> RunDir:
        killed = strikes(tmp_path / name, signal.SIGKILL, ("after_forward", at))
        (tmp_path / name).mkdir()
        return new_run(OFTEN, commander(tmp_path / name / "sent", *SCRIPT), *killed)

    alone = begun("alone", 99)
    assert train_here(alone) == 0, reason(alone)
    assert [given[:3] for given in answers(alone)] == [(it, text, True) for it, text in SCRIPT]
    for at in (4, 6, 7, 8, 10, 12):
        cut = begun(str(at), at)
        assert Training(cut).wait() == -signal.SIGKILL
        assert train_here(cut, resume=True) == 0, reason(cut)
        assert_same_end(alone, cut)
        assert curve(alone) == curve(cut)


@pytest.mark.parametrize("name", ["it00000005", "it00000008"])
def test_a_run_that_went_back_ends_like_another(
    new_run: NewRun, train_here: Train, tmp_path: Path, name: str
) -> None:
    script = (2, "set clip.max_norm=0.05"), (9, "set clip.max_norm=0.5"), (11, f"rewind {name}")
    for k in (1, 2):
        Path(f"{tmp_path / 'alone'}.{k}").touch()  # it never sends these
    counts = 'hooks.networks={use="tests.runner.test_commands:Networks"}'
    alone, back = (
        new_run(OFTEN, KEEP, counts, commander(tmp_path / mark, *script))
        for mark in ("alone", "back")
    )
    assert train_here(alone) == 0, reason(alone)
    assert train_here(back) == 0, reason(back)
    assert [given[:3] for given in answers(back)] == [(it, text, True) for it, text in script]
    begun = [(run["it"], run["resumed_from"]) for run in records(back, "run")]
    assert begun[1] == (int(name[2:]), name)
    assert any(text.startswith("clip.max_norm=0.05 stays set") for text in messages(back, "warn"))
    assert_same_end(alone, back)
    assert [text for text in messages(back, "info") if "alive" in text] == ["1 alive"] * 2, (
        "of the way that was left"
    )
    kept = sorted(path.name for path in back.checkpoints.glob("it*"))
    assert kept == sorted(path.name for path in alone.checkpoints.glob("it*")), (
        "of the way that was left nothing stays"
    )


def test_a_paused_run_steps_one_iteration_at_a_time(trained: Trained, tmp_path: Path) -> None:
    """Also over the end of an epoch, with its validation."""
    script = [
        (4, "pause"),
        (4, "validate"),
        (4, "step"),
        (5, "step"),
        (6, "set clip.max_norm=0.5"),
        (6, "resume"),
    ]
    run_dir = trained(OFTEN, commander(tmp_path / "mark", *script))
    assert sorted(given[:3] for given in answers(run_dir)) == sorted(
        (it, text, True) for it, text in script
    )
    validated = [record["it"] for record in records(run_dir, "metrics")]
    assert validated == [4, 5, 10, 15]


class AsksLate:
    """Sends the command `validate` while the end of epoch 2 is validated."""

    def before_val(self, run: Any) -> None:
        if run.epoch == 2:
            signals = run._log._on_command.__self__
            id_ = send(RunDir(run.dir), "validate")
            wait_for(lambda: any(command["id"] == id_ for command in signals.commands))


@pytest.mark.parametrize(
    ("overrides", "script", "expected"),
    [
        ((), [(5, "validate")], [5, 10, 15]),
        ((), [(15, "validate")], [5, 10, 15]),
        (("run.val_every=2",), [(5, "validate")], [5, 10, 15]),
        (('run.val_every="4it"',), [(4, "validate")], [4, 8, 12, 15]),
        (('run.val_every="5it"',), [(5, "validate")], [5, 10, 15]),
        ((f'hooks.late={{use="{__file__}:AsksLate"}}',), [], [5, 10, 15]),
        # Other weights are validated: those of the average, and then those without it.
        (('run.val_every="4it"',), [(4, "off ema"), (4, "validate")], [4, 4, 8, 12, 15]),
        # In a pause whoever asks for it has seen the one before.
        (
            ('run.val_every="4it"',),
            [(4, "pause"), (4, "validate"), (4, "resume")],
            [4, 4, 8, 12, 15],
        ),
        ((), [(5, "pause"), (5, "validate"), (5, "resume")], [5, 10, 15]),
    ],
)
def test_what_is_validated_anyway_is_validated_once(
    trained: Trained,
    tmp_path: Path,
    overrides: tuple[str, ...],
    script: list[tuple[int, str]],
    expected: list[int],
) -> None:
    run_dir = trained(*overrides, commander(tmp_path / "mark", *script))
    assert [record["it"] for record in records(run_dir, "metrics")] == expected
    sent = {text for _, text in script} or {"validate"}
    assert {given[1:3] for given in answers(run_dir)} == {(text, True) for text in sent}


class MeasuresInOrder:
    """Gives these values of the metric `given`, one for each validation."""

    writes = ("metrics.given",)

    def __init__(self, values: list[float]) -> None:
        self._values = values

    def after_val(self, metrics: Any) -> None:
        metrics["given"] = self._values.pop(0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.9, 0.9, 0.8, 0.7, 0.1], {"best": 4, "best-2": 8, "best-3": 12}),
        ([0.75, 0.9, 0.8, 0.7, 0.1], {"best": 4, "best-2": 8, "best-3": 12}),
        ([0.9, 0.75, 0.8, 0.7, 0.1], {"best": 4, "best-2": 8, "best-3": 12}),
    ],
)
def test_an_iteration_that_is_validated_twice_is_among_the_best_once(
    trained: Trained, tmp_path: Path, values: list[float], expected: dict[str, int]
) -> None:
    run_dir = trained(
        f'hooks.measures={{use="{__file__}:MeasuresInOrder", args={{values={values}}}}}',
        'hooks.checkpoint.args={monitor="given", mode="max", top=3}',
        'run.val_every="4it"',
        commander(tmp_path / "mark", (4, "pause"), (4, "validate"), (4, "resume")),
    )
    assert [record["it"] for record in records(run_dir, "metrics")] == [4, 4, 8, 12, 15]
    names = CheckpointStore(run_dir.checkpoints).names()
    best = {name: parse_iteration(path) for name, path in names.items() if name != "last"}
    assert best == expected


def test_a_validation_that_a_stop_leaves_out_is_refused(trained: Trained, tmp_path: Path) -> None:
    run_dir = trained(commander(tmp_path / "mark", (4, "validate"), (4, "stop")))
    assert not records(run_dir, "metrics")
    assert sorted(given[1:] for given in answers(run_dir)) == [
        ("stop", True, ""),
        ("validate", False, "the training is over"),
    ]


def test_a_pause_does_not_take_the_steps_of_the_pause_before() -> None:
    context: Any = SimpleNamespace(state=SimpleNamespace(iter=4), plan=SimpleNamespace(settable={}))
    nothing: Any = None
    control = CommandHandler(context, nothing, nothing)
    for k, name in enumerate(("pause", "step", "step", "resume", "pause")):
        control.execute({"id": str(k), "cmd": name, "args": [], "by": "somebody", "t": 0.0})
    assert control.waits


def test_a_trace_has_every_phase_and_firing_of_its_iterations(
    trained: Trained, tmp_path: Path
) -> None:
    run_dir = trained(
        "run.val_every=6",
        commander(tmp_path / "mark", (4, "trace 3")),
        swap=("max_epochs = 3", "max_iters = 15"),
    )
    (trace,) = records(run_dir, "trace")
    assert (trace["first"], trace["iters"]) == (5, 3)
    whole = json.loads((run_dir.path / str(trace["path"])).read_text())
    events = [event for event in whole["traceEvents"] if event["ph"] == "X"]
    for it in (5, 6, 7):
        mine = [event for event in events if event["args"]["iteration"] == it]
        (iteration,) = (event for event in mine if event["name"] == "iteration")
        assert [e["name"] for e in mine if e["cat"] == "phase"] == [
            "data",
            "forward",
            "backward",
            "optimizer",
        ]
        begin, end = iteration["ts"], iteration["ts"] + iteration["dur"]
        inside = [e for e in mine if begin <= e["ts"] < end]
        assert all(e["ts"] + e["dur"] <= end + 1 for e in inside), "nested, but for the rounding"
        fired = {(e["name"], e["cat"]) for e in inside}
        assert {
            ("clip", "before_optimizer_step"),
            ("ema", "after_optimizer_step"),
            ("schedule", "before_train_iter"),
        } <= fired
    outside = [(e["name"], e["args"]["iteration"]) for e in events if e["cat"] == "outside"]
    assert ("validation", 6) in outside
    assert [e["args"]["iteration"] for e in events if e["cat"] == "after_val_iter"], (
        "hooks of the validation, too"
    )
    assert ("log", 6) in {(e["name"], e["args"]["iteration"]) for e in events}


SLOW = 'hooks.slow={use="./common_hooks.py:slow", points=["after_backward"]}'


def test_before_python_has_even_started(new_run: NewRun) -> None:
    run_dir = new_run()
    child = start(run_dir)
    child.send_signal(signal.SIGINT)
    assert child.wait() == 130
    assert ended(run_dir) == ("interrupted", 130)
    assert not records(run_dir, "run")


def test_while_the_data_is_drawn(new_run: NewRun, tmp_path: Path) -> None:
    run_dir = new_run(
        f'data.train={{use="tests.runner.test_commands:endless",'
        f' args={{mark="{tmp_path / "mark"}"}}}}'
    )
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
    resumes_alike: NewRun, point: str, it: int, number: signal.Signals, code: int
) -> None:
    broken = resumes_alike(point=point, at=it, number=number)
    end, begun = records(broken, "end")[0], records(broken, "run")[1]
    assert (end["status"], end["exit"]) == ("interrupted", code)
    assert begun["it"] == end["it"], "what was done is kept"


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
    trained: Trained,
    train_here: Train,
    tmp_path: Path,
    point: str,
    length: str,
    overrides: tuple[str, ...],
    at: int,
) -> None:
    swap = ("max_epochs = 3", length)
    trace, marks = tmp_path / "trace", tmp_path / "around"
    around = f'hooks.around={{use="./common_hooks.py:AroundVal", args={{file="{marks}"}}}}'
    alone = trained(
        *overrides, around.replace(str(marks), str(tmp_path / "marks of the other")), swap=swap
    )
    broken = trained(
        *overrides,
        *strikes(tmp_path, signal.SIGTERM, (point, at)),
        around,
        TRACER % trace,
        swap=swap,
        code=143,
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


def test_a_test_is_cut_short_and_done_again(
    trained: Trained, train_here: Train, tmp_path: Path
) -> None:
    run_dir = trained(
        "run.test=true", *strikes(tmp_path, signal.SIGTERM, ("before_test_iter", 15)), code=143
    )
    assert not [record for record in records(run_dir, "metrics") if record["split"] == "test"]
    assert train_here(run_dir, resume=True) == 0
    assert records(run_dir, "metrics")[-1]["split"] == "test"


INT, TERM, USR1 = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1


class SendsSignals:
    """Sends its own process these signals, one after another,
    in the backward pass of iteration 8, once.
    """

    def __init__(self, mark: str, numbers: list[int]) -> None:
        self.mark, self.numbers = Path(mark), numbers

    def after_backward(self, run: Any) -> None:
        if run.iter == 7 and not self.mark.exists():
            self.mark.touch()
            for number in self.numbers:
                os.kill(os.getpid(), number)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    ("numbers", "code", "saved"),
    [
        ([INT], 130, 8),
        ([TERM], 143, 8),
        ([USR1], 143, 8),
        ([USR1, TERM], 143, 8),
        ([TERM, TERM], 143, 8),
        ([USR1, USR1, TERM, TERM], 143, 8),
        ([TERM, USR1, TERM], 143, 8),
        ([INT, TERM], 130, 8),
        ([INT, USR1, TERM], 130, 8),
        ([INT, INT], 130, 6),
        ([TERM, INT], 143, 6),
        ([USR1, TERM, INT], 143, 6),
    ],
    ids=lambda value: (
        "-".join(signal.Signals(n).name for n in value) if isinstance(value, list) else None
    ),
)
@pytest.mark.usefixtures("written_at_once")
def test_no_sequence_of_signals_but_a_second_ctrl_c_costs_the_last_iteration(
    trained: Trained, tmp_path: Path, numbers: list[int], code: int, saved: int, accumulate: int
) -> None:
    """`saved` is the iteration of the newest checkpoint:
    one is saved after each third iteration.
    """
    args = f'{{mark="{tmp_path / "mark"}", numbers={[int(number) for number in numbers]}}}'
    sends = f'hooks.sends={{use="{__file__}:SendsSignals", args={args}}}'
    every_third = 'hooks.checkpoint.points=[{at="after_train_iter", every=3}]'
    run_dir = trained(
        sends, every_third, f"run.accumulate={accumulate}", "run.max_epochs=6", code=code
    )
    assert ended(run_dir) == ("interrupted", code)
    assert CheckpointStore(run_dir.checkpoints).all()[0].name == f"it{saved:08d}"


@pytest.mark.usefixtures("written_at_once")
@pytest.mark.parametrize("point", ["before_train_iter", "after_val_iter", "before_save_checkpoint"])
def test_a_second_signal_ends_it_at_once(
    left_alone: RunDir, trained: Trained, train_here: Train, tmp_path: Path, point: str
) -> None:
    broken = trained(*strikes(tmp_path, signal.SIGINT, (point, 10), times=2), code=130)
    assert ended(broken) == ("interrupted", 130)
    assert str(records(broken, "end")[0]["reason"]).startswith("SIGINT received, then SIGINT")
    standing = CheckpointStore(broken.checkpoints).all()
    assert standing
    assert not [find_damage(path) for path in standing if find_damage(path)]
    assert train_here(broken, resume=True) == 0
    assert_same_end(left_alone, broken)


def test_a_second_signal_on_the_way_out_ends_that_too(trained: Trained, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    first, second = strikes(tmp_path, signal.SIGINT, ("before_train", 0), ("on_exception", 0))
    assert ended(trained(first, second, TRACER % trace, code=130)) == ("interrupted", 130)
    assert "after_run" not in trace.read_text()


def test_one_that_comes_while_the_begin_is_logged_loses_none(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = EventRecorder._collect_news

    def interrupted(recorder: EventRecorder, framed: bool) -> list[Record]:
        taken = news(recorder, framed)
        if any(record["k"] == "run" for record in taken):
            os.kill(os.getpid(), signal.SIGINT)
        return taken

    monkeypatch.setattr(EventRecorder, "_collect_news", interrupted)
    run_dir = trained(code=130)
    assert [record["k"] for record in records(run_dir) if record["k"] in ("run", "end")] == [
        "run",
        "end",
    ]


def test_a_handler_waits_for_nothing_that_the_main_thread_holds() -> None:
    """A thread sends one signal after the other,
    while the main thread does little else than what a pause does.
    """
    flag = SimpleNamespace(attention=False)
    made = SignalCollector(flag)  # type: ignore[arg-type]
    due, rounds = threading.Semaphore(0), 100

    def strike() -> None:
        for k in range(rounds):
            due.acquire()
            made.command({"id": str(k), "cmd": "pause", "t": 0.0, "by": "me"})
            os.kill(os.getpid(), END_SIGNALS[k % len(END_SIGNALS)])

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


def test_a_paused_process_answers_and_a_signal_ends_its_pause(new_run: NewRun) -> None:
    """What is done is saved."""
    run_dir = new_run("run.max_epochs=500", SLOW)
    child = Training(run_dir)

    def iterations(stage: str) -> list[object]:
        return [
            frame["it"]
            for frame in records(run_dir, "frame")
            if frame["stage"] == stage and frame["it"]
        ]

    wait_for(lambda: iterations("train"))
    asked = [send(run_dir, "pause")]
    wait_for(lambda: len(iterations("paused")) >= 3)
    assert len({*iterations("paused")[1:]}) == 1, "of the first it may have moved on"
    asked.append(send(run_dir, "checkpoint"))
    wait_for(lambda: len(records(run_dir, "ack")) == 2)
    assert [(ack["id"], ack["ok"]) for ack in records(run_dir, "ack")] == [
        (each, True) for each in asked
    ]
    child.signal(signal.SIGTERM)
    assert child.wait() == 143
    newest = CheckpointStore(run_dir.checkpoints).all()[0]
    ended_at = records(run_dir, "end")[0]["it"]
    assert read_manifest(newest)["it"] == ended_at
    assert ended_at == iterations("paused")[-1], "no iteration follows the pause"
