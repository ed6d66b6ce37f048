"""The state of a folder by git."""

import os
import subprocess
from pathlib import Path

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
    # Without the locks, other commands of git are not disturbed.
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=GIT_TIMEOUT_SECONDS, env=environment
        )
    except FileNotFoundError as error:
        raise GitError("git is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git did not answer within {GIT_TIMEOUT_SECONDS} s") from error
    except OSError as error:
        raise GitError(str(error)) from error
    if done.returncode == 0:
        return done.stdout
    reason = done.stderr.decode(errors="replace").strip().partition("\n")[0]
    if "not a git repository" in reason:
        return None
    raise GitError(reason or f"git ended with {done.returncode}")


def ask_git_for_text(folder: Path, *words: str) -> str | None:
    """Return the answer of `ask_git` as a text, without the ends of its last lines."""
    answer = ask_git(folder, *words)
    if answer is None:
        return None
    return answer.decode(errors="replace").rstrip("\n")
