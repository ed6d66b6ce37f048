"""What a GPU makes of the settings: the same training in each precision, compiled, fed in several ways, side by side.

    python benchmarks/gpu.py              # on CUDA; exits with 2 where there is none
    python benchmarks/gpu.py cpu          # the same at a tiny size, to see that it works; its figures mean nothing

Trains a small convolutional net on images of noise by the runner, once for each line of the table, in turns, and by a
loop written by hand. Prints the median of the iterations a second, how much that is of the first line, how often the
training thread waited for the device in a steady iteration, and the most memory that tensors took on the device, as a
table in Markdown. Compare the ratios. A second table has what the training waits for while a large state is copied.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from hookflow.errors import Where
from hookflow.events.log import Tail
from hookflow.events.packing import series
from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.pipeline.schema import DistributedSection
from hookflow.runner.checkpoint.manager import HostCopy
from hookflow.runner.checkpoint.shards import leaves
from hookflow.runner.data import loader
from hookflow.runner.dispatch.beside import ModelCopies
from hookflow.runner.distributed.parallel import DDP
from hookflow.runner.process.launch import prepare
from hookflow.runner.process.main import train
from hookflow.zoo.cifar10 import AirNet

PIPELINE = """
[run]
name = "gpu"
default_hooks = false
max_iters = {iterations}
device = "{device}"
precision = "bf16"
channels_last = true

[model]
use = "hookflow.zoo.cifar10:AirNet"
args = {{ widths = {widths} }}

[optimizer]
use = "torch.optim:SGD"
args = {{ lr = 0.01, momentum = 0.9, fused = true }}

[data.train]
use = "./gpu.py:noise"
args = {{ examples = {examples} }}
loader = {{ batch_size = {batch_size}, on_device = true, drop_last = true }}

[hooks.clip]
use = "grad_clip"
args = {{ max_norm = 1.0 }}

[hooks.log]
use = "log"

[hooks.clock]
use = "./gpu.py:Clock"
"""


MIB = 1 << 20


class Size(NamedTuple):
    """How large all of it is, and how often it is done."""

    iterations: int
    batch_size: int
    examples: int
    widths: list[int]
    rounds: int


# Epochs have 32 iterations on CUDA: what is counted there, from 260 to 288, is the inside of one.
SIZES = {"cuda": Size(288, 512, 16384, [64, 256, 256], 2), "cpu": Size(12, 8, 64, [8, 8], 1)}

FETCHED = ("data.train.loader.on_device=false", "data.train.loader.workers=4")
BY_HAND = "by hand, bf16, on the device"
VARIANTS: dict[str, tuple[str, ...]] = {
    "bf16, on the device": (),
    BY_HAND: (),
    "fp32": ('run.precision="fp32"',),
    "tf32": ('run.precision="tf32"',),
    "fp16": ('run.precision="fp16"',),
    'bf16, on_nan = "skip"': ('run.on_nan="skip"',),
    'bf16, on_nan = "ignore"': ('run.on_nan="ignore"',),
    "tf32, compiled": ('run.precision="tf32"', "run.compile=true"),
    "bf16, compiled": ("run.compile=true",),
    "bf16, deterministic": ("run.deterministic=true",),
    "bf16, cudnn_benchmark": ("run.cudnn_benchmark=true",),
    "bf16, fetched by 4 workers": FETCHED,
    "the same without prefetch": FETCHED,
    "bf16, all-reduced by one rank": ('hooks.one={use="./gpu.py:OneRank"}',),
}


def noise(examples: int) -> TensorDataset:
    """Return images of noise, uint8 made float, each with one of ten classes."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(examples, 3, 32, 32, generator=generator)
    return TensorDataset(images, torch.randint(10, (examples,), generator=generator))


class Clock:
    """Logs the iterations a second of the second half of a run, and the waits for CUDA in each of its last tenth."""

    def __init__(self) -> None:
        self.began = 0.0
        self.counting = ExitStack()
        self.waits: list[str] = []

    def after_train_iter(self, run: Any) -> None:
        half, rest = run.max_iters // 2, run.max_iters // 10
        if run.iter == half:
            _wait(run.device)
            self.began = time.perf_counter()
        if run.iter == run.max_iters - rest:
            _wait(run.device)
            run.log("rate", (run.iter - half) / (time.perf_counter() - self.began))
            if run.device.type == "cuda":
                self.waits = self.counting.enter_context(noted_waits())
                torch.cuda.reset_peak_memory_stats()
        if run.iter == run.max_iters:
            self.counting.close()
            if run.device.type == "cuda":
                run.log("waits", len(self.waits) / rest)
                run.log("peak", torch.cuda.max_memory_allocated() / MIB)


@contextmanager
def noted_waits() -> Iterator[list[str]]:
    """Yield a list of what PyTorch says of each wait of this thread for CUDA, which grows meanwhile."""
    found: list[str] = []
    trainer = threading.current_thread()

    def note(message: Any, *about: Any, **more: Any) -> None:
        if "synchronizing CUDA operation" in str(message) and threading.current_thread() is trainer:
            found.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


class OneRank:
    """Lets the gradients be all-reduced, as those of several ranks are, by a group of one."""

    def before_train(self, run: Any) -> None:
        backend = "nccl" if run.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        DDP(DistributedSection()).parallelize(run.model, [run.model], run.device, lambda key: Where("gpu.py"))

    def after_run(self) -> None:
        dist.destroy_process_group()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Result(NamedTuple):
    """Iterations a second; and of CUDA the waits in each, and the MiB of tensors at the most."""

    rate: float
    waits: float | None = None
    peak: float | None = None


