"""Copies of checkpoints: whatever fails, and whenever, a whole copy is there,
of the older checkpoint or the newer.
"""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hookflow.runner.checkpoint import copies
from hookflow.runner.checkpoint.copies import CheckpointCopies
from hookflow.runner.checkpoint.destinations import LocalFolder, RemoteFolder
from hookflow.runner.checkpoint.manifest import MANIFEST_FILE, find_damage
from hookflow.runner.checkpoint.store import CheckpointStore, read
from tests.conftest import TESTS, NewRun, Train, messages
from tests.support.checkpoint_files import save

URL = "memory://bucket/models/last"
PLACE = "/bucket/models/last"
CHANGING = ("put_file", "cp_file", "pipe_file", "rm_file", "rm", "mkdir", "makedirs")
"""The calls of fsspec that change what is stored."""


class RefusedError(PermissionError):
    """Raised by a store that refuses to be changed."""


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Return an older and a newer checkpoint, of other sizes; the older one has a file more."""
    older, newer = (
        CheckpointStore(tmp_path / "older", {"more.toml": "x"}),
        CheckpointStore(tmp_path / "newer"),
    )
    return save(older, 1, "last"), save(newer, 22222, "last")


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    files = MemoryFileSystem()
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def fetched(files: MemoryFileSystem, path: str, folder: Path) -> Path:
    """Return a folder with the files that are stored at a path."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in list(files.store.items()):
        if name.startswith(f"{path}/"):
            (folder / name.removeprefix(f"{path}/")).write_bytes(content.getvalue())
    return folder


def whole_copies(files: MemoryFileSystem, folder: Path) -> list[bytes]:
    """Return the manifests of the whole copies, in their place and beside it."""
    places = sorted({name.rpartition("/")[0] for name in files.store})
    whole = [place for place in places if not find_damage(fetched(files, place, folder))]
    return [files.store[f"{place}/{MANIFEST_FILE}"].getvalue() for place in whole]


