"""One small training by MMEngine's Runner, and the same by hookflow."""

from pathlib import Path
from typing import Any

import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.nn import functional
from torch.utils.data import DataLoader

PIPELINE = """
run.name = "mm"
run.default_hooks = false
run.test = true
run.device = "cpu"
run.precision = "fp32"
LENGTH
model.use = "tests.hooks.mm_training:Net"
task.use = "tests.hooks.mm_training:Task"
optimizer = { use = "torch.optim:SGD", args = { lr = 0.1 } }
data.train = { use = "tests.hooks.mm_training:loader", args = { examples = 12 } }
data.val = { use = "tests.hooks.mm_training:loader", args = { examples = 8 } }
data.test = { use = "tests.hooks.mm_training:loader", args = { examples = 8 } }
hooks.checkpoint.use = "checkpoint"
hooks.recorder.use = "tests.hooks.mm_hooks:Recorder"
"""


class Net(BaseModel):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(
        self, inputs: torch.Tensor, target: torch.Tensor | None = None, mode: str = "tensor"
    ) -> Any:
        out = self.layer(inputs)
        return {"loss": functional.cross_entropy(out, target)} if mode == "loss" else [out]


class Task:
    def step(self, run: Any, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
        return run.model(**batch, mode="loss")  # type: ignore[no-any-return]

    def metrics(self, means: Any) -> dict[str, float]:
        return {"accuracy": 1.0}


class Accuracy(BaseMetric):  # type: ignore[misc]
    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results.append(1.0)

    def compute_metrics(self, results: Any) -> dict[str, float]:
        return {"accuracy": 1.0, "loss": 1.0}


def loader(examples: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    data = [
        {"inputs": torch.randn(4, generator=generator), "target": torch.tensor(0)}
        for _ in range(examples)
    ]
    return DataLoader(data, batch_size=4)  # type: ignore[arg-type]


def train_theirs(folder: Path, length: dict[str, Any], hook: Any, **resume: Any) -> None:
    """Train and test by MMEngine's Runner, without hooks of its own but the one that saves."""
    by_epoch = length["by_epoch"]
    none = dict.fromkeys(("runtime_info", "timer", "sampler_seed", "logger", "param_scheduler"))
    saves = {"type": "CheckpointHook", "interval": 1 if by_epoch else 2, "by_epoch": by_epoch}
    runner = Runner(
        Net(),
        str(folder),
        train_dataloader=loader(12),
        val_dataloader=loader(8),
        test_dataloader=loader(8),
        train_cfg=length,
        val_cfg={},
        test_cfg={},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1}},
        val_evaluator=[Accuracy()],
        test_evaluator=[Accuracy()],
        default_hooks={**none, "checkpoint": saves},
        custom_hooks=[hook],
        log_level="ERROR",
        experiment_name=f"{folder.name}, {len(resume)}",
        default_scope="mmengine",
        **resume,
    )
    runner.train()
    runner.test()
