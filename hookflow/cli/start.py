"""The entry of the command.

`watch` shows a line at once, before anything that takes long is imported.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

FIRST_LINE = "hookflow watch …"
"""The line on the terminal while the command line is imported."""


def main() -> None:
    """Run the command line."""
    if _is_watch_command():
        with _first_line():
            import_module("hookflow.cli.control")
    from hookflow.cli.app import main as run_command_line

    run_command_line()


def _is_watch_command() -> bool:
    """Return whether the command is a `watch` that a user waits for at a terminal."""
    # For a dashboard in a browser the output is a channel to the web server, and no terminal.
    if sys.argv[1:2] != ["watch"] or "TEXTUAL_DRIVER" in os.environ:
        return False
    return (
        sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    )


@contextmanager
def _first_line() -> Iterator[None]:
    """Show a line meanwhile, and remove it.

    The cursor stays at its start, so that what follows is written over it.
    """
    text = FIRST_LINE
    encoding = sys.stderr.encoding or "ascii"
    if not encoding.lower().startswith("utf"):
        text = text.replace("…", "...")
    with suppress(OSError, ValueError):  # ValueError: it is closed
        sys.stderr.write(f"{text}\r")
        sys.stderr.flush()
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.write("\x1b[K")
            sys.stderr.flush()
