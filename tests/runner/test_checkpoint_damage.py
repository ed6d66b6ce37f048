"""What a checkpoint may suffer: each damage is named, passed over, and runs no code. And what its names stand for."""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.errors import UserError
from hookflow.runner.checkpoint.manifest import MANIFEST, TRAINING, VERSION, damage, newest_good, read_manifest, seal
from hookflow.runner.checkpoint.store import CheckpointStore, read
from tests.conftest import Train, Trained, records
from tests.garbling import garbled, other_value, seeds
from tests.runner.test_checkpoint import names, save, store

__all__ = ["store"]


def changed(path: Path, **change: Any) -> None:
    manifest = path / MANIFEST
    manifest.write_text(seal(json.loads(manifest.read_text()) | change))


def without(path: Path, key: str) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest[key]
    (path / MANIFEST).write_text(seal(manifest))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def loop(path: Path) -> None:
    """Let a file be one that even root cannot open."""
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (lambda path: (path / "model.pt").write_bytes((path / "model.pt").read_bytes()[:-9]), "bytes instead of"),
        (lambda path: flip(path / "model.pt"), "model.pt is not what was written"),
        (lambda path: flip(path / TRAINING), "training.pt is not what was written"),
        (lambda path: (path / TRAINING).unlink(), "training.pt is missing"),
        (lambda path: (path / MANIFEST).unlink(), "manifest.json is missing"),
        (lambda path: (path / MANIFEST).write_text("{}"), "manifest.json is no manifest"),
        (lambda path: (path / MANIFEST).write_bytes(b"\xff\xfe"), "manifest.json is no manifest"),
        (lambda path: changed(path, files={}), "manifest.json is no manifest"),
        (lambda path: changed(path, files={TRAINING: {"bytes": 1}}), "manifest.json is no manifest"),
        (lambda path: changed(path, files=read_manifest(path)["files"] | {"x": {}}), "manifest.json is no manifest"),
        (lambda path: changed(path, files={TRAINING: {}, "../x": {}}), "manifest.json is no manifest"),
        (lambda path: changed(path, names={"../../elsewhere": "it00000001"}), "manifest.json is no manifest"),
        (lambda path: changed(path, names={"best": "../x"}), "manifest.json is no manifest"),
        (lambda path: changed(path, names={"": "it00000001"}), "manifest.json is no manifest"),
        (lambda path: changed(path, names={"best": "é" * 125}), "manifest.json is no manifest"),
        (lambda path: changed(path, it="x"), "manifest.json is no manifest"),
        (lambda path: without(path, "it"), "manifest.json is no manifest"),
        (lambda path: (path / MANIFEST).write_text("[" * 50_000), "manifest.json is no manifest"),
        (lambda path: loop(path / "model.pt"), "model.pt cannot be read: "),
        (lambda path: loop(path / MANIFEST), "manifest.json cannot be read: "),
        (lambda path: changed(path, version=99), f"in format 99, this one reads format {VERSION} alone"),
    ],
)
def test_it_is_named_and_passed_over(store: CheckpointStore, harm: Callable[[Path], object], expected: str) -> None:
    older, newest = save(store, 1), save(store, 2)
    harm(newest)
    assert expected in damage(newest)
    good, passed_over = newest_good(store.all())
    assert good == older
    assert len(passed_over) == 1
    assert expected in passed_over[0]
    with pytest.raises(UserError, match="cannot be used"):
        read(newest)


def test_a_metric_that_is_no_number_is_kept(store: CheckpointStore) -> None:
    path = store.save({"model": {}, "more": [1]}, ["last"], {"it": 1, "ep": 0, "metrics": {"loss": float("nan")}}).path
    assert damage(path) == ""
    assert math.isnan(read_manifest(path)["metrics"]["loss"])


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("pwned"),)


@pytest.mark.parametrize("file", [TRAINING, "model.pt"])
def test_a_file_that_would_run_code_is_refused_though_its_checksum_is_right(
    trained: Trained, train_here: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = trained("run.max_epochs=1")
    path = CheckpointStore(run_dir.checkpoints).all()[0]
    torch.save({"evil": Evil()}, path / file)
    files = read_manifest(path)["files"]
    data = (path / file).read_bytes()
    changed(path, files=files | {file: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}})
    assert damage(path) == ""
    assert train_here(run_dir, resume=True) == 2
    assert re.search(r"holds more than data: (?!it cannot be)\w", str(records(run_dir, "refused")[-1]["reason"]))
    assert not Path("pwned").exists()


def test_a_name_may_be_short_or_as_long_as_a_file_can_bear(store: CheckpointStore) -> None:
    known = ("x", "x" * 240, "ü" * 120)
    assert damage(save(store, 1, *known)) == ""
    assert names(store) == dict.fromkeys(known, "it00000001")


