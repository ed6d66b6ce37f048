"""Offloaded hooks: the training is the same to the bit, they see what they would have seen,
and nothing is lost.
"""

import atexit
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hookflow import Hook
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import PlannedHook, WhenFull
from hookflow.hooks.compile import compile_pipeline
from hookflow.offload import hook_thread
from hookflow.offload.executor import SWITCH_INTERVAL
from hookflow.offload.hook_process import TensorChannel
from hookflow.offload.hook_thread import HookThread, QueuedFiring
from hookflow.offload.model_copies import ModelCopies, copy_arguments
from hookflow.pipeline.load import parse
from hookflow.pipeline.use import resolve_use
from tests.conftest import TOY, NewRun, Trained, ended, reason, records, refusal
from tests.runner.same import assert_same, final_state, logged
from tests.support.hook_nodes import node, plan
from tests.support.limits import LIMIT
from tests.support.overrides import NUMBERS, WATCHES

SUMS = 'hooks.sums={use="./offloaded_hooks.py:sums", points=["after_train_iter"], %s}'


class Spoils(Hook):
    """Change its copy of the network and of the gradients."""

    reads = ("model", "grads")

    def after_backward(self, run: Any) -> None:
        for parameter in run.model.parameters():
            parameter.grad = None
            torch.nn.init.constant_(parameter, torch.nan)


class Fails(Hook):
    """Raise beside the training, from the third iteration on."""

    def after_train_iter(self, run: Any) -> None:
        if run.iter >= 3:
            time.sleep(0.05)  # meanwhile others wait
            raise ValueError("the third")


class Asks(Hook):
    """Use what belongs to the training thread."""

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute

    def after_train_iter(self, run: Any) -> None:
        getattr(run, self.attribute)


class Hangs:
    """Waits until a file is there."""

    def __init__(self, mark: str) -> None:
        self.mark = Path(mark)

    def after_train_iter(self, run: Any) -> None:
        while not self.mark.exists():
            time.sleep(0.01)


class Doubles(Hook):
    """Count calls beside the training, and in it double the learning rate of the first step."""

    reads = {"after_backward": ("outputs",), "before_optimizer_step": ("lr",)}  # noqa: RUF012
    writes = {"after_backward": (), "before_optimizer_step": ("lr",)}  # noqa: RUF012

    def __init__(self) -> None:
        self.calls: list[str] = []

    def after_backward(self, run: Any, outputs: dict[str, Any]) -> None:
        time.sleep(0.003)
        self.calls.append("b")
        run.log("alone", float(threading.current_thread().name == "hookflow-doubles"))

    def before_optimizer_step(self, run: Any) -> None:
        self.calls.append("s")
        if run.iter == 0:
            for group in run.optimizer.param_groups:
                group["lr"] *= 2

    def after_run(self, run: Any) -> None:
        assert "".join(self.calls) == 15 * "bs", (
            "a firing in the training waits for those of its hook before"
        )
        run.log("alone_at_the_end", float(threading.current_thread().name == "hookflow-doubles"))


class Talks(Hook):
    """Talk to the other ranks, in a method of its own."""

    def after_train_iter(self, run: Any) -> None:
        self.share(torch.ones(1))

    def share(self, tensor: torch.Tensor) -> None:
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(tensor)


def gathers(run: Any) -> None:
    """Gather from the other ranks, by a function that it imports."""
    from torch.distributed import all_gather_object

    all_gather_object([None] * run.world, run.rank)


def logs_no_text(run: Any) -> None:
    run.log_text("sample", 3)


class Draws(Hook):
    """Draw random numbers in a process, keep a sum, and log whatever there is to log."""

    def __init__(self) -> None:
        self.total, self.ids = torch.zeros(()), list[int]()

    def after_train_iter(self, run: Any) -> None:
        self.total += torch.rand(()) + random.random() + np.random.rand()
        self.ids.append(os.getpid())
        run.log("total", self.total)
        run.log_image("picture", torch.zeros(3, 2, 2))
        run.say(f"of iteration {run.iter}")

    def after_train(self) -> None:
        assert len({*self.ids} - {os.getpid()}) == 1, "it has been brought back"

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


class Dies(Hook):
    """End the process of the third firing, and count the firings."""

    fired = 0

    def after_train_iter(self, run: Any) -> None:
        self.fired += 1
        run.log("fired", self.fired)
        if run.iter == 3:
            os.kill(os.getpid(), signal.SIGKILL)


