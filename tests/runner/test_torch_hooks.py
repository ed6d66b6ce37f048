"""Hooks on parameters, in all modules, in a step and around states:
as the same ones by hand, in plain PyTorch.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.data import Dataset

from hookflow.errors import UserError
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.dispatch.torch_hooks import register_hooks
from hookflow.runner.process.state import RunState
from tests.conftest import TOY, NewRun, Train, Trained, firings, reason, records, strikes
from tests.runner.by_hand import (
    CALLS,
    SHORT,
    SWAP,
    Ran,
    assert_same_weights,
    hook,
    notes_name,
    ran,
    weights,
)
from tests.support.toy import Net

__all__ = ["ran"]

# It is what they do.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")


class Everywhere:
    """Halves what goes into batch norm and what comes out of GELU, and sees all."""

    def global_forward_pre(self, name: str | None, module: nn.Module, args: Any) -> Any:
        return everywhere("pre", module, args)

    def global_forward(
        self, name: str | None, module: nn.Module, args: Any, kwargs: Any, output: Any
    ) -> Any:
        assert not kwargs
        return everywhere("forward", module, args, output)

    def global_full_backward_pre(self, module: nn.Module, grad_output: Any) -> Any:
        return everywhere("backward pre", module, grad_output)

    def global_full_backward(self, module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        return everywhere("backward", module, grad_input, grad_output)


def everywhere(what: str, module: nn.Module, *offered: Any) -> Any:
    CALLS.append((what, type(module).__name__))
    match what, module:
        case "pre", nn.BatchNorm1d():
            return offered[0][0] * 0.5
        case "forward", nn.GELU():
            return offered[1] * 0.5
        case "backward pre", nn.GELU():
            return (offered[0][0] * 2,)
        case "backward", nn.GELU():
            return (offered[0][0] + 0.1,)
    return None


def instance(module: nn.Module, args: Any) -> None:
    CALLS.append("forward_pre of one")


def globally(parts: RunComponents, state: RunState) -> Iterator[Any]:
    def fire(what: str) -> Callable[..., Any]:
        return lambda module, *offered: (
            everywhere(what, module, *offered) if state.stage == "train" else None
        )

    yield torch_module.register_module_forward_pre_hook(fire("pre"))
    yield torch_module.register_module_forward_hook(fire("forward"))
    yield torch_module.register_module_full_backward_pre_hook(fire("backward pre"))
    yield torch_module.register_module_full_backward_hook(fire("backward"))


GLOBAL = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)


def test_on_every_module_as_by_hand(ran: Ran) -> None:
    """They come before those of a module, whatever order they were registered in,
    and are gone afterwards.
    """
    one = hook("one", instance, "forward_pre", modules=["head"])
    ours, seen = ran(hook("all", Everywhere), one, *SHORT)
    plain, expected = ran(one, *SHORT, by_hand=globally)
    assert seen == expected
    assert seen[seen.index("forward_pre of one") - 1] == ("pre", "Linear")
    assert_same_weights(ours, plain, but=ran(*SHORT)[0])
    assert not any(getattr(torch_module, hooks) for hooks in GLOBAL)


def raises(module: nn.Module) -> None:
    raise RuntimeError("as told")


def test_global_ones_are_gone_after_an_error(trained: Trained) -> None:
    run_dir = trained(
        hook("bad", raises, "global_full_backward"),
        hook("all", Everywhere),
        *SHORT,
        swap=SWAP,
        code=1,
    )
    assert [(r["hook"], r["point"]) for r in records(run_dir, "error")] == [
        ("bad", "global_full_backward")
    ]
    assert not any(getattr(torch_module, hooks) for hooks in GLOBAL)


def with_outsider(run: Any, batch: Any) -> dict[str, torch.Tensor]:
    return {"loss": nn.MSELoss()(run.model(batch[0]), torch.zeros(len(batch[0]), 3))}


def test_they_are_told_the_name_in_the_network(ran: Ran) -> None:
    off = [f"hooks.{name}.enabled=false" for name in ("accuracy", "early_stop", "checkpoint")]
    task = [f'task.use="{__name__}:with_outsider"', "data={train={use='./toy.py:Points'}}"]
    _, seen = ran(hook("names", notes_name, "global_forward"), *off, *task, "run.max_iters=1")
    assert seen == ["body.0", "body.1", "body.2", "body.3", "body", "head", "", None]


class Transformed(Dataset[Any]):
    def __init__(self) -> None:
        self.transform = nn.Identity()

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(torch.full((4,), index / 16)), index % 3


def notes(file: str, module: nn.Module) -> None:
    with Path(file).open("a") as opened:
        opened.write(f"{type(module).__name__} {os.getpid()}\n")


@pytest.mark.parametrize("workers", [0, 1])
def test_they_fire_in_the_process_that_trains_alone(
    trained: Trained, tmp_path: Path, workers: int
) -> None:
    data = (
        f'data={{train={{use="{__name__}:Transformed", loader={{batch_size=8,'
        f" workers={workers}}}}}}}"
    )
    noted = hook("notes", notes, "global_forward", args={"file": str(tmp_path / "notes")})
    trained(data, noted, *SHORT, swap=SWAP)
    seen = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert {pid for _, pid in seen} == {str(os.getpid())}
    assert ("Identity" in {name for name, _ in seen}) is (workers == 0)


def with_closure(name: str, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    CALLS.append(("pre", name, type(optimizer).__name__, len(args)))
    return (*args, lambda: CALLS.append(("closure", name))), kwargs


def after_step(name: str, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    CALLS.append(
        (
            "post",
            name,
            len(args),
            float(sum(p.detach().sum() for g in optimizer.param_groups for p in g["params"])),
        )
    )


class Steps:
    def optimizer_step_pre(
        self, name: str, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any
    ) -> Any:
        return with_closure(name, optimizer, args, kwargs)

    def optimizer_step_post(
        self, name: str, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any
    ) -> None:
        after_step(name, optimizer, args, kwargs)


def in_steps(parts: RunComponents, state: RunState) -> Iterator[Any]:
    for name, optimizer in parts.optimizers.items():
        yield optimizer.register_step_pre_hook(
            lambda *offered, name=name: with_closure(name, *offered)
        )
        yield optimizer.register_step_post_hook(
            lambda *offered, name=name: after_step(name, *offered)
        )


GAN = (TOY.read_text(), (TOY.parent / "gan.toml").read_text())


@pytest.mark.parametrize("swap", [SWAP, GAN], ids=["one", "two that a task steps"])
def test_in_an_optimizers_step_as_by_hand(ran: Ran, swap: tuple[str, str]) -> None:
    ends = "run.max_epochs=1" if swap is GAN else "run.max_iters=2"
    _, seen = ran(hook("steps", Steps), ends, swap=swap)
    assert seen == ran(ends, swap=swap, by_hand=in_steps)[1]
    names = ["discriminator", "discriminator", "generator"] if swap is GAN else ["optimizer"] * 2
    assert [call[1] for call in seen if call[0] == "closure"][: len(names)] == names


class States:
    """Keeps the head's weight doubled, by another name, wherever its state is."""

    modules = ("head",)

    def state_dict_pre(self, name: str, prefix: str, keep_vars: bool) -> None:
        CALLS.append(("pre", name, prefix, keep_vars))

    def state_dict_post(
        self, module: nn.Module, state_dict: Any, prefix: str, local_metadata: Any
    ) -> None:
        doubled(module, state_dict, prefix, local_metadata)

    def load_state_dict_pre(
        self, module: nn.Module, state_dict: Any, prefix: str, strict: bool
    ) -> None:
        halved(module, state_dict, prefix)
        assert strict

    def load_state_dict_post(self, module: nn.Module, incompatible_keys: Any) -> None:
        CALLS.append(("loaded", type(module).__name__, incompatible_keys.missing_keys))


