"""Checkpoints on disk: a directory each, whole or absent.

    checkpoints/
        it00000469/
            model.pt          the model's state_dict, readable by plain PyTorch:
                              model.load_state_dict(torch.load("model.pt", weights_only=True))
            model_<hook>.pt   other weights that a hook has added, such as an average
            training.pt       all else: optimizer, hooks, triggers, random generators, place in the data
            manifest.json     format version, place in the run, and every file's size and SHA-256
        last -> it00000469
        best -> it00000469

A checkpoint is written aside, flushed to disk and renamed; an old one goes only after the new one reads back. Names
that begin with a dot are not whole: what a killed process leaves of them is cleared away by the next one. Reading
never executes code: `torch.load` is held to `weights_only=True`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, Any

import torch

from hookflow.errors import Problem, UserError

VERSION = 2
MANIFEST = "manifest.json"
REST = "training.pt"
_NAME = re.compile(r"it(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that stands: where, and how many bytes."""

    path: Path
    bytes: int


class CheckpointStore:
    """The `checkpoints/` directory of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._latest: Path | None = None
        self._whole: set[Path] = set()

    def clear_leftovers(self) -> None:
        """Remove what a process that was killed had begun to write, or to remove."""
        for path in self.folder.glob(".it*"):
            shutil.rmtree(path)

    def save(self, state: Mapping[str, Any], names: Iterable[str], facts: Mapping[str, Any]) -> Saved:
        """Write a checkpoint and let it go by `names`; `facts["it"]` names its directory.

        Entries of `state` called "model" or "model_…" become files of their own. Raises OSError when it cannot be
        written; the checkpoints that stand are none the worse for it.
        """
        self.folder.mkdir(exist_ok=True)
        final = self._free(f"it{facts['it']:08d}")
        aside = self.folder / f".{final.name}.{os.getpid()}"
        aside.mkdir()
        try:
            size = _write_all(aside, state, facts)
            aside.rename(final)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        _flush_directory(self.folder)
        self._latest = final
        for name in names:
            self._name(name, final)
        return Saved(final, size)

    def _free(self, name: str) -> Path:
        """Return a directory that is not there yet: nothing is ever replaced, since it could be lost on the way."""
        beside = (f"{name}.{n}" for n in count(1))
        return next(path for each in chain([name], beside) if not (path := self.folder / each).exists())

    def _name(self, name: str, target: Path) -> None:
        link = self.folder / f".{name}.link"
        link.unlink(missing_ok=True)
        link.symlink_to(target.name)
        link.replace(self.folder / name)
        _flush_directory(self.folder)

    def all(self) -> list[Path]:
        """Return the directories of all checkpoints, the one that is furthest in the run first."""
        found = {path: match for path in self.folder.glob("it*") if (match := _NAME.fullmatch(path.name))}
        return sorted(found, key=lambda path: [int(part or 0) for part in found[path].groups()], reverse=True)

    def names(self) -> dict[str, Path]:
        """Return what each name ("last", "best") stands for."""
        links = (path for path in self.folder.glob("[!.]*") if path.is_symlink())
        return {link.name: self.folder / link.readlink().name for link in links}

    def prune(self, keep: int) -> None:
        """Remove all but the `keep` newest that are whole, once the latest reads back; those that bear a name stay."""
        standing = self.all()
        latest = self._latest or next(iter(standing), None)
        if latest is None or damage(latest):
            return
        self._whole.add(latest)
        whole = (path for path in standing if path in self._whole or self._found_whole(path))
        spared = {latest, *islice(whole, keep), *self.names().values()}
        for path in standing:
            if path not in spared:
                gone = path.with_name(f".{path.name}.gone")
                path.rename(gone)  # first, for then it is no checkpoint any more, not even half of one
                shutil.rmtree(gone)

    def _found_whole(self, path: Path) -> bool:
        if not damage(path):
            self._whole.add(path)
        return path in self._whole

    def newest_good(self) -> tuple[Path | None, list[str]]:
        """Return the newest checkpoint that is whole, and a line on each damaged one that was passed over.

        None when there are no checkpoints at all; raises UserError when there are, but none is whole.
        """
        passed_over: list[str] = []
        for path in self.all():
            wrong = damage(path)
            if not wrong:
                return path, passed_over
            passed_over.append(f"checkpoint {path.name} is damaged ({wrong}); taking the one before it")
        if passed_over:
            hint = f"to start at the beginning, move {self.folder} away"
            raise UserError([Problem(line.partition(";")[0], hint=hint) for line in passed_over])
        return None, passed_over


def damage(path: Path) -> str:
    """Say what is wrong with a checkpoint's files; an empty string when they are what was written."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if manifest["version"] != VERSION:
            return f"format version {manifest['version']}, this hookflow reads {VERSION}"
        for name, entry in manifest["files"].items():
            if _digest(path / name) != entry["sha256"]:
                return f"{name} is not what was written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{MANIFEST}: {error}" if not isinstance(error, FileNotFoundError) else f"{error.filename} is missing"
    return ""


def read(path: Path, device: torch.device) -> dict[str, Any]:
    """Return the state that `save` was given, with tensors of the weights on `device`.

    Raises UserError when the checkpoint is damaged.
    """
    if wrong := damage(path):
        raise UserError(Problem(f"checkpoint {path} is damaged: {wrong}"))
    state = dict(torch.load(path / REST, map_location="cpu", weights_only=True))
    for name in json.loads((path / MANIFEST).read_text())["files"]:
        if name != REST:
            state[Path(name).stem] = torch.load(path / name, map_location=device, weights_only=True)
    return state


def _write_all(folder: Path, state: Mapping[str, Any], facts: Mapping[str, Any]) -> int:
    """Write the files of a checkpoint and the manifest; return how many bytes the files have."""
    weights = {key: value for key, value in state.items() if key == "model" or key.startswith("model_")}
    for key, value in weights.items():
        _write(folder / f"{key}.pt", value)
    _write(folder / REST, {key: value for key, value in state.items() if key not in weights})
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    files = {name: {"bytes": size, "sha256": _digest(folder / name)} for name, size in sizes.items()}
    with (folder / MANIFEST).open("w") as file:
        json.dump({"version": VERSION, **facts, "files": files}, file, indent=1)
        _to_disk(file)
    _flush_directory(folder)
    return sum(sizes.values())


def _write(path: Path, value: Any) -> None:
    with path.open("wb") as file:
        torch.save(value, file)
        _to_disk(file)


def _to_disk(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
