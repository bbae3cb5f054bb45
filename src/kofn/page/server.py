"""The page's server: on this machine alone, and only for those who have its address.

GET / is the page, GET /events a stream of updates, GET /metrics figures for Prometheus. Each needs
the token: in the address, or as `Authorization: Bearer TOKEN`. A request under another host name
than this machine's own, or from another origin, is refused: a page of somebody else's that is open
in the same browser must learn nothing.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from ..errors import CannotDo
from ..events import EventLog
from ..report.metrics import CONTENT_TYPE, metrics
from ..report.state import RunState
from ..report.usage import Gauged
from .feed import EVERY, Feed, crowding
from .html import as_json, page, policy

HOSTS = ("127.0.0.1", "localhost")
STREAMS, CONNECTIONS = 16, 100  # at once; a connection takes a thread, whoever opens it
PIECE = (
    2_000  # of each list in one update: who comes late gets a long run bit by bit, from its start
)
ALIVE = 15.0  # seconds after which a stream says something
FAREWELL = 1.0  # seconds for which the end of a page waits for those who look
WORKERS = 100  # that are listed a second; those that come and go are sent at once


class Page:
    """A page that shows a run; `cluster.page()` makes it. Open `address` in a browser.

    It stays when the cluster is closed, so that the run can be looked at: until `close`, or until
    this process ends.
    """

    def __init__(
        self,
        log: EventLog,
        engine: str,
        workers: Iterable[int],
        used: Gauged | None = None,
        *,
        port: int = 0,
        token: str | None = None,
        price: float | None = None,
        title: str = "",
    ) -> None:
        self.token = secrets.token_urlsafe(18) if token is None else token
        state = RunState(engine, workers, price, title)
        try:
            self._server = _Server(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise CannotDo(
                f"the page needs a free port of this machine; port {port} is not: "
                f"{error.strerror}. Leave port out, and one is chosen."
            ) from error
        self._server.page = self
        self.opened = threading.Event()  # somebody has looked
        serve = self._server.serve
        self._thread = threading.Thread(target=serve, name="kofn-page-server", daemon=True)
        with ExitStack() as made:
            made.callback(self._server.server_close)
            self.feed = self._server.feed = Feed(log, state, used)
            made.callback(self.feed.close)
            self._thread.start()
            made.pop_all()

    @property
    def port(self) -> int:
        """The port that the page is on."""
        return self._server.port

    @property
    def address(self) -> str:
        """The URL to open in a browser; whoever has it can look."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def close(self) -> None:
        """End the page; open browsers are sent the end first. Idempotent."""
        self.feed.close()
        self._server.end()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kofn page at {self.address}>"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = CONNECTIONS  # beyond that the kernel has them try again after a second
    feed: Feed
    page: Page

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.over = threading.Event()
        self.streams = threading.BoundedSemaphore(STREAMS)
        self.connections = threading.BoundedSemaphore(CONNECTIONS)
        self.port = int(self.server_address[1])
        self.run = secrets.token_hex(4)  # cursors of another server mean nothing here

    def server_bind(self) -> None:
        """Bind it, with no limit to its wait: of socket.setdefaulttimeout it may have one."""
        self.socket.settimeout(None)
        super().server_bind()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Take a connection; where this process has no files left, not again at once."""
        try:
            return super().get_request()
        except OSError:
            self.over.wait(0.1)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer it in a thread; hang up on more than CONNECTIONS at once."""
        if self.connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The body of the thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def serve(self) -> None:
        """Answer until `end`, without waking up while nobody asks: a page costs nothing then."""
        while not self.over.is_set():
            self.handle_request()

    def end(self) -> None:
        """Have `serve` return, when each stream has sent its end or FAREWELL is over."""
        if self.over.is_set():
            return
        self.over.set()
        until = monotonic() + FAREWELL
        for _ in range(STREAMS):
            self.streams.acquire(timeout=max(0.0, until - monotonic()))
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            pass  # which wakes it

    def handle_error(self, *_: Any) -> None:
        """A browser that has gone away is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 60.0

    def do_GET(self) -> None:
        """Answer a request, if it may be answered."""
        url = urlsplit(self.path)
        if (why := self._refused(url.netloc, url.query)) is not None:
            self._send(HTTPStatus.FORBIDDEN, f"{why}\n")
        elif url.path == "/":
            self.server.page.opened.set()
            self._send(HTTPStatus.OK, page(), "text/html; charset=utf-8")
        elif url.path == "/events":
            self._events()
        elif url.path == "/metrics":
            with self.server.feed.changed:
                text = metrics(self.server.feed.state)
            self._send(HTTPStatus.OK, text, CONTENT_TYPE)
        else:
            self._send(HTTPStatus.NOT_FOUND, "there is /, /events and /metrics\n")

    def _refused(self, netloc: str, query: str) -> str | None:
        host = netloc or self.headers.get("Host", "")  # as to a proxy: "GET http://host/"
        if host.rsplit(":", 1)[0] not in HOSTS:
            return "this page answers to localhost and 127.0.0.1 only"
        if self.headers.get("Origin", f"http://{host}") != f"http://{host}":
            return "this page answers to no other origin"
        given = parse_qs(query).get("token", [""])[0]
        given = given or self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.server.page.token.encode()):
            return "the token is missing or wrong; use the whole address that kofn has printed"
        return None

    def _send(self, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self._common()
        self.wfile.write(data)

    def _common(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", policy() + "; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()

    def _events(self) -> None:
        if not self.server.streams.acquire(blocking=False):
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, f"{STREAMS} look already\n")
            return
        try:
            self.close_connection = True
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self._common()
            self._stream(self._resume())
        except OSError:
            pass  # it has gone away
        finally:
            self.server.streams.release()

    def _resume(self) -> tuple[int, ...] | None:
        """The position of a browser that had lost its connection; None: it begins."""
        run, *counts = self.headers.get("Last-Event-ID", "").split("-")
        if run != self.server.run or not all(count.isdigit() for count in counts):
            return None
        cursor = tuple(map(int, counts))
        with self.server.feed.changed:
            now = self.server.feed.state.cursor()
        fits = len(cursor) == len(now) and all(a <= b for a, b in zip(cursor, now, strict=False))
        return cursor if fits else None

    def _stream(self, cursor: tuple[int, ...] | None) -> None:
        feed, over = self.server.feed, self.server.over
        version, listed, stamp = -1, float("-inf"), -1
        ended = False
        while not ended:
            with feed.changed:
                state = feed.state
                behind = cursor is not None and cursor != state.cursor()
                due = listed + max(1.0, len(state.workers) / WORKERS)
                wait = ALIVE if stamp == state.stamp else max(0.0, due - monotonic())
                new = behind or feed.wait(version, wait) or stamp != state.stamp
                version = feed.version
                some = state.since(cursor or (), PIECE)
                update = {"head": state.head(), "new": cursor is None, **some}
                cursor = state.cursor(cursor or (), PIECE)
                whole = cursor == state.cursor()
                # Nothing comes after the end of a run: the browser need not ask again.
                update["last"] = state.closed and whole
                ended = whole and (state.closed or over.is_set())
                if monotonic() >= due or state.closed or over.is_set():
                    update["workers"] = state.everyone(stamp)
                    listed, stamp = monotonic(), state.stamp
            if new:
                id = "-".join(map(str, (self.server.run, *cursor)))
                text = f"retry: 500\nid: {id}\ndata: {as_json(update)}\n\n"
                self.wfile.write(text.encode())
            elif not ended:
                self.wfile.write(b": still here\n\n")
            self.wfile.flush()
            if not ended:
                over.wait(EVERY * min(2.0, crowding()))

    def log_message(self, *_: Any) -> None:
        """A program's terminal is not for its page's requests."""
