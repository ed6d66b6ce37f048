"""The processes that train together: where each is, what its iterations go to, and which one holds up the others."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.events.records import PHASES
from hookflow.monitor.panels.hooks import FILLS
from hookflow.monitor.ranks import Rank, Ranks, booked, can_compare
from hookflow.monitor.style import Part, boxed, highlighted, row, window
from hookflow.monitor.view import Scene
from hookflow.numbers import age, counted, rough
from hookflow.text import fit

FIGURES = {"data": "data", "forward": "fwd", "backward": "bwd", "optimizer": "opt", "hooks": "hooks", "other": "other"}
WAITS = "·"
"""The part of the backward pass that waits for the slowest rank."""


@dataclass(frozen=True, slots=True)
class Columns:
    """How many cells each column has; none where there is no room."""

    own: bool
    figures: bool
    bar: int
    where: int
    note: int

    @classmethod
    def of(cls, width: int, where: int, large: bool) -> Columns:
        wide = width >= 60
        where = min(where, 24) if wide else 0
        note = 17 if wide else 14 if width >= 40 else 0
        left = width - (25 if wide else 19) - (where + 1) * bool(where) - (note + 1) * bool(note)
        figures = large and left >= 6 * len(FIGURES) + 8
        left -= 6 * len(FIGURES) * figures
        return cls(wide, figures, left - 1 if left >= 6 else 0, where, note)


def ranks(scene: Scene, width: int, height: int) -> list[Strip]:
    result, inner, room = scene.state.ranks, width - 2, height - 3
    focused = scene.view.focus == 6
    numbers = _shown(result, room, min(scene.view.rank, result.world - 1) if focused else None)
    columns = Columns.of(
        inner, max(cell_len(_where(result.of.get(number))) for number in numbers or [0]), scene.view.zoomed
    )
    drawn = _Drawing(scene, columns, inner)
    body = [drawn.head(result.world - len(numbers)), *(drawn.line(number, focused) for number in numbers)]
    if len(body) + 2 <= room:
        body += [row(inner), _legend(inner)]
    verdict, _ = judged(result, inner - 15)
    return boxed(f"[6] ranks  {verdict}", body, width, height, focused)


def line(scene: Scene, width: int) -> Strip:
    """Return the verdict on one row, for screens without room for the panel."""
    result = scene.state.ranks
    head = f" {result.world} ranks  "
    verdict, style = judged(result, width - len(head) - 1)
    return row(width, (head, "strong"), (fit(verdict, max(width - len(head) - 1, 0)), style))


def judged(result: Ranks, width: int) -> tuple[str, str]:
    """Return what there is to say of all ranks in so many cells, and the style for it: what is worst goes first."""
    if failed := result.first_failure:
        number, error = failed
        return f"✗ rank {number} failed: {error['type']}: {error['text']}", "error"
    if silent := result.silent:
        number = max(silent, key=lambda rank: silent[rank])
        others = f", and {len(silent) - 1} more" if len(silent) > 1 else ""
        return f"? nothing from rank {number} for {age(silent[number])}{others}", "alarm"
    if gone := result.gone:
        return f"? no end record from rank {', '.join(map(str, gone))}", "warn"
    if behind := result.behind():
        number = max(behind, key=lambda rank: behind[rank])
        return f"▲ rank {number} is {counted(behind[number], 'iteration')} behind", "warn"
    if result.straggler:
        sentence = f"▲ {result.straggler.sentence}"
        return sentence if len(sentence) <= width else f"▲ {result.straggler.phrase}", "warn"
    return ("even" if can_compare(result.of) else "not yet compared"), "dim"


def _shown(result: Ranks, room: int, picked: int | None) -> list[int]:
    """Return the ranks to list: those around the cursor; without one the first to look at."""
    numbers = list(range(result.world))
    if len(numbers) <= room:
        return numbers
    if picked is not None:
        return numbers[window(len(numbers), max(room, 0), picked)]
    silent, behind = result.silent, result.behind()

    def urgency(number: int) -> tuple[bool, bool, bool, float]:
        rank = result.of.get(number)
        failed = rank is not None and rank.fatal is not None
        return failed, number in silent, number in behind, rank.work.own if rank else 0.0

    return sorted(sorted(numbers, key=urgency, reverse=True)[: max(room, 0)])


def _where(rank: Rank | None) -> str:
    return f"{rank.run.get('host', '')} {rank.run.get('device', '')}".strip() if rank else ""


def _legend(width: int) -> Strip:
    parts: list[Part] = []
    for phase, word in FIGURES.items():
        parts += [(f" {FILLS[phase]} ", phase), (word, "dim")]
        parts += [(f" {WAITS} ", "faint"), ("waits for the slowest", "dim")] if phase == "backward" else []
    return row(width, *parts)


class _Drawing:
    """Draws the rows, all bars to one scale."""

    def __init__(self, scene: Scene, columns: Columns, width: int) -> None:
        self._scene, self._columns, self._width = scene, columns, width
        self._ranks = scene.state.ranks
        works = [rank.work for rank in self._ranks.of.values()]
        self._longest = max(work.whole for work in works)
        self._slowest = max(work.own for work in works)
        self._places = self._ranks.places()
        self._behind = self._ranks.behind()
        self._silent = self._ranks.silent

    def head(self, hidden: int) -> Strip:
        """Return the names of the columns, and how many ranks are not shown."""
        columns = self._columns
        text = f"  {'rank':>4} {'it':>6} {'ms/it':>5}" + f" {'own':>5}" * columns.own
        text += "".join(f" {word:>5}" for word in FIGURES.values()) * columns.figures
        text += f" {fit('last 60 s', columns.bar)}" if columns.bar else ""
        text += f" {fit('where', columns.where)}" if columns.where else ""
        text += f" {hidden} more" if hidden and columns.note else ""
        return row(self._width, (text, "dim"))

    def line(self, number: int, focused: bool) -> Strip:
        columns, rank = self._columns, self._ranks.of.get(number)
        picked = focused and number == min(self._scene.view.rank, self._ranks.world - 1)
        note, style = self._note(number, rank)
        sign = {"error": "✗", "alarm": "?", "warn": "▲"}.get(style, " ")
        parts: list[Part] = [("▸" if picked else " ", "focus"), (sign, style if sign != " " else "")]
        parts.append((f"{number:>4}", "picked" if picked else "strong" if note else ""))
        parts += self._figures(number, rank)
        if columns.where:
            parts += [" ", (fit(_where(rank), columns.where), "dim")]
        if columns.note:
            parts += [" ", (fit(note, columns.note), "warn" if style == "alarm" else style)]
        drawn = row(self._width, *parts)
        return highlighted(drawn) if picked else drawn

    def _figures(self, number: int, rank: Rank | None) -> list[Part]:
        columns = self._columns
        if rank is None or not rank.work.iters:
            at = f"{rank.it}" if rank and rank.heard else "·"
            blanks = 6 * (1 + columns.own + len(FIGURES) * columns.figures) + (columns.bar + 1) * bool(columns.bar)
            return [(f" {at:>6}", "dim"), (f" {'·':>5}{' ' * (blanks - 6)}", "dim")]
        books = booked(rank, self._scene.plan)
        iters = rank.minute.sums(rank.now)["iters"] or 1
        going = number in self._places and self._scene.state.end is None
        at = f"{self._places[number][1]:.0f}" if going else f"{rank.it}"
        parts: list[Part] = [(f" {at:>6}", ""), (f" {_ms(rank.work.whole):>5}", "")]
        parts += [(f" {_ms(rank.work.own):>5}", "")] if columns.own else []
        parts += [(f" {_ms(books[phase] / iters):>5}", "dim") for phase in FIGURES if columns.figures]
        return [*parts, " ", *self._bar(rank, books)] if columns.bar else parts

    def _bar(self, rank: Rank, books: dict[str, int]) -> list[Part]:
        """Return the phases at their lengths; its waiting part has a style of its own."""
        whole = sum(books.values()) or 1
        scale = self._columns.bar * rank.work.whole / (self._longest or 1) / whole
        waits = max(self._slowest - rank.work.own, 0.0) / (rank.work.whole or 1) * whole
        waits = min(waits, books["backward"])
        lengths: list[tuple[str, str, float]] = []
        for phase in PHASES:
            lengths.append((FILLS[phase], phase, books[phase] - (waits if phase == "backward" else 0.0)))
            if phase == "backward":
                lengths.append((WAITS, "dim", waits))
        parts: list[Part] = []
        at, total = 0, 0.0
        for fill, style, length in lengths:
            total += length
            end = min(max(round(total * scale), at), self._columns.bar)  # whatever a log says
            parts.append((fill * (end - at), style))
            at = end
        return [*parts, (" " * (self._columns.bar - at), "")]

    def _note(self, number: int, rank: Rank | None) -> tuple[str, str]:
        """Return what is special about a rank, and the style for it."""
        straggler = self._ranks.straggler
        if rank is not None and rank.fatal:
            return f"{rank.fatal['type']}", "error"
        if number in self._silent:
            return f"nothing for {age(self._silent[number])}", "alarm"
        if number in self._ranks.gone:
            return "left no end", "alarm"
        if rank is None:
            return "not heard of yet", "dim"
        if number in self._behind:
            return f"{self._behind[number]} it behind", "warn"
        if straggler is not None and straggler.rank == number:
            return f"+{rough(straggler.cost / 1e6)} ms {straggler.reason.removeprefix('hook ')}", "warn"
        return "", ""


def _ms(ns: float) -> str:
    """Return milliseconds in five characters."""
    value = ns / 1e6
    return f"{value:.2f}" if value < 99.995 else f"{value:.1f}" if value < 999.95 else f"{value:.0f}"
