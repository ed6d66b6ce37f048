"""Deletion of runs and of their checkpoints: what belongs to another run is left alone."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hookflow.errors import Problem, UserError, Where
from hookflow.events.run_lock import Locks, release, try_lock
from hookflow.events.rundir import RunDir

BACK_LINK = ".run"
"""The link from checkpoints that are kept elsewhere (`out_dir`) to their run."""


def checkpoint_owner(run: RunDir) -> RunDir:
    """Return the run that owns the checkpoints of `run`, by its real path.

    It is another run where `run` is a link to it, or a copy that shares its checkpoints.
    """
    folder = run.checkpoints.resolve()
    back_link = folder / BACK_LINK
    if back_link.is_symlink():
        linked = RunDir(back_link.resolve())
        if linked.identity.exists():
            return linked
    elif (folder.parent / run.identity.name).exists():
        return RunDir(folder.parent)
    return RunDir(run.path.resolve())  # it has none, or was moved since


def delete_run(run: RunDir) -> None:
    """Delete a run directory, and its checkpoints where it keeps them elsewhere.

    Where the path is a link, only the link is deleted. The directory is moved aside first, so that
    no half of a run is left. Raises UserError where the run is locked.
    """
    if run.path.is_symlink():
        run.path.unlink()
        return
    locks = _lock(run)
    elsewhere = None
    if run.checkpoints.is_symlink():
        elsewhere = run.checkpoints.resolve()
    owns_them = checkpoint_owner(run).path == run.path.resolve()
    try:
        aside = Path(tempfile.mkdtemp(prefix=".removed-", dir=run.path.parent.parent))
        run.path.rename(aside / "run")
        shutil.rmtree(aside)
        if elsewhere is not None and owns_them and elsewhere.exists():
            shutil.rmtree(elsewhere)
            _remove_if_empty(elsewhere.parent)
    finally:
        release(locks)
    _remove_if_empty(run.path.parent)


def delete_checkpoints(run: RunDir, checkpoints: Iterable[Path]) -> None:
    """Delete checkpoints of a run that owns them, with their names.

    Raises UserError where the run is locked.
    """
    locks = _lock(run)
    try:
        links = [entry for entry in run.checkpoints.iterdir() if entry.is_symlink()]
        targets = {link.name: link.readlink().name for link in links}
        for path in checkpoints:
            for name, target in targets.items():
                if target == path.name and name != path.name:
                    (run.checkpoints / name).unlink()
            remove_checkpoint(path)
    finally:
        release(locks)


def remove_checkpoint(path: Path) -> None:
    """Remove the directory of a checkpoint; of a linked one, the link alone.

    It is renamed first: then it is no checkpoint any more, not even half of one.
    """
    if path.is_symlink():
        path.unlink()
        return
    aside = path.rename(path.with_name(f".{path.name}.gone"))
    shutil.rmtree(aside)


def _lock(run: RunDir) -> Locks:
    locks = try_lock(run.path)
    if locks is None:
        raise UserError(Problem(f"the run {run.id} has been resumed", Where("RUN")))
    return locks


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # there are others in it
        folder.rmdir()
