"""Images and histograms on their way to the disk and the event log, in a thread of their own.

The training thread copies what it is given, where that lies, and puts it into a queue; everything that waits for a
device or a disk is done here. What the queue has no room for is dropped, counted and told.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

import numpy as np
from torch import Tensor

from hookflow.events.records import Level, Put
from hookflow.events.rundir import of_rank
from hookflow.png import encode_png
from hookflow.runner.images import pixels

ROOM = 256 << 20
"""Bytes that may wait in the queue."""
PLACES = 512
"""How many images and histograms may."""
GRACE = 10.0
"""Seconds that the end of a run waits for what is in the queue."""


class Place(Protocol):
    """Where the run is."""

    iter: int
    epoch: int


class Media:
    """Writes images below `folder`/images, and puts a record for each into the event log; so too for histograms."""

    def __init__(self, folder: Path, place: Place, put: Put, say: Callable[[str, Level], None], rank: int = 0) -> None:
        self._folder = folder
        self._place = place
        self._put = put
        self._say = say
        self._rank = rank
        self._queue: SimpleQueue[tuple[int, Callable[[], None]] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._given = self._done = 0  # each is counted by one thread alone, so that neither needs a lock
        self._given_bytes = self._done_bytes = 0
        self._dropped = 0
        self._failed = 0
        self._latest: dict[Path, tuple[int, int]] = {}
        self._given_up = False

    def image(self, name: str, image: Tensor, caption: str, hook: str, *, figure: bool = False) -> None:
        """Take an image that nobody changes any more, height × width × channels."""
        it, ep = self._place.iter, self._place.epoch
        self._submit(image.nbytes, partial(self._write_image, name, image, caption, hook, figure, it, ep))

    def histogram(self, name: str, values: Tensor, bins: int, hook: str) -> None:
        """Take values that nobody changes any more, to count them."""
        it, ep = self._place.iter, self._place.epoch
        self._submit(values.nbytes, partial(self._count, name, values, bins, hook, it, ep))

    def close(self) -> None:
        """Write what is left and end the thread; after GRACE seconds, give up what is not written."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(GRACE)
            self._given_up = True
        if lost := self._dropped + self._failed + self._given - self._done:
            self._say(f"{lost} logged images and histograms were lost", "warn")

    def _submit(self, size: int, work: Callable[[], None]) -> None:
        waiting, held = self._given - self._done, self._given_bytes - self._done_bytes
        if waiting >= PLACES or (waiting and held + size > ROOM):
            self._dropped += 1
            if self._dropped == 1:
                self._say("images are logged faster than they can be written: some are dropped", "warn")
            return
        if self._thread is None:
            self._thread = Thread(target=self._work, name="hookflow-media", daemon=True)
            self._thread.start()
        self._given += 1
        self._given_bytes += size
        self._queue.put((size, work))

    def _work(self) -> None:
        while (job := self._queue.get()) is not None and not self._given_up:
            size, work = job
            try:
                work()
            except Exception as error:  # a full disk, a device that fails: the training has its own way to meet that
                self._failed += 1
                if self._failed == 1:
                    self._say(f"a logged image could not be written: {type(error).__name__}: {error}", "warn")
            self._done += 1
            self._done_bytes += size

    def _write_image(self, name: str, image: Tensor, caption: str, hook: str, figure: bool, it: int, ep: int) -> None:
        array = pixels(image)
        path = self._path(name, it)
        whole = self._folder / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_bytes(encode_png(array))
        height, width, _ = array.shape
        self._put(
            "image",
            it=it,
            ep=ep,
            name=name,
            path=path.as_posix(),
            width=width,
            height=height,
            caption=caption,
            figure=figure,
            hook=hook,
        )

    def _path(self, name: str, it: int) -> Path:
        """Return a place for an image of this name; a second one in the same iteration has another."""
        parts = (re.sub(r"[^\w.-]", "_", part)[:80] for part in name.split("/") if part.strip(". "))
        folder = Path("images", *parts)
        before, count = self._latest.get(folder, (-1, 0))
        count = count + 1 if before == it else 0
        self._latest[folder] = it, count
        return of_rank(folder / f"it{it:08}{f'-{count}' if count else ''}.png", self._rank)

    def _count(self, name: str, values: Tensor, bins: int, hook: str, it: int, ep: int) -> None:
        host = values.cpu().double().numpy()
        finite = host[np.isfinite(host)]
        if not finite.size:
            return self._say(f'the histogram "{name}" of iteration {it} has no finite value', "warn")
        counts, edges = np.histogram(finite, bins)
        return self._put("histogram", it=it, ep=ep, name=name, edges=edges.tolist(), counts=counts.tolist(), hook=hook)
