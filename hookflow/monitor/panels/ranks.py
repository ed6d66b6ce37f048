"""The processes that train together: where each is, what its iterations go to, and which one holds up the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.events.records import PHASES
from hookflow.monitor.panels.hooks import FILLS, SHORT, phase_bar
from hookflow.monitor.ranks import Rank, Ranks, can_compare
from hookflow.monitor.style import Part, boxed, highlighted, row, window
from hookflow.monitor.view import Page, Scene, zoom
from hookflow.numbers import age, rough
from hookflow.text import fit

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
        figures = large and left >= 6 * len(PHASES) + 8
        left -= 6 * len(PHASES) * figures
        return cls(wide, figures, left - 1 if left >= 6 else 0, where, note)


def panel(scene: Scene, width: int, height: int) -> list[Strip]:
    ranks, inner, room = scene.state.ranks, width - 2, height - 3
    focused = scene.view.focus == 6
    picked = min(scene.view.rank, ranks.world - 1) if focused else None
    numbers = _shown(ranks, room, picked)
    where = max(cell_len(_where(ranks.of.get(number))) for number in numbers or [0])
    columns = Columns.of(inner, where, scene.view.zoomed)
    hidden = ranks.world - len(numbers)
    head = f"  {'rank':>4} {'it':>6} {'ms/it':>5}" + f" {'own':>5}" * columns.own
    head += "".join(f" {SHORT.get(phase, phase):>5}" for phase in PHASES) * columns.figures
    head += f" {fit('last 60 s', columns.bar)}" if columns.bar else ""
    head += f" {fit('where', columns.where)}" if columns.where else ""
    head += f" {hidden} more" if hidden and columns.note else ""
    rows = _Rows(scene, columns, inner)
    body = [row(inner, (head, "dim")), *(rows.row(number, number == picked) for number in numbers)]
    if len(body) + 2 <= room:
        legend: list[Part] = []
        for phase in PHASES:
            legend += [(f" {FILLS[phase]} ", phase), (SHORT.get(phase, phase), "dim")]
            legend += [(f" {WAITS} ", "faint"), ("waits for the slowest", "dim")] if phase == "backward" else []
        body += [row(inner), row(inner, *legend)]
    verdict, _ = judged(ranks, inner - 15)
    return boxed(f"[6] ranks  {verdict}", body, width, height, focused)


def line(scene: Scene, width: int) -> Strip:
    """Return the verdict on one row, for screens without room for the panel."""
    head = f" {scene.state.ranks.world} ranks  "
    room = width - len(head) - 1
    verdict, style = judged(scene.state.ranks, room)
    return row(width, (head, "strong"), (fit(verdict, max(room, 0)), style))


def judged(ranks: Ranks, width: int) -> tuple[str, str]:
    """Return the worst that there is to say of the ranks, in so many cells, and the style for it."""
    if failed := ranks.first_failure:
        number, error = failed
        return f"✗ rank {number} failed: {error['type']}: {error['text']}", "error"
    if silent := ranks.silent:
        number = max(silent, key=lambda rank: silent[rank])
        others = f", and {len(silent) - 1} more" if len(silent) > 1 else ""
        return f"? nothing from rank {number} for {age(silent[number])}{others}", "alarm"
    if gone := ranks.gone:
        return f"? no end record from rank {', '.join(map(str, gone))}", "warn"
    if ranks.straggler:
        sentence = f"▲ {ranks.straggler.sentence}"
        return sentence if len(sentence) <= width else f"▲ {ranks.straggler.phrase}", "warn"
    return ("even" if can_compare(ranks.of) else "not yet compared"), "dim"


def _shown(ranks: Ranks, room: int, picked: int | None) -> list[int]:
    """Return the ranks to list: those around the cursor; without one the first to look at."""
    numbers = list(range(ranks.world))
    if len(numbers) <= room:
        return numbers
    if picked is not None:
        return numbers[window(len(numbers), max(room, 0), picked)]
    silent = ranks.silent

    def urgency(number: int) -> tuple[bool, bool, float]:
        rank = ranks.of.get(number)
        return rank is not None and rank.fatal is not None, number in silent, rank.work.own if rank else 0.0

    return sorted(sorted(numbers, key=urgency, reverse=True)[: max(room, 0)])


def _where(rank: Rank | None) -> str:
    return f"{rank.run.get('host', '')} {rank.run.get('device', '')}".strip() if rank else ""


class _Rows:
    """Draws the rows, all bars to one scale."""

    def __init__(self, scene: Scene, columns: Columns, width: int) -> None:
        self._ranks, self._columns, self._width = scene.state.ranks, columns, width
        works = [rank.work for rank in self._ranks.of.values()]
        self._longest = max(work.whole for work in works)
        self._slowest = max(work.own for work in works)
        self._silent = self._ranks.silent

    def row(self, number: int, picked: bool) -> Strip:
        columns, rank = self._columns, self._ranks.of.get(number)
        note, style = self._note(number, rank)
        sign = {"error": "✗", "alarm": "?", "warn": "▲"}.get(style, " ")
        parts: list[Part] = [("▸" if picked else " ", "focus"), (sign, style if sign != " " else "")]
        parts.append((f"{number:>4}", "picked" if picked else "strong" if note else ""))
        parts += self._figures(rank)
        parts += [" ", (fit(_where(rank), columns.where), "dim")] if columns.where else []
        parts += [" ", (fit(note, columns.note), "warn" if style == "alarm" else style)] if columns.note else []
        line = row(self._width, *parts)
        return highlighted(line) if picked else line

    def _figures(self, rank: Rank | None) -> list[Part]:
        columns = self._columns
        if rank is None or not rank.work.iters:
            at = f"{rank.it}" if rank else "·"
            blanks = 6 * (1 + columns.own + len(PHASES) * columns.figures) + (columns.bar + 1) * bool(columns.bar)
            return [(f" {at:>6}", "dim"), (f" {'·':>5}{' ' * (blanks - 6)}", "dim")]
        booked, iters = rank.minute.booked(rank.now), rank.minute.sums(rank.now)["iters"] or 1
        parts: list[Part] = [f" {rank.it:>6}", f" {_ms(rank.work.whole):>5}"]
        parts += [f" {_ms(rank.work.own):>5}"] if columns.own else []
        parts += [(f" {_ms(booked[phase] / iters):>5}", "dim") for phase in PHASES if columns.figures]
        return [*parts, " ", *self._bar(rank, booked)] if columns.bar else parts

    def _bar(self, rank: Rank, booked: Mapping[str, int]) -> list[Part]:
        """Return the phases at their lengths; the part that waits has a style of its own."""
        whole = sum(booked.values()) or 1
        scale = self._columns.bar * rank.work.whole / (self._longest or 1) / whole
        waits = max(self._slowest - rank.work.own, 0.0) / (rank.work.whole or 1) * whole
        lengths: list[tuple[str, str, float]] = []
        for phase in PHASES:
            waiting = min(waits, booked[phase]) if phase == "backward" else 0.0
            lengths += [(FILLS[phase], phase, scale * (booked[phase] - waiting)), (WAITS, "dim", scale * waiting)]
        return phase_bar(lengths, self._columns.bar)

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
        if straggler is not None and straggler.rank == number:
            return f"+{rough(straggler.cost / 1e6)} ms {straggler.reason.removeprefix('hook ')}", "warn"
        return "", ""


def _ms(ns: float) -> str:
    """Return milliseconds in five characters."""
    value = ns / 1e6
    return f"{value:.2f}" if value < 99.995 else f"{value:.1f}" if value < 999.95 else f"{value:.0f}"


def _move(scene: Scene, step: int) -> None:
    scene.view.rank = min(max(scene.view.rank + step, 0), scene.state.ranks.world - 1)


RANKS = Page("ranks", panel, move=_move, enter=zoom, only="ranks")
