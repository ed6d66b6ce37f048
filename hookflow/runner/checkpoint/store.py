"""The checkpoint store: a directory for each checkpoint, as docs/checkpoints.md describes it, written atomically.

A checkpoint is written aside, flushed to disk and renamed; an old one goes only after the new one reads back. Names
that begin with a dot are not whole; the next process clears them away. Reading never executes code. A checkpoint with
a type that was not saved before is loaded before it counts: a state that cannot be resumed is refused when it is saved.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, Any, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from hookflow.errors import Problem, UserError
from hookflow.events.run_lock import started_at
from hookflow.events.rundir import fsync, make_out_dir, short
from hookflow.hooks.weights import METADATA, read_tensors
from hookflow.runner.checkpoint.manifest import (
    EXCEPTION,
    MANIFEST,
    NONFINITE,
    TRAINING,
    VERSION,
    File,
    damage,
    links,
    list_checkpoints,
    read_manifest,
    seal,
)
from hookflow.runner.checkpoint.nested import PLAIN, leaves, naming_unreadable, unreadable
from hookflow.runner.checkpoint.shards import (
    APART,
    Shards,
    any_sharded,
    with_contents,
    without_contents,
    write_shards,
)
from hookflow.version import __version__

RUN = ".run"
"""The link to their run of checkpoints that are kept elsewhere."""

NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that stands: where, and how many bytes."""

    path: Path
    bytes: int


class AbandonedError(Exception):
    """Raised in the middle of an abandoned write."""