class DiesAtFirst(Hook):
    """End the process in the first call of all, and note in a file when a call comes after that."""

    def __init__(self, mark: str) -> None:
        self.mark = Path(mark)

    def after_train_iter(self, run: Any) -> None:
        if not self.mark.exists():
            self.mark.write_text("died")
            os.kill(os.getpid(), signal.SIGKILL)
        self.mark.write_text("died, alive")


class HoldsLock(Hook):
    """Hold what no process can be sent."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def after_train_iter(self) -> None:
        pass


class InMain(Hook):
    """Be in the script that runs, as far as a pickle is concerned."""

    __module__ = "__main__"

    def after_train_iter(self) -> None:
        pass


class Starts(Hook):
    """Start processes, and end them by SIGTERM."""

    def after_train_epoch(self, run: Any) -> None:
        forked = multiprocessing.get_context("fork").Process(
            target=time.sleep, args=(60,), daemon=True
        )
        forked.start()
        time.sleep(0.05)
        forked.terminate()
        forked.join(20)
        with subprocess.Popen(["sleep", "60"]) as child:
            child.terminate()
            run.log("codes", (forked.exitcode or 0) * 100 + child.wait(20))


class Reads:
    """An object that another process cannot be sent: it is no more than a name there."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


OPEN: list[Any] = []
"""Files that are open until the process ends."""


