"""Text files as tokens: every byte is one, so that there is no tokenizer, and no alphabet that a text may not fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hookflow.errors import Problem, UserError
from hookflow.events.records import DataInfo
from hookflow.sharding import BatchSharding


class Text:
    """Windows of a text: tokens, int64 (batch, length + 1), each a byte of it in UTF-8.

    The last tenth of the text is `val`, the rest `train`. An epoch of training cuts the text into windows anew, at
    places that are a pure function of the seed and the epoch, and takes each once.
    """

    def __init__(
        self,
        *,
        path: Annotated[
            str, Field(description='a text file, or several ("docs/*.md"), relative to the folder of the pipeline file')
        ],
        length: Annotated[int, Field(ge=1, description="tokens that the model is given of a window")] = 64,
        split: Annotated[Literal["train", "val"], Field(description="the first nine tenths, or the rest")] = "train",
        batch_size: Annotated[int, Field(ge=1, description="windows in a batch")] = 32,
        seed: int,
        pipeline_dir: Path,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        files, text = read_text(path, pipeline_dir)
        cut = len(text) * 9 // 10
        self._text = text[:cut] if split == "train" else text[cut:]
        self._training, self._seed, self._length = split == "train", seed, length
        windows = (len(self._text) - 1) // length - self._training  # in training they begin anywhere in the first one
        if windows < batch_size:
            said = f"{path} has {max(windows, 0)} windows of {length} bytes for {split}, and a batch needs {batch_size}"
            raise UserError(Problem(said, hint="give it more text, or make batch_size or length smaller"))
        self._sharding = BatchSharding(windows, batch_size, drop_last=self._training, rank=rank, world=world)
        self.batch_size, self.global_batch_size = self._sharding.batch_size, self._sharding.global_batch_size
        self.info = DataInfo(
            name=path,
            examples=windows,
            batches=len(self._sharding),
            batch_size=batch_size,
            synthetic=False,
            note=f"{len(self._text):,} bytes of {files} file{'s' * (files > 1)}",
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self._sharding)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Tensor]:
        """Yield the batches of an epoch (counted from 0), from batch `start` on."""
        first = torch.arange(self._sharding.examples) * self._length
        if self._training:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            first = first[torch.randperm(len(first), generator=generator)]
            first += torch.randint(self._length, (1,), generator=generator)
        within = torch.arange(self._length + 1)
        for index in range(start, len(self)):
            yield self._text[self._sharding.shard(first, index)[:, None] + within].long()


def read_text(path: str, base: Path) -> tuple[int, Tensor]:
    """Return how many files match, and their bytes one after another, uint8. Raises UserError when there is none."""
    pattern = Path(path).expanduser()
    whole = pattern if pattern.is_absolute() else base / pattern
    files = sorted(file for file in whole.parent.glob(whole.name) if file.is_file())
    if not files:
        raise UserError(
            Problem(f"there is no text {whole}", hint="data.train.args.path names it, relative to the pipeline")
        )
    return len(files), torch.from_numpy(np.concatenate([np.fromfile(file, np.uint8) for file in files]))


def encode(text: str) -> Tensor:
    """Return a text as tokens, int64 (length,)."""
    return torch.tensor([*text.encode()], dtype=torch.int64)


def decode(tokens: Tensor) -> str:
    """Return tokens as a text; what is no UTF-8, since a model made it up, becomes �."""
    return bytes(tokens.tolist()).decode(errors="replace")
