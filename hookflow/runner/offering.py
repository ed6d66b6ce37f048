"""Where hooks may have a batch replaced or skipped: at `before_train_iter`, and before those of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookflow.runner.distributed.consensus import AnyConsensus
from hookflow.runner.engine import Engine
from hookflow.runner.firing import Firing
from hookflow.runner.requests import SKIPPED, Requests
from hookflow.runner.state import RunState


class Offering:
    """Offers each batch at one point; call it to learn what hooks have made of it."""

    def __init__(
        self, point: str, run: Any, state: RunState, engine: Engine, requests: Requests, consensus: AnyConsensus
    ) -> None:
        self._point = point
        self._run = run
        self._state = state
        self._engine = engine
        self._requests = requests
        self._consensus = consensus
        several = consensus.ranks.world > 1
        self._agreed = several and any("control" in binding.writes for binding in engine.plan.at(point))

    def __call__(self, batch: Any, writers: Sequence[Firing] | None = None) -> Any:
        """Fire the point with a batch, or these firings of it alone; return the batch that comes of it, or SKIPPED."""
        dispatcher, requests = self._engine.dispatcher, self._requests
        requests.offered = offered = [self._run, batch, self._state.batch_idx]
        if writers is None:
            dispatcher.call_all(self._engine.firings(self._point), offered)
        else:
            for firing in writers:
                dispatcher.call_within(firing, offered)
        skips = requests.take_skip_batch()
        if self._agreed:
            skips = self._consensus.any_rank(skips)
        return SKIPPED if skips else offered[1]
