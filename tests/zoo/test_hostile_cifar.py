"""Files of CIFAR-10 may hold anything: what comes of it is images and classes in range, or a problem with its name."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from hookflow.errors import UserError
from hookflow.zoo import cifar10 as module
from hookflow.zoo.cifar10 import FILES, FOLDER, RECORD, cifar10
from tests.garbling import seeds

RECORDS = 4
"""Images of a file, where the real ones have ten thousand."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "RECORDS", RECORDS)
    folder = tmp_path / FOLDER
    folder.mkdir()
    return folder


def whole() -> bytes:
    return b"".join(bytes([k]) + bytes([10 * k]) * (RECORD - 1) for k in range(RECORDS))


def mutated(chance: random.Random) -> bytes:
    """Return a file with bytes flipped, cut off, added, or with others altogether."""
    data = bytearray(whole())
    match chance.randrange(4):
        case 0:
            for _ in range(chance.randrange(1, 9)):
                data[chance.choice([0, RECORD, chance.randrange(len(data))])] = chance.randrange(256)
        case 1:
            del data[chance.randrange(len(data)) :]
        case 2:
            data += chance.randbytes(chance.choice([1, RECORD]))
        case _:
            data = bytearray(chance.randbytes(chance.choice([0, 1, len(data)])))
    return bytes(data)


def attack(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    split = chance.choice(list(FILES))
    for name in FILES[split]:
        path = folder / name
        path.write_bytes(mutated(chance) if chance.random() < 0.5 else whole())
        if chance.random() < 0.1:
            path.unlink()
            if chance.random() < 0.5:
                path.mkdir()
    try:
        made = cifar10(
            root=str(folder.parent),
            split=split,
            batch_size=2,
            download=False,
            augment=False,
            seed=0,
            device=torch.device("cpu"),
            say=lambda text: None,
        )
        for images, classes in made.epoch(0, 0):
            assert images.isfinite().all()
            assert ((classes >= 0) & (classes < 10)).all(), f"seed {seed}"
    except UserError as error:
        assert str(folder) in str(error), f"seed {seed}"
    for path in folder.iterdir():
        path.rmdir() if path.is_dir() else path.unlink()


@seeds(40)
def test_whatever_is_in_the_files(folder: Path, seeds: range) -> None:
    for seed in seeds:
        attack(folder, seed)
