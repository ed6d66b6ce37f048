"""PyTorch's hooks beside those inside the network: each against the same hook registered by hand, call by call.

By hand means in plain PyTorch, on the same objects, in a run that is otherwise the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.runner import registered_hooks, trainer
from hookflow.runner.build import Parts
from hookflow.runner.state import RunState
from tests.conftest import TOY, NewRun, records
from tests.runner.same import final_state

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")  # it is what global ones do
Train = Callable[..., int]
ByHand = Callable[[Parts, RunState], Iterable[Any]]
SHORT = ("run.max_iters=2", "run.val_every=2", "hooks.clip.enabled=false", "hooks.log.points=['after_train_iter']")
SWAP = ("max_epochs = 3\n", "")
CALLS: list[Any] = []
"""What the hooks of this file have seen, in the order of their calls."""


def hook(name: str, use: str, *points: str, **keys: Any) -> str:
    """Return an override that puts a function or class of this file at these points."""
    at = f"points={json.dumps(points)}" if points else ""
    written = [f'use="{__name__}:{use}"', at, *(f"{key}={json.dumps(value)}" for key, value in keys.items())]
    return f"hooks.{name}={{{', '.join(filter(None, written))}}}"


def calls_of(train_here: Train, run_dir: RunDir) -> list[Any]:
    """Train, and return what the hooks have seen."""
    CALLS.clear()
    assert train_here(run_dir) == 0, records(run_dir, "error")
    return list(CALLS)


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch, train_here: Train) -> Callable[[RunDir, ByHand], list[Any]]:
    """Train with hooks that are registered by hand in place of the pipeline's, and return what they have seen."""

    def train(run_dir: RunDir, by_hand: ByHand) -> list[Any]:
        def register(parts: Parts, engine: object, state: RunState) -> ExitStack:
            stack = ExitStack()
            for handle in by_hand(parts, state):
                stack.callback(handle.remove)
            return stack

        with monkeypatch.context() as patched:
            patched.setattr(trainer, "register_hooks", register)
            return calls_of(train_here, run_dir)

    return train


def weights(run_dir: RunDir) -> dict[str, torch.Tensor]:
    return final_state(run_dir)["model"]  # type: ignore[return-value]


def assert_same_weights(one: RunDir, other: RunDir, *, but: RunDir | None = None) -> None:
    first, second = weights(one), weights(other)
    assert all(torch.equal(first[name], second[name]) for name in first)
    if but is not None:
        third = weights(but)
        assert not all(torch.equal(first[name], third[name]) for name in first), "the hooks change something"


def fired(run_dir: RunDir) -> dict[str, int]:
    """Return how often each point of this file's hooks has been booked."""
    plan = Plan.from_json(json.loads(run_dir.plan.read_text()))
    counts: dict[str, int] = {}
    for frame in records(run_dir, "frame"):
        for id_, (n, *_) in frame["hooks"].items():  # type: ignore[attr-defined]
            binding = plan.bindings[int(id_)]
            if __name__ in plan.hook(binding.hook).use:
                counts[binding.point] = counts.get(binding.point, 0) + n
    return counts


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[Parts]:
    """Return what each run of the test is made of, to look at when it has ended."""
    found: list[Parts] = []

    def register(parts: Parts, *more: Any) -> ExitStack:
        found.append(parts)
        return registered_hooks.register_hooks(parts, *more)

    monkeypatch.setattr(trainer, "register_hooks", register)
    return found


# Parameters.


def halves(name: str, grad: torch.Tensor, param: nn.Parameter) -> torch.Tensor:
    CALLS.append(("halves", name, float(grad.sum()), param.grad is None))
    return grad * 0.5


def adds(name: str, grad: torch.Tensor) -> torch.Tensor:
    CALLS.append(("adds", name, float(grad.sum())))
    return grad + 0.25


def sees(name: str, param: nn.Parameter) -> None:
    assert param.grad is not None
    CALLS.append(("sees", name, float(param.grad.sum())))


