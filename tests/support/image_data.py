"""Small sets of images and texts, made without a download."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from hookflow.zoo.chargpt import Text
from hookflow.zoo.cifar10 import Images, Options
from hookflow.zoo.gaussian2d import Picture

CPU = torch.device("cpu")


def make(
    examples=50,
    *,
    batch_size=16,
    training=True,
    augment=True,
    sizes=(),
    seed=3,
    side=8,
    rank=0,
    world=1,
):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (examples, side, side, 3), dtype=np.uint8)
    return Images(
        torch.from_numpy(images),
        torch.arange(examples),  # a class of its own for each, to tell them apart
        Options("train" if training else "val", batch_size, augment, sizes, seed, CPU, rank, world),
        name="",
        note="",
        synthetic=True,
    )


def picture(split: str = "train", seed: int = 0) -> Picture:
    return Picture(
        side=24, split=split, batch_size=100, batches=5, seed=seed, device=torch.device("cpu")
    )  # type: ignore[arg-type]


def text(tmp_path: Path, **args: Any) -> Text:
    (tmp_path / "text.txt").write_text("".join(map(chr, range(32, 127))) * 4)
    return Text(
        **{
            "path": "text.txt",
            "length": 7,
            "batch_size": 4,
            "seed": 0,
            "pipeline_dir": tmp_path,
            **args,
        }
    )
