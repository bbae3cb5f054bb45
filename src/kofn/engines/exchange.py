"""Memory that the master and all workers share, so that workers exchange pieces among themselves.

Every lane has a slot: its pieces of the last two rounds, its vectors of the last two rounds, and
a few words that only its holder writes. The master writes the control word and the leg (who does
which rows from which round on). All-gather is: write your piece, stamp it, wait for the others'
stamps. Nothing is ever locked, so whoever is killed leaves nothing held.

Order. Data first, then the word that says so; the reader in the other order. A word is one aligned
store of eight bytes, so it is never torn. `fence` keeps the order on machines that reorder memory.
A round that a lane has stamped stays stamped when its holder dies: the memory outlives it.

Holding. The master makes the control word odd before it reads the stamps. Who sees a round complete
looks at the control word afterwards and goes on only if it has not changed. So a round that lacks a
stamp when the master reads is completed by nobody under the old leg, and every round that somebody
has completed is seen complete by the master: all agree on the replies a round is decoded from.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int64]

TASK = "exchange"  # the `what` of a task that waits for others: an engine must run them together
REST, WORK, GATHER = "rest", "work", "gather"  # the `what` of its valueless pieces begins so

_LINE = 8  # words; a lane's words have a cache line of their own
_ALIGN = 64
_SHIFT, _MASK = 40, (1 << 40) - 1  # a stamp is an epoch above a round
_SPINS, _NAP, _LONG_NAP = 20, 5e-5, 1e-3

_lock = Lock()


def fence() -> None:
    """Keep memory accesses before it and after it apart.

    Taking a lock keeps later ones from being early, giving it back keeps earlier ones from being
    late: taken once, both may meet inside of it, and on ARM they do. Giving it back and taking it
    again keeps them apart: nothing passes a release that is followed by an acquire.
    """
    with _lock:
        pass
    with _lock:
        pass


@dataclass(frozen=True)
class NetworkCost:
    """What an all-gather costs on the virtual engine.

    A ring: each of n workers passes on n - 1 pieces, all at the same time, so it takes
    (n - 1) (latency + bytes / bandwidth) for pieces of `bytes`.
    """

    latency: float = 5e-5  # seconds a message
    bandwidth: float = 1.25e9  # bytes a second

    def seconds(self, workers: int, size: int) -> float:
        """Seconds of one all-gather among so many workers."""
        return (workers - 1) * (self.latency + size / self.bandwidth)


@dataclass(frozen=True)
class ExchangeLayout:
    """How much of what is exchanged. Without values there are only words."""

    lanes: int
    rows: int  # of a share
    length: int  # of the vector
    dtype: str
    values: bool = True

    @property
    def leg_bytes(self) -> int:
        """Room for a leg."""
        return 65536 + 4096 * self.lanes

    @property
    def offsets(self) -> tuple[int, int, int]:
        """Where the legs, the pieces and the vectors begin."""
        words = 8 * _LINE * (self.lanes + 2)
        pieces = words + self.leg_bytes
        return words, pieces, pieces + self.lanes * 2 * self._padded(self.rows)

    @property
    def size(self) -> int:
        """Bytes in all. The master has a slot too, for the vector of round 0."""
        return self.offsets[2] + (self.lanes + 1) * 2 * self._padded(self.length)

    def _padded(self, count: int) -> int:
        each = np.dtype(self.dtype).itemsize if self.values else 0
        return -(-count * each // _ALIGN) * _ALIGN


class Progress(NamedTuple):
    """What every lane says of itself, one entry a lane; the last is the master's own."""

    epochs: Words  # of its last stamp, 0 for none
    rounds: Words  # of its last stamp
    vectors: Words  # the round that its newest vector goes into, -1 for none
    stops: Words  # the round at which it, as the leader, ended the run; 0 for none
    reads: Words  # rows that its holder has read for its stamps


