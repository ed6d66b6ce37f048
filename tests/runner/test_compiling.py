"""Compiled networks: the same training, hooks inside the network that still fire,
and those that come late.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.errors import UserError, Where
from hookflow.runner.builder import build
from hookflow.runner.device import precision
from hookflow.runner.device.precision import in_precision
from hookflow.runner.iteration import update
from hookflow.runner.iteration.update import OptimizerUpdate
from hookflow.runner.process.launch import start
from hookflow.zoo.cifar10 import AirNet
from tests.conftest import NewRun, Trained, messages, reason
from tests.runner.by_hand import Ran, hook, notes_name, ran
from tests.runner.same import assert_same, final_state
from tests.support.toy import Net

__all__ = ["ran"]

COMPILE = "run.compile=true"

pytestmark = [
    # PyTorch's compiler warns of its own code: of deprecated parts, and of gradients that it looks
    # for in vain.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]


class Late:
    """Registers a hook of its own inside the network, once it has been trained for a while;
    says if it was called.
    """

    def __init__(self) -> None:
        self.calls = 0

    def after_train_iter(self, run: Any) -> None:
        if run.iter == 2:
            run.model.head.register_forward_hook(self.count)

    def count(self, *offered: object) -> None:
        self.calls += 1

    def after_train(self, run: Any) -> None:
        run.say("the late hook was called" if self.calls else "the late hook was never called")


class Still(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body[3] = torch.nn.Identity()


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let networks be traced as ever, and run as they are: to compile them takes half a minute."""
    compile_ = nn.Module.compile
    torch.compiler.reset()

    def in_no_time(self: nn.Module, *, mode: str | None) -> None:
        assert mode is None
        compile_(self, backend="eager")

    monkeypatch.setattr(nn.Module, "compile", in_no_time)


@pytest.mark.usefixtures("quickly")
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_hooks_on_parameters_and_all_modules_fire_in_a_compiled_network(ran: Ran) -> None:
    """As often as in one that is not compiled, and with the same names."""
    names = [
        hook("grads", notes_name, "parameter_grad", parameters=["head.*"]),
        hook("added", notes_name, "post_accumulate_grad", parameters=["body.0.weight"]),
        hook("forwards", notes_name, "global_forward"),
        hook("pres", notes_name, "global_forward_pre", every=2),
        hook("backwards", notes_name, "global_full_backward"),
    ]
    (_, plain), (_, compiled) = (
        ran(*names, "run.max_epochs=1", *more, swap=None) for more in ([], [COMPILE])
    )
    assert compiled == plain


@pytest.mark.usefixtures("quickly")
def test_a_module_hook_that_comes_late_is_called(trained: Trained) -> None:
    late = 'hooks.late={use="tests.runner.test_compiling:Late"}'
    assert "the late hook was called" in messages(trained(COMPILE, late, "run.max_epochs=1"))


@pytest.mark.usefixtures("quickly")
def test_idle_hooks_inside_a_compiled_network_force_no_recompilation(
    trained: Trained, tmp_path: Path
) -> None:
    graphs = []
    for every in (1, 2):
        notes = tmp_path / f"notes{every}"
        args = f'args={{file="{notes}"}}, modules=["head"], every={every}'
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        trained(
            f'hooks.probe={{use="./common_hooks.py:Probes", {args}}}', COMPILE, "run.max_epochs=2"
        )
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        fired = [int(line.split()[2]) for line in notes.read_text().splitlines()]
        assert fired == [k for k in range(0, 10, every) for _ in range(4)]
    assert graphs[0] == graphs[1] > 0


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("point", ["forward", "full_backward_pre"])
def test_a_hook_removed_from_a_compiled_network_is_called_no_more(
    trained: Trained, tmp_path: Path, point: str
) -> None:
    args = f'args={{file="{tmp_path / "notes"}"}}'
    probe = f'{{use="./common_hooks.py:Probes", {args}, modules=["head"], points=["{point}"]}}'
    removes = 'hooks.removes={use="./common_hooks.py:Removes", args={hook="probe", at=3}}'
    trained(f"hooks.probe={probe}", removes, COMPILE, "run.max_epochs=1")
    assert [line.split()[2] for line in (tmp_path / "notes").read_text().splitlines()] == [
        "0",
        "1",
        "2",
    ]