def on_parameters(parts: Parts, state: RunState) -> Iterator[Any]:
    weights = {name: p for name, p in parts.model.named_parameters() if name.endswith("weight")}
    for name, p in weights.items():
        yield p.register_hook(lambda grad, name=name: adds(name, grad))
    for name, p in weights.items():
        yield p.register_hook(lambda grad, name=name, p=p: halves(name, grad, p))
    for name, p in weights.items():
        yield p.register_post_accumulate_grad_hook(lambda param, name=name: sees(name, param))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_on_parameters_as_by_hand(
    new_run: NewRun, train_here: Train, plainly: Callable[[RunDir, ByHand], list[Any]], accumulate: int
) -> None:
    more = (*SHORT, f"run.accumulate={accumulate}")
    ours = new_run(
        hook("halves", "halves", "parameter_grad", parameters=["*.weight"], after=["adds"]),
        hook("adds", "adds", "parameter_grad", parameters=["*.weight"]),
        hook("sees", "sees", "post_accumulate_grad", parameters=["head.weight", "*.weight"]),
        *more,
        swap=SWAP,
    )
    plain, untouched = (new_run(*more, swap=SWAP) for _ in range(2))
    seen = calls_of(train_here, ours)
    assert seen == plainly(plain, on_parameters)
    assert len(seen) == 2 * 3 * accumulate * len([name for name in weights(plain) if name.endswith("weight")])
    assert {call[3] for call in seen if call[0] == "halves"} == ({True} if accumulate == 1 else {True, False})
    assert train_here(untouched) == 0
    assert_same_weights(ours, plain, but=untouched)
    assert fired(ours) == {"parameter_grad": len(seen) * 2 // 3, "post_accumulate_grad": len(seen) // 3}


def test_the_parameters_are_left_without_them(new_run: NewRun, train_here: Train, left: list[Parts]) -> None:
    run_dir = new_run(
        hook("adds", "adds", "parameter_grad", parameters=["head.*"]),
        hook("sees", "sees", "post_accumulate_grad", parameters=["head.*"]),
        *SHORT,
        swap=SWAP,
    )
    calls_of(train_here, run_dir)
    for parameter in left[0].model.head.parameters():
        assert not parameter._backward_hooks and not parameter._post_accumulate_grad_hooks  # type: ignore[attr-defined]


def interrupted(tmp_path: Path, at: int) -> str:
    args = f'{{mark="{tmp_path / "mark"}", point="after_train_iter", at={at}}}'
    return f'hooks.strike={{use="./watchers.py:Interrupts", args={args}}}'


def says_iter(run: Any, name: str) -> None:
    CALLS.append((run.iter, name))


def test_a_trigger_is_asked_once_an_iteration(new_run: NewRun, train_here: Train, tmp_path: Path) -> None:
    """Also of a run that is resumed in between, and of gradients that add up over several batches."""
    probe = hook("says", "says_iter", "parameter_grad", parameters=["body.*.bias"], every=2)
    length = ("run.max_iters=6", "run.accumulate=2", "hooks.checkpoint.points=[{at='after_train_iter',every=1}]")
    expected = [(it, name) for it in (0, 2, 4) for _ in range(1 if it == 2 else 2) for name in ("body.1", "body.0")]
    whole = calls_of(train_here, new_run(probe, *length, swap=SWAP))
    assert whole == [(it, f"{name}.bias") for it, name in expected]
    broken = new_run(probe, interrupted(tmp_path, 3), *length, swap=SWAP)
    CALLS.clear()
    assert train_here(broken) == 143
    assert train_here(broken, resume=True) == 0
    assert whole == CALLS


class Thaws:
    """Lets the head train from the second iteration on."""

    def before_train(self, run: Any) -> None:
        run.model.head.requires_grad_(False)

    def before_train_iter(self, run: Any) -> None:
        run.model.head.requires_grad_(run.iter > 0)


def frozen_net() -> nn.Module:
    from tests.toy import Net

    net = Net()
    net.body[0].requires_grad_(False)
    return net


def test_on_a_frozen_parameter_they_fire_once_it_trains(new_run: NewRun, train_here: Train) -> None:
    model = f'model.use="{__name__}:frozen_net"'
    says = hook("says", "says_iter", "parameter_grad", parameters=["head.bias", "body.0.*"])
    run_dir = new_run(model, says, hook("thaws", "Thaws"), *SHORT, swap=SWAP)
    assert calls_of(train_here, run_dir) == [(1, "head.bias")]


class Tied(nn.Module):
    """Has one parameter by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(inputs)))  # type: ignore[no-any-return]


def test_a_shared_parameter_goes_by_the_name_that_matches(new_run: NewRun, train_here: Train) -> None:
    model = f'model.use="{__name__}:Tied"'
    says = hook("says", "says_iter", "post_accumulate_grad", parameters=["second.weight"])
    both = hook("both", "says_iter", "parameter_grad", parameters=["*t.weight", "second.weight"])
    seen = calls_of(train_here, new_run(model, says, both, *SHORT, swap=SWAP))
    assert seen == [(it, name) for it in (0, 1) for name in ("first.weight", "second.weight")]


@pytest.mark.parametrize(
    ("glob", "hint"),
    [("hed.weight", 'did you mean "head.weight"?'), ("layer*", "there are body.0.weight, body.0.bias,")],
)
def test_a_glob_that_picks_no_parameter(new_run: NewRun, train_here: Train, glob: str, hint: str) -> None:
    run_dir = new_run(hook("adds", "adds", "parameter_grad", parameters=["head.*", glob]))
    assert train_here(run_dir) == 2
    said, told = str(records(run_dir, "end")[0]["reason"]).splitlines()
    assert said.startswith("--set hooks.adds=")
    assert said.endswith(f'hook "adds" at parameter_grad: no parameter of the network matches "{glob}"')
    assert told.strip().startswith(hint)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (hook("adds", "adds", "parameter_grad"), '"adds" does not say at which parameters parameter_grad fires'),
        (hook("it", "says_iter", "after_train_iter", parameters=["*"]), "parameters has no effect"),
        (
            f'hooks.it={{use="{__name__}:says_iter", points=[{{at="forward", modules=["*"], parameters=["*"]}}]}}',
            "forward is no point of a parameter, so it takes no parameters",
        ),
        (
            hook("adds", "adds", "parameter_grad", parameters=["*"], modules=["*"]),
            "modules has no effect, since it is at no point of a module",
        ),
    ],
)
def test_mistakes_before_anything_is_built(override: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        compile_pipeline(parse(TOY.read_text(), TOY, (override,)))


@pytest.mark.parametrize(("on_error", "exit_code", "errors"), [("raise", 1, 1), ("disable", 0, 1), ("ignore", 0, 4)])
@pytest.mark.parametrize("point", ["parameter_grad", "post_accumulate_grad", "optimizer_step_pre"])
def test_one_that_raises(
    new_run: NewRun, train_here: Train, point: str, on_error: str, exit_code: int, errors: int
) -> None:
    picks = {} if point.startswith("optimizer") else {"parameters": ["head.*"]}
    run_dir = new_run(hook("bad", "fails", point, **picks, on_error=on_error), *SHORT, swap=SWAP)
    assert train_here(run_dir) == exit_code
    told = [(error["hook"], error["point"], error["action"]) for error in records(run_dir, "error")]
    per_step = point.startswith("optimizer") and on_error == "ignore"
    assert told == [("bad", point, on_error)] * (errors // 2 if per_step else errors)


def fails() -> None:
    raise RuntimeError("as told")


# In an optimizer's step.


class Steps:
    """Replaces the arguments of each step, so that it has a closure, and sees what comes of it."""

    def optimizer_step_pre(self, name: str, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        return with_closure(name, optimizer, args, kwargs)

    def optimizer_step_post(self, name: str, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        after_step(name, optimizer, args, kwargs)


def with_closure(name: str, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    CALLS.append(("pre", name, type(optimizer).__name__, len(args)))
    return (*args, lambda: CALLS.append(("closure", name))), kwargs


def after_step(name: str, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    CALLS.append(
        ("post", name, len(args), float(sum(p.detach().sum() for g in optimizer.param_groups for p in g["params"])))
    )


def around_step(run: Any) -> Iterator[None]:
    CALLS.append("before_optimizer_step")
    yield
    CALLS.append("after_optimizer_step")


class Around:
    around_optimizer_step = staticmethod(around_step).__func__


def in_steps(parts: Parts, state: RunState) -> Iterator[Any]:
    for name, optimizer in parts.optimizers.items():
        yield optimizer.register_step_pre_hook(lambda *offered, name=name: with_closure(name, *offered))
        yield optimizer.register_step_post_hook(lambda *offered, name=name: after_step(name, *offered))


GAN = (TOY.read_text(), (TOY.parent / "gan.toml").read_text())


@pytest.mark.parametrize("swap", [SWAP, GAN], ids=["one", "two that a task steps"])
def test_in_an_optimizers_step_as_by_hand(
    new_run: NewRun, train_here: Train, plainly: Callable[[RunDir, ByHand], list[Any]], swap: tuple[str, str]
) -> None:
    ends = "run.max_epochs=1" if swap is GAN else "run.max_iters=2"
    ours, plain = new_run(hook("steps", "Steps"), ends, swap=swap), new_run(ends, swap=swap)
    seen = calls_of(train_here, ours)
    assert seen == plainly(plain, in_steps)
    names = ["discriminator", "discriminator", "generator"] if swap is GAN else ["optimizer"] * 2
    assert [call[1] for call in seen if call[0] == "closure"][: len(names)] == names


class Direct:
    """A task whose last step is none of the run's."""

    steps_itself = True

    def step(self, run: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = run.model(batch[0]).square().mean()
        run.backward(loss)
        run.step()
        run.optimizer.step()
        return {"loss": loss}

    def evaluate(self, run: Any, batch: Any) -> dict[str, torch.Tensor]:
        return {"loss": run.model(batch[0]).square().mean()}


def test_they_fire_within_the_points_of_a_step_and_where_those_do_not(new_run: NewRun, train_here: Train) -> None:
    off = [f"hooks.{name}.enabled=false" for name in ("accuracy", "early_stop", "clip", "checkpoint")]
    task = f'task={{use="{__name__}:Direct"}}'
    run_dir = new_run(hook("steps", "Steps"), hook("around", "Around"), task, *off, "run.max_iters=1", swap=SWAP)
    seen = [call if isinstance(call, str) else call[0] for call in calls_of(train_here, run_dir)]
    step = ["pre", "closure", "post"]
    assert seen == ["before_optimizer_step", *step, "after_optimizer_step", *step]


class Closes:
    """Gives LBFGS the closure that it cannot do without."""

    def before_train_iter(self, batch: Any) -> None:
        self.batch = batch

    def optimizer_step_pre(self, run: Any, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            with torch.enable_grad():
                loss = nn.functional.cross_entropy(run.model(self.batch[0]), self.batch[1])
                loss.backward()
            CALLS.append(float(loss.detach()))
            return loss

        return (*args, closure), kwargs


def test_lbfgs_has_its_closure_from_a_hook(new_run: NewRun, train_here: Train) -> None:
    optimizer = 'optimizer={use="torch.optim:LBFGS", args={max_iter=4}}'
    run_dir = new_run(optimizer, hook("closes", "Closes"), *SHORT, "hooks.schedule.enabled=false", swap=SWAP)
    first, *_, last = calls_of(train_here, run_dir)
    assert last < first


# On every module.


class Everywhere:
    """Halves what goes into batch norm and what comes out of GELU, and sees all."""

    def global_forward_pre(self, name: str | None, module: nn.Module, args: Any) -> Any:
        return everywhere("pre", module, args)

    def global_forward(self, name: str | None, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
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


def globally(parts: Parts, state: RunState) -> Iterator[Any]:
    def fire(what: str) -> Callable[..., Any]:
        return lambda module, *offered: everywhere(what, module, *offered) if state.stage == "train" else None

    yield torch_module.register_module_forward_pre_hook(fire("pre"))
    yield torch_module.register_module_forward_hook(fire("forward"))
    yield torch_module.register_module_full_backward_pre_hook(fire("backward pre"))
    yield torch_module.register_module_full_backward_hook(fire("backward"))


GLOBAL = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks", "_global_backward_hooks")


def test_on_every_module_as_by_hand(
    new_run: NewRun, train_here: Train, plainly: Callable[[RunDir, ByHand], list[Any]]
) -> None:
    """They come before those of a module, whatever order they were registered in, and are gone afterwards."""
    one = hook("one", "instance", "forward_pre", modules=["head"])
    ours, plain, untouched = (
        new_run(hook("all", "Everywhere"), one, *SHORT, swap=SWAP),
        *(new_run(*more, *SHORT, swap=SWAP) for more in ([one], [])),
    )
    seen = calls_of(train_here, ours)
    assert seen == plainly(plain, globally)
    assert seen[seen.index("forward_pre of one") - 1] == ("pre", "Linear")
    assert train_here(untouched) == 0
    assert_same_weights(ours, plain, but=untouched)
    assert not any(getattr(torch_module, hooks) for hooks in GLOBAL)


def raises(module: nn.Module) -> None:
    raise RuntimeError("as told")


def test_global_ones_are_gone_after_an_error(new_run: NewRun, train_here: Train) -> None:
    run_dir = new_run(hook("bad", "raises", "global_full_backward"), hook("all", "Everywhere"), *SHORT, swap=SWAP)
    assert train_here(run_dir) == 1
    assert [(r["hook"], r["point"]) for r in records(run_dir, "error")] == [("bad", "global_full_backward")]
    assert not any(getattr(torch_module, hooks) for hooks in GLOBAL)


def names(name: str | None) -> None:
    CALLS.append(name)


def with_outsider(run: Any, batch: Any) -> dict[str, torch.Tensor]:
    return {"loss": nn.MSELoss()(run.model(batch[0]), torch.zeros(len(batch[0]), 3))}


def test_they_are_told_the_name_in_the_network(new_run: NewRun, train_here: Train) -> None:
    off = [f"hooks.{name}.enabled=false" for name in ("accuracy", "early_stop", "checkpoint")]
    task = [f'task.use="{__name__}:with_outsider"', "data={train={use='./toy.py:Points'}}"]
    run_dir = new_run(hook("names", "names", "global_forward"), *off, *task, "run.max_iters=1", swap=SWAP)
    assert calls_of(train_here, run_dir) == ["body.0", "body.1", "body.2", "body.3", "body", "head", "", None]


# Around the state of a module.


class States:
    """Keeps the head's weight doubled, by another name, wherever its state is."""

    modules = ("head",)

    def state_dict_pre(self, name: str, prefix: str, keep_vars: bool) -> None:
        CALLS.append(("pre", name, prefix, keep_vars))

    def state_dict_post(self, module: nn.Module, state_dict: Any, prefix: str, local_metadata: Any) -> None:
        doubled(module, state_dict, prefix, local_metadata)

    def load_state_dict_pre(self, module: nn.Module, state_dict: Any, prefix: str, strict: bool) -> None:
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


def around_states(parts: Parts, state: RunState) -> Iterator[Any]:
    head = parts.model.head
    yield head.register_state_dict_pre_hook(lambda module, prefix, keep: CALLS.append(("pre", "head", prefix, keep)))
    yield head.register_state_dict_post_hook(lambda *offered: doubled(*offered))
    yield head.register_load_state_dict_pre_hook(halved)
    yield head.register_load_state_dict_post_hook(lambda m, keys: CALLS.append(("loaded", "Linear", keys.missing_keys)))


def test_around_states_as_by_hand(
    new_run: NewRun,
    train_here: Train,
    plainly: Callable[[RunDir, ByHand], list[Any]],
    left: list[Parts],
    tmp_path: Path,
) -> None:
    """Also where a run is resumed: what is loaded is what was saved, as the hooks have made it."""
    plain_net = "hooks.ema.enabled=false"  # which has a copy of the network of its own
    often = "hooks.checkpoint.points=[{at='after_train_iter',every=1}]"
    ours, plain = (new_run(*more, plain_net, often, *SHORT, swap=SWAP) for more in ([hook("all", "States")], []))
    seen = calls_of(train_here, ours)
    assert seen == plainly(plain, around_states)
    assert "head.doubled" in weights(ours)
    assert_same_weights(ours, plain)
    broken = new_run(hook("all", "States"), plain_net, interrupted(tmp_path, 1), often, *SHORT, swap=SWAP)
    assert train_here(broken) == 143
    CALLS.clear()
    assert train_here(broken, resume=True) == 0
    assert_same_weights(ours, broken)
    assert ("load", "head.") in CALLS and ("loaded", "Linear", []) in CALLS
    head = left[0].model.head
    hooks = [head._state_dict_pre_hooks, head._state_dict_hooks]
    hooks += [head._load_state_dict_pre_hooks, head._load_state_dict_post_hooks]
    assert not any(hooks)
