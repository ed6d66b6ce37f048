"""The shipped CIFAR-10 pipeline to 90 % validation accuracy: seconds, and steps of a plain loop.

    python benchmarks/cifar.py data/cifar10

The folder has the official binary batches. Trains `pipelines/cifar.toml` in a process of its own,
and reads from its log when each validation ended and what accuracy it found. Before and after the
training it takes the median step of a plain loop on one core: the network of widths 32, 128, 128 on
batches of 512 images, in the precision that the run has computed in. A machine that takes
`REFERENCE_MILLISECONDS` for that step would need as many seconds less as it is faster.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from hookflow.events.log import TailReader
from hookflow.events.rundir import all_runs
from hookflow.runner.device.precision import choose_precision
from hookflow.zoo.cifar10 import AirNet

PIPELINE = Path(__file__).resolve().parents[1] / "pipelines" / "cifar.toml"
GOAL = 0.9
"""The accuracy to reach."""

REFERENCE_MILLISECONDS = {"fp32": 726.0, "bf16": 281.0}
"""The step of the plain loop on one core of the machine that the figures are given for."""

STEPS = 10
"""Steps of the plain loop of which the median is taken."""


def measure_step(precision: str) -> float:
    """Return the median milliseconds of a step of the plain loop."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = AirNet((32, 128, 128)).to(memory_format=torch.channels_last)
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


def train(images: Path, folder: Path) -> list[tuple[float, float]]:
    """Train the pipeline; return the seconds and the accuracy of each validation's end."""
    root = f"data.train.args.root={images.resolve()}"
    device = "run.device=cpu"
    command = [sys.executable, "-m", "hookflow", "run", str(PIPELINE)]
    command += ["--set", root, "--set", device, "--ui", "none"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (run,) = all_runs(folder / "runs")
    records = TailReader(run.events).read_all()
    begun = next(record["t"] for record in records if record["k"] == "run")
    return [
        (record["t"] - begun, record["v"]["accuracy"])
        for record in records
        if record["k"] == "metrics"
    ]


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    precision = choose_precision("auto", torch.device("cpu"), print)
    before = measure_step(precision)
    with tempfile.TemporaryDirectory() as folder:
        validations = train(Path(sys.argv[1]), Path(folder))
    after = measure_step(precision)
    slowness = (before + after) / 2 / REFERENCE_MILLISECONDS[precision]
    print(f"plain step in {precision}: {before:.0f} ms before, {after:.0f} ms after\n")
    print("| accuracy | seconds here | seconds at the reference's rate |\n| --- | ---: | ---: |")
    for seconds, accuracy in validations:
        print(f"| {accuracy:.2%} | {seconds:.0f} | {seconds / slowness:.0f} |")
    reached = [seconds for seconds, accuracy in validations if accuracy >= GOAL]
    if not reached:
        raise SystemExit(f"no validation has reached {GOAL:.0%}")
    print(f"\n{GOAL:.0%} after {reached[0]:.0f} s, {reached[0] / slowness:.0f} s at its rate")


if __name__ == "__main__":
    main()
