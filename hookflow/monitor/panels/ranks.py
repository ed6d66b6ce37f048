"""The processes that train together: where each is, what its iterations go to, which one holds up the others.

The machine that they train on has a panel of its own.
"""

from functools import partial

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.events.records import PHASES
from hookflow.monitor.health import Gpu
from hookflow.monitor.panels.hooks import FILLS, SHORT, phase_bar
from hookflow.monitor.ranks import Rank, Ranks, can_compare
from hookflow.monitor.style import Part, boxed, row, scrolled, window
from hookflow.monitor.summary import layer_rows
from hookflow.monitor.view import Page, Scene, flip
from hookflow.numbers import age, many, ms, percent, rough
from hookflow.text import fit, wrapped_phrases

WAITS = "·"
"""The part of the backward pass that waits for the slowest rank."""


def panel(scene: Scene, width: int, height: int) -> list[Strip]:
    ranks, inner, room = scene.state.ranks, width - 2, height - 3
    focused = scene.focus == 4
    picked = min(scene.view.rank, ranks.world - 1) if focused else None
    numbers = _shown(ranks, room, picked)
    rows = _Rows(scene, numbers, inner)
    body = [rows.head(ranks.world - len(numbers)), *(rows.row(number, number == picked) for number in numbers)]
    if len(body) + 2 <= room:
        legend: list[Part] = []
        for phase in PHASES:
            legend += [(f" {FILLS[phase]} ", phase), (SHORT.get(phase, phase), "dim")]
            legend += [(f" {WAITS} ", "faint"), ("waits for the slowest", "dim")] if phase == "backward" else []
        body += [row(inner), row(inner, *legend)]
    verdict, _ = judged(ranks, inner - 15)
    return boxed(f"[4] ranks  {verdict}", body, width, height, focused)


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
        rank = ranks.of.get(number, Rank())
        return rank.fatal is not None, number in silent, rank.own

    return sorted(sorted(numbers, key=urgency, reverse=True)[: max(room, 0)])


def _where(rank: Rank | None) -> str:
    return f"{rank.run.get('host', '')} {rank.run.get('device', '')}".strip() if rank else ""


class _Rows:
    """Draws the rows, all bars to one scale. A column without room has no cells."""

    def __init__(self, scene: Scene, numbers: list[int], width: int) -> None:
        self._ranks, self._width = scene.state.ranks, width
        self._longest = max(rank.whole for rank in self._ranks.of.values())
        self._slowest = max(rank.own for rank in self._ranks.of.values())
        self._silent = self._ranks.silent
        self._own = width >= 60
        longest = max(cell_len(_where(self._ranks.of.get(number))) for number in numbers or [0])
        self._where = min(longest, 24) if self._own else 0
        self._note = 17 if self._own else 14 if width >= 40 else 0
        left = width - (25 if self._own else 19) - sum(wide + 1 for wide in (self._where, self._note) if wide)
        self._phases = PHASES if scene.view.zoomed and left >= 6 * len(PHASES) + 8 else ()
        left -= 6 * len(self._phases)
        self._bar = left - 1 if left >= 6 else 0

    def head(self, hidden: int) -> Strip:
        head = f"  {'rank':>4} {'it':>6} {'ms/it':>5}" + f" {'own':>5}" * self._own
        head += "".join(f" {SHORT.get(phase, phase):>5}" for phase in self._phases)
        head += f" {fit('last 60 s' if self._bar > 8 else '60 s', self._bar)}" if self._bar else ""
        head += f" {fit('where', self._where)}" if self._where else ""
        return row(self._width, (head + (f" {hidden} more" if hidden and self._note else ""), "dim"))

    def row(self, number: int, picked: bool) -> Strip:
        rank = self._ranks.of.get(number)
        note, style = self._remark(number, rank)
        sign = {"error": "✗", "alarm": "?", "warn": "▲"}.get(style, " ")
        parts: list[Part] = [("▸" if picked else " ", "focus"), (sign, style if sign != " " else "")]
        parts.append((f"{number:>4}", "picked" if picked else "strong" if note else ""))
        parts += self._figures(rank)
        parts += [" ", (fit(_where(rank), self._where), "dim")] if self._where else []
        parts += [" ", (fit(note, self._note), "warn" if style == "alarm" else style)] if self._note else []
        return row(self._width, *parts, picked=picked)

    def _figures(self, rank: Rank | None) -> list[Part]:
        """Return the figures, and a bar of the phases; the part of it that waits has a style of its own."""
        if rank is None or not rank.iters:
            at = f"{rank.it}" if rank else "·"
            blanks = 6 * (1 + self._own + len(self._phases)) + (self._bar + 1) * bool(self._bar)
            return [(f" {at:>6}", "dim"), (f" {'·':>5}{' ' * (blanks - 6)}", "dim")]
        booked = rank.minute.booked
        parts: list[Part] = [f" {rank.it:>6}", f" {ms(rank.whole):>5}"]
        parts += [f" {ms(rank.own):>5}"] if self._own else []
        parts += [(f" {ms(booked[phase] / rank.iters):>5}", "dim") for phase in self._phases]
        if not self._bar:
            return parts
        whole = sum(booked.values()) or 1
        scale = self._bar * rank.whole / (self._longest or 1) / whole
        waits = max(self._slowest - rank.own, 0.0) / (rank.whole or 1) * whole
        lengths: list[tuple[str, str, float]] = []
        for phase in PHASES:
            waiting = min(waits, booked[phase]) if phase == "backward" else 0.0
            lengths += [(FILLS[phase], phase, scale * (booked[phase] - waiting)), (WAITS, "dim", scale * waiting)]
        return [*parts, " ", *phase_bar(lengths, self._bar)]

    def _remark(self, number: int, rank: Rank | None) -> tuple[str, str]:
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


