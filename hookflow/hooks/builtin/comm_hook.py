"""PyTorch's own DDP communication hooks: gradients go over the network in fewer bytes.

PowerSGD: T. Vogels and others, *PowerSGD: practical low-rank gradient compression for distributed optimization*, 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hookflow.hooks.base import Hook, Slots

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


@dataclass(eq=False)
class CommHook(Hook):
    """Compresses DDP's gradient all-reduce with one of PyTorch's communication hooks.

    For several ranks with `strategy = "ddp"`; elsewhere it is refused. The state that PowerSGD has learned is not kept:
    a resumed run averages in full for two iterations (DDP arranges its buckets anew in the first), and then begins with
    it anew.
    """

    reads: ClassVar[Slots] = {"ddp_comm": ("grads",)}
    writes: ClassVar[Slots] = {"ddp_comm": ("grads",)}

    algorithm: Annotated[
        Literal["fp16_compress", "bf16_compress", "power_sgd"],
        Field(description="send gradients in float16, in bfloat16, or as products of two thin matrices"),
    ]
    matrix_rank: Annotated[int, Field(ge=1, description="rank of `power_sgd`; a higher one sends more")] = 1
    start: Annotated[int, Field(ge=2, description="iterations before `power_sgd` begins to compress")] = 1000

    def __post_init__(self) -> None:
        self._before: dict[str, int] = {}
        """How many iterations of each model were averaged before this process."""
        self._power_sgd: dict[str, Any] = {}  # of each model, as it knows buckets by numbers that all models use

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        of_power_sgd = [name for name in ("matrix_rank", "start") if name in args]
        if of_power_sgd and args.get("algorithm") != "power_sgd":
            raise ValueError(f'{of_power_sgd[0]} is for algorithm = "power_sgd"')

    def before_train(self, run: Run) -> None:
        if any(before >= self.start for before in self._before.values()):
            run.say("PowerSGD's state is not saved: it restarts after two iterations of exact all-reduce", "warn")

    def ddp_comm(self, name: str, process_group: Any, bucket: Any) -> Any:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        if self.algorithm != "power_sgd":
            return getattr(default_hooks, f"{self.algorithm}_hook")(process_group, bucket)
        if name not in self._power_sgd:
            begins = max(self.start - self._before.get(name, 0), 2)
            self._power_sgd[name] = powerSGD_hook.PowerSGDState(process_group, self.matrix_rank, begins)
        return powerSGD_hook.powerSGD_hook(self._power_sgd[name], bucket)

    def state_dict(self) -> dict[str, Any]:
        counts = {name: self._before.get(name, 0) + state.iter for name, state in self._power_sgd.items()}
        return {"iterations": {**self._before, **counts}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._before, self._power_sgd = dict(state["iterations"]), {}
