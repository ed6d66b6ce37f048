"""The failure report of a run over several ranks: the first of them that failed says why, for all.

When one rank raises, the others raise too, a moment later: what they wait for together does not come about any more.
That says nothing to the user, who is to read of the first failure, in every log and from every rank.
"""

from __future__ import annotations

import json
import re
import time

from hookflow.runner.distributed import rendezvous
from hookflow.runner.distributed.ranks import Ranks
from hookflow.runner.distributed.timeout import is_timeout
from hookflow.runner.signals import Stop

KEY = "failed"

PATIENCE = 1.0
"""Seconds that a rank which has lost another waits for that one's own word; it is killed if it says none."""

PERIOD = 0.05
"""Seconds between looks for it."""


def is_peer_lost(error: BaseException) -> bool:
    """Say whether `error` means no more than that another rank, or the launcher, has gone.

    One that has not come in time has not gone; that is told as a failure, of the rank that has waited.
    """
    from torch.distributed import DistError

    if is_timeout(error):
        return False
    network = ("gloo/transport", "Connection closed by peer", "Connection reset by peer", "Broken pipe")
    return isinstance(error, DistError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in network)
    )


def explain_loss(error: BaseException) -> str:
    """Return what an error that `is_peer_lost` says of the connection, without the place in the library."""
    said = re.sub(r"^\[\S+:\d+\] ", "", str(error).partition(". This is typically")[0])
    return f"another rank is gone: {said}"


def agree_on_failure(ranks: Ranks, mine: Stop, *, lost: bool) -> Stop:
    """Return how the run ends on every rank, where it has ended on this one by `mine`: as on the first that failed.

    That is `mine` itself when this rank has been interrupted and nobody has failed, and when it has only `lost`
    another one that has given no reason.
    """
    store = rendezvous.joined()
    if store is None:
        return mine  # what each says of itself is compared by their agent
    named = mine.reason if mine.exit == 2 else f"rank {ranks.rank}: {mine.reason}"  # all make the same mistake
    claim = json.dumps([named, mine.status, mine.exit])
    try:
        if mine.status == "failed" and not lost:
            return _stop(store.compare_set(KEY, "", claim))
        until = time.monotonic() + PATIENCE
        while lost and not store.check([KEY]) and time.monotonic() < until:
            time.sleep(PERIOD)  # to wait for a key is answered with a warning when it does not come
        return _stop(store.get(KEY)) if store.check([KEY]) else mine
    except RuntimeError:  # nobody has said anything, or the launcher is gone
        return _stop(claim.encode()) if mine.status == "failed" and not lost else mine


def _stop(claim: bytes) -> Stop:
    reason, status, code = json.loads(claim)
    return Stop(reason, status, code, save=False)
