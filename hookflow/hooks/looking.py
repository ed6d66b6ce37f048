"""Looking at a class or function of the user's, which may raise anything at that: a metaclass may, or a descriptor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hookflow.errors import Problem, UserError, Where
from hookflow.user_code import explained, is_ctrl_c, is_ours


@contextmanager
def looking_at(use: str, where: Where | None = None, whose: str = "") -> Iterator[None]:
    """Raise UserError at `where` for what is raised by something that is only looked at; `whose` begins the message.

    What hookflow raises goes through, and so does Ctrl-C.
    """
    try:
        yield
    except BaseException as error:
        if is_ours(error) or is_ctrl_c(error):
            raise
        message, *chain = explained(error)
        raise UserError(Problem(f"{whose}looking at {use} raises {message}", where, "\n    ".join(chain))) from None
