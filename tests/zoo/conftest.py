"""A web server of one file, which can be told to break off."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Server:
    """Serves `content` at `url`. `cuts` says after how many bytes the next connections break off, one by one."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = content
        self.cuts: list[int] = []
        self.knows_ranges = True
        self.status = 0
        self.before_answer: Callable[[], object] = lambda: None
        self.asked: list[str | None] = []
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
                wanted = self.headers["Range"]
                server.asked.append(wanted)
                server.before_answer()
                if server.status:
                    self.send_error(server.status)
                    return
                start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.knows_ranges else 0
                if start and start >= len(server.content):
                    self.send_error(416)
                    return
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
                self.send_header("Content-Length", str(len(server.content) - start))
                self.end_headers()
                end = start + server.cuts.pop(0) if server.cuts else None
                self.wfile.write(server.content[start:end])

            def log_message(self, *args: object) -> None:
                pass

        return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(bytes(range(256)) * 4000)
    yield server
    server.close()
