"""The built-in communication hook against PyTorch's own, by DDP of one process;
and where there is no DDP.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from hookflow.errors import UserError
from hookflow.hooks.builtin.gradients import CommHook
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.trials.temporary_run import SilentBinding, run_dry
from tests.conftest import TOY, Trained, records
from tests.support.golden_files import check_cases

LEFT: list[Any] = []
"""The groups that were left. PowerSGD's callback holds its group, and ends in a thread of the
group.

If that is the last reference, the thread waits for itself to end, and the process aborts.
"""


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Form a group of this process alone."""
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    LEFT.append(dist.group.WORLD)
    yield
    dist.destroy_process_group()


def gradients(hooks: Mapping[str, tuple[object, Any]], iterations: int = 6) -> list[torch.Tensor]:
    """Return the gradients of models of different sizes in some backward passes,
    each averaged by its hook.
    """
    torch.manual_seed(7)
    widths = dict(zip(hooks, (24, 8), strict=False))
    nets = {
        name: DistributedDataParallel(nn.Sequential(nn.Linear(16, w), nn.Tanh()))
        for name, w in widths.items()
    }
    for name, (state, hook) in hooks.items():
        nets[name].register_comm_hook(state, hook)
    result = []
    for _ in range(iterations):
        for net in nets.values():
            net.zero_grad()
            net(torch.randn(5, 16)).square().sum().backward()
            result += [p.grad.clone() for p in net.parameters() if p.grad is not None]
    return result


def ours(hook: CommHook, model: str = "model") -> tuple[object, Any]:
    return None, lambda state, bucket: hook.ddp_comm(model, dist.group.WORLD, bucket)


EXACT = {"model": (None, default_hooks.allreduce_hook)}


def by_pytorch(algorithm: str) -> tuple[object, Any]:
    if algorithm == "power_sgd":
        return powerSGD_hook.PowerSGDState(None, 2, 3), powerSGD_hook.powerSGD_hook
    # PyTorch would refuse bf16 by its name where there is no NCCL, which gloo does without
    plain = getattr(default_hooks, f"{algorithm}_hook")
    return None, lambda state, bucket: plain(state, bucket)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("algorithm", ["fp16_compress", "bf16_compress", "power_sgd"])
def test_it_does_what_pytorchs_own_does(algorithm: Any) -> None:
    more = {"matrix_rank": 2, "start": 3} if algorithm == "power_sgd" else {}
    averaged = gradients({"model": ours(CommHook(algorithm, **more))})
    assert all(map(torch.equal, averaged, gradients({"model": by_pytorch(algorithm)})))
    assert not all(map(torch.equal, averaged, gradients(EXACT))), "it compresses"


@pytest.mark.usefixtures("alone")
def test_power_sgd_begins_when_it_would_have_in_a_run_that_was_not_interrupted() -> None:
    first, exact = CommHook("power_sgd", start=8), gradients(EXACT)
    assert all(map(torch.equal, gradients({"model": ours(first)}), exact))
    assert first.state_dict() == {"iterations": {"model": 6}}
    second = CommHook("power_sgd", start=8)
    second.load_state_dict(first.state_dict())
    same = [*map(torch.equal, gradients({"model": ours(second)}, 4), exact)]
    assert all(same[:4]) and not all(same[4:]), "two iterations of two tensors are exact"
    assert second.state_dict() == {"iterations": {"model": 10}}


@pytest.mark.usefixtures("alone")
def test_power_sgd_learns_of_each_model_for_itself() -> None:
    """Buckets of two models have the same numbers, and not the same gradients."""
    hook = CommHook("power_sgd", start=2)
    averaged = gradients({name: ours(hook, name) for name in ("left", "right")})
    pytorch = powerSGD_hook.powerSGD_hook
    expected = gradients(
        {name: (powerSGD_hook.PowerSGDState(None, 1, 2), pytorch) for name in ("left", "right")}
    )
    assert all(map(torch.equal, averaged, expected))
    assert hook.state_dict() == {"iterations": {"left": 6, "right": 6}}


COMM = 'hooks.comm={use="comm_hook", args={algorithm="fp16_compress"}%s}'


MISTAKES = {
    "on one rank": [COMM % ', ranks="zero"'],
    "switched off after an error": [COMM % ', on_error="disable"'],
    "a second one": [COMM % "", 'hooks.two={use="comm_hook", args={algorithm="bf16_compress"}}'],
    "an argument of another algorithm": [
        'hooks.comm={use="comm_hook", args={algorithm="fp16_compress", start=5}}'
    ],
    "no algorithm of that name": ['hooks.comm={use="comm_hook", args={algorithm="fp16"}}'],
}


def test_mistakes() -> None:
    told = {}
    for case, overrides in MISTAKES.items():
        with pytest.raises(UserError) as refused:
            compile_pipeline(parse(TOY.read_text(), TOY, overrides))
        told[case] = [str(refused.value)]
    check_cases("comm-hook-mistakes.txt", told)


def test_a_single_process_has_nothing_for_it_to_do_nor_a_dry_run(trained: Trained) -> None:
    said, hint = str(records(trained(COMM % "", code=2), "end")[0]["reason"]).splitlines()
    assert 'hook "comm" has nothing to do at ddp_comm' in said
    assert hint.strip() == "leave it out: --without comm"
    loaded = parse(TOY.read_text(), TOY, [COMM % ""])
    found = run_dry(loaded, compile_pipeline(loaded), TOY.parent, lambda text, level="info": None)
    assert (
        SilentBinding("comm", "ddp_comm", "a single process averages no gradients") in found.silent
    )
