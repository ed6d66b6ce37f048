"""The checkpoint store: a directory for each checkpoint, written atomically.

docs/how-to/checkpoints.md describes it. A checkpoint is written aside, flushed to disk and renamed;
an old one goes only after the new one is on the disk. Names that begin with a dot are not whole;
the next process clears them away. Reading never executes code. A checkpoint with a type that was
not saved before is loaded before it counts: a state that cannot be resumed is refused when it is
saved.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from hookflow.errors import Problem, UserError
from hookflow.events.deletion import BACK_LINK, remove_checkpoint
from hookflow.events.process_life import read_start_time
from hookflow.events.rundir import fsync, make_out_dir, short
from hookflow.hooks.checkpoint_files import METADATA_FILE, read_tensors
from hookflow.runner.checkpoint.copies import CheckpointCopies
from hookflow.runner.checkpoint.manifest import (
    MANIFEST_FILE,
    TRAINING_FILE,
    VERSION,
    WEIGHTS,
    DamagedError,
    File,
    directory_name,
    find_damage,
    find_file_damage,
    is_weights_only,
    list_checkpoints,
    list_unfinished,
    make_sealed_text,
    parse_iteration,
    read_links,
    read_manifest,
)
from hookflow.runner.checkpoint.shards import (
    CONTAINER_TYPES,
    PLAIN_TYPES,
    Shards,
    any_sharded,
    iter_leaves,
    mapped,
    name_unreadable,
    with_contents,
    without_contents,
    write_shards,
)
from hookflow.version import __version__

EMPTY_MAPPING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that stands: where, and how many bytes."""

    path: Path
    bytes: int


class AbandonedError(Exception):
    """Raised in the middle of an abandoned write."""


