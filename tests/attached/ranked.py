"""A loop of one's own on several ranks: the program that each of them is."""

import os
import signal
from hashlib import sha256
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import hookflow
from tests.attached.loops import draw, net_and_optimizer

ITERS = 200  # ranks agree within 100 ms, and an iteration takes a few


def main(runs: str, meeting: str, strike_at: int) -> None:
    """Train, and write the weights of this rank;
    rank 1 is sent SIGTERM in iteration `strike_at`, if that comes.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    net, optimizer = net_and_optimizer()
    wrapped = DistributedDataParallel(net)
    torch.manual_seed(10 + rank)
    hooks = {"ema": {"use": "ema", "args": {"decay": 0.9}}, "log": {"use": "log", "every": 10}}
    tables = {"run": {"name": "own"}, "hooks": hooks}
    options = {"max_iters": ITERS, "runs": runs, "resume": True}
    with hookflow.attach(tables, model=wrapped, optimizer=optimizer, **options) as run:
        for it in run:
            x, y = draw()
            run.backward(cross_entropy(wrapped(x), y))
            if rank == 1 and it == strike_at:
                os.kill(os.getpid(), signal.SIGTERM)
            optimizer.step()
            optimizer.zero_grad()
        folder = run.dir
        assert "module" not in next(iter(run._loop.trainer.run.model.state_dict()))
    digest = sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()
    Path(folder, f"weights.{rank}").write_text(digest)
    dist.destroy_process_group()
