"""`on_log`: every number that is logged, offered to hooks in the call that logs it."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.runner.process.launch import prepare
from tests.conftest import TESTS, Trained, records
from tests.distributed.several import carry_out

CLOUDS = TESTS / "distributed" / "clouds.toml"
SHORT = ("run.max_epochs=1", "data.train.args={examples=32}")
LISTENS = 'hooks.listens={use="tests.runner.test_on_log:Listens"%s}'
OFTEN = "hooks.log={use='log'}"


class Listens:
    heard: list[tuple[int, str, Any]]

    def before_run(self) -> None:
        Listens.heard = []

    def on_log(self, run: Any, name: str, value: Any) -> None:
        Listens.heard.append((run.iter, name, value))
        run.log(f"again_{name}", value)


class Gradients:
    parameters = ("*.weight",)

    def post_accumulate_grad(self, run: Any) -> None:
        run.log("seen", 1.0)
        run.say("seen")
        alone = Thread(target=run.log, args=("alone", 1.0))
        alone.start()
        alone.join()


class Fails:
    def on_log(self, name: str) -> None:
        if name == "loss":
            raise RuntimeError("a loss")


class Stops:
    writes = ("control",)

    def on_log(self, run: Any, name: str) -> None:
        if name == "loss" and run.iter == 3:
            run.stop("heard enough")


def logged(run_dir: RunDir) -> dict[tuple[Any, str], Any]:
    result = {}
    for record in records(run_dir, "scalars"):
        result.update({(record["it"], name): value for name, value in record["v"].items()})  # type: ignore[attr-defined]
    return result


def test_every_number_is_offered_with_its_iteration_and_what_is_logged_there_is_not(trained: Trained) -> None:
    recorded = logged(trained(LISTENS % "", OFTEN, *SHORT))
    again = {key for key in recorded if key[1].startswith("again_")}
    heard = {(it, name): float(value) for it, name, value in Listens.heard}
    assert heard == {key: value for key, value in recorded.items() if key not in again}
    assert {(it, f"again_{name}") for it, name in heard} == again
    assert {name for _, name in heard} >= {"loss", "lr", "samples_per_s", "grad_norm"}
    kinds = {name: type(value) for _, name, value in Listens.heard}
    assert (kinds["loss"], kinds["lr"]) == (torch.Tensor, float), "nobody has waited for the loss"


def test_triggers_hold_and_its_time_is_its_own(trained: Trained) -> None:
    run_dir = trained(LISTENS % ", every=3", OFTEN, *SHORT)
    offered = [key for key in logged(run_dir) if not key[1].startswith("again_")]
    assert len(Listens.heard) == len(offered) // 3


@pytest.mark.parametrize(("on_error", "code"), [("raise", 1), ("ignore", 0), ("disable", 0)])
def test_what_raises_there_is_the_fault_of_who_listens(trained: Trained, on_error: str, code: int) -> None:
    fails = f'hooks.fails={{use="tests.runner.test_on_log:Fails", on_error="{on_error}"}}'
    run_dir = trained(fails, OFTEN, *SHORT, code=code)
    errors = records(run_dir, "error")
    assert {(error["hook"], error["point"], error["action"]) for error in errors} == {("fails", "on_log", on_error)}
    losses = [key for key in logged(run_dir) if key[1] == "loss"]
    assert len(errors) == (len(losses) if on_error == "ignore" else 1)


def test_a_stop_asked_for_there_is_granted_after_the_iteration(trained: Trained) -> None:
    (end,) = records(trained('hooks.stops={use="tests.runner.test_on_log:Stops"}', OFTEN, *SHORT), "end")
    assert (end["it"], end["status"], end["reason"]) == (3, "finished", "heard enough")


class LogsAlone:
    ranks = "zero"

    def after_train_iter(self, run: Any) -> None:
        run.log("alone", float(run.iter))


class Says:
    def on_log(self, run: Any, name: str, value: Any) -> None:
        run.say(f"{name} {float(value)}")


def test_a_rank_that_logs_alone_waits_for_no_other(tmp_path: Path) -> None:
    """A condition there looks at its own numbers: asking the others would hang."""
    alone = 'hooks.alone={use="tests.runner.test_on_log:LogsAlone"}'
    says = 'hooks.says={use="tests.runner.test_on_log:Says", when="alone > 4"}'
    off = [f"hooks.{name}.enabled=false" for name in ("log", "ema", "clip")]
    loaded = parse(CLOUDS.read_text(), CLOUDS, (alone, says, *off, "run.max_epochs=1"))
    run_dir = RunDir.create(tmp_path, "clouds")
    prepare(loaded, compile_pipeline(loaded), run_dir, CLOUDS.parent)
    assert carry_out(run_dir, 2) == [0, 0]
    said = [record["text"] for record in records(run_dir, "message") if record["source"] == "says"]
    assert said == ["alone 5.0", "alone 6.0"]


def test_a_hook_in_the_thread_of_autograd_is_one_like_any_other(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA the gradients are not computed in the training thread. What a hook's own thread logs is not offered."""
    backward = torch.Tensor.backward

    def elsewhere(*args: Any, **named: Any) -> None:
        thread = Thread(target=backward, args=args, kwargs=named)
        thread.start()
        thread.join()

    monkeypatch.setattr(torch.Tensor, "backward", elsewhere)
    run_dir = trained(*SHORT, LISTENS % "", 'hooks.gradients={use="tests.runner.test_on_log:Gradients"}')
    heard = {name for _, name, _ in Listens.heard}
    assert "seen" in heard and "alone" not in heard
    assert {r["source"] for r in records(run_dir, "message") if r["text"] == "seen"} == {"gradients"}