def test_a_name_that_a_checkpoint_has_is_no_link(store: CheckpointStore) -> None:
    older, newest = save(store, 1, "last"), save(store, 2, "last")
    changed(newest, names={"last": newest.name, older.name: newest.name})
    store.rewind(newest)
    assert names(store) == {"last": newest.name}
    assert [*store.all()] == [newest, older], "a folder stands there, which is left alone"


def test_a_rank_that_moves_down_takes_its_name_along(store: CheckpointStore) -> None:
    save(store, 1, "best")
    save(store, 2, "last", "best", **{"best-2": 1})
    assert names(store) == {"last": "it00000002", "best": "it00000002", "best-2": "it00000001"}
    save(store, 3, "best-2")
    assert names(store) == {"last": "it00000002", "best": "it00000002", "best-2": "it00000003"}
    store.prune(keep=1)
    assert [path.name for path in store.all()] == ["it00000003", "it00000002"], "the newest and the named stay"
    assert not list(store.folder.glob(".*"))


def test_names_go_back_to_what_they_stood_for(store: CheckpointStore) -> None:
    save(store, 1, "last", "best")
    save(store, 2, "last")
    then = names(store)
    save(store, 3, "last", "best", "other", **{"best-2": 1})
    (store.folder / "it00000003" / "model.pt").unlink()
    good, _ = newest_good(store.all())
    assert good is not None
    store.rewind(good)
    assert names(store) == then == {"last": "it00000002", "best": "it00000001"}


def test_the_manifest_says_what_it_is_of(trained: Trained) -> None:
    run_dir = trained("run.max_epochs=2")
    manifest = read_manifest(run_dir.checkpoints / "last")
    assert (manifest["it"], manifest["ep"], manifest["pipeline"]) == (10, 2, "toy")
    assert manifest["metrics"].keys() == {"loss", "accuracy"}
    assert manifest["names"]["last"] == "it00000010"
    assert manifest["torch"] == torch.__version__
    assert manifest["files"].keys() == {"model.pt", "model_ema.pt", "training.pt", "pipeline.toml", "plan.json"}
    for name, key in (("plan.json", "plan"), ("pipeline.toml", "pipeline.toml")):
        recorded = (run_dir.path / name).read_bytes()
        assert manifest["files"][name]["sha256"] == hashlib.sha256(recorded).hexdigest(), key


@pytest.fixture
def recorded(tmp_path: Path) -> CheckpointStore:
    """A store with two checkpoints that have every kind of file and of entry."""
    store = CheckpointStore(tmp_path / "recorded", {"pipeline.toml": "[run]\n", "plan.json": "{}"})
    for it in (1, 2):
        state = {"model": {"w": torch.ones(3) * it}, "optimizer": {"lr": 0.1}, "more": [it, "x"]}
        store.save(state, ["last"], {"it": it, "ep": 0, "metrics": {"loss": 0.5}, "metrics_it": it})
    return store


@pytest.mark.parametrize("of_a_file", [60, pytest.param(1 << 20, marks=pytest.mark.long)], ids=["some", "all"])
def test_every_byte_of_one_may_be_another(recorded: CheckpointStore, of_a_file: int) -> None:
    """Of a manifest each is tried, and no file but it is read then."""
    newest = recorded.all()[0]
    for path in sorted(newest.iterdir()):
        whole, sealed = path.read_bytes(), path.name == MANIFEST
        for k in range(0, len(whole), 1 if sealed else max(len(whole) // of_a_file, 1)):
            path.write_bytes(whole[:k] + bytes([whole[k] ^ 1 << k % 8]) + whole[k + 1 :])
            assert damage(newest, thorough=not sealed), (path.name, k)
            assert sealed or recorded.load(newest), "it is found as the file is read"
        path.write_bytes(whole)
    assert not damage(newest)


@seeds(100)
def test_whatever_is_wrong_in_one(recorded: CheckpointStore, seeds: range) -> None:
    """A garbled file is found. A manifest that is sealed as it should be may say anything, but leads nowhere else."""
    newest, older = recorded.all()
    manifest = newest / MANIFEST
    for seed in seeds:
        chance = random.Random(seed)
        victim = chance.choice(sorted(newest.iterdir()))
        whole, sealed = victim.read_bytes(), manifest.read_bytes()
        if (harmed := garbled(whole, chance)) != whole:
            victim.write_bytes(harmed)
            assert damage(newest), f"seed {seed}, {victim.name}"
            assert newest_good(recorded.all())[0] == older
            victim.write_bytes(whole)
        forged: Any = json.loads(other_value(sealed, chance))
        if isinstance(forged, dict):
            manifest.write_text(seal(forged))
            if not damage(newest):
                names = (*read_manifest(newest)["files"], *read_manifest(newest)["names"])
                assert all(name and "/" not in name and not name.startswith(".") for name in names), f"seed {seed}"
                recorded.rewind(newest)
            newest_good(recorded.all())
            manifest.write_bytes(sealed)
            recorded.rewind(newest)
            assert all(path.parent == recorded.folder for path in recorded.names().values()), f"seed {seed}"
