"""The master's end of one worker of this machine: a stream, and a mailbox beside it."""

from __future__ import annotations

import mmap
import socket
from typing import Any

from . import _wire as wire
from ._wakeup import MAILBOXES, Mailbox


class Peer(wire.Channel):
    """What the master holds for one worker."""

    def __init__(self, id: int, sock: socket.socket, poll: Any) -> None:
        super().__init__(sock, poll)
        self.mailbox = Mailbox() if MAILBOXES else None  # last of what may fail: it has memory
        self.id = id
        self.process: Any = None  # a Process, from its hello on
        self.reason = ""  # why it never came
        self.segments: set[int] = set()  # of our pool, that it has mapped
        self.maps: dict[int, mmap.mmap] = {}  # its reply segments, mapped here
        self.lent: set[int] = set()  # those of them that lie in rounds, and were not copied
        self.posted = 0  # bytes
        self.position = 0  # bytes of the stream from it that have been handled
        self.copied = 0  # bytes through memory that it and the master share

    @property
    def moved(self) -> int:
        """Bytes to and from it, but for operands, which lie where all workers read them."""
        return self.sent + self.posted + self.received + self.copied

    def post(self) -> bool:
        """Put what is unsent into the mailbox, if there is room; wake the worker afterwards."""
        if self.mailbox is None or self.outbox or self.broken or self.unsent_fds:
            return False
        data = b"".join(self.unsent)
        if not self.mailbox.post(data, self.sent):
            return False
        self.unsent.clear()
        self.posted += len(data)
        return True

    def close(self) -> None:
        super().close()
        if self.mailbox is not None:
            self.mailbox.given()
            self.mailbox = None  # its memory goes with it
        self.maps.clear()  # not closed: a reply that is just being read may lie there
