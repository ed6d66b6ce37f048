"""The checkpoints of a run: the facts of each of its checkpoints."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hookflow.events.rundir import RunDir


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint of a run. A field that a damaged manifest lacks is None.

    `damage` says why it cannot be used; it is empty for one that can. `exception` is the error
    after which it was saved: no run resumes from such a one.
    """

    path: str
    names: Sequence[str]
    it: int | None
    ep: int | None
    metrics: Mapping[str, Any] | None
    metrics_it: int | None
    saved: float | None
    hookflow: str | None
    torch: str | None
    exception: str | None
    bytes: int | None
    files: Mapping[str, int]
    damage: str

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def can_resume(self) -> bool:
        return not self.damage and not self.exception


def list_saved(run: RunDir, *, verify: bool = False) -> list[SavedCheckpoint]:
    """Return the checkpoints of a run: the newest first, those that no run resumes from at the end.

    With `verify` every file is compared with its checksum.
    """
    from hookflow.runner.checkpoint.manifest import (
        list_apart,
        list_checkpoints,
        names_by_checkpoint,
    )

    names = names_by_checkpoint(run.checkpoints)
    paths = [*list_checkpoints(run.checkpoints), *list_apart(run.checkpoints)]
    return [_read_checkpoint(path, names.get(path, []), verify) for path in paths]


def _read_checkpoint(path: Path, names: Sequence[str], verify: bool) -> SavedCheckpoint:
    from hookflow.events.rundir import short
    from hookflow.runner.checkpoint.manifest import DamagedError, find_damage, read_manifest

    manifest: Mapping[str, Any] = {}
    with suppress(DamagedError):  # `damage` says so
        manifest = read_manifest(path)
    files = {name: entry["bytes"] for name, entry in manifest.get("files", {}).items()}
    num_bytes = None
    if files:
        num_bytes = sum(files.values())
    return SavedCheckpoint(
        path=str(short(path)),
        names=names,
        it=manifest.get("it"),
        ep=manifest.get("ep"),
        metrics=manifest.get("metrics"),
        metrics_it=manifest.get("metrics_it"),
        saved=manifest.get("saved"),
        hookflow=manifest.get("hookflow"),
        torch=manifest.get("torch"),
        exception=manifest.get("exception"),
        bytes=num_bytes,
        files=files,
        damage=find_damage(path, thorough=verify),
    )
