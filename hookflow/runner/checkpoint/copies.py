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
from typing import Any

from hookflow.events.rundir import RunDir
from hookflow.hooks.builtin.checkpoint import Checkpoint, place_of
from hookflow.runner.checkpoint.manifest import MANIFEST

PAUSES = (1.0, 5.0, 30.0)
"""Seconds between the tries of a copy; after the last one it is given up. Once the run ends, they are those of all."""


class Copies:
    """Copies of a run's checkpoints. A copy that fails is tried again, and a warning in the log names it.

    `templates` are places with the names of the checkpoints that go there, and `values` what stands in them. A newer
    checkpoint replaces one that waits for the same place.
    """

    def __init__(
        self, templates: Sequence[tuple[str, Collection[str]]], values: Mapping[str, str], say: Callable[..., None]
    ) -> None:
        self._templates, self._values, self._say = templates, values, say
        self._waiting: dict[str, Path] = {}
        self._changed = threading.Condition()
        self._busy = False
        self._patience = math.inf
        """When pauses end, by `time.monotonic`."""
        self._numbers = count()
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, hooks: Iterable[Any], run_dir: RunDir, say: Callable[..., None]) -> Copies | None:
        """Return the copies that the hooks of a run want, None where there are none."""
        saving = [hook for hook in hooks if isinstance(hook, Checkpoint) and hook.copy_to]
        templates = [(hook.copy_to or "", {"last", *hook.best_names()}) for hook in saving]
        values = {"run": run_dir.path.parent.name, "id": run_dir.id}
        return cls(templates, values, say) if templates else None

    def take(self, checkpoints: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
        """Let checkpoints, by their names, be copied; they may be removed once this returns."""
        for template, names in self._templates:
            for name, path in checkpoints.items():
                if name in names:
                    values = {**facts.get("metrics", {}), **self._values, "name": name}
                    self._add(place_of(template, {**values, "it": facts["it"], "ep": facts["ep"]}), path)

    def _add(self, place: str, path: Path) -> None:
        held = path.with_name(f".{path.name}.copy{next(self._numbers)}.{os.getpid()}")
        try:
            shutil.copytree(path, held, copy_function=_link)
        except OSError as error:
            self._say(f"{path.name} is not copied to {place}: {error}", "warn")
            return
        with self._changed:
            older = self._waiting.pop(place, None)
            self._waiting[place] = held
            self._changed.notify_all()
        if older:
            shutil.rmtree(older)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="hookflow-copies", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait until every copy is made or given up."""
        self._patience = time.monotonic() + sum(PAUSES)
        with self._changed:
            while self._waiting or self._busy:
                self._changed.wait(1.0)  # a signal is handled in between

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                place = next(iter(self._waiting))
                held = self._waiting.pop(place)
                self._busy = True
            self._copy(held, place)
            shutil.rmtree(held, ignore_errors=True)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _copy(self, held: Path, place: str) -> None:
        what = held.name[1:].partition(".")[0]
        for pause in (*PAUSES, None):
            try:
                put(held, place)
                return
            except Exception as error:  # of whatever serves the URL
                trouble = f"{what} could not be copied to {place}: {type(error).__name__}: {error}"
            if place in self._waiting:  # a newer one
                return
            if pause is None:
                self._say(f"{trouble}; the copy is given up", "warn")
                return
            pause = min(pause, max(self._patience - time.monotonic(), 0.0))
            self._say(f"{trouble}; next try in {pause:.3g} s", "warn")
            time.sleep(pause)


def put(folder: Path, place: str) -> None:
    """Copy a checkpoint to a folder or a URL, which afterwards holds nothing else; the manifest comes last."""
    if "://" in place:
        from fsspec.core import url_to_fs

        files, path = url_to_fs(place)
        if files.exists(path):
            files.rm(path, recursive=True)
        files.makedirs(path, exist_ok=True)
        for file in sorted(folder.iterdir(), key=lambda file: file.name == MANIFEST):
            files.put_file(str(file), f"{path}/{file.name}")
        return
    target = Path(place).absolute()
    aside, gone = (target.with_name(f".{target.name}.{os.getpid()}.{what}") for what in ("new", "old"))
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(folder, aside)
    if target.exists():
        target.rename(gone)
    aside.rename(target)
    shutil.rmtree(gone, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
