"""The manifest of a checkpoint, and its verification. Imports no torch.

A checkpoint is a directory named after its iteration (`it00000469`; `it00000469.1` if that was
taken).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from hookflow.errors import Problem, UserError
from hookflow.events.reading import read_object, valid, validator_of
from hookflow.hooks.checkpoint_files import METADATA_FILE

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

VERSION = 11
"""The version of the format; no other version is read."""
MANIFEST_FILE = "manifest.json"
TRAINING_FILE = "training.pt"
EXCEPTION, NONFINITE, WEIGHTS = "exception-", "nonfinite-", "weights-"
NON_RESUMABLE_PREFIXES = (EXCEPTION, NONFINITE, WEIGHTS)
"""The beginnings of names of checkpoints that no run resumes from.

They were saved after an error, with weights that are not finite, or without the state of the
optimizers.
"""
_CHECKPOINT_NAME_PATTERN = re.compile(
    rf"(?:{'|'.join(NON_RESUMABLE_PREFIXES)})?it(\d+)(?:\.(\d+))?"
)
SEAL_KEY = "sealed"
"""The last key of a manifest: the checksum of its text.

In that text this key itself is `UNSEALED_CHECKSUM`.
"""
UNSEALED_CHECKSUM = "0" * 64
LONGEST_NAME = 240
"""Bytes of a file's name.

The system takes 255, and a link is made under a longer name before it gets its own.
"""


class File(TypedDict):
    bytes: int
    sha256: str


class Manifest(TypedDict):
    """The validated fields of a manifest; those after an error have no names."""

    version: int
    hookflow: str
    torch: str
    files: dict[str, File]
    it: int
    ep: int
    metrics: dict[str, float]
    metrics_it: int
    names: dict[str, str]
    saved: float
    log: int
    ms: float
    exception: str


class DamagedError(Exception):
    """A checkpoint is not what was written; the text says in which way."""


def directory_name(it: int, prefix: str = "") -> str:
    """Return the name of a checkpoint's directory by its iteration.

    It may have one of NON_RESUMABLE_PREFIXES.
    """
    return f"{prefix}it{it:08d}"


def list_checkpoints(folder: Path, prefix: str = "") -> list[Path]:
    """Return the directories of all checkpoints below `folder`.

    The one that is furthest in the run is the first. The checkpoints are those that a run can
    resume from; with one of `NON_RESUMABLE_PREFIXES`, those of that kind. Raises OSError where the
    folder exists and cannot be read.
    """
    try:
        paths = [path for path in folder.iterdir() if path.name.startswith(f"{prefix}it")]
    except FileNotFoundError:
        return []
    result = {
        path: match for path in paths if (match := _CHECKPOINT_NAME_PATTERN.fullmatch(path.name))
    }
    return sorted(
        result, key=lambda path: [int(part or 0) for part in result[path].groups()], reverse=True
    )


def list_apart(folder: Path) -> list[Path]:
    """Return the directories of all checkpoints that no run resumes from."""
    return [path for prefix in NON_RESUMABLE_PREFIXES for path in list_checkpoints(folder, prefix)]


def list_unfinished(folder: Path) -> list[Path]:
    """Return the directories that are being written or removed.

    A killed process may have left some.
    """
    return [
        path for prefix in ("", *NON_RESUMABLE_PREFIXES) for path in folder.glob(f".{prefix}it*")
    ]


def parse_iteration(path: Path) -> int:
    """Return the iteration of a checkpoint, by the name of its directory."""
    match = _CHECKPOINT_NAME_PATTERN.fullmatch(path.name)
    if match:
        return int(match[1])
    return 0


def is_weights_only(path: Path) -> bool:
    """Say whether a checkpoint lacks the optimizers' state, so that no run resumes from it."""
    return path.name.startswith(WEIGHTS)


def read_links(folder: Path) -> dict[str, Path]:
    """Return the checkpoint that each name refers to.

    A link that is called as a checkpoint is no name: the user has moved that one to another place.
    """
    result: dict[str, Path] = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            is_name = not entry.name.startswith(".") and not _CHECKPOINT_NAME_PATTERN.fullmatch(
                entry.name
            )
            if is_name and entry.is_symlink():
                result[entry.name] = folder / Path(entry.path).readlink().name
    return result


def names_by_checkpoint(folder: Path) -> dict[Path, list[str]]:
    """Return the names of each checkpoint that has any, sorted."""
    names: dict[Path, list[str]] = {}
    for name, path in sorted(read_links(folder).items()):
        names.setdefault(path, []).append(name)
    return names


