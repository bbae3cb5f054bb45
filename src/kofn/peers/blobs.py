"""Bytes that one node has and others fetch; whoever fetches passes on what it has so far.

They travel in parts: who is asked for bytes that it is being sent itself sends them on as they
come, so a chain of nodes takes hardly longer than one copy. Nodes of one machine map the memory of
the one that has them, and are told how far it is. No sockets here.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from .wire import Header

PIECE = 256 * 1024  # bytes of one frame
WANT, DATA = "want", "data"  # from here on; these are the bytes
PUSH = "push"  # such a blob is about to come
MAP, HAVE = "map", "have"  # this is the memory; so much of it is there
TOLD = 4  # times that a node that maps a blob is sent how much is there
_KEPT = 64  # names that are remembered as wanted before they are there


class Part(NamedTuple):
    """A frame to send: to whom, and what. A descriptor goes with it where there is one."""

    link: Any
    header: Header
    payload: memoryview | None = None
    fd: int | None = None


class Blob:
    """Some bytes: the first `have` of them are there. Those of `fd` can be mapped by others."""

    def __init__(self, buffer: memoryview, have: int, fd: int | None = None) -> None:
        self.buffer, self.have, self.fd = buffer, have, fd
        # Who has asked, and how far it was sent; for one that was given the memory -1, less how
        # much it was told to be there.
        self.waiting: list[tuple[Any, int]] = []

    @property
    def complete(self) -> bool:
        return self.have == len(self.buffer)

    def __del__(self) -> None:
        if self.fd is not None:
            os.close(self.fd)


def copied(view: memoryview, mapped: bool) -> Blob:
    """A copy of these bytes; `mapped`: in memory that can be mapped elsewhere."""
    if not mapped:
        return Blob(np.frombuffer(view, np.uint8).copy().data, len(view))
    blob = allocate(len(view))
    if blob.fd is None:
        blob.buffer[:] = view
    else:
        # The system call fills fresh pages faster than a fault for each of them does.
        done = 0
        while done < len(view):
            done += os.pwrite(blob.fd, view[done:], done)
    return blob


def allocate(size: int) -> Blob:
    """Room for so many bytes, in memory that can be mapped elsewhere if they are many."""
    fd = -1
    if size >= PIECE:
        with suppress(AttributeError, OSError):  # not every system has it, or lets have it
            fd = os.memfd_create("kofn-peers", os.MFD_CLOEXEC)
    if fd < 0:
        return Blob(np.empty(size, np.uint8).data, 0)
    try:
        os.ftruncate(fd, size)
        return Blob(memoryview(mmap.mmap(fd, size)), 0, fd)
    except BaseException:
        os.close(fd)
        raise


class Blobs:
    """All blobs of a node, by name."""

    def __init__(self) -> None:
        self._blobs: dict[str, Blob] = {}
        self._wanted: dict[str, list[tuple[Any, int]]] = {}  # of blobs that are not there yet

    def __getitem__(self, name: str) -> Blob | None:
        return self._blobs.get(name)

    def begin(self, name: str, size: int) -> Blob:
        """A blob that is about to come; the one that is there if there is one of that size."""
        blob = self._blobs.get(name)
        if blob is None or len(blob.buffer) != size:
            blob = self._blobs[name] = allocate(size)
            blob.waiting += self._wanted.pop(name, [])
        return blob

    def offer(self, name: str, buffer: memoryview) -> list[Part]:
        """Have a blob; it must not be changed from now on."""
        return self.have(name, Blob(buffer, len(buffer)))

    def have(self, name: str, blob: Blob) -> list[Part]:
        """The same of a blob that was allocated."""
        self._blobs[name] = blob
        blob.have = len(blob.buffer)
        blob.waiting += self._wanted.pop(name, [])
        return self._serve(name, blob)

    def drop(self, name: str) -> None:
        """Have it no more."""
        self._blobs.pop(name, None)

    def clear(self) -> None:
        """Have none."""
        self._blobs.clear()
        self._wanted.clear()

    def names(self) -> list[str]:
        """Those that are here or coming, the oldest first."""
        return list(self._blobs)

    # What came.

    def wanted(self, link: Any, header: Header) -> list[Part]:
        """Somebody asks for the bytes from `at` on."""
        name, at = str(header["name"]), int(header["at"])
        blob = self._blobs.get(name)
        if blob is None:
            while len(self._wanted) >= _KEPT:
                del self._wanted[next(iter(self._wanted))]
            self._wanted.setdefault(name, []).append((link, at))
            return []
        blob.waiting.append((link, at))
        return self._serve(name, blob)

    def room(self, header: Header, size: int) -> memoryview | None:
        """The memory that these bytes belong in; None if nobody wants them."""
        if header.get("k") != DATA:
            return None
        name, at = str(header["name"]), int(header["at"])
        blob = self._blobs.get(name)
        # Bytes from another place than where it stands would leave a gap, or come a second time.
        if blob is None or blob.have != at or at + size > len(blob.buffer):
            return None
        return blob.buffer[at : at + size]

    def came(self, header: Header, payload: memoryview) -> list[Part]:
        """Bytes have come; returns what to pass on."""
        name, at = str(header["name"]), int(header["at"])
        blob = self._blobs.get(name)
        if blob is None or blob.have != at or payload.obj is not blob.buffer.obj:
            return []
        blob.have += len(payload)
        return self._serve(name, blob)

    def mapped(self, header: Header, fd: int) -> None:
        """The memory of a blob has come, of a node of this machine; takes the descriptor over."""
        blob, size = self._blobs.get(str(header["name"])), int(header["size"])
        if blob is None or blob.complete or len(blob.buffer) != size:
            os.close(fd)
            return
        # What is here already is there too, or will be soon.
        old, blob.fd = blob.fd, fd
        blob.buffer, blob.have = memoryview(mmap.mmap(fd, size)), 0
        blob.waiting = [(link, max(0, sent)) for link, sent in blob.waiting]  # to be told again
        if old is not None:
            os.close(old)

    def told(self, header: Header) -> list[Part]:
        """Note how much of a mapped blob is there; return the messages to pass on."""
        name = str(header["name"])
        blob = self._blobs.get(name)
        if blob is None or not blob.have < int(header["at"]) <= len(blob.buffer):
            return []
        blob.have = int(header["at"])
        return self._serve(name, blob)

    def _serve(self, name: str, blob: Blob) -> list[Part]:
        parts, left, size = [], [], len(blob.buffer)
        for link, sent in blob.waiting:
            if blob.fd is not None and link.same_host:
                if sent >= 0:
                    parts.append(Part(link, {"k": MAP, "name": name, "size": size}, fd=blob.fd))
                    sent = -1
                # It cannot use a part: now and then is enough, as a sign of life.
                if blob.complete or blob.have + sent + 1 >= size // TOLD:
                    parts.append(Part(link, {"k": HAVE, "name": name, "at": blob.have}))
                    sent = -1 - blob.have
            while 0 <= sent < blob.have:
                piece = blob.buffer[sent : min(blob.have, sent + PIECE)]
                header = {"k": DATA, "name": name, "at": sent, "size": size}
                parts.append(Part(link, header, piece))
                sent += len(piece)
            if not blob.complete:
                left.append((link, sent))
        blob.waiting = left
        return parts
