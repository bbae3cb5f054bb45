"""The one loop that carries events and commands between a round and an engine."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from numbers import Integral
from threading import get_ident
from typing import Any, NoReturn

from .. import interrupts
from ..engines.base import Engine
from ..errors import CannotDo, Closed, Stalled, TooFewWorkers, WorkerError
from ..events import EventLog
from ..model import (
    Accuse,
    Assign,
    Command,
    Event,
    Failed,
    Keep,
    Leaving,
    Lost,
    Observe,
    Observed,
    Publish,
    Record,
    Send,
    Supply,
    Tick,
    new,
)
from .asked import Asked
from .base import Round
from .collector import resting
from .keep import Keeper
from .leaving import Departures
from .roster import Enough, Roster
from .trust import Trust

LOG_LENGTH = 200_000  # records; older ones are dropped
LOOK_EVERY = 0.25  # seconds between two looks at a wait that events alone do not end
LOOK = 0.01  # seconds between two looks whether another thread is still at it
FEWER = frozenset({Lost, Leaving, Failed})  # events after which slots may be free
Supplier = Callable[[int], object]


class RoundDriver:
    """An engine, its event log, and the roster of its workers.

    `wait`: seconds to wait for joiners below the threshold. `limit`: seconds to wait in silence
    for workers that are live. `lost_after`: a worker that owes an answer and says nothing for so
    many seconds is given up: ended, and from then on lost. `keep`: so many workers are to be live,
    and others are ordered for those that leave. `peers`: whether workers may connect to each other.

    Engines know one caller. Whoever holds `lock` is it; other threads have what they want done
    by that one (`call`), or by themselves when nobody is at it. It is held from `next_round` to
    the end of that round: a cancel ends all rounds with smaller ids too. Who holds it is
    interrupted only while it waits for events (see kofn.interrupts).

    Waits are compared with their end, never by what is left: below a clock's last digit a virtual
    clock would not move.
    """

    def __init__(
        self,
        engine: Engine,
        wait: float,
        limit: float,
        lost_after: float,
        keep: int = 0,
        peers: bool = True,
    ) -> None:
        self.peers = peers
        self.engine, self.wait, self.limit, self.lost_after = engine, wait, limit, lost_after
        self.closed, self.lock, self.keeper = False, interrupts.Lock(), Keeper(keep)
        self.roster, self.trust, self._resting = Roster(engine.workers), Trust(), resting(engine)
        self.log, self._departures = EventLog(most=LOG_LENGTH), Departures(self.roster)
        self.unwanted: deque[str] = deque()  # keys to forget; appended to from anywhere
        # Ids, each larger than all before, and the engine's: a second cluster on it counts on.
        # Who takes a round's id holds the lock until that round has run.
        rounds, tasks = engine.counters()
        self.next_round, self.next_task = rounds.__next__, tasks.__next__
        self._running, self._runner, self._ended = False, 0, -1  # runs; its thread; the last one
        self._unheard: list[Event] = []  # events noted that it has not heard of
        self._unnoted: deque[Event] = deque()  # left by an exception
        self._asked, self._home = Asked(), os.getpid()
        # Other threads must not wait for long until a round looks up; in virtual time nobody does.
        self._nap = float("inf") if engine.capabilities.virtual_time else LOOK_EVERY

    def check(self) -> None:
        """Raise Closed where the engine cannot be used, or not from this process."""
        if self.closed:
            raise Closed("this cluster is closed; call kofn.connect again.")
        if os.getpid() != self._home:
            raise Closed(
                f"this cluster belongs to process {self._home}, and this is a process forked from "
                f"it. Call kofn.connect here, or use the cluster in the process that opened it."
            )

    def __reduce__(self) -> NoReturn:
        raise CannotDo(
            "a cluster, and what its workers keep, cannot be pickled: they belong to the process "
            "that connected. Pickle the data or the results, and connect there instead."
        )

    def call(self, action: Callable[[], Any]) -> Any:
        """Do something to the engine, in whichever thread is driving it now."""
        done = self._asked.add(action)
        while not done.done():
            if self.lock.acquire(timeout=LOOK):
                try:
                    self._serve()
                finally:
                    self.lock.release()
        return done.result()

    def close(self) -> None:
        """Close the engine, by the hand of whoever drives it. Idempotent."""
        self.closed, ours = True, os.getpid() == self._home
        # In another process nobody drives it, whatever the lock says.
        self.call(self.engine.close) if ours else self.engine.close()

    def _serve(self) -> None:
        if self._asked.waiting:  # a turn of the loop makes no call for nothing
            self._asked.serve()
        while self.unwanted and not self.closed:
            self.forget(self.unwanted.popleft())

    def put(self, worker: int, key: str, value: Any, slot: int | None = None) -> None:
        """Have a worker keep something, and fill a slot with it; it owes an answer to that too."""
        with self.lock:
            self.engine.put(worker, key, value)
            self.roster.put(worker, key, self.engine.now(), slot)

    def forget(self, key: str) -> None:
        """Have every worker drop what it keeps under a key, also if that is still on its way."""
        with self.lock:
            self.roster.forget(key)
            if not self.closed:
                self.engine.forget(key)

    def run(self, round: Round, operand: Any, supply: Supplier) -> None:
        """Run a round to its end; afterwards all its work is stale, whatever happened.

        Raises TooFewWorkers, Stalled, or WorkerError with the worker's own traceback.
        """
        with self.lock, self._resting:
            if self._running:
                raise CannotDo(
                    "one round runs at a time, and what a round calls (on_round, say) is within "
                    "it: it may end and start workers, but not multiply or sum. Do that when the "
                    "round is over."
                )
            assert round.id > self._ended, "a round's id is taken under the lock"
            self._run(round, operand, supply)

    def _run(self, round: Round, operand: Any, supply: Supplier) -> None:
        engine, log, began = self.engine, self.log, self.engine.now()
        log.append(Record(began, "round", round.id, -1, -1, round.threshold, round.words))
        try:
            if operand is not None:
                engine.broadcast(round.id, operand)
            self._running, self._runner = True, get_ident()
            round.has_values = engine.capabilities.values
            self._obey(round, round.start(began), supply)
            for worker, deadline in list(self.roster.leaving.items()):
                self._obey(round, round.on(Leaving(began, worker, deadline)), supply)
            last, short = began, None
            while not round.done:
                interrupts.due()
                if self.closed:  # by another thread, or by what the round has called
                    self.check()
                now, next_look = engine.now(), min(self._give_up_silent(round), self._see_off())
                if not round.missing:
                    short, end = None, last + self.limit
                elif round.entering or self.roster.coming(round.key):
                    # One who stood by is about to help; the wait for joiners begins after it.
                    short, end = None, last + max(self.limit, self.wait)
                else:
                    short = now if short is None else short
                    end = short + min(self.wait, round.wait)
                if now >= end:
                    tried = round.last_resort(now) if short is None else ()
                    few = self.roster.overdue(round.key) or round.missing
                    given = few and self._offer(round, supply)  # maybe a slot has become free
                    if not self._obey(round, tried, supply) and not given and not round.done:
                        raise round.gave_up(now - (last if short is None else short))
                    last = now
                    continue
                until = min(end, round.wake, next_look, self.keeper.look, now + self._nap)
                missed, self._unheard = self._unheard, []
                idle = not missed and not round.has_idle_work
                events = missed + self._noted(max(0.0, until - now) if idle else 0.0)
                for event in events:  # a second pass: by now we know everyone who is lost
                    if commands := round.on(event):
                        self._obey(round, commands, supply)
                    # The rest of a batch still tells who lives: no early way out.
                    if type(event) is Failed and event.round == round.id and not round.done:
                        raise WorkerError(event.worker, event.error, event.traceback)
                if not round.done and not FEWER.isdisjoint(map(type, events)):
                    self._offer(round, supply)
                    for event in events if round.missing else ():
                        if type(event) is Lost and self._in_vain(round, event.time, event.worker):
                            raise round.gave_up(event.time - began)
                if events:
                    last = engine.now()
                elif (due := (now := engine.now()) >= round.wake) or not idle:
                    commands = round.on(Tick(now)) if due else round.idle_work(now)
                    assert not due or commands or round.done or round.wake > now, "a wait for ever"
                    if self._obey(round, commands, supply):
                        last = engine.now()  # who is asked now has its time
                self._serve()
        finally:
            self._running, self._unheard = False, []
            if not self.closed:
                engine.cancel(round.id)
            self._ended = round.id
            log.append(Record(engine.now(), ("raised", "done")[round.done], round.id, -1, -1, 0))

    def _offer(self, round: Round, supply: Supplier) -> bool:
        """Let those that stand by have what slots there are for them; whether one has one now."""
        before = self.roster.coming(round.key)
        for worker in list(self.roster.kept):
            supply(worker)
        return self.roster.coming(round.key) > before

    def settle(self, timeout: float = 0.0) -> None:
        """Take in what arrived between rounds, waiting at most `timeout` seconds for something."""
        self.check()
        if not self.lock.acquire(timeout=min(timeout, LOOK)):
            return  # another thread is at it, and takes in what arrives
        try:
            self._serve()
            while self._take(timeout):
                timeout = 0.0
            self._see_off()
        finally:
            self.lock.release()

    def some_workers(self, need: object = 1) -> tuple[int, ...]:
        """Return who is live; if nobody is, wait for one, and raise TooFewWorkers after `wait`.

        need: so many are waited for, if there were so many before.
        """
        self.settle()
        asked = int(need) if isinstance(need, Integral) else 1
        least = asked if 1 < asked <= self.roster.most else 1
        self.await_enough(lambda: len(self.roster.kept), least, lambda: self.wait)
        return self.roster.workers

    def _take(self, timeout: float) -> list[Event]:
        """Take in what has arrived; a round that is running hears of it too."""
        interrupts.due()
        events = self._noted(timeout)
        self._unheard += events if self._running else ()  # a callback of its must cost it none
        return events

    def _noted(self, timeout: float) -> list[Event]:
        """Return what has arrived, noted. An exception in the middle loses none of it."""
        unnoted, noted = self._unnoted, list[Event]()
        unnoted += self.engine.events(0.0 if unnoted else timeout)
        while unnoted:
            self.log.note(event := unnoted[0])
            noted.append(self.roster.note(event))
            unnoted.popleft()
        for event in self._departures.returned(noted) if self.roster.leaving else ():
            self.log.note(event)
            noted.append(self.roster.note(event))
        keeper = self.keeper
        if keeper.keep and (news := keeper.act(self.roster, self.engine.now(), self.order)):
            self.log.append(news)
        return noted

    def order(self, why: str = "asked for") -> int:
        """Have the engine start one more worker, and return its id."""
        worker = self.engine.join()
        if self.keeper.keep:
            self.keeper.ordered.add(worker)
        self.log.append(Record(self.engine.now(), "ordered", -1, worker, -1, 0, why))
        return worker

    def _give_up_silent(self, round: Round | None = None) -> float:
        """End workers that have owed an answer for too long; return when to look again."""
        if self.lost_after == float("inf"):  # a thousand workers need not be gone through an event
            return self.lost_after
        since, now = self.roster.debts.since, self.engine.now()
        while (look := min(since.values(), default=float("inf")) + self.lost_after) <= now:
            for worker in self.roster.silent(now, self.lost_after):
                self.engine.give_up(worker)
                del since[worker]  # once is enough; its Lost is on the way
                if round and self.keeper.keep and self._in_vain(round, now, worker):
                    raise Stalled(round.id, self.lost_after, [worker])  # so would be all that come
        return look

    def _in_vain(self, round: Round, now: float, worker: int) -> bool:
        """Whether all that come are lost before they have done anything, as this one."""
        most = len(self.roster.kept) + 2 * max(self.keeper.keep, round.threshold)
        gone = worker not in self.roster.kept
        if gone and (worker not in round.joined or worker in self.roster.unborn):
            return False
        return round.in_vain(worker, now, most, min(self.wait, round.wait))

    def _see_off(self) -> float:
        """Do what is due about those that leave; return when to look again."""
        if not self.roster.leaving:
            return float("inf")
        over = self._departures.see_off(self.engine, self.engine.now(), self.put)
        self._unheard += over if self._running else ()  # the next round is told as it begins
        return self._departures.next()

    def await_stored(self, key: str, workers: Sequence[int], enough: Enough) -> None:
        """Wait until each of these keeps `key`, could not, or is lost; a little beyond `enough`."""
        began, end, left = self.engine.now(), float("inf"), list(workers)

        def waiting() -> list[int]:
            nonlocal end
            now = self.engine.now()
            if enough(now):  # the rest is not waited for up to the limit
                end = min(end, now + max(LOOK_EVERY, min(3 * (now - began), self.limit / 2)))
            return [] if now >= end else self.roster.left(key, left)

        self._wait(waiting, key)

    def await_enough(self, ready: Callable[[], int], need: int, wait: Callable[[], float]) -> None:
        """Wait until `need` are ready, or raise TooFewWorkers after `wait()` seconds."""
        began = self.engine.now()
        while (live := ready()) < need:
            now, end = self.engine.now(), began + wait()  # a market may make it shorter meanwhile
            if now >= end:
                raise TooFewWorkers(live, need, now - began)
            self.settle(self._wait_at_most(end - now))

    def await_joined(self, worker: int) -> None:
        """Wait until a worker that was asked to join is live, or lost again."""
        self._wait(lambda: [] if self.roster.came(worker) else [worker])

    def await_lost(self, worker: int) -> None:
        """Wait until the loss of a worker has been noticed."""
        self._wait(lambda: [worker] if worker in self.roster.kept else [])

    def _wait(self, waiting: Callable[[], list[int]], key: str | None = None) -> None:
        """Take in events while someone is waited for.

        Raises Stalled after `limit` of silence, WorkerError where `key` could not be kept.
        """
        last = self.engine.now()
        while waiting():
            pause = self._wait_at_most(LOOK_EVERY)
            if not self.lock.acquire(timeout=LOOK):
                last = self.engine.now()  # another thread drives, and keeps watch itself
                continue
            try:
                now, end = self.engine.now(), last + self.limit
                late = waiting()  # none: another thread had the lock, and has heard of them
                if late and now >= end:
                    raise Stalled(-1, now - last, self.roster.waiting(key, late) if key else late)
                events = self._take(min(pause, end - now) if late else 0.0)
                last = events[-1].time if events else last
                self._give_up_silent()
                self._see_off()
                self._serve()
            finally:
                self.lock.release()
            for event in events:
                if type(event) is Failed and key is not None and event.key == key:
                    raise WorkerError(event.worker, event.error, event.traceback)

    def _wait_at_most(self, most: float) -> float:
        """Return how long to wait with the lock; where another thread runs rounds, rest first."""
        if self._runner in (0, get_ident()) or self._nap == float("inf"):
            return min(LOOK_EVERY, most)
        time.sleep(LOOK)
        return 0.0

    def _obey(self, round: Round, commands: Sequence[Command], supply: Supplier) -> bool:
        """Do what a round says; return whether somebody is asked for something by it."""
        engine, roster, now, asked = self.engine, self.roster, self.engine.now(), False
        live, submit, note, owe = roster.kept, engine.submit, self.log.add, roster.debts.add
        for command in commands:
            if type(command) is Send:
                task, worker = command.task, command.task.worker
                if worker not in live:
                    continue  # its Lost is in this very batch; the round is about to hear of it
                sent = (now, "send", task.round, worker, task.id, int(task.cost), "", ())
                note(new(Record, sent))
                submit(task)
                owe(worker, now)
                asked = True
            elif type(command) is Supply:
                supply(command.worker)
            elif type(command) is Keep and command.worker in roster.kept:
                self.put(command.worker, command.key, command.value)
            elif type(command) is Assign:
                roster.assign(command)
            elif type(command) is Accuse:
                lost = self.trust.accuse(command, round.id, now, roster, self.log)
                if lost and engine.capabilities.can_lose:
                    engine.lose(command.worker)
                else:
                    self._unnoted += lost
            elif type(command) is Observe:
                more = round.on(Observed(engine.now(), command.read(), command.held))
                asked |= self._obey(round, more, supply)
            elif type(command) is Publish:
                command.write(command.data)
                asked |= command.asks
        return asked
