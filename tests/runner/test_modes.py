"""Training and evaluation mode: each module gets back the one that it had. Gradients are off where it is judged."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.conftest import Trained, messages, records
from tests.toy import Net


def modes(run_dir: Any) -> list[str]:
    return [text for text in messages(run_dir) if "in evaluation" in text]


@pytest.mark.parametrize("at", [-1, 2], ids=["before the training", "in it"])
def test_a_module_that_a_hook_has_frozen_stays_frozen(trained: Trained, at: int) -> None:
    run_dir = trained(f'hooks.freezes={{use="./photographs.py:Freezes", args={{at={at}}}}}')
    frozen = [line.endswith("['body.1']") for line in modes(run_dir)]
    assert frozen == [it >= at for it in range(15)], "validations and new epochs in between change nothing"


class Frozen(Net):
    """A net whose batch norm is in evaluation when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.body[1].eval()


class Evaluating(Net):
    """A net that is in evaluation as a whole when it is made, as one may come from a file."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()


def test_what_was_frozen_before_the_training_stays_so(trained: Trained) -> None:
    run_dir = trained(f'model.use="{__file__}:Frozen"', 'hooks.freezes={use="./photographs.py:Freezes", args={at=99}}')
    assert {line.split(": ")[1] for line in modes(run_dir)} == {"['body.1']"}


def test_a_net_that_comes_in_evaluation_as_a_whole_is_trained(trained: Trained) -> None:
    freezes = 'hooks.freezes={use="./photographs.py:Freezes", args={at=99}}'
    run_dir = trained(f'model.use="{__file__}:Evaluating"', freezes)
    assert {line.split(": ")[1] for line in modes(run_dir)} == {"[]"}


class Judging:
    """Says whether gradients are on, and the net trains, wherever it fires."""

    def tell(self, run: Any) -> None:
        run.say(f"{run.stage}: gradients {torch.is_grad_enabled()}, training {run.model.training}")

    before_val_epoch = before_val_iter = after_val_iter = after_val_epoch = tell
    before_test_epoch = before_test_iter = after_test_iter = after_test_epoch = tell
    after_train_iter = after_train_epoch = tell


def test_gradients_are_off_and_the_net_is_in_evaluation_wherever_it_is_judged(trained: Trained) -> None:
    run_dir = trained(f'hooks.judging={{use="{__file__}:Judging"}}', "run.test=true")
    assert {text for text in messages(run_dir) if "gradients" in text} == {
        "train: gradients True, training True",
        "val: gradients False, training False",
        "test: gradients False, training False",
    }
    assert records(run_dir, "metrics")
