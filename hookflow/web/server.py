"""The server of a dashboard in a browser of this machine; `hookflow watch --web` starts it.

Each tab has a viewer process of its own, as a terminal would. The server listens on the loopback
address alone. Access needs a secret of the person at the terminal: a token in the address that is
printed there, which opens the dashboard once and gives the browser a cookie. The name in the
address and the origin are checked, too, so that no other page that the browser shows gets in,
whatever name it gives this machine.
"""

import asyncio
import secrets
import shlex
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from html import escape
from typing import Any

from aiohttp import WSMsgType, web
from textual_serve.app_service import AppService
from textual_serve.server import Server

from hookflow.text import make_printable

LOOPBACK_ADDRESS = "127.0.0.1"
COOKIE_NAME = "hookflow"
VIEWER_EXIT_SECONDS = 5.0
"""Seconds that the viewers have to end; one that has not ended by then is killed."""

HEARTBEAT_SECONDS = 15.0
"""Seconds between tests whether a browser is still there."""

MAX_CELLS = 1000
"""The most columns, and rows, that a viewer is given."""

SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self';"
        " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

PAGE_TEMPLATE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<title>{title}</title>
<link rel="stylesheet" href="/static/css/xterm.css"/>
<link rel="icon" href="data:,"/>
<script src="/static/js/textual.js"></script>
<style>
body {{
  margin: 0; background: #0e1116; color: #d0d6dd;
  font: 16px/1.5 ui-monospace, Menlo, Consolas, monospace;
}}
p {{ display: none; padding: 2em; }}
a {{ color: #56b4e9; }}
body.-closed p {{ display: block; }}
body.-closed .textual-terminal {{ display: none; }}
</style>
</head>
<body>
<p>The dashboard was left. The training goes on. <a href="">Look again</a></p>
<div id="terminal" class="textual-terminal" data-font-size="15"
 data-session-websocket-url="ws://{host}/{session_path}/ws"></div>
</body>
</html>
"""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _is_equal(provided: str, secret: str) -> bool:
    """Compare in a time that does not tell how much is right; what is provided may be any text."""
    return secrets.compare_digest(provided.encode("utf-8", "surrogateescape"), secret.encode())


class AccessGuard:
    """Lets in the browser that brings the token, which is good for one time.

    A cookie then identifies the browser.

    The cookie is of one secret path: a cookie is sent to all ports of a machine, and other servers
    there may be another's.
    """

    def __init__(self, port: int) -> None:
        self.hosts = f"{LOOPBACK_ADDRESS}:{port}", f"localhost:{port}"
        self.session_path = secrets.token_urlsafe(12)
        self.token: str | None = secrets.token_urlsafe(24)
        self._cookie = secrets.token_urlsafe(24)

    def refusal(self, request: web.Request) -> str:
        """Return why a request is refused; empty where it is not."""
        if request.host not in self.hosts:
            return "this server has another name"
        origin = request.headers.get("Origin")
        socket_asked = request.path.endswith("/ws")
        if origin != f"http://{request.host}" and (origin is not None or socket_asked):
            return "another page has sent this"
        known = _is_equal(request.cookies.get(COOKIE_NAME, ""), self._cookie)
        if request.path.startswith(f"/{self.session_path}/") and not known:
            return "this browser is not known: start `hookflow watch --web` again"
        return ""

    async def enter(self, request: web.Request) -> web.Response:
        """Take the token.

        The browser goes on to the dashboard from a page of ours, so that it sends the cookie.
        """
        if self.token is None or not _is_equal(request.query.get("token", ""), self.token):
            text = "The token is wrong or has been used: start `hookflow watch --web` again.\n"
            return web.Response(text=text, status=403)
        self.token = None
        session_url = f"/{self.session_path}/"
        refresh = f'<meta http-equiv="refresh" content="0; url={session_url}"/>'
        text = f"<!DOCTYPE html>{refresh}<title>hookflow</title>"
        response = web.Response(text=text, content_type="text/html")
        response.set_cookie(
            COOKIE_NAME, self._cookie, path=session_url, httponly=True, samesite="Strict"
        )
        return response


class DashboardViewer(AppService):  # type: ignore[misc]  # it has no types
    """The process that shows the dashboard in one tab.

    It ends with the tab, whatever it is doing.
    """

    def __init__(self, command: Sequence[str], tab: web.WebSocketResponse, server: Server) -> None:
        async def write_bytes(data: bytes) -> None:
            # Once the tab is closed, the rest of the output is read and dropped.
            with suppress(ConnectionError, RuntimeError):
                await tab.send_bytes(data)

        async def write_str(text: str) -> None:
            with suppress(ConnectionError, RuntimeError):
                await tab.send_str(text)

        async def close() -> None:
            await tab.close()

        super().__init__(
            # `exec` replaces the shell, so that killing the process kills the dashboard.
            f"exec {shlex.join(command)}",
            write_bytes=write_bytes,
            write_str=write_str,
            close=close,
            download_manager=server.download_manager,
        )

    async def end(self) -> None:
        """Ask the process to end, and kill it where it has not ended in `VIEWER_EXIT_SECONDS`."""
        process = self._process
        reading = self._task
        if process is None or reading is None:
            return
        await self._download_manager.cancel_app_downloads(app_service_id=self.app_service_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(VIEWER_EXIT_SECONDS):
                await self.send_meta({"type": "quit"})
                await asyncio.shield(reading)
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        # A process waits for a pipe that is not read to its end.
        await asyncio.gather(reading, return_exceptions=True)
        await process.wait()

    async def take(self, message: Sequence[Any]) -> None:
        """Take a message of the tab: a key, its size, or whether it has the focus."""
        kind, *values = message
        if kind == "stdin":
            await self.send_bytes(values[0].encode())
        elif kind == "resize":
            await self.set_terminal_size(values[0]["width"], values[0]["height"])
        elif kind == "blur":
            await self.blur()
        elif kind == "focus":
            await self.focus()


def _parse_cells(text: str, default: int) -> int:
    """Return a width or height that the tab requests.

    It is the default where that is no number of cells.
    """
    if text.isascii() and text.isdecimal() and 0 < int(text[:9]) <= MAX_CELLS:
        return int(text[:9])
    return default


def make_application(command: Sequence[str], title: str, access: AccessGuard) -> web.Application:
    """Return the server of a dashboard that `command` shows.

    It answers those whom `access` lets in.
    """
    host, port = access.hosts[0].split(":")
    server = Server(shlex.join(command), host=host, port=int(port), title=title)

    async def check_access(request: web.Request, handler: Handler) -> web.StreamResponse:
        why = access.refusal(request)
        if why:
            return web.Response(text=f"Refused: {why}.\n", status=403)
        return await handler(request)

    async def render_page(request: web.Request) -> web.Response:
        text = PAGE_TEMPLATE.format(
            title=escape(make_printable(title)), host=request.host, session_path=access.session_path
        )
        return web.Response(text=text, content_type="text/html")

    async def show(request: web.Request) -> web.WebSocketResponse:
        tab = web.WebSocketResponse(heartbeat=HEARTBEAT_SECONDS)
        await tab.prepare(request)
        viewer = DashboardViewer(command, tab, server)
        try:
            await viewer.start(
                _parse_cells(request.query.get("width", ""), 80),
                _parse_cells(request.query.get("height", ""), 24),
            )
            async for message in tab:
                if message.type != WSMsgType.TEXT:
                    continue
                content = message.json()
                if content[0] == "ping":
                    await tab.send_json(["pong", content[1]])
                else:
                    await viewer.take(content)
        finally:
            await viewer.end()
        return tab

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(SECURITY_HEADERS)

    app = web.Application(middlewares=[web.middleware(check_access)])
    app.on_response_prepare.append(add_headers)
    app.add_routes(
        [
            web.get("/", access.enter),
            web.get(f"/{access.session_path}/", render_page),
            web.get(f"/{access.session_path}/ws", show),
            web.static("/static", server.statics_path),
        ]
    )
    return app


def serve(command: Sequence[str], title: str, ready: Callable[[str], Any]) -> None:
    """Serve a dashboard until this process is interrupted.

    `ready` is called with the address to open.
    """
    asyncio.run(_serve(command, title, ready))


async def _serve(command: Sequence[str], title: str, ready: Callable[[str], Any]) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(name, over.set)
    with socket.create_server((LOOPBACK_ADDRESS, 0)) as bound:
        access = AccessGuard(bound.getsockname()[1])
        app = make_application(command, title, access)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=VIEWER_EXIT_SECONDS)
        await runner.setup()
        try:
            await web.SockSite(runner, bound).start()
            ready(f"http://{access.hosts[0]}/?token={access.token}")
            await over.wait()
        finally:
            await runner.cleanup()