def break_at(patch: pytest.MonkeyPatch, step: int, *, torn: bool = False) -> Callable[[], int]:
    """Let the store refuse every change from this one on; return what counts the changes.

    Where it is `torn`, half of the first file that is refused is there.
    """
    done = 0

    def refusing(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def refused(self: MemoryFileSystem, *args: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done <= step:
                return change(self, *args, **options)
            if torn and done == step + 1 and name == "put_file":
                content = Path(args[0]).read_bytes()
                with self.open(args[1], "wb") as file:
                    file.write(content[: len(content) // 2])
            raise RefusedError("the store refuses")

        return refused

    for name in CHANGING:
        patch.setattr(MemoryFileSystem, name, refusing(name, getattr(MemoryFileSystem, name)))
    return lambda: done


@pytest.mark.parametrize("torn", [False, True], ids=["refused", "torn"])
def test_a_url_keeps_a_whole_copy_whatever_it_refuses(
    pair: tuple[Path, Path], memory: MemoryFileSystem, tmp_path: Path, torn: bool
) -> None:
    """A process that is killed there leaves what a refusal leaves:
    nothing is put in order afterwards.
    """
    older, newer = pair
    manifests = {path: (path / MANIFEST_FILE).read_bytes() for path in pair}
    for step in range(1000):
        memory.store.clear()
        RemoteFolder(URL, "run").put(older)
        with pytest.MonkeyPatch.context() as patch:
            changes = break_at(patch, step, torn=torn)
            try:
                RemoteFolder(URL, "run").put(newer)
            except RefusedError:
                is_done = False
            else:
                is_done = True
            assert whole_copies(memory, tmp_path / "fetched"), (
                f"no whole copy is there after {step} changes"
            )
        if step == 0 and not torn:
            assert not find_damage(fetched(memory, PLACE, tmp_path / "fetched"))
            assert (tmp_path / "fetched" / MANIFEST_FILE).read_bytes() == manifests[older]
        RemoteFolder(URL, "run").put(newer)
        assert {name.rpartition("/")[0] for name in memory.store} == {PLACE}
        assert whole_copies(memory, tmp_path / "fetched") == [manifests[newer]]
        assert {path.name for path in (tmp_path / "fetched").iterdir()} == {
            path.name for path in newer.iterdir()
        }
        if is_done:
            break
    assert is_done and changes() > 2 * len([*newer.iterdir()])


def test_what_is_there_already_is_not_sent_again(
    pair: tuple[Path, Path], memory: MemoryFileSystem
) -> None:
    older, _ = pair
    RemoteFolder(URL, "run").put(older)
    with pytest.MonkeyPatch.context() as patch:
        changes = break_at(patch, 0)
        RemoteFolder(URL, "run").put(older)
        assert changes() == 0


def test_a_store_that_copies_no_files_is_given_them_through_this_machine(
    pair: tuple[Path, Path],
    memory: MemoryFileSystem,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def cannot(*args: Any, **options: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(MemoryFileSystem, "cp_file", cannot)
    for path in pair:
        RemoteFolder(URL, "run").put(path)
    assert not find_damage(fetched(memory, PLACE, tmp_path / "fetched"))


EXCHANGES = pytest.param(
    "exchanges", marks=pytest.mark.skipif(sys.platform != "linux", reason="renameat2 is Linux's")
)


@pytest.mark.parametrize("exchanges", [EXCHANGES, "renames"])
@pytest.mark.parametrize("fault", ["killed", "disk full", "permission"])
def test_a_folder_keeps_a_whole_copy_whatever_fails(
    pair: tuple[Path, Path], tmp_path: Path, fault: str, exchanges: str
) -> None:
    """In place where the system exchanges two folders; otherwise in place or,
    for a moment, beside it.
    """
    words = [*map(str, pair), str(tmp_path / "out" / "last"), fault, exchanges]
    done = subprocess.run(
        [sys.executable, "-m", "tests.runner.copy_faults", *words],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("remote", [False, True])
def test_files_that_are_no_copy_are_left_alone(
    pair: tuple[Path, Path], memory: MemoryFileSystem, tmp_path: Path, remote: bool
) -> None:
    place = tmp_path / "models"
    place.mkdir()
    (place / "thesis.txt").write_text("mine")
    memory.pipe_file(f"{PLACE}/thesis.txt", b"mine")
    destination = RemoteFolder(URL, "run") if remote else LocalFolder(place, "run")
    with pytest.raises(FileExistsError, match=r"thesis\.txt"):
        destination.put(pair[1])
    assert [path.name for path in place.iterdir()] == ["thesis.txt"]
    assert [*memory.store] == [f"{PLACE}/thesis.txt"]


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError, SystemExit], ids=lambda error: error.__name__
)
def test_whatever_a_copy_raises_the_run_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: type[BaseException]
) -> None:
    """And the next copy is made."""
    monkeypatch.setattr(copies, "RETRY_PAUSES_SECONDS", ())
    put, said = copies.put, []

    def fails(*where: Any) -> None:
        monkeypatch.setattr(copies, "put", put)
        raise error

    monkeypatch.setattr(copies, "put", fails)
    store = CheckpointStore(tmp_path / "checkpoints")
    store.copies = CheckpointCopies(
        [(f"{tmp_path}/out/{{name}}", {"last"})], {}, lambda *line: said.append(line)
    )
    save(store, 1, "last")
    store.finish_copies()
    assert [level for _, level in said] == ["warn"]
    save(store, 2, "last")
    store.finish_copies()
    assert read(tmp_path / "out" / "last")["more"] == [2]


@pytest.mark.parametrize("weights_only", ["false", "true"])
def test_a_resume_makes_up_copies_that_are_not_there(
    new_run: NewRun,
    train_here: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    weights_only: str,
) -> None:
    """The killed process is one whose copies all fail."""
    out = tmp_path / "out"
    copying = f'copy_to="{out}/{{name}}-{{it}}", weights_only={weights_only}'
    run_dir = new_run(
        "run.max_epochs=2", f'hooks.checkpoint.args={{monitor="accuracy", {copying}}}'
    )
    with monkeypatch.context() as patch:
        patch.setattr(copies.CheckpointCopies, "_add", lambda *where: None)
        assert train_here(run_dir) == 0
    assert not out.exists()
    assert train_here(run_dir, resume=True) == 0
    names = CheckpointStore(run_dir.checkpoints).names()
    for name, path in names.items():
        (copied,) = out.glob(f"{name}-{int(path.name[-8:])}")
        assert not find_damage(copied)
        assert (copied / MANIFEST_FILE).read_bytes() == (path / MANIFEST_FILE).read_bytes()
    assert not [text for text in messages(run_dir) if "copied" in text]
