"""Images and histograms: written to disk and logged by a thread of their own.

The training thread copies what it is given, on its device, and puts it into a queue. Items beyond
the size of the queue are dropped, counted and reported.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookflow.events.records import Level
from hookflow.events.rundir import of_rank
from hookflow.png import COLOUR_TYPES, encode_png
from hookflow.runner.device.cuda import device_thread, event_of_stream
from hookflow.runner.process.state import RunState
from hookflow.text import masked

Place = tuple[int, int]
"""The iteration and the epoch that something is of, where it is not the present one."""


def copy_image(image: Any, called: str) -> Tensor:
    """Return a copy of an image, height × width × channels; that of a tensor stays on its device.

    Where both the first and the last dimension may be channels, they come first in a tensor, and
    last in anything else. Raises TypeError, which names `called`, for anything that is no image.
    """
    first = isinstance(image, Tensor)
    if first:
        provided: Tensor = image.detach()
    else:
        provided = _of_array(image, called)
    sizes = tuple(provided.shape)
    if provided.ndim == 2:
        provided = provided.unsqueeze(2)
    elif (
        provided.ndim == 3 and sizes[0] in COLOUR_TYPES and (first or sizes[2] not in COLOUR_TYPES)
    ):
        provided = provided.permute(1, 2, 0)
    if provided.ndim != 3 or provided.shape[2] not in COLOUR_TYPES or not provided.numel():
        several = ""
        if provided.ndim == 4:
            several = "; log the images of a batch one by one, or make a grid of them"
        raise TypeError(
            f"{called} needs height × width × 1, 3 or 4 channels, last or first, not"
            f" {sizes}{several}"
        )
    if not (provided.is_floating_point() or provided.dtype in (torch.uint8, torch.bool)):
        raise TypeError(
            f"{called} needs uint8, floating (0…1) or boolean values, not {provided.dtype}"
        )
    if first:
        return provided.clone(memory_format=torch.contiguous_format)
    return provided.contiguous()


def _of_array(image: Any, called: str) -> Tensor:
    if hasattr(image, "convert") and getattr(image, "mode", "RGB") not in ("L", "RGB", "RGBA"):
        image = image.convert("RGB")  # PIL's: a palette, CMYK, one bit
    try:
        return torch.from_numpy(np.array(image, order="C"))
    except TypeError:
        shown = f"{type(image).__name__} ({image!r:.40})"
        raise TypeError(
            f"{called} needs a tensor, an array or a PIL image, not a {shown}"
        ) from None


def render_figure(figure: Any, called: str) -> Tensor:
    """Return the image of a figure of matplotlib.

    Raises TypeError, which names `called`, for no figure.
    """
    if not hasattr(figure, "set_canvas"):
        raise TypeError(
            f"{called} needs a figure of matplotlib, not a {type(figure).__name__} ({figure!r:.40})"
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    before = figure.canvas
    try:
        canvas: Any = FigureCanvasAgg(figure)  # which makes itself the figure's own
        canvas.draw()
        return torch.from_numpy(np.array(canvas.buffer_rgba()))
    finally:
        figure.set_canvas(before)


def read_pixels(image: Tensor) -> NDArray[np.uint8]:
    """Return a copied image in the host's memory, as uint8; this waits for its device."""
    host = image.cpu()
    if host.is_floating_point():
        host = host.float().nan_to_num_(0.0, 1.0, 0.0).clamp_(0, 1).mul_(255).round_()
    elif host.dtype == torch.bool:
        host = host * 255
    array: NDArray[np.uint8] = host.to(torch.uint8).numpy()
    return array


MAX_QUEUED_BYTES = 256 << 20
"""Bytes that may wait in the queue."""
MAX_QUEUED_ITEMS = 512
"""How many images and histograms may."""
CLOSE_GRACE_SECONDS = 10.0
"""Seconds that the end of a run waits for what is in the queue."""


class MediaJob(NamedTuple):
    """Something to write.

    It has its bytes, what writes it, and the event after which its tensor is computed, if any.
    """

    size: int
    work: Callable[[], None]
    computed: Any


