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
from hookflow.numbers import format_count
from hookflow.runner.data.loader_parts import BatchSharding


class Text(BatchSharding):
    """Windows of a text: tokens, int64 (batch, length + 1), each a byte of it in UTF-8.

    The last tenth of the text is `val`, the rest `train`. An epoch of training cuts the text into
    windows anew, at places that are a pure function of the seed and the epoch, and takes each once.
    """

    def __init__(
        self,
        *,
        path: Annotated[
            str,
            Field(
                description=(
                    'a text file, or several ("docs/*.md"), relative to the folder of the pipeline'
                    " file"
                )
            ),
        ],
        length: Annotated[
            int, Field(ge=1, description="tokens that the model is given of a window")
        ] = 64,
        split: Annotated[
            Literal["train", "val"], Field(description="the first nine tenths, or the rest")
        ] = "train",
        batch_size: Annotated[int, Field(ge=1, description="windows in a batch")] = 32,
        seed: int,
        pipeline_dir: Path,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        num_files, text = read_text(path, pipeline_dir)
        begin_of_val = len(text) * 9 // 10
        self._training = split == "train"
        if self._training:
            self._text = text[:begin_of_val]
        else:
            self._text = text[begin_of_val:]
        self._seed = seed
        self._length = length
        windows = (len(self._text) - 1) // length
        if self._training:
            windows -= 1  # they begin anywhere in the first one
        if windows < batch_size:
            available = max(windows, 0)
            message = (
                f"{path} has {available} windows of {length} bytes for {split}, and a batch needs"
                f" {batch_size}"
            )
            raise UserError(
                Problem(message, hint="give it more text, or make batch_size or length smaller")
            )
        super().__init__(windows, batch_size, drop_last=self._training, rank=rank, world=world)
        note = f"{len(self._text):,} bytes of {format_count(num_files, 'file')}"
        self.info = self.describe(path, note, synthetic=False)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Tensor]:
        starts = torch.arange(self.examples) * self._length
        if self._training:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            order = torch.randperm(len(starts), generator=generator)
            starts = starts[order]
            starts += torch.randint(self._length, (1,), generator=generator)
        offsets = torch.arange(self._length + 1)
        for index in range(start, len(self)):
            batch_starts = self.shard(starts, index)
            positions = batch_starts[:, None] + offsets
            yield self._text[positions].long()


def read_text(path: str, base: Path) -> tuple[int, Tensor]:
    """Return how many files match, and their bytes one after another, uint8.

    Raises UserError when there is none.
    """
    pattern = Path(path).expanduser()
    if not pattern.is_absolute():
        pattern = base / pattern
    files = sorted(file for file in pattern.parent.glob(pattern.name) if file.is_file())
    if not files:
        hint = "data.train.args.path names it, relative to the pipeline"
        raise UserError(Problem(f"there is no text {pattern}", hint=hint))
    contents = [np.fromfile(file, np.uint8) for file in files]
    return len(files), torch.from_numpy(np.concatenate(contents))


def encode(text: str) -> Tensor:
    """Return a text as tokens, int64 (length,)."""
    return torch.tensor(list(text.encode()), dtype=torch.int64)


def decode(tokens: Tensor) -> str:
    """Return tokens as a text; what is no UTF-8, since a model made it up, becomes �."""
    return bytes(tokens.tolist()).decode(errors="replace")


VOCABULARY_SIZE = 256
"""Every byte is a token."""


class Block(nn.Module):
    """Causal self-attention and a perceptron, each behind a norm
    and beside a residual connection.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width, bias=False)
        self.gather = nn.Linear(width, width, bias=False)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.attend(self.norm1(x)).chunk(3, 2)
        query = self._split_heads(query)
        key = self._split_heads(key)
        value = self._split_heads(value)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.gather(attended.transpose(1, 2).flatten(2))
        hidden = functional.gelu(self.widen(self.norm2(x)))
        result: Tensor = x + self.narrow(hidden)
        return result

    def _split_heads(self, x: Tensor) -> Tensor:
        """Return (batch, length, width) as (batch, heads, length, width / heads)."""
        heads: Tensor = x.unflatten(2, (self.heads, -1))
        return heads.transpose(1, 2)


class CharGPT(nn.Module):
    """A transformer with learned positions (A. Radford and others, 2019), its output tied to its
    embedding.

    Takes tokens, int64 (batch, length), of at most `context`, and returns logits (batch, length,
    256).
    """

    def __init__(
        self,
        context: Annotated[
            int, Field(ge=1, description="the most tokens that it sees at once")
        ] = 64,
        width: Annotated[
            int, Field(ge=1, description="numbers that stand for a token; a multiple of `heads`")
        ] = 128,
        layers: Annotated[int, Field(ge=1, description="blocks of attention and perceptron")] = 4,
        heads: Annotated[int, Field(ge=1, description="heads of each attention")] = 4,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"the width, {width}, is no multiple of the {heads} heads")
        self.context = context
        self.token = nn.Embedding(VOCABULARY_SIZE, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.ndim != 2:
                continue
            std = 0.02
            # These two layers of each block add to the residual stream, whose variance would grow
            # with them.
            if name.endswith(("gather.weight", "narrow.weight")):
                std = 0.02 / (2 * layers) ** 0.5
            nn.init.normal_(parameter, std=std)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        x = self.norm(self.blocks(x))
        logits: Tensor = functional.linear(x, self.token.weight)
        return logits


def write(
    model: nn.Module, tokens: Tensor, count: int, temperature: float, context: int, seed: int
) -> Tensor:
    """Return tokens, int64 (length,), and `count` more that a model adds to them one by one.

    It draws from a generator of its own, so that nothing else of a run is drawn otherwise for it.
    """
    generator = torch.Generator(tokens.device).manual_seed(seed)
    for _ in range(count):
        logits = model(tokens[None, -context:])[0, -1].float()
        probabilities = (logits / temperature).softmax(0)
        next_token = torch.multinomial(probabilities, 1, generator=generator)
        tokens = torch.cat((tokens, next_token))
    return tokens
