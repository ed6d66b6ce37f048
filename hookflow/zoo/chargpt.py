"""A small GPT over bytes, and how it writes."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

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
