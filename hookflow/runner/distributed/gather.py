"""From the local state of each rank to the full state of the run, as one checkpoint holds it for all; and back.

The weights are the same on every rank, or sharded: then they are gathered. Hooks fire in lockstep,
so what they remember is taken to be the same, too, unless a look at it says otherwise. Random generators, the place in
the data, gradients that no step has used yet and the latest numbers are each rank's own: those of rank 0 stand where
they would if it had been alone, and those of the others under "ranks".
"""

from __future__ import annotations

import hashlib
import pickle
from functools import cache
from typing import Any

import torch

from hookflow.hooks.tensors import full, is_sharded
from hookflow.runner.checkpoint.nested import mapped
from hookflow.runner.distributed.consensus import AnyConsensus
from hookflow.runner.distributed.ranks import Ranks

OWN = ("random", "data", "task", "gradients", "scalars", "requests", "engine", "module_hooks")
"""The entries of a state of which each rank has one of its own."""

SMALL = 1024
"""Elements of a tensor whose values are compared one by one; of a larger one its fingerprint is."""

PIECE = 2**20
"""Elements that a number of a fingerprint covers."""


def full_state(state: dict[str, Any], consensus: AnyConsensus) -> dict[str, Any]:
    """Return the state of all ranks, out of this one's; the first rank alone gets what the others have of their own.

    All ranks must call it, and each waits for the others.
    """
    first = consensus.ranks.first
    gathered: dict[str, Any] = {key: _gathered(value, first or key == "hooks") for key, value in state.items()}
    looks = consensus.all_gather_object({name: _look(hook) for name, hook in gathered["hooks"].items()})
    alike = {name for name in looks[0] if all(look.get(name) == looks[0][name] for look in looks)}
    mine = {key: gathered[key] for key in OWN}
    mine["hooks"] = {name: hook for name, hook in gathered["hooks"].items() if name not in alike}
    _, *others = consensus.all_gather_object(_on_host(mine))
    gathered["ranks"] = others if first else []
    return gathered


def local_state(state: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Return the state as it was on this rank; on one that there was not, what rank 0 had, and None for "random"."""
    others = state.get("ranks", [])
    if ranks.first:
        return state
    if ranks.rank > len(others):
        return state | {"random": None}
    own: dict[str, Any] = others[ranks.rank - 1]
    return state | own | {"hooks": state["hooks"] | own["hooks"]}


def _gathered(value: Any, kept: bool) -> Any:
    """Return the value with every sharded tensor full, in the host's memory.

    No device need hold more than one full tensor. A rank where they are not `kept` has None in their place.
    """

    def gathered(leaf: Any) -> Any:
        if not is_sharded(leaf):
            return leaf
        everything = full(leaf)
        return everything.cpu() if kept else None

    return mapped(value, gathered)


def _on_host(value: Any) -> Any:
    """Return the value with its tensors in the host's memory.

    Pickled as it is, a tensor would come out on the GPU of the rank that it is from, on every other one.
    """
    return mapped(value, lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf)


def _look(value: Any) -> str:
    """Return what tells two states of a hook apart."""
    return hashlib.sha256(pickle.dumps(_plain(value))).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        values = value.tolist() if value.numel() <= SMALL else _fingerprint(value)
        return "tensor", str(value.dtype), tuple(value.shape), values
    if isinstance(value, dict):
        return [(key, _plain(item)) for key, item in value.items()]
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _fingerprint(tensor: torch.Tensor) -> Any:
    """Return numbers that tensors of different bits all but never share: sums of their words, each times a weight.

    They are computed where the tensor is, so that no rank need fetch an average of all weights from its device.
    """
    words = tensor.detach().contiguous().view(-1).view(torch.int32 if tensor.element_size() % 4 == 0 else torch.uint8)
    weights = _weights(words.device)
    return torch.stack([(weights[: len(piece)] * piece).sum() for piece in torch.split(words, PIECE)]).tolist()


@cache
def _weights(device: torch.device) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (PIECE,), generator=torch.Generator().manual_seed(0)).to(device)
