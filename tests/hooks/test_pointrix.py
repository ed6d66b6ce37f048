"""Hooks of Pointrix, unmodified: methods of a `trainner`, with what it shows them."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hookflow.errors import UserError
from hookflow.events.log import event_log
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from tests.conftest import TOY, Trained, messages, reason
from tests.runner.same import logged


class LogHook:
    """A hook as Pointrix's own: an average of the loss, and metrics summed over a validation."""

    def __init__(self, momentum: float = 0.6, mark: str = "") -> None:
        self.momentum, self.average, self.total, self.mark = momentum, 0.0, 0.0, mark

    def before_train(self, trainner: Any) -> None:
        trainner.logger.log(f"{trainner.cfg.max_steps} steps in", trainner.exp_dir.name)

    def after_train_iter(self, trainner: Any) -> None:
        for name, value in trainner.loss_dict.items():
            if name == "loss":
                trainner.writer.write_scalar("train_loss", value.item(), trainner.global_step)
                self.average = self.momentum * self.average + (1 - self.momentum) * value.item()
        trainner.logger.write_scalar("average", self.average, trainner.global_step)
        trainner.writer.write_scalar("step", trainner.global_step)

    def before_train_iter(self, trainner: Any) -> None:
        trainner.writer.write_scalar("begun", trainner.global_step)

    def after_val_iter(self, trainner: Any) -> None:
        self.total += float(trainner.metric_dict["loss"])

    def after_val(self, trainner: Any) -> None:
        trainner.writer.write_scalar("val_total", self.total)
        trainner.logger.print(f"{len(trainner.metric_dict) > 0} {trainner.val_dataset_size}")
        self.total = 0.0

    def exception(self) -> None:
        Path(self.mark).write_text(f"{self.average}")


class Asks:
    def before_train(self, trainner: Any) -> None:
        trainner.logger.log(trainner.gui)


class Shows:
    """A hook that writes by its logger, and reports by its writer."""

    def before_train(self, trainner: Any) -> None:
        trainner.writer.info("written")
        trainner.logger.write_image("picture", torch.zeros(3, 2, 2), trainner.global_step)
        trainner.logger.write_config("config", {"depth": 3})


def test_logger_and_writer_have_the_verbs_of_both(trained: Trained) -> None:
    run_dir = trained('hooks.shows={use="tests.hooks.test_pointrix:Shows"}')
    assert "written" in messages(run_dir)
    records = event_log(run_dir.events).read_all()
    assert [record["name"] for record in records if record["k"] == "image"] == ["picture"]
    assert [record["name"] for record in records if record["k"] == "text"] == ["config"]


USE = 'hooks.theirs={use="tests.hooks.test_pointrix:LogHook"}'


def test_a_hook_of_pointrix_does_its_work_and_is_resumed_to_the_bit(resumes_alike: Any) -> None:
    run_dir = resumes_alike(USE, point="after_train_iter", at=7)
    assert (
        [*logged(run_dir, "step").values()]
        == [*logged(run_dir, "begun").values()]
        == [*range(1, 16)]
    )
    average, losses = 0.0, logged(run_dir, "train_loss")
    for loss in losses.values():
        average = 0.6 * average + (1 - 0.6) * loss
    assert [*logged(run_dir, "average").values()][-1] == average
    assert len(logged(run_dir, "val_total")) == 3
    assert any(
        text.startswith("15 steps in ") for text in messages(run_dir)
    ) and "True 2" in messages(run_dir)


def test_an_exception_reaches_it_and_a_lack_is_named(trained: Trained, tmp_path: Path) -> None:
    mark = f'hooks.theirs.args.mark="{tmp_path}/mark"'
    printed = reason(
        trained(USE, mark, 'hooks.asks={use="tests.hooks.test_pointrix:Asks"}', code=1)
    )
    assert "Pointrix's trainer has no gui" in printed and (tmp_path / "mark").read_text() == "0.0"


def test_the_registry_is_asked_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = 'hooks.theirs={use="pointrix:%s"}'
    with pytest.raises(UserError, match="needs the package pointrix, which is not installed"):
        compile_pipeline(parse(TOY.read_text(), TOY, [hooks % "LogHook"]))
    package, module = ModuleType("pointrix"), ModuleType("pointrix.hook")
    package.hook, module.LogHook = module, LogHook  # type: ignore[attr-defined]
    monkeypatch.setattr("hookflow.adapters.pointrix.missing_package", lambda *_: None)
    for name, each in (("pointrix", package), ("pointrix.hook", module)):
        monkeypatch.setitem(sys.modules, name, each)
    plan = compile_pipeline(parse(TOY.read_text(), TOY, [hooks % "LogHook"]))
    assert "theirs" in {binding.hook for binding in plan.at("after_val_iter")}
    with pytest.raises(
        UserError, match=r'Pointrix has no hook "LogHok"(.|\n)*did you mean "LogHook"'
    ):
        compile_pipeline(parse(TOY.read_text(), TOY, [hooks % "LogHok"]))
