"""Memory that the master and all workers share, so that workers exchange pieces among themselves.

It holds, for every share of the code: its pieces of the last two rounds, its vectors of the last
two rounds, and a few words that only its holder writes. The master writes the control word and the
plan (who does which rows from which round on). All-gather is: write your piece, stamp it, wait for
the others' stamps. Nothing is ever locked, so whoever is killed leaves nothing locked.

Order. Data first, then the word that says so; the reader in the other order. A word is one aligned
store of eight bytes, so it is never torn. `fence` keeps the order on machines that reorder memory.
A round that is stamped stays stamped when the share's holder dies: the memory outlives it.

Holding. The master makes the control word odd before it reads the stamps. Who sees a round complete
looks at the control word afterwards and goes on only if it has not changed. So a round that lacks a
stamp when the master reads is completed by nobody under the old plan, and every round that somebody
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

_LINE = 8  # words; a share's words have a cache line of their own
_ALIGN = 64
_SHIFT, _MASK = 40, (1 << 40) - 1  # a stamp is an epoch above a round
_SPINS, _NAP, _LONG_NAP = 20, 5e-5, 1e-3

_lock = Lock()


def fence() -> None:
    """Keep memory accesses before it and after it apart.

    On ARM, accesses from before and after may both move into one held lock. Nothing passes a
    release that is followed by an acquire.
    """
    with _lock:
        pass
    with _lock:
        pass


@dataclass(frozen=True)
class ExchangeLayout:
    """How much of what is exchanged. Without values there are only words."""

    shares: int
    rows: int  # of a share
    length: int  # of the vector
    dtype: str
    values: bool = True

    @property
    def memory(self) -> np.dtype[Any]:
        """All of the memory, as one record. Every row begins on a cache line.

        The first row of words and the last vectors are the master's: its vector is that of round 0.
        """
        line = _ALIGN // np.dtype(self.dtype).itemsize if self.values else 0
        piece, vector = (-(-n // line) * line if line else 0 for n in (self.rows, self.length))
        return np.dtype(
            [
                ("words", np.int64, (self.shares + 2, _LINE)),
                ("plan", np.uint8, (65536 + 4096 * self.shares,)),
                ("pieces", self.dtype, (self.shares, 2, piece)),
                ("vectors", self.dtype, (self.shares + 1, 2, vector)),
            ]
        )

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.memory.itemsize


class Progress(NamedTuple):
    """The status of every share, one entry a share; the last is the master's own."""

    epochs: Words  # of its last stamp, 0 for none
    rounds: Words  # of its last stamp
    vectors: Words  # the round that its newest vector goes into, -1 for none
    stops: Words  # the round at which its holder, as the leader, ended the run; 0 for none
    reads: Words  # rows that its holder has read for its stamps


