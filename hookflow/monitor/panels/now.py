"""Where the training is now: for each rank of this machine its hook, and the stack of its training thread."""

from collections.abc import Iterator

from textual.strip import Strip

from hookflow.monitor.health import guilty, inside_of
from hookflow.monitor.style import boxed, empty, row, scrolled
from hookflow.monitor.view import Action, Notice, Page, Scene
from hookflow.numbers import clock

BELOW = 6
"""Rows of the box that stands above the dashboard of a run that stalls."""


def page(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the page: the ranks that hold up the others come first."""
    inner, title = width - 2, "now"
    if (why := _refused(scene)) or not scene.stacks:
        return empty(title, why or "looking …", width, height)
    lines: list[Strip] = []
    first = guilty(scene.state.ranks.silent, scene.plan, scene.inside)
    for rank in sorted(scene.stacks, key=lambda rank: (rank not in first, rank)):
        lines.append(row(inner, (f" {_place(scene, rank)}", "warn" if rank in first else "strong")))
        lines += _frames(scene, rank, inner)
    return scrolled(f"{title}, at {clock(scene.looked)}", lines, width, height, scene.view.scroll)


def above(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return a box with the stack of the rank that holds up the training, while it stalls and there is room."""
    rank = next(iter(guilty(scene.state.ranks.silent, scene.plan, scene.inside)), 0)
    if scene.health.condition != "stalled" or rank not in scene.stacks or height < 3 * BELOW:
        return []
    lines = [row(width - 2, (f" {_place(scene, rank)}", "warn")), *_frames(scene, rank, width - 2)]
    return boxed("stack of the training thread", lines[: BELOW - 2], width, BELOW, hint="w all of it")


def _place(scene: Scene, rank: int) -> str:
    """Return in which hook a rank is, and for how long."""
    return f"rank {rank}: " * scene.several + inside_of(scene.plan, *scene.inside.get(rank, (-1, 0.0)))


def _frames(scene: Scene, rank: int, width: int) -> Iterator[Strip]:
    for frame in scene.stacks[rank] or ["its stack is not known: install py-spy"]:
        yield row(width, f"   {frame}")


def _refused(scene: Scene) -> str:
    """Return why there is no stack; empty where there is one."""
    if scene.replay:
        return "this is a replay: the stack is that of a process that goes on"
    if scene.health.over:
        return "the run is over"
    if scene.remote:
        return "the run is on another machine: `hookflow now` shows its stack there"
    return "opened with --readonly: nothing is asked of the run" if scene.readonly else ""


def _look(scene: Scene) -> str | Notice:
    why = _refused(scene)
    return Notice(why) if why else "look"


NOW = Page(
    "now",
    page,
    "w",
    "where the training is now: the hook and the stack of each rank",
    enter=_look,
    actions=(Action("look-again", "enter", "take the stacks again", _look),),
    hints=lambda scene: [("look-again", "look again"), ("up down", "scroll")],
)
