"""Collective time-outs: a rank has waited for the others until `distributed.timeout`; where it is, and where they are.

It has not lost them: they may live, and be stuck in a hook. Each rank shares where it is through a small file.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hookflow.events.log import event_log
from hookflow.events.now import NOWHERE, look
from hookflow.events.rundir import RunDir
from hookflow.runner.distributed.ranks import Ranks

_SAID = re.compile(r"Timed out waiting (\d+)\s*ms")
"""What gloo says; nccl ends the process instead."""


def is_timeout(error: BaseException) -> bool:
    """Say whether `error` means that another rank has not come within `distributed.timeout`."""
    return isinstance(error, RuntimeError) and _SAID.search(str(error)) is not None


def explain_timeout(error: BaseException, run_dir: RunDir, ranks: Ranks, hook: str, point: str) -> str:
    """Return what an error that `is_timeout` means: how long this rank has waited, in which hook, and where others are.

    `hook` and `point` are empty where this rank was in none.
    """
    found = _SAID.search(str(error))
    seconds = int(found[1]) / 1e3 if found else 0.0
    mine = f'in hook "{hook}" at {point}' if hook else _iteration(run_dir, ranks.rank)
    others = [f"rank {rank} is {_place(run_dir, rank)}" for rank in range(ranks.world) if rank != ranks.rank]
    return f"waited {seconds:g} s for the others, {mine}; {', '.join(others)}"


def _place(run_dir: RunDir, rank: int) -> str:
    seen = look(run_dir.now_of(rank))
    if seen is None:  # it is on another machine, or gone
        return _iteration(run_dir, rank)
    if seen[0] == NOWHERE:
        return f"in no hook, {_iteration(run_dir, rank)}"
    binding: dict[str, Any] = json.loads(run_dir.plan.read_text("utf-8"))["bindings"][seen[0]]
    return f'in hook "{binding["hook"]}" at {binding["point"]}'


def _iteration(run_dir: RunDir, rank: int) -> str:
    records = event_log(run_dir.events_of(rank)).read_all()
    return f"at iteration {records[-1].get('it', 0) if records else 0}"
