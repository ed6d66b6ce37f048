"""The net's shape, what of it is trained, and how it starts."""

import pytest
import torch

from hookflow.zoo.airbench import AirNet


@pytest.mark.parametrize("side", [32, 24, 16], ids="side={}".format)
def test_any_picture_from_16_pixels_on_gives_logits(side):
    assert AirNet((8, 16, 16), num_classes=7)(torch.randn(2, 3, side, side)).shape == (2, 7)


def test_the_widths_are_the_one_dial_for_size():
    sizes = {widths: sum(p.numel() for p in AirNet(widths).parameters()) for widths in [(64, 256, 256), (8, 16, 16)]}
    assert sizes[64, 256, 256] == pytest.approx(1.97e6, rel=0.01)
    assert sizes[8, 16, 16] < 12_000


def test_whitening_and_scales_are_not_trained_and_all_else_is():
    net = AirNet((8, 16, 16))
    fixed = {name for name, p in net.named_parameters() if not p.requires_grad}
    assert fixed == {"whiten.weight"} | {f"groups.{g}.norm{n}.weight" for g in range(3) for n in (1, 2)}
    net(torch.randn(4, 3, 32, 32)).sum().backward()
    assert all(p.grad is not None for name, p in net.named_parameters() if name not in fixed)


def test_a_convolution_starts_by_passing_its_input_on():
    conv = AirNet((8, 16, 16)).groups[1].conv1
    x = torch.randn(1, 8, 9, 9)
    assert torch.allclose(conv(x)[:, :8], x, atol=1e-6)
    assert not torch.allclose(conv(x)[:, 8:], x, atol=0.1)


def test_weights_stand_channels_last():
    assert AirNet((8, 16, 16)).groups[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
