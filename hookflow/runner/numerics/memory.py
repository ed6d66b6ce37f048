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
    """Raise OutOfMemoryError, which says what to change in the pipeline, where PyTorch or Python run out of memory."""
    try:
        yield
    except Exception as error:
        if not is_oom(error):
            raise
        explained = OutOfMemoryError(advice(pipeline, error, saved=has_checkpoint()))
        raise explained.with_traceback(error.__traceback__) from None


def advice(pipeline: Pipeline, error: BaseException, *, saved: bool) -> str:
    """Return how to take less memory, with the pipeline's own numbers; `saved`: the run has a checkpoint."""
    run, less = pipeline.run, []
    cuda = isinstance(error, torch.OutOfMemoryError)
    loader, size = pipeline.data.train.loader, pipeline.data.train.args.get("batch_size")
    if loader is not None:
        size = loader.batch_size
    if isinstance(size, int) and size > 1:
        twice = f" with run.accumulate = {run.accumulate * 2} (now {run.accumulate}), which computes the same but for"
        group = f"{twice} batch norm" if len(pipeline.optimizers) == 1 else ""  # several, a task may step itself
        less.append(f"batch_size = {-(-size // 2)} (now {size}){group}")
    if cuda and run.precision in ("fp32", "tf32"):
        less.append(f'run.precision = "bf16" (now "{run.precision}"), which halves most of the activations')
    if loader is not None and loader.on_device:
        less.append("on_device = false, which leaves the data set in this machine's memory")
    less.append("torch.utils.checkpoint in the model, which computes activations again instead of keeping them")
    requested = str(error).split(" If reserved")[0].rstrip(".") or "no more could be had"
    kept = " Existing checkpoints are not affected; --resume continues from the newest." if saved else ""
    return f"out of memory: {requested}. To reduce it: {'; '.join(less)}.{kept}"


def free_memory(error: BaseException, drop_gradients: Callable[[], None], device: torch.device) -> None:
    """Free gradients, batch and activations, so that hooks which fire at the end of the run have some memory.

    Batch and activations lie in the frames that the exception has come through.
    """
    traceback.clear_frames(error.__traceback__)
    drop_gradients()
    if device.type == "cuda":
        torch.cuda.empty_cache()
