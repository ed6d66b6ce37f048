"""Errors of a user's class or function while it is only inspected.

They are problems of the pipeline.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from hookflow.errors import Problem, UserError, Where
from hookflow.user_code import describe_error, is_ctrl_c, is_ours


@contextmanager
def report_inspection_errors(
    use: str, where: Where | None = None, owner: str = ""
) -> Iterator[None]:
    """Raise UserError at `where` for what an inspected object raises.

    `owner` begins the message. UserError and KeyboardInterrupt propagate.
    """
    try:
        yield
    except BaseException as error:
        if is_ours(error) or is_ctrl_c(error):
            raise
        message, *chain = describe_error(error)
        raise UserError(
            Problem(f"{owner}looking at {use} raises {message}", where, "\n    ".join(chain))
        ) from None
