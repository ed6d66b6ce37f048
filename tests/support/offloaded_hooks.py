"""Hooks to be offloaded."""

import atexit
import ctypes
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hookflow import Hook


def is_apart() -> bool:
    """Say whether this is the process of a hook."""
    return sys.argv[0].endswith("hook_process.py")


class Watches(Hook):
    """Log numbers of the network, its gradients and the outputs, and in which thread;
    remember how often.
    """

    reads = ("model", "grads", "outputs", "batch")

    def __init__(self, wait: float = 0.0) -> None:
        self.wait, self.seen = wait, 0

    def after_backward(self, run: Any, batch: Any, outputs: dict[str, Any]) -> None:
        time.sleep(self.wait)
        self.seen += 1
        run.log(
            "weights",
            sum(parameter.detach().double().sum() for parameter in run.model.parameters()),
        )
        gradients = [
            parameter.grad for parameter in run.model.parameters() if parameter.grad is not None
        ]
        run.log("grads", sum(gradient.double().sum() for gradient in gradients))
        run.log("seen_loss", outputs["loss"])
        run.log("inputs", batch[0].double().sum())
        run.log("alone", float(threading.current_thread().name == "hookflow-watches" or is_apart()))
        outputs["loss"].fill_(torch.nan)  # these are copies

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Spoils(Hook):
    """Change its copy of the network and of the gradients."""

    reads = ("model", "grads")

    def after_backward(self, run: Any) -> None:
        for parameter in run.model.parameters():
            parameter.grad = None
            torch.nn.init.constant_(parameter, torch.nan)


class Fails(Hook):
    """Raise beside the training, from the third iteration on."""

    def after_train_iter(self, run: Any) -> None:
        if run.iter >= 3:
            time.sleep(0.05)  # meanwhile others wait
            raise ValueError("the third")


class Asks(Hook):
    """Use what belongs to the training thread."""

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute

    def after_train_iter(self, run: Any) -> None:
        getattr(run, self.attribute)


class Slow(Hook):
    """Take its time, and say when it is done."""

    done = 0

    def after_train_iter(self, run: Any) -> None:
        time.sleep(0.02)
        Slow.done = run.iter


def follows(run: Any) -> None:
    """Log how far the slow hook is."""
    run.log("slow_is_at", float(Slow.done))


class Sleeps:
    """Sleeps for 50 ms, and writes of each firing the iteration, and when it began and ended."""

    def __init__(self, file: str) -> None:
        self.file = file

    def after_train_iter(self, run: Any) -> None:
        began = time.time()
        time.sleep(0.05)
        write_times(self.file, run.iter, began, time.time())


class NotesTime:
    """Writes of each firing the iteration, and when it was."""

    def __init__(self, file: str) -> None:
        self.file = file

    def after_train_iter(self, run: Any) -> None:
        write_times(self.file, run.iter, time.time())


def write_times(file: str, it: int, *times: float) -> None:
    with Path(file).open("a") as written:
        written.write(" ".join(map(repr, (it, *times))) + "\n")


class Hangs:
    """Waits until a file is there."""

    def __init__(self, mark: str) -> None:
        self.mark = Path(mark)

    def after_train_iter(self, run: Any) -> None:
        while not self.mark.exists():
            time.sleep(0.01)


class Doubles(Hook):
    """Count calls beside the training, and in it double the learning rate of the first step."""

    reads = {"after_backward": ("outputs",), "before_optimizer_step": ("lr",)}  # noqa: RUF012
    writes = {"after_backward": (), "before_optimizer_step": ("lr",)}  # noqa: RUF012

    def __init__(self) -> None:
        self.calls: list[str] = []

    def after_backward(self, run: Any, outputs: dict[str, Any]) -> None:
        time.sleep(0.003)
        self.calls.append("b")
        run.log("alone", float(threading.current_thread().name == "hookflow-doubles"))

    def before_optimizer_step(self, run: Any) -> None:
        self.calls.append("s")
        if run.iter == 0:
            for group in run.optimizer.param_groups:
                group["lr"] *= 2

    def after_run(self, run: Any) -> None:
        assert "".join(self.calls) == 15 * "bs", (
            "a firing in the training waits for those of its hook before"
        )
        run.log("alone_at_the_end", float(threading.current_thread().name == "hookflow-doubles"))


