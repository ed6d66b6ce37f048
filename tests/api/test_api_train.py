"""`hookflow.train`: in this process, in one of its own, in a thread; and what it raises."""

import json
import logging
import os
import signal
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import hookflow
from hookflow import Hook
from hookflow.events.rundir import RunDir
from tests.conftest import TOY, records, wait_for

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def toy(**overrides: Any) -> Any:
    return hookflow.load(TOY, {"run.threads": 1, **{key.replace("__", "."): v for key, v in overrides.items()}})


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
        {"extends": str(TOY), "run": {"threads": 1, "max_epochs": 30}, "hooks": {"saboteur": {"use": Saboteur(act)}}}
    )


@pytest.mark.parametrize("process", [False, True], ids=["here", "in a process of its own"])
def test_a_run_is_trained_and_returned(tmp_path: Path, capsys: pytest.CaptureFixture[str], process: bool) -> None:
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
    wait_for(lambda: not any(each.name.startswith("hookflow") for each in {*threading.enumerate()} - {*threads}))
    assert run.metrics == hookflow.train(toy(), "none", runs=tmp_path).metrics
    assert capsys.readouterr().out == ""


def test_what_check_and_python_warn_of_is_recorded_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    pipeline = hookflow.load({"extends": str(TOY), "run": {"threads": 1, "max_epochs": 1}, "hooks": hooks})
    (doubt,) = pipeline.check()
    with pytest.warns(UserWarning, match="by warnings"):
        run = hookflow.train(pipeline, ui="plain", runs=tmp_path)
    messages = [
        (item["it"], item["level"], item["source"], item["text"]) for item in records(RunDir(run.dir), "message")
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


def test_a_thread_may_train_and_records_may_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    thread = threading.Thread(target=hookflow.train, args=(toy(run__max_epochs=1), "json"), kwargs={"runs": tmp_path})
    thread.start()
    thread.join()
    shown = [json.loads(line)["k"] for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == "run"
    assert "end" in shown


def test_what_a_hook_raises_is_raised_here_and_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    (tmp_path / "bad.toml").write_text(TOY.read_text().replace("./toy.py", str(TOY.with_suffix(".py"))))
    pipeline = hookflow.load(tmp_path / "bad.toml", {"hooks.bad": bad})
    with pytest.raises(RuntimeError, match="ended with exit status 137: killed by SIGKILL; the kernel's"):
        hookflow.train(pipeline, "none", runs=tmp_path, process=True)


@pytest.mark.parametrize(
    ("number", "raised", "text"),
    [(signal.SIGINT, KeyboardInterrupt, r"SIGINT received.*hookflow\.load_run"), (signal.SIGTERM, SystemExit, "143")],
)
def test_a_signal_saves_and_is_raised(tmp_path: Path, number: int, raised: type[BaseException], text: str) -> None:
    handler = signal.getsignal(number)
    with pytest.raises(raised, match=text):
        hookflow.train(sabotaged(lambda: os.kill(os.getpid(), number)), "none", runs=tmp_path)
    run = hookflow.load_run("latest", tmp_path)
    assert (run.status, run.checkpoint().iter) == ("interrupted", 4)
    assert signal.getsignal(number) is handler


def test_ctrl_c_reaches_a_process_of_its_own(tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_for(lambda: signal.getsignal(signal.SIGINT) is not signal.default_int_handler)
        wait_for(lambda: any('"it":2' in log.read_text() for log in tmp_path.glob("toy/*/events.jsonl")))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt, match="SIGINT received; resume it with: hookflow run --resume"):
        hookflow.train(toy(run__max_epochs=100_000), "none", runs=tmp_path, process=True)
    thread.join()
    assert hookflow.load_run("latest", tmp_path).checkpoint().iter > 2


def test_what_cannot_be_trained_so_is_told_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(hookflow.UserError, match=r'there is no ui "plan"\n.*did you mean "plain"\?'):
        hookflow.train(toy(), "plan", runs=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(hookflow.UserError, match=r'there is no ui "\{.*\n.*auto, plain, json, none'):
        hookflow.train(TOY, {"run.max_epochs": 1}, runs=tmp_path)  # type: ignore[arg-type]
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(hookflow.UserError, match="torchrun has started several"):
        hookflow.train(toy(), "none", runs=tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("process", [False, True])
def test_a_mistake_of_overrides_that_only_building_finds_is_placed_there(tmp_path: Path, process: bool) -> None:
    pipeline = toy(model__args__wdth=3)
    with pytest.raises(hookflow.UserError, match=r'overrides\["model.args.wdth"\]: model takes no argument "wdth"'):
        hookflow.train(pipeline, ui="none", runs=tmp_path, process=process)
