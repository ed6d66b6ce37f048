"""The command palette.

It has every action of the page in focus and every command to the run, by the words that users say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.types import IgnoreReturnCallbackType

from hookflow.events.commands import COMMANDS
from hookflow.monitor.dashboard import Dashboard

COMMAND_SYNONYMS = {
    "checkpoint": "save snapshot weights write now",
    "copy-page": "clipboard yank text",
    "copy-row": "clipboard yank text",
    "filter": "search find grep",
    "freeze": "hold still play pause replay",
    "help": "keys shortcuts bindings",
    "hook-off": "disable enable on mute toggle",
    "image": "screenshot picture svg export",
    "leave": "exit close detach",
    "mouse": "select text",
    "older-trouble": "error warning problem failure",
    "newer-trouble": "error warning problem failure",
    "page-log": "events output print console stdout",
    "page-media": "images texts histograms gallery",
    "page-metrics": "charts curves plots scalars loss accuracy",
    "page-runs": "compare experiments list history",
    "page-trace": "waterfall timeline",
    "page-hooks": "graph order costs",
    "pause": "hold halt resume continue",
    "rewind": "back restore undo load",
    "set": "change argument learning rate lr parameter",
    "stacks": "stuck hang where py-spy traceback",
    "step": "one iteration single next",
    "stop": "end abort cancel kill terminate finish",
    "theme": "colour color dark light blind",
    "trace": "profile record timeline",
    "validate": "evaluate evaluation val test now",
    "window": "average mean lifetime minute",
}
"""By the name of an action or a command: other words that users say for it."""


PAGE_NAME_PREFIX = "page-"
"""The begin of the names of the actions that open a page."""


@dataclass(frozen=True, slots=True)
class ActionOption:
    """An action that can be called now."""

    name: str
    about: str
    keys: str
    call: IgnoreReturnCallbackType

    @property
    def title(self) -> str:
        return f"{self.about}   {self.keys}".rstrip()

    @property
    def searched(self) -> str:
        """The text in which what is typed is searched."""
        return f"{self.name} {self.about} {COMMAND_SYNONYMS.get(self.name, '')}"


class ActionProvider(Provider):
    """Offers the named actions of the screen and of the app.

    Commands to the run that are none of them are offered, too.
    """

    @property
    def dashboard(self) -> Dashboard:
        return cast("Dashboard", self.app)

    def _iter_offers(self) -> Iterator[ActionOption]:
        known = set()
        for node, binding, enabled, _ in self.screen.active_bindings.values():
            if not binding.id or binding.id in known or not enabled or binding.id == "palette":
                continue
            known.add(binding.id)
            keys = self.app.get_key_display(binding)
            call = partial(self.app.run_action, binding.action, node)
            yield ActionOption(binding.id, binding.tooltip or binding.description, keys, call)
        if not self.dashboard.store.can_act:
            return
        for name, command in COMMANDS.items():
            if name not in known:
                run_command = cast("Any", self.app).run_command
                yield ActionOption(
                    name,
                    f"{command.about} {command.takes}".rstrip(),
                    "",
                    partial(run_command, name),
                )

    async def discover(self) -> Hits:
        for offer in self._iter_offers():
            yield DiscoveryHit(offer.title, offer.call, help=offer.name)

    async def search(self, query: str) -> Hits:
        """Yield what has the words of a query.

        Only where nothing has them, offers with its letters in this order are yielded.
        """
        words = query.lower().split()
        offers = [*self._iter_offers()]
        matching = [
            offer for offer in offers if all(word in offer.searched.lower() for word in words)
        ]
        matcher = self.matcher(query)
        for offer in matching or offers:
            if matching:
                score = score_offer(offer, words)
            else:
                score = matcher.match(offer.searched)
            if score > 0:
                yield Hit(score, offer.title, offer.call, help=offer.name)


def score_offer(offer: ActionOption, words: Sequence[str]) -> float:
    """Return how well an offer fits words.

    Its name fits best, then words that are known for it, then the begin of its name, of other
    words, and parts of words. Of equal ones a page is best: to look at it changes nothing.
    """
    score = 0.0
    if offer.name.startswith(PAGE_NAME_PREFIX):
        score = 0.25
    parts_of_name = offer.name.removeprefix(PAGE_NAME_PREFIX).split("-")
    known = offer.searched.lower().split()
    for word in words:
        if word == offer.name:
            score += 4.0
        elif word in known:
            score += 3.0
        elif any(part.startswith(word) for part in parts_of_name):
            score += 2.5
        elif any(each.startswith(word) for each in known):
            score += 2.0
        else:
            score += 1.0
    return score
