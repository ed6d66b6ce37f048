"""Training on a GPU: each precision, compiled, fed in several ways, beside loops written by hand.

    python benchmarks/gpu.py        # on CUDA; exits with 2 where there is none
    python benchmarks/gpu.py cpu    # at a tiny size, to see that it works: its figures mean nothing

Trains a small convolutional net on images of noise by the runner and by a plain loop, alternating.
Prints three tables in Markdown. The first has the iterations a second of each training with the
lowest and the highest of its rounds, and the ratio to the first line. Its last columns are the
waits of the training thread for the device in a steady iteration, and the most memory of tensors on
the device. The second has the calls of CUDA and of PyTorch's operators in an iteration. The third
has the time that the training waits while a large state is copied. Compare the ratios.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import profile
from torch.utils.data import DataLoader, TensorDataset

from hookflow.errors import Where
from hookflow.events.log import TailReader
from hookflow.events.packing import iter_series
from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.offload.model_copies import ModelCopies
from hookflow.pipeline.load import parse
from hookflow.pipeline.schema import DistributedSection
from hookflow.runner.attempt.main import train
from hookflow.runner.checkpoint.shards import iter_leaves
from hookflow.runner.distributed.parallel import DDPStrategy
from hookflow.runner.process.launch import prepare
from hookflow.runner.state.host_copy import HostCopier
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
    """The size of the training, and its number of rounds."""

    iterations: int
    batch_size: int
    examples: int
    widths: list[int]
    rounds: int


# An epoch has 32 iterations on CUDA: the last 26, which are looked into, lie inside one.
SIZES = {"cuda": Size(416, 512, 16384, [64, 256, 256], 2), "cpu": Size(24, 8, 128, [8, 8], 1)}

FETCHED = ("data.train.loader.on_device=false", "data.train.loader.workers=4")


class ByHand(NamedTuple):
    """A training by a plain loop; without bf16 as PyTorch does by default,
    whose convolutions use TF32.
    """

    precision: str = "bf16"
    compiled: bool = False
    workers: int = 0
    """Processes that fetch; without any the images are on the device."""


VARIANTS: dict[str, tuple[str, ...] | ByHand] = {
    "bf16, on the device": (),
    "by hand": ByHand(),
    'bf16, on_nan = "ignore"': ('run.on_nan="ignore"',),
    'bf16, on_nan = "skip"': ('run.on_nan="skip"',),
    "bf16, compiled": ("run.compile=true",),
    "bf16, compiled, by hand": ByHand(compiled=True),
    "bf16, fetched by 4 workers": FETCHED,
    "bf16, fetched by 4 workers, by hand": ByHand(workers=4),
    "fp16": ('run.precision="fp16"',),
    "tf32": ('run.precision="tf32"',),
    "tf32, by hand": ByHand("tf32"),
    "fp32": ('run.precision="fp32"',),
    "bf16, deterministic": ("run.deterministic=true",),
    "bf16, cudnn_benchmark": ("run.cudnn_benchmark=true",),
    "bf16, all-reduced by one rank": ('hooks.one={use="./gpu.py:OneRank"}',),
}


def noise(examples: int) -> TensorDataset:
    """Return images of noise, uint8 made float, each with one of ten classes."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(examples, 3, 32, 32, generator=generator)
    return TensorDataset(images, torch.randint(10, (examples,), generator=generator))


CALLS = {
    "operators of PyTorch": ("aten::",),
    "kernels launched": ("cudaLaunchKernel", "cuLaunchKernel"),
    "copies and fills": ("cudaMemcpyAsync", "cudaMemsetAsync"),
    "events recorded": ("cudaEventRecord",),
    "events queried": ("cudaEventQuery",),
    "waits": (
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
        "cudaEventSynchronize",
        "cudaMemcpy\0",
    ),
    "memory taken": ("cudaMalloc", "cudaHostAlloc"),
}
"""Beginnings of the names of calls in a profile."""


