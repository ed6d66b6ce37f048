"""By whom an exception was raised: by hookflow, by a signal, or by code of the user's that was only looked at."""

from __future__ import annotations

import dis
from pathlib import Path
from types import TracebackType

OURS = Path(__file__).parents[1]
RAISE = dis.opmap["RAISE_VARARGS"]


def is_ours(error: BaseException) -> bool:
    """Say whether it was raised in a file of hookflow."""
    return Path(_origin(error).tb_frame.f_code.co_filename).is_relative_to(OURS)


def is_ctrl_c(error: BaseException) -> bool:
    """Say whether a signal raised it, which no `raise` of the user's code has.

    Python raises KeyboardInterrupt between two instructions, and handlers of signals in hookflow have a `raise`.
    """
    if not isinstance(error, KeyboardInterrupt):
        return False
    origin = _origin(error)
    return origin.tb_frame.f_code.co_code[origin.tb_lasti] != RAISE or is_ours(error)


def _origin(error: BaseException) -> TracebackType:
    """Return the place where a caught exception was raised."""
    place = error.__traceback__
    assert place is not None
    while place.tb_next is not None:
        place = place.tb_next
    return place
