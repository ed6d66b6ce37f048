"""`hookflow.train`: here, in a process or a thread, in a notebook; what it raises;
objects where a file has `use`.
"""

import asyncio
import json
import logging
import os
import re
import signal
import threading
import tomllib
import warnings
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import nbclient
import nbformat
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookflow
from hookflow import Hook
from hookflow.events.rundir import RunDir
from tests.conftest import TESTS, TOY, hookflow_here, records, wait_for
from tests.support.limits import LIMIT
from tests.support.processes import Spawned
from tests.support.toy import Net, Points

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def toy(**overrides: Any) -> Any:
    return hookflow.load(
        TOY, {"run.threads": 1, **{key.replace("__", "."): v for key, v in overrides.items()}}
    )


class Saboteur(Hook):
    """Does in the training what it is given to do, at the fourth iteration."""

    writes = ("control",)

    def __init__(self, act: Any) -> None:
        self.act = act

    def after_train_iter(self, run: Any) -> None:
        if run.iter == 4:
            self.act()


def sabotaged(act: Any) -> Any:
    return hookflow.load(
        {
            "extends": str(TOY),
            "run": {"threads": 1, "max_epochs": 30},
            "hooks": {"saboteur": {"use": Saboteur(act)}},
        }
    )


@pytest.mark.parametrize("process", [False, True], ids=["here", "in a process of its own"])
def test_a_run_is_trained_and_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], process: bool
) -> None:
    handlers = [signal.getsignal(number) for number in HANDLED]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    threads = threading.enumerate()
    run = hookflow.train(toy(), ui="plain", runs=tmp_path, process=process)
    assert (run.status, run.name, run.dir.parent) == ("finished", "toy", tmp_path / "toy")
    assert (json.loads((run.dir / "run.json").read_text())["pid"] == os.getpid()) != process
    printed = capsys.readouterr().out
    assert "val        epoch 3/3  iter 15/15" in printed
    assert "resumed " not in printed
    assert [signal.getsignal(number) for number in HANDLED] == handlers
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
    wait_for(
        lambda: (
            not any(
                each.name.startswith("hookflow") for each in {*threading.enumerate()} - {*threads}
            )
        )
    )
    assert run.metrics == hookflow.train(toy(), "none", runs=tmp_path).metrics
    assert capsys.readouterr().out == ""


def test_what_check_and_python_warn_of_is_recorded_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("mine")

    def warn() -> None:
        for _ in range(3):
            with warnings.catch_warnings(action="always"):
                warnings.warn("by warnings", stacklevel=1)
            log.warning("by %s", "logging")
        log.info("by nobody")
        try:
            raise LookupError("no key")
        except LookupError:
            log.exception("caught")

    shown, made = warnings.showwarning, logging.getLogRecordFactory()
    never = {"use": "early_stop", "args": {"monitor": "accuracy"}, "from": "40ep"}
    hooks = {"saboteur": {"use": Saboteur(warn)}, "never": never, "early_stop": {"enabled": False}}
    pipeline = hookflow.load(
        {"extends": str(TOY), "run": {"threads": 1, "max_epochs": 1}, "hooks": hooks}
    )
    (doubt,) = pipeline.check()
    with pytest.warns(UserWarning, match="by warnings"):
        run = hookflow.train(pipeline, ui="plain", runs=tmp_path)
    messages = [
        (item["it"], item["level"], item["source"], item["text"])
        for item in records(RunDir(run.dir), "message")
    ]
    never_fires, by_warnings, by_logging, caught = [item for item in messages if item[1] != "info"]
    assert never_fires == (0, "warn", "hookflow", f"<dict>: {doubt.message} ({doubt.hint})")
    assert by_warnings[:3] == (4, "warn", "warnings")
    assert str(by_warnings[3]).startswith("UserWarning: by warnings (")
    assert by_logging == (4, "warn", "logging.mine", "by logging")
    assert caught[:3] == (4, "error", "logging.mine")
    assert str(caught[3]).startswith(f"caught, LookupError: no key, at {__file__}:")
    assert capsys.readouterr().out.count(doubt.message) == 1
    assert (warnings.showwarning, logging.getLogRecordFactory()) == (shown, made)


