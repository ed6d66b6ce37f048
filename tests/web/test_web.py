"""`hookflow watch --web`: one browser of this machine gets in by a one-time token,
and no other page does.
"""

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from hookflow.events.rundir import RunDir
from hookflow.pipeline import registry
from tests.cli.conftest import refused
from tests.conftest import hookflow_begun, wait_for
from tests.monitor.fake_run import make
from tests.support.limits import LIMIT

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")
web = pytest.importorskip("hookflow.web.server")

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-sync",
    ),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0"),
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make(tmp_path / "runs")


@pytest.fixture
def address(run: RunDir, tmp_path: Path) -> Iterator[str]:
    """A dashboard that is served; it ends at Ctrl-C, with its viewers."""
    child = hookflow_begun("watch", run.id, "--web", cwd=tmp_path)
    try:
        assert child.stdout is not None
        found = re.search(r"http://\S+", child.stdout.readline())
        assert found is not None
        yield found[0]
        viewers = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(signal.SIGINT)
        assert child.wait(LIMIT) == 0
        wait_for(lambda: not any(viewer.is_running() for viewer in viewers), "the viewers to end")
    finally:
        child.kill()
        child.communicate()


def of(address: str) -> str:
    """Return the origin of an address."""
    return "{0.scheme}://{0.netloc}".format(urlsplit(address))


def talk(conversation: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    async def with_session() -> None:
        jar = aiohttp.CookieJar(unsafe=True)  # of an address without a name
        async with asyncio.timeout(LIMIT), aiohttp.ClientSession(cookie_jar=jar) as session:
            await conversation(session)

    asyncio.run(with_session())


async def enter(session: Any, address: str) -> str:
    """Go in by the token, and return the address of the dashboard."""
    async with session.get(address) as answer:
        assert answer.status == 200
        assert (
            "HttpOnly" in answer.headers["Set-Cookie"]
            and "SameSite=Strict" in answer.headers["Set-Cookie"]
        )
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        found = re.search(r"url=(/[\w-]+/)", await answer.text())
        assert found is not None
        return of(address) + found[1]


async def shown(socket: Any, text: str) -> None:
    """Read what a terminal would get until it has the text."""
    seen = ""
    while text not in seen:
        message = await socket.receive()
        assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), seen[-500:]
        if message.type == aiohttp.WSMsgType.BINARY:
            seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", message.data.decode(errors="replace"))


def test_the_dashboard_is_shown_and_takes_keys(run: RunDir, address: str) -> None:
    async def conversation(session: Any) -> None:
        session_path = await enter(session, address)
        async with session.get(session_path) as answer:
            page = await answer.text()
        assert 'src="/static/js/textual.js"' in page and "https:" not in page
        found = re.search(r'websocket-url="(ws:[^"]+)"', page)
        assert found is not None
        url = f"{found[1]}?width=120&height=40"
        async with session.ws_connect(url, origin=of(address)) as socket:
            await shown(socket, f"#{run.id[-4:]}")
            await socket.send_json(["stdin", "?"])
            await shown(socket, "keys of every page")
            await socket.send_json(["stdin", "?"])
            await socket.send_json(["stdin", "q"])
            await socket.receive()

    talk(conversation)


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
print("__GANGLION__", flush=True)
while True:
    time.sleep(3600)
"""
FLOODING = STUBBORN.replace(
    "time.sleep(3600)", 'sys.stdout.buffer.write(b"D" + (65536).to_bytes(4, "big") + bytes(65536))'
)


@pytest.mark.parametrize(
    "script", [STUBBORN, FLOODING], ids=["does not listen", "writes on and on"]
)
@pytest.mark.parametrize("aborted", [False, True], ids=["closed", "lost"])
def test_the_viewer_of_a_tab_that_is_closed_ends_whatever_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, aborted: bool
) -> None:
    monkeypatch.setattr(web, "VIEWER_EXIT_SECONDS", 0.0)
    mark = tmp_path / "pid"

    async def conversation(session: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as bound:
            guard = web.AccessGuard(bound.getsockname()[1])
            app = web.make_application([sys.executable, "-c", script, str(mark)], "t", guard)
            runner = aiohttp.web.AppRunner(app, access_log=None, shutdown_timeout=0)
            await runner.setup()
            await aiohttp.web.SockSite(runner, bound).start()
            origin = f"http://{guard.hosts[0]}"
            session_path = await enter(session, f"{origin}/?token={guard.token}")
            tab = await session.ws_connect(f"{session_path}ws", origin=origin)
            while not (mark.exists() and mark.read_text()):
                await asyncio.sleep(0)
            viewer = psutil.Process(int(mark.read_text()))
            if aborted:
                tab._response.connection.transport.abort()
            else:
                await tab.close()
            while psutil.pid_exists(viewer.pid):
                await asyncio.sleep(0)
            await runner.cleanup()

    talk(conversation)


def test_the_token_is_good_for_one_time(address: str) -> None:
    async def conversation(session: Any) -> None:
        for wrong in ("/", "/?token=", "/?token=x", "/?token=%C3%A9", "/?token=%FF"):
            async with session.get(of(address) + wrong) as answer:
                assert answer.status == 403
        session_path = await enter(session, address)
        async with session.get(session_path) as answer:
            assert answer.status == 200, "the same browser may load the page again"
        async with aiohttp.ClientSession() as other:
            async with other.get(address) as answer:
                assert answer.status == 403
            async with other.get(session_path) as answer:
                assert (answer.status, "is not known" in await answer.text()) == (403, True)

    talk(conversation)


def test_other_hosts_and_origins_are_refused(address: str) -> None:
    async def conversation(session: Any) -> None:
        for headers in (
            {"Host": "evil.example"},
            {"Host": "127.0.0.1"},
            {"Origin": "http://evil.example"},
        ):
            async with session.get(address, headers=headers) as answer:
                assert (answer.status, "Refused" in await answer.text()) == (403, True)
        session_path = await enter(session, address)
        for origin in ("http://evil.example", of(address).replace("http:", "https:"), "null", None):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
                await session.ws_connect(f"{session_path}ws", origin=origin)
            assert refusal.value.status == 403
        async with aiohttp.ClientSession() as other:
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await other.ws_connect(f"{session_path}ws", origin=of(address))

    talk(conversation)


@pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed")
def test_a_browser_shows_it(address: str, tmp_path: Path) -> None:
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'browser'}", "about:blank"]
    browser = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert browser.stderr is not None
    port = next(
        found[1] for line in browser.stderr if (found := re.search(r"ws://127.0.0.1:(\d+)/", line))
    )

    async def conversation(session: Any) -> None:
        async with session.get(f"http://127.0.0.1:{port}/json") as answer:
            page = next(page for page in json.loads(await answer.text()) if page["type"] == "page")
        async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:

            async def call(method: str, **parameters: str) -> Any:
                await socket.send_json({"id": 1, "method": method, "params": parameters})
                while (answer := await socket.receive_json()).get("id") != 1:
                    pass
                return answer["result"]

            await call("Page.navigate", url=address)
            classes = ""
            while "-first-byte" not in classes:  # textual-serve's word for the first paint
                await asyncio.sleep(0.1)
                result = await call("Runtime.evaluate", expression="document.body.className")
                classes = result["result"].get("value", "")
            assert "-closed" not in classes

    try:
        talk(conversation)
    finally:
        browser.kill()
        browser.communicate()


def test_without_the_package_the_extra_is_named(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    assert "pip install 'hookflow[web]'" in refused("watch", str(run.path), "--web")
