"""The folder for temporary files, also where the root file system is read-only."""

import os
import tempfile

from hookflow.errors import Problem, UserError

SHARED_MEMORY = "/dev/shm"  # noqa: S108  # files are made in it by `tempfile`
"""A folder of Linux that is in memory.

A container with a read-only root file system has it, too.
"""


def find_temporary_folder() -> str:
    """Return Python's folder for temporary files, or else `SHARED_MEMORY`.

    That is returned where no candidate of Python's can be written.

    That is then the folder of this process, and of those that it starts. Raises UserError where
    there is none either.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        if not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
            message = (
                "temporary files need a folder that can be written: neither /tmp nor"
                f" {SHARED_MEMORY} can"
            )
            raise UserError(
                Problem(message, hint="let the environment variable TMPDIR name one")
            ) from None
    os.environ["TMPDIR"] = tempfile.tempdir = SHARED_MEMORY
    return SHARED_MEMORY
