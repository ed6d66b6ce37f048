"""Any byte of a checkpoint may be another, cut off or added: it is named and passed over, and nothing runs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.errors import UserError
from hookflow.runner.checkpoint.manifest import MANIFEST, damage, read_manifest, seal
from hookflow.runner.checkpoint.store import CheckpointStore, read
from tests.garbling import garbled, other_value, seeds

CPU = torch.device("cpu")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints", {"pipeline.toml": "[run]\n", "plan.json": "{}"})
    for it in (1, 2):
        state = {"model": {"w": torch.ones(3) * it}, "optimizer": {"lr": 0.1}, "more": [it, "x"]}
        store.save(state, ["last"], {"it": it, "ep": 0, "metrics": {"loss": 0.5}, "metrics_it": it})
    return store


def refused(store: CheckpointStore, what: str) -> None:
    """Hold that the newest checkpoint is damaged, is not read, and the one before it is taken."""
    newest, older = store.all()
    assert damage(newest), what
    with pytest.raises(UserError, match="cannot be used"):
        read(newest, CPU)
    good, passed_over = store.newest_good()
    assert (good, len(passed_over)) == (older, 1), what


def attack(store: CheckpointStore, seed: int) -> None:
    """Garble one file of the newest checkpoint; put it back."""
    chance = random.Random(seed)
    newest = store.all()[0]
    victim = chance.choice(sorted(newest.iterdir()))
    whole = victim.read_bytes()
    harmed = garbled(whole, chance)
    if harmed != whole:
        victim.write_bytes(harmed)
        refused(store, f"seed {seed}, {victim.name}")
        victim.write_bytes(whole)


def forge(store: CheckpointStore, seed: int) -> None:
    """Put a manifest in the place of the newest one that says something else, and is sealed as it should be."""
    newest = store.all()[0]
    manifest = newest / MANIFEST
    whole = manifest.read_bytes()
    result: Any = json.loads(other_value(whole, random.Random(seed)))
    if isinstance(result, dict):
        manifest.write_text(seal(result))
        if not damage(newest):
            forged = read_manifest(newest)
            names = (*forged["files"], *forged.get("names", {}))
            assert all(name and "/" not in name and not name.startswith(".") for name in names), f"seed {seed}"
            store.rewind(newest)
        store.newest_good()
    manifest.write_bytes(whole)
    store.rewind(newest)
    assert all(path.parent == store.folder for path in store.names().values())


@pytest.mark.parametrize("of_a_file", [60, pytest.param(1 << 20, marks=pytest.mark.long)], ids=["some", "all"])
def test_every_byte_of_one(store: CheckpointStore, of_a_file: int) -> None:
    newest = store.all()[0]
    for path in sorted(newest.iterdir()):
        whole = path.read_bytes()
        for k in range(0, len(whole), max(len(whole) // of_a_file, 1)):
            path.write_bytes(whole[:k] + bytes([whole[k] ^ 1 << k % 8]) + whole[k + 1 :])
            assert damage(newest), (path.name, k)
        path.write_bytes(whole)
    assert not damage(newest)


@seeds(150)
def test_whatever_is_wrong_in_one(store: CheckpointStore, seeds: range) -> None:
    for seed in seeds:
        attack(store, seed)


@seeds(80)
def test_whatever_a_sealed_manifest_says(store: CheckpointStore, seeds: range) -> None:
    for seed in seeds:
        forge(store, seed)
