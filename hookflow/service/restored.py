"""A run directory made again from a copy of one of its checkpoints, as `copy_to` makes them."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hookflow.errors import Problem, UserError, Where
from hookflow.events.deletion import BACK_LINK
from hookflow.events.rundir import RunDir, run_argument, short
from hookflow.events.temporary_files import find_temporary_folder
from hookflow.runner.checkpoint.manifest import (
    DamagedError,
    directory_name,
    find_damage,
    read_manifest,
)

_TEMPORARY_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
"""The folders of `identity_of_copy`, which go with this process."""


def restore_run(checkpoint: Path, root: Path) -> RunDir:
    """Make the directory of a run below `root`, and return it.

    It has a copy of its checkpoint as the newest one. Raises UserError where the run has a
    directory there, or the checkpoint is damaged or does not say which run it is of.
    """
    found_damage = find_damage(checkpoint)
    if found_damage:
        raise UserError(
            Problem(
                f"the checkpoint {short(checkpoint)} cannot be used: {found_damage}", Where("RUN")
            )
        )
    identity = _identity(checkpoint)
    run_dir = RunDir(root / identity["name"] / identity["id"])
    if run_dir.path.exists():
        message = (
            f"{short(checkpoint)} is a copy of a checkpoint of the run {run_dir.id}, which is there"
        )
        raise UserError(
            Problem(message, hint=f"resume it with: hookflow run --resume {run_argument(run_dir)}")
        )
    name = directory_name(read_manifest(checkpoint)["it"])
    try:
        _write_identity(run_dir, checkpoint, identity)
        shutil.copytree(checkpoint, run_dir.checkpoints / name)
        (run_dir.checkpoints / "last").symlink_to(name)
    except OSError as error:
        shutil.rmtree(run_dir.path, ignore_errors=True)
        raise UserError(
            Problem(f"no run directory can be made at {short(run_dir.path)}: {error.strerror}")
        ) from None
    return run_dir


def identity_of_copy(checkpoint: Path) -> RunDir:
    """Return a temporary run directory that says which run a checkpoint's copy is of.

    It has no checkpoints. Raises UserError where the copy does not say that.
    """
    identity = _identity(checkpoint)
    folder = tempfile.TemporaryDirectory(prefix="hookflow-", dir=find_temporary_folder())
    _TEMPORARY_FOLDERS.append(folder)
    run_dir = RunDir(Path(folder.name) / identity["name"] / identity["id"])
    _write_identity(run_dir, checkpoint, identity)
    return run_dir


def run_above(checkpoint: Path) -> RunDir | None:
    """Return the run that a checkpoint is in, or whose `out_dir` it is in.

    It is None for a copy that is apart.
    """
    folder = checkpoint.resolve().parent
    linked_run = (folder / BACK_LINK).resolve()
    for run_folder in (folder.parent, checkpoint.absolute().parent.parent, linked_run):
        run_dir = RunDir(run_folder)
        if run_dir.pipeline.is_file():
            return run_dir
    return None


def _write_identity(run_dir: RunDir, checkpoint: Path, identity: dict[str, Any]) -> None:
    run_dir.path.mkdir(parents=True, mode=0o700)
    for file in (run_dir.pipeline, run_dir.plan):
        shutil.copyfile(checkpoint / file.name, file)
    run_dir.sign(**identity)


def _identity(checkpoint: Path) -> dict[str, Any]:
    """Return the facts of a checkpoint's run.

    Raises UserError where it has none, or names that lead elsewhere.
    """
    try:
        identity = read_manifest(checkpoint).get("run")
    except DamagedError as error:
        raise UserError(
            Problem(f"the checkpoint {short(checkpoint)} cannot be used: {error}")
        ) from None
    if not isinstance(identity, dict) or not isinstance(identity.get("base"), str):
        message = f"{short(checkpoint)} is a checkpoint without its run, and does not say of which"
        hint = "its run lies two folders above it; those that this version saves say it"
        raise UserError(Problem(message, Where("CHECKPOINT"), hint))
    for key in ("name", "id"):
        name = identity.get(key)
        if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name:
            raise UserError(
                Problem(f"{short(checkpoint)} says that its run's {key} is {name!r}, which is none")
            )
    return identity
