"""Hooks on parameters: against the same ones by hand, with triggers, names, and mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.errors import UserError
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.runner.builder.components import Parts
from hookflow.runner.process.state import RunState
from tests.conftest import TOY, NewRun, Train, Trained, firings, reason, records, strike
from tests.runner.by_hand import CALLS, SHORT, SWAP, Ran, assert_same_weights, hook, ran, weights

__all__ = ["ran"]


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
    assert len(seen) == 2 * 3 * accumulate * len([name for name in weights(plain) if name.endswith("weight")])
    assert {call[3] for call in seen if call[0] == "halves"} == ({True} if accumulate == 1 else {True, False})
    assert_same_weights(ours, plain, but=ran(*more)[0])
    counts = firings(ours)
    assert counts["halves", "parameter_grad"] == counts["sees", "post_accumulate_grad"] == len(seen) // 3


def says_iter(run: Any, name: str) -> None:
    CALLS.append((run.iter, name))


def test_a_trigger_is_asked_once_an_iteration(new_run: NewRun, train_here: Train, ran: Ran, tmp_path: Path) -> None:
    """Also of a run that is resumed in between, and of gradients that add up over several batches."""
    probe = hook("says", says_iter, "parameter_grad", parameters=["body.*.bias"], every=2)
    length = ("run.max_iters=6", "run.accumulate=2", "hooks.checkpoint.points=[{at='after_train_iter',every=1}]")
    expected = [(it, name) for it in (0, 2, 4) for _ in range(1 if it == 2 else 2) for name in ("body.1", "body.0")]
    _, whole = ran(probe, *length)
    assert whole == [(it, f"{name}.bias") for it, name in expected]
    broken = new_run(probe, strike(tmp_path, 3), *length, swap=SWAP)
    CALLS.clear()
    assert train_here(broken) == 143
    assert train_here(broken, resume=True) == 0
    assert whole == CALLS


class Thaws:
    def before_train(self, run: Any) -> None:
        run.model.head.requires_grad_(False)

    def before_train_iter(self, run: Any) -> None:
        run.model.head.requires_grad_(run.iter > 0)


def frozen_net() -> nn.Module:
    from tests.toy import Net

    net = Net()
    net.body[0].requires_grad_(False)
    return net


def test_on_a_frozen_parameter_they_fire_once_it_trains(ran: Ran) -> None:
    model = f'model.use="{__name__}:frozen_net"'
    says = hook("says", says_iter, "parameter_grad", parameters=["head.bias", "body.0.*"])
    assert ran(model, says, hook("thaws", Thaws), *SHORT)[1] == [(1, "head.bias")]


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


def test_a_shared_parameter_goes_by_the_name_that_matches(ran: Ran) -> None:
    model = f'model.use="{__name__}:Tied"'
    says = hook("says", says_iter, "post_accumulate_grad", parameters=["second.weight"])
    both = hook("both", says_iter, "parameter_grad", parameters=["*t.weight", "second.weight"])
    _, seen = ran(model, says, both, *SHORT)
    assert seen == [(it, name) for it in (0, 1) for name in ("first.weight", "second.weight")]


@pytest.mark.parametrize(
    ("glob", "hint"),
    [("hed.weight", 'did you mean "head.weight"?'), ("layer*", "there are body.0.weight, body.0.bias,")],
)
def test_a_glob_that_picks_no_parameter(trained: Trained, glob: str, hint: str) -> None:
    run_dir = trained(hook("adds", adds, "parameter_grad", parameters=["head.*", glob]), code=2)
    said, told = reason(run_dir).splitlines()
    assert said.startswith("--set hooks.adds=")
    assert said.endswith(f'hook "adds" at parameter_grad: no parameter of the network matches "{glob}"')
    assert told.strip().startswith(hint)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (hook("adds", adds, "parameter_grad"), '"adds" does not say at which parameters parameter_grad fires'),
        (hook("it", says_iter, "after_train_iter", parameters=["*"]), "parameters has no effect"),
        (
            f'hooks.it={{use="{__name__}:says_iter", points=[{{at="forward", modules=["*"], parameters=["*"]}}]}}',
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


@pytest.mark.parametrize(("on_error", "exit_code", "errors"), [("raise", 1, 1), ("disable", 0, 1), ("ignore", 0, 4)])
@pytest.mark.parametrize("point", ["parameter_grad", "optimizer_step_pre"])
def test_one_that_raises(trained: Trained, point: str, on_error: str, exit_code: int, errors: int) -> None:
    picks = {} if point.startswith("optimizer") else {"parameters": ["head.*"]}
    run_dir = trained(hook("bad", fails, point, **picks, on_error=on_error), *SHORT, swap=SWAP, code=exit_code)
    told = [(error["hook"], error["point"], error["action"]) for error in records(run_dir, "error")]
    per_step = point.startswith("optimizer") and on_error == "ignore"
    assert told == [("bad", point, on_error)] * (errors // 2 if per_step else errors)


def fails() -> None:
    raise RuntimeError("as told")
