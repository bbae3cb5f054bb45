"""One request to a metadata service: the standard library, no proxy, and a limit of a second."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from .base import Busy, NoAnswer, NotHere

T = TypeVar("T")

ADDRESS = "http://169.254.169.254"  # of every cloud's metadata service
TIMEOUT = 1.0  # seconds: off the cloud this address often does not refuse, but hangs
_MOST = 1 << 20  # bytes of an answer


class Answer(NamedTuple):
    """What came back. Names in `headers` are in lower case."""

    status: int
    body: str
    headers: Mapping[str, str]


def ask(
    base: str, path: str, headers: dict[str, str], method: str = "GET", timeout: float = TIMEOUT
) -> Answer:
    """Send one request and return the answer, whatever its status; raises NoAnswer."""
    from http.client import HTTPConnection, HTTPException  # takes a while: only where it is used

    try:
        url = urlsplit(base)
        port = url.port or 80
    except ValueError as error:
        raise NotHere(f"{base!r} is no address of a metadata service: {error}.") from error
    if url.scheme != "http" or not url.hostname:
        raise NotHere(f"a metadata service is at an address like {ADDRESS}; got {base!r}.")
    connection = HTTPConnection(url.hostname, port, timeout=timeout)
    try:
        connection.request(method, url.path.rstrip("/") + path, headers=headers)
        response = connection.getresponse()
        body = response.read(_MOST).decode("utf-8", "replace")
        return Answer(response.status, body, {k.lower(): v for k, v in response.getheaders()})
    except (OSError, HTTPException) as error:
        raise NoAnswer(f"{method} {base}{path}: {error or type(error).__name__}") from error
    finally:
        connection.close()


def refused(answer: Answer) -> NoAnswer:
    """The error for a status that means nothing good."""
    kind = Busy if answer.status == 429 or answer.status >= 500 else NoAnswer
    return kind(f"status {answer.status}: {answer.body[:200]!r}")


@contextmanager
def probing(rule: str, remedy: str) -> Iterator[None]:
    """What does not answer while it is probed is not there, unless it says that it is busy."""
    try:
        yield
    except Busy:
        raise
    except NoAnswer as error:
        raise NotHere(f"{rule}; it did not ({error}). {remedy}") from error


def read(body: str, parse: Callable[[Any], T]) -> T:
    """Return what `parse` finds in JSON; raises NoAnswer for what is not as documented."""
    try:
        return parse(json.loads(body))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise NoAnswer(f"the answer is not as documented ({error!r}): {body[:200]!r}") from error