class CheckpointStore:
    """The `checkpoints/` directory of a run.

    `texts` are files that go into every checkpoint, by name.
    """

    def __init__(self, folder: Path, texts: Mapping[str, str] = EMPTY_MAPPING) -> None:
        self.folder = folder
        self._texts = texts
        self.weights_alone: frozenset[str] = frozenset()
        """The names of checkpoints that are saved without the state of the optimizers."""
        self.copies: CheckpointCopies | None = None
        self._latest: Path | None = None
        self._whole: set[Path] = set()
        self._loaded: set[type] = set()
        self._read: dict[Path, dict[str, Any]] = {}
        self._abandoned = threading.Event()

    def keep_in(self, out_dir: Path, below: Path) -> None:
        """Keep the checkpoints in `out_dir / below`.

        The run's folder becomes a link to it, and it has one to the run. A link to checkpoints
        below another folder of `out_dir` stays: the run was moved since. Raises UserError where the
        run has checkpoints in another place, or another run has its own there.
        """
        elsewhere = out_dir.absolute() / below
        there = self.folder.readlink() if self.folder.is_symlink() else None
        has_any = any(self.folder.glob("[!.]*"))
        if there and has_any and there.parent.parent == out_dir.absolute():
            elsewhere = there
        if there != elsewhere and has_any:
            before = short(self.folder.resolve())
            message = f"the run's checkpoints are in {before}, and out_dir says {short(elsewhere)}"
            raise UserError(
                Problem(message, hint="keep out_dir as it was in a run that is resumed")
            )
        made = [folder for folder in (elsewhere, *elsewhere.parents) if not folder.exists()]
        make_out_dir(elsewhere, 0o700)  # as private as the run directory
        link = elsewhere / BACK_LINK
        run = self.folder.parent.absolute()
        if link.is_symlink() and (other := link.readlink()) != run:
            if other.exists() and not other.samefile(run):
                message = (
                    f"{short(elsewhere)} has the checkpoints of {short(other)}, of which this run"
                    " is a copy"
                )
                hint = (
                    "replace its link `checkpoints` by a copy of that folder, and resume without"
                    " out_dir"
                )
                raise UserError(Problem(message, hint=f"{hint} (--allow-changed-hooks)"))
            link.unlink()
        if not link.is_symlink():
            link.symlink_to(run)
        for folder in made:
            fsync(folder.parent)
        if there != elsewhere:
            if there:
                self.folder.unlink()
            elif self.folder.exists():
                self.folder.rmdir()
            self.folder.symlink_to(elsewhere)
            fsync(self.folder.parent)

    def clear_leftovers(self) -> list[Path]:
        """Remove what a killed process has left half written or half removed.

        Returns what a living one writes.
        """
        result = list_unfinished(self.folder)
        living = [path for path in result if _is_being_written(path)]
        for path in result:
            if path not in living:
                shutil.rmtree(path)
        return living

    def save(
        self,
        state: Mapping[str, Any],
        names: Iterable[str],
        facts: Mapping[str, Any],
        moved: Mapping[str, int] = EMPTY_MAPPING,
        shards: Shards | None = None,
    ) -> SavedCheckpoint:
        """Write a checkpoint with these `names`.

        `facts["it"]` names its directory, which the `shards` become part of.

        `moved` gives names to existing checkpoints, by their iteration. Entries of `state` called
        "model…" become files of their own. Names of `weights_alone` go to a checkpoint beside it,
        without the state of the optimizers. Raises OSError when it cannot be written; existing
        checkpoints are not affected.
        """
        names = [*names]
        final = self._free(directory_name(facts["it"]))
        standing = [*self.all(), *list_checkpoints(self.folder, WEIGHTS)]
        there = {name: path.name for name, path in self.names().items() if path in standing}
        named = there | self._list_standing(moved) | dict.fromkeys(names, final.name)
        alone = self.weights_alone.intersection(names)
        if alone:
            weights = self._free(directory_name(facts["it"], WEIGHTS))
            named |= dict.fromkeys(
                alone,
                self._write(weights, without_optimizers(state), {**facts, "names": {}}).path.name,
            )
        saved = self._write(final, state, {**facts, "names": named}, shards)
        self._link({name: target for name, target in named.items() if there.get(name) != target})
        self._latest = final
        self._whole.add(final)
        if self.copies:
            self.copies.take({name: self.folder / named[name] for name in names}, facts)
        return saved

    def make_up_copies(self) -> None:
        """Let existing checkpoints be copied, as far as their copies are missing.

        This is for a run that is resumed.
        """
        if self.copies:
            whole = [path for path in reversed(self.all()) if not find_damage(path, thorough=False)]
            named = self.names().items()
            weights = {
                name: path
                for name, path in named
                if is_weights_only(path) and not find_damage(path, thorough=False)
            }
            self.copies.make_up(whole, weights)

    def finish_copies(self) -> None:
        """Wait until every copy of a checkpoint is made or given up."""
        if self.copies:
            self.copies.finish()

    def move(self, moved: Mapping[str, int]) -> None:
        """Give names to existing checkpoints, by their iteration."""
        self._link(self._list_standing(moved))

    def _list_standing(self, moved: Mapping[str, int]) -> dict[str, str]:
        if not moved:
            return {}
        every = [*reversed(self.all()), *reversed(list_checkpoints(self.folder, WEIGHTS))]
        of = {(is_weights_only(path), parse_iteration(path)): path.name for path in every}
        wanted = {name: (name in self.weights_alone, it) for name, it in moved.items()}
        standing = {
            name: of.get((alone, it)) or of.get((not alone, it))
            for name, (alone, it) in wanted.items()
        }
        # A resumed run may save the best in another way, so a name may have no checkpoint.
        return {name: path for name, path in standing.items() if path}

    def save_apart(
        self,
        state: Mapping[str, Any],
        facts: Mapping[str, Any],
        prefix: str,
        shards: Shards | None = None,
    ) -> SavedCheckpoint:
        """Write a state that no run resumes from, under a name with a prefix.

        It replaces an older one.
        """
        older = list_checkpoints(self.folder, prefix)
        saved = self._write(self._free(directory_name(facts["it"], prefix)), state, facts, shards)
        fsync(self.folder)
        for path in older:
            remove_checkpoint(path)
        return saved

    def load(self, path: Path, rank: int = 0, world: int = 1) -> str:
        """Read a checkpoint for the next `take`; return its damage, empty without one.

        All ranks must call it.
        """
        try:
            self._read = {path: _read_verified(path, rank, world)}
        except DamagedError as error:
            return str(error)
        return ""

    def take(self, path: Path, device: torch.device, mesh: DeviceMesh | None) -> dict[str, Any]:
        """Return the state of a checkpoint, which is read now unless `load` has read it.

        The tensors of models are on `device`; sharded ones are sharded over the mesh, if any.
        """
        there = self._read
        self._read = {}
        if path in there:
            state = _fill_state(path, device, mesh, there[path])
        else:
            state = read(path)
        for key in [key for key in state if key.startswith("model")]:
            state[key] = mapped(
                state[key], lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf
            )
        return state

    def abandon(self) -> None:
        """Let the write in another thread raise AbandonedError soon; none begins any more."""
        self._abandoned.set()

    def all(self) -> list[Path]:
        """Return the directories of all checkpoints, the one that is furthest in the run first."""
        return list_checkpoints(self.folder)

    def names(self) -> dict[str, Path]:
        return read_links(self.folder)

    def rewind(self, path: Path, *, forget: bool = False) -> None:
        """Let every name refer to its checkpoint of the time when that at `path` was saved.

        With `forget` the later ones are removed: a resume would take the newest of them.
        """
        now = self.names()
        then = {
            name: to
            for name, to in read_manifest(path)["names"].items()
            if (self.folder / to).exists()
        }
        for name in now.keys() - then.keys():
            (self.folder / name).unlink()
        # A manifest may hold any name, also that of a folder.
        free = {name for name in then if name in now or not (self.folder / name).exists()}
        self._link({name: then[name] for name in free if now.get(name) != self.folder / then[name]})
        every = self.all()
        if forget:
            for later in every[: every.index(path)]:
                remove_checkpoint(later)
        if forget:
            self._remove_unnamed()

    def prune(self, keep: int, trail: int = 0) -> None:
        """Remove all but the latest, the `keep` newest whole ones, named ones, and a trail.

        The trail has so many bytes. The trail is what `choose_retained` leaves of the others.
        """
        every = self.all()

        def is_whole(path: Path) -> bool:
            if path not in self._whole and not find_damage(path):
                self._whole.add(path)
            return path in self._whole

        spared = {self._latest, *islice(filter(is_whole, every), keep), *self.names().values()}
        spared |= choose_retained(every, spared, trail) if trail else set()
        for path in every:
            if path not in spared:
                remove_checkpoint(path)
        self._remove_unnamed()

    def _remove_unnamed(self) -> None:
        """Remove the checkpoints of weights alone that have no name any more."""
        named = self.names().values()
        for path in list_checkpoints(self.folder, WEIGHTS):
            if path not in named:
                remove_checkpoint(path)

    def find_staging_path(self, it: int) -> Path:
        """Return the directory in which ranks write a checkpoint's shards until it is whole."""
        return self.folder / f".{directory_name(it)}.{os.getpid()}"

    def write_shards(
        self, aside: Path, state: Mapping[str, Any], group: dist.ProcessGroup
    ) -> dict[str, File]:
        """Write the shards of this rank, as all ranks of the group must, and return its files."""
        try:
            return write_shards(
                aside, state, group, lambda file: _ChecksumWriter(file, self._abandoned)
            )
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise

    def _write(
        self,
        final: Path,
        state: Mapping[str, Any],
        facts: Mapping[str, Any],
        shards: Shards | None = None,
    ) -> SavedCheckpoint:
        """Write all files aside, beside the shards, and rename their directory to `final`.

        The caller flushes that.
        """
        apart = [
            key
            for key in state
            if key.startswith("model") and not (shards and any_sharded(state[key]))
        ]
        state = dict(state)
        if shards:
            state = without_contents(state)
        aside, files = shards or (self.folder / f".{final.name}.{os.getpid()}", {})
        self.folder.mkdir(exist_ok=True)
        aside.mkdir(exist_ok=shards is not None)
        try:
            objects = {f"{key}.pt": state[key] for key in apart}
            objects[TRAINING_FILE] = {
                key: value for key, value in state.items() if key not in apart
            }
            with ExitStack() as opened:
                with name_unreadable(state):
                    written = {
                        name: self._write_file(aside / name, value, opened)
                        for name, value in objects.items()
                    }
                    self._check_loads(aside, state)
                for name, text in self._texts.items():
                    written[name] = self._write_file(aside / name, text.encode(), opened)
                files = {**files, **{name: file.facts() for name, file in written.items()}}
                versions = {"hookflow": __version__, "torch": torch.__version__}
                manifest = {
                    "version": VERSION,
                    **facts,
                    "saved": time.time(),
                    **versions,
                    "files": files,
                }
                written[MANIFEST_FILE] = self._write_file(
                    aside / MANIFEST_FILE, make_sealed_text(manifest).encode(), opened
                )
                # Files are flushed together, since flushing the first writes most of the others,
                # too.
                for file in written.values():
                    os.fsync(file.file.fileno())
            fsync(aside)
            aside.rename(final)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        return SavedCheckpoint(final, sum(entry["bytes"] for entry in files.values()))

    def _check_loads(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Load the written files as a resume does, if the state has new types.

        These are types that were not loaded before. Containers of other types are loaded each time.
        Raises TypeError where a file cannot be loaded.
        """
        kinds = {type(leaf) for _, leaf in iter_leaves(dict(state))}
        if kinds <= self._loaded:
            return
        for path in folder.glob("*.pt"):
            try:
                read_tensors(path, mmap=True)
            except UserError as error:
                raise TypeError(f"checkpoint cannot be loaded again: {error}") from None
        self._loaded |= kinds & {*PLAIN_TYPES, *CONTAINER_TYPES, torch.Tensor, torch.nn.Parameter}

    def _write_file(self, path: Path, content: Any, opened: ExitStack) -> _ChecksumWriter:
        """Write bytes as they are, anything else by `torch.save`.

        The file is closed with `opened`.
        """
        result = _ChecksumWriter(
            opened.enter_context(path.open("wb", buffering=0)), self._abandoned
        )
        # Closing the writer drops the buffer of an abandoned write.
        opened.enter_context(result)
        file = io.BufferedWriter(result, CHUNK_BYTES)
        if isinstance(content, bytes):
            file.write(content)
        else:
            torch.save(content, file)
        file.detach()
        return result

    def _free(self, name: str) -> Path:
        beside = (f"{name}.{n}" for n in count(1))
        return next(
            path for each in chain([name], beside) if not (path := self.folder / each).exists()
        )

    def _link(self, targets: Mapping[str, str]) -> None:
        for name, target in targets.items():
            link = self.folder / f".{name}.link"
            link.unlink(missing_ok=True)
            link.symlink_to(target)
            link.replace(self.folder / name)
        fsync(self.folder)


def without_optimizers(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without what only further steps need.

    That is the optimizers' state, and gradients that no step has used.
    """
    kept = {
        key: value
        for key, value in state.items()
        if not key.startswith(("optimizer", "training_weights"))
    }
    return {**kept, "gradients": {}, "group": [0, 0]}


def choose_retained(
    every: Sequence[Path], spared: Collection[Path | None], budget: int
) -> set[Path]:
    """Return which checkpoints stay in so many bytes, beside those spared.

    Of `every` the newest is the first. The next to go is the one that leaves the smallest gap for
    its age. So gaps grow with the age, in powers of two.
    """
    its = {path: parse_iteration(path) for path in every}
    trail = {
        path: sum(file.lstat().st_size for file in path.iterdir())
        for path in every
        if path not in spared and not find_damage(path, thorough=False)
    }
    standing = [path for path in every if path in spared or path in trail]
    now = its[every[0]]

    def compute_gap(path: Path) -> float:
        k = standing.index(path)
        if k:
            newer = its[standing[k - 1]]
        else:
            newer = now
        # Before the oldest checkpoint comes the beginning, where a rerun may start.
        older = its[standing[k + 1]] if k + 1 < len(standing) else 0
        return (newer - older) / max(now - older, 1)

    while sum(trail.values()) > budget:
        gone = min(trail, key=compute_gap)
        standing.remove(gone)
        del trail[gone]
    return set(trail)


def read(path: Path) -> dict[str, Any]:
    """Return the saved state, in full and on the CPU.

    Raises UserError as `read_tensors`, and where it is damaged.
    """
    try:
        return _fill_state(path, torch.device("cpu"), None, _read_verified(path))
    except DamagedError as error:
        raise UserError(Problem(f"checkpoint {short(path)} cannot be used: {error}")) from None


def _fill_state(
    path: Path, device: torch.device, mesh: DeviceMesh | None, state: dict[str, Any]
) -> dict[str, Any]:
    if (path / METADATA_FILE).exists():
        return with_contents(state, path, device, mesh)
    return state


def _read_verified(path: Path, rank: int = 0, world: int = 1) -> dict[str, Any]:
    """Return what is in the files of `torch.save`, reading each byte once.

    This rank's share of other files is verified. Raises DamagedError where it is damaged, or of
    another format.
    """
    state: dict[str, Any] = {}
    for k, (name, entry) in enumerate(read_manifest(path)["files"].items()):
        loads = name.endswith(".pt")
        wrong = find_file_damage(path / name, entry, thorough=not loads and k % world == rank)
        if wrong:
            raise DamagedError(wrong)
        if loads:
            content = _content(path / name, entry)
            state |= content if name == TRAINING_FILE else {Path(name).stem: content}
    return state


def _content(path: Path, entry: File) -> Any:
    """Return what is in a file of `torch.save`.

    Raises DamagedError, and UserError as `read_tensors`.
    """
    try:
        with io.BufferedReader(digested := _ChecksumReader(path)) as file:
            try:
                content = read_tensors(path, file=file)
            except Exception:
                if digested.checksum() == entry["sha256"]:
                    raise
            if digested.checksum() != entry["sha256"]:
                raise DamagedError(f"{path.name} is not what was written")
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read: {error.strerror}") from None
    return content


class _ChecksumReader(io.FileIO):
    """A file that `torch.load` reads nearly in the order of its bytes.

    Each byte goes into the checksum as it is read.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._digest = hashlib.sha256()
        self._end = 0

    def readinto(self, buffer: Any) -> int:
        at = self.tell()
        if self._end < at < self._end + MAX_GAP_BYTES:
            self.seek(self._end)
            self._add(self.read(at - self._end))
        count = super().readinto(buffer) or 0
        if at <= self._end < at + count:
            self._add(memoryview(buffer)[self._end - at : count])
        return count

    def _add(self, data: Any) -> None:
        self._digest.update(data)
        self._end += len(data)

    def checksum(self) -> str:
        """Return the SHA-256 of the whole file, whose rest is read for it."""
        self.seek(self._end)
        while chunk := self.read(CHUNK_BYTES):
            self._add(chunk)
        return self._digest.hexdigest()


CHUNK_BYTES = 1 << 20
"""Bytes that are written, or read for a checksum, at once."""

MAX_GAP_BYTES = 1 << 12
"""The most bytes between two tensors.

Reads further on before the rest are of the directory at the end.
"""


class _ChecksumWriter(io.RawIOBase):
    """A file that is written from the beginning to the end, with the checksum of its bytes."""

    def __init__(self, file: Any, abandoned: threading.Event) -> None:
        self.file = file
        self._abandoned = abandoned
        self._digest = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._abandoned.is_set():
            raise AbandonedError
        written = int(self.file.write(data) or 0)
        self._digest.update(memoryview(data)[:written])
        self._size += written
        return written

    def tell(self) -> int:
        return self._size

    def facts(self) -> File:
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}


def _is_being_written(path: Path) -> bool:
    """Return whether the process lives that writes a checkpoint aside.

    Its pid is the end of the name.
    """
    pid = path.name.rpartition(".")[2]
    try:
        began = None
        if pid != str(os.getpid()):
            began = read_start_time(int(pid))
        # A process that began after the file was written has been given the pid anew.
        return began is not None and began <= path.stat().st_mtime
    except (OSError, ValueError):  # it is gone; it is no pid
        return False
