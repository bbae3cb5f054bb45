"""What the master of the MPI engine holds, of each worker and of all, until it is let go."""

from __future__ import annotations

import mmap
import os
from collections import deque

from . import _forks
from ._mpi_bridge import Bridge
from ._mpi_link import Link
from ._mpi_near import Handle, Parcel, Place, mapped
from .exchange import Exchange
from .memory import Segment

NEVER = -(2**63)  # lower than every round


class Peer:
    """What the master knows of one worker."""

    __slots__ = ("functions", "here", "maps", "near", "notes", "pid", "puts", "rounds", "tasks")

    def __init__(self) -> None:
        self.pid = 0  # until hello, as these
        self.here = False  # it runs on this machine
        self.near = False  # it can map what we hold
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
        """Let go of all that is mapped for it."""
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
        self.sample = Segment(8)  # all near workers map it, and look there for
        self.floor = memoryview(self.sample.map).cast("q")  # [0]: the highest cancelled round
        self.floor[0] = NEVER
        _forks.watch(self)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's socket, so that its death is still seen."""
        if isinstance(self.link, Bridge) and self.link.channel is not None:
            self.link.channel.sock.close()

    def close(self) -> None:
        """End the workers, and what we started for them."""
        if os.getpid() != self.owner:
            return  # a forked child must not end its parent's workers
        if isinstance(self.link, Bridge):
            self.link.close(peer.pid for peer in self.peers.values() if peer.here)
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
