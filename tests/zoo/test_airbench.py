"""The net's shape, what of it is trained, how it starts, and the hook that whitens its first layer."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookflow.errors import UserError
from hookflow.zoo.airbench import AirNet
from hookflow.zoo.hooks import Whiten


@pytest.fixture
def net():
    return AirNet((8, 16, 16), num_classes=7)


@pytest.fixture
def images():
    """Smooth images: neighbouring pixels and channels are alike, as in a photograph."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(300, 3, 12, 12, generator=generator)
    return functional.avg_pool2d(noise, 3, stride=1) * 3 + noise[:, :1, 1:-1, 1:-1]


def run(model, images, done=0):
    return SimpleNamespace(model=model, iter=done, data={"train": SimpleNamespace(sample=lambda count: images)})


def test_an_image_from_16_pixels_on_gives_logits_and_the_widths_are_the_one_dial_for_size(net):
    for side in (32, 16):
        assert net(torch.randn(2, 3, side, side)).shape == (2, 7)
    assert net.groups[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert sum(p.numel() for p in AirNet((64, 256, 256)).parameters()) == pytest.approx(1.97e6, rel=0.01)


def test_whitening_and_scales_are_not_trained_and_all_else_is(net):
    fixed = {name for name, p in net.named_parameters() if not p.requires_grad}
    assert fixed == {"whiten.weight"} | {f"groups.{g}.norm{n}.weight" for g in range(3) for n in (1, 2)}
    net(torch.randn(4, 3, 32, 32)).sum().backward()
    assert all(p.grad is not None for name, p in net.named_parameters() if name not in fixed)


def test_a_convolution_starts_by_passing_its_input_on(net):
    conv = net.groups[1].conv1
    x = torch.randn(1, 8, 9, 9)
    assert torch.allclose(conv(x)[:, :8], x, atol=1e-6)
    assert not torch.allclose(conv(x)[:, 8:], x, atol=0.1)


def test_the_whitened_outputs_are_decorrelated_of_one_size_and_each_has_its_negative(net, images):
    Whiten().before_train(run(net, images))
    out = functional.conv2d(images, net.whiten.weight).permute(1, 0, 2, 3).flatten(1)[:12]
    covariance = out @ out.T / out.shape[1]
    assert torch.allclose(covariance - covariance.diag().diag(), torch.zeros(12, 12), atol=1e-3)
    assert ((covariance.diag() > 0.9) & (covariance.diag() < 1.001)).all()
    assert torch.equal(net.whiten.weight[:12], -net.whiten.weight[12:])


def test_a_resumed_run_keeps_its_weights(net, images):
    before = net.whiten.weight.clone()
    Whiten().before_train(run(net, images, done=1))
    assert torch.equal(net.whiten.weight, before)


def test_a_model_without_the_layer_is_the_users_mistake(images):
    with pytest.raises(UserError, match="a convolution named whiten; Linear has none"):
        Whiten().before_train(run(nn.Linear(2, 2), images))
