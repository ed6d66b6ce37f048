"""What ranks agree on at boundaries, by real processes: nobody acts alone, nobody acts twice, nobody hangs."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from hookflow.runner.distributed.agreement import END_EPOCH, OBEY, SAVE, STOP, TELL, Agreement, agreement_of
from hookflow.runner.distributed.ranks import Ranks

BOUNDARIES = 8
WORLD = 3

Arrivals = dict[int, int]
"""What comes for a rank at which boundary."""

NOTHING = Arrivals()
WALKS: dict[str, tuple[list[Arrivals], set[int], Arrivals]] = {
    "all at once: there": ([{2: STOP}, {2: STOP}, {2: STOP}], set(), {2: STOP}),
    "one: at the next": ([NOTHING, {2: STOP}, NOTHING], set(), {3: STOP}),
    "one, where all wait: there": ([NOTHING, {2: STOP}, NOTHING], {2}, {2: STOP}),
    "met together, once": ([{2: SAVE}, {3: SAVE}, NOTHING], set(), {3: SAVE}),
    "part there, part next": ([{2: SAVE}, {2: SAVE | STOP}, {2: SAVE}], set(), {2: SAVE, 3: STOP}),
    "what rank 0 alone knows": ([{0: OBEY, 1: OBEY, 3: TELL}, NOTHING, NOTHING], set(), {1: OBEY, 4: TELL}),
    "twice, when it is new": ([{1: END_EPOCH}, {5: END_EPOCH}, NOTHING], {5}, {2: END_EPOCH, 5: END_EPOCH}),
}
"""By what it shows: what comes where, at which boundaries all wait, and what is to happen where."""


def _all_walks(rank: int, folder: Path) -> None:
    """Walk over boundaries as one rank, once for each of WALKS, and write down what was agreed on."""
    init = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init, timedelta(seconds=60), world_size=WORLD, rank=rank)
    told = {name: _walk(rank, arrivals, waits) for name, (arrivals, waits, _) in WALKS.items()}
    (folder / f"rank{rank}").write_text(json.dumps(told))
    dist.destroy_process_group()


def _walk(rank: int, arrivals: list[Arrivals], waits: set[int]) -> tuple[Any, ...]:
    agreement = agreement_of(Ranks(rank, WORLD, rank), timeout=60)
    wants, told, clock = 0, [], [agreement.seconds()]
    for boundary in range(BOUNDARIES):
        wants |= arrivals[rank].get(boundary, 0)
        agreed = agreement.settle(wants, wait=boundary in waits)
        wants &= ~agreed
        told.append(agreed)
        clock.append(agreement.seconds())
    shared = agreement.gather(rank), agreement.first(rank), agreement.any(rank == 1), agreement.any(False)
    return told, shared, clock


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each rank has told of all walks, by real processes."""
    folder = tmp_path_factory.mktemp("walks")
    mp.spawn(_all_walks, (folder,), nprocs=WORLD)  # type: ignore[no-untyped-call]
    return [json.loads((folder / f"rank{rank}").read_text()) for rank in range(WORLD)]


@pytest.mark.parametrize("name", WALKS)
def test_what_happens_where(walks: list[dict[str, Any]], name: str) -> None:
    one, *others = (walk[name] for walk in walks)
    assert others == [one, one], "the same on all ranks: what happens where, and the clock"
    told, shared, clock = one
    assert told == [WALKS[name][2].get(boundary, 0) for boundary in range(BOUNDARIES)]
    assert shared == [[0, 1, 2], 0, True, False]
    assert clock == sorted(clock)
    assert clock[0] == 0


def test_alone_everything_happens_at_once() -> None:
    agreement = Agreement()
    assert agreement.settle(STOP | SAVE) == STOP | SAVE
    assert (agreement.gather("x"), agreement.first("x"), agreement.any(True)) == (["x"], "x", True)