class Exchange:
    """The shared memory, laid out; the same object at the master and at the workers.

    `changed` is called after every word written: engines that simulate time need to know.
    """

    def __init__(
        self,
        memory: Any,
        layout: ExchangeLayout,
        now: Callable[[], float] = time.monotonic,
        changed: Callable[[], None] | None = None,
    ) -> None:
        self.layout, self.now, self.moved = layout, now, 0  # moved: bytes by the master's hand
        self.owner: Any = None  # of the memory: closed with this
        self._changed = changed
        record = np.frombuffer(memory, layout.memory, 1)
        self._words: Words = record["words"][0]
        self._plan: NDArray[np.uint8] = record["plan"][0]
        self._pieces: NDArray[Any] = record["pieces"][0, :, :, : layout.rows]
        self._vectors: NDArray[Any] = record["vectors"][0, :, :, : layout.length]

    def close(self) -> None:
        """Let go of the memory here. Idempotent."""
        owner, self.owner = self.owner, None
        self._words, self._plan = np.empty((0, _LINE), np.int64), np.empty(0, np.uint8)
        self._pieces = self._vectors = np.empty((0, 0))
        if owner is not None:
            owner.close()

    # Data. Views: of a piece, use only rows that were stamped.

    def pieces(self, round: int) -> NDArray[Any]:
        """All shares' pieces of a round, (shares, rows of a share)."""
        return self._pieces[:, round % 2]

    def vector(self, share: int, round: int) -> NDArray[Any]:
        """A share's vector of a round."""
        view: NDArray[Any] = self._vectors[share, round % 2]
        return view

    # The master's side.

    def hold(self) -> Progress:
        """Let nobody complete a round from now on, and return how far everybody is."""
        self._words[0, 0] |= 1
        fence()
        return self.progress()

    def publish(self, plan: bytes) -> None:
        """Write a plan and lift the hold. What is written does not grow with the vector."""
        if len(plan) > len(self._plan):
            raise ValueError(f"a plan of {len(plan)} bytes; there is room for {len(self._plan)}")
        words = self._words
        words[0, 0] |= 1
        fence()
        self._plan[: len(plan)] = np.frombuffer(plan, np.uint8)
        words[0, 1] = len(plan)
        fence()
        words[0, 0] += 1
        self.moved += len(plan) + 16
        self._notify()

    def progress(self) -> Progress:
        """How far everybody is: a few words a share."""
        stamps, vectors, stops, reads = self._words[1:, :4].T.copy()
        self.moved += 4 * stamps.nbytes
        return Progress(stamps >> _SHIFT, stamps & _MASK, vectors - 1, stops, reads)

    # The workers' side.

    @property
    def control(self) -> int:
        """Changes with every plan; odd while the master holds, 0 before the first plan."""
        return int(self._words[0, 0])

    def plan(self) -> tuple[int, bytes] | None:
        """The control word and the plan under it; None while it is being written."""
        control = self.control
        if control == 0 or control & 1:
            return None
        fence()
        plan = self._plan[: int(self._words[0, 1])].tobytes()
        fence()
        return (control, plan) if self.control == control else None

    def stamp(self, share: int, epoch: int, round: int, read: int) -> None:
        """Say that a share's piece of a round, as asked by a plan, is there; and the rows read."""
        self._words[share + 1, 3] = read
        fence()
        self._words[share + 1, 0] = (epoch << _SHIFT) | round
        self._notify()

    def stamped(self, shares: Words, epochs: Words, round: int) -> bool:
        """Whether all these shares' stamps are of this round or a later one, each of its epoch."""
        stamps = self._words[shares + 1, 0]
        done = ((stamps >> _SHIFT) >= epochs) & ((stamps & _MASK) >= round)
        fence()
        return bool(done.all())

    def offer(self, share: int, round: int, vector: NDArray[Any]) -> None:
        """Write a share's vector of a round where others can take it."""
        if self.layout.values:
            self.vector(share, round)[:] = vector
        fence()
        self._words[share + 1, 1] = round + 1
        self._notify()

    def take(self, round: int) -> NDArray[Any] | None:
        """A copy of the vector of a round, of any share that has it; None if none has."""
        for share in np.flatnonzero(self._words[1:, 1] == round + 1).tolist():
            fence()
            vector = self.vector(share, round).copy() if self.layout.values else np.empty(0)
            fence()
            if self._words[share + 1, 1] == round + 1:
                return vector
        return None

    def offered(self, round: int) -> bool:
        """Whether a worker has the vector of a round, or of a later one."""
        offered = bool((self._words[1:, 1] > round).any())
        fence()
        return offered

    def stop(self, share: int, round: int) -> None:
        """As the leader: end the run at this round."""
        fence()
        self._words[share + 1, 2] = round
        self._notify()

    def stopped(self, share: int) -> int:
        """The round at which this share's holder ended the run, 0 if it did not."""
        round = int(self._words[share + 1, 2])
        fence()
        return round

    def rest(self, tries: int) -> None:
        """Wait a little, the longer the more often it was in vain: at most a millisecond."""
        if self._changed is not None:
            return  # time is simulated
        if tries < _SPINS:
            os.sched_yield()
        else:
            time.sleep(min(_LONG_NAP, _NAP * (tries - _SPINS + 1)))

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed()
