"""The state at the start of an iteration: buffers are copied as they are, whatever they are."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hookflow.runner.state.iteration_start import BufferCopies
from tests.runner.same import assert_same


def network() -> nn.Module:
    """Return one with a buffer under two names, one that is none at the moment,
    and one of no memory of its own.
    """
    norm = nn.BatchNorm1d(3)
    made = nn.Sequential(
        norm,
        nn.Linear(3, 3),
        nn.BatchNorm1d(3, track_running_stats=False),
        nn.ModuleDict({"a": norm}),
    )
    made.register_buffer("stretched", torch.ones(1).expand(4))
    made.register_buffer("empty", None)
    return made


def trains(model: nn.Module) -> None:
    model[0](torch.randn(8, 3))  # type: ignore[index]


def resizes(model: nn.Module) -> None:
    model[0].running_mean.resize_(5).fill_(7.0)  # type: ignore[index]


def replaces(model: nn.Module) -> None:
    model[0].running_var = torch.full((3,), 9.0)  # type: ignore[index]


def fills(model: nn.Module) -> None:
    model.empty = torch.arange(2)


def makes_sparse(model: nn.Module) -> None:
    model.empty = torch.eye(2).to_sparse()


def empties(model: nn.Module) -> None:
    model[0].running_mean = None  # type: ignore[index]


def nothing(model: nn.Module) -> None:
    pass


@pytest.mark.parametrize(
    "changes", [nothing, trains, resizes, replaces, fills, makes_sparse, empties]
)
def test_the_copies_are_what_the_buffers_were(changes: Callable[[nn.Module], None]) -> None:
    torch.manual_seed(0)
    model = network()
    copies = BufferCopies(model)
    copies.begin()
    for change in (
        nothing,
        changes,
        trains if changes is not resizes and changes is not empties else nothing,
        nothing,
    ):
        change(model)
        buffers = model.named_buffers(remove_duplicate=False)
        right: dict[str, Tensor] = {name: buffer.detach().clone() for name, buffer in buffers}
        copies.copy()
        recorded = copies.by_name()
        assert recorded.keys() == right.keys()
        for name, buffer in right.items():
            assert_same(recorded[name].to_dense(), buffer.to_dense())
        with torch.no_grad():
            for _, buffer in model.named_buffers():
                if not buffer.is_sparse and buffer.stride() != (0,):
                    buffer += 1  # what is recorded stays
        for name, buffer in right.items():
            assert_same(recorded[name].to_dense(), buffer.to_dense())


def test_an_iteration_of_the_same_buffers_takes_no_new_memory() -> None:
    model = network()
    copies = BufferCopies(model)
    copies.begin()
    copies.copy()
    before = {name: copy.data_ptr() for name, copy in copies.by_name().items()}
    trains(model)
    copies.copy()
    assert {name: copy.data_ptr() for name, copy in copies.by_name().items()} == before
