"""Faults by script: who is lost, slow, frozen or wrong in which round. Never by sleep in a test."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import number, one_of
from ..engines.base import Engine, Wrapped
from ..errors import CannotDo
from ..model import Body, Event, Piece, Reply, Task
from .corrupt import KINDS, Kind, corrupted

_LOOK = 0.005  # seconds between two looks of a slowed worker at the current round


@dataclass(frozen=True, slots=True)
class _Fault:
    kind: str
    worker: int | None
    round: int | None  # None: in every round
    by: float = 1.0
    rounds: int = 1
    how: Kind = "bit"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Faults:
    """A script of faults; each call returns a longer one.

    Rounds count from 1, in the order in which the engine first sees them. A fault strikes right
    after the round's first task for that worker has been submitted (for `join`: the round's first
    task at all), and only if the worker is live then. A round leaves out a worker that is late; the
    fault then strikes in the first later round that asks the worker.

    >>> Faults().lose(worker=3, round=2).slow(worker=5, by=10.0).join(round=4).script
    ('lose worker 3 in round 2', 'slow worker 5 in every round', 'join in round 4')
    """

    faults: tuple[_Fault, ...] = ()

    @property
    def script(self) -> tuple[str, ...]:
        """The faults in words, in the order given."""
        return tuple(
            f.kind
            + ("" if f.worker is None else f" worker {f.worker}")
            + (" in every round" if f.round is None else f" in round {f.round}")
            for f in self.faults
        )

    def lose(self, worker: int, round: int = 1) -> Faults:
        """Kill a worker: kill -9 where it is a process."""
        return self._and(_Fault("lose", worker, round))

    def slow(self, worker: int, by: float, round: int | None = None) -> Faults:
        """Make a worker take `by` times as long over each piece, in one round or in all."""
        number(by, "by", ">= 1", "It is the factor by which a worker is slowed.")
        return self._and(_Fault("slow", worker, round, by=by))

    def join(self, round: int = 1) -> Faults:
        """Start one more worker."""
        return self._and(_Fault("join", None, round))

    def leave(self, worker: int, seconds: float, round: int = 1) -> Faults:
        """Say that a worker will be gone in so many seconds; infinity says that it stays."""
        return self._and(_Fault("leave", worker, round, by=seconds))

    def freeze(self, worker: int, round: int = 1, rounds: int = 1) -> Faults:
        """Stop a worker's process, and let it go on when `rounds` more rounds have begun."""
        return self._and(_Fault("freeze", worker, round, rounds=rounds))

    def corrupt(
        self, worker: int, kind: Kind = "bit", round: int | None = None, seed: int = 0
    ) -> Faults:
        """Make what a worker replies wrong, in one round or in all.

        kind: "bit" (one bit of one number, drawn from the seed), "replaced" (all numbers drawn
        anew), "sign" (all turned), "factor" (one for all) or "other" (what another worker said
        last; nothing happens before one has).
        """
        one_of(kind, "kind", KINDS)
        return self._and(_Fault("corrupt", worker, round, how=kind, seed=seed))

    def on(self, engine: Engine) -> Engine:
        """Return `engine` with these faults; closing it closes `engine`."""
        return _Faulty(engine, self.faults)

    def _and(self, fault: _Fault) -> Faults:
        return Faults((*self.faults, fault))


class _Slow:
    """A body that really takes `by` times as long, and still looks at the round meanwhile."""

    def __init__(self, body: Body, by: float) -> None:
        self.body, self.by = body, by

    def __call__(self, kept: Any, operand: Any, *args: Any) -> Iterator[Piece]:
        start = time.perf_counter()
        for piece in self.body(kept, operand, *args):
            end = start + (time.perf_counter() - start) * self.by
            while (left := end - time.perf_counter()) > 0:
                # Sleeping leaves the core to the others, as a slow machine elsewhere would; it is
                # too coarse for the last stretch.
                if left > 0.001:
                    time.sleep(min(left - 0.0005, _LOOK))
                    yield Piece(None, None)
            yield piece
            start = time.perf_counter()


