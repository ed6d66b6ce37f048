"""Questions and lines to type in, as modal screens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen
from textual.suggester import SuggestFromList
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option


@dataclass(frozen=True, slots=True)
class Choice:
    """An answer: the key that gives it, what `ask` returns for it, and what it does in words."""

    key: str
    answer: str
    text: str


class ChoiceDialog(ModalScreen[str]):
    """Asks for one of several answers; returns its name, and "" where none is given.

    The first choice has the focus, so that enter gives it: callers put the safe answer there. A
    question that is `about_training` is closed when that has ended.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "cancel", "back", show=False)]

    DEFAULT_CSS = """
    ChoiceDialog { align: center middle; }
    ChoiceDialog > Vertical {
        width: auto; max-width: 90%; min-width: 44; height: auto; max-height: 90%;
        border: round $primary; border-title-style: bold; padding: 0 1; background: $surface;
    }
    ChoiceDialog Static { width: auto; max-width: 100%; color: $text-muted; }
    ChoiceDialog Static.warning { color: $warning; }
    ChoiceDialog OptionList, ChoiceDialog OptionList:focus {
        width: auto; height: auto; border: none; padding: 0; margin: 1 0; background: $surface;
    }
    """

    def __init__(
        self,
        title: str,
        choices: Sequence[Choice],
        *,
        note: str = "",
        warning: str = "",
        about_training: bool = False,
    ) -> None:
        super().__init__()
        self.about_training = about_training
        self._title = title
        self._choices = choices
        self._note = note
        self._warning = warning

    def compose(self) -> ComposeResult:
        box = Vertical()
        box.border_title = self._title
        with box:
            if self._warning:
                yield Static(self._warning, classes="warning", markup=False)
            options = [
                Option(f"{choice.key:>3}  {choice.text}", id=choice.answer)
                for choice in self._choices
            ]
            yield OptionList(*options, markup=False)
            if self._note:
                yield Static(self._note, markup=False)

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.highlighted = 0
        options.focus()

    def on_key(self, event: Key) -> None:
        """Give the answer of a key; every key is the dialog's while it is open."""
        for choice in self._choices:
            if event.key == choice.key or event.character == choice.key:
                event.stop()
                self.dismiss(choice.answer)
                return

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id or "")

    def action_cancel(self) -> None:
        self.dismiss("")


class PromptDialog(ModalScreen[str | None]):
    """Asks for a line of text; returns it, and None where none is given.

    `suggestions` complete what is typed: → takes one over.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "back", show=False)]

    DEFAULT_CSS = """
    PromptDialog { align: center middle; }
    PromptDialog > Vertical {
        width: 70%; min-width: 40; max-width: 100%; height: auto;
        border: round $primary; border-title-style: bold; padding: 0 1; background: $surface;
    }
    PromptDialog Static { color: $text-muted; }
    PromptDialog Input, PromptDialog Input:focus {
        border: none; height: 1; padding: 0; background: $surface;
    }
    """

    def __init__(
        self, title: str, *, text: str = "", note: str = "", suggestions: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._note = note
        self._suggestions = suggestions

    def compose(self) -> ComposeResult:
        box = Vertical()
        box.border_title = self._title
        with box:
            suggester = None
            if self._suggestions:
                suggester = SuggestFromList(self._suggestions)
            yield Input(self._text, suggester=suggester, select_on_focus=False)
            if self._note:
                yield Static(self._note, markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        self.dismiss(None)
