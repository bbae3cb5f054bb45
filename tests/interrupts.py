"""Ctrl-C at random moments of random operations, on any engine; then the results against NumPy.

    python tests/interrupts.py --engine local --count 20000 --seed 0

A timer's handler raises KeyboardInterrupt. Afterwards every result must be right, an update there
as a whole or not at all (or SharesLost, and the matrix is encoded again), and nothing but these two
may be raised. What fails is printed with its seed; so is a hang. A seed repeats the operations, not
the moments: a failure is looked for with many seeds.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kofn

Array = NDArray[np.float64]
SIDE, K = 48, 3
HANG = 90.0  # seconds without an operation's end
CODES: tuple[kofn.SumCode, ...] = (
    kofn.FractionalRepetition(2),
    kofn.CyclicRepetition(2),
    kofn.Uncoded(),
    kofn.RandomGroups(1),
    kofn.LT(),
)


class Wrong(AssertionError):
    """A result that is not NumPy's."""


def square(part: Array, x: Array) -> Array:
    """A gradient."""
    product: Array = part.T @ (part @ x)
    return product


def total(part: Array, x: Array) -> float:
    """A number."""
    return float((part @ x).sum())


def both(part: Array, x: Array) -> tuple[Array, Array]:
    """Two arrays."""
    return part.sum(axis=0), part.T @ (part @ x)


def scaled(factor: float) -> Callable[[Array, Array], Array]:
    """A function that workers have to be taught anew."""
    return lambda part, x: factor * (part.T @ (part @ x))


def half(y: Array) -> Array:
    """A step of iterate."""
    return y / (2 * SIDE)


@dataclass
class Tally:
    """What happened."""

    operations: Counter[str]
    interrupted: Counter[str]
    lost: int = 0  # SharesLost after an interrupted update

    def __str__(self) -> str:
        every = sum(self.interrupted.values())
        each = ", ".join(
            f"{name} {self.interrupted[name]}/{n}" for name, n in sorted(self.operations.items())
        )
        return f"{every} interrupts ({each}); {self.lost} times SharesLost after an update"


