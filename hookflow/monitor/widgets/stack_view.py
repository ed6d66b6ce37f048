"""The stacks of the training threads on this machine.

The stacks of ranks that hold up the others come first.
"""

import re

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from hookflow.events.now import NO_BINDING
from hookflow.monitor.health import blocking_ranks, describe_training_place
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.style import text_of
from hookflow.text import make_printable
from hookflow.user_code import HOOKFLOW_FOLDER, is_own_file

FRAME_FILE = re.compile(r"\((?P<file>[^()]+):\d+\)$")
"""The file at the end of a frame."""

PACKAGE_FOLDER = re.compile(
    rf"\((?:.*/(?:site|dist)-packages|{re.escape(str(HOOKFLOW_FOLDER.parent))})/"
)
"""The path before the name of a package in a frame: without it, the frame has room on one row."""


def says_stall(store: RunStore) -> bool:
    """Return whether the heading of the stack is the sentence about the stall.

    That of several ranks is about the training, and the heading of each stack about its rank.
    """
    is_stalled = store.health.condition == "stalled"
    return is_stalled and bool(store.stacks) and not store.has_several_ranks


def _make_heading(store: RunStore, rank: int) -> str:
    """Return where a rank is, and for how long: in a hook, or waiting for data."""
    if says_stall(store):
        return store.health.sentence
    binding, seconds = store.inside.get(rank, (NO_BINDING, 0.0))
    place = describe_training_place(store.plan, binding, seconds, store.stacks[rank])
    if store.has_several_ranks:
        return f"rank {rank}: {place}"
    return place


def frame_text(frame: str) -> Text:
    """Return a frame of a stack, "function (file:line)".

    One of the user's own files has a sign, and is emphasised.
    """
    match = FRAME_FILE.search(frame)
    if match is None:
        return text_of(f"  {frame}")
    if is_own_file(match["file"]):
        return text_of(("▸ ", "warn"), (make_printable(frame), "strong"))
    return text_of((f"  {make_printable(PACKAGE_FOLDER.sub('(…/', frame))}", "dim"))


def stack_text(store: RunStore) -> Text:
    """Return the stacks that were taken, those of the ranks that hold up the others first."""
    blocking = blocking_ranks(store.state.ranks.silent, store.plan, store.inside)
    text = Text()
    for rank in sorted(store.stacks, key=lambda rank: (rank not in blocking, rank)):
        style = "strong"
        if rank in blocking:
            style = "warn"
        text.append_text(text_of((_make_heading(store, rank), style)))
        text.append("\n")
        frames = store.stacks[rank] or ["its stack is not known: install py-spy"]
        for frame in frames:
            text.append_text(frame_text(frame))
            text.append("\n")
    return text


class StackView(VerticalScroll):
    """The stacks as they were taken last."""

    def compose(self) -> ComposeResult:
        yield Static("", markup=False)

    def show_stacks(self, store: RunStore) -> None:
        """Show the stacks of a run."""
        if store.stacks:
            text = stack_text(store)
        else:
            text = text_of(("looking …", "dim"))
        self.query_one(Static).update(text)
