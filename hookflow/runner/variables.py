"""Notices that a variable of the environment has another value than before, though no value is recorded.

A run records a keyed hash of each variable that its pipeline refers to. The key is the user's own, in a file that
nobody else can read: who has the run directory alone can neither read a value nor try guesses out.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from hookflow.events.reading import is_string, only_of
from hookflow.events.rundir import RunDir

BYTES = 32


def changed_variables(run_dir: RunDir, names: Collection[str], *, resumed: bool) -> Iterator[str]:
    """Yield a warning where variables have another value than the recorded one, if the run is resumed."""
    if not names:
        return
    try:
        key = user_key()
    except (OSError, RuntimeError) as error:  # a full disk; a user without a home
        yield f"whether {_listed(names)} will change cannot be noticed: no key can be kept ({error})"
        return
    then = run_dir.describe().get("environment", {})
    identity, now = _hashes(key, run_dir, names)
    if not resumed or not (known := only_of(dict.fromkeys(names, is_string), then.get("values"))):
        return
    if then.get("key") != identity:
        yield f"whether {_listed(known)} has another value than before cannot be said: another user's key was used"
    elif changed := [name for name in names if known.get(name, now[name]) != now[name]]:
        yield f"the environment gives another value than before: {_listed(changed)}"


def record_variables(run_dir: RunDir, names: Collection[str]) -> None:
    """Record the hash of each variable, where the user has a key."""
    with contextlib.suppress(OSError, RuntimeError):  # of which `changed_variables` warns
        if names:
            identity, now = _hashes(user_key(), run_dir, names)
            run_dir.sign(environment={"key": identity, "values": now})


def user_key() -> bytes:
    """Return the key of this user, which is made when it is first asked for."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "hookflow"
    file = folder / "key"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / f"key.{secrets.token_hex(8)}"
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as made:
            made.write(secrets.token_bytes(BYTES))
        with contextlib.suppress(FileExistsError):  # another process was faster: that one's counts
            file.hardlink_to(aside)
        aside.unlink()
    return file.read_bytes()


def _hashes(key: bytes, run_dir: RunDir, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return the hashes of the key itself and of each variable's value."""
    return _hash(key, run_dir.id), {name: _hash(key, run_dir.id, name) for name in names}


def _hash(key: bytes, run: str, name: str = "") -> str:
    """Return what is recorded of a variable; one that is empty and one that is not set are the same to a pipeline."""
    value = os.environ.get(name, "") if name else ""
    return hmac.new(key, f"{run}\0{name}\0{value}".encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