class Attack:
    """One cluster, what it should hold, and the operations on both."""

    def __init__(self, cluster: kofn.Cluster, workers: int, seed: int) -> None:
        self.cluster, self.workers = cluster, workers
        self.dice, self.rng = random.Random(seed), np.random.default_rng(seed)
        self.tally = Tally(Counter(), Counter())
        self.ended = 0  # operations, for who watches
        self.doing = "nothing"
        self._usual: dict[str, float] = {}  # seconds
        can = cluster.engine.capabilities
        self.acts: list[Callable[[], None]] = [
            self.product,
            self.columns,
            self.adjoint,
            self.update,
            self.move,
            self.sum,
            self.sum,
            self.sequence,
            self.whole,
        ]
        if can.exchange:
            self.acts.append(self.iterate)
        if can.can_lose and can.can_join:
            self.acts += [self.leave, self.come]
        self.encode()
        self.part()
        self.open()

    # What is there, made anew now and then without interrupts.

    def steady(self, least: int, most: int) -> None:
        """See to it that so many workers are live."""
        while len(live := self.cluster.workers) < least:
            self.cluster.join()
        for worker in live[: max(0, len(live) - most)]:
            self.lose(worker)

    def lose(self, worker: int) -> None:
        """Lose a worker; before that, those that joined are given their shares."""
        self.X @ np.zeros(SIDE)
        self.cluster.lose(worker)

    def encode(self) -> None:
        self.A: Array = self.rng.standard_normal((SIDE, SIDE))
        self.V: Array = np.zeros_like(self.A)
        self.X = self.cluster.encode(self.A.copy(), k=K, n=self.workers + 4)
        self.updates = 0

    def just(self, make: Callable[[], Any]) -> Any:
        """Make something for just so many workers; who was asked to join may still come."""
        for _ in range(10):
            self.steady(self.workers, self.workers)
            with suppress(kofn.BadInput):
                return make()
        return make()

    def part(self) -> None:
        self.D: Array = self.rng.standard_normal((60, 8))
        self.parts: kofn.Parts = self.just(
            lambda: self.cluster.parts(self.D, parts=12, n=self.workers)
        )

    def open(self) -> None:
        codes = (
            kofn.DIP(x=2, y=3, delay=3, lam=1),
            kofn.IDIP(x=3, y=4, delay=3, N=4 * self.workers - 12, W=4),
            kofn.Polynomial(x=2, y=2),
        )
        code = self.dice.choice(codes)
        self.stream = self.just(lambda: self.cluster.sequence(code))
        self.jobs = 0

    # The interrupts.

    def interrupted(self, name: str, action: Callable[[], Any]) -> tuple[bool, Any]:
        """Do it under a timer; return whether it was interrupted, and what it gave."""
        self.doing = name
        usual = self._usual.get(name)
        if usual is None or self.dice.random() < 0.1:  # undisturbed: how long does it take?
            after = 0.0
        elif self.dice.random() < 0.7:
            after = self.dice.uniform(1e-5, 1.5 * usual)  # most of them while it is at work
        else:
            after = 10 ** self.dice.uniform(-5, -2.3)
        value, struck, began = None, True, time.perf_counter()
        try:
            signal.setitimer(signal.ITIMER_REAL, after)
            value = action()
            signal.setitimer(signal.ITIMER_REAL, 0)
            struck = False
        except KeyboardInterrupt:
            pass
        except BaseException:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise
        self.tally.operations[name] += 1
        self.tally.interrupted[name] += struck
        if not after:
            spent = time.perf_counter() - began
            self._usual[name] = 0.8 * (spent if usual is None else usual) + 0.2 * spent
        return struck, value

    def same(self, name: str, found: Any, true: Any, scale: float) -> None:
        """A result is right to the tolerance that products promise by default."""
        if not np.linalg.norm(np.asarray(found) - true) <= 1e-6 * scale:
            raise Wrong(f"{name}: {np.asarray(found).ravel()[:4]}, and not {true.ravel()[:4]}")

    # The operations.

    def product(self) -> None:
        w = self.rng.standard_normal(SIDE)
        self._checked("X @ w", lambda: self.X @ w, self.A @ w, norm(self.A) * norm(w))

    def columns(self) -> None:
        B = self.rng.standard_normal((SIDE, self.dice.choice((2, 5, 200))))
        self._checked("X @ B", lambda: self.X @ B, self.A @ B, norm(self.A) * norm(B))

    def adjoint(self) -> None:
        z = self.rng.standard_normal(SIDE)
        self._checked("X.T @ z", lambda: self.X.T @ z, self.A.T @ z, norm(self.A) * norm(z))

    def whole(self) -> None:
        self._checked("toarray", self.X.toarray, self.A, norm(self.A))

    def iterate(self) -> None:
        w = self.rng.standard_normal(SIDE)
        true, rounds = w, self.dice.randint(1, 5)
        for _ in range(rounds):
            true = half(self.A @ true)
        scale = norm(w) * max(1.0, norm(self.A) / (2 * SIDE)) ** rounds
        self._checked("iterate", lambda: self.X.iterate(half, w, rounds), true, scale)

    def _checked(self, name: str, action: Callable[[], Any], true: Any, scale: float) -> None:
        struck, found = self.interrupted(name, action)
        if struck and self.dice.random() < 0.3:
            found, struck = action(), False
        if not struck:
            self.same(name, found, true, scale)

    def update(self) -> None:
        U, V = self.rng.standard_normal((2, SIDE, 2))

        def action() -> None:
            self.X += kofn.low_rank(U, V)

        self._changed("X += UV'", action, self.A + U @ V.T, self.V)

    def move(self) -> None:
        U, V = self.rng.standard_normal((2, SIDE, 2))
        velocity = 0.5 * self.V + U @ V.T
        self._changed(
            "X.move", lambda: self.X.move(kofn.low_rank(U, V), 0.5), self.A + velocity, velocity
        )

    def _changed(self, name: str, action: Callable[[], None], A: Array, velocity: Array) -> None:
        struck, _ = self.interrupted(name, action)
        if not struck:
            self.A, self.V = A, velocity
        else:
            try:
                found = self.X.toarray()
            except kofn.SharesLost:
                self.tally.lost += 1
                self.encode()
                return
            if norm(found - A) <= 1e-6 * norm(A):
                self.A, self.V = A, velocity
            self.same(f"after {name}", found, self.A, norm(self.A))
        self.updates += 1
        if self.updates >= 30:  # rounding adds up
            self.encode()

    def sum(self) -> None:
        code = self.dice.choice(CODES)
        self.steady(self.workers, self.workers + 1)
        x = self.rng.standard_normal(8)
        choices: list[Any] = [square, total, both, scaled(self.dice.randint(1, 20))]
        fn = self.dice.choice(choices)
        true = fn(self.D, x)
        scale = norm(self.D) ** 2 * max(1.0, norm(x)) * 20
        name = f"sum {type(code).__name__}"

        def action() -> kofn.Sum:
            return self.parts.sum(fn, x, code=code)

        struck, found = self.interrupted(name, action)
        if struck and self.dice.random() < 0.3:
            found, struck = action(), False
        if struck:
            return
        if not found.exact:
            raise Wrong(f"{name} says that it is not exact")
        values = found.value if fn is both else (found.value,)
        for value, right in zip(values, true if fn is both else (true,), strict=True):
            self.same(name, value, np.asarray(right), scale)

    def sequence(self) -> None:
        if self.jobs >= 20:
            self.open()
        self.jobs += 1
        X, Y = self.rng.standard_normal((2, 12, 12))
        struck, ticket = self.interrupted("submit", lambda: self.stream.submit(X, Y))
        if struck:
            self.open()  # whether the job is in the queue nobody can say
            return
        struck, found = self.interrupted("result", ticket.result)
        if struck:
            found = ticket.result()
        self.same("result", found, X @ Y, norm(X) * norm(Y))

    def leave(self) -> None:
        self.X @ np.zeros(SIDE)
        worker = self.dice.choice(self.cluster.workers)
        struck, _ = self.interrupted("lose", lambda: self.cluster.lose(worker))
        if struck:
            with suppress(kofn.UnknownWorker):  # it may be dying; then that is to be over
                self.cluster.lose(worker)
        self.steady(self.workers - 1, self.workers + 1)

    def come(self) -> None:
        self.interrupted("join", self.cluster.join)
        self.steady(self.workers - 1, self.workers + 1)

    def step(self) -> None:
        """One random operation."""
        self.dice.choice(self.acts)()
        self.ended += 1


