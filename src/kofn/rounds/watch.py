"""Watch: who takes part in a round, who owes a reply, and on whom the round still counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ..model import Dropped, Event, Joined, Lost, Reply, Send, Stored, Task, Tick

NEVER = float("inf")
FEW = 10.0  # with fewer than half in: so many times the seconds of the last reply


@dataclass(frozen=True)
class Late:
    """When to stop counting on a worker: judged by this round's replies, once half are in.

    With `factor`, at so many times the seconds in which half of the tasks were done. Without, at
    those seconds plus `spreads` times their spread, first reply to half of them. Never before
    `least` seconds: below that, asking others costs more than waiting.
    """

    factor: float | None = None
    spreads: float = 4.0
    least: float = 0.02

    def patience(self, first: float, half: float) -> float:
        """Seconds to wait for a task, given those of the first and of half of them."""
        if self.factor is not None:
            return max(self.least, self.factor * half)
        # Equal machines in step have no spread to speak of: a tenth is noise.
        return max(self.least, half + self.spreads * max(half - first, 0.1 * half))


class Watch:
    """The books of one round: who holds which share, who owes a reply, who is counted on.

    `holders` (worker -> share) take part from the start; who stores `key` later takes the share
    that `shares` gives it. Slow are those late with a task of this round, and `resting` ones: still
    at the work of an earlier round. They are asked only where nobody else can stand in. Whoever of
    them ends something, of whichever round, is counted on again. `enough`: with as many tasks
    ended, and fewer than half, the rest is judged all the same, if after a longer time.
    """

    def __init__(
        self,
        round: int,
        key: str,
        holders: Mapping[int, int],
        shares: Mapping[int, int],
        late: Late | None,
        enough: int,
        resting: Collection[int] = (),
    ) -> None:
        self.holder = {share: worker for worker, share in holders.items()}
        self.holder |= {shares[worker]: worker for worker in resting}
        self.late: list[int] = []  # whoever was, in order
        self.lost: list[int] = []
        self.joined: list[int] = []
        self.wake = NEVER  # when somebody may be late
        self._round, self._key, self._shares = round, key, shares
        self._rule, self._enough = late, enough
        self._slow = set(resting)
        self._open: dict[int, int] = {}  # task -> worker
        self._owed: dict[int, int] = {}  # worker -> tasks
        self._since: dict[int, float] = {}  # who owes -> since when it has been waited for
        self._start = self._now = 0.0
        self._first: float | None = None
        self._patience = self._provisional = NEVER
        self._sent = self._ended = 0

    def begin(self, time: float) -> None:
        """Note when the round begins."""
        self._start = self._now = time

    @property
    def owing(self) -> tuple[int, ...]:
        """Workers that owe a reply."""
        return tuple(sorted(self._owed))

    @property
    def slow(self) -> frozenset[int]:
        """Workers that are late with a task of this round, or still at an earlier one's."""
        return frozenset(self._slow)

    def quick(self, worker: int | None) -> bool:
        """Whether a worker is counted on."""
        return worker is not None and worker not in self._slow

    def shares(self) -> tuple[list[int], list[int]]:
        """Shares of those that are counted on, and of the slow."""
        shares: tuple[list[int], list[int]] = ([], [])
        for share, worker in self.holder.items():
            shares[worker in self._slow].append(share)
        return shares

    def send(self, task: Task) -> Send:
        """Note that a task goes out; return the command."""
        worker = task.worker
        self._open[task.id] = worker
        self._sent += 1
        self._owed[worker] = self._owed.get(worker, 0) + 1
        since = self._since.setdefault(worker, self._now)
        if worker not in self._slow:
            self.wake = min(self.wake, since + self._patience)
        return Send(task)

    def hear(self, event: Event) -> bool:
        """Take in an event; whether it changes who is there and counted on."""
        self._now = event.time
        if type(event) is Reply or type(event) is Dropped:
            if event.round == self._round:
                if type(event) is Reply and not event.last:
                    return False  # a piece tells nothing: who is slow streams, too
                self._end(event.task)
            return self._answered(event.worker)
        if type(event) is Tick:
            return self._look(event.time)
        if type(event) is Lost:
            return self._leave(event.worker)
        if type(event) is Stored:
            back = self._answered(event.worker)
            return (event.key == self._key and self._enter(event.worker)) or back
        if type(event) is Joined:
            self.joined.append(event.worker)
        return False

    def give_up(self) -> None:
        """Nothing has been heard for too long: who owes is slow, however little is known."""
        self._give_up(self._since)

    def _look(self, time: float) -> bool:
        if self._patience == NEVER:
            self._patience = self._provisional
        late = [w for w, since in self._since.items() if since + self._patience <= time]
        if self.late and late:
            self._patience *= 2  # or, where all differ much, each wave would bring on the next
        return self._give_up(late)

    def _give_up(self, workers: Iterable[int]) -> bool:
        late = [worker for worker in workers if worker not in self._slow]
        self._slow.update(late)
        self.late += [worker for worker in late if worker not in self.late]
        quick = [since for worker, since in self._since.items() if worker not in self._slow]
        self.wake = min(quick, default=NEVER) + self._patience
        return bool(late)

    def _enter(self, worker: int) -> bool:
        share = self._shares.get(worker)
        if share is None or share in self.holder:
            return False
        self.holder[share] = worker
        return True

    def _leave(self, worker: int) -> bool:
        self._slow.discard(worker)
        self._since.pop(worker, None)
        if self._owed.pop(worker, None) is not None:
            self._open = {task: w for task, w in self._open.items() if w != worker}
        share = self._shares.get(worker)
        if share is None or self.holder.get(share) != worker:
            return False
        del self.holder[share]
        self.lost.append(worker)
        return True

    def _answered(self, worker: int) -> bool:
        if worker in self._since:
            if worker in self._owed:
                self._since[worker] = self._now  # it goes on with the next one
            else:
                del self._since[worker]
        if worker not in self._slow:
            return False
        self._slow.discard(worker)
        if worker in self._since:
            self.wake = min(self.wake, self._since[worker] + self._patience)
        return True

    def _end(self, task: int) -> None:
        worker = self._open.pop(task, None)
        if worker is None:
            return
        self._owed[worker] -= 1
        if not self._owed[worker]:
            del self._owed[worker]
        self._ended += 1
        if self._rule is None or self._patience != NEVER:
            return
        took = self._now - self._start
        self._first = took if self._first is None else self._first
        if 2 * len(self._open) <= self._sent:
            self._patience = self._rule.patience(self._first, took)
            self.wake = self._start + self._patience
        elif self._ended >= self._enough:
            self._provisional = FEW * max(self._rule.least, took)
            self.wake = self._start + self._provisional
