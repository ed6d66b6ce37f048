"""Train by another trainer in a process that is killed.

python -m tests.callbacks.killed_training NAME
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import hookflow
from hookflow import Hook

STEP = 5
"""The step after which the process dies."""
LIMIT_SECONDS = 60

HOOKS: dict[str, Any] = {
    "run": {"name": "theirs"},
    "hooks": {
        "counts": {"use": "tests.callbacks.counting_hooks:Counts"},
        "checkpoint": {"use": "checkpoint", "points": ["after_train_iter"]},
        "dies": {"use": "tests.callbacks.killed_training:Dies"},
    },
}
HF_OPTIONS: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "num_train_epochs": 3}


class Dies(Hook):
    """Kill the process of this module, once the checkpoint of a step is on the disk."""

    def before_train_iter(self, run: Any) -> None:
        if "HOOKFLOW_TEST_DIES" not in os.environ or run.iter != STEP:
            return
        saved = Path(run.dir, "checkpoints", f"it{STEP:08d}")
        began = time.monotonic()
        while not saved.exists() and time.monotonic() - began < LIMIT_SECONDS:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


def train_huggingface(folder: Path, **options: Any) -> Any:
    """Train by Hugging Face's Trainer, which saves every second step."""
    from tests.hooks import hf_training

    callback = hookflow.callbacks.huggingface(HOOKS, runs=str(folder / "runs"))
    return hf_training.train_theirs(folder / "theirs", callback, **HF_OPTIONS, **options)


def train_lightning(
    folder: Path, ckpt_path: str | None = None, hooks: dict[str, Any] | None = HOOKS
) -> Any:
    """Train by Lightning's Trainer, which saves every second step; return the weights."""
    from tests.hooks import pl_training

    saves = pl_training.callbacks.ModelCheckpoint(
        folder / "theirs", every_n_train_steps=2, save_top_k=-1, filename="{step}"
    )
    called = [saves]
    if hooks is not None:
        called.append(hookflow.callbacks.lightning(hooks, runs=str(folder / "runs")))
    trainer = pl_training.Theirs(
        max_epochs=3, accelerator="cpu", default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        callbacks=called,
    )  # fmt: skip
    module = pl_training.Module()
    trainer.fit(module, pl_training.loader(12), pl_training.loader(10), ckpt_path=ckpt_path)
    return module.state_dict()


if __name__ == "__main__":
    {"huggingface": train_huggingface, "lightning": train_lightning}[sys.argv[1]](Path.cwd())
