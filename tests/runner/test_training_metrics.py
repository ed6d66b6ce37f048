"""Metrics over the batches of the training, and hooks that go by numbers of the training."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.conftest import NewRun, Trained, reason, records
from tests.runner.same import logged
from tests.runner.test_shared_model import NET, OFF, Fixed
from tests.toy import Points

COUNTS = "hooks.accuracy.args.stages=['train', 'val']"
NO_VAL = ('[data.val]\nuse = "./toy.py:Points"\nargs = { split = 1, examples = 16 }\n', "")
BY_TRAINING = (
    "hooks.early_stop.args={monitor='train/accuracy', stage='train', patience=1}",
    "hooks.checkpoint.args={monitor='loss_epoch', stage='train', keep=2}",
    "hooks.log={use='log', args={mean='epoch'}}",
)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_accuracy_of_an_epoch_is_pytorch_s(trained: Trained, accumulate: int) -> None:
    off = ("hooks.clip.enabled=false", *OFF)
    run_dir = trained(NET, COUNTS, *off, "run.max_epochs=2", f"run.accumulate={accumulate}", "run.val_every='3it'")
    net, data = Fixed(), Points(0, torch.device("cpu"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    expected = []
    for epoch in range(2):
        right, batches = 0, list(data.epoch(epoch))
        for k in range(0, len(batches), accumulate):
            group = batches[k : k + accumulate]
            optimizer.zero_grad()
            for inputs, target in group:
                logits = net(inputs)
                right += int((logits.argmax(dim=1) == target).sum())
                (cross_entropy(logits, target) / len(group)).backward()
            optimizer.step()
        expected.append(right / 40)
    assert list(logged(run_dir, "train/accuracy").values()) == expected


def test_without_stages_the_training_counts_nothing(trained: Trained) -> None:
    assert not logged(trained("run.max_epochs=1"), "train/accuracy")


def test_the_count_goes_on_after_a_kill_in_the_middle_of_an_epoch(resumes_alike: NewRun) -> None:
    resumes_alike(COUNTS, *BY_TRAINING[1:], point="after_train_iter", at=7)


def test_best_and_early_stop_may_go_by_the_training(trained: Trained) -> None:
    run_dir = trained(COUNTS, *BY_TRAINING, "run.max_epochs=9", "optimizer.args.lr=0.0", swap=NO_VAL)
    (end,) = records(run_dir, "end")
    assert (end["status"], str(end["reason"]).endswith("for 1 epoch")) == ("finished", True)
    losses = logged(run_dir, "loss_epoch")
    best: object = min(losses, key=losses.__getitem__)
    saved = [record["it"] for record in records(run_dir, "checkpoint") if "best" in record["names"]]  # type: ignore[operator]
    assert saved[-1] == best


def test_a_number_that_nobody_logs_is_a_mistake(trained: Trained) -> None:
    monitor = "hooks.early_stop.args={monitor='los_epoch', mode='min', stage='train'}"
    printed = reason(trained(monitor, BY_TRAINING[2], code=2))
    assert 'no number "los_epoch" has been logged' in printed
    assert 'did you mean "loss_epoch"?' in printed
