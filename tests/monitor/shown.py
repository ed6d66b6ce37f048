"""The dashboard as a user sees it: the app without a terminal, keys pressed, the screen as text."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from hookflow.events.rundir import RunDir
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.process_watch import MachineSensor
from tests.support.golden_files import check_golden

Size = tuple[int, int]
Visit = Callable[[MonitorApp, Pilot[Any]], Awaitable[None]]

WIDE, NORMAL, LOW = (120, 40), (80, 24), (60, 15)
GOLDEN_SIZES = (WIDE, NORMAL)
"""The sizes of which there are golden screens."""


def screen_text(app: MonitorApp) -> str:
    """Return what is on the screen, row by row, without blanks at the ends."""
    strips = app.screen._compositor.render_strips(app.size)
    return "\n".join(strip.text.rstrip() for strip in strips)


def read_whole_log(app: MonitorApp) -> None:
    """Read the log to its end: on a busy machine a poll takes a piece of it."""
    while not app.store.is_replay:
        app.store.poll()
        if not app.store.is_behind:
            return


async def settle(app: MonitorApp, pilot: Pilot[Any]) -> None:
    """Wait until everything that was asked for is on the screen."""
    for _ in range(2):  # a screen that opens composes itself in the first
        await pilot.pause()
    read_whole_log(app)
    app.show_changes()
    await pilot.pause()
    # What is shown may have changed the layout, and that the size of what is shown.
    for _ in range(2):
        app.screen._on_timer_update()  # which a timer does else
        await pilot.pause()
    app.screen._on_timer_update()


async def press(app: MonitorApp, pilot: Pilot[Any], *keys: str) -> None:
    """Press keys one after the other, and wait until what the last
    one asked for is on the screen.
    """
    for key in keys:
        await pilot.press(key)
        await pilot.pause()  # a screen that a key opens composes itself
    await settle(app, pilot)


def visit(
    run: RunDir, do: Visit, *, size: Size = WIDE, settled: bool = True, **options: Any
) -> MonitorApp:
    """Run the app on a run, let `do` use it, and return it as it was left.

    `do` begins when the whole log is read and shown, or, unless `settled`, as soon as the app runs.
    """
    app = MonitorApp(run, **options)

    async def go() -> None:
        async with app.run_test(size=size) as pilot:
            if settled:
                await settle(app, pilot)
            await do(app, pilot)

    with pytest.MonkeyPatch.context() as patch:
        # Figures of this machine differ from look to look.
        patch.setattr(MachineSensor, "look", lambda sensor: None)
        asyncio.run(go())
    return app


def shown(run: RunDir, *keys: str, size: Size = WIDE, **options: Any) -> str:
    """Return the screen after these keys."""
    texts: list[str] = []

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, *keys)
        texts.append(screen_text(app))

    visit(run, look, size=size, **options)
    return texts[0]


def check_screens(name: str, run: RunDir, *keys: str, **options: Any) -> None:
    """Compare the screen after these keys with golden files, one for each of the golden sizes."""
    for width, height in GOLDEN_SIZES:
        text = shown(run, *keys, size=(width, height), **options)
        check_golden(f"monitor/{name}-{width}x{height}.txt", text + "\n")