class _Faulty(Wrapped):
    """An engine that plays a script."""

    def __init__(self, engine: Engine, faults: tuple[_Fault, ...]) -> None:
        super().__init__(engine)
        self._waiting = list(faults)
        self._numbers: dict[int, int] = {}  # by round id, from 1
        self._struck: dict[_Fault, int] = {}  # the round, by its number, that a fault is bound to
        self._slow: dict[tuple[int, float], tuple[Body, _Slow]] = {}
        self._frozen: list[tuple[int, int]] = []  # thaw when this round begins, pid
        wrong = [fault for fault in faults if fault.kind == "corrupt"]
        self._wrong = [(fault, np.random.default_rng(fault.seed)) for fault in wrong]
        self._last: dict[int, Any] = {}  # worker -> its last value, while replies are corrupted

    def close(self) -> None:
        self._thaw(float("inf"))
        super().close()

    @property
    def crowded(self) -> Collection[int]:
        slowed = any(fault.kind == "slow" for fault in self._waiting)
        return () if slowed else self.engine.crowded  # who is slow by script is not so by chance

    def submit(self, task: Task) -> None:
        number = self._numbers.setdefault(task.round, len(self._numbers) + 1)
        self._thaw(number)
        due = [
            f
            for f in self._waiting
            if f.kind not in ("slow", "corrupt")
            and f.worker in (None, task.worker)
            and self._strikes_in(f, number)
        ]
        self._waiting = [f for f in self._waiting if f not in due]
        for fault in due:
            if fault.kind == "freeze":  # first, or a short task is done before the signal
                self._strike(fault, number)
        self.engine.submit(self._slowed(task, number))
        for fault in due:
            if fault.kind != "freeze":
                self._strike(fault, number)

    def _strikes_in(self, fault: _Fault, number: int) -> bool:
        """Whether a fault of the worker that is asked in this round strikes in it."""
        if fault.round is None:
            return True
        if number < fault.round:
            return False
        return self._struck.setdefault(fault, number) == number

    def events(self, timeout: float) -> list[Event]:
        events = super().events(timeout)
        return [self._spoilt(event) for event in events] if self._wrong else events

    def _spoilt(self, event: Event) -> Event:
        if type(event) is not Reply or event.value is None:
            return event
        others = [value for worker, value in self._last.items() if worker != event.worker]
        self._last.pop(event.worker, None)
        self._last[event.worker] = event.value
        for fault, rng in self._wrong:
            rounds = (None, self._numbers.get(event.round))
            if fault.worker == event.worker and fault.round in rounds:
                other = others[-1] if others else None
                event = event._replace(value=corrupted(event.value, fault.how, rng, other))
        return event

    def _slowed(self, task: Task, number: int) -> Task:
        for fault in self._waiting:
            slows = fault.kind == "slow" and fault.worker == task.worker
            if slows and self._strikes_in(fault, number):
                body = task.body
                if not self.capabilities.virtual_time:
                    # One object per body: engines send a body once, and know it by identity.
                    key = (id(body), fault.by)
                    known = self._slow.setdefault(key, (body, _Slow(body, fault.by)))
                    body = known[1]
                task = task._replace(body=body, cost=task.cost * fault.by)
        return task

    def _strike(self, fault: _Fault, number: int) -> None:
        if fault.worker is None:
            self.engine.join()
            return
        if fault.kind == "leave":
            self.engine.announce(fault.worker, fault.by, "by script")
            return
        pid = self.engine.pid(fault.worker)
        if fault.kind == "freeze":
            if pid is None:
                raise CannotDo(f"engine {self.engine.name!r} has no processes to freeze.")
            os.kill(pid, signal.SIGSTOP)
            self._frozen.append((number + fault.rounds, pid))
        elif pid is not None:
            os.kill(pid, signal.SIGKILL)
        else:
            self.engine.lose(fault.worker)

    def _thaw(self, number: float) -> None:
        for until, pid in [f for f in self._frozen if f[0] <= number]:
            self._frozen.remove((until, pid))
            with suppress(ProcessLookupError):  # it may have been given up meanwhile
                os.kill(pid, signal.SIGCONT)