def by_runner(device: str, size: Size, overrides: Iterable[str], folder: Path) -> Result:
    """Train by hookflow."""
    source = Path(__file__)
    text = PIPELINE.format(device=device, **size._asdict())
    loaded = parse(text, source.with_suffix(".toml"), overrides)
    run_dir = RunDir.create(folder, "gpu")
    prepare(loaded, compile_pipeline(loaded, source.parent), run_dir, source.parent)
    if train(run_dir):
        return Result(math.nan)  # why is printed
    records = Tail(run_dir.events).read_all()
    logged = {name: each[-1] for record in records if record["k"] == "scalars" for name, _, each in series(record)}
    return Result(logged["rate"], logged.get("waits"), logged.get("peak"))


def by_hand(kind: str, size: Size) -> Result:
    """Do the same training as a loop of plain PyTorch."""
    device = torch.device(kind)
    images, target = (tensor.to(device) for tensor in noise(size.examples).tensors)
    images = images.to(memory_format=torch.channels_last)
    model = AirNet(size.widths).to(device=device, memory_format=torch.channels_last)
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.01, momentum=0.9, fused=True)
    began = 0.0
    for it in range(size.iterations):
        if it == size.iterations // 2:
            _wait(device)
            began = time.perf_counter()
            if kind == "cuda":
                torch.cuda.reset_peak_memory_stats()
        if it % (size.examples // size.batch_size) == 0:
            order = torch.randperm(size.examples).to(device)
        rows = order[it * size.batch_size % size.examples :][: size.batch_size]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(images[rows])
        functional.cross_entropy(logits.float(), target[rows]).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    _wait(device)
    rate = (size.iterations - size.iterations // 2) / (time.perf_counter() - began)
    return Result(rate, peak=torch.cuda.max_memory_allocated() / MIB if kind == "cuda" else None)


def copies(device: torch.device, width: int) -> Iterator[tuple[str, float, float]]:
    """Yield names of copies of a network of 24 layers with its momentum, the ms that each takes, and its GB."""
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(24))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(8, width, device=device)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    copy, twins = HostCopy(reuse=True), ModelCopies(model, grads=False)
    copy.prepare(tensor for _, tensor in leaves(state))
    gigabytes = sum(p.nbytes for p in model.parameters()) / 1e9
    yield "a checkpoint, into page-locked memory", _ms(lambda: copy.of(state), device), 2 * gigabytes
    pageable = {name: torch.empty_like(tensor, device="cpu") for name, tensor in model.state_dict().items()}

    def plain() -> None:
        for name, tensor in model.state_dict().items():
            pageable[name].copy_(tensor)

    yield "the same by `copy_` into memory of the host", 2 * _ms(plain, device), 2 * gigabytes
    with tempfile.TemporaryDirectory() as folder:
        yield (
            "`torch.save` of the same",
            _ms(lambda: torch.save(state, Path(folder) / "state.pt"), device),
            2 * gigabytes,
        )
    yield "the network of an offloaded hook", _ms(lambda: twins.take(object()), device), gigabytes


def _ms(call: Callable[[], object], device: torch.device) -> float:
    """Return the median milliseconds of five calls after one."""
    times = []
    for _ in range(6):
        _wait(device)
        began = time.perf_counter()
        call()
        _wait(device)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times[1:])


@contextmanager
def prefetching(wanted: bool) -> Iterator[None]:
    """Let batches be copied to the device one ahead, as ever, or each only when it is asked for."""
    prefetch: Callable[..., Iterator[Any]] = loader.prefetch
    if not wanted:
        loader.prefetch = lambda batches, context: map(context.to_device, batches)
    try:
        yield
    finally:
        loader.prefetch = prefetch


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA here: nothing can be measured (`cpu` shows that it works)", file=sys.stderr)
        sys.exit(2)
    size = SIZES[device]
    results: dict[str, list[Result]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(size.rounds):
            for name, overrides in VARIANTS.items():
                if name == BY_HAND:
                    results[name].append(by_hand(device, size))
                    continue
                with prefetching("without prefetch" not in name):
                    results[name].append(by_runner(device, size, overrides, Path(folder)))
    here = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"{here}, torch {torch.__version__}; batches of {size.batch_size}, medians of {size.rounds} rounds\n")
    print("| training | iterations/s | of the first | waits in an iteration | MiB at the most |")
    print("| --- | ---: | ---: | ---: | ---: |")
    rates = {name: statistics.median(result.rate for result in each) for name, each in results.items()}
    first = next(iter(rates.values()))
    for name, rate in rates.items():
        last = results[name][-1]
        waits, peak = ("" if value is None else f"{value:g}" for value in (last.waits, last.peak and round(last.peak)))
        print(f"| {name} | {rate:.1f} | {rate / first:.2f} | {waits} | {peak} |")
    print("\n| copied | GB | ms | GB/s |\n| --- | ---: | ---: | ---: |")
    for name, ms, gigabytes in copies(torch.device(device), 2048 if device == "cuda" else 256):
        print(f"| {name} | {gigabytes:.2f} | {ms:.1f} | {gigabytes / ms * 1e3:.1f} |")


if __name__ == "__main__":
    main()
