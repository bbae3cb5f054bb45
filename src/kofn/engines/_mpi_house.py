"""What the master of the MPI engine holds, of each worker and of all, until it is let go."""

from __future__ import annotations

import mmap
import os
from collections import deque
from typing import Any

from ..interrupts import held
from . import _forks
from ._mpi_bridge import Bridge
from ._mpi_link import Link
from ._mpi_near import Handle, Parcel, Place, Process, Sample, mapped
from .exchange import Exchange

NEVER = -(2**63)  # lower than every round


class Peer:
    """What the master knows of one worker."""

    __slots__ = (
        "awaited",
        "functions",
        "maps",
        "near",
        "notes",
        "process",
        "puts",
        "rounds",
        "tasks",
    )

    def __init__(self) -> None:
        self.process: Process | None = None  # if it runs on this machine; None until hello
        self.near = False  # it can map what we hold; False until hello
        self.awaited: Any = None  # a message whose large value comes next
        self.maps: dict[int, mmap.mmap] = {}  # its reply segments
        self.puts: dict[str, deque[Parcel | Handle]] = {}  # on their way to it, by key
        self.tasks: dict[int, int] = {}  # open ones -> their round
        self.functions: set[int] = set()
        self.rounds: set[int] = set()  # whose operands it has
        self.notes: list[bytes] = []  # frames that can wait for the next message

    def gets(self, key: str, parcel: Parcel | Handle) -> None:
        """Hold what is put there until it says that it has it."""
        self.puts.setdefault(key, deque()).append(parcel)

    def has(self, key: str) -> None:
        """Let go of the oldest such parcel."""
        queue = self.puts[key]
        queue.popleft().close()
        if not queue:
            del self.puts[key]

    def memory(self, segment: int | None, at: Place) -> mmap.mmap:
        """Map where a reply lies; once per segment, as the worker uses it again."""
        assert segment is not None
        if segment not in self.maps:
            self.maps[segment] = mapped(at, write=True)
        return self.maps[segment]

    def unmap(self, segment: int) -> None:
        """Let go of a segment that the worker has let go of."""
        if segment in self.maps:
            self.maps.pop(segment).close()

    def close(self) -> None:
        """Let go of all that is held for it."""
        if self.process is not None:
            self.process.close()
            self.process = None
        for old in self.maps.values():
            old.close()
        for queue in self.puts.values():
            for parcel in queue:
                parcel.close()


class House:
    """All that must be let go at the end; apart from the engine, so a finaliser can hold it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.link: Link | Bridge | None = None
        self.peers: dict[int, Peer] = {}  # the joining ones too
        self.operands: dict[int, Parcel] = {}
        self.exchanges: list[Exchange] = []
        self.sample = Sample()  # all near workers map it, and look there for
        self.floor = memoryview(self.sample.map).cast("q")  # [0]: the highest cancelled round
        self.floor[0] = NEVER
        _forks.watch(self)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's socket, so that its death is still seen."""
        if isinstance(self.link, Bridge) and self.link.channel is not None:
            self.link.channel.sock.close()

    def close(self) -> None:
        """End the workers, and what we started for them; not to be interrupted."""
        if os.getpid() == self.owner:  # a forked child must not end its parent's workers
            with held():
                self._close()

    def _close(self) -> None:
        if isinstance(self.link, Bridge):
            self.link.close(p.process for p in self.peers.values() if p.process is not None)
        elif self.link is not None:
            self.link.close()
        for peer in self.peers.values():
            peer.close()
        for operand in self.operands.values():
            operand.close()
        for exchange in self.exchanges:
            exchange.close()
        self.floor.release()
        self.sample.close()
