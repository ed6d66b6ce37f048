"""The help: every key, every sign, and what each number is."""

from __future__ import annotations

from textual.strip import Strip

from hookflow.monitor.keys import KEYS
from hookflow.monitor.style import boxed, fit, row, wrapped
from hookflow.monitor.view import Scene

NUMBERS = (
    ("p50, p95, max", "half, 95 %, all of the firings since this attempt began took at most so long; ms"),
    ("last", "the last firing, ms"),
    ("count", "firings since this attempt began"),
    (
        "%it",
        "share of the time in training iterations, last 60 s; · for what fires outside them, as in validation",
    ),
    ("60 s", "hooks: the mean firing in each stretch of the last minute; half height is the p50"),
    ("heat ░▒▓█", "points: share of each stretch spent there: any, from 0.1 %, from 1 %, from 10 %"),
    ("epoch", "the one that is worked on, with its validation; after the end, those done"),
    ("0:00:00", "time since this attempt began, at the top"),
    ("it/s", "training iterations per second of iteration time, last 60 s; validation left out"),
    ("ETA", "iterations left, at the pace of the last 60 s, plus validation and saving in proportion so far"),
    ("iteration", "half and 95 % of the last minute's iterations took at most so long"),
    ("data", "the training thread waited for the next batch"),
    (
        "fwd bwd opt",
        "forward pass with the loss, backward pass, optimizer step; waiting for the GPU is booked where it happens",
    ),
    ("hooks, other", "all firings inside iterations: the %it of all hooks added up; whatever else the loop did"),
    ("verdict", "what iterations wait for; then all hooks together and the costliest, as %it"),
    ("charts", "a line for the training (means of neighbours), ◇ for each validation, ◆ for each checkpoint"),
    ("★", "the best value of this metric so far; which is better follows from its name or a hook's `mode`"),
    ("recorder", "time that writing the event log took, in its own thread"),
)

RANK_NUMBERS = (
    ("rank-2-bound", "iterations wait for that rank, see the ranks"),
    ("several ranks", "all but the panel of the ranks, and what is said to be another's, is of rank 0 alone"),
    ("ranks: it", "the iteration at one moment, the last that all have told of"),
    (
        "ranks: own",
        "ms of an iteration without the backward pass (FSDP: and the forward pass), where ranks wait for one another",
    ),
    ("ranks: ·", "of the backward pass, what a rank waits for the slowest: what its own time is below that one's"),
    ("ranks: +ms", "what the slowest needs beyond the median of the others, and in which phase or hook"),
)

SIGNS = (
    ("● ○ ‖ ◐ ?", "running, starting, paused, stalled (no progress), lost (process gone without an end)"),
    ("✓ ■ ✗", "finished, stopped, failed"),
    ("· ◇ ◆ ◉ ▲ ✗", "events: note, validation, checkpoint, command answered, warning, error"),
    ("▣ ¶ ▟", "logged to be looked at: image, text, histogram"),
    ("▲ ✗ ⊘", "hooks: a firing took over 3x the p50 within 10 s; has failed; is switched off after an error"),
    ("┌ │ └ ▶", "the hook at ▶ waits for the hooks whose lanes reach it; ├ ┼ join, │ only passes"),
)


def help_page(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the help, scrolled as the view says."""
    inner = width - 2
    lines: list[Strip] = []
    if splits := scene.state.synthetic:
        text = f"SYNTHETIC {', '.join(splits)} data: accuracy and loss say nothing about the real data set"
        lines += [*(row(inner, " ", (f" {part} ", "alarm")) for part in wrapped(text, max(inner - 4, 10))), row(inner)]
    modes = ["", "replay" if scene.replay else "live", *(["ranks"] if scene.several else [])]
    lines.append(row(inner, (" keys", "title")))
    lines += [part for key in KEYS if key.only in modes for part in _lines(inner, key.shown, key.about)]
    lines += [row(inner), row(inner, (" numbers", "title"))]
    numbers = (*NUMBERS, *RANK_NUMBERS) if scene.several else NUMBERS
    lines += [part for name, about in numbers for part in _lines(inner, name, about)]
    lines += [row(inner), row(inner, (" signs", "title"))]
    lines += [part for name, about in SIGNS for part in _lines(inner, name, about)]
    first = min(scene.view.scroll, max(len(lines) - (height - 2), 0))
    more = len(lines) - first - (height - 2)
    return boxed("help", lines[first:], width, height, True, f"↓ {more} more" if more > 0 else "esc back")


def _line(width: int, name: str, about: str) -> Strip:
    return row(width, (f"  {fit(name, 15)}", "strong"), about)


def _lines(width: int, name: str, about: str) -> list[Strip]:
    """Return a definition in as many rows as its words take."""
    lines = wrapped(about, max(width - 18, 10))
    return [_line(width, name if place == 0 else "", text) for place, text in enumerate(lines)]
