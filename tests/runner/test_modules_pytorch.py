"""Hooks inside the network against PyTorch, call by call: the same functions as hooks of a pipeline, and by hand."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tests import pytorch_hooks
from tests.conftest import TOY, NewRun, Train

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing when gradients are computed:UserWarning")

PIPELINE = """
run = { name = "modules", default_hooks = false, max_epochs = 2, threads = 1, device = "cpu" }
model = { use = "tests.pytorch_hooks:Net", args = { fails = FAILS, kind = "KIND" } }
task.use = "tests.pytorch_hooks:step"
optimizer = { use = "torch.optim:SGD", args = { lr = 0.5 } }
data.train.use = "tests.pytorch_hooks:Batches"
"""


class Declared(NamedTuple):
    """A hook: a function of `tests.pytorch_hooks`, where it is registered, and how."""

    function: str
    point: str
    modules: tuple[str, ...]
    prepend: bool = False
    always_call: bool = False

    def table(self, name: str) -> str:
        keys = "prepend = true\n" * self.prepend + "always_call = true\n" * self.always_call
        where = f'points = ["{self.point}"]\nmodules = {list(self.modules)}\n{keys}'
        return f'[hooks.{name}]\nuse = "tests.pytorch_hooks:{self.function}"\n{where}'

    def register(self, net: nn.Module) -> None:
        function = getattr(pytorch_hooks, self.function)
        more: dict[str, Any] = {"prepend": self.prepend}
        more |= {"with_kwargs": True} if self.function.endswith("_kwargs") else {}
        more |= {"always_call": True} if self.always_call else {}
        for name in self.modules:
            getattr(net.get_submodule(name), f"register_{self.point}_hook")(function, **more)


Seen = tuple[list[Any], dict[str, torch.Tensor]]
Same = Callable[..., int]


def by_hand(hooks: list[Declared], fails: int, kind: str) -> Seen:
    """Train with the hooks registered in this order; of those that are prepended, the last comes first then."""
    pytorch_hooks.NOTES.clear()
    net = pytorch_hooks.Net(fails, kind)
    for hook in hooks:
        if not hook.prepend:
            hook.register(net)
    for hook in reversed(hooks):
        if hook.prepend:
            hook.register(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    try:
        for inputs, target in [*pytorch_hooks.Batches().epoch(0)] * 2:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(inputs), target).backward()
            optimizer.step()
    except (ValueError, KeyboardInterrupt):
        pass
    return [*pytorch_hooks.NOTES], net.state_dict()


@pytest.fixture
def same(new_run: NewRun, train_here: Train) -> Same:
    """Assert that hooks of a pipeline make the same calls and weights as by hand; return the exit code of the run."""

    def run(hooks: list[Declared], fails: int = 0, kind: str = "ValueError") -> int:
        text = PIPELINE.replace("FAILS", str(fails)).replace("KIND", kind)
        run_dir = new_run(swap=(TOY.read_text(), text + "".join(h.table(f"hook{k}") for k, h in enumerate(hooks))))
        pytorch_hooks.NOTES.clear()
        code = train_here(run_dir)
        ours, weights = [*pytorch_hooks.NOTES], pytorch_hooks.NETS[-1].state_dict()
        theirs, expected = by_hand(hooks, fails, kind)
        assert ours == theirs
        assert ours, "something was called"
        assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
        return code

    return run


LAYERS = ("block.0", "block.1", "scaled", "head")
EVERYTHING = [
    Declared("forward_pre", "forward_pre", ("", *LAYERS)),
    Declared("forward_pre_replaces", "forward_pre", ("block.1", "head")),
    Declared("forward_pre_kwargs", "forward_pre", ("scaled", "block.1")),
    Declared("forward", "forward", ("", *LAYERS)),
    Declared("forward_replaces", "forward", ("scaled", "block.1")),
    Declared("forward_kwargs", "forward", ("scaled", "head")),
    Declared("full_backward_pre", "full_backward_pre", ("block.1", "head")),
    Declared("full_backward", "full_backward", LAYERS),
    Declared("full_backward_replaces", "full_backward", ("scaled", "block.0")),
]


def test_every_kind_is_called_and_replaces_as_by_hand(same: Same) -> None:
    assert same(EVERYTHING) == 0


def test_arguments_of_any_names_are_given_by_position_as_by_hand(same: Same) -> None:
    terse = ("forward", "forward_pre", "full_backward")
    hooks = [Declared(f"terse_{name}", name.removesuffix("_kwargs"), ("scaled", "block.1")) for name in terse]
    assert same([*hooks, *EVERYTHING]) == 0


@pytest.mark.parametrize("seed", range(4))
def test_any_order_with_some_prepended_is_as_by_hand(seed: int, same: Same) -> None:
    draw = random.Random(seed)
    hooks = [
        hook._replace(modules=tuple(draw.sample(hook.modules, 1 + draw.randrange(len(hook.modules)))))
        for hook in draw.sample(EVERYTHING, 7)
    ]
    assert same([hook._replace(prepend=draw.random() < 0.4) for hook in hooks]) == 0


ALWAYS = [
    Declared("forward", "forward", ("block.0", "head")),
    Declared("forward_replaces", "forward", ("", "head"), always_call=True),
    Declared("forward_kwargs", "forward", ("", "block.1", "scaled"), always_call=True),
    Declared("forward", "forward", ("",), prepend=True, always_call=True),
]


@pytest.mark.parametrize(("kind", "code"), [("ValueError", 1), ("KeyboardInterrupt", 130)])
def test_always_call_is_called_after_an_exception_as_by_hand(kind: str, code: int, same: Same) -> None:
    # without an output forward_replaces raises, which PyTorch turns into a warning
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert same(ALWAYS, fails=2, kind=kind) == code
    silenced = [str(each.message) for each in warned if "always_call=True" in str(each.message)]
    assert len(silenced) == (2 if kind == "ValueError" else 0)
    without = [note for note in pytorch_hooks.NOTES if note[-1] is None]
    assert bool(without) == (kind == "ValueError")


def test_a_hook_that_raises_ends_the_call_as_by_hand(same: Same) -> None:
    hooks = [
        Declared("forward", "forward", ("head",)),
        Declared("raises_late", "forward", ("head",)),
        Declared("forward_replaces", "forward", ("head",)),
        Declared("forward_kwargs", "forward", ("head", ""), always_call=True),
    ]
    assert same(hooks) == 1
