"""Checkpoints on disk: whole or absent; each damage is named, passed over, and runs no code."""

import hashlib
import json
import math
import os
import random
import re
import shutil
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
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
from hookflow.runner.checkpoint.manifest import (
    MANIFEST_FILE,
    TRAINING_FILE,
    VERSION,
    find_damage,
    find_newest_good,
    is_valid_alias,
    make_sealed_text,
    read_manifest,
)
from hookflow.runner.checkpoint.store import AbandonedError, CheckpointStore, read
from tests.conftest import Train, Trained, messages, records
from tests.runner.same import assert_same
from tests.support.checkpoint_files import Evil, save
from tests.support.common_hooks import POINTS
from tests.support.corruption import garbled, other_value, seeds


def names(store: CheckpointStore) -> dict[str, str]:
    return {name: path.name for name, path in store.names().items()}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def test_what_is_saved_is_counted_closed_and_alone_read(store: CheckpointStore) -> None:
    process = psutil.Process()
    before = process.num_fds()
    saved = store.save({"model": {}, "more": [7]}, ["last"], {"it": 7})
    assert saved.bytes == sum(
        (saved.path / name).stat().st_size for name in ("model.pt", TRAINING_FILE)
    )
    assert process.num_fds() <= before
    assert read(save(store, 7)) == {
        "model": {"w": pytest.approx(torch.tensor([7.0, 7.0]))},
        "more": [7],
    }
    path = save(store, 1)
    (path / "model_stray.pt").write_bytes(b"not ours")
    assert read(path).keys() == {"model", "more"}


def test_each_byte_is_read_once(store: CheckpointStore) -> None:
    state = {
        "model": {"w": torch.rand(1 << 20)},
        "optimizer": [torch.rand(1 << k) for k in range(20)],
        "more": [1],
    }
    saved = store.save(state, [], {"it": 1, "ep": 0})
    before = psutil.Process().io_counters().read_chars
    path, _ = find_newest_good(store.all(), store.load)
    assert path == saved.path
    assert_same(store.take(path, torch.device("cpu"), None), state)
    assert saved.bytes <= psutil.Process().io_counters().read_chars - before < 1.01 * saved.bytes


def test_damaged_ones_make_room_and_do_not_count(store: CheckpointStore) -> None:
    one, two, nine = (save(store, it) for it in (1, 2, 9))
    (nine / "model.pt").write_bytes(b"")
    again = CheckpointStore(store.folder)
    assert find_newest_good(again.all())[0] == two
    three = save(again, 3)
    again.prune(keep=2)
    assert again.all() == [three, two]
    assert not one.exists()


@pytest.mark.parametrize("called", ["it00000001", "kept"])
def test_of_a_checkpoint_on_another_disk_retention_removes_the_link_alone(
    store: CheckpointStore, tmp_path: Path, called: str
) -> None:
    """The user has moved it there and linked it: it has no name by that,
    and counts like any other.
    """

    def moved(path: Path, folder: str) -> Path:
        there = tmp_path / folder / called
        there.parent.mkdir()
        path.rename(there)
        path.symlink_to(there)
        return there

    best, old, new = save(store, 1, "best"), save(store, 2, "last"), save(store, 3, "last")
    places = [moved(path, f"disk {path.name}") for path in (best, old)]
    assert names(store) == {"best": "it00000001", "last": "it00000003"}
    store.rewind(new)
    assert store.all() == [new, old, best], "a resume leaves it where it is"
    newest = save(store, 4, "last")
    assert read_manifest(newest)["names"] == {"best": "it00000001", "last": "it00000004"}
    store.prune(keep=2)
    assert store.all() == [newest, new, best], "a linked one with a name stays"
    assert not old.is_symlink()
    assert [find_damage(place) for place in places] == ["", ""], "what is linked is left alone"
    assert_same(read(best)["model"]["w"], torch.ones(2))
    store.rewind(new, forget=True)
    assert store.all() == [new, best]


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