class Measure:
    """The figures of a training, given to `log` by name: `iterated` is called after each iteration.

    The rate is that of the second half but its end, where the waits, and then the calls, are
    counted.
    """

    def __init__(
        self, device: torch.device, iterations: int, log: Callable[[str, float], None]
    ) -> None:
        self._device, self._iterations, self._log = device, iterations, log
        self._half, self._rest = iterations // 2, max(iterations // 32, 1)
        self._last = ExitStack()
        self._began = 0.0

    def iterated(self, it: int) -> None:
        if it == self._half:
            _wait(self._device)
            self._began = time.perf_counter()
        if it == self._iterations - 2 * self._rest:
            _wait(self._device)
            self._log("rate", (it - self._half) / (time.perf_counter() - self._began))
            self._waits = self._last.enter_context(noted_waits())
        if it == self._iterations - self._rest:
            self._last.close()
            self._log("waits", len(self._waits) / self._rest)
            self._profile = self._last.enter_context(profile())
        if it == self._iterations:
            self._last.close()
            names = Counter(event.name + "\0" for event in self._profile.events() or ())
            for group, beginnings in CALLS.items():
                self._log(
                    group,
                    sum(names[name] for name in names if name.startswith(beginnings)) / self._rest,
                )


class Clock:
    """Logs the figures of the training that it is a hook of."""

    def before_train(self, run: Any) -> None:
        self.measure = Measure(run.device, run.max_iters, run.log)

    def after_train_iter(self, run: Any) -> None:
        self.measure.iterated(run.iter)


@contextmanager
def noted_waits() -> Iterator[list[str]]:
    """Yield a list of what PyTorch says of each wait of this thread for CUDA,
    which grows meanwhile.
    """
    waits: list[str] = []
    trainer = threading.current_thread()

    def note(message: Any, *about: Any, **more: Any) -> None:
        if "synchronizing CUDA operation" in str(message) and threading.current_thread() is trainer:
            waits.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            if torch.cuda.is_available():
                torch.cuda.set_sync_debug_mode("default")


class OneRank:
    """Lets the gradients be all-reduced, as those of several ranks are, by a group of one."""

    def before_train(self, run: Any) -> None:
        backend = "nccl" if run.device.type == "cuda" else "gloo"
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        DDPStrategy(DistributedSection()).parallelize(
            run.model, [run.model], run.device, lambda key: Where("gpu.py")
        )

    def after_run(self) -> None:
        dist.destroy_process_group()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


Figures = dict[str, float]
"""Figures of `Measure` by name, and "peak": the MiB of tensors on the device at the most."""


def measured(
    variant: tuple[str, ...] | ByHand, device: torch.device, size: Size, folder: Path
) -> Figures:
    """Train once, from a clean memory of the device."""
    gc.collect()  # a run is a circle of objects
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    figures = (
        by_hand(variant, device, size)
        if isinstance(variant, ByHand)
        else by_runner(variant, device, size, folder)
    )
    if device.type == "cuda":
        figures["peak"] = torch.cuda.max_memory_allocated() / MIB
    return figures


def by_runner(overrides: Sequence[str], device: torch.device, size: Size, folder: Path) -> Figures:
    """Train by hookflow."""
    source = Path(__file__)
    text = PIPELINE.format(device=device, **size._asdict())
    loaded = parse(text, source.with_suffix(".toml"), overrides)
    run_dir = RunDir.create(folder, "gpu")
    prepare(loaded, compile_pipeline(loaded, source.parent), run_dir, source.parent)
    if train(run_dir):
        return {"rate": math.nan}  # why is printed
    records: list[Any] = TailReader(run_dir.events).read_all()
    return {
        name: each[-1]
        for record in records
        if record["k"] == "scalars"
        for name, _, each in iter_series(record)
    }


