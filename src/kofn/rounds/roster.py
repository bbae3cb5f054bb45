"""The roster of workers: which are live, keep what, owe what since when, and have which slot.

One object for all rounds of a cluster, kept by the driver. It changes where events are noted and
where commands are sent, nowhere else. A round begins with a copy of what it needs, and
learns by events what changes meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Any
from weakref import WeakSet

from ..model import Assign, Dropped, Event, Failed, Joined, Leaving, Lost, Reply, Stored

Enough = Callable[[float], bool]  # whether enough are there, at this time


class Debts:
    """How many answers each worker owes, and since when it has been waited for."""

    def __init__(self) -> None:
        self.owed: dict[int, int] = {}  # worker -> answers; whoever owes none is left out
        self.since: dict[int, float] = {}  # worker -> when it last answered, or first owed

    def add(self, worker: int, time: float) -> None:
        """A worker owes one answer more."""
        owed = self.owed.get(worker, 0)
        self.owed[worker] = owed + 1
        if not owed:
            self.since[worker] = time

    def answered(self, worker: int, time: float, ended: int) -> None:
        """A message of a worker came, and so many of its debts have ended."""
        owed = self.owed.get(worker, 0) - ended
        if owed > 0:
            self.owed[worker] = owed
            self.since[worker] = time
        elif worker in self.owed:  # this is done for every reply: no call
            del self.owed[worker]
            self.since.pop(worker, None)

    def drop(self, worker: int) -> None:
        """A worker owes nothing any more."""
        self.owed.pop(worker, None)
        self.since.pop(worker, None)


class Slots(dict[int, int]):
    """Worker -> its slot, of `count` slots of one matrix, sum or sequence. The lost have none.

    It changes by assignment, `del`, `pop` and `update`. Which slots are free is kept along with it:
    thousands of workers are given theirs one by one.
    """

    __hash__ = object.__hash__  # type: ignore[assignment]  # known by identity

    def __init__(self, count: int, slots: Mapping[int, int] | None = None) -> None:
        super().__init__(slots or {})
        self.count = count
        self.taken = Counter(self.values())  # slot -> how many have it
        self._free = [slot for slot in range(count) if slot not in self.taken]  # a heap; and more

    def __setitem__(self, worker: int, slot: int) -> None:
        self.pop(worker, None)
        super().__setitem__(worker, slot)
        self.taken[slot] += 1

    def __delitem__(self, worker: int) -> None:
        self._leave(self[worker])
        super().__delitem__(worker)

    def pop(self, worker: int, default: Any = None) -> Any:
        """Take a worker's slot from it; return that, or the default where it has none."""
        if worker not in self:
            return default
        slot = self[worker]
        del self[worker]
        return slot

    def update(self, slots: Mapping[int, int]) -> None:  # type: ignore[override]
        """Give these workers these slots."""
        for worker, slot in slots.items():
            self[worker] = slot

    def copy(self) -> Slots:
        """Return the same slots, which nobody else changes."""
        return Slots(self.count, self)

    def free(self) -> list[int]:
        """Slots that nobody has."""
        return [slot for slot in range(self.count) if slot not in self.taken]

    def first_free(self) -> int | None:
        """The first slot that nobody has."""
        while self._free and self._free[0] in self.taken:
            heappop(self._free)  # it comes back when it is left
        return self._free[0] if self._free else None

    def _leave(self, slot: int) -> None:
        self.taken[slot] -= 1
        if not self.taken[slot]:
            del self.taken[slot]
            heappush(self._free, slot)


