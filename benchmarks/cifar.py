"""The shipped CIFAR-10 pipeline to 90 % validation accuracy: seconds, and steps of a plain loop.

    python benchmarks/cifar.py data/cifar10 [run.seed=1 …]

The folder has the official binary batches; overrides of the pipeline may follow. Trains
`pipelines/cifar.toml` in a process of its own, and reads from its log when each validation ended
and what accuracy it found.

Before and after the training it takes the median step of a plain loop on one core: the network of
widths 32, 128, 128 on batches of 512 images, in the precision that the run computes in. From it
follows what the reference takes on this machine: 5.6 epochs of that loop on two cores, which reach
89.7 % with bf16 and 90.2 % with fp32. The time to the goal is given as a share of that.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookflow.events.log import TailReader
from hookflow.events.rundir import all_runs
from hookflow.runner.device.precision import choose_precision
from hookflow.zoo.cifar10 import AirNet

PIPELINE_FILE = Path(__file__).resolve().parents[1] / "pipelines" / "cifar.toml"
GOAL = 0.9
"""The accuracy to reach."""

STEP_MILLISECONDS = {"fp32": 726.0, "bf16": 281.0}
"""The step of the plain loop on one core of the machine where the reference was measured."""

REFERENCE_SECONDS = {"fp32": 252.0, "bf16": 76.0}
"""What the reference took there."""

LARGEST_SHARE = 100 / 76
"""The share of the reference's time that the pipeline may take."""

STEPS = 10
"""Steps of the plain loop of which the median is taken."""


def measure_step(precision: str) -> float:
    """Return the median milliseconds of a step of the plain loop."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = AirNet((32, 128, 128))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.85, nesterov=True)
    images = torch.randn(512, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (512,))
    milliseconds = []
    for _ in range(STEPS):
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        milliseconds.append(1000 * (time.perf_counter() - began))
    return statistics.median(milliseconds)


def train(images: Path, overrides: Sequence[str], folder: Path) -> list[tuple[float, float]]:
    """Train the pipeline; return the seconds and the accuracy of each validation's end."""
    command = [sys.executable, "-m", "hookflow", "run", str(PIPELINE_FILE), "--ui", "none"]
    root = f"data.train.args.root={images.resolve()}"
    for override in (root, "run.device=cpu", *overrides):
        command += ["--set", override]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (run,) = all_runs(folder / "runs")
    records: list[Any] = TailReader(run.events).read_all()
    begun = next(record["t"] for record in records if record["k"] == "run")
    return [
        (record["t"] - begun, record["v"]["accuracy"])
        for record in records
        if record["k"] == "metrics"
    ]


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    images, *overrides = sys.argv[1:]
    precision = choose_precision("auto", torch.device("cpu"), print)
    before = measure_step(precision)
    with tempfile.TemporaryDirectory() as folder:
        validations = train(Path(images), overrides, Path(folder))
    after = measure_step(precision)
    slowness = (before + after) / 2 / STEP_MILLISECONDS[precision]
    reference = slowness * REFERENCE_SECONDS[precision]
    print(f"plain step in {precision}: {before:.0f} ms before, {after:.0f} ms after\n")
    print("| accuracy | seconds | of the reference |\n| --- | ---: | ---: |")
    for seconds, accuracy in validations:
        print(f"| {accuracy:.2%} | {seconds:.0f} | {seconds / reference:.2f} |")
    reached = [seconds for seconds, accuracy in validations if accuracy >= GOAL]
    if not reached:
        raise SystemExit(f"no validation has reached {GOAL:.0%}")
    share = reached[0] / reference
    print(f"\n{GOAL:.0%} in {share:.2f} of the reference's time; at most {LARGEST_SHARE:.2f}")


if __name__ == "__main__":
    main()
