"""Hooks to be offloaded."""

import ctypes
import os
import sys
import threading
import time
from typing import Any

import torch

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


class Slow(Hook):
    """Take its time, and say when it is done."""

    done = 0

    def after_train_iter(self, run: Any) -> None:
        time.sleep(0.02)
        Slow.done = run.iter


def follows(run: Any) -> None:
    """Log how far the slow hook is."""
    run.log("slow_is_at", float(Slow.done))


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
