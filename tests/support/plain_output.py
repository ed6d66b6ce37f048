"""Lines of the plain output of a run."""

import io
from collections.abc import Callable
from typing import Any

from hookflow.events.rundir import RunDir
from hookflow.monitor import plain


def plain_lines(run: RunDir, code: int = 0, **options: Any) -> str:
    """Return the lines of a run until its end, which leaves with this code."""
    out = io.StringIO()
    assert plain.print_run(run, out, **options) == code
    return out.getvalue()


def in_turn(*steps: Callable[[], object] | int | None) -> Callable[[], int | None]:
    """Return the exit code of a child at each look, after what comes about before it."""
    left = list(steps)

    def child_exit() -> int | None:
        step = left.pop(0) if len(left) > 1 else left[0]
        return step if step is None or isinstance(step, int) else step()  # type: ignore[return-value]

    return child_exit