class Talks(Hook):
    """Talk to the other ranks, in a method of its own."""

    def after_train_iter(self, run: Any) -> None:
        self.share(torch.ones(1))

    def share(self, tensor: torch.Tensor) -> None:
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(tensor)


def shares(run: Any) -> None:
    """Log how this thread shares the processors and Python with the others."""
    # Torch would set them before it says them.
    run.log("threads", float(ctypes.CDLL(None).omp_get_max_threads()))
    run.log("interval", sys.getswitchinterval())
    run.log("nice", float(os.nice(0)))


def sums(run: Any) -> None:
    """Log a sum over the ranks, slowly."""
    time.sleep(0.01)
    run.log("sums", run.sum(1.0))


def gathers(run: Any) -> None:
    """Gather from the other ranks, by a function that it imports."""
    from torch.distributed import all_gather_object

    all_gather_object([None] * run.world, run.rank)


def logs_no_text(run: Any) -> None:
    run.log_text("sample", 3)


class Draws(Hook):
    """Draw random numbers in a process, keep a sum, and log whatever there is to log."""

    def __init__(self) -> None:
        self.total, self.ids = torch.zeros(()), list[int]()

    def after_train_iter(self, run: Any) -> None:
        self.total += torch.rand(()) + random.random() + np.random.rand()
        self.ids.append(os.getpid())
        run.log("total", self.total)
        run.log_image("picture", torch.zeros(3, 2, 2))
        run.say(f"of iteration {run.iter}")

    def after_train(self) -> None:
        assert len({*self.ids} - {os.getpid()}) == 1, "it has been brought back"

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


class Dies(Hook):
    """End the process of the third firing, and count the firings."""

    fired = 0

    def after_train_iter(self, run: Any) -> None:
        self.fired += 1
        run.log("fired", self.fired)
        if run.iter == 3:
            os.kill(os.getpid(), signal.SIGKILL)


class DiesAtFirst(Hook):
    """End the process in the first call of all, and note in a file when a call comes after that."""

    def __init__(self, mark: str) -> None:
        self.mark = Path(mark)

    def after_train_iter(self, run: Any) -> None:
        if not self.mark.exists():
            self.mark.write_text("died")
            os.kill(os.getpid(), signal.SIGKILL)
        self.mark.write_text("died, alive")


class HoldsLock(Hook):
    """Hold what no process can be sent."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def after_train_iter(self) -> None:
        pass


class InMain(Hook):
    """Be in the script that runs, as far as a pickle is concerned."""

    __module__ = "__main__"

    def after_train_iter(self) -> None:
        pass


class Starts(Hook):
    """Start processes, and end them by SIGTERM."""

    def after_train_epoch(self, run: Any) -> None:
        forked = multiprocessing.get_context("fork").Process(
            target=time.sleep, args=(60,), daemon=True
        )
        forked.start()
        time.sleep(0.05)
        forked.terminate()
        forked.join(20)
        with subprocess.Popen(["sleep", "60"]) as child:
            child.terminate()
            run.log("codes", (forked.exitcode or 0) * 100 + child.wait(20))


class Reads:
    """An object that another process cannot be sent: it is no more than a name there."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


OPEN: list[Any] = []
"""Files that are open until the process ends."""


class LeavesOpen:
    """Writes to a file that it leaves open where nothing of it is sent home,
    and again when its process ends.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def after_train_epoch(self) -> None:
        file = Path(self.path).open("w")  # noqa: SIM115
        atexit.register(file.write, "at exit\n")
        file.write("early\n")
        OPEN.append(file)
