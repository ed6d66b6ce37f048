"""The whitening hook: what it sets, when it does not, and what it says to a model without the layer."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookflow.errors import UserError
from hookflow.zoo.airbench import AirNet
from hookflow.zoo.hooks import Whiten


@pytest.fixture
def images():
    """Smooth images: neighbouring pixels and channels are alike, as in a photograph."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(300, 3, 12, 12, generator=generator)
    return functional.avg_pool2d(noise, 3, stride=1) * 3 + noise[:, :1, 1:-1, 1:-1]


def run(model, images, done=0):
    return SimpleNamespace(model=model, iter=done, data={"train": SimpleNamespace(sample=lambda count: images)})


def test_the_layers_outputs_are_decorrelated_and_of_one_size(images):
    net = AirNet((8, 16, 16))
    Whiten().before_train(run(net, images))
    out = functional.conv2d(images, net.whiten.weight).permute(1, 0, 2, 3).flatten(1)[:12]
    covariance = out @ out.T / out.shape[1]
    assert torch.allclose(covariance - covariance.diag().diag(), torch.zeros(12, 12), atol=1e-3)
    assert ((covariance.diag() > 0.9) & (covariance.diag() < 1.001)).all()


def test_each_filter_has_its_negative(images):
    net = AirNet((8, 16, 16))
    Whiten().before_train(run(net, images))
    assert torch.equal(net.whiten.weight[:12], -net.whiten.weight[12:])


def test_a_resumed_run_keeps_its_weights(images):
    net = AirNet((8, 16, 16))
    before = net.whiten.weight.clone()
    Whiten().before_train(run(net, images, done=1))
    assert torch.equal(net.whiten.weight, before)


def test_a_model_without_the_layer_is_the_users_mistake(images):
    with pytest.raises(UserError, match="a convolution named whiten; Linear has none"):
        Whiten().before_train(run(nn.Linear(2, 2), images))


def test_the_hook_is_read_without_torch():
    code = "import sys, hookflow.zoo.hooks; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