def by_hand(variant: ByHand, device: torch.device, size: Size) -> Figures:
    """Do the same training as a loop of plain PyTorch."""
    figures: Figures = {}
    measure = Measure(device, size.iterations, figures.__setitem__)
    model: nn.Module = AirNet(size.widths)
    model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.01, momentum=0.9, fused=True)
    if variant.compiled:
        model.compile()
    batches = fed(variant, device, size)
    for it in range(size.iterations):
        images, target = next(batches)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=variant.precision == "bf16"):
            logits = model(images)
        functional.cross_entropy(logits.float(), target).backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        measure.iterated(it + 1)
    return figures


def fed(variant: ByHand, device: torch.device, size: Size) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield shuffled batches without end: rows of a dataset on the device,
    or those of PyTorch's loader.
    """
    dataset = noise(size.examples)
    if variant.workers:
        loaded = DataLoader(
            dataset,
            size.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=variant.workers,
            persistent_workers=True,
            pin_memory=device.type == "cuda",
        )
        while True:
            for images, target in loaded:
                there = images.to(device, non_blocking=True, memory_format=torch.channels_last)
                yield there, target.to(device, non_blocking=True)
    images, target = (tensor.to(device) for tensor in dataset.tensors)
    images = images.to(memory_format=torch.channels_last)
    while True:
        for rows in torch.split(torch.randperm(size.examples).to(device), size.batch_size):
            yield images[rows], target[rows]


def copies(device: torch.device, width: int) -> Iterator[tuple[str, float, float]]:
    """Yield names of copies of a network of 24 layers with its momentum,
    the ms that each takes, and its GB.
    """
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(24))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(8, width, device=device)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    copier, twins = HostCopier(), ModelCopies(model, grads=False)
    copier.prepare(tensor for _, tensor in iter_leaves(state))
    gigabytes = sum(p.nbytes for p in model.parameters()) / 1e9
    yield (
        "a checkpoint, into page-locked memory",
        _ms(lambda: copier.give_back(copier.copy(state)), device),
        2 * gigabytes,
    )
    pageable = {
        name: torch.empty_like(tensor, device="cpu") for name, tensor in model.state_dict().items()
    }

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


def main() -> None:
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        print(
            "there is no CUDA here: nothing can be measured (`cpu` shows that it works)",
            file=sys.stderr,
        )
        sys.exit(2)
    size = SIZES[device.type]
    results: dict[str, list[Figures]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(size.rounds):
            for name, variant in VARIANTS.items():
                results[name].append(measured(variant, device, size, Path(folder)))
    where = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{torch.get_num_threads()} CPU threads"
    )
    print(
        f"{where}, torch {torch.__version__}; batches of {size.batch_size}, medians of"
        f" {size.rounds} rounds\n"
    )
    print_rates(results)
    print_calls(
        {
            name: results[name][-1]
            for name in ("bf16, on the device", 'bf16, on_nan = "ignore"', "by hand")
        }
    )
    print("\n| copied | GB | ms | GB/s |\n| --- | ---: | ---: | ---: |")
    for name, ms, gigabytes in copies(device, 2048 if device.type == "cuda" else 256):
        print(f"| {name} | {gigabytes:.2f} | {ms:.1f} | {gigabytes / ms * 1e3:.1f} |")


def print_rates(results: Mapping[str, Sequence[Figures]]) -> None:
    print(
        "| training | iterations/s | its rounds | of the first | waits in an iteration | MiB at the"
        " most |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    first = 0.0
    for name, each in results.items():
        rates, last = [figures["rate"] for figures in each], each[-1]
        rate = statistics.median(rates)
        first = first or rate
        spread = f"{min(rates):.0f} to {max(rates):.0f}"
        print(f"| {name} | {rate:.1f} | {spread} | {rate / first:.2f} | ", end="")
        print(f"{last.get('waits', math.nan):g} | {last.get('peak', math.nan):.0f} |")


def print_calls(columns: Mapping[str, Figures]) -> None:
    print(f"\n| calls in an iteration | {' | '.join(columns)} |\n| --- |{' ---: |' * len(columns)}")
    for group in CALLS:
        cells = [f"{figures.get(group, math.nan):.1f}" for figures in columns.values()]
        print(f"| {group} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
