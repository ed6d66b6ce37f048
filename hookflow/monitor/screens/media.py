"""The page Media.

It lists all images, texts and histograms that hooks have logged, and shows an item of one.
"""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import ContentSwitcher, OptionList, Static
from textual.widgets.option_list import Option

from hookflow.monitor.bindings import key
from hookflow.monitor.journal import KIND_GLYPHS, Key, MediaItem, describe_extent
from hookflow.monitor.metric_lines import matches
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.style import text_of
from hookflow.monitor.widgets.logged_item import (
    MIN_TILE_CELLS,
    HistogramView,
    ImageView,
    TextView,
    list_facts,
)
from hookflow.text import fit_name, make_printable

NAME_CELLS = 28
"""Cells of the list of names."""

NO_MEDIA = (
    "no image, text or histogram has been logged: call run.log_image, run.log_text or"
    " run.log_histogram"
)

KIND_STYLES = {"image": "command", "text": "strong", "histogram": "train"}


class NameList(OptionList, inherit_bindings=False):
    """The names of what was logged; home and end are left to the items of a name."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("up,k", "cursor_up", "to the name above", "up"),
        key("down,j", "cursor_down", "to the name below", "down"),
    ]

    DEFAULT_CSS = """
    NameList { border: none; padding: 0; height: 1fr; background: $background; }
    NameList:focus { border: none; background-tint: $background 0%; }
    """


class MediaScreen(PageScreen):
    """The names at the left, and at the right the item of the name at the cursor.

    There may be several images beside each other.
    """

    page_name: ClassVar[str] = "media"
    can_filter: ClassVar[bool] = True
    help_text: ClassVar[str] = (
        "The newest item of a name is shown until an earlier one is chosen. Images are as large as"
        " the window allows; beside each other the earlier ones stand at the left. Of each name the"
        " last 100 items are kept."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "left_square_bracket,left",
            "move(-1)",
            "to the item before",
            "earlier-item",
            footer="item",
            display="[]",
        ),
        key("right_square_bracket,right", "move(1)", "to the item after", "later-item"),
        key("home", "move(-1000)", "to the first item", "first-item"),
        key("end", "move(1000)", "to the newest item", "newest-item"),
        key(
            "b", "beside", "earlier images beside this one, and it alone", "beside", footer="beside"
        ),
        key("pageup", "scroll_text(-1)", "a page of the text up", "text-up"),
        key("pagedown", "scroll_text(1)", "a page of the text down", "text-down"),
    ]

    DEFAULT_CSS = """
    MediaScreen #gallery { height: 1fr; }
    MediaScreen #names, MediaScreen #item {
        border: round $border-blurred; border-title-color: $foreground;
        border-subtitle-color: $text-muted;
    }
    MediaScreen #names:focus-within { border: round $primary; }
    MediaScreen #names { width: 28; }
    MediaScreen.-narrow #gallery { layout: vertical; }
    MediaScreen.-narrow #names { width: 1fr; height: 5; }
    MediaScreen #item { width: 1fr; height: 1fr; }
    MediaScreen #facts { height: 2; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    MediaScreen.-low #facts { height: 1; }
    MediaScreen.-narrow.-low #names { height: 3; }
    MediaScreen #kinds { height: 1fr; }
    MediaScreen TextView { padding: 0 1; }
    MediaScreen #empty { padding: 1 2; color: $text-muted; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._store_shown: RunStore | None = None
        self._logged: Key | None = None
        self._item: int | None = None
        self._is_beside = False
        self._listed: tuple[tuple[Key, int], ...] = ()

    def compose_body(self) -> ComposeResult:
        yield Static(NO_MEDIA, id="empty", markup=False)
        with Horizontal(id="gallery"):
            with Vertical(id="names"):
                yield NameList(markup=False)
            with Vertical(id="item"):
                yield Static(id="facts")
                with ContentSwitcher(initial="image", id="kinds"):
                    yield ImageView(id="image")
                    yield TextView(id="text")
                    yield HistogramView(id="histogram")

    # The choice

    def _take_chosen_item(self) -> None:
        """Go to the item that another page has chosen, as of an entry of the log."""
        number = self.dashboard.choices.media_number
        self.dashboard.choices.media_number = None
        if number is None:
            return
        item = self.store.state.gallery.find(number)
        if item is None:
            self.dashboard.say("it is no longer kept")
            return
        self._logged = (item.record["k"], item.record["name"])
        self._item = number
        self._listed = ()

    def _items(self) -> list[MediaItem]:
        """Return what is kept of the name at the cursor, oldest first."""
        if self._logged is None:
            return []
        return self.store.state.gallery.of(self._logged)

    def _find_place(self, items: Sequence[MediaItem]) -> int:
        """Return which of the items is shown: the chosen one, else the newest."""
        for place, item in enumerate(items):
            if item.number == self._item:
                return place
        return len(items) - 1

    # The view

    def show_run(self) -> None:
        store = self.store
        if store is not self._store_shown:
            self._store_shown = store
            self._logged = None
            self._item = None
        self._take_chosen_item()
        self._show_names()
        self._show_item()

    def _show_names(self) -> None:
        """List the names; the cursor stays on its own."""
        gallery = self.store.state.gallery
        keys = [each for each in gallery.keys if matches(each[1], self.filter_text)]
        has_items = bool(gallery.keys)
        self.query_one("#empty").display = not has_items
        self.query_one("#gallery").display = has_items
        if self._logged not in keys:
            self._logged = keys[0] if keys else None
            self._item = None
        panel = self.query_one("#names")
        panel.border_title = f"logged: {len(keys)}"
        panel.border_subtitle = "" if keys else "no name matches"
        names = tuple((each, len(gallery.of(each))) for each in keys)
        if names == self._listed:
            return
        self._listed = names
        options = self.query_one(NameList)
        with self.prevent(OptionList.OptionHighlighted):
            options.clear_options()
            options.add_options([_option(each, count) for each, count in names])
            if self._logged is not None:
                options.highlighted = keys.index(self._logged)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        chosen = self._listed[event.option_index][0]
        if chosen != self._logged:
            self._logged = chosen
            self._item = None
            self._show_item()

    def filter_changed(self, text: str) -> None:
        self._show_names()
        self._show_item()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_item)

    def _show_item(self) -> None:
        items = self._items()
        self.query_one("#item").display = bool(items)
        if not items:
            return
        place = self._find_place(items)
        record = items[place].record
        panel = self.query_one("#item")
        panel.border_title = Content(f"{KIND_GLYPHS[record['k']]} {make_printable(record['name'])}")
        panel.border_subtitle = f"{place + 1} of {len(items)}"
        self.query_one("#facts", Static).update(
            text_of(*list_facts(record, describe_extent(record)))
        )
        self.query_one("#kinds", ContentSwitcher).current = record["k"]
        if record["k"] == "text":
            self.query_one(TextView).show_text(record["text"])
        elif record["k"] == "histogram":
            self.query_one(HistogramView).show_histogram(record)
        else:
            first = max(place + 1 - self._num_beside(), 0)
            root = self.store.current_directory().path
            self.query_one(ImageView).show_images(root, items[first : place + 1])

    def _num_beside(self) -> int:
        """Return how many images stand beside each other: one, or as many as have room."""
        if not self._is_beside:
            return 1
        return max(self.query_one("#item").content_size.width // MIN_TILE_CELLS, 1)

    # Actions

    def action_move(self, step: int) -> None:
        """Go to an earlier or later item of the name.

        From the last one on it follows the newest.
        """
        items = self._items()
        if not items:
            return
        place = min(max(self._find_place(items) + step, 0), len(items) - 1)
        is_newest = place == len(items) - 1
        self._item = None if is_newest else items[place].number
        self.query_one(TextView).scroll_home(animate=False)
        self._show_item()

    def action_beside(self) -> None:
        if self._logged is None or self._logged[0] != "image":
            self.dashboard.say("only images stand beside each other")
            return
        self._is_beside = not self._is_beside
        self._show_item()

    def action_scroll_text(self, pages: int) -> None:
        view = self.query_one(TextView)
        view.scroll_relative(y=pages * max(view.size.height - 1, 1), animate=False)

    def text_of_row(self) -> str:
        """Return the text that is shown; of an image its path, of a histogram its name."""
        items = self._items()
        if not items:
            return ""
        record = items[self._find_place(items)].record
        if record["k"] == "text":
            return record["text"]
        if record["k"] == "image":
            return str(self.store.current_directory().path / record["path"])
        return record["name"]


def _option(logged: Key, count: int) -> Option:
    """Return a row of the list: the sign of the kind, the name, how many there are."""
    kind, name = logged
    number = f" {count}"
    room = NAME_CELLS - 6 - len(number)
    return Option(
        text_of(
            (f"{KIND_GLYPHS[kind]} ", KIND_STYLES[kind]), fit_name(name, room), (number, "dim")
        ),
        id=f"{kind} {name}",
    )