def test_no_compiler_is_a_mistake_before_the_training(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)  # type: ignore[attr-defined]
    run_dir = trained(COMPILE, 'run.device="cpu"', code=2)
    assert re.search(r"run.compile needs a C\+\+ compiler.*\n.*install g\+\+", reason(run_dir))
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"p\.toml:3:1.*Triton"):
        build.check_compiler(torch.device("cuda"), Where("p.toml", 3, 1))


@pytest.mark.usefixtures("quickly")
def test_a_compiled_network_trains_to_the_same(trained: Trained) -> None:
    """Also with hooks that change how it computes: statistics estimated anew,
    weights that do not train for a while.
    """
    precise = 'hooks.precise={use="precise_bn"}'
    frozen = 'hooks.frozen={use="freeze", args={params=["body.0.*"], end="1ep"}}'
    plain, compiled = (
        trained("run.max_epochs=2", precise, frozen, *more) for more in ((), (COMPILE,))
    )
    for part in ("model", "model_ema"):
        torch.testing.assert_close(final_state(plain)[part], final_state(compiled)[part])
    assert sum("the network is compiled" in text for text in messages(compiled)) == 1


@pytest.mark.long
def test_it_is_compiled_for_real(
    new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    again = 'hooks.again={use="activation_checkpoint", args={match=["body"]}}'
    still = "run.max_epochs=1", 'model.use="tests.runner.test_compiling:Still"', again
    plain, compiled = new_run(*still), new_run(*still, 'run.compile="default"')
    assert start(plain).wait() == start(compiled).wait() == 0, compiled.output.read_text()
    one, other = (final_state(run_dir)["model"] for run_dir in (plain, compiled))
    for name, tensor in one.items():  # type: ignore[attr-defined]
        assert torch.allclose(tensor, other[name], atol=1e-5), name  # type: ignore[index]


@pytest.mark.parametrize("compiled", ["reduce-overhead", "max-autotune", "default", True, False])
def test_a_call_of_the_task_begins_a_step_of_cuda_graphs(
    monkeypatch: pytest.MonkeyPatch, compiled: bool | str
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: calls.append("mark"))
    step = in_precision(
        lambda run, batch: calls.append("step"), torch.device("cuda"), "fp32", compiled
    )
    step(None, None)
    assert calls == (
        ["mark", "step"] if compiled in ("reduce-overhead", "max-autotune") else ["step"]
    )


@pytest.mark.parametrize(
    "accumulates",
    [
        "run.accumulate=2",
        'hooks.accumulation={use="accumulation_schedule", args={batches=[[0, 3]]}}',
    ],
    ids=["accumulate", "schedule"],
)
def test_gradients_accumulate_outside_of_the_memory_of_cuda_graphs(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, accumulates: str
) -> None:
    """With a stand-in for graphs: what a backward pass has allocated is
    overwritten when the next step begins.
    """
    plain = trained(accumulates)
    pool: list[torch.Tensor] = []
    backward = OptimizerUpdate.backward

    def recorded(
        self: OptimizerUpdate, offered: tuple[Any, ...], names: tuple[str, ...], weight: float
    ) -> None:
        fresh = [p for p in self._parameters(names) if p.grad is None]
        backward(self, offered, names, weight)
        pool.extend(p.grad for p in fresh if p.grad is not None)

    def overwrite() -> None:
        for gradient in pool:
            gradient.fill_(torch.nan)
        pool.clear()

    monkeypatch.setattr(OptimizerUpdate, "backward", recorded)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", overwrite)
    for module in (precision, update):
        monkeypatch.setattr(module, "is_recording_graphs", lambda device, compiled: True)
    assert_same(final_state(trained(accumulates))["model"], final_state(plain)["model"])


@pytest.mark.long
def test_the_gradients_of_the_shipped_net_are_finite_in_bf16() -> None:
    """Those of `amax` are not: 0 / 0 where what it has compared is computed anew."""
    model = AirNet((8, 8, 8))
    model.compile()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.randn(32, 3, 32, 32))
    logits.float().square().mean().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
