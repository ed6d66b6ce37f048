"""Hooks that log images, texts and histograms:
named by tests' pipelines as "./logging_hooks.py:…".
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch

from tests.support.limits import LIMIT


class Logs:
    """Logs one of each after every iteration, and then changes what it has logged."""

    def after_train_iter(self, run: Any) -> None:
        image = torch.zeros(3, 4, 5, device=run.device)
        image[0].fill_(run.iter / 255)
        run.log_image("val/sample", image, f"at {run.iter}")
        image.fill_(1)
        values = torch.zeros(5, device=run.device)
        for index, value in enumerate((0, 1, 1, 2, float("nan"))):
            values[index].fill_(value)  # an assignment of a number waits for CUDA
        run.log_histogram("weights", values, bins=2)
        values.zero_()
        run.log_text("sample", f"iteration {run.iter}")


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


class LogsAt:
    """Logs the iterations done at points inside iterations and outside of them."""

    def before_train_epoch(self, run: Any) -> None:
        run.log("epoch", run.iter)

    def before_train_iter(self, run: Any) -> None:
        run.log("fetched", run.iter)

    def after_backward(self, run: Any) -> None:
        run.log("backward", run.iter)

    def after_train_iter(self, run: Any) -> None:
        run.log("done", run.iter)

    def after_val_iter(self, run: Any) -> None:
        run.log("val", run.iter)


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


WRONG = {
    "image": torch.zeros(2, 3, 4, 5),
    "text": 3,
    "histogram": "abc",
    "figure": torch.zeros(3, 3),
}


def logs_wrongly(run: Any, what: str) -> None:
    getattr(run, f"log_{what}")("sample", WRONG[what])


class Floods:
    def __init__(self, count: int) -> None:
        self.count = count

    def before_train(self, run: Any) -> None:
        for _ in range(self.count):
            run.log_image("many", torch.zeros(2, 2))


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


class LogsAlone:
    """Logs a number on the first rank, and on no other."""

    ranks = "zero"

    def after_train_iter(self, run: Any) -> None:
        run.log("alone", float(run.iter))


class Says:
    def on_log(self, run: Any, name: str, value: Any) -> None:
        run.say(f"{name} {float(value)}")


class LogsLate:
    """Logs a histogram of ones that a GPU computes after other work."""

    def after_train_iter(self, run: Any) -> None:
        values = torch.zeros(1 << 16, device=run.device)
        work = torch.ones(2048, 2048, device=run.device)
        for _ in range(20):
            work = work @ work * 0
        values += 1 + work[0, 0]
        run.log_histogram("late", values, bins=2)


class KeepsBatch:
    """Keeps a copy of a batch for one iteration more, reads it behind other work,
    and logs how it has changed.
    """

    def __init__(self) -> None:
        self.kept: Any = None

    def after_train_iter(self, run: Any, batch: Any) -> None:
        tensor = batch[0] if isinstance(batch, list | tuple) else batch
        if self.kept is not None:
            before, twin = self.kept
            work = torch.ones(2048, 2048, device=tensor.device)
            for _ in range(20):
                work = work @ work * 0
            changed = (before + work[0, 0] - twin).abs().max()
            self.kept = before = None  # its memory may be used again from here on
            run.log("kept", changed)
        self.kept = tensor, tensor.clone()
