"""Hooks around the state of a module: against the same ones by hand, also where a run is resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from hookflow.events.rundir import RunDir
from hookflow.runner.builder.components import Parts
from hookflow.runner.process.state import RunState
from tests.conftest import NewRun, Train, Trained
from tests.runner.by_hand import (
    CALLS,
    SHORT,
    SWAP,
    ByHand,
    assert_same_weights,
    calls_of,
    hook,
    interrupted,
    left,
    plainly,
    weights,
)

__all__ = ["left", "plainly"]


class States:
    """Keeps the head's weight doubled, by another name, wherever its state is."""

    modules = ("head",)

    def state_dict_pre(self, name: str, prefix: str, keep_vars: bool) -> None:
        CALLS.append(("pre", name, prefix, keep_vars))

    def state_dict_post(self, module: nn.Module, state_dict: Any, prefix: str, local_metadata: Any) -> None:
        doubled(module, state_dict, prefix, local_metadata)

    def load_state_dict_pre(self, module: nn.Module, state_dict: Any, prefix: str, strict: bool) -> None:
        halved(module, state_dict, prefix)
        assert strict

    def load_state_dict_post(self, module: nn.Module, incompatible_keys: Any) -> None:
        CALLS.append(("loaded", type(module).__name__, incompatible_keys.missing_keys))


def doubled(module: nn.Module, state_dict: Any, prefix: str, local_metadata: Any) -> None:
    CALLS.append(("post", prefix, "version" in local_metadata))
    state_dict[f"{prefix}doubled"] = state_dict.pop(f"{prefix}weight") * 2


def halved(module: nn.Module, state_dict: Any, prefix: str, *more: Any) -> None:
    CALLS.append(("load", prefix))
    state_dict[f"{prefix}weight"] = state_dict.pop(f"{prefix}doubled") / 2


def around_states(parts: Parts, state: RunState) -> Iterator[Any]:
    head = parts.model.head
    yield head.register_state_dict_pre_hook(lambda module, prefix, keep: CALLS.append(("pre", "head", prefix, keep)))
    yield head.register_state_dict_post_hook(lambda *offered: doubled(*offered))
    yield head.register_load_state_dict_pre_hook(halved)
    yield head.register_load_state_dict_post_hook(lambda m, keys: CALLS.append(("loaded", "Linear", keys.missing_keys)))


def test_around_states_as_by_hand(
    trained: Trained,
    new_run: NewRun,
    train_here: Train,
    plainly: Callable[[RunDir, ByHand], list[Any]],
    left: list[Parts],
    tmp_path: Path,
) -> None:
    """Also where a run is resumed: what is loaded is what was saved, as the hooks have made it."""
    plain_net = "hooks.ema.enabled=false"  # which has a copy of the network of its own
    often = "hooks.checkpoint.points=[{at='after_train_iter',every=1}]"
    ours, plain = (new_run(*more, plain_net, often, *SHORT, swap=SWAP) for more in ([hook("all", States)], []))
    seen = calls_of(train_here, ours)
    assert seen == plainly(plain, around_states)
    assert "head.doubled" in weights(ours)
    assert_same_weights(ours, plain)
    broken = trained(hook("all", States), plain_net, interrupted(tmp_path, 1), often, *SHORT, swap=SWAP, code=143)
    CALLS.clear()
    assert train_here(broken, resume=True) == 0
    assert_same_weights(ours, broken)
    assert ("load", "head.") in CALLS and ("loaded", "Linear", []) in CALLS
    head = left[0].model.head
    hooks = [head._state_dict_pre_hooks, head._state_dict_hooks]
    hooks += [head._load_state_dict_pre_hooks, head._load_state_dict_post_hooks]
    assert not any(hooks)
