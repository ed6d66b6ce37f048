"""Where the training is now.

It shows for each rank of this machine its hook, and the stack of its training thread.
"""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from hookflow.monitor.bindings import key
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.style import text_of
from hookflow.monitor.widgets.stack_view import says_stall, stack_text
from hookflow.numbers import format_clock


def find_stack_obstacle(store: RunStore) -> str:
    """Return why no stack can be taken; empty where one can."""
    if store.is_replay:
        return "this is a replay: the stack is that of a process that goes on"
    if store.health.over:
        return "the run is over"
    if store.is_remote:
        return "the run is on another machine: `hookflow now` shows its stack there"
    if store.readonly:
        return "opened with --readonly: nothing is asked of the run"
    return ""


class StacksScreen(PageScreen):
    """The stacks of all ranks on this machine."""

    page_name: ClassVar[str] = "stacks"
    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "enter",
            "look_again",
            "take the stacks again",
            "look-again",
            footer="look again",
            display="enter",
        ),
    ]

    def compose_body(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="stacks")

    @property
    def explains_trouble(self) -> bool:
        return says_stall(self.store) and not find_stack_obstacle(self.store)

    def show_run(self) -> None:
        store = self.store
        why_not = find_stack_obstacle(store)
        box = self.query_one("#stacks", Static)
        if why_not:
            box.update(why_not)
        elif not store.stacks:
            box.update("looking …")
        else:
            head = text_of((f"at {format_clock(store.process.looked)}", "dim"))
            head.append("\n")
            box.update(head.append_text(stack_text(store)))

    def action_look_again(self) -> None:
        why_not = find_stack_obstacle(self.store)
        if why_not:
            self.dashboard.say(why_not)
        else:
            self.dashboard.read_stacks()
