"""The processes that train together.

It shows where each is, what its iterations go to, which one holds up the others.
"""

from collections.abc import Sequence

from rich.text import Text

from hookflow.events.records import PHASES
from hookflow.monitor.ranks import RankGroup, RankState, can_compare
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.style import Part, text_of
from hookflow.monitor.widgets.run_header import PHASE_FILLS
from hookflow.monitor.widgets.text_table import TextTable
from hookflow.numbers import format_age, format_ms, format_rough

WAIT_FILL = "·"
"""The part of the backward pass that waits for the slowest rank."""

COLUMN_HEADINGS = {
    "sign": " ",
    "rank": "rank",
    "it": "iteration",
    "ms": " ms/it",
    "own": "excl. waits",
    "phases": "last 60 s",
    "remark": "",
    "where": "where",
}
"""The headings of the columns, by their keys."""

BAR_WIDTH, NARROW_BAR_WIDTH = 40, 12
"""Cells of the longest bar, where there is room and where there is little."""

NARROW_WIDTH = 100
"""Cells of the table below which bars are short."""

REMARK_SIGNS = {"error": "✗", "alarm": "?", "warn": "▲"}
"""By the style of a remark the sign in front of the row."""


def assess_ranks(ranks: RankGroup) -> tuple[str, str]:
    """Return the worst that there is to say of the ranks, and the style for it."""
    failure = ranks.first_failure
    if failure is not None:
        number, error = failure
        return f"✗ rank {number} failed: {error['type']}: {error['text']}", "error"
    silent = ranks.silent
    if silent:
        longest = max(silent, key=lambda number: silent[number])
        others = ""
        if len(silent) > 1:
            others = f", and {len(silent) - 1} more"
        return f"? nothing from rank {longest} for {format_age(silent[longest])}{others}", "alarm"
    if ranks.gone:
        return f"? no end record from rank {', '.join(map(str, ranks.gone))}", "warn"
    if ranks.straggler is not None:
        return f"▲ {ranks.straggler.sentence}", "warn"
    if can_compare(ranks.of):
        return "balanced", "dim"
    return "not yet compared", "dim"


class RankTable(TextTable):
    """A row for each rank; all bars are to one scale."""

    DEFAULT_CSS = "RankTable { height: 1fr; overflow-x: hidden; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__(id=id, cursor_type="row")
        self._shown: list[object] = []
        """The values that the row of each rank was written from."""
        self._theme = ""

    def on_mount(self) -> None:
        for column, title in COLUMN_HEADINGS.items():
            self.add_column(title, key=column)

    def show_ranks(self, store: RunStore) -> None:
        """Show the ranks of a run. Only rows that have changed are written: there may be 16,384."""
        ranks = store.state.ranks
        if self.size.width >= NARROW_WIDTH:
            bar_width = BAR_WIDTH
        else:
            bar_width = NARROW_BAR_WIDTH
        rows = RankRows(ranks, bar_width)
        before = self._shown
        self._shown = [rows.facts(number) for number in range(ranks.world)]
        has_other_theme = self.app.theme != self._theme
        self._theme = self.app.theme
        if has_other_theme or len(before) != ranks.world:
            self.clear()
            for number in range(ranks.world):
                self.add_row(*rows.cells(number), key=str(number))
            return
        for number, facts in enumerate(self._shown):
            if facts != before[number]:
                self._write_row(number, rows.cells(number))

    def _write_row(self, number: int, cells: Sequence[Text]) -> None:
        for column, content in zip(COLUMN_HEADINGS, cells, strict=True):
            self.show_cell(str(number), column, content)


