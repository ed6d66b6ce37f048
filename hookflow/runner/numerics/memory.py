"""Out of memory: the explanation of the error, and the memory that is freed."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from hookflow.pipeline.schema import Pipeline


class OutOfMemoryError(RuntimeError):
    """The memory of the device, or of this machine, does not hold what the run needs."""


def is_oom(error: BaseException) -> bool:
    """Say whether an exception means that there was no memory left: the device's, or this machine's."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # the CPU's has no type


@contextmanager
def explain_oom(pipeline: Pipeline, has_checkpoint: Callable[[], bool]) -> Iterator[None]:
    """Raise OutOfMemoryError, which says what to change in the pipeline, for whatever says that memory has run out.

    It has come the same way: its traceback ends where the memory was asked for.
    """
    try:
        yield
    except Exception as error:
        if not is_oom(error):
            raise
        raise OutOfMemoryError(advice(pipeline, error, saved=has_checkpoint())).with_traceback(
            error.__traceback__
        ) from None


def advice(pipeline: Pipeline, error: BaseException, *, saved: bool) -> str:
    """Return what takes less memory, with the pipeline's own numbers; `saved`: the run has a checkpoint."""
    run = pipeline.run
    cuda = isinstance(error, torch.OutOfMemoryError) and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    less = []
    if (size := batch_size(pipeline)) and size > 1:
        twice = f" with run.accumulate = {run.accumulate * 2} (now {run.accumulate}), which computes the same but for"
        group = f"{twice} batch norm" if len(pipeline.optimizers) == 1 else ""  # several, a task may step itself
        less.append(f"batch_size = {-(-size // 2)} (now {size}){group}")
    if cuda and run.precision in ("fp32", "tf32"):
        less.append(f'run.precision = "bf16" (now "{run.precision}"), which halves most of the activations')
    if pipeline.data.train.loader is not None and pipeline.data.train.loader.on_device:
        less.append("on_device = false, which leaves the data set in this machine's memory")
    less.append("torch.utils.checkpoint in the model, which computes activations again instead of keeping them")
    requested = str(error).split(". GPU")[0].rstrip(".") or "no more could be had"
    kept = " Existing checkpoints are not affected; --resume continues from the newest." if saved else ""
    return f"out of memory: {requested}{_held() if cuda else ''}. To reduce it: {'; '.join(less)}.{kept}"


def batch_size(pipeline: Pipeline) -> int | None:
    """Return the batch size of the training, where the pipeline says it."""
    data = pipeline.data.train
    if data.loader is not None:
        return data.loader.batch_size
    size = data.args.get("batch_size")
    return size if isinstance(size, int) else None


def _held() -> str:
    _, total = torch.cuda.mem_get_info()
    held, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return (
        f"; of the device's {total / 2**30:.2f} GiB at most {held / 2**30:.2f} GiB were in tensors, "
        f"{reserved / 2**30:.2f} GiB reserved by PyTorch"
    )


def free_memory(error: BaseException, drop_gradients: Callable[[], None], device: torch.device) -> None:
    """Free what the iteration held, so that hooks which fire at the end of the run find some memory again.

    That is the gradients, and what lies in the frames that the exception has come through: batch and activations.
    """
    traceback.clear_frames(error.__traceback__)
    drop_gradients()
    if device.type == "cuda":
        torch.cuda.empty_cache()
