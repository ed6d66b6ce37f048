"""What ranks agree on at safe points, by real processes: nobody acts alone,
nobody acts twice, nobody hangs.
"""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from hookflow.runner.distributed import consensus
from hookflow.runner.distributed.consensus import (
    END_EPOCH,
    REPORT_SAVE,
    RUN_COMMANDS,
    SAVE,
    STOP,
    ProcessGroupConsensus,
    compute_iterations_between,
)
from hookflow.runner.distributed.rendezvous import RankLayout
from tests.support.limits import LIMIT
from tests.support.processes import context

POINTS = 10
WORLD = 3

Arrivals = dict[int, int]
"""What comes for a rank at which safe point."""

NOTHING = Arrivals()
WALKS: dict[str, tuple[int, list[Arrivals], set[int], Arrivals]] = {
    "all at once: an iteration later": (1, [{2: STOP}, {2: STOP}, {2: STOP}], set(), {3: STOP}),
    "one: an iteration later": (1, [NOTHING, {2: STOP}, NOTHING], set(), {3: STOP}),
    "one, where all wait: there": (1, [NOTHING, {2: STOP}, NOTHING], {2}, {2: STOP}),
    "in flight when all wait: there": (1, [{3: SAVE}, {2: STOP}, NOTHING], {3}, {3: SAVE | STOP}),
    "before and behind where all wait": (
        1,
        [{2: SAVE}, {4: REPORT_SAVE}, NOTHING],
        {3},
        {3: SAVE, 5: REPORT_SAVE},
    ),
    "together, once": (1, [{2: SAVE}, {3: SAVE}, NOTHING], set(), {3: SAVE}),
    "what rank 0 alone knows": (
        1,
        [{0: RUN_COMMANDS, 1: RUN_COMMANDS, 3: REPORT_SAVE}, NOTHING, NOTHING],
        set(),
        {1: RUN_COMMANDS, 4: REPORT_SAVE},
    ),
    "twice, when it is new": (
        1,
        [{1: END_EPOCH}, {5: END_EPOCH}, NOTHING],
        {5},
        {2: END_EPOCH, 5: END_EPOCH},
    ),
    "each third: when one is due": (3, [NOTHING, {2: STOP}, NOTHING], set(), {5: STOP}),
    "each third: while one is in flight": (
        3,
        [{4: SAVE}, {5: STOP}, NOTHING],
        set(),
        {5: SAVE, 9: STOP},
    ),
    "each third, where all wait: there": (3, [NOTHING, {3: STOP}, NOTHING], {3}, {3: STOP}),
}
"""By what it shows: iterations between exchanges, what comes where, where all wait,
and what is to happen where.
"""


def _all_walks(rank: int, folder: Path) -> None:
    """Walk over safe points as one rank, once for each of WALKS,
    and write down what was agreed on.
    """
    init = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init, timedelta(seconds=LIMIT), world_size=WORLD, rank=rank)
    reported: dict[str, Any] = {}
    for name, (every, arrivals, waits, _) in WALKS.items():
        consensus.compute_iterations_between = lambda iteration, exchange, every=every: every  # type: ignore[misc]
        reported[name] = _walk(rank, arrivals[rank], waits)
    reported["evaluation"] = _evaluate(rank)
    (folder / f"rank{rank}").write_text(json.dumps(reported))
    dist.destroy_process_group()


def _walk(rank: int, arrivals: Arrivals, waits: set[int]) -> tuple[Any, ...]:
    agreed = ProcessGroupConsensus(RankLayout(rank, WORLD, rank), timeout=LIMIT)
    wishes, reported, clock, calls = 0, [], [agreed.seconds()], []
    for point in range(POINTS):
        wishes |= arrivals.get(point, 0)
        heard = agreed.settle(wishes) if point in waits else agreed.step(point, wishes)
        wishes &= ~heard
        reported.append(heard)
        clock.append(agreed.seconds())
        calls.append(agreed.next_iteration)
    shared = (
        agreed.all_gather_object(rank),
        agreed.broadcast_object(rank),
        agreed.any_rank(rank == 1),
    )
    return reported, (*shared, agreed.any_rank(False)), clock, calls


def _evaluate(rank: int) -> list[int]:
    """Evaluate a few batches between two iterations; rank 1 is asked for one thing before,
    and for another in it.
    """
    consensus.compute_iterations_between = lambda iteration, exchange: 1  # type: ignore[misc]
    agreed = ProcessGroupConsensus(RankLayout(rank, WORLD, rank), timeout=LIMIT)
    reported = [agreed.step(7, SAVE if rank == 1 else 0)]
    with agreed.evaluation():
        reported += [
            agreed.step(batch, STOP if (rank, batch) == (1, 1) else 0) for batch in range(4)
        ]
    return [*reported, agreed.settle(0), agreed.step(8, 0), agreed.step(9, 0)]


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each rank has told of all walks, by real processes."""
    folder = tmp_path_factory.mktemp("walks")
    ranks = [
        context.Process(target=_all_walks, args=(rank, folder), daemon=True)
        for rank in range(WORLD)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(LIMIT)
    return [json.loads((folder / f"rank{rank}").read_text()) for rank in range(WORLD)]


@pytest.mark.parametrize("name", WALKS)
def test_what_happens_where(walks: list[dict[str, Any]], name: str) -> None:
    one, *others = (walk[name] for walk in walks)
    assert others == [one, one], (
        "the same on all ranks: what happens where, the clock, and where they call next"
    )
    reported, shared, clock, calls = one
    assert reported == [WALKS[name][3].get(point, 0) for point in range(POINTS)]
    assert shared == [[0, 1, 2], 0, True, False]
    assert clock == sorted(clock)
    assert clock[0] == 0
    if name.startswith("each third: when"):
        assert calls == [1, 2, 4, 4, 5, 6, 8, 8, 9, 11], "nothing is to be done at those in between"


def test_what_is_in_flight_waits_until_an_evaluation_is_over(walks: list[dict[str, Any]]) -> None:
    assert [walk["evaluation"] for walk in walks] == [[0, 0, 0, STOP, 0, SAVE, 0, 0]] * WORLD


@pytest.mark.parametrize(
    ("iteration", "exchange", "every"),
    [
        (1_000, 100, 50),  # 100 us of 50 ms
        (10_000, 1_000, 9),  # 2 per mille would be each 50: half a second
        (1_000_000, 300, 1),
        (1, 1_000_000, 99_999),
        (1_000, 0, 1),
    ],
)
def test_exchanges_are_rare_but_prompt(iteration: int, exchange: int, every: int) -> None:
    assert compute_iterations_between(iteration, exchange) == every
