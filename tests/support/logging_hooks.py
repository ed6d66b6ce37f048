"""Hooks that log images, texts and histograms:
named by tests' pipelines as "./logging_hooks.py:…".
"""

from typing import Any

import torch


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