def norm(array: Array) -> float:
    """The Euclidean norm."""
    return float(np.linalg.norm(array))


def _ring(*_: object) -> None:
    raise KeyboardInterrupt


def _watch(attack: Attack, over: threading.Event, seed: int) -> None:
    before = -1
    while before != attack.ended or over.is_set():
        before = attack.ended
        if over.wait(HANG):
            return
    print(f"seed {seed}: hangs in {attack.doing}", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(3)


def attack(engine: str, count: int, seed: int, workers: int = 6) -> Tally:
    """Interrupt so many operations; raise at the first thing that is wrong."""
    before = signal.signal(signal.SIGALRM, _ring)
    over = threading.Event()
    with kofn.connect(engine, workers, limit=30.0) as cluster:
        run = Attack(cluster, workers, seed)
        threading.Thread(target=_watch, args=(run, over, seed), daemon=True).start()
        try:
            while sum(run.tally.interrupted.values()) < count:
                run.step()
        except BaseException:
            print(f"seed {seed}, after {run.tally}: {run.doing}", file=sys.stderr, flush=True)
            raise
        finally:
            over.set()
            signal.signal(signal.SIGALRM, before)
    return run.tally


def main() -> None:
    """Attack as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=6)
    args = parser.parse_args()
    began = time.monotonic()
    tally = attack(args.engine, args.count, args.seed, args.workers)
    print(f"{args.engine}, seed {args.seed}: {tally}. {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main()