def test_checkpoints_none_of_which_is_whole_are_no_reason_to_begin_anew(
    store: CheckpointStore,
) -> None:
    for it in (1, 2):
        (save(store, it) / "model.pt").unlink()
    wrong = (
        r"(?s)it00000002 cannot be used .*model.pt is missing.*once .* is moved away, a resume"
        r" starts at the beginning"
    )
    with pytest.raises(UserError, match=wrong):
        find_newest_good(store.all())


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


def test_a_write_that_is_called_off_leaves_nothing(store: CheckpointStore) -> None:
    first = save(store, 1, "last")
    store.abandon()
    with pytest.raises(AbandonedError):
        save(store, 2, "last")
    assert sorted(path.name for path in store.folder.iterdir()) == ["it00000001", "last"]
    assert find_newest_good(store.all())[0] == first


def test_killed_at_any_line_there_is_a_good_one(store: CheckpointStore, tmp_path: Path) -> None:
    """Before each line that saving and pruning run, keep what a kill there leaves behind,
    if it is something new.
    """
    save(store, 1, "last", "best")
    save(store, 2, "last")
    copies: dict[tuple[object, ...], Path] = {}

    def keep_a_copy(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != checkpoint.__file__:
            return None
        if event == "line":
            paths = sorted(store.folder.rglob("*"))
            left = tuple(
                (path, path.lstat().st_size, path.is_symlink() and path.readlink())
                for path in paths
            )
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
        good, passed_over = find_newest_good(left.all())
        assert good is not None
        assert not passed_over, "what is not whole bears no name of a checkpoint"
        assert all(not find_damage(path) for path in left.names().values())
        result.add(good.name)
        newest = save(left, 4, "last")
        left.prune(keep=1)
        assert left.all()[0] == newest
        assert not list(copy.glob(".it*"))
    assert result == {"it00000002", "it00000003"}


def test_a_hook_may_ask_for_a_checkpoint_anywhere(trained: Trained) -> None:
    """Under a name for each point.

    After the run it is too late, which is reported; two points do not fire.
    """
    points = {point.name for point in POINTS if "predict" not in point.name}
    asks = [
        f'hooks.{name}={{use="./common_hooks.py:Asks", args={{point="{name}", by="{name}"}}}}'
        for name in points
    ]
    run_dir = trained(
        "run.max_epochs=1", "run.test=true", "hooks.checkpoint.points=['after_val']", *asks
    )
    saved = {name for record in records(run_dir, "checkpoint") for name in record["names"]}  # type: ignore[attr-defined]
    assert saved & points == points - {"after_load_checkpoint", "on_exception", "after_run"}
    assert len([text for text in messages(run_dir) if "request ignored" in text]) == 1
    assert not [path for path in CheckpointStore(run_dir.checkpoints).all() if find_damage(path)]


def test_a_name_that_no_checkpoint_can_go_by_is_refused(trained: Trained) -> None:
    assert not any(map(is_valid_alias, ("a/b", "../b", "", ".b", "b\n", "b" * 241, "it00000001")))
    run_dir = trained(
        'hooks.asks={use="./common_hooks.py:Asks", args={point="before_train", by="a/b"}}', code=2
    )
    (error,) = records(run_dir, "error")
    assert (error["hook"], error["point"]) == ("asks", "before_train")
    assert 'the name "a/b"' in str(error["text"])
    assert not run_dir.checkpoints.exists()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"best": np.float64(1)}, "['best'] is a numpy.float64"),
        ([1, {"a": (Path("x"),)}], "[1]['a'][0] is a pathlib"),
        (frozenset([1, 2]), " is a builtins.frozenset"),
        (deque([1]), " is a collections.deque"),
        (
            {"extra": np.ones(2)},
            "['extra'] is a numpy.ndarray, which cannot be loaded again; a tensor can be",
        ),
        ({"lock": threading.Lock()}, "['lock'] is a _thread.lock"),
        ([lambda: 0], "[0] is a builtins.function"),
        ({(1, np.int64(2)): 3}, "['a key'][1] is a numpy.int64"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.parametrize("entry", ["hooks", "model", "optimizer_d"])
def test_what_could_not_be_read_back_is_refused(
    store: CheckpointStore, entry: str, value: Any, expected: str
) -> None:
    store.save({"model": {}, "hooks": {}}, [], {"it": 1, "ep": 0})
    with pytest.raises(TypeError) as caught:
        store.save({"model": {}, "hooks": {}, entry: value}, [], {"it": 2, "ep": 0})
    assert f"checkpoint['{entry}']{expected}" in str(caught.value)
    assert [path.name for path in store.all()] == ["it00000001"], "the one before stands"


def test_what_is_not_refused_reads_back_and_a_metric_may_be_no_number(
    store: CheckpointStore,
) -> None:
    plain = {
        "a": [1, 2.5, "x", None, True, b"y"],
        "b": (torch.ones(1), torch.nn.Parameter(torch.ones(1))),
    }
    state = {"model": {}, "hooks": OrderedDict(plain), "more": {1: plain, (2, "x"): []}}
    assert read(store.save(state, [], {"it": 1, "ep": 0}).path).keys() == state.keys()
    path = store.save(
        {"model": {}, "more": [1]}, ["last"], {"it": 1, "ep": 0, "metrics": {"loss": float("nan")}}
    ).path
    assert find_damage(path) == ""
    assert math.isnan(read_manifest(path)["metrics"]["loss"])


def changed(path: Path, **change: Any) -> None:
    manifest = path / MANIFEST_FILE
    manifest.write_text(make_sealed_text(json.loads(manifest.read_text()) | change))


def without(path: Path, key: str) -> None:
    manifest = json.loads((path / MANIFEST_FILE).read_text())
    del manifest[key]
    (path / MANIFEST_FILE).write_text(make_sealed_text(manifest))


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
        (
            lambda path: (path / "model.pt").write_bytes((path / "model.pt").read_bytes()[:-9]),
            "bytes instead of",
        ),
        (lambda path: flip(path / "model.pt"), "model.pt is not what was written"),
        (lambda path: flip(path / TRAINING_FILE), "training.pt is not what was written"),
        (lambda path: (path / TRAINING_FILE).unlink(), "training.pt is missing"),
        (lambda path: (path / MANIFEST_FILE).unlink(), "manifest.json is missing"),
        (lambda path: (path / MANIFEST_FILE).write_text("{}"), "manifest.json is no manifest"),
        (
            lambda path: (path / MANIFEST_FILE).write_bytes(b"\xff\xfe"),
            "manifest.json is no manifest",
        ),
        (lambda path: changed(path, files={}), "manifest.json is no manifest"),
        (
            lambda path: changed(path, files={TRAINING_FILE: {"bytes": 1}}),
            "manifest.json is no manifest",
        ),
        (
            lambda path: changed(path, files=read_manifest(path)["files"] | {"x": {}}),
            "manifest.json is no manifest",
        ),
        (
            lambda path: changed(path, files={TRAINING_FILE: {}, "../x": {}}),
            "manifest.json is no manifest",
        ),
        (
            lambda path: changed(path, names={"../../elsewhere": "it00000001"}),
            "manifest.json is no manifest",
        ),
        (lambda path: changed(path, names={"best": "../x"}), "manifest.json is no manifest"),
        (lambda path: changed(path, names={"": "it00000001"}), "manifest.json is no manifest"),
        (lambda path: changed(path, names={"best": "é" * 125}), "manifest.json is no manifest"),
        (lambda path: changed(path, it="x"), "manifest.json is no manifest"),
        (lambda path: without(path, "it"), "manifest.json is no manifest"),
        (
            lambda path: (path / MANIFEST_FILE).write_text("[" * 50_000),
            "manifest.json is no manifest",
        ),
        (lambda path: loop(path / "model.pt"), "model.pt cannot be read: "),
        (lambda path: loop(path / MANIFEST_FILE), "manifest.json cannot be read: "),
        (
            lambda path: changed(path, version=99),
            f"in format 99, this one reads format {VERSION} alone",
        ),
    ],
)
def test_it_is_named_and_passed_over(
    store: CheckpointStore, harm: Callable[[Path], object], expected: str
) -> None:
    older, newest = save(store, 1), save(store, 2)
    harm(newest)
    assert expected in find_damage(newest)
    good, passed_over = find_newest_good(store.all())
    assert good == older
    assert len(passed_over) == 1
    assert expected in passed_over[0]
    with pytest.raises(UserError, match="cannot be used"):
        read(newest)