class CheckpointStore:
    """The `checkpoints/` directory of a run. `texts` are files that go into every checkpoint, by name."""

    def __init__(self, folder: Path, texts: Mapping[str, str] = NOTHING) -> None:
        self.folder, self._texts = folder, texts
        self._latest: Path | None = None
        self._whole: set[Path] = set()
        self._loaded: set[type] = set()
        self._abandoned = threading.Event()

    def keep_in(self, out_dir: Path, below: Path) -> None:
        """Keep the checkpoints in `out_dir / below`; the run's folder becomes a link to it, and it has one to the run.

        A link to checkpoints below another folder of `out_dir` stays: the run was moved since. Raises UserError where
        the run has checkpoints in another place, or another run has its own there.
        """
        elsewhere = out_dir.absolute() / below
        there = self.folder.readlink() if self.folder.is_symlink() else None
        has_any = any(self.folder.glob("[!.]*"))
        if there and has_any and there.parent.parent == out_dir.absolute():
            elsewhere = there
        if there != elsewhere and has_any:
            before = short(self.folder.resolve())
            message = f"the run's checkpoints are in {before}, and out_dir says {short(elsewhere)}"
            raise UserError(Problem(message, hint="keep out_dir as it was in a run that is resumed"))
        made = [folder for folder in (elsewhere, *elsewhere.parents) if not folder.exists()]
        make_out_dir(elsewhere)
        link, run = elsewhere / RUN, self.folder.parent.absolute()
        if link.is_symlink() and (other := link.readlink()) != run:
            if other.exists() and not other.samefile(run):
                message = f"{short(elsewhere)} has the checkpoints of {short(other)}, of which this run is a copy"
                hint = "replace its link `checkpoints` by a copy of that folder, and resume without out_dir"
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
        """Remove what a killed process has left half written or half removed; return what a living one writes."""
        result = [path for prefix in ("", EXCEPTION, NONFINITE) for path in self.folder.glob(f".{prefix}it*")]
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
        moved: Mapping[str, int] = NOTHING,
        shards: Shards | None = None,
    ) -> Saved:
        """Write a checkpoint with these `names`; `facts["it"]` names its directory, which the `shards` become part of.

        `moved` gives names to existing checkpoints, by their iteration. Entries of `state` called "model…" or
        "optimizer…" become files of their own. Raises OSError when it cannot be written; existing checkpoints are not
        affected.
        """
        final = self._free(f"it{facts['it']:08d}")
        there = {name: path.name for name, path in self.names().items() if path.exists()}
        named = there | self._standing(moved) | dict.fromkeys(names, final.name)
        saved = self._write(final, state, {**facts, "names": named}, shards)
        self._latest = final
        for name, target in named.items():
            if there.get(name) != target:
                self._link(name, target)
        return saved

    def move(self, moved: Mapping[str, int]) -> None:
        """Give names to existing checkpoints, by their iteration."""
        for name, target in self._standing(moved).items():
            self._link(name, target)

    def _standing(self, moved: Mapping[str, int]) -> dict[str, str]:
        of = {int(path.name[2:].partition(".")[0]): path.name for path in reversed(self.all())}
        return {name: of[it] for name, it in moved.items() if it in of}

    def save_apart(
        self, state: Mapping[str, Any], facts: Mapping[str, Any], prefix: str, shards: Shards | None = None
    ) -> Saved:
        """Write a state that no run resumes from, under a name with a prefix; it replaces an older one."""
        older = list_checkpoints(self.folder, prefix)
        saved = self._write(self._free(f"{prefix}it{facts['it']:08d}"), state, facts, shards)
        for path in older:
            self._remove(path)
        return saved

    def abandon(self) -> None:
        """Let the write in another thread raise AbandonedError soon; none begins any more."""
        self._abandoned.set()

    def all(self) -> list[Path]:
        """Return the directories of all checkpoints, the one that is furthest in the run first."""
        return list_checkpoints(self.folder)

    def names(self) -> dict[str, Path]:
        """Return what each name ("last", "best") stands for."""
        return links(self.folder)

    def rewind(self, path: Path) -> None:
        """Let every name refer to the checkpoint that it referred to when that at `path` had been saved."""
        now = self.names()
        then = {name: to for name, to in read_manifest(path)["names"].items() if (self.folder / to).exists()}
        for name in now.keys() - then.keys():
            (self.folder / name).unlink()
        for name, target in then.items():
            link = self.folder / name
            # a manifest may say anything, also the name of a folder
            if now.get(name) != self.folder / target and (link.is_symlink() or not link.exists()):
                self._link(name, target)

    def prune(self, keep: int) -> None:
        """Remove all but the `keep` newest that are whole, once the latest reads back; those with a name stay."""
        every = self.all()
        latest = self._latest or next(iter(every), None)
        if latest is None or damage(latest):
            return
        self._whole.add(latest)

        def is_whole(path: Path) -> bool:
            if path not in self._whole and not damage(path):
                self._whole.add(path)
            return path in self._whole

        spared = {latest, *islice(filter(is_whole, every), keep), *self.names().values()}
        for path in every:
            if path not in spared:
                self._remove(path)

    def aside(self, it: int) -> Path:
        """Return the directory in which ranks write the shards of a checkpoint until it is whole."""
        return self.folder / f".it{it:08d}.{os.getpid()}"

    def write_shards(self, aside: Path, state: Mapping[str, Any], group: dist.ProcessGroup) -> dict[str, File]:
        """Write the shards of this rank, as all ranks of the group must, and return its files."""
        try:
            return write_shards(aside, state, group, lambda file: _Digesting(file, self._abandoned))
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise

    def _write(
        self, final: Path, state: Mapping[str, Any], facts: Mapping[str, Any], shards: Shards | None = None
    ) -> Saved:
        """Write all files aside, beside the shards, and rename their directory to `final`."""
        apart = [key for key in state if key.startswith(APART) and not any_sharded(state[key])]
        state = without_contents(dict(state))
        aside, others = shards or (self.folder / f".{final.name}.{os.getpid()}", {})
        self.folder.mkdir(exist_ok=True)
        aside.mkdir(exist_ok=shards is not None)
        try:
            objects = {f"{key}.pt": state[key] for key in apart}
            objects[TRAINING] = {key: value for key, value in state.items() if key not in apart}
            with naming_unreadable(dict(state)):
                files = {name: self._write_file(aside / name, value) for name, value in objects.items()}
            files |= {name: self._write_file(aside / name, text.encode()) for name, text in self._texts.items()}
            files |= others
            self._check_loads(aside, state)
            versions = {"hookflow": __version__, "torch": torch.__version__}
            manifest = {"version": VERSION, **facts, "saved": time.time(), **versions, "files": files}
            self._write_file(aside / MANIFEST, seal(manifest).encode())
            for name in (*files, MANIFEST):  # now, and not each as it is written: the first brings most of it along
                fsync(aside / name)
            fsync(aside)
            aside.rename(final)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        fsync(self.folder)
        return Saved(final, sum(entry["bytes"] for entry in files.values()))

    def _check_loads(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Load the written files as a resume does, if the state has types that were not loaded before.

        Containers of other types are loaded each time. Raises TypeError with the entry that cannot be loaded.
        """
        kinds = {type(leaf) for _, leaf in leaves(dict(state))}
        if kinds <= self._loaded:
            return
        for path in folder.glob("*.pt"):
            try:
                read_tensors(path, CPU, mmap=True)
            except UserError as error:
                wrong = unreadable(dict(state)) or f" cannot be loaded again: {error}"
                raise TypeError(f"checkpoint{wrong}") from None
        self._loaded |= kinds & {*PLAIN, torch.Tensor, torch.nn.Parameter}

    def _write_file(self, path: Path, content: Any) -> File:
        """Write bytes as they are, anything else by `torch.save`; return the size and the checksum."""
        with path.open("wb") as file:
            digesting = _Digesting(file, self._abandoned)
            if isinstance(content, bytes):
                digesting.write(content)
            else:
                torch.save(content, cast("IO[bytes]", digesting))
            return digesting.facts()

    def _free(self, name: str) -> Path:
        beside = (f"{name}.{n}" for n in count(1))
        return next(path for each in chain([name], beside) if not (path := self.folder / each).exists())

    def _link(self, name: str, target: str) -> None:
        link = self.folder / f".{name}.link"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        link.replace(self.folder / name)
        fsync(self.folder)

    def _remove(self, path: Path) -> None:
        gone = path.with_name(f".{path.name}.gone")
        path.rename(gone)  # first, for then it is no checkpoint any more, not even half of one
        shutil.rmtree(gone)


def read(path: Path, device: torch.device, mesh: DeviceMesh | None = None) -> dict[str, Any]:
    """Return the saved state, with the tensors of models on `device`; sharded ones are sharded over the mesh, if any.

    Raises UserError when the checkpoint is damaged, of another format, or holds code.
    """
    if wrong := damage(path):
        raise UserError(Problem(f"checkpoint {short(path)} cannot be used: {wrong}"))
    state = dict(read_tensors(path / TRAINING, torch.device("cpu")))
    for name in read_manifest(path)["files"]:
        if name.endswith(".pt") and name != TRAINING:
            state[Path(name).stem] = read_tensors(path / name, device if name.startswith("model") else CPU)
    return with_contents(state, path, device, mesh) if (path / METADATA).exists() else state


CPU = torch.device("cpu")


class _Digesting:
    """A file that is written from the beginning to the end, with the checksum of its bytes."""

    def __init__(self, file: Any, abandoned: threading.Event) -> None:
        self._file, self._abandoned = file, abandoned
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        if self._abandoned.is_set():
            raise AbandonedError
        self.digest.update(data)
        return int(self._file.write(data))

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        """Do nothing: who has opened the file closes it."""

    def facts(self) -> File:
        """Return the size and the checksum."""
        return {"bytes": self.tell(), "sha256": self.digest.hexdigest()}


def _is_being_written(path: Path) -> bool:
    """Return whether the process lives that writes a checkpoint aside; its pid is the end of the name."""
    pid = path.name.rpartition(".")[2]
    try:
        began = started_at(int(pid)) if pid != str(os.getpid()) else None
        return began is not None and began <= path.stat().st_mtime  # a younger process has been given the pid again
    except (OSError, ValueError):  # it is gone; it is no pid
        return False