def make_sealed_text(manifest: dict[str, Any]) -> str:
    """Return the text of a manifest, with its own checksum at the end."""
    text = json.dumps(manifest | {SEAL_KEY: UNSEALED_CHECKSUM}, indent=1)
    return text.replace(UNSEALED_CHECKSUM, hashlib.sha256(text.encode()).hexdigest())


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of the checkpoint at `path`.

    Raises DamagedError where it is not as it was written.
    """
    try:
        text = (path / MANIFEST_FILE).read_bytes()
    except FileNotFoundError:
        raise DamagedError(f"{MANIFEST_FILE} is missing") from None
    except OSError as error:
        raise DamagedError(f"{MANIFEST_FILE} cannot be read: {error.strerror}") from None
    return parse_manifest(text, path.name)


def parse_manifest(text: bytes, folder: str) -> dict[str, Any]:
    """Return the manifest of a checkpoint in a folder of this name.

    Raises DamagedError as `read_manifest` does.
    """
    try:
        manifest = valid(_validator(), read_object(text, nan=True))
    except ValueError:
        raise DamagedError(f"{MANIFEST_FILE} is no manifest") from None
    version = manifest["version"]
    author = manifest["hookflow"]
    if version != VERSION:
        raise DamagedError(
            f"hookflow {author} saved it in format {version}, this one reads format {VERSION} alone"
        )
    sealed = str(manifest.get(SEAL_KEY)).encode()
    if (
        hashlib.sha256(text.replace(sealed, UNSEALED_CHECKSUM.encode())).hexdigest().encode()
        != sealed
    ):
        raise DamagedError(f"{MANIFEST_FILE} is not what was written")
    files = manifest["files"]
    names = manifest.get("names", {})
    whole = TRAINING_FILE in files and all(
        entry.keys() >= File.__annotations__.keys() for entry in files.values()
    )
    placed = manifest.keys() >= {"it", "ep"} and (
        "names" in manifest or folder.startswith((EXCEPTION, NONFINITE))
    )
    if (
        not whole
        or not placed
        or not all(map(_is_plain, (*(files.keys() - {METADATA_FILE}), *names, *names.values())))
    ):
        raise DamagedError(f"{MANIFEST_FILE} is no manifest")
    return dict(manifest)


def _is_plain(name: str) -> bool:
    """Return whether a file can have the name, and it leads nowhere but into its folder."""
    fits = name.isprintable() and 0 < len(name.encode()) <= LONGEST_NAME
    return fits and Path(name).name == name and not name.startswith(".")


@cache
def _validator() -> SchemaValidator:
    return validator_of(Manifest, needed={"version", "files", "hookflow"})


def find_damage(path: Path, *, thorough: bool = True) -> str:
    """Return the damage of a checkpoint, which is empty without one.

    If not `thorough`, only sizes are compared.
    """
    try:
        files = read_manifest(path)["files"]
    except DamagedError as error:
        return str(error)
    return next(
        filter(
            None, (find_file_damage(path / name, files[name], thorough=thorough) for name in files)
        ),
        "",
    )


def find_file_damage(path: Path, entry: File, *, thorough: bool) -> str:
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            return f"{path.name} has {size} bytes instead of {entry['bytes']}"
        with path.open("rb") as file:
            if thorough and hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                return f"{path.name} is not what was written"
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return ""


def find_newest_good(
    paths: Iterable[Path], check: Callable[[Path], str] = find_damage
) -> tuple[Path | None, list[str]]:
    """Return the first whole one of these checkpoints, and a line on each damaged one before it.

    `check` returns the damage of one. Returns None when there are no checkpoints. Raises UserError
    when none is whole.
    """
    passed_over: list[str] = []
    for path in paths:
        wrong = check(path)
        if not wrong:
            return path, passed_over
        passed_over.append(
            f"checkpoint {path.name} cannot be used ({wrong}); taking the one before it"
        )
    if passed_over:
        hint = f"once {path.parent} is moved away, a resume starts at the beginning"
        raise UserError([Problem(line.partition(";")[0], hint=hint) for line in passed_over])
    return None, passed_over


def is_valid_alias(name: str) -> bool:
    """Return whether a checkpoint can have a name.

    A file must be able to, and it must not be that of a checkpoint directory.
    """
    return _is_plain(name) and not _CHECKPOINT_NAME_PATTERN.fullmatch(name)
