"""A web server of one file, and runs of the shipped pipelines."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Server:
    """Serves `content` at `url`, or answers with `status` or the bytes `raw`; `requests` counts them."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = content
        self.status = 200
        self.raw: bytes | None = None
        self.before_answer: Callable[[], object] = lambda: None
        self.requests = 0
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}/file.bin"

    @property
    def md5(self) -> str:
        return hashlib.md5(self.content).hexdigest()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the name that http.server calls
                server.requests += 1
                server.before_answer()
                with suppress(ConnectionError):  # the client has given up
                    if server.raw is not None:
                        self.wfile.write(server.raw)
                        return
                    self.send_response(server.status)
                    self.send_header("Content-Length", str(len(server.content)))
                    self.end_headers()
                    self.wfile.write(server.content)

            def log_message(self, *args: object) -> None:
                pass

        return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(bytes(range(256)) * 4000)
    yield server
    server.close()
