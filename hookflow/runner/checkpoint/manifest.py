"""What the checkpoints of a run say of themselves, and whether that still holds. Imports no torch.

A checkpoint is a directory named after its iteration (`it00000469`; `it00000469.1` if that was taken), and its
manifest says what is in it. One that was saved after an error (`exception-it00000470`) stands apart: it was taken in
the middle of an iteration, so that no run goes on from it by itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

VERSION = 7
"""Of the format. It goes up with every change of what a run needs to go on; no other version is read."""
MANIFEST = "manifest.json"
TRAINING = "training.pt"
EXCEPTION = "exception-"
_NAME = re.compile(rf"(?:{EXCEPTION})?it(\d+)(?:\.(\d+))?")


class DamagedError(Exception):
    """A checkpoint is not what was written; the text says in which way."""


def list_checkpoints(folder: Path, prefix: str = "") -> list[Path]:
    """Return the directories of all checkpoints below `folder`, the one that is furthest in the run first.

    With `EXCEPTION` as the prefix, those that were saved after an error, instead of the others.
    """
    found = {path: match for path in folder.glob(f"{prefix}it*") if (match := _NAME.fullmatch(path.name))}
    return sorted(found, key=lambda path: [int(part or 0) for part in found[path].groups()], reverse=True)


def links(folder: Path) -> dict[str, Path]:
    """Return what each name ("last", "best") stands for."""
    found = (path for path in folder.glob("[!.]*") if path.is_symlink())
    return {link.name: folder / link.readlink().name for link in found}


def read_manifest(path: Path) -> dict[str, Any]:
    """Return what the checkpoint at `path` says of itself. Raises DamagedError when that cannot be."""
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
        version, files, author = manifest["version"], manifest["files"], manifest["hookflow"]
        whole = TRAINING in files and all(
            Path(name).name == name and isinstance(entry["bytes"], int) and isinstance(entry["sha256"], str)
            for name, entry in files.items()
        )
    except FileNotFoundError:
        raise DamagedError(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise DamagedError(f"{MANIFEST} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DamagedError(f"{MANIFEST} is no manifest") from None
    if version != VERSION:
        raise DamagedError(f"hookflow {author} saved it in format {version}, this one reads format {VERSION} alone")
    if not whole:
        raise DamagedError(f"{MANIFEST} is no manifest")
    return dict(manifest)


def damage(path: Path, *, thorough: bool = True) -> str:
    """Say what is wrong with a checkpoint; an empty string when it is what was written.

    Every file is read; if not `thorough`, only whether each is there and of the right size.
    """
    try:
        files = read_manifest(path)["files"]
    except DamagedError as error:
        return str(error)
    for name, entry in files.items():
        try:
            size = (path / name).stat().st_size
            if size != entry["bytes"]:
                return f"{name} has {size} bytes instead of {entry['bytes']}"
            if thorough and _digest(path / name) != entry["sha256"]:
                return f"{name} is not what was written"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return ""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
