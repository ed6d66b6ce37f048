"""Messages of the widgets about hooks to their page."""

from textual.message import Message

from hookflow.graph.plan import Binding


class HookHighlighted(Message):
    """The user has moved the cursor to a hook.

    `binding` is None where the row is no hook.
    """

    def __init__(self, binding: Binding | None) -> None:
        super().__init__()
        self.binding = binding


class HookOpened(Message):
    """The user wants to see a hook in full."""

    def __init__(self, binding: Binding) -> None:
        super().__init__()
        self.binding = binding


class HooksResized(Message):
    """The hooks are shown in another size, or for the first time."""


class GroupToggled(Message):
    """A group of hooks is to be folded, or unfolded."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group
