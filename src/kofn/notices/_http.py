"""One request to a metadata service: the standard library, no proxy, and a limit of its time."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from .base import Busy, NoAnswer, NotHere, Source

T = TypeVar("T")

ADDRESS = "http://169.254.169.254"  # of every cloud's metadata service
TIMEOUT = 1.0  # seconds: off the cloud this address often does not refuse, but hangs
_MOST = 1 << 20  # bytes of an answer


class Answer(NamedTuple):
    """A response. Names in `headers` are in lower case."""

    status: int
    body: str
    headers: Mapping[str, str]


def ask(
    base: str,
    path: str,
    headers: dict[str, str],
    method: str = "GET",
    timeout: float | None = None,
) -> Answer:
    """Send one request and return the answer, whatever its status; raises NoAnswer.

    All of it must be there within `timeout` seconds (TIMEOUT), however it trickles in.
    """
    from http.client import HTTPConnection, HTTPException  # takes a while: only where it is used

    try:
        url = urlsplit(base)
        port = url.port or 80
    except ValueError as error:
        raise NotHere(f"{base!r} is no address of a metadata service: {error}.") from error
    if url.scheme != "http" or not url.hostname:
        raise NotHere(f"a metadata service is at an address like {ADDRESS}; got {base!r}.")
    connection = None
    try:
        connection = HTTPConnection(url.hostname, port)
        connection.sock = _Hurried.to(url.hostname, port, timeout or TIMEOUT)
        connection.request(method, url.path.rstrip("/") + path, headers=headers)
        response = connection.getresponse()
        body = response.read(_MOST).decode("utf-8", "replace")
        return Answer(response.status, body, {k.lower(): v for k, v in response.getheaders()})
    except (OSError, HTTPException, ValueError) as error:  # ValueError: no name of a host
        raise NoAnswer(f"{method} {base}{path}: {error or type(error).__name__}") from error
    finally:
        if connection is not None:
            connection.close()


class _Hurried(socket.socket):
    """A socket that receives until a time: by its own limit each byte might take so long."""

    _end = 0.0

    @classmethod
    def to(cls, host: str, port: int, seconds: float) -> Self:
        """Connect; from now on everything has so many seconds."""
        end = time.monotonic() + seconds
        self = cls(fileno=socket.create_connection((host, port), seconds).detach())
        self._end = end
        self.settimeout(seconds)
        return self

    def recv_into(self, *args: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(left)
        return super().recv_into(*args)


def refused(answer: Answer) -> NoAnswer:
    """The error for a status that means nothing good."""
    kind = Busy if answer.status == 429 or answer.status >= 500 else NoAnswer
    return kind(f"status {answer.status}: {answer.body[:200]!r}")


@contextmanager
def probing(source: Source, rule: str, remedy: str) -> Iterator[None]:
    """A service that does not answer a probe is not there, unless it answers that it is busy.

    Nor is what is silent, unless it was asked for by name: it may be slow just now.
    """
    try:
        yield
    except Busy:
        raise
    except NoAnswer as error:
        silent = isinstance(error.__cause__, TimeoutError)
        kind = NoAnswer if silent and not source.optional else NotHere
        raise kind(f"{rule}; it did not ({error}). {remedy}") from error


def read(body: str, parse: Callable[[Any], T]) -> T:
    """Return what `parse` finds in JSON; raises NoAnswer for what is not as documented."""
    try:
        return parse(json.loads(body))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise NoAnswer(f"the answer is not as documented ({error!r}): {body[:200]!r}") from error
