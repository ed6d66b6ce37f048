"""Environment: which code, packages and machine a run was trained with."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookflow.hooks.base import Hook

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


FILE = "environment.json"
PATIENCE = 10
"""Seconds that git may take; a run begins without its answer then."""


class EnvInfo(Hook):
    """Writes the git commit, the installed packages and the machine into `environment.json` of the run directory.

    The commit is that of the current directory's repository; `dirty` lists the files that differ from it, those that
    git does not track included. The same is logged as the text `environment`, without the packages. A resumed run
    writes the file anew.
    """

    ranks = "zero"

    def before_run(self, run: Run) -> None:
        found = {"git": git(Path.cwd()), **machine(), "packages": packages()}
        (run.dir / FILE).write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        run.log_text("environment", summary(found))


def git(folder: Path) -> dict[str, Any] | None:
    """Return the `commit` and `branch` of a folder's repository, and what is `dirty`; None where there is none."""

    def ask(*words: str) -> str:
        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # to look must not disturb who is at work there
        command = ["git", "-C", str(folder), *words]
        asked = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE, text=True, env=environment)
        return asked.stdout.rstrip("\n")

    try:
        commit, branch = ask("rev-parse", "HEAD"), ask("rev-parse", "--abbrev-ref", "HEAD")
        return {"commit": commit, "branch": branch, "dirty": [line[3:] for line in ask("status", "-s").splitlines()]}
    except (OSError, subprocess.SubprocessError):
        return None


def packages() -> dict[str, str]:
    """Return the versions of the installed packages by name."""
    from importlib.metadata import distributions

    found = {}
    for each in distributions():
        head = each.read_text("METADATA") or each.read_text("PKG-INFO") or ""  # to parse all of each takes a second
        name, version = (re.search(rf"^{field}: *(.+)$", head, re.MULTILINE) for field in ("Name", "Version"))
        if name and version:
            found[name[1]] = version[1]
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def machine() -> dict[str, Any]:
    """Return the versions of Python, torch and CUDA, the system, its processors, and the GPUs that torch sees."""
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())],
    }


def summary(found: dict[str, Any]) -> str:
    """Return what was found as lines for people, without the packages."""
    code = found["git"]
    lines = {key: value for key, value in found.items() if key not in ("git", "packages")}
    lines["gpus"] = ", ".join(found["gpus"]) or "none"
    dirty = f", {len(code['dirty'])} files differ from it" if code and code["dirty"] else ""
    commit = f"{code['commit'][:12]} on {code['branch']}{dirty}" if code else "no repository"
    return "\n".join(f"{key:9} {value}" for key, value in {"git": commit, **lines}.items())
