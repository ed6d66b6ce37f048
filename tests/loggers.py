"""Hooks that log images, texts and histograms: named by tests' pipelines as "./loggers.py:…"."""

from __future__ import annotations

from typing import Any

import torch


class Logs:
    """Logs one of each after every iteration, and then changes what it has logged."""

    def after_train_iter(self, run: Any) -> None:
        image = torch.zeros(3, 4, 5)
        image[0] = run.iter / 255
        run.log_image("val/sample", image, f"at {run.iter}")
        image.fill_(1)
        values = torch.tensor([0.0, 1.0, 1.0, 2.0, float("nan")])
        run.log_histogram("weights", values, bins=2)
        values.zero_()
        run.log_text("sample", f"iteration {run.iter}")


class LogsWrongly:
    """Logs what is none."""

    def __init__(self, what: str) -> None:
        self.what = what

    def after_train_iter(self, run: Any) -> None:
        match self.what:
            case "image":
                run.log_image("sample", torch.zeros(2, 3, 4, 5))
            case "text":
                run.log_text("sample", 3)
            case "histogram":
                run.log_histogram("sample", "abc")
            case "figure":
                run.log_figure("sample", torch.zeros(3, 3))


class Floods:
    """Logs more images in one iteration than there is room for."""

    def __init__(self, count: int) -> None:
        self.count = count

    def before_train(self, run: Any) -> None:
        for _ in range(self.count):
            run.log_image("many", torch.zeros(2, 2))
