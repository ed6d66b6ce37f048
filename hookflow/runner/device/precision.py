"""Device and precision of a run.

The module has PyTorch's settings while it lasts, and advice when its memory is not enough.
"""

import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from hookflow.errors import Problem, UserError, Where
from hookflow.events.temporary_files import find_temporary_folder
from hookflow.hooks.tensors import is_oom
from hookflow.numbers import format_count
from hookflow.pipeline.components import DataSource
from hookflow.pipeline.schema import Pipeline, RunSection

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The precisions in which the forward pass computes in 16 bits where it may, by autocast."""

PARAM_DTYPES = {"bf16-true": torch.bfloat16, "fp16-true": torch.float16, "fp64": torch.float64}
"""The precisions that weights, optimizers and floating tensors of batches have, too.

They need no autocast.
"""


def choose_device(wanted: str, where: Where | None = None) -> torch.device:
    """Return the device for `wanted`: "auto" takes CUDA, then MPS, then the CPU.

    Raises UserError for an absent one.
    """
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    device = torch.device(wanted)
    cuda = torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    here = {"cpu": True, "cuda": cuda, "mps": torch.backends.mps.is_available()}
    if not here[device.type]:
        message = f'run.device = "{wanted}", but there is no such device here'
        raise UserError(Problem(message, where, '"auto" takes what is there'))
    return device


def choose_precision(wanted: str, device: torch.device, say: Callable[..., None]) -> str:
    """Return the precision of computations.

    It is "fp32", "tf32", "bf16", "fp16", "bf16-true", "fp16-true" or "fp64".

    "auto" takes bf16 where the hardware computes in it, since elsewhere it is slower, and else
    fp32. `say` is called where the precision differs from the requested one. Raises UserError where
    the device cannot compute in it.
    """
    if wanted == "fp64" and device.type == "mps":
        raise UserError(
            Problem(
                'run.precision = "fp64", and MPS has no float64', hint='run.device = "cpu" has it'
            )
        )
    if wanted == "tf32" and device.type != "cuda":
        say(f'run.precision = "tf32" is for CUDA: on {device} this run computes in fp32', "warn")
        return "fp32"
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16"
        return "fp32"
    if device.type == "cpu" and _cpu_has_bf16():
        return "bf16"
    return "fp32"


def _cpu_has_bf16() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def is_recording_graphs(device: torch.device, compiled: bool | str) -> bool:
    """Say whether `torch.compile` records CUDA graphs.

    Each run of a graph writes over the outputs of its last one.
    """
    return device.type == "cuda" and compiled in ("reduce-overhead", "max-autotune")


def in_precision(
    step: Callable[[Any, Any], Any], device: torch.device, precision: str, compiled: bool | str
) -> Callable[[Any, Any], Any]:
    """Return a task's method in the precision of the run.

    It runs in autocast where the precision has 16 bits, and else it is the method itself. Where the
    weights have another type than float32, the floating tensors of a batch get it, too. Where its
    network records CUDA graphs, each call begins another step of them.
    """
    half = AUTOCAST_DTYPES.get(precision)
    whole = PARAM_DTYPES.get(precision)
    marks = is_recording_graphs(device, compiled)
    if half is None and whole is None and not marks:
        return step
    # The context may be entered again and again, so one is enough.
    cast = torch.autocast(device.type, half) if half else nullcontext()

    def in_whole(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point():
            return tensor.to(whole)
        return tensor

    def compute_step(run: Any, batch: Any) -> Any:
        if marks:
            torch.compiler.cudagraph_mark_step_begin()
        if whole:
            batch = tree_map_only(torch.Tensor, in_whole, batch)
        with cast:
            return step(run, batch)

    return compute_step


def describe(device: torch.device) -> str:
    """Return the device in words, e.g. "cuda (NVIDIA H200)" or "cpu (2 threads)"."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    if device.type == "cpu":
        return f"cpu ({format_count(torch.get_num_threads(), 'thread')})"
    return str(device)


CUBLAS_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"

ONLY_HERE = (
    "deterministic: the same bits come out on this machine, with this version of PyTorch and as"
    " many threads; what your own code takes from the clock, from files or from kernels of its own"
    " is not covered"
)
DETERMINISM_HINT = (
    "Replace what computes it (the traceback says where), or take run.deterministic out of the"
    " pipeline"
)


class NondeterministicError(RuntimeError):
    """An operation has no deterministic form, and the run is to have no others."""


