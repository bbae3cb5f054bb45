"""The messages on a connection between two nodes. No I/O.

    acceptor  -> connector   16 random bytes
    connector -> acceptor    16 random bytes, and a proof: HMAC(token, both, the acceptor's id)
    acceptor  -> connector   its own proof; from then on frames, both ways

A frame is the sizes of its header and of its payload, the header in JSON, and the payload's bytes.
Until a proof is right, 48 bytes are all that is read.
"""

from __future__ import annotations

import hmac
import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

NONCE, PROOF = 16, 32
_SIZES = struct.Struct("!IQ")
MOST_HEADER, MOST_PAYLOAD = 1 << 20, 1 << 36  # bytes; more is not one of ours

Header = dict[str, Any]
Frame = tuple[Header, memoryview]
Room = Callable[[Header, int], memoryview | None]  # where a payload is to be written, if anywhere


class NotOurs(Exception):
    """Bytes came that do not follow the rules above; the connection is to be closed."""


def proof(token: bytes, role: bytes, first: bytes, second: bytes, id: str) -> bytes:
    """Show that one knows the token, for these two nonces, to a node or as one."""
    return hmac.digest(token, b"kofn peers " + role + first + second + id.encode(), "sha256")


def check(given: bytes, right: bytes) -> None:
    """Raise NotOurs unless a proof is right; takes as long whatever is wrong."""
    if not hmac.compare_digest(given, right):
        raise NotOurs


def pack(header: Header, size: int) -> bytes:
    """The header of a payload of so many bytes."""
    data = json.dumps(header, separators=(",", ":")).encode()
    return _SIZES.pack(len(data), size) + data


class Reader:
    """Cuts what is received into frames. Fill `target`, then say how much by `filled`.

    While `handshake` bytes are awaited they alone are read, and `filled` returns them. `room` may
    say where a payload is to be written.
    """

    def __init__(self, handshake: int, room: Room) -> None:
        self._room = room
        self.expect(handshake)

    def expect(self, size: int) -> None:
        """Await so many bytes more of the handshake."""
        self._await(memoryview(bytearray(size)), "handshake")

    def frames(self) -> None:
        """Await frames from now on."""
        self._await(memoryview(bytearray(_SIZES.size)), "sizes")

    def _await(self, buffer: memoryview, part: str) -> None:
        self._buffer = self.target = buffer
        self._part = part

    def filled(self, count: int) -> bytes | Frame | None:
        """Note that so many bytes were put into `target`; return the frames they complete."""
        self.target = self.target[count:]
        if self.target:
            return None
        if self._part == "handshake":
            return bytes(self._buffer)
        if self._part == "sizes":
            length, self._size = _SIZES.unpack(self._buffer)
            if not 2 <= length <= MOST_HEADER or self._size > MOST_PAYLOAD:
                raise NotOurs
            self._await(memoryview(bytearray(length)), "header")
            return None
        if self._part == "header":
            try:
                self._header = json.loads(bytes(self._buffer))
            except ValueError:
                raise NotOurs from None
            if not isinstance(self._header, dict):
                raise NotOurs
            if self._size:
                room = self._room(self._header, self._size)
                room = np.empty(self._size, np.uint8).data if room is None else room
                self._await(room, "payload")
                return None
            self._buffer = memoryview(b"")
        header, payload = self._header, self._buffer
        self.frames()
        return header, payload
