"""The keys of a page, at the bottom of the screen."""

from textual.binding import Binding
from textual.widgets import Footer

ShownKey = tuple[Binding, bool, str]
"""A key in the footer, whether it is enabled, and its tooltip."""


class KeyFooter(Footer):
    """Shows the keys of a page, and draws them again only where they have changed.

    Textual makes all widgets of its footer anew whenever the focus changes: a third of the time in
    which a page opens.
    """

    def __init__(self) -> None:
        super().__init__(show_command_palette=False, compact=True)
        self._composed_keys: list[ShownKey] | None = None

    async def recompose(self) -> None:
        if not self.is_attached:
            return
        keys = self._list_keys()
        if keys != self._composed_keys:
            await super().recompose()
            self._composed_keys = keys

    def _list_keys(self) -> list[ShownKey]:
        """Return what the footer shows of each key at present."""
        keys = []
        for active in self.screen.active_bindings.values():
            if active.binding.show:
                keys.append((active.binding, active.enabled, active.tooltip))
        return keys
