"""A small GPT over bytes, and how it writes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from hookflow.errors import Problem, UserError
from hookflow.numbers import counted
from hookflow.runner.data.loader_parts import BatchSharding


class Text(BatchSharding):
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
            message = (
                f"{path} has {max(windows, 0)} windows of {length} bytes for {split}, and a batch needs {batch_size}"
            )
            raise UserError(Problem(message, hint="give it more text, or make batch_size or length smaller"))
        super().__init__(windows, batch_size, drop_last=self._training, rank=rank, world=world)
        self.info = self.describe(path, f"{len(self._text):,} bytes of {counted(files, 'file')}", synthetic=False)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Tensor]:
        first = torch.arange(self.examples) * self._length
        if self._training:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            first = first[torch.randperm(len(first), generator=generator)]
            first += torch.randint(self._length, (1,), generator=generator)
        within = torch.arange(self._length + 1)
        for index in range(start, len(self)):
            yield self._text[self.shard(first, index)[:, None] + within].long()


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


VOCABULARY = 256
"""Every byte is a token."""


class Block(nn.Module):
    """Causal self-attention and a perceptron, each behind a norm and beside a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width, bias=False)
        self.gather = nn.Linear(width, width, bias=False)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.attend(self.norm1(x)).chunk(3, 2)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.gather(seen.transpose(1, 2).flatten(2))
        result: Tensor = x + self.narrow(functional.gelu(self.widen(self.norm2(x))))
        return result


class CharGPT(nn.Module):
    """A transformer with learned positions (A. Radford and others, 2019), its output tied to its embedding.

    Takes tokens, int64 (batch, length), of at most `context`, and returns logits (batch, length, 256).
    """

    def __init__(
        self,
        context: Annotated[int, Field(ge=1, description="the most tokens that it sees at once")] = 64,
        width: Annotated[int, Field(ge=1, description="numbers that stand for a token; a multiple of `heads`")] = 128,
        layers: Annotated[int, Field(ge=1, description="blocks of attention and perceptron")] = 4,
        heads: Annotated[int, Field(ge=1, description="heads of each attention")] = 4,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"the width, {width}, is no multiple of the {heads} heads")
        self.context = context
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:  # what is added to the residual stream begins small: there are two a layer
                last = name.endswith(("gather.weight", "narrow.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if last else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        at = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.token(tokens) + self.position(at)))
        return functional.linear(x, self.token.weight)


def write(model: nn.Module, tokens: Tensor, count: int, temperature: float, context: int, seed: int) -> Tensor:
    """Return tokens, int64 (length,), and `count` more that a model adds to them one by one.

    It draws from a generator of its own, so that nothing else of a run is drawn otherwise for it.
    """
    generator = torch.Generator(tokens.device).manual_seed(seed)
    for _ in range(count):
        logits = model(tokens[None, -context:])[0, -1].float()
        chances = (logits / temperature).softmax(0)
        tokens = torch.cat((tokens, torch.multinomial(chances, 1, generator=generator)))
    return tokens
