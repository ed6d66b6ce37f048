"""What several ranks on one machine make of the same work: 1, 2 and 4 of hookflow, beside PyTorch's DDP by hand.

    python benchmarks/ranks.py [ROUNDS]

The sizes of work of `benchmarks/runner.py`, with the data on the device, by gloo on the CPU, one thread a rank. A
batch has 64 examples, shared out among the ranks. By hand is `torchrun` with a plain loop around
DistributedDataParallel. In turns; each figure is that of the fastest window of iterations in all rounds. "to one" is
the rate over that of one rank of the same kind, "to DDP" over that of as many ranks by hand. More ranks than cores
cannot be faster.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from runner import BATCH, LOADERS, PIPELINE, WINDOW, Clock, Noise, net
from torch.nn import functional

HERE = Path(__file__).resolve()
WORLDS = (1, 2, 4)


def by_hand(work: str, file: str) -> None:
    """Train as one of the ranks that torchrun has started; the first writes the seconds of an iteration."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, clock, noise = DistributedDataParallel(net(work)), Clock(work, file), Noise(work)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    order = torch.randperm(len(noise), generator=torch.Generator().manual_seed(0))
    for done, whole in enumerate(order.split(BATCH)):
        chosen = whole[rank::world]
        loss = functional.cross_entropy(model(noise.inputs[chosen]), noise.target[chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        clock.tick(done + 1)
    if rank == 0:
        clock.after_train()
    dist.destroy_process_group()


def measured(kind: str, work: str, world: int, folder: Path) -> float:
    """Return the seconds of an iteration of so many ranks, each a process of its own."""
    mark, pipeline = folder / "seconds", folder / "ranks.toml"
    if kind == "by hand":
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        command = [*launcher, str(HERE), "--by-hand", work, str(mark)]
    else:
        text = PIPELINE.replace("WORK", work).replace("LOADER", LOADERS["device"]).replace("FILE", str(mark))
        pipeline.write_text(text + 'ranks = "zero"\n')
        command = ["hookflow", "run", str(pipeline), f"--nproc={world}", "--ui=none"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return float(mark.read_text())


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(f"iterations a second, batches of {BATCH}, one thread a rank, {os.cpu_count()} cores\n")
    print(f"{'work':<6}{'ranks':>5}  {'':<9}{'it/s':>8}{'examples/s':>12}{'to one':>8}{'to DDP':>8}")
    for work in WINDOW:
        best = dict.fromkeys(((kind, world) for world in WORLDS for kind in ("by hand", "hookflow")), float("inf"))
        for _ in range(rounds):
            for kind, world in best:
                with tempfile.TemporaryDirectory() as folder:
                    best[kind, world] = min(best[kind, world], measured(kind, work, world, Path(folder)))
        for (kind, world), seconds in best.items():
            to_one, to_ddp = best[kind, 1] / seconds, best["by hand", world] / seconds
            rate = f"{1 / seconds:>8.1f}{BATCH / seconds:>12.0f}"
            print(f"{work:<6}{world:>5}  {kind:<9}{rate}{to_one:>8.2f}{to_ddp:>8.2f}")


if __name__ == "__main__":
    if "--by-hand" in sys.argv:
        by_hand(*sys.argv[-2:])
    else:
        main()