def _move(scene: Scene, step: int) -> None:
    scene.view.rank = min(max(scene.view.rank + step, 0), scene.state.ranks.world - 1)


RANKS = Page("ranks", panel, move=_move, enter=partial(flip, "zoomed"), only="ranks")


def system(scene: Scene, width: int, height: int) -> list[Strip]:
    inner = width - 2
    body = [*_machine(scene, inner), *_facts(scene, inner)]
    if scene.view.zoomed and scene.focus == 2:
        return scrolled("[2] system", [*body, *_layers(scene, inner)], width, height, scene.view.scroll)
    return boxed("[2] system", body, width, height, scene.focus == 2)


def _machine(scene: Scene, width: int) -> list[Strip]:
    machine = scene.machine
    if machine is None:
        why = "the run is on another machine" if scene.remote else "looking at this machine …"
        why = "the run is over: this machine is not looked at" if scene.health.over else why
        why = "a replay has no machine to look at" if scene.replay else why
        return [row(width, (f" {why}", "dim"))]
    rows = [row(width, *_gauge(f"GPU{gpu.index}", gpu.busy, width), *_gpu_figures(gpu)) for gpu in machine.gpus]
    load = f"  load {machine.load:.1f}   RAM {machine.ram:.0f}%"
    costs = f" cost recorder {percent(scene.pace.recorder)}%  monitor {machine.viewer:.1f}% of a core"
    return [*rows, row(width, *_gauge("CPU ", machine.cpu, width), (load, "dim")), row(width, (costs, "dim"))]


def _gpu_figures(gpu: Gpu) -> list[Part]:
    """Return the memory, the temperature and the power of a GPU, as far as its driver says them."""
    parts: list[Part] = []
    if gpu.used is not None and gpu.total is not None:
        parts.append((f"  {gpu.used / 2**30:.1f}/{gpu.total / 2**30:.0f} GB", ""))
    rest = ""
    if gpu.degrees is not None:
        rest += f"  {gpu.degrees}°C"
    if gpu.watts is not None:
        rest += f"  {gpu.watts:.0f} W"
    return [*parts, (rest, "dim")]


def _gauge(name: str, value: float | None, width: int) -> list[Part]:
    """Return a bar and the value in hundredths; a dash for a value that is not known."""
    if value is None:
        return [(f" {name} ", "dim"), (" load –", "dim")]
    room = 8 if width < 60 else 16
    full = round(min(value, 100) / 100 * room)
    return [(f" {name} ", "dim"), ("█" * full, "bar"), ("░" * (room - full), "rest"), (f" {value:3.0f}%", "")]


def _facts(scene: Scene, width: int) -> list[Strip]:
    run = scene.state.run
    if not run:
        return []
    facts = [run["model"], f"{many(run['params'])} parameters", f"seed {run['seed']}", run["device"], run["precision"]]
    facts += [f"torch {run['torch']}", f"python {run['python']}"]
    rows = wrapped_phrases([f"{fact} " for fact in facts if fact], width - 2)
    for split, data in run["data"].items():
        made_up, size = "SYNTHETIC " * data["synthetic"], f", batch {data['batch_size']}" * bool(data["batch_size"])
        rows.append(f"{split:<5} {made_up}{data['name']}  {many(data['examples'])}{size}")
    return [row(width, (f" {fact}", "warn" if "SYNTHETIC" in fact else "dim")) for fact in rows]


def _layers(scene: Scene, width: int) -> list[Strip]:
    every = [*layer_rows(scene.state.run.get("layers", []))]
    if not every:
        return []
    *cells, last = zip(("layer", "class", "shapes", "parameters", "bytes", ""), *every, strict=True)
    padded = [[fit(cell, max(map(cell_len, column))) for cell in column] for column in cells]
    padded[3:] = ([cell.strip().rjust(len(cell)) for cell in column] for column in padded[3:])
    head, *lines = ["  ".join(line) for line in zip(*padded, last, strict=True)]
    return [row(width), row(width, (f" {head}", "dim")), *(row(width, f" {line}") for line in lines)]


SYSTEM = Page("system", system, enter=partial(flip, "zoomed"))