def doubled(module: nn.Module, state_dict: Any, prefix: str, local_metadata: Any) -> None:
    CALLS.append(("post", prefix, "version" in local_metadata))
    state_dict[f"{prefix}doubled"] = state_dict.pop(f"{prefix}weight") * 2


def halved(module: nn.Module, state_dict: Any, prefix: str, *more: Any) -> None:
    CALLS.append(("load", prefix))
    state_dict[f"{prefix}weight"] = state_dict.pop(f"{prefix}doubled") / 2


def around_states(parts: RunComponents, state: RunState) -> Iterator[Any]:
    head = parts.model.head
    yield head.register_state_dict_pre_hook(
        lambda module, prefix, keep: CALLS.append(("pre", "head", prefix, keep))
    )
    yield head.register_state_dict_post_hook(lambda *offered: doubled(*offered))
    yield head.register_load_state_dict_pre_hook(halved)
    yield head.register_load_state_dict_post_hook(
        lambda m, keys: CALLS.append(("loaded", "Linear", keys.missing_keys))
    )


def test_around_states_as_by_hand(
    ran: Ran, trained: Trained, train_here: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where a run is resumed: what is loaded is what was saved, as the hooks have made it."""
    heads: list[Any] = []

    def register(parts: RunComponents, *more: Any) -> None:
        heads.append(parts.model.head)
        register_hooks(parts, *more)

    plain_net = "hooks.ema.enabled=false"  # which has a copy of the network of its own
    often = "hooks.checkpoint.points=[{at='after_train_iter',every=1}]"
    ours, seen = ran(hook("all", States), plain_net, often, *SHORT)
    plain, expected = ran(plain_net, often, *SHORT, by_hand=around_states)
    assert seen == expected
    assert "head.doubled" in weights(ours)
    assert_same_weights(ours, plain)
    monkeypatch.setattr("hookflow.runner.loop.trainer.register_hooks", register)
    struck = strikes(tmp_path, 15, ("after_train_iter", 1))
    broken = trained(hook("all", States), plain_net, *struck, often, *SHORT, swap=SWAP, code=143)
    CALLS.clear()
    assert train_here(broken, resume=True) == 0
    assert_same_weights(ours, broken)
    assert ("load", "head.") in CALLS and ("loaded", "Linear", []) in CALLS
    left = (
        "_state_dict_pre_hooks",
        "_state_dict_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    )
    assert not any(getattr(head, hooks) for head in heads for hooks in left)


def halves(name: str, grad: torch.Tensor, param: nn.Parameter) -> torch.Tensor:
    CALLS.append(("halves", name, float(grad.sum()), param.grad is None))
    return grad * 0.5


def adds(name: str, grad: torch.Tensor) -> torch.Tensor:
    CALLS.append(("adds", name, float(grad.sum())))
    return grad + 0.25


def sees(name: str, param: nn.Parameter) -> None:
    assert param.grad is not None
    CALLS.append(("sees", name, float(param.grad.sum())))


def on_parameters(parts: RunComponents, state: RunState) -> Iterator[Any]:
    weights = {name: p for name, p in parts.model.named_parameters() if name.endswith("weight")}
    for name, p in weights.items():
        yield p.register_hook(lambda grad, name=name: adds(name, grad))
    for name, p in weights.items():
        yield p.register_hook(lambda grad, name=name, p=p: halves(name, grad, p))
    for name, p in weights.items():
        yield p.register_post_accumulate_grad_hook(lambda param, name=name: sees(name, param))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_on_parameters_as_by_hand(ran: Ran, accumulate: int) -> None:
    more = (*SHORT, f"run.accumulate={accumulate}")
    ours, seen = ran(
        hook("halves", halves, "parameter_grad", parameters=["*.weight"], after=["adds"]),
        hook("adds", adds, "parameter_grad", parameters=["*.weight"]),
        hook("sees", sees, "post_accumulate_grad", parameters=["head.weight", "*.weight"]),
        *more,
    )
    plain, expected = ran(*more, by_hand=on_parameters)
    assert seen == expected
    assert len(seen) == 2 * 3 * accumulate * len(
        [name for name in weights(plain) if name.endswith("weight")]
    )
    assert {call[3] for call in seen if call[0] == "halves"} == (
        {True} if accumulate == 1 else {True, False}
    )
    assert_same_weights(ours, plain, but=ran(*more)[0])
    counts = firings(ours)
    assert (
        counts["halves", "parameter_grad"]
        == counts["sees", "post_accumulate_grad"]
        == len(seen) // 3
    )


def says_iter(run: Any, name: str) -> None:
    CALLS.append((run.iter, name))


def test_a_trigger_is_asked_once_an_iteration(
    new_run: NewRun, train_here: Train, ran: Ran, tmp_path: Path
) -> None:
    """Also of a run that is resumed in between,
    and of gradients that add up over several batches.
    """
    probe = hook("says", says_iter, "parameter_grad", parameters=["body.*.bias"], every=2)
    length = (
        "run.max_iters=6",
        "run.accumulate=2",
        "hooks.checkpoint.points=[{at='after_train_iter',every=1}]",
    )
    expected = [
        (it, name)
        for it in (0, 2, 4)
        for _ in range(1 if it == 2 else 2)
        for name in ("body.1", "body.0")
    ]
    _, whole = ran(probe, *length)
    assert whole == [(it, f"{name}.bias") for it, name in expected]
    broken = new_run(probe, *strikes(tmp_path, 15, ("after_train_iter", 3)), *length, swap=SWAP)
    CALLS.clear()
    assert train_here(broken) == 143
    assert train_here(broken, resume=True) == 0
    assert whole == CALLS


class Thaws:
    def before_train(self, run: Any) -> None:
        run.model.head.requires_grad_(False)

    def before_train_iter(self, run: Any) -> None:
        run.model.head.requires_grad_(run.iter > 0)


def test_a_frozen_parameter_fires_once_it_trains_and_a_shared_one_by_the_name_that_matches(
    ran: Ran,
) -> None:
    model = 'model.use="./model_changes.py:HalfFrozen"'
    says = hook("says", says_iter, "parameter_grad", parameters=["head.bias", "body.0.weight"])
    assert ran(model, says, hook("thaws", Thaws), *SHORT)[1] == [(1, "head.bias")]
    model = f'model.use="{__name__}:Tied"'
    says = hook("says", says_iter, "post_accumulate_grad", parameters=["second.weight"])
    both = hook("both", says_iter, "parameter_grad", parameters=["h*.weight", "second.weight"])
    _, seen = ran(model, says, both, *SHORT)
    assert seen == [(it, name) for it in (0, 1) for name in ("head.weight", "second.weight")]


class Tied(Net):
    """Has the parameters of its head by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.second = self.head


@pytest.mark.parametrize(
    ("glob", "hint"),
    [
        ("hed.weight", 'did you mean "head.weight"?'),
        ("layer*", "there are body.0.weight, body.0.bias,"),
    ],
)
def test_a_glob_that_picks_no_parameter(trained: Trained, glob: str, hint: str) -> None:
    run_dir = trained(hook("adds", adds, "parameter_grad", parameters=["head.*", glob]), code=2)
    said, told = reason(run_dir).splitlines()
    assert said.startswith("--set hooks.adds=")
    assert said.endswith(f' at parameter_grad: no parameter of the network matches "{glob}"')
    assert told.strip().startswith(hint)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            hook("adds", adds, "parameter_grad"),
            '"adds" does not say at which parameters parameter_grad fires',
        ),
        (hook("it", says_iter, "after_train_iter", parameters=["*"]), "parameters has no effect"),
        (
            (
                f'hooks.it={{use="{__name__}:says_iter", points=[{{at="forward", modules=["*"],'
                ' parameters=["*"]}]}'
            ),
            "parameters is not allowed at forward: it is not a parameter point",
        ),
        (
            hook("adds", adds, "parameter_grad", parameters=["*"], modules=["*"]),
            "modules has no effect, since it is at no point of a module",
        ),
    ],
)
def test_mistakes_before_anything_is_built(override: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        compile_pipeline(parse(TOY.read_text(), TOY, (override,)))


@pytest.mark.parametrize(
    ("on_error", "exit_code", "errors"), [("raise", 1, 1), ("disable", 0, 1), ("ignore", 0, 4)]
)
@pytest.mark.parametrize("point", ["parameter_grad", "optimizer_step_pre"])
def test_one_that_raises(
    trained: Trained, point: str, on_error: str, exit_code: int, errors: int
) -> None:
    picks = {} if point.startswith("optimizer") else {"parameters": ["head.*"]}
    run_dir = trained(
        hook("bad", fails, point, **picks, on_error=on_error), *SHORT, swap=SWAP, code=exit_code
    )
    told = [(error["hook"], error["point"], error["action"]) for error in records(run_dir, "error")]
    per_step = point.startswith("optimizer") and on_error == "ignore"
    assert told == [("bad", point, on_error)] * (errors // 2 if per_step else errors)


def fails() -> None:
    raise RuntimeError("as told")
