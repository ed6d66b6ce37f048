"""`copy_to` of `checkpoint`: copies in another folder or at a URL, beside the training."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hookflow.runner.checkpoint import copies
from hookflow.runner.checkpoint.copies import Copies
from hookflow.runner.checkpoint.manifest import damage
from hookflow.runner.checkpoint.store import CheckpointStore, read
from tests.cli.conftest import refused
from tests.conftest import Trained
from tests.runner.same import assert_same
from tests.runner.test_checkpoint import save

TOY = Path(__file__).parents[1] / "toy.toml"


def copying(place: str, more: str = "") -> str:
    return f'hooks.checkpoint.args={{monitor="accuracy", copy_to="{place}"{more}}}'


@pytest.mark.parametrize("scheme", ["", "file://"], ids=["a folder", "a URL"])
def test_each_checkpoint_is_there_by_its_names(trained: Trained, tmp_path: Path, scheme: str) -> None:
    run_dir = trained(copying(f"{scheme}{tmp_path}/out/{{run}}/{{name}}", ", weights_only=true"))
    there = tmp_path / "out" / "toy"
    assert {path.name for path in there.iterdir()} == {"last", "best"}
    for name in ("last", "best"):
        assert not damage(there / name)
        assert_same(read(there / name), read(run_dir.checkpoints / name))
    assert not [*run_dir.checkpoints.glob(".*copy*")]


def test_a_place_is_named_after_what_a_checkpoint_has(trained: Trained, tmp_path: Path) -> None:
    trained(copying(f"{tmp_path}/out/ep={{ep}}-acc={{accuracy:.2f}}"))
    assert {path.name.partition("-")[0] for path in (tmp_path / "out").iterdir()} == {"ep=1", "ep=2", "ep=3"}
    assert not [path for path in (tmp_path / "out").iterdir() if "{" in path.name]


def test_what_fails_is_tried_again_and_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "PAUSES", (0.01, 0.01))
    (tmp_path / "full").write_text("no folder")
    said: list[Any] = []
    store = CheckpointStore(tmp_path / "checkpoints")
    store.copies = Copies([(f"{tmp_path}/full/{{name}}", {"last"})], {}, lambda *line: said.append(line))
    save(store, 1, "last")
    store.finish_copies()
    assert [line[1] for line in said] == ["warn"] * 3
    assert "could not be copied to" in said[0][0] and "next try in 0.01 s" in said[0][0]
    assert "the copy is given up" in said[-1][0]
    (tmp_path / "full").unlink()
    save(store, 2, "last")
    store.finish_copies()
    assert read(tmp_path / "full" / "last")["more"] == [2]
    assert not store.clear_leftovers() and not [*store.folder.glob(".*copy*")]


def test_what_is_removed_meanwhile_is_copied_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    store.copies = Copies([(f"{tmp_path}/out/{{it}}", {"last"})], {}, print)
    put = copies.put
    monkeypatch.setattr(copies, "put", lambda *where: (store.prune(1), put(*where)))
    paths = [save(store, it, "last") for it in (1, 2, 3)]
    store.finish_copies()
    assert not paths[0].exists()
    assert all(not damage(tmp_path / "out" / str(it)) for it in (1, 2, 3))


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("/out/{iter}", 'copy_to has "{iter}": it takes run, id, name, it, ep, accuracy, and the metrics of monitor'),
        ("/out/{accuracy:.2q}", "Unknown format code 'q'"),
        ("nowhere://out", "copy_to cannot use nowhere://: Protocol not known: nowhere"),
    ],
)
def test_a_mistake_is_reported_before_the_training(tmp_path: Path, place: str, why: str) -> None:
    shutil.copy(TOY, tmp_path / "toy.toml")
    assert why in refused("check", tmp_path / "toy.toml", "--set", copying(place))
