"""Stand-ins for the metadata services of clouds: they speak the documented protocols."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit


class Request(NamedTuple):
    """What was asked. Names in `headers` are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


Answer = tuple[int, str] | tuple[int, str, dict[str, str]]


class Service:
    """An HTTP server on a thread; a subclass says what it answers. `asked`: all requests so far.

    The next answers are those of `first`, if there are any; None leaves one to the subclass.
    """

    def __init__(self, port: int = 0) -> None:
        self.asked: list[Request] = []
        self.first: list[Answer | None] = []
        self.changed = threading.Condition()
        self.closing = False
        service = self

        class Handler(BaseHTTPRequestHandler):
            def handle_one_request(self) -> None:
                self.close_connection = True
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    return
                url = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, body, *more = service._reply(
                    Request(self.command, url.path, query, headers)
                )
                try:
                    self.send_response(status)
                    for name, value in (more[0] if more else {}).items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(body.encode())))
                    self.end_headers()
                    self.wfile.write(body.encode())
                except OSError:
                    pass  # whoever asked has given up

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def _reply(self, request: Request) -> Answer:
        with self.changed:
            self.asked.append(request)
            given = self.first.pop(0) if self.first else None
        return self.answer(request) if given is None else given

    def answer(self, request: Request) -> Answer:
        raise NotImplementedError

    def count(self, method: str, end: str = "") -> int:
        """How many requests there were."""
        with self.changed:
            return sum(r.method == method and r.path.endswith(end) for r in self.asked)

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class EC2(Service):
    """IMDSv2: tokens, 404 before the notice, and what is announced."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self.valid: set[str] = set()
        self.said: dict[str, str] = {}  # path -> body

    def answer(self, request: Request) -> Answer:
        headers = request.headers
        if request.path == "/latest/api/token":
            ttl = headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
            if request.method != "PUT" or "x-forwarded-for" in headers:
                return 403, "Forbidden"
            if not ttl.isdigit() or not 1 <= int(ttl) <= 21600:
                return 400, "Bad Request"
            self.valid.add(f"token-{len(self.asked)}==")
            return 200, f"token-{len(self.asked)}=="
        if request.method not in ("GET", "HEAD"):
            return 405, "Method Not Allowed"
        if headers.get("x-aws-ec2-metadata-token") not in self.valid:
            return 401, "Unauthorized"
        body = self.said.get(request.path.removeprefix("/latest/meta-data/"))
        return (404, "Not Found") if body is None else (200, body, {"Content-Type": "text/plain"})

    def announce(self, seconds: float, action: str = "terminate") -> float:
        """Say that the machine goes in so many seconds; return when, in Unix seconds."""
        at = int(time.time() + seconds)
        text = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.said["spot/instance-action"] = json.dumps({"action": action, "time": text})
        return at

    def recommend(self, ago: float = 0.0) -> float:
        """Recommend to rebalance; return since when."""
        at = int(time.time() - ago)
        text = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.said["events/recommendations/rebalance"] = json.dumps({"noticeTime": text})
        return at


class Google(Service):
    """Compute Engine: a value with a tag, and requests that hang until it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.version = "FALSE", 0

    def answer(self, request: Request) -> Answer:
        if request.headers.get("metadata-flavor") != "Google":
            return 403, "Forbidden"
        if request.path != "/computeMetadata/v1/instance/preempted":
            return 404, "Not Found", {"Metadata-Flavor": "Google"}
        with self.changed:
            if request.query.get("wait_for_change") == "true":
                seen = request.query.get("last_etag", self.tag)
                limit = float(request.query.get("timeout_sec", "3600"))
                self.changed.wait_for(lambda: self.tag != seen or self.closing, limit)
            return 200, self.value, {"Metadata-Flavor": "Google", "ETag": self.tag}

    @property
    def tag(self) -> str:
        return f"{self.version:x}c0ffee"

    def set(self, value: str) -> None:
        with self.changed:
            self.value, self.version = value, self.version + 1
            self.changed.notify_all()


class AzureVM(Service):
    """Azure: this machine's name, and a document of events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.incarnation = 1

    def answer(self, request: Request) -> Answer:
        if request.headers.get("metadata") != "true" or "api-version" not in request.query:
            return 400, "Bad request"
        if request.path == "/metadata/instance/compute/name":
            return (200, "vm1") if request.query.get("format") == "text" else (400, "Bad request")
        if request.path != "/metadata/scheduledevents":
            return 404, "Not found"
        document = {"DocumentIncarnation": self.incarnation, "Events": self.events}
        return 200, json.dumps(document), {"Content-Type": "application/json"}

    def schedule(self, kind: str, seconds: float, *resources: str, id: str = "A1") -> float:
        """Announce an event for some machines; return when it begins."""
        at = int(time.time() + seconds)
        self.incarnation += 1
        self.events = [
            *(event for event in self.events if event["EventId"] != id),
            {
                "EventId": id,
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": list(resources),
                "EventStatus": "Scheduled",
                "NotBefore": formatdate(at, usegmt=True),
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            },
        ]
        return at

    def begin(self, id: str = "A1") -> None:
        """Have an event start: it has no time any more."""
        self.incarnation += 1
        self.events = [
            event | {"EventStatus": "Started", "NotBefore": ""} if event["EventId"] == id else event
            for event in self.events
        ]

    def cancel(self) -> None:
        self.incarnation += 1
        self.events = []


class Silent(Service):
    """Accepts, and answers nothing until the end."""

    def answer(self, request: Request) -> Answer:
        with self.changed:
            self.changed.wait_for(lambda: self.closing)
        return 500, ""


@contextmanager
def nobody() -> Iterator[str]:
    """An address at which nobody listens."""
    with EC2() as service:
        base: str = service.base
    yield base