class Roster:
    """What is known of every worker. Starts with those that are live."""

    def __init__(self, workers: Iterable[int]) -> None:
        self.kept: dict[int, set[str]] = {worker: set() for worker in workers}  # of the live: keys
        self.refused: set[tuple[int, str]] = set()  # puts that failed: worker, key
        self.late: set[tuple[int, str]] = set()  # puts whose answer is not waited for any more
        self.leaving: dict[int, float] = {}  # who will be gone, and when
        self.unborn: dict[int, str] = {}  # joiners that never came, and why
        self.debts = Debts()  # of tasks and puts
        self.joined = 0  # so far
        self.changes = 0  # of who is live or leaves, keeps, was sent or could not keep what
        self.most = len(self.kept)  # that were ever live at once
        self._gone: set[int] = set()
        self._wanted: set[str] = set()  # keys that were put, and not forgotten since
        self._coming: dict[tuple[int, str], int | None] = {}  # puts without an answer, their slots
        self._slots: WeakSet[Slots] = WeakSet()

    # What is known.

    @property
    def workers(self) -> tuple[int, ...]:
        """The live workers, sorted."""
        return tuple(sorted(self.kept))

    def keeps(self, worker: int, key: str) -> bool:
        """Whether a worker is live and keeps something under a key."""
        return key in self.kept.get(worker, ())

    def came(self, worker: int) -> bool:
        """Whether a worker is live, or was lost."""
        return worker in self.kept or worker in self._gone

    def coming(self, key: str) -> int:
        """To how many what is to be kept under a key is on its way."""
        return sum(k == key for _, k in self._coming)

    def overdue(self, key: str) -> bool:
        """Count no longer on those to whom it is on its way; whether there are any more of them."""
        self.changes += 1
        new = {pair for pair in self._coming if pair[1] == key} - self.late
        self.late |= new
        return bool(new)

    def waiting(self, key: str, workers: Iterable[int]) -> list[int]:
        """Those of these workers that are live, do not keep a key and have not refused it."""
        return [
            w
            for w in workers
            if key not in self.kept.get(w, {key}) and (w, key) not in self.refused
        ]

    def left(self, key: str, workers: list[int]) -> list[int]:
        """The same list, cut until its last one is waiting: that costs little for each event."""
        while workers and not self.waiting(key, workers[-1:]):
            workers.pop()
        return workers

    def silent(self, now: float, seconds: float) -> set[int]:
        """Workers that owe an answer and have been silent for so many seconds."""
        return {worker for worker, last in self.debts.since.items() if last + seconds <= now}

    def behind(self, tasks: int) -> list[int]:
        """Workers that owe answers to so many tasks or puts: more would only pile up."""
        return [worker for worker, owed in self.debts.owed.items() if owed >= tasks]

    def owing(self, workers: Iterable[int]) -> set[int]:
        """Those of these workers that owe an answer."""
        return {worker for worker in workers if worker in self.debts.since}

    # Commands, as they are sent.

    def slots(self, count: int) -> Slots:
        """Return so many slots, nobody in them. Who is lost leaves them by itself."""
        slots = Slots(count)
        self._slots.add(slots)
        return slots

    def put(self, worker: int, key: str, time: float, slot: int | None = None) -> None:
        """Something to be kept has been sent, with which a worker fills a slot if there is one."""
        self.changes += 1
        self._wanted.add(key)
        self.refused.discard((worker, key))
        self.late.discard((worker, key))
        self._coming[worker, key] = slot
        self.debts.add(worker, time)

    def drop(self, worker: int, keys: set[str]) -> None:
        """A worker keeps these no longer: what is about to be sent takes their place."""
        self.changes += 1
        self.kept[worker] -= keys

    def assign(self, command: Assign) -> None:
        """Note the slot that a round has given a worker, or none; a lost worker has none."""
        if command.slot is None:
            command.slots.pop(command.worker, None)
        elif command.worker in self.kept:
            command.slots[command.worker] = command.slot

    def forget(self, key: str) -> None:
        """Nobody keeps this key any more, nor will."""
        self.changes += 1
        self._wanted.discard(key)
        self.refused = {pair for pair in self.refused if pair[1] != key}
        self.late = {pair for pair in self.late if pair[1] != key}
        self._coming = {pair: slot for pair, slot in self._coming.items() if pair[1] != key}
        for kept in self.kept.values():
            kept.discard(key)

    # Events, as they are noted.

    def note(self, event: Event) -> Event:
        """Take in what an event says of its worker; return it, with the slot that a put fills."""
        if type(event) is Reply:
            self.debts.answered(event.worker, event.time, event.last)
            return event
        self.changes += 1
        if type(event) is Dropped:
            self.debts.answered(event.worker, event.time, 1)
        elif type(event) is Joined:
            self.kept[event.worker] = set()
            self.joined += 1
            self.most = max(self.most, len(self.kept))
        elif type(event) is Lost:
            self._lost(event.worker, event.reason)
        elif type(event) is Leaving:
            self._leaving(event)
        elif type(event) is Stored or type(event) is Failed:
            return self._put_ended(event)
        return event

    def _leaving(self, event: Leaving) -> None:
        if event.deadline == float("inf"):
            self.leaving.pop(event.worker, None)
        elif event.worker in self.kept:
            self.leaving[event.worker] = event.deadline

    def _lost(self, worker: int, reason: str) -> None:
        self.leaving.pop(worker, None)
        if self.kept.pop(worker, None) is None and worker not in self._gone:
            self.unborn[worker] = reason
        self._gone.add(worker)
        self._coming = {pair: slot for pair, slot in self._coming.items() if pair[0] != worker}
        self.late = {pair for pair in self.late if pair[0] != worker}
        self.debts.drop(worker)
        for slots in self._slots:
            slots.pop(worker, None)

    def _put_ended(self, event: Stored | Failed) -> Event:
        worker, key = event.worker, event.key
        self.debts.answered(worker, event.time, 1)
        slot = None if key is None else self._coming.pop((worker, key), None)
        self.late.discard((worker, key or ""))
        if key is None or key not in self._wanted or worker not in self.kept:
            return event
        if type(event) is Stored:
            self.kept[worker].add(key)
            return event._replace(slot=slot)
        self.refused.add((worker, key))
        return event
