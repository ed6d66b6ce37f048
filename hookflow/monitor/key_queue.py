"""The keys that have come and are not handled yet.

Each waits until what the one before it began has been done.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from textual.app import App
from textual.events import Key
from textual.message_pump import MessagePump

MAX_WAIT = 1.0
"""Seconds for what a key begins; then the next key is handled, whatever may be left to do."""

SECONDS_BETWEEN_LOOKS = 0.005


class KeyQueue:
    """Hands keys on one at a time.

    Textual sends a key to the widget that has the focus when the key comes. Where the key before it
    opens a dialog, or a line to type in, that is still the widget below: "q" and "d" typed in one
    go would not detach.
    """

    def __init__(self, app: App[Any], hand_on: Callable[[Key], Awaitable[None]]) -> None:
        self._app = app
        self._hand_on = hand_on
        self._waiting: deque[Key] = deque()
        self._is_busy = False

    async def put(self, key: Key) -> None:
        """Hand a key on, at once where no other is being handled."""
        self._waiting.append(key)
        if self._is_busy:
            return
        self._is_busy = True
        receiver = await self._send_next()
        self._app.run_worker(self._follow(receiver), group="keys", name="keys")

    async def _send_next(self) -> MessagePump | None:
        """Hand the next key on, and return who has received it.

        It is None while no screen is there to do so.
        """
        key = self._waiting.popleft()
        if not self._app.screen_stack:
            return None
        receiver = self._app.focused or self._app.screen
        await self._hand_on(key)
        return receiver

    async def _follow(self, receiver: MessagePump | None) -> None:
        """Wait until the last key has been handled; hand on those that have come meanwhile."""
        try:
            await self._wait_until_handled(receiver)
            while self._waiting:
                receiver = await self._send_next()
                await self._wait_until_handled(receiver)
        finally:
            self._is_busy = False

    async def _wait_until_handled(self, receiver: MessagePump | None) -> None:
        try:
            async with asyncio.timeout(MAX_WAIT):
                await self._wait_for_handlers(receiver)
        except TimeoutError:
            return

    async def _wait_for_handlers(self, receiver: MessagePump | None) -> None:
        """Wait until a key has gone from its receiver up to the app.

        A screen that the key opens has been made by then.
        """
        node = receiver
        while node is not None:
            await _wait_for_queue(node)
            node = node._parent
        while not self._app.screen_stack:  # another page is being made
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        await _wait_for_queue(self._app.screen)
        await _wait_for_queue(self._app)  # which gives the focus


async def _wait_for_queue(node: MessagePump) -> None:
    """Wait until the messages that a widget has received so far are handled.

    A widget that takes no more is not waited for.
    """
    is_reached = asyncio.Event()
    if node.call_later(is_reached.set):
        await is_reached.wait()