class MediaRecorder:
    """Writes images below `folder`/images, and puts a record for each into the event log.

    It does the same for histograms.
    """

    def __init__(
        self,
        folder: Path,
        state: RunState,
        put: Callable[..., None],
        say: Callable[[str, Level], None],
        rank: int = 0,
    ) -> None:
        self._folder = folder
        self._state = state
        self._put = put
        self._say = say
        self._rank = rank
        self._queue: SimpleQueue[MediaJob | None] = SimpleQueue()
        self._thread: Thread | None = None
        # Each of these counts is changed by one thread alone, so none needs a lock.
        self._given = self._done = 0
        self._given_bytes = self._done_bytes = 0
        self._dropped = 0
        self._failed = 0
        self._latest: dict[Path, tuple[int, int]] = {}
        self._given_up = False

    def image(
        self,
        name: str,
        image: Tensor,
        caption: str,
        hook: str,
        place: Place | None = None,
        *,
        figure: bool = False,
    ) -> None:
        """Take an image that does not change any more, height × width × channels."""
        self._queue_work(
            image, place, partial(self._write_image, name, image, caption, hook, figure)
        )

    def histogram(
        self, name: str, values: Tensor, bins: int, hook: str, place: Place | None = None
    ) -> None:
        """Take values that do not change any more, to count them."""
        self._queue_work(values, place, partial(self._count, name, values, bins, hook))

    def close(self) -> None:
        """Write what is left and end the thread.

        After CLOSE_GRACE_SECONDS, give up what is not written.
        """
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(CLOSE_GRACE_SECONDS)
            self._given_up = True
        lost = self._dropped + self._failed + self._given - self._done
        if lost:
            self._say(f"{lost} logged images and histograms were lost", "warn")

    def _queue_work(self, tensor: Tensor, place: Place | None, work: Callable[..., None]) -> None:
        """Queue `work` on a tensor, after what computes it.

        An offloaded hook may do so on a stream of its own.
        """
        size = tensor.nbytes
        waiting = self._given - self._done
        held = self._given_bytes - self._done_bytes
        if waiting >= MAX_QUEUED_ITEMS or (waiting and held + size > MAX_QUEUED_BYTES):
            self._dropped += 1
            if self._dropped == 1:
                self._say(
                    "images are logged faster than they can be written: some are dropped", "warn"
                )
            return
        if self._thread is None:
            self._thread = device_thread(self._run_jobs, "hookflow-media")
            self._thread.start()
        self._given += 1
        self._given_bytes += size
        it, ep = place or (self._state.iter, self._state.epoch)
        self._queue.put(MediaJob(size, partial(work, it, ep), event_of_stream(tensor)))

    def _run_jobs(self) -> None:
        while (job := self._queue.get()) is not None and not self._given_up:
            try:
                if job.computed is not None:
                    job.computed.synchronize()
                job.work()
            # A full disk or a failed device does not end this thread: the training meets it itself.
            except Exception as error:
                self._failed += 1
                if self._failed == 1:
                    self._say(
                        f"a logged image could not be written: {type(error).__name__}: {error}",
                        "warn",
                    )
            self._done += 1
            self._done_bytes += job.size

    def _write_image(
        self, name: str, image: Tensor, caption: str, hook: str, figure: bool, it: int, ep: int
    ) -> None:
        array = read_pixels(image)
        path = self._path(masked(name), it)
        whole = self._folder / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_bytes(encode_png(array))
        height, width, _ = array.shape
        about = {
            "path": path.as_posix(),
            "width": width,
            "height": height,
            "caption": caption,
            "figure": figure,
        }
        self._put("image", it=it, ep=ep, name=name, hook=hook, **about)

    def _path(self, name: str, it: int) -> Path:
        """Return a place for an image of this name.

        A second one in the same iteration has another.
        """
        parts = (re.sub(r"[^\w.-]", "_", part)[:80] for part in name.split("/") if part.strip(". "))
        folder = Path("images", *parts)
        before, count = self._latest.get(folder, (-1, 0))
        if before == it:
            count = count + 1
        else:
            count = 0
        self._latest[folder] = it, count
        return of_rank(folder / f"it{it:08}{f'-{count}' if count else ''}.png", self._rank)

    def _count(self, name: str, values: Tensor, bins: int, hook: str, it: int, ep: int) -> None:
        host = values.cpu().double().numpy()
        finite = host[np.isfinite(host)]
        if not finite.size:
            return self._say(
                f'the histogram "{name}" of iteration {it} has no finite value', "warn"
            )
        counts, edges = np.histogram(finite, bins)
        return self._put(
            "histogram",
            it=it,
            ep=ep,
            name=name,
            edges=edges.tolist(),
            counts=counts.tolist(),
            hook=hook,
        )