class RankRows:
    """Writes the rows of a `RankTable`."""

    def __init__(self, ranks: RankGroup, bar_width: int) -> None:
        self._ranks = ranks
        self._bar_width = bar_width
        self._silent = ranks.silent
        self._gone = set(ranks.gone)
        self._longest = max(rank.whole for rank in ranks.of.values())
        self._slowest = max(rank.own for rank in ranks.of.values())

    def facts(self, number: int) -> object:
        """Return what the cells of a rank are written from; equal facts have equal cells."""
        rank = self._ranks.of.get(number)
        remark = self._find_remark(number, rank)
        if rank is None:
            return remark
        return (
            remark,
            rank.it,
            rank.now,
            rank.whole,
            rank.own,
            self._longest,
            self._slowest,
            self._bar_width,
        )

    def cells(self, number: int) -> Sequence[Text]:
        """Return the cells of a rank, in the order of `COLUMN_HEADINGS`."""
        rank = self._ranks.of.get(number)
        remark, style = self._find_remark(number, rank)
        sign = REMARK_SIGNS.get(style, " ")
        return [
            text_of((sign, style)),
            text_of((f"{number:>4}", "strong" if remark else "")),
            *self._format_figures(rank),
            text_of((remark, "warn" if style == "alarm" else style)),
            text_of((_format_place(rank), "dim")),
        ]

    def _format_figures(self, rank: RankState | None) -> Sequence[Text]:
        """Return iteration, milliseconds, those without waits, and the bar."""
        if rank is None:
            return [text_of((f"{'·':>9}", "dim")), Text(), Text(), Text()]
        iteration = text_of(f"{rank.it:>9,}")
        if not rank.iters:
            return [iteration, Text(), Text(), Text()]
        return [
            iteration,
            text_of(f"{format_ms(rank.whole):>6}"),
            text_of(f"{format_ms(rank.own):>11}"),
            self._bar(rank),
        ]

    def _bar(self, rank: RankState) -> Text:
        """Return the phases.

        The part of the backward pass that waits for the slowest rank has a sign of its own.
        """
        booked = rank.minute.by_phase
        whole = sum(booked.values()) or 1
        cells_per_ns = self._bar_width * rank.whole / (self._longest or 1.0) / whole
        waits = max(self._slowest - rank.own, 0.0) / (rank.whole or 1.0) * whole
        lengths: list[tuple[str, str, float]] = []
        for phase in PHASES:
            waiting = 0.0
            if phase == "backward":
                waiting = min(waits, booked[phase])
            lengths.append((PHASE_FILLS[phase], phase, (booked[phase] - waiting) * cells_per_ns))
            lengths.append((WAIT_FILL, "dim", waiting * cells_per_ns))
        return text_of(*_render_stretches(lengths, self._bar_width))

    def _find_remark(self, number: int, rank: RankState | None) -> tuple[str, str]:
        """Return what is to say of a rank, and the style for it."""
        straggler = self._ranks.straggler
        if rank is not None and rank.fatal:
            return rank.fatal["type"], "error"
        if number in self._silent:
            return f"nothing for {format_age(self._silent[number])}", "alarm"
        if number in self._gone:
            return "no end record", "alarm"
        if rank is None:
            return "not heard of yet", "dim"
        if straggler is not None and straggler.rank == number:
            return (
                (
                    f"+{format_rough(straggler.cost / 1e6)} ms"
                    f" {straggler.reason.removeprefix('hook ')}"
                ),
                "warn",
            )
        return "", ""


def _format_place(rank: RankState | None) -> str:
    if rank is None:
        return ""
    return f"{rank.run.get('host', '')} {rank.run.get('device', '')}".strip()


def _render_stretches(lengths: Sequence[tuple[str, str, float]], width: int) -> list[Part]:
    """Return stretches of one bar, each a character, a style and a length.

    Rounding errors do not add up.
    """
    parts: list[Part] = []
    filled = 0
    total = 0.0
    for fill, style, length in lengths:
        total += length
        end = min(max(round(total), filled), width)  # whatever a log says
        parts.append((fill * (end - filled), style))
        filled = end
    return parts


def bar_legend() -> Text:
    """Return what the characters of a bar mean."""
    parts: list[Part] = []
    for phase in PHASES:
        parts += [(f"{PHASE_FILLS[phase]} ", phase), (f"{phase}  ", "dim")]
        if phase == "backward":
            parts += [(f"{WAIT_FILL} waits for the slowest  ", "dim")]
    return text_of(*parts)
