"""Several optimizers on one model, each with the parameters that its globs pick; and what bounds their gradients."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from hookflow.errors import UserError
from tests.conftest import NewRun, Trained, reason
from tests.runner.same import assert_same, final_state
from tests.toy import Net, Points

OFF = [f"hooks.{name}.enabled=false" for name in ("schedule", "ema", "throughput", "early_stop")]
ONE = '[optimizer]\nuse = "torch.optim:SGD"\nargs = { lr = 0.1, momentum = 0.9 }\n'
MUON = '[optimizer.muon]\nuse = "torch.optim:Muon"\nargs = {{ lr = 0.02 }}\n{}\n'
ADAMW = '[optimizer.adamw]\nuse = "torch.optim:AdamW"\nargs = {{ lr = 0.01 }}\n{}\n'
MATRICES = 'parameters = ["body.0.weight"]'
NET = f'model.use="{__file__}:Fixed"'


class Fixed(Net):
    """A net that draws nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.body[3] = nn.Identity()
        for k, parameter in enumerate(self.parameters()):
            values = torch.sin(torch.arange(parameter.numel(), dtype=torch.float32) + k)
            parameter.data = 0.5 * values.reshape(parameter.shape)


def by_hand(optimizers: Callable[[nn.Module], list[torch.optim.Optimizer]], clip: Callable[[nn.Module], object]) -> Net:
    net, data = Fixed(), Points(0, torch.device("cpu"))
    several = optimizers(net)
    for epoch in range(2):
        for inputs, target in data.epoch(epoch):
            net.zero_grad()
            cross_entropy(net(inputs), target).backward()
            clip(net)
            for optimizer in several:
                optimizer.step()
    return net


def muon_and_adamw(net: nn.Module) -> list[torch.optim.Optimizer]:
    parameters = dict(net.named_parameters())
    matrix = parameters.pop("body.0.weight")
    return [torch.optim.Muon([matrix], lr=0.02), torch.optim.AdamW([*parameters.values()], lr=0.01)]


def sgd(net: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)]


def test_two_optimizers_share_a_model_as_in_pytorch(trained: Trained) -> None:
    swap = (ONE, MUON.format(MATRICES) + ADAMW.format(""))
    run_dir = trained(NET, "run.max_epochs=2", "hooks.clip.enabled=false", *OFF, swap=swap)
    assert_same(final_state(run_dir)["model"], by_hand(muon_and_adamw, lambda net: None).state_dict())


def test_they_resume_to_the_bit(resumes_alike: NewRun) -> None:
    swap = (ONE, MUON.format(MATRICES) + ADAMW.format(""))
    resumes_alike(NET, "hooks.schedule.enabled=false", point="after_train_iter", at=7, swap=swap)


@pytest.mark.parametrize(
    ("muon", "adamw", "message"),
    [
        (MATRICES, 'parameters = ["head.*"]', "no optimizer trains body."),
        (MATRICES, 'parameters = ["*"]', r"\[optimizer.muon\] and \[optimizer.adamw\] both train body.0.weight"),
        ('parameters = ["bodi.*"]', "", '"bodi.\\*" matches no parameter that trains'),
        ('parameters = ["type:Conv2d"]', "", '"type:Conv2d" matches no parameter that trains'),
    ],
)
def test_each_parameter_has_one_optimizer(trained: Trained, muon: str, adamw: str, message: str) -> None:
    printed = reason(trained(NET, swap=(ONE, MUON.format(muon) + ADAMW.format(adamw)), code=2))
    assert re.search(message, printed), printed


@pytest.mark.parametrize(
    ("args", "clip"),
    [
        ("{clip_value=0.01}", lambda net: clip_grad_value_(net.parameters(), 0.01)),
        ("{max_norm=0.1, norm_type=1.0}", lambda net: clip_grad_norm_(net.parameters(), 0.1, 1.0)),
        ("{max_norm=0.05, norm_type=inf}", lambda net: clip_grad_norm_(net.parameters(), 0.05, float("inf"))),
    ],
)
def test_gradients_are_bounded_as_by_pytorch(trained: Trained, args: str, clip: Callable[[nn.Module], object]) -> None:
    run_dir = trained(NET, "run.max_epochs=2", f"hooks.clip.args={args}", *OFF)
    assert_same(final_state(run_dir)["model"], by_hand(sgd, clip).state_dict())


def test_a_bound_is_of_the_norm_or_of_each_element(trained: Trained) -> None:
    with pytest.raises(UserError, match="grad_clip needs max_norm or clip_value, and not both"):
        trained("hooks.clip.args={}")
    with pytest.raises(UserError, match="norm_type belongs to max_norm"):
        trained("hooks.clip.args={clip_value=1.0, norm_type=1.0}")
