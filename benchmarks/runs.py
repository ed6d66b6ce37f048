"""How long it takes to list, filter and sort many runs: `python benchmarks/runs.py [RUNS]
[FOLDER]`.

Run directories are made up in a temporary folder (in FOLDER, if named, where they stay): a pipeline
of 35 keys that differ in three, and a log of 12 validations. Figures are of the whole command, from
its start to its exit; the best of five. The first command reads every log and writes the index, the
others read the index.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PIPELINE = """\
[run]
name = "{name}"
seed = {seed}
max_epochs = 12
val_every = 1
accumulate = 1
test = false
sanity = true
device = "auto"
precision = "fp32"
compile = false
deterministic = false
on_nan = "raise"
max_skipped_steps = 25
threads = 1
default_hooks = true
dir = "runs"
[task]
use = "hookflow.zoo.tasks:Classification"
[model]
use = "net.py:Net"
args = {{ width = {width}, depth = 4, activation = "gelu" }}
[optimizer]
use = "torch.optim:Adam"
args = {{ lr = {lr}, betas = [0.9, 0.999], weight_decay = 0.01 }}
[data.train]
use = "circle"
[data.val]
use = "circle"
args = {{ split = "val" }}
[hooks]
accuracy = {{ use = "accuracy" }}
log = {{ use = "log", args = {{ every = 10 }} }}
checkpoint = {{ use = "checkpoint", args = {{ monitor = "accuracy", keep = 2 }} }}
ema = {{ use = "ema", args = {{ decay = 0.99 }} }}
clip = {{ use = "grad_clip", args = {{ max_norm = 1.0 }} }}
"""
BEGAN = 1.79e9


def make(root: Path, number: int, chance: random.Random) -> None:
    """Write one run directory."""
    began = BEGAN + 60 * number
    run = (
        root
        / f"net{number % 4}"
        / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(began))}-{number % 65536:04x}"
    )
    run.mkdir(parents=True)
    choices = {
        "seed": number % 5,
        "width": 2 ** chance.randrange(4, 9),
        "lr": 10 ** chance.uniform(-4, -1),
    }
    (run / "pipeline.toml").write_text(PIPELINE.format(name=run.parent.name, **choices))
    (run / "run.json").write_text(
        json.dumps({"id": run.name, "name": run.parent.name, "created": began})
    )
    data = {
        "name": "circle",
        "examples": 512,
        "batches": 16,
        "batch_size": 32,
        "synthetic": False,
        "note": "",
    }
    length = {"max_epochs": 12, "max_iters": 0, "iters_per_epoch": 16, "modes": {"accuracy": "max"}}
    records = [
        {"k": "run", "t": began, "it": 0, "ep": 0, "version": 2, "data": {"train": data}, **length}
    ]
    for epoch in range(1, 13):
        values = {"loss": chance.random(), "accuracy": chance.random()}
        stamp = {"t": began + epoch, "it": 16 * epoch, "ep": epoch}
        records.append(
            {"k": "scalars", **stamp, "v": {"loss": chance.random(), "lr": choices["lr"]}}
        )
        records.append({"k": "metrics", **stamp, "split": "val", "v": values, "seconds": 0.1})
    end = {"status": "finished", "exit": 0, "reason": "", "seconds": 13.0}
    records.append({"k": "end", "t": began + 13, "it": 192, "ep": 12, **end})
    (run / "events.jsonl").write_text(
        "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in records)
    )


def measure(root: Path, *options: str, times: int = 5) -> tuple[float, float]:
    """Return the seconds that `hookflow runs` takes with these options,
    and those of the processor.
    """
    command, results = [sys.executable, "-m", "hookflow", "runs", "--dir", str(root), *options], []
    for _ in range(times):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        results.append(
            (seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        )
    return min(seconds for seconds, _ in results), min(spent for _, spent in results)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as temporary:
        root, chance = Path(*sys.argv[2:] or [temporary]) / "runs", random.Random(0)
        for number in range(0 if root.exists() else count):
            make(root, number, chance)
        queries = {
            "first, which makes the index": (),
            "list": (),
            "filter and sort": (
                "--filter",
                "best.accuracy > 0.99 and model.args.width == 64",
                "--sort=-best.accuracy",
            ),
            "list as JSON": ("--format", "json"),
        }
        for at, (name, options) in enumerate(queries.items()):
            seconds, spent = measure(root, *options, times=5 if at else 1)
            print(
                f"{count:,} runs, {name}: {seconds:.2f} s, {spent:.2f} s of a processor", flush=True
            )


if __name__ == "__main__":
    main()