class LeavesOpen:
    """Writes to a file that it leaves open where nothing of it is sent home,
    and again when its process ends.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def after_train_epoch(self) -> None:
        file = Path(self.path).open("w")  # noqa: SIM115
        atexit.register(file.write, "at exit\n")
        file.write("early\n")
        OPEN.append(file)


@pytest.mark.parametrize(
    ("use", "offload", "is_possible"),
    [
        ("profiler", "true", False),
        ("profiler", '"process"', False),
        ("profiler", '"auto"', True),
        ("memory", "true", True),
        ("memory", '"process"', False),
        ("empty_cache", '"process"', False),
    ],
)
def test_a_hook_that_measures_its_own_thread_or_process_is_not_taken_from_it(
    use: str, offload: str, is_possible: bool
) -> None:
    override = f'hooks.{use}={{use="{use}", offload={offload}}}'
    if is_possible:
        hook = next(
            each
            for each in compile_pipeline(parse(TOY.read_text(), TOY, [override])).hooks
            if each.name == use
        )
        assert bool(hook.queue) == (offload == "true")
        return
    with pytest.raises(UserError) as refused:
        compile_pipeline(parse(TOY.read_text(), TOY, [override]))
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize("offload", ["true", '"process"'])
def test_the_training_is_the_same_to_the_bit_and_so_is_what_is_seen_and_checked(
    left_alone: RunDir, undisturbed: Trained, trained: Trained, offload: str
) -> None:
    spoils = f'hooks.spoils={{use="tests.runner.test_offload:Spoils", offload={offload}}}'
    here = undisturbed(WATCHES % (0, "every=1"))
    beside = trained(WATCHES % (0.003, f"offload={offload}, queue=3"), spoils)
    assert_same(final_state(left_alone)["model"], final_state(beside)["model"])
    for name in NUMBERS:
        assert logged(here, name) == logged(beside, name)
        assert len(logged(beside, name)) == 15
    assert {*logged(here, "alone").values()} == {0.0}
    assert {*logged(beside, "alone").values()} == {1.0}
    done = [
        figures
        for frame in records(beside, "frame")
        for figures in frame.get("beside", {}).values()
    ]  # type: ignore[attr-defined]
    assert sum(count for count, *_ in done) == 2 * 15
    assert not any("beside" in frame for frame in records(here, "frame"))
    hook = (
        'hooks.fails={use="tests.runner.test_offload:logs_no_text", points=["after_train_iter"],'
        f" offload={offload}}}"
    )
    error, *_ = records(trained(hook, code=1), "error")
    assert 'run.log_text("sample", …) needs a string' in str(error["traceback"])


def test_the_training_goes_first(trained: Trained) -> None:
    """Others are nicer; a thread lets go of Python soon,
    and has as many threads of torch as the training.
    """
    shares = (
        'hooks.shares={use="./offloaded_hooks.py:shares", points=["after_train_iter"], offload=%s}'
    )
    before, nice = sys.getswitchinterval(), float(os.nice(0))
    for offload, interval, niceness in (
        ("false", before, nice),
        ("true", SWITCH_INTERVAL, 19.0),
        ('"process"', before, 19.0),
    ):
        run_dir = trained("run.threads=1", shares % offload)
        assert {*logged(run_dir, "threads").values()} == {1.0}
        assert [*logged(run_dir, "interval").values()] == pytest.approx([interval] * 15)
        assert {*logged(run_dir, "nice").values()} == {niceness}
        assert (sys.getswitchinterval(), os.nice(0)) == (pytest.approx(before), nice)


def test_a_checkpoint_waits_for_its_state(resumes_alike: Any) -> None:
    cut = resumes_alike(WATCHES % (0.002, "offload=true"), point="after_train_iter", at=7)
    assert final_state(cut)["hooks"]["watches"] == {"seen": 15}  # type: ignore[index]


@pytest.mark.parametrize(
    ("offload", "on_error", "code"),
    [
        ("true", "raise", 1),
        ("true", "disable", 0),
        ("true", "ignore", 0),
        ('"process"', "ignore", 0),
    ],
)
def test_its_errors_come_home(trained: Trained, offload: str, on_error: str, code: int) -> None:
    hook = 'hooks.fails={use="tests.runner.test_offload:Fails", offload=%s, on_error="%s"}'
    run_dir = trained(hook % (offload, on_error), code=code)
    error, *others = records(run_dir, "error")
    assert len(others) == (12 if on_error == "ignore" else 0), (
        "those that wait are dropped, unless the hook goes on"
    )
    assert (error["hook"], error["point"], error["action"]) == (
        "fails",
        "after_train_iter",
        on_error,
    )
    assert error["it"] == 3
    assert "in the firing of iteration 3" in str(error["traceback"])
    assert str(error["traceback"]).count(f"{error['type']}: {error['text']}") == 1
    assert 'raise ValueError("the third")' in str(error["traceback"])
    assert ended(run_dir) == (("failed", 1) if code else ("finished", 0))


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("model", 'the offloaded hook "asks" gets no copy of the network'),
        ("sum", 'the offloaded hook "asks" has no run.sum, which belongs to the training thread'),
        ("optimizer", 'the offloaded hook "asks" has no run.optimizer'),
        ("stop", 'the offloaded hook "asks" has no run.stop'),
    ],
)
def test_what_belongs_to_the_training_thread_is_refused(
    trained: Trained, attribute: str, message: str
) -> None:
    hook = (
        f'hooks.asks={{use="tests.runner.test_offload:Asks", args={{attribute="{attribute}"}},'
        " offload=true}"
    )
    assert message in reason(trained(hook, code=2))


def test_who_comes_after_it_by_an_edge_waits_for_it(trained: Trained) -> None:
    slow = 'hooks.slow={use="./offloaded_hooks.py:Slow", offload=true}'
    follows = (
        'hooks.follows={use="./offloaded_hooks.py:follows", points=["after_train_iter"],'
        ' after=["slow"]}'
    )
    run_dir = trained(slow, follows)
    assert logged(run_dir, "slow_is_at") == {it: float(it) for it in range(1, 16)}


GATHERS = "it calls torch.distributed.all_gather_object"
REFUSED = {
    "writes": ("clip", "hooks.clip.offload=true", "it writes grads at "),
    "saves": ("checkpoint", "hooks.checkpoint.offload=true", "it uses run."),
    "around": ("ema", "hooks.ema.offload=true", "it is half of an around at "),
    "sums over ranks": (
        "sums",
        SUMS % "offload=true",
        "it uses run.sum (tests/support/offloaded_hooks.py:",
    ),
    "talks": (
        "t",
        'hooks.t={use="tests.runner.test_offload:Talks", offload=true}',
        "it calls torch.distributed.all_reduce (",
    ),
    "gathers": (
        "sums",
        SUMS.replace("./offloaded_hooks.py:sums", f"{__name__}:gathers") % "offload=true",
        f"{GATHERS} (tests/runner/test_offload.py:",
    ),
    "inside": (
        "i",
        'hooks.i={use="activation_stats", modules=["*"], offload=true}',
        "in the middle of PyTorch's own",
    ),
    "read by a condition": (
        "watches",
        WATCHES % (0, "offload=true")
        + '\nhooks.other={use="./offloaded_hooks.py:Slow", when="weights > 1"}',
        '"other" reads scalars.weights at after_train_iter, which it writes',
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_offloaded_is_refused_with_the_reason(case: str) -> None:
    hook, overrides, obstacle = REFUSED[case]
    message = refusal(*overrides.split("\n")).message
    assert message.startswith(f'hook "{hook}" cannot be offloaded: ') and obstacle in message


def test_auto_offloads_what_may_be_and_notes_what_stands_in_the_way() -> None:
    auto = [f'hooks.{name}.offload="auto"' for name in ("clip", "ema", "throughput")]
    plan = compile_pipeline(
        parse(TOY.read_text(), TOY, [*auto, WATCHES % (0, 'offload="auto", when_full="drop"')])
    )
    assert {hook.name: (hook.queue, hook.when_full) for hook in plan.hooks if hook.queue} == {
        "watches": (2, "drop")
    }
    notes = [note.message for note in plan.notes if "offload" in note.message]
    assert [note.split('"')[1] for note in notes] == ["clip", "ema", "throughput"]
    assert notes[2].endswith("in the training thread")
    assert notes[0].startswith('hook "clip" (offload = "auto") ') and "it writes grads" in notes[0]


(BINDING,) = plan(node("h")).bindings


def new_worker(
    hook: PlannedHook, say: Callable[[str, str], None] = lambda text, level: None
) -> HookThread:
    return HookThread(hook, None, lambda: None, say, keeps=())


@pytest.mark.parametrize(
    ("when_full", "fired", "dropped"),
    [("wait", [0, 1, 2, 3, 4], 0), ("drop", [0, 1], 3), ("coalesce", [0, 4], 3)],
)
def test_a_full_queue(when_full: WhenFull, fired: list[int], dropped: int) -> None:
    planned = PlannedHook("h", "h", {}, "normal", "", "", "raise", queue=1, when_full=when_full)
    worker, seen, may_go_on = new_worker(planned), list[int](), threading.Event()
    begun = threading.Event()

    def fire(k: int) -> None:
        seen.append(k)
        begun.set()
        if when_full != "wait":
            may_go_on.wait(10)

    for k in range(5):
        if worker.make_room():
            worker.put(QueuedFiring(BINDING, k, 0.0, lambda k=k: fire(k), None, None))
        assert begun.wait(10)
    may_go_on.set()
    worker.wait()
    assert (seen, worker.dropped) == (fired, dropped)
    (figures,) = worker.take_times().values()
    assert (figures[0], figures[3:]) == (len(fired), [0, dropped])


@pytest.mark.parametrize("waits_for", ["the end", "room"])
def test_a_hook_that_hangs_is_named_while_the_training_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    monkeypatch.setattr(hook_thread, "SLOW_WAIT", 0.0)
    monkeypatch.setattr(hook_thread, "SIGNAL_INTERVAL", 0.01)
    said, may_go_on = list[str](), threading.Event()

    def say(text: str, level: str) -> None:
        said.append(text)
        if len(said) == 3:  # again and again
            may_go_on.set()

    planned = PlannedHook("hangs", "h", {}, "normal", "", "", "raise", queue=1)
    worker, begun = new_worker(planned, say), threading.Event()

    def fire() -> None:
        begun.set()
        may_go_on.wait()

    worker.put(QueuedFiring(BINDING, 7, 0.0, fire, None, None))
    assert begun.wait(LIMIT)
    if waits_for == "room":
        worker.put(QueuedFiring(BINDING, 8, 0.0, lambda: None, None, None))
        assert worker.make_room()
    worker.wait()
    assert len(said) >= 3
    for text in said:
        assert (
            'the offloaded hook "hangs"' in text
            and "of iteration 7 " in text
            and "hooks.hangs.timeout" in text
        )


def test_hooks_that_fire_at_one_point_share_a_copy_of_the_network() -> None:
    model = torch.nn.Linear(2, 2)
    copies = ModelCopies(model, grads=True)
    first = copies.take("visit")
    assert copies.take("visit") is first
    torch.nn.init.ones_(model.weight)
    second = copies.take("visit")
    assert second is not first
    model.weight.grad = torch.full((2, 2), 3.0)
    third = copies.take("visit")
    assert (second.network.weight.grad, third.network.weight.grad.sum()) == (None, 12)
    assert (first.network.weight.sum() != 4, third.network.weight.sum()) == (True, 4)
    memory = [each.network for each in (first, second, third)]
    del first, second, third
    assert copies.take("another").network in memory


def test_copies_have_no_graph_and_share_no_memory() -> None:
    weight = torch.ones(2, requires_grad=True)
    offered = {"loss": weight.sum(), "of": [weight, ("text", 3, {1, 2})]}
    taken = copy_arguments(offered)
    assert not taken["loss"].requires_grad
    assert taken["of"][0].data_ptr() != weight.data_ptr()
    assert taken["of"][1] == ("text", 3, {1, 2})
    assert taken["of"][1][2] is not offered["of"][1][2]  # type: ignore[index]


HANGS = (
    'hooks.hangs={use="tests.runner.test_offload:Hangs", args={mark="%s"}, offload=true,'
    ' timeout="0.2s",'
    ' on_error="%s"}'
)


@pytest.mark.parametrize(("on_error", "code"), [("raise", 1), ("disable", 0), ("ignore", 0)])
def test_a_firing_that_takes_too_long_is_given_up(
    trained: Trained, tmp_path: Path, on_error: str, code: int
) -> None:
    run_dir = trained(HANGS % (tmp_path / "mark", on_error), code=code)
    (tmp_path / "mark").touch()  # its thread ends
    (error,) = records(run_dir, "error")
    assert (error["hook"], error["type"], error["action"]) == ("hangs", "TimeoutError", on_error)
    assert "longer than 0.2 s" in str(error["text"])
    assert "in the firing of iteration 1" in str(error["traceback"])
    assert ended(run_dir) == (("failed", 1) if code else ("finished", 0))


def test_a_timeout_is_for_an_offloaded_hook_which_has_a_thread_or_a_process() -> None:
    for_offloaded = 'hook "clip" has a timeout, which is for a hook with offload = true'
    assert for_offloaded in refusal('hooks.clip.timeout="3s"').message
    assert "must be seconds, not a number" in refusal("hooks.clip.timeout=3").message
    points = (
        'points=[{at="after_train_iter", offload=true}, {at="after_train_epoch",'
        ' offload="process"}]'
    )
    both = refusal(f'hooks.slow={{use="tests.runner.test_offload:logs_no_text", {points}}}')
    assert "in a thread at one point" in both.message


DOUBLES = 'hooks.doubles={use="tests.runner.test_offload:Doubles", points=[%s, "after_run"]%s}'


def test_a_hook_may_be_offloaded_at_one_of_its_points(trained: Trained) -> None:
    here = trained(DOUBLES % ('"after_backward", "before_optimizer_step"', ""))
    beside = trained(DOUBLES % ('{at="after_backward", offload=true}, "before_optimizer_step"', ""))
    spared = '"after_backward", {at="before_optimizer_step", offload=false}'
    but_one = trained(DOUBLES % (spared, ", offload=true"))
    for run_dir in (beside, but_one):
        assert_same(final_state(here)["model"], final_state(run_dir)["model"])
        assert {*logged(run_dir, "alone").values()} == {1.0}
        assert {*logged(run_dir, "alone_at_the_end").values()} == {0.0}
    assert {*logged(here, "alone").values()} == {0.0}


AUTO = 'offload = "auto"\n'
READS_RATE = "it reads lr at before_optimizer_step"


@pytest.mark.parametrize(
    ("keys", "line", "obstacle"),
    [
        (
            'points = ["after_backward", { at = "before_optimizer_step", offload = true }]',
            3,
            READS_RATE,
        ),
        ("offload = true", 3, READS_RATE),
        (
            AUTO + 'points = ["after_backward",\n  { at = "after_run", offload = true }]',
            5,
            "at after_run, which comes",
        ),
    ],
)
def test_the_point_that_is_in_the_way_is_named(
    tmp_path: Path, keys: str, line: int, obstacle: str
) -> None:
    text, file = TOY.read_text() + "\n", tmp_path / "toy.toml"
    with pytest.raises(UserError) as refused:
        compile_pipeline(
            parse(f'{text}[hooks.doubles]\nuse = "{__name__}:Doubles"\n{keys}\n', file), TOY.parent
        )
    (problem,) = refused.value.problems
    assert obstacle in problem.message
    assert problem.where is not None
    assert problem.where.line == text.count("\n") + line


DRAWS = 'hooks.draws={use="tests.runner.test_offload:Draws", offload="process"}'


def test_a_process_draws_numbers_of_its_own_and_resumes_alike(
    left_alone: RunDir, resumes_alike: NewRun
) -> None:
    cut = resumes_alike(DRAWS, point="after_train_iter", at=7)
    assert_same(final_state(left_alone)["model"], final_state(cut)["model"])
    assert len({*logged(cut, "total").values()}) == 15
    assert [(record["it"], record["hook"]) for record in records(cut, "image")] == [
        (k, "draws") for k in range(1, 16)
    ]
    assert {record["text"] for record in records(cut, "message")} >= {
        f"of iteration {k}" for k in range(1, 16)
    }


def test_a_process_that_dies_is_an_error_and_is_replaced(trained: Trained) -> None:
    run_dir = trained(
        'hooks.dies={use="tests.runner.test_offload:Dies", offload="process", on_error="ignore"}'
    )
    (error,) = records(run_dir, "error")
    assert (error["type"], error["text"]) == (
        "ProcessEndedError",
        "the process of the hook was killed by SIGKILL",
    )
    fired = [*logged(run_dir, "fired").values()][:6]
    assert fired == [
        1.0,
        2.0,
        3.0,
        2.0,
        3.0,
        4.0,
    ], "it was home after the first iteration, to be looked at"


def test_a_firing_whose_process_has_died_is_called_again_in_another(
    trained: Trained, tmp_path: Path
) -> None:
    use = f'use="tests.runner.test_offload:DiesAtFirst", args={{mark="{tmp_path / "mark"}"}}'
    run_dir = trained(f'hooks.dies={{{use}, offload="process", retry=1}}', "run.max_epochs=1")
    assert (tmp_path / "mark").read_text() == "died, alive"
    assert not records(run_dir, "error")


def test_a_process_is_ended_by_a_timeout(trained: Trained, tmp_path: Path) -> None:
    # To start one takes seconds.
    hangs = HANGS.replace("offload=true", 'offload="process", every=5')
    run_dir = trained(hangs % (tmp_path / "mark", "ignore"))
    assert {error["type"] for error in records(run_dir, "error")} == {"TimeoutError"}
    assert len(records(run_dir, "error")) > 1  # each firing has a process
    assert "its process is ended" in str(records(run_dir, "error")[0]["traceback"])


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        ("HoldsLock", "TypeError: cannot pickle '_thread.lock'"),
        ("InMain", "InMain is in the script that runs"),
    ],
)
def test_a_hook_that_no_process_can_be_sent_is_refused(
    trained: Trained, hook: str, why: str
) -> None:
    run_dir = trained(
        f'hooks.theirs={{use="tests.runner.test_offload:{hook}", offload="process"}}', code=2
    )
    assert f"to a process: {why}" in reason(run_dir)


@pytest.mark.usefixtures("interpreters")
def test_a_process_imports_what_its_run_names_and_nothing_of_its_folder(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.py").write_text(
        "import sys\nassert not sys.argv[0].endswith('hook_process.py')\n"
    )
    resolve_use("./other.py:sys", tmp_path, None)  # as another run of this Python process has done
    trained(WATCHES % (0, 'offload="process"'))


@pytest.mark.usefixtures("interpreters")
def test_a_file_that_a_hook_leaves_open_in_its_process_is_written(
    trained: Trained, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    args = f'args={{path="{path}"}}'
    trained(
        f'hooks.leaves={{use="tests.runner.test_offload:LeavesOpen", offload="process", {args}}}',
        "run.max_epochs=1",
    )
    assert path.read_text() == "early\nat exit\n"


def test_what_a_hook_starts_in_its_process_ends_by_sigterm(trained: Trained) -> None:
    run_dir = trained(
        'hooks.starts={use="tests.runner.test_offload:Starts", offload="process"}',
        "run.max_epochs=1",
    )
    assert [*logged(run_dir, "codes").values()] == [-1515.0]


def test_what_cannot_be_unpickled_does_not_harm_what_is_sent_next() -> None:
    """The error arrives whole although tensors are on their way that nobody has asked for yet."""
    here, there = (TensorChannel(Connection(each.detach())) for each in socket.socketpair())
    sent = [
        [torch.ones(2), Reads(), torch.zeros(1 << 20)],
        {"bits": torch.ones(3, dtype=torch.bfloat16)},
    ]
    sender = threading.Thread(target=lambda: [here.send(each) for each in sent])
    sender.start()
    with pytest.raises(ValueError, match="no number"):
        there.receive()
    assert torch.equal(there.receive()["bits"], torch.ones(3, dtype=torch.bfloat16))
    sender.join()
