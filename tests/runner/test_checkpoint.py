"""Checkpoints on disk: whole or absent, whenever the process is killed; and when a hook may ask for one."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections import OrderedDict, deque
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from hookflow.errors import UserError
from hookflow.runner.checkpoint import store as checkpoint
from hookflow.runner.checkpoint.manifest import TRAINING, damage, newest_good
from hookflow.runner.checkpoint.store import AbandonedError, CheckpointStore, read
from tests.conftest import Trained, messages, records
from tests.runner.same import assert_same
from tests.watchers import POINTS


def save(store: CheckpointStore, it: int, *names: str, **moved: int) -> Path:
    return store.save({"model": {"w": torch.ones(2) * it}, "more": [it]}, names, {"it": it, "ep": 0}, moved).path


def names(store: CheckpointStore) -> dict[str, str]:
    return {name: path.name for name, path in store.names().items()}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def test_what_is_saved_is_counted_and_closed(store: CheckpointStore) -> None:
    process = psutil.Process()
    before = process.num_fds()
    saved = store.save({"model": {}, "more": [7]}, ["last"], {"it": 7})
    assert saved.bytes == sum((saved.path / name).stat().st_size for name in ("model.pt", TRAINING))
    assert process.num_fds() <= before
    assert read(save(store, 7)) == {"model": {"w": pytest.approx(torch.tensor([7.0, 7.0]))}, "more": [7]}


def test_each_byte_is_read_once(store: CheckpointStore) -> None:
    state = {"model": {"w": torch.rand(1 << 20)}, "optimizer": [torch.rand(1 << k) for k in range(20)], "more": [1]}
    saved = store.save(state, [], {"it": 1, "ep": 0})
    before = psutil.Process().io_counters().read_chars
    path, _ = newest_good(store.all(), store.load)
    assert path == saved.path
    assert_same(store.take(path, torch.device("cpu"), None), state)
    assert saved.bytes <= psutil.Process().io_counters().read_chars - before < 1.01 * saved.bytes


def test_damaged_ones_make_room_and_do_not_count(store: CheckpointStore) -> None:
    one, two, nine = (save(store, it) for it in (1, 2, 9))
    (nine / "model.pt").write_bytes(b"")
    again = CheckpointStore(store.folder)
    assert newest_good(again.all())[0] == two
    three = save(again, 3)
    again.prune(keep=2)
    assert again.all() == [three, two]
    assert not one.exists()


def test_a_trail_is_thinned_out_within_its_bytes(store: CheckpointStore) -> None:
    """Gaps grow with the age, and what is damaged does not count."""
    bytes_of_all = 8 * sum(file.stat().st_size + 8 for file in save(store, 1, "best").iterdir())
    for it in range(2, 131):
        save(store, it, "last")
        if it == 40:
            (store.all()[1] / "model.pt").write_bytes(b"")
        store.prune(keep=2, trail=bytes_of_all)
    its = [int(path.name[2:]) for path in store.all()]
    assert its[:3] == [130, 129, 128] and its[-1] == 1 and 9 <= len(its) <= 11
    gaps = [newer - older for newer, older in pairwise(its)]
    assert all(gap <= 4 * (131 - newer) for gap, newer in zip(gaps[:-1], its, strict=False)), its
    assert gaps[:-1] == sorted(gaps[:-1]) and its[-2] < 90, its
    store.prune(keep=2)
    assert [int(path.name[2:]) for path in store.all()] == [130, 129, 1]


def test_checkpoints_none_of_which_is_whole_are_no_reason_to_begin_anew(store: CheckpointStore) -> None:
    for it in (1, 2):
        (save(store, it) / "model.pt").unlink()
    with pytest.raises(UserError, match=r"it00000002 cannot be used .*model.pt is missing"):
        newest_good(store.all())


@pytest.mark.parametrize("backwards", [False, True])
def test_they_are_ordered_by_number_and_not_as_in_the_folder(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, backwards: bool
) -> None:
    paths = [save(store, it) for it in (99_999_999, *[100_000_000] * 12)]
    assert paths[2].name == "it100000000.1"
    stray = store.folder / "it00000005-copy"
    listed = [*paths, stray]
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(listed[::-1] if backwards else listed))
    assert store.all() == paths[::-1]


def test_only_what_the_manifest_knows_is_read(store: CheckpointStore) -> None:
    path = save(store, 1)
    (path / "model_stray.pt").write_bytes(b"not ours")
    assert read(path).keys() == {"model", "more"}


def test_a_write_that_is_called_off_leaves_nothing(store: CheckpointStore) -> None:
    first = save(store, 1, "last")
    store.abandon()
    with pytest.raises(AbandonedError):
        save(store, 2, "last")
    assert sorted(path.name for path in store.folder.iterdir()) == ["it00000001", "last"]
    assert newest_good(store.all())[0] == first


def test_killed_at_any_line_there_is_a_good_one(store: CheckpointStore, tmp_path: Path) -> None:
    """Before each line that saving and pruning run, keep what a kill there leaves behind, if it is something new."""
    save(store, 1, "last", "best")
    save(store, 2, "last")
    copies: dict[tuple[object, ...], Path] = {}

    def keep_a_copy(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != checkpoint.__file__:
            return None
        if event == "line":
            paths = sorted(store.folder.rglob("*"))
            left = tuple((path, path.lstat().st_size, path.is_symlink() and path.readlink()) for path in paths)
            if left not in copies:
                copies[left] = tmp_path / f"copy{len(copies)}"
                shutil.copytree(store.folder, copies[left], symlinks=True)
        return keep_a_copy

    before = sys.gettrace()
    sys.settrace(keep_a_copy)
    try:
        third = save(store, 3, "last", "best")
        store.prune(keep=1)
    finally:
        sys.settrace(before)
    assert store.all() == [third]
    assert len(copies) > 10
    result = set()
    for copy in copies.values():
        left = CheckpointStore(copy)
        left.clear_leftovers()
        good, passed_over = newest_good(left.all())
        assert good is not None
        assert not passed_over, "what is not whole bears no name of a checkpoint"
        assert all(not damage(path) for path in left.names().values())
        result.add(good.name)
        newest = save(left, 4, "last")
        left.prune(keep=1)
        assert left.all()[0] == newest
        assert not list(copy.glob(".it*"))
    assert result == {"it00000002", "it00000003"}


def test_a_hook_may_ask_for_a_checkpoint_anywhere(trained: Trained) -> None:
    """Under a name for each point. After the run it is too late, which is reported; two points do not fire."""
    points = {point.name for point in POINTS if "predict" not in point.name}
    asks = [f'hooks.{name}={{use="./watchers.py:Asks", args={{point="{name}", by="{name}"}}}}' for name in points]
    run_dir = trained("run.max_epochs=1", "run.test=true", "hooks.checkpoint.points=['after_val']", *asks)
    saved = {name for record in records(run_dir, "checkpoint") for name in record["names"]}  # type: ignore[attr-defined]
    assert saved & points == points - {"after_load_checkpoint", "on_exception", "after_run"}
    assert len([text for text in messages(run_dir) if "request ignored" in text]) == 1
    assert not [path for path in CheckpointStore(run_dir.checkpoints).all() if damage(path)]


@pytest.mark.parametrize("name", ["a/b", "../b", "", ".b", "b\n", "b" * 241, "it00000001"])
def test_a_name_that_no_checkpoint_can_go_by_is_refused(trained: Trained, name: str) -> None:
    args = f'{{point="before_train", by={json.dumps(name)}}}'
    run_dir = trained(f'hooks.asks={{use="./watchers.py:Asks", args={args}}}', code=2)
    (error,) = records(run_dir, "error")
    assert (error["hook"], error["point"]) == ("asks", "before_train")
    assert f"no checkpoint can go by the name {json.dumps(name)}" in str(error["text"])
    assert not run_dir.checkpoints.exists()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"best": np.float64(1)}, "['best'] is a numpy.float64"),
        ([1, {"a": (Path("x"),)}], "[1]['a'][0] is a pathlib"),
        (frozenset([1, 2]), " is a builtins.frozenset"),
        (deque([1]), " is a collections.deque"),
        ({"extra": np.ones(2)}, "['extra'] is a numpy.ndarray, which cannot be loaded again; a tensor can be"),
        ({"lock": threading.Lock()}, "['lock'] is a _thread.lock"),
        ([lambda: 0], "[0] is a builtins.function"),
        ({(1, np.int64(2)): 3}, "['a key'][1] is a numpy.int64"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.parametrize("entry", ["hooks", "model", "optimizer_d"])
def test_what_could_not_be_read_back_is_refused(store: CheckpointStore, entry: str, value: Any, expected: str) -> None:
    store.save({"model": {}, "hooks": {}}, [], {"it": 1, "ep": 0})
    with pytest.raises(TypeError) as caught:
        store.save({"model": {}, "hooks": {}, entry: value}, [], {"it": 2, "ep": 0})
    assert f"checkpoint['{entry}']{expected}" in str(caught.value)
    assert [path.name for path in store.all()] == ["it00000001"], "the one before stands"


def test_what_is_not_refused_reads_back(store: CheckpointStore) -> None:
    plain = {"a": [1, 2.5, "x", None, True, b"y"], "b": (torch.ones(1), torch.nn.Parameter(torch.ones(1)))}
    state = {"model": {}, "hooks": OrderedDict(plain), "more": {1: plain, (2, "x"): []}}
    assert read(store.save(state, [], {"it": 1, "ep": 0}).path).keys() == state.keys()
