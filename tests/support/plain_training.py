"""Plain PyTorch loops over the toy data, with which runs are compared."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.support.toy import Net, Points


def given_to_the_norm(net: Net, epoch: int, batches: int) -> Tensor:
    """Return the inputs of the toy net's norm in so many batches of an epoch,
    (examples, channels).
    """
    points = Points(0, torch.device("cpu")).epoch(epoch)
    with torch.no_grad():
        return torch.cat([net.body[0](next(points)[0]) for _ in range(batches)])


OFF = [f"hooks.{name}.enabled=false" for name in ("schedule", "ema", "throughput", "early_stop")]
NET = f'model.use="{__file__}:Fixed"'


class Fixed(Net):
    """A net that draws nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.body[3] = nn.Identity()
        for k, parameter in enumerate(self.parameters()):
            values = torch.sin(torch.arange(parameter.numel(), dtype=torch.float32) + k)
            parameter.data = 0.5 * values.reshape(parameter.shape)


def by_hand(
    optimizers: Callable[[nn.Module], list[torch.optim.Optimizer]],
    clip: Callable[[nn.Module], object] = lambda net: None,
    dtype: torch.dtype = torch.float32,
) -> Net:
    """Train for two epochs in plain PyTorch; the loss of a network
    in 16 bits is computed in fp32.
    """
    net, data = Fixed().to(dtype), Points(0, torch.device("cpu"))
    several = optimizers(net)
    for epoch in range(2):
        for inputs, target in data.epoch(epoch):
            net.zero_grad()
            logits = net(inputs.to(dtype))
            cross_entropy(logits.float() if dtype.itemsize == 2 else logits, target).backward()
            clip(net)
            for optimizer in several:
                optimizer.step()
    return net


def sgd(net: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)]