class Exchange:
    """The shared memory, laid out; the same object at the master and at the workers.

    `changed` is called after every word written: engines that simulate time need to know.
    """

    def __init__(
        self,
        memory: Any,
        shape: ExchangeLayout,
        now: Callable[[], float] = time.monotonic,
        changed: Callable[[], None] | None = None,
    ) -> None:
        self.shape, self.now, self.moved = shape, now, 0  # moved: bytes by the master's hand
        self.owner: Any = None  # of the memory: closed with this
        self._memory, self._changed = memory, changed
        legs, pieces, vectors = shape.offsets
        self._words: Words = np.frombuffer(memory, np.int64, legs // 8).reshape(-1, _LINE)
        self._leg = memoryview(memory)[legs : legs + shape.leg_bytes]
        self._pieces = self._rows(pieces, shape.lanes, shape.rows)
        self._vectors = self._rows(vectors, shape.lanes + 1, shape.length)

    def _rows(self, offset: int, lanes: int, length: int) -> NDArray[Any]:
        """Two rows a lane, each beginning on a cache line."""
        padded = self.shape._padded(length)
        count = lanes * 2 * padded // np.dtype(self.shape.dtype).itemsize
        flat = np.frombuffer(self._memory, self.shape.dtype, count, offset)
        return flat.reshape(lanes, 2, -1)[:, :, :length]

    def close(self) -> None:
        """Let go of the memory here. Idempotent."""
        owner, self.owner = self.owner, None
        self._leg.release()
        self._words = np.empty((0, _LINE), np.int64)
        self._pieces = self._vectors = np.empty((0, 0))
        self._memory = None
        if owner is not None:
            owner.close()

    # Data. Views: of a piece, use only rows that were stamped.

    def pieces(self, round: int) -> NDArray[Any]:
        """All lanes' pieces of a round, (lanes, rows of a share)."""
        return self._pieces[:, round % 2]

    def vector(self, lane: int, round: int) -> NDArray[Any]:
        """A lane's vector of a round."""
        view: NDArray[Any] = self._vectors[lane, round % 2]
        return view

    # The master's side.

    def hold(self) -> Progress:
        """Let nobody complete a round from now on, and return how far everybody is."""
        self._words[0, 0] |= 1
        fence()
        return self.progress()

    def publish(self, leg: bytes) -> None:
        """Write a leg and lift the hold. What is written does not grow with the vector."""
        if len(leg) > self.shape.leg_bytes:
            raise ValueError(f"a leg of {len(leg)} bytes; there is room for {self.shape.leg_bytes}")
        words = self._words
        words[0, 0] |= 1
        fence()
        self._leg[: len(leg)] = leg
        words[0, 1] = len(leg)
        fence()
        words[0, 0] += 1
        self.moved += len(leg) + 16
        self._tell()

    def progress(self) -> Progress:
        """How far everybody is: a few words a lane."""
        stamps, vectors, stops, reads = self._words[1:, :4].T.copy()
        self.moved += 4 * stamps.nbytes
        return Progress(stamps >> _SHIFT, stamps & _MASK, vectors - 1, stops, reads)

    # The workers' side.

    @property
    def control(self) -> int:
        """Changes with every leg; odd while the master holds, 0 before the first leg."""
        return int(self._words[0, 0])

    def leg(self) -> tuple[int, bytes] | None:
        """The control word and the leg under it; None while it is being written."""
        control = self.control
        if control == 0 or control & 1:
            return None
        fence()
        found = bytes(self._leg[: int(self._words[0, 1])])
        fence()
        return (control, found) if self.control == control else None

    def stamp(self, lane: int, epoch: int, round: int, read: int) -> None:
        """Say that this lane's piece of a round, as asked by a leg, is there; and the rows read."""
        self._words[lane + 1, 3] = read
        fence()
        self._words[lane + 1, 0] = (epoch << _SHIFT) | round
        self._tell()

    def stamped(self, lanes: Words, epochs: Words, round: int) -> bool:
        """Whether all these lanes have stamped this round (or a later one), each for its epoch."""
        stamps = self._words[lanes + 1, 0]
        done = ((stamps >> _SHIFT) >= epochs) & ((stamps & _MASK) >= round)
        fence()
        return bool(done.all())

    def offer(self, lane: int, round: int, vector: NDArray[Any]) -> None:
        """Write a lane's vector of a round where others can take it."""
        if self.shape.values:
            self.vector(lane, round)[:] = vector
        fence()
        self._words[lane + 1, 1] = round + 1
        self._tell()

    def take(self, round: int) -> NDArray[Any] | None:
        """A copy of the vector of a round, from any lane that has it; None if none has."""
        for lane in np.flatnonzero(self._words[1:, 1] == round + 1).tolist():
            fence()
            found = self.vector(lane, round).copy() if self.shape.values else np.empty(0)
            fence()
            if self._words[lane + 1, 1] == round + 1:
                return found
        return None

    def offered(self, round: int) -> bool:
        """Whether anybody has the vector of a round, or of a later one."""
        found = bool((self._words[1:, 1] > round).any())
        fence()
        return found

    def stop(self, lane: int, round: int) -> None:
        """As the leader: end the run at this round."""
        fence()
        self._words[lane + 1, 2] = round
        self._tell()

    def stopped(self, lane: int) -> int:
        """The round at which this lane ended the run, 0 if it did not."""
        found = int(self._words[lane + 1, 2])
        fence()
        return found

    def rest(self, tries: int) -> None:
        """Wait a little, the longer the more often it was in vain: at most a millisecond."""
        if self._changed is not None:
            return  # time is simulated
        if tries < _SPINS:
            os.sched_yield()
        else:
            time.sleep(min(_LONG_NAP, _NAP * (tries - _SPINS + 1)))

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed()
