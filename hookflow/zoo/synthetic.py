"""Drawn pictures in CIFAR-10's format, for where the real ones cannot be had: ten classes of shapes and textures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from hookflow.zoo.pictures import Pictures

SPLITS = {"train": 8_000, "val": 1_000, "test": 1_000}
"""Pictures of each split, the ten classes in equal parts."""

SIDE = 32
NOTE = "drawn by hookflow: an accuracy on these pictures says nothing about CIFAR-10"


def synthetic(
    *,
    split: Literal["train", "val", "test"] = "train",
    batch_size: Annotated[int, Field(ge=1)] = 256,
    limit: Annotated[int, Field(ge=1)] | None = None,
    augment: bool | None = None,
    sizes: Sequence[Annotated[int, Field(ge=1)]] = (),
    seed: int,
    device: torch.device,
    say: Callable[[str], None],
    rank: int = 0,
    world: int = 1,
) -> Pictures:
    """Return one split of the drawn pictures on `device`: 8,000 to train, 1,000 to validate and 1,000 to test.

    The pictures are the same whatever the run's `seed`, which orders and augments them. The arguments are those of
    `hookflow.zoo.cifar10:cifar10`.
    """
    generator = torch.Generator().manual_seed(list(SPLITS).index(split))
    classes = (torch.randperm(SPLITS[split], generator=generator) % len(PATTERNS))[:limit]
    say(f"SYNTHETIC {split}: drawing {len(classes):,} pictures")
    training = split == "train"
    return Pictures(
        draw(classes, generator),
        classes,
        name="drawn shapes",
        batch_size=batch_size,
        training=training,
        augment=training if augment is None else augment,
        sizes=sizes,
        seed=seed,
        device=device,
        rank=rank,
        world=world,
        synthetic=True,
        note=NOTE,
    )


def draw(classes: Tensor, generator: torch.Generator) -> Tensor:
    """Return a picture, uint8 (32, 32, 3), of each class: each with its own place, size, turn, colours and noise."""
    examples = len(classes)
    u, v = _axes(examples, generator)
    inside = torch.empty_like(u)
    for number, pattern in enumerate(PATTERNS):
        rows = classes == number
        inside[rows] = pattern(u[rows], v[rows])
    cover = (8 * inside).sigmoid().unsqueeze(3)
    front, back = _colours(examples, generator)
    noise = torch.randn(examples, SIDE, SIDE, 3, generator=generator) * _uniform(0.02, 0.2, examples, generator)
    return torch.lerp(back, front, cover).add_(noise).clamp_(0, 1).mul_(255).to(torch.uint8)


def _axes(examples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the coordinates (examples, 32, 32) of every pixel as its picture's pattern sees them."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    right, down = (_uniform(-0.4, 0.4, examples, generator)[..., 0] for _ in "xy")
    size = _uniform(0.35, 0.8, examples, generator)[..., 0]
    turn = _uniform(-torch.pi, torch.pi, examples, generator)[..., 0]
    x, y = (x - right) / size, (y - down) / size
    return turn.cos() * x - turn.sin() * y, turn.sin() * x + turn.cos() * y


def _colours(examples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return two colours (examples, 1, 1, 3) a picture, which differ by at least 0.2 in one channel."""
    front, back = torch.rand(2, examples, 1, 1, 3, generator=generator)
    channel = torch.randint(3, (examples, 1, 1, 1), generator=generator)
    there = back.gather(3, channel)
    apart = _uniform(0.2, 0.6, examples, generator)
    return front.scatter(3, channel, torch.where(there < 0.5, there + apart, there - apart)), back


def _uniform(low: float, high: float, examples: int, generator: torch.Generator) -> Tensor:
    return torch.rand(examples, 1, 1, 1, generator=generator) * (high - low) + low


# Each pattern is a height over the plane: above zero inside, below zero outside.


def _disc(u: Tensor, v: Tensor) -> Tensor:
    return 1 - u.hypot(v)


def _ring(u: Tensor, v: Tensor) -> Tensor:
    return 0.25 - (u.hypot(v) - 0.75).abs()


def _square(u: Tensor, v: Tensor) -> Tensor:
    return 0.85 - torch.maximum(u.abs(), v.abs())


def _cross(u: Tensor, v: Tensor) -> Tensor:
    u, v = u.abs(), v.abs()
    return torch.minimum(0.3 - torch.minimum(u, v), 1 - torch.maximum(u, v))


def _triangle(u: Tensor, v: Tensor) -> Tensor:
    return 0.55 - torch.maximum(v, u.abs() * 0.75**0.5 - v / 2)


def _stripes(u: Tensor, v: Tensor) -> Tensor:
    return (5 * u).sin() / 2


def _checks(u: Tensor, v: Tensor) -> Tensor:
    return (4 * u).sin() * (4 * v).sin()


def _dots(u: Tensor, v: Tensor) -> Tensor:
    return ((6 * u).cos() + (6 * v).cos()) / 2 - 0.4


def _ripples(u: Tensor, v: Tensor) -> Tensor:
    return (6 * u.hypot(v)).sin() / 2


def _rays(u: Tensor, v: Tensor) -> Tensor:
    return (5 * torch.atan2(v, u)).sin() * u.hypot(v) / 2


PATTERNS = (_disc, _ring, _square, _cross, _triangle, _stripes, _checks, _dots, _ripples, _rays)
