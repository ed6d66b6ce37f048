"""Tasks that the tests put into pipelines as "./own_tasks.py:…"."""

from collections import deque
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def step(run: Any, batch: Any, weight: float = 1.0) -> dict[str, Any]:
    inputs, target = batch
    logits = run.model(inputs)
    loss = weight * functional.cross_entropy(logits, target)
    return {
        "loss": loss,
        "logits": logits,
        "target": target,
        "confidence": logits.softmax(1).amax(1).mean(),
    }


class StepOnly:
    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        assert torch.is_grad_enabled() == run.model.training
        return step(run, batch)

    def metrics(self, means: Any) -> dict[str, float]:
        return {"double": 2 * means["loss"]}


class Densifies:
    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        if run.model.training:
            run.fire("after_densify", run.iter)
        return step(run, batch)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(inputs)))  # type: ignore[no-any-return]


def paints(run: Any, batch: Any) -> dict[str, Any]:
    return {**step(run, batch), "image": batch[0].reshape(-1, 1, 2, 2)}


def spikes(run: Any, batch: Any, at: list[int]) -> dict[str, Any]:
    return step(run, batch, 1000.0 if run.model.training and run.iter in at else 1.0)


class Forgets:
    """Learns from a buffer of earlier batches,
    by a generator of its own and a network of its own; it has no state.
    """

    steps_itself = True

    def __init__(self) -> None:
        self.buffer: deque[Any] = deque(maxlen=6)
        self.draws = torch.Generator().manual_seed(3)
        self.target = nn.Linear(4, 3)
        self.scaler = torch.amp.GradScaler("cpu")
        self.steps = 0
        self.name = "forgets"
        self.seen: Any = None

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        self.steps += 1
        self.seen = run.model
        self.buffer.append([part.cpu() for part in batch])
        inputs, target = self.buffer[int(torch.randint(len(self.buffer), (), generator=self.draws))]
        logits = run.model(inputs.to(run.device))
        loss = functional.cross_entropy(logits, target.to(run.device))
        loss = loss + (logits - self.target(inputs)).square().mean() / self.steps
        run.backward(loss)
        run.step()
        self.scaler.scale(loss)
        self.scaler.update(2.0 ** (self.steps % 64))
        with torch.no_grad():
            self.target.weight.mul_(0.9)
        return {"loss": loss}

    def evaluate(self, run: Any, batch: Any) -> dict[str, Any]:
        return step(run, batch)


class Remembers(Forgets):
    def state_dict(self) -> dict[str, Any]:
        held = {"buffer": list(self.buffer), "draws": self.draws.get_state(), "steps": self.steps}
        return held | {"target": self.target.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.buffer.extend(state["buffer"])
        self.draws.set_state(state["draws"])
        self.steps = state["steps"]
        self.target.load_state_dict(state["target"])
        self.scaler.load_state_dict(state["scaler"])