@contextmanager
def torch_settings(section: RunSection, say: Callable[..., None]) -> Iterator[None]:
    """Set threads, determinism, cuDNN's search and CUDA's precision of float32.

    This comes before CUDA is used. Raises NondeterministicError when the run is deterministic and
    an operation cannot be, and UserError where there is no folder for temporary files, which
    PyTorch needs.
    """
    find_temporary_folder()
    with ExitStack() as put_back:
        if section.threads is not None:
            put_back.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(section.threads)
        _set(put_back, torch.backends.cudnn, "benchmark", section.cudnn_benchmark)
        # PyTorch's default, TF32 in convolutions alone, is neither "fp32" nor "tf32".
        if section.precision in ("fp32", "tf32"):
            # PyTorch raises where code reads this key after the newer one was set.
            for owner in (torch.backends.cuda.matmul, torch.backends.cudnn):
                _set(put_back, owner, "allow_tf32", section.precision == "tf32")
        if section.detect_anomaly:
            put_back.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=True))
        if section.deterministic:
            say(ONLY_HERE)
            _set_deterministic(put_back, warn_only=section.deterministic == "warn")
        try:
            yield
        except RuntimeError as error:
            if section.deterministic and "use_deterministic_algorithms" in str(error):
                message = (
                    str(error)
                    .split(", but you set", 1)[0]
                    .split(". You can turn off determinism", 1)[0]
                )
                message = f"{message.rstrip('.')}. {DETERMINISM_HINT}"
                raise NondeterministicError(message).with_traceback(error.__traceback__) from None
            raise


def _set(put_back: ExitStack, owner: Any, name: str, value: object) -> None:
    put_back.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def _set_deterministic(put_back: ExitStack, *, warn_only: bool) -> None:
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    put_back.callback(torch.use_deterministic_algorithms, before[0], warn_only=before[1])
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    _set(put_back, torch.backends.cudnn, "deterministic", True)
    _set(put_back, torch.utils.deterministic, "fill_uninitialized_memory", True)
    if CUBLAS_VARIABLE not in os.environ:
        os.environ[CUBLAS_VARIABLE] = ":4096:8"  # read when cuBLAS is first used
        put_back.callback(os.environ.pop, CUBLAS_VARIABLE, None)


class OutOfMemoryError(RuntimeError):
    """The memory of the device, or of this machine, does not hold what the run needs."""


@contextmanager
def explain_oom(pipeline: Pipeline, has_checkpoint: Callable[[], bool]) -> Iterator[None]:
    """Raise OutOfMemoryError where PyTorch or Python run out of memory.

    The error says what to change in the pipeline.
    """
    try:
        yield
    except Exception as error:
        if not is_oom(error):
            raise
        explained = OutOfMemoryError(
            suggest_memory_savings(pipeline, error, saved=has_checkpoint())
        )
        raise explained.with_traceback(error.__traceback__) from None


def suggest_memory_savings(pipeline: Pipeline, error: BaseException, *, saved: bool) -> str:
    """Return how to take less memory, with the pipeline's own numbers.

    `saved` says whether the run has a checkpoint.
    """
    run = pipeline.run
    less = []
    cuda = isinstance(error, torch.OutOfMemoryError)
    sources = pipeline.data.sources(["train"])
    sizes = {name: size_of_batch(source) for name, source in sources.items()}
    size = sizes.get("train", 0)
    for name, size_in_set in sizes.items():
        if name != "train" and size_in_set > 1:
            less.append(f"batch_size = {-(-size_in_set // 2)} in [data.{name}] (now {size_in_set})")
    if size > 1:
        now = run.accumulate.most
        twice = f" with run.accumulate = {now * 2} (now {now}), which computes the same but for"
        # A task with several optimizers may step them itself, which run.accumulate does not allow.
        group = f"{twice} batch norm" if len(pipeline.optimizers) == 1 else ""
        less.append(f"batch_size = {-(-size // 2)} (now {size}){group}")
    if cuda and run.precision in ("fp32", "tf32"):
        less.append(
            f'run.precision = "bf16" (now "{run.precision}"), which halves most of the activations'
        )
    if any(source.loader is not None and source.loader.on_device for source in sources.values()):
        less.append("on_device = false, which leaves the data set in this machine's memory")
    less.append(
        "torch.utils.checkpoint in the model, which computes activations again instead of keeping"
        " them"
    )
    requested = str(error).split(" If reserved")[0].rstrip(".") or "no more could be had"
    kept = ""
    if saved:
        kept = " Existing checkpoints are not affected; --resume continues from the newest."
    return f"out of memory: {requested}. To reduce it: {'; '.join(less)}.{kept}"


def size_of_batch(source: DataSource) -> int:
    """Return the most examples of a batch that the pipeline asks a source for.

    It is 0 where it does not say that.
    """
    if source.loader is None:
        size = source.args.get("batch_size")
        if isinstance(size, int):
            return size
    elif source.loader.batch_size is not None:
        return source.loader.batch_size.most
    return 0


def free_memory(
    error: BaseException, optimizers: Iterable[Optimizer], device: torch.device
) -> None:
    """Free gradients, batch and activations.

    Hooks that fire at the end of the run then have some memory. Batch and activations lie in the
    frames that the exception has come through.
    """
    traceback.clear_frames(error.__traceback__)
    for optimizer in optimizers:
        optimizer.zero_grad()
    if device.type == "cuda":
        torch.cuda.empty_cache()
