"""The help: the keys, the numbers and the signs of the dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.strip import Strip

from hookflow.monitor.style import definition, row, scrolled
from hookflow.monitor.view import Scene
from hookflow.text import wrapped

NUMBERS = (
    ("p50, p95, max", "half, 95 %, all of the last 60 s of firings took at most so long; ms; v: of the whole attempt"),
    (
        "graph: n, vs past",
        "firings of the attempt; the median of the last 60 s by that of the attempt, ▲ by what was usual",
    ),
    ("graph: over the run", "the mean of each part of the run, of which three eighths are its median; of phases too"),
    ("last, count", "the last firing, ms; firings of the last 60 s, or of the attempt: dim where none was lately"),
    ("%it", "share of the time in training iterations, last 60 s; · for what fires outside them, as in validation"),
    ("60 s", "hooks: the mean firing in each stretch of the last minute; a quarter high is the attempt's mean"),
    ("heat ░▒▓█", "points: share of each stretch spent there: any, from 0.1 %, from 1 %, from 10 %"),
    ("epoch", "the one that is worked on, with its validation; after the end, those done"),
    ("0:00:00", "time since this attempt began, at the top"),
    ("it/s", "training iterations per second of iteration time, last 60 s; validation left out"),
    ("ETA", "iterations left at the paces of the last 10 and 60 s and of the attempt, with validation in proportion"),
    ("iteration", "half and 95 % of the last minute's iterations took at most so long"),
    ("data", "the training thread waited for the next batch"),
    ("fwd bwd opt", "forward pass with the loss, backward pass, optimizer step; each with its waits for the GPU"),
    ("hooks, other", "all firings inside iterations: the %it of all hooks added up; whatever else the loop did"),
    ("verdict", "the largest of compute, data and hooks; then all hooks together and the costliest, as %it"),
    ("charts", "a line for the training (means of neighbours), ◇ for each validation, ◆ for each checkpoint"),
    ("★", "the best value of this metric so far; which is better follows from its name or a hook's `mode`"),
    ("recorder", "time that writing the event log took, in its own thread"),
)
OF_RANKS = (
    ("rank-2-bound", "iterations wait for that rank, see the ranks"),
    ("several ranks", "all but the panel of the ranks, and what is said to be another's, is of rank 0 alone"),
    ("ranks: it", "the iteration at one moment, the last that all have told of"),
    ("ranks: own", "ms of an iteration without the backward pass (FSDP: and the forward pass), where ranks wait"),
    ("ranks: ·", "of the backward pass, what a rank waits for the slowest: what its own time is below that one's"),
    ("ranks: +ms", "what the slowest needs beyond the median of the others, and in which phase or hook"),
)
SIGNS = (
    ("● ○ ‖ ◐ ?", "running, starting, paused, stalled (no progress), lost (process gone without an end)"),
    ("✓ ■ ✗", "finished, stopped, failed"),
    ("· ◇ ◆ ◉ ▲ ✗", "events: note, validation, checkpoint, command answered, warning, error"),
    ("▣ ¶ ▟", "logged to be looked at: image, text, histogram"),
    ("▲ ✗ ⊘ ▾", "hooks: 1.5x as long as before, and 1 % of the iterations; failed; is off; skips firings for its cost"),
    ("┌ │ └ ▶", "the hook at ▶ waits for the hooks whose lanes reach it; ├ ┼ join, │ only passes"),
)


Terms = Mapping[str, Sequence[tuple[str, str]]]


def help_page(scene: Scene, width: int, height: int, keys: Terms) -> list[Strip]:
    """Return the help, scrolled as the view says; `keys` has rows on keys by their titles."""
    inner = width - 2
    rows: list[Strip] = []
    if splits := scene.state.synthetic:
        text = f"SYNTHETIC {', '.join(splits)} data: accuracy and loss say nothing about the real data set"
        rows += [*(row(inner, " ", (f" {part} ", "alarm")) for part in wrapped(text, max(inner - 4, 10))), row(inner)]
    general, *of_pages = keys
    sections: Terms = {
        general: keys[general],
        "numbers": [*NUMBERS, *OF_RANKS * scene.several],
        "signs": SIGNS,
        **{title: keys[title] for title in of_pages},
    }
    for title, terms in sections.items():
        rows += [row(inner)] * (title != general)
        rows.append(row(inner, (f" {title}", "title")))
        rows += [line for name, about in terms for line in definition(inner, f"  {name}", about, 17, "strong")]
    return scrolled("help", rows, width, height, scene.view.scroll)
