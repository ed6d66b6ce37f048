"""Copies of the training process that a hook has forked, which must not train on."""

import os
from weakref import WeakSet

from hookflow.runner.process.state import RunState
from hookflow.text import print_error

_training = WeakSet[RunState]()
"""The runs of this process."""

FORK_ERROR = (
    "hookflow: a hook or the task has forked the training process, and its copy went on to train in"
    " the same run directory. The copy ends here. A forked process must end itself by os._exit();"
    " to start one, use subprocess"
)


def _ask_for_a_safe_point() -> None:
    for state in _training:
        state.attention = True


os.register_at_fork(after_in_child=_ask_for_a_safe_point)


def watch_for_forks(state: RunState) -> int:
    """Have a forked copy of this process come to its next safe point at once.

    Returns the id of this process.
    """
    _training.add(state)
    return os.getpid()


def end_if_forked(pid: int) -> None:
    """End this process, at a safe point, where it is a copy of process `pid`."""
    if os.getpid() != pid:
        print_error(FORK_ERROR)
        os._exit(1)
