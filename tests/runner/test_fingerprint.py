"""Fingerprints: two that are equal mean equal values, and whatever a hook may hold has some."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hookflow.runner.observe.tensors import Fingerprints, Leaves


class Holds:
    def __init__(self, value: Any) -> None:
        self.value = value


def prints(thing: Any) -> Leaves:
    return dict(Fingerprints().of(thing))


def optimizer(momentum: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1, momentum=momentum)


PAIRS: dict[str, tuple[Any, Any]] = {
    "number": (1, 1.0),
    "bool": (True, 1),
    "string": ("a", "b"),
    "none": (None, 0),
    "path": (Path("a"), Path("b")),
    "tensor": (torch.zeros(3), torch.tensor([0.0, 0.0, -0.0])),
    "shape": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "dtype": (torch.zeros(2, dtype=torch.int32), torch.zeros(2)),
    "half": (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
    "sparse": (torch.eye(2).to_sparse(), torch.zeros(2, 2).to_sparse()),
    "array": (np.arange(3), np.arange(3)[::-1]),
    "list": ([1, 2], [2, 1]),
    "nested": ([{"a": torch.ones(1)}], [{"a": torch.zeros(1)}]),
    "dict": ({"a": 1}, {"b": 1}),
    "ordered": (OrderedDict(a=1), OrderedDict(a=2)),
    "deque": (deque([1], 3), deque([2], 3)),
    "set": ({1, 2}, {1, 3}),
    "object": (Holds(1), Holds(2)),
    "module": (nn.Linear(2, 2), nn.Linear(2, 2)),
    "optimizer": (optimizer(0.5), optimizer(0.6)),
    "random": (random.Random(1), random.Random(2)),
    "numpy generator": (np.random.default_rng(1), np.random.default_rng(2)),
    "torch generator": (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_has_another_fingerprint_and_a_copy_has_the_same(name: str) -> None:
    one, other = PAIRS[name]
    assert prints(Holds(one)) != prints(Holds(other))
    same = one if isinstance(one, torch.Generator) else deepcopy(one)
    assert prints(Holds(one)) == prints(Holds(same)) != {}


def test_an_object_that_holds_itself_ends_and_what_is_known_is_left_out() -> None:
    model, holder = nn.Linear(2, 2), Holds(None)
    holder.value = [holder, model, 3]
    assert {("value", "1", "weight"), ("value", "1", "bias"), ("value", "2")} < prints(holder).keys()
    assert dict(Fingerprints([model]).of(holder)).keys() == {("value", "2")}


def test_functions_and_threads_have_none() -> None:
    assert not prints(Holds(print)) | prints(Holds(lambda: 1))
