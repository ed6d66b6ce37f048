"""The checkpoint that a fork begins with.

The fork holds it, though the parent may remove its own meanwhile.
"""

import os
import shutil
from pathlib import Path

from hookflow.events.rundir import Parent, RunDir


def link_parent_checkpoint(run_dir: RunDir, parent: Parent) -> None:
    """Take the parent's checkpoint into a fork.

    Hard links are used where the file system allows that. Raises OSError where the parent has
    removed it.
    """
    try:
        shutil.copytree(
            parent.path, run_dir.fork_start / parent.checkpoint, copy_function=_link_or_copy
        )
    except shutil.Error as error:  # it holds the errors of several files
        raise OSError(str(error)) from None


def find_parent_checkpoint(run_dir: RunDir, parent: Parent) -> Path:
    """Return the checkpoint that a fork begins with.

    It is the one that the fork holds, or that of its parent.
    """
    held = run_dir.fork_start / parent.checkpoint
    if held.exists():
        return held
    return Path(parent.path)


def release_parent(run_dir: RunDir) -> None:
    """Remove the checkpoint that a fork has begun with, once it has one of its own."""
    shutil.rmtree(run_dir.fork_start, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
