"""The state of a folder by git."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile

GIT_TIMEOUT_SECONDS = 10
"""Seconds that git may take; a run begins without its answer then."""

GIT_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")
"""Variables of the environment by which git takes another repository than its folder's."""


class GitError(Exception):
    """Git cannot say what a folder's commit is; the text is the reason."""


def ask_git(folder: Path, *words: str) -> bytes | None:
    """Return what a command of git prints; None where the folder is in no repository.

    Raises:
        GitError: Git has no answer: it is not installed, it refuses the folder's owner, …
    """
    # Within a hook of git these variables name another repository than that of the folder.
    environment = {name: value for name, value in os.environ.items() if name not in GIT_PLACES}
    environment["LC_ALL"] = "C"  # the reason is looked for in English
    program = shutil.which("git")
    if program is None:
        raise GitError("git is not installed")
    # Without the locks, other commands of git are not disturbed.
    command = [program, "--no-optional-locks", "-C", str(folder), *words]
    try:
        code, answer, complaint = _run_without_pipes(command, environment)
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git did not answer within {GIT_TIMEOUT_SECONDS} s") from error
    except OSError as error:
        raise GitError(str(error)) from error
    if code == 0:
        return answer
    reason = complaint.decode(errors="replace").strip().partition("\n")[0]
    if "not a git repository" in reason:
        return None
    raise GitError(reason or f"git ended with {code}")


def _run_without_pipes(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[int, bytes, bytes]:
    """Run a program; return its exit code, its output and its errors.

    A data worker that is forked meanwhile inherits the pipes of this process, and what is read from
    one would not end before that worker does. So the program writes to files. Python starts it
    without a pipe of its own because of `close_fds=False`.
    """
    with TemporaryFile() as output, TemporaryFile() as errors:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            close_fds=False,
            check=False,
            timeout=GIT_TIMEOUT_SECONDS,
            env=environment,
        )
        output.seek(0)
        errors.seek(0)
        return done.returncode, output.read(), errors.read()


def ask_git_for_text(folder: Path, *words: str) -> str | None:
    """Return the answer of `ask_git` as a text, without the ends of its last lines."""
    answer = ask_git(folder, *words)
    if answer is None:
        return None
    return answer.decode(errors="replace").rstrip("\n")
