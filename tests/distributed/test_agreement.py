"""What ranks agree on at boundaries, by real processes: nobody acts alone, nobody acts twice, nobody hangs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from hookflow.runner.agreement import END_EPOCH, OBEY, SAVE, STOP, TELL, Agreement, agreement_of
from hookflow.runner.ranks import Ranks

BOUNDARIES = 8
NOBODY = dict[int, int]()


def _walk(rank: int, folder: Path, arrivals: list[dict[int, int]], waits: set[int]) -> None:
    """Walk over the boundaries as one rank; `arrivals` says by rank what comes at which boundary."""
    world = len(arrivals)
    init = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init, timedelta(seconds=60), world_size=world, rank=rank)
    agreement = agreement_of(Ranks(rank, world, rank), timeout=60)
    wants, told, clock = 0, [], [agreement.seconds()]
    for boundary in range(BOUNDARIES):
        wants |= arrivals[rank].get(boundary, 0)
        agreed = agreement.settle(wants, wait=boundary in waits)
        wants &= ~agreed
        told.append(agreed)
        clock.append(agreement.seconds())
    gathered = agreement.gather(rank)
    (folder / f"rank{rank}").write_text(
        f"{told} {gathered} {agreement.first(rank)} {agreement.any(rank == 1)} {agreement.any(False)} {clock}"
    )
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("arrivals", "waits", "expected"),
    [
        pytest.param([{2: STOP}] * 3, set(), {2: STOP}, id="all at once: there"),
        pytest.param([NOBODY, {2: STOP}, NOBODY], set(), {3: STOP}, id="one: at the next"),
        pytest.param([NOBODY, {2: STOP}, NOBODY], {2}, {2: STOP}, id="one, where all wait: there"),
        pytest.param([{2: SAVE}, {3: SAVE}, NOBODY], set(), {3: SAVE}, id="met together, once"),
        pytest.param([{2: SAVE}, {2: SAVE | STOP}, {2: SAVE}], set(), {2: SAVE, 3: STOP}, id="part there, part next"),
        pytest.param([{0: OBEY, 1: OBEY, 3: TELL}, NOBODY], set(), {1: OBEY, 4: TELL}, id="what rank 0 alone knows"),
        pytest.param([{1: END_EPOCH}, {5: END_EPOCH}], {5}, {2: END_EPOCH, 5: END_EPOCH}, id="twice, when it is new"),
    ],
)
def test_what_happens_where(
    tmp_path: Path, arrivals: list[dict[int, int]], waits: set[int], expected: dict[int, int]
) -> None:
    world = len(arrivals)
    mp.spawn(_walk, (tmp_path, arrivals, waits), nprocs=world)  # type: ignore[no-untyped-call]
    told = {(tmp_path / f"rank{rank}").read_text() for rank in range(world)}
    (one,) = told  # the same on all ranks: what happens where, and the clock
    happened = [expected.get(boundary, 0) for boundary in range(BOUNDARIES)]
    assert one.startswith(f"{happened} {list(range(world))} 0 True False [0.0, ")


def test_alone_everything_happens_at_once() -> None:
    agreement = Agreement()
    assert agreement.settle(STOP | SAVE) == STOP | SAVE
    assert (agreement.gather("x"), agreement.first("x"), agreement.any(True)) == (["x"], "x", True)