def test_a_thread_may_train_and_records_may_be_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    thread = threading.Thread(
        target=hookflow.train, args=(toy(run__max_epochs=1), "json"), kwargs={"runs": tmp_path}
    )
    thread.start()
    thread.join()
    shown = [json.loads(line)["k"] for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == "run"
    assert "end" in shown


def test_what_a_hook_raises_is_raised_here_and_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def act() -> None:
        raise ZeroDivisionError("of mine")

    with pytest.raises(ZeroDivisionError, match="of mine") as error:
        hookflow.train(sabotaged(act), "none", runs=tmp_path)
    assert "act" in [frame.name for frame in error.traceback]
    assert capsys.readouterr().err == ""
    run = hookflow.load_run("latest", tmp_path)
    assert run.status == "failed"
    assert records(run._run_dir, "error")[0]["hook"] == "saboteur"


def test_a_failure_in_a_process_of_its_own_has_its_exit_status(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import os\ndef bad(run):\n    os.kill(os.getpid(), 9)\n")
    bad = {"use": "./bad.py:bad", "points": ["after_train_iter"]}
    (tmp_path / "bad.toml").write_text(
        TOY.read_text().replace("./toy.py", str(TOY.with_suffix(".py")))
    )
    pipeline = hookflow.load(tmp_path / "bad.toml", {"hooks.bad": bad})
    with pytest.raises(
        RuntimeError, match="ended with exit status 137: killed by SIGKILL; the kernel's"
    ):
        hookflow.train(pipeline, "none", runs=tmp_path, process=True)


@pytest.mark.parametrize(
    ("number", "raised", "text"),
    [
        (signal.SIGINT, KeyboardInterrupt, r"SIGINT received.*hookflow\.load_run"),
        (signal.SIGTERM, hookflow.TrainingTerminatedError, r"SIGTERM received.*hookflow\.load_run"),
    ],
)
def test_a_signal_saves_and_is_raised(
    tmp_path: Path, number: int, raised: type[BaseException], text: str
) -> None:
    handler = signal.getsignal(number)
    with pytest.raises(raised, match=text):
        hookflow.train(sabotaged(lambda: os.kill(os.getpid(), number)), "none", runs=tmp_path)
    run = hookflow.load_run("latest", tmp_path)
    assert (run.status, run.checkpoint().iter) == ("interrupted", 4)
    assert signal.getsignal(number) is handler


def test_ctrl_c_reaches_a_process_of_its_own(tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_for(lambda: signal.getsignal(signal.SIGINT) is not signal.default_int_handler)
        wait_for(
            lambda: any('"it":2' in log.read_text() for log in tmp_path.glob("toy/*/events.jsonl"))
        )
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(
        KeyboardInterrupt, match="SIGINT received; resume it with: hookflow run --resume"
    ):
        hookflow.train(toy(run__max_epochs=100_000), "none", runs=tmp_path, process=True)
    thread.join()
    assert hookflow.load_run("latest", tmp_path).checkpoint().iter > 2


def test_what_cannot_be_trained_is_told_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        hookflow.UserError, match=r'there is no ui "plan"\n.*did you mean "plain"\?'
    ):
        hookflow.train(toy(), "plan", runs=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(
        hookflow.UserError, match=r'there is no ui "\{.*\n.*auto, plain, json, none'
    ):
        hookflow.train(TOY, {"run.max_epochs": 1}, runs=tmp_path)  # type: ignore[arg-type]
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(hookflow.UserError, match="torchrun has started several"):
        hookflow.train(toy(), "none", runs=tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("process", [False, True])
def test_a_mistake_of_overrides_that_only_building_finds_is_placed_there(
    tmp_path: Path, process: bool
) -> None:
    pipeline = toy(model__args__wdth=3)
    with pytest.raises(
        hookflow.UserError, match=r'overrides\["model.args.wdth"\]: model takes no argument "wdth"'
    ):
        hookflow.train(pipeline, ui="none", runs=tmp_path, process=process)


INPUTS = torch.randn(32, 4, generator=torch.Generator().manual_seed(3))
EXAMPLES = TensorDataset(INPUTS, INPUTS[:, 0].gt(0).long())


class Counter(Hook):
    """Counts what it has seen."""

    def __init__(self, step: int) -> None:
        self.step, self.seen, self.name = step, 0, ""

    def after_train_iter(self, run: hookflow.Run) -> None:
        self.seen += self.step


class OwnTask:
    def step(self, run: hookflow.Run, batch: Any) -> dict[str, Any]:
        inputs, target = batch
        return {"loss": nn.functional.cross_entropy(run.model(inputs), target), "own": 1.0}


def pipeline(**parts: Any) -> dict[str, Any]:
    return {
        "run": {"name": "objects", "max_epochs": 2, "threads": 1},
        "model": {"use": Net, "args": {"width": 4}},
        "optimizer": {"use": torch.optim.SGD, "args": {"lr": 0.1}},
        "data": {"train": {"use": EXAMPLES, "loader": {"batch_size": 8}}},
        **parts,
    }


def train(tmp_path: Path, **parts: Any) -> Any:
    return hookflow.train(pipeline(**parts), "none", runs=tmp_path)


def test_a_model_that_exists_is_what_is_trained(tmp_path: Path) -> None:
    net = Net(6)
    before = net.head.weight.detach().clone()
    run = train(tmp_path, model={"use": net}, hooks={"save": {"use": "checkpoint"}})
    assert not torch.equal(net.head.weight, before)
    again = run.checkpoint().load_into(Net(6))
    assert all(
        torch.equal(mine, saved)
        for mine, saved in zip(net.parameters(), again.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    "source",
    [
        {"use": DataLoader(EXAMPLES, batch_size=8, shuffle=True)},
        {"use": [(INPUTS[:8], torch.zeros(8).long())] * 4},
        {"use": Points(0, torch.device("cpu"))},
        {"use": lambda seed: DataLoader(EXAMPLES, batch_size=8)},
        {
            "use": EXAMPLES,
            "loader": {
                "batch_size": 8,
                "collate": lambda examples: torch.utils.data.default_collate(examples),
            },
        },
    ],
    ids=["loader", "batches", "source", "function", "dataset"],
)
def test_data_that_exist_are_trained_on(tmp_path: Path, source: dict[str, Any]) -> None:
    assert (
        train(tmp_path, data={"train": source, "val": {"use": DataLoader(EXAMPLES, 16)}}).status
        == "finished"
    )


def test_a_task_that_exists_is_asked_for_its_loss(tmp_path: Path) -> None:
    log = {"log": {"use": "log"}}
    assert train(tmp_path, task={"use": OwnTask()}, hooks=log).scalars("own")["value"] == [1.0] * 8
    assert (
        train(tmp_path, task={"use": OwnTask().step}, hooks=log).scalars("own")["value"]
        == [1.0] * 8
    )


def test_functions_classes_and_instances_are_hooks(tmp_path: Path) -> None:
    seen: list[int] = []
    instance = Counter(2)

    def note(run: hookflow.Run) -> None:
        seen.append(run.iter)

    class Weighed(Hook):
        def after_run(self) -> None:
            seen.append(-1)

    hooks = {
        "note": {"use": note, "points": ["after_train_epoch"]},
        "some": {
            "use": partial(lambda run, to: to.append(run.epoch), to=seen),
            "points": ["after_train_epoch"],
        },
        "counter": {"use": instance, "every": 2},
        "other": {"use": Counter, "args": {"step": 3}},
        "weighed": {"use": Weighed},
    }
    run = train(tmp_path, hooks=hooks)
    assert seen == [4, 1, 8, 2, -1]
    assert (instance.seen, instance.name) == (8, "counter")
    recorded = tomllib.loads((run.dir / "pipeline.toml").read_text())
    assert recorded["model"]["use"] == "<object Net>"
    assert {
        use for hook in recorded["hooks"].values() if (use := hook["use"]).startswith("<object")
    } == {
        "<object note>",
        "<object partial>",
        "<object Counter>",
        "<object Counter 2>",
        "<object Weighed>",
    }
    assert run.plan.hook("counter").about == "Counts what it has seen."
    hookflow.train(
        hookflow.load(TOY, {"hooks.early_stop": {"use": Counter(2)}}), "none", runs=tmp_path
    )


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        (
            {"model": {"use": {}.keys()}},
            r"model must be a torch\.nn.*Module, and this makes a dict_keys",
        ),
        ({"model": {"use": Net(), "args": {"width": 3}}}, 'model takes no argument "width"'),
        ({"hooks": {"odd": {"use": Random()}}}, "Random has no method named like a point"),
        (
            {"hooks": {"odd": {"use": Counter(1), "args": {"step": 3}}}},
            'hook "odd" takes no argument "step"',
        ),
        (
            {"optimizer": {"use": torch.optim.SGD(Net().parameters(), lr=0.1)}},
            r"optimizer\.use must make an optimizer.*\n.*give its class",
        ),
    ],
)
def test_an_object_that_does_not_fit_is_refused(
    tmp_path: Path, part: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(hookflow.UserError, match=wrong):
        train(tmp_path, **part)


def test_objects_are_only_here(tmp_path: Path) -> None:
    with pytest.raises(
        hookflow.UserError, match=r"process of its own has none of the objects.*<object Net>"
    ):
        hookflow.train(pipeline(model={"use": Net()}), "none", runs=tmp_path, process=True)
    run = train(tmp_path / "runs", model={"use": Net()}, hooks={"save": {"use": "checkpoint"}})
    done = hookflow_here(
        "run", "--resume", run.id, "--set", "run.max_epochs=3", "--detach", cwd=tmp_path, code=2
    )
    assert re.search(
        r'pipeline\.toml:\d+:1: "<object Net>" stands for an object of the Python', done.stderr
    )
    assert 'use = "./file.py:Name"' in done.stderr
    assert run.status == "finished", "what was refused has not been begun"
    assert hookflow_here("compare", run.id, run.id, cwd=tmp_path).returncode == 0


LOAD = f"""
import hookflow, time
seen = []
def slowly(run):
    time.sleep(0.02)
    if run.iter == 10:
        print("ten")
pipeline = hookflow.load({{
    "extends": {str(TOY)!r},
    "run": {{"threads": 1, "max_epochs": 5}},
    "hooks": {{"slowly": {{"use": slowly, "points": ["after_train_iter"]}}}},
}})
"""
TRAIN = "run = hookflow.train(pipeline)"
LOOK = "print(run.status, run.metrics['val'].keys(), len(run.scalars('loss')['value']))"


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs cells in a kernel and returns the outputs of each."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setattr("jupyter_client.launcher.Popen", Spawned)

    def execute(*cells: str, allow_errors: bool = False) -> tuple[list[list[Any]], list[str]]:
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells]
        )
        drawn: list[str] = []

        class Client(nbclient.NotebookClient):
            def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
                if msg["msg_type"] == "update_display_data":
                    drawn.append(msg["content"]["data"]["text/plain"])
                return super().process_message(msg, cell, cell_index)

        where = {"metadata": {"path": str(tmp_path)}}
        limits = {"timeout": LIMIT, "startup_timeout": LIMIT, "iopub_timeout": LIMIT}
        client = Client(
            notebook, kernel_name="python3", resources=where, allow_errors=allow_errors, **limits
        )
        with asyncio.Runner() as runner:
            runner.run(client.async_execute())
        return [cell.outputs for cell in notebook.cells], drawn

    return execute


def test_a_run_is_bars_that_move_and_then_a_table_or_the_error_of_its_cell(executed: Any) -> None:
    failing = LOAD.replace('print("ten")', "1 / 0")
    interrupted = LOAD.replace(
        'print("ten")', "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    )
    looks = "print(*(run.status for run in hookflow.runs()), hookflow.load_run().checkpoint().iter)"
    cells = (LOAD, TRAIN, LOOK, failing, TRAIN, interrupted, TRAIN, looks)
    (loaded, trained, looked, _, failed, _, stopped, last), drawn = executed(
        *cells, allow_errors=True
    )
    assert loaded == []
    printed = [output.text for output in trained if output.output_type == "stream"]
    assert "".join(printed) == "ten\n", "a hook's own prints, and nothing else"
    bars, table = (output.data for output in trained if output.output_type == "display_data")
    assert "finished  val loss" in bars["text/plain"]
    assert re.search(r"━{23}\x1b\S+ +100% +25/25", bars["text/plain"])
    assert len({text for text in drawn if "running" in text and "it/s" in text}) > 1
    assert "25 iterations in" in table["text/plain"]
    assert "val accuracy" in table["text/plain"]
    assert "val accuracy" in table["text/html"]
    assert looked[0].text.startswith("finished dict_keys(['loss', 'accuracy']) 12")
    assert [output.ename for output in failed if output.output_type == "error"] == [
        "ZeroDivisionError"
    ]
    assert not [output for output in failed if output.output_type == "stream"], (
        "its traceback is printed once"
    )
    assert [output.ename for output in stopped if output.output_type == "error"] == [
        "KeyboardInterrupt"
    ]
    assert last[0].text == "interrupted failed finished 10\n"


class Assigns(Hook):
    """Assigns an attribute, of the run or of its training data, and keeps what is said of it."""

    points = ("after_train_iter",)

    def __init__(self, name: str, of_data: bool = False) -> None:
        self.attribute, self.of_data = name, of_data
        self.problems: list[Any] = []

    def after_train_iter(self, run: Any) -> None:
        owner = run.data["train"] if self.of_data else run
        with pytest.raises(hookflow.UserError) as refused:
            setattr(owner, self.attribute, 256)
        self.problems += refused.value.problems


@pytest.mark.parametrize(
    ("name", "of_data", "hint"),
    [
        ("batch", False, "run.replace_batch"),
        ("batch_size", False, "run.replace_batch"),
        ("stopped", False, "run.stop"),
        ("should_stop", False, "run.stop"),
        ("max_iters", False, "run.stop"),
        ("metrics", False, "metrics["),
        ("model", False, "change what run.model holds"),
        ("iter", False, ""),
        ("log", False, ""),
        ("counter", False, "self.counter"),
        ("batch_size", True, "loader.batch_size"),
    ],
)
def test_what_the_training_would_not_see_cannot_be_assigned(
    tmp_path: Path, name: str, of_data: bool, hint: str
) -> None:
    hook = Assigns(name, of_data)
    tables = {
        "extends": str(TESTS / "distributed" / "clouds.toml" if of_data else TOY),
        "run": {"threads": 1, "max_iters": 2, "dir": str(tmp_path)},
        "hooks": {"assigns": {"use": hook}},
    }
    hookflow.train(tables, ui="none")
    assert len(hook.problems) == 2
    assert all(hint in problem.hint for problem in hook.problems)
    assert all(name in problem.message for problem in hook.problems)


def test_sizes_of_every_source_of_hookflow_are_fixed() -> None:
    from hookflow.runner.data.loader_parts import BatchSharding

    sharding = BatchSharding(10, 4, drop_last=False)
    for name in ("batch_size", "global_batch_size"):
        with pytest.raises(hookflow.UserError):
            setattr(sharding, name, 256)
    assert [sharding.batch_size(index) for index in range(3)] == [4, 4, 2]