@pytest.mark.parametrize("file", [TRAINING_FILE, "model.pt"])
def test_a_file_that_would_run_code_is_refused_though_its_checksum_is_right(
    trained: Trained, train_here: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = trained("run.max_epochs=1")
    path = CheckpointStore(run_dir.checkpoints).all()[0]
    torch.save({"evil": Evil()}, path / file)
    files = read_manifest(path)["files"]
    data = (path / file).read_bytes()
    changed(
        path, files=files | {file: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
    )
    assert find_damage(path) == ""
    assert train_here(run_dir, resume=True) == 2
    assert re.search(
        r"holds more than data: (?!it cannot be)\w", str(records(run_dir, "refused")[-1]["reason"])
    )
    assert not Path("pwned").exists()


def test_a_name_may_be_short_or_as_long_as_a_file_can_bear(store: CheckpointStore) -> None:
    known = ("x", "x" * 240, "ü" * 120)
    assert find_damage(save(store, 1, *known)) == ""
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
    assert [path.name for path in store.all()] == [
        "it00000003",
        "it00000002",
    ], "the newest and the named stay"
    assert not list(store.folder.glob(".*"))


def test_names_go_back_to_what_they_stood_for(store: CheckpointStore) -> None:
    save(store, 1, "last", "best")
    save(store, 2, "last")
    then = names(store)
    save(store, 3, "last", "best", "other", **{"best-2": 1})
    (store.folder / "it00000003" / "model.pt").unlink()
    good, _ = find_newest_good(store.all())
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
    assert manifest["files"].keys() == {
        "model.pt",
        "model_ema.pt",
        "training.pt",
        "pipeline.toml",
        "plan.json",
    }
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


@pytest.mark.parametrize(
    "of_a_file", [60, pytest.param(1 << 20, marks=pytest.mark.long)], ids=["some", "all"]
)
def test_every_byte_of_one_may_be_another(recorded: CheckpointStore, of_a_file: int) -> None:
    """Of a manifest each is tried, and no file but it is read then."""
    newest = recorded.all()[0]
    for path in sorted(newest.iterdir()):
        whole, sealed = path.read_bytes(), path.name == MANIFEST_FILE
        with path.open("r+b", buffering=0) as file:
            for k in range(0, len(whole), 1 if sealed else max(len(whole) // of_a_file, 1)):
                os.pwrite(file.fileno(), bytes([whole[k] ^ 1 << k % 8]), k)
                assert find_damage(newest, thorough=not sealed), (path.name, k)
                assert sealed or recorded.load(newest), "it is found as the file is read"
                os.pwrite(file.fileno(), whole[k : k + 1], k)
    assert not find_damage(newest)


@seeds(100)
def test_whatever_is_wrong_in_one(recorded: CheckpointStore, seeds: range) -> None:
    """A garbled file is found.

    A manifest that is sealed as it should be may say anything, but leads nowhere else.
    """
    newest, older = recorded.all()
    manifest = newest / MANIFEST_FILE
    for seed in seeds:
        chance = random.Random(seed)
        victim = chance.choice(sorted(newest.iterdir()))
        whole, sealed = victim.read_bytes(), manifest.read_bytes()
        if (harmed := garbled(whole, chance)) != whole:
            victim.write_bytes(harmed)
            assert find_damage(newest), f"seed {seed}, {victim.name}"
            assert find_newest_good(recorded.all())[0] == older
            victim.write_bytes(whole)
        forged: Any = json.loads(other_value(sealed, chance))
        if isinstance(forged, dict):
            manifest.write_text(make_sealed_text(forged))
            if not find_damage(newest):
                names = (*read_manifest(newest)["files"], *read_manifest(newest)["names"])
                assert all(
                    name and "/" not in name and not name.startswith(".") for name in names
                ), f"seed {seed}"
                recorded.rewind(newest)
            find_newest_good(recorded.all())
            manifest.write_bytes(sealed)
            recorded.rewind(newest)
            assert all(path.parent == recorded.folder for path in recorded.names().values()), (
                f"seed {seed}"
            )
