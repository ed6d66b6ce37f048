"""Copies of checkpoints in another folder or at a URL, made by a thread of their own."""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Self

from hookflow.events.rundir import RunDir
from hookflow.hooks.capabilities import SavedCheckpoints
from hookflow.hooks.copy_place import format_place
from hookflow.runner.checkpoint.destinations import make_destination
from hookflow.runner.checkpoint.manifest import read_manifest
from hookflow.text import restore_masked

RETRY_PAUSES_SECONDS = (1.0, 5.0, 30.0)
"""Seconds between the tries of a copy; after the last one it is given up.

Once the run ends, they are those of all.
"""


class CheckpointCopies:
    """Copies of a run's checkpoints.

    A copy that fails is tried again, and a warning in the log names it.

    `templates` are places with the names of the checkpoints that go there, and `values` what stands
    in them. A newer checkpoint replaces one that waits for the same place.
    """

    def __init__(
        self,
        templates: Sequence[tuple[str, Collection[str]]],
        values: Mapping[str, str],
        say: Callable[..., None],
    ) -> None:
        self._templates = templates
        self._values = values
        self._say = say
        self._waiting: dict[str, Path] = {}
        self._changed = threading.Condition()
        self._busy = False
        self._patience = math.inf
        """When pauses end, by `time.monotonic`."""
        self._numbers = count()
        self._thread: threading.Thread | None = None

    @classmethod
    def of(
        cls, saved: Iterable[SavedCheckpoints], run_dir: RunDir, say: Callable[..., None]
    ) -> Self | None:
        """Return the copies that the hooks of a run want, None where there are none."""
        templates = [(each.copy_to, {*each.names}) for each in saved if each.copy_to]
        values = {"run": run_dir.path.parent.name, "id": run_dir.id}
        if templates:
            return cls(templates, values, say)
        return None

    def take(self, checkpoints: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
        """Let checkpoints, by their names, be copied; they may be removed once this returns."""
        for name, path in checkpoints.items():
            for place in self._list_places(name, facts):
                self._add(place, path)

    def make_up(self, checkpoints: Iterable[Path], weights: Mapping[str, Path]) -> None:
        """Let the checkpoints of a resumed run be copied again.

        A killed process may not have finished their copies.

        `checkpoints` are those that stand, the newest last. Each is copied by the names that it was
        saved by, unless a newer one goes to the same place. `weights` are those of weights alone by
        their names: their manifests name none. Existing files are not copied.
        """
        latest: dict[str, Path] = {}
        for path in checkpoints:
            manifest = read_manifest(path)
            for name, target in manifest["names"].items():
                if target == path.name:
                    latest |= dict.fromkeys(self._list_places(name, manifest), path)
        for name, path in weights.items():
            latest |= dict.fromkeys(self._list_places(name, read_manifest(path)), path)
        for place, path in latest.items():
            self._add(place, path)

    def _list_places(self, name: str, facts: Mapping[str, Any]) -> list[str]:
        """Return the place of a checkpoint by one of its names."""
        metrics = {
            restore_masked(metric): value for metric, value in facts.get("metrics", {}).items()
        }
        values = {**metrics, **self._values, "name": name, "it": facts["it"], "ep": facts["ep"]}
        return [
            format_place(template, values) for template, names in self._templates if name in names
        ]

    def _add(self, place: str, path: Path) -> None:
        held = path.with_name(f".{path.name}.copy{next(self._numbers)}.{os.getpid()}")
        try:
            shutil.copytree(path, held, copy_function=_link)
        except OSError as error:
            shutil.rmtree(held, ignore_errors=True)
            self._say(f"{path.name} is not copied to {place}: {error}", "warn")
            return
        with self._changed:
            older = self._waiting.pop(place, None)
            self._waiting[place] = held
            self._changed.notify_all()
        if older:
            shutil.rmtree(older, ignore_errors=True)
        if not self._is_working:
            self._thread = threading.Thread(
                target=self._run_copies, name="hookflow-copies", daemon=True
            )
            self._thread.start()

    @property
    def _is_working(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def finish(self) -> None:
        """Wait until every copy is made or given up."""
        self._patience = time.monotonic() + sum(RETRY_PAUSES_SECONDS)
        with self._changed:
            while (self._waiting or self._busy) and self._is_working:
                self._changed.wait(1.0)  # a signal is handled in between

    def _run_copies(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                place = next(iter(self._waiting))
                held = self._waiting.pop(place)
                self._busy = True
            try:
                self._copy(held, place)
            finally:
                shutil.rmtree(held, ignore_errors=True)
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _copy(self, held: Path, place: str) -> None:
        what = held.name[1:].partition(".")[0]
        for pause in (*RETRY_PAUSES_SECONDS, None):
            try:
                put(held, place, self._values.get("id", ""))
                return
            # Any library may serve the URL, and asyncio's CancelledError is no Exception.
            except BaseException as error:
                trouble = f"{what} could not be copied to {place}: {type(error).__name__}: {error}"
            if place in self._waiting:  # a newer one
                return
            if pause is None:
                self._say(f"{trouble}; the copy is given up", "warn")
                return
            pause = min(pause, max(self._patience - time.monotonic(), 0.0))
            self._say(f"{trouble}; next try in {pause:.3g} s", "warn")
            time.sleep(pause)


def put(folder: Path, place: str, mark: str) -> None:
    """Let a folder or a URL hold a copy of a checkpoint, and nothing else.

    This is what `Destination.put` does with the one in `folder`.
    """
    make_destination(place, mark).put(folder)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
