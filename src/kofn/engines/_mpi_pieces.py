"""How a message goes by MPI: a small one as it is, a large one announced, then in pieces.

MPI counts in 32 bits, and tells nobody how far a message has come. Pieces lift the first limit, and
each that is there says that bytes flow: who waits for the next one looks again soon.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

# One message is one or more frames, or a single large value as it is. Those of more than SMALL
# bytes are announced by their length alone (a message of HEAD.size bytes: no frame is that short)
# and follow under a tag of their own, so that a standing receive of SMALL bytes is enough for
# everything else.
DATA, LARGE, CONTROL = 1, 2, 3
SMALL = 1 << 16
HEAD = struct.Struct("<Q")
FLIGHT = 8  # messages or pieces on their way to one process; its end of them may be slow
piece = 1 << 20  # bytes; the same on both sides

Bytes = bytes | memoryview


def cut(data: Bytes) -> Iterator[tuple[int, Bytes]]:
    """Return what is to be sent for a message, with the tags."""
    size = len(data)
    if size <= SMALL:
        yield DATA, data
        return
    yield DATA, HEAD.pack(size)
    view = memoryview(data)
    for at in range(0, size, piece):
        yield LARGE, view[at : at + piece]


def bulky(sending: Iterable[tuple[Any, Bytes]]) -> bool:
    """Tell whether there is something large among what may still be on its way."""
    return any(len(data) > SMALL for _, data in sending)


class Arriving:
    """A large message on its way here; `requests` are for its next pieces, in order."""

    __slots__ = ("_at", "_receive", "requests", "whole")

    def __init__(self, size: int, receive: Callable[[memoryview], Any]) -> None:
        self.whole: memoryview = np.empty(size, np.uint8).data
        self.requests: deque[Any] = deque()
        self._receive, self._at = receive, 0
        self._order()

    def _order(self) -> None:
        while len(self.requests) < FLIGHT and self._at < len(self.whole):
            self.requests.append(self._receive(self.whole[self._at : self._at + piece]))
            self._at += piece

    def arrived(self) -> bool:
        """Note that the next piece has; tell whether it was the last."""
        self.requests.popleft()
        self._order()
        return not self.requests
