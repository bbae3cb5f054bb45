"""Every kind of work, and what it should come to: each result is compared with NumPy's.

Tolerances are what kofn itself promises: the `error_bound` of a result, relative to the size of its
terms, and the rounding of NumPy's own product besides.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import CodedMatrix, low_rank
from ..checkpoint import resume
from ..cluster import Cluster
from ..codes.rateless import LT, RandomGroups
from ..codes.repetition import FractionalRepetition, Uncoded
from ..errors import BadInput, SharesLost, TooFewWorkers, UnknownWorker, WorkerError
from ..learn import Ridge
from ..rounds import stop
from . import kinds
from .functions import Array, both, growing, half, name_of, raising, scaled, square, total
from .kinds import K
from .tally import Tally, Wrong

SIDE, PARTS, COLUMNS, JOB = 48, 12, 8, 12
UPDATES = 30  # of a matrix, before it is encoded again
JOBS = 20  # of a sequence, before another is opened
FIT = 1e-8  # gradient of a fit, relative to the first
EPS = float(np.finfo(np.float64).eps)
Runner = Callable[[str, Callable[[], Any]], tuple[bool, Any]]


class Bench:
    """One thread's work on a cluster: what it should hold, and operations on both.

    `run` does an operation, and tells whether it was interrupted: strikes.Interrupts.run, or
    `undisturbed`, which learns how long each usually takes.
    """

    def __init__(
        self,
        cluster: Cluster,
        workers: int,
        seed: tuple[int, ...],
        strikes: Collection[str],
        folder: Path,
    ) -> None:
        self.cluster, self.workers, self.folder = cluster, workers, folder
        self.run: Runner = self.undisturbed
        self.usual: dict[str, float] = {}  # seconds of an operation, by name
        self.dice, self.rng = random.Random(repr(seed)), np.random.default_rng(seed)
        self.tally = Tally()
        self.doing, self.saves, self.saved = "nothing", 0, 0
        self.codes = kinds.sums(workers)
        can = cluster.engine.capabilities
        self.acts: list[Callable[[], None]] = [
            *(self.product, self.columns, self.adjoint, self.whole, self.update, self.move),
            *(self.sum, self.sum, self.nearly, self.sequence, self.fit, self.save),
        ]
        self.acts += [self.iterate] if can.exchange else []
        rare = [self.encode]
        rare += [self.fail] if "errors" in strikes else []
        rare += [self.come] if can.can_join and "joins" in strikes else []
        rare += [self.leave] if can.can_lose and can.can_join and "kills" in strikes else []
        rare += [self.grow] if can.processes and "memory" in strikes else []
        self.acts = 5 * self.acts + rare
        self.encode()
        self.part()
        self.open()

    def step(self) -> None:
        """One random operation."""
        if self.stale:
            self.encode()
        self.dice.choice(self.acts)()

    def each(self) -> None:
        """Every operation once."""
        for act in dict.fromkeys(self.acts):
            if self.stale:
                self.encode()
            act()

    # What is there, made anew now and then.

    def encode(self) -> None:
        self.A: Array = self.rng.standard_normal((SIDE, SIDE))
        self.V: Array = np.zeros_like(self.A)
        options = kinds.matrix(self.dice, self.workers + 6)
        self.checked = "verify" in options
        self.X: CodedMatrix = self._made(
            "encode", lambda: self.cluster.encode(self.A.copy(), **options)
        )
        self.size, self.stale = norm(self.A), False

    def part(self) -> None:
        self.D = [(i, self.rng.standard_normal((5, COLUMNS))) for i in range(PARTS)]
        self.parts = self._made("parts", lambda: self.cluster.parts(self.D, n=self.workers))

    def open(self) -> None:
        code = kinds.sequence(self.dice, self.workers)

        def make() -> Any:
            self.cluster.wait_for(self.workers)
            return self.cluster.sequence(code)

        self.stream, self.jobs = self._made("sequence", make), 0

    def _made(self, name: str, make: Callable[[], Any]) -> Any:
        """Make something for just so many workers, however often that takes."""

        def action() -> Any:
            for worker in self.cluster.workers[self.workers :]:  # who was ordered may still come
                with suppress(UnknownWorker):
                    self.cluster.lose(worker)
            with suppress(BadInput):
                return make()
            return None

        while True:
            done, made = self._attempt(name, action)
            if done and made is not None:
                return made

    # How an operation goes.

    def undisturbed(self, name: str, action: Callable[[], Any]) -> tuple[bool, Any]:
        """Do it, without an interrupt."""
        began = time.perf_counter()
        value = action()
        spent = time.perf_counter() - began
        self.usual[name] = 0.8 * self.usual.get(name, spent) + 0.2 * spent
        return False, value

    def _attempt(self, name: str, action: Callable[[], Any]) -> tuple[bool, Any]:
        """Return whether it was done, and its value: not if interrupted, or too few were there."""
        self.doing = name
        self.tally.operations[name] += 1
        try:
            struck, value = self.run(name, action)
        except TooFewWorkers as error:
            if error.live >= error.need:
                raise Wrong(f"{name} says {error}") from error
            self.stale |= isinstance(error, SharesLost)
            self.tally.refused[type(error).__name__] += 1
            return False, None
        if accused := self.cluster._driver.trust.caught:
            raise Wrong(f"{name}: workers {sorted(accused)} are accused; all replies are right")
        self.tally.interrupted[name] += struck
        return not struck, value

    def _check(self, name: str, value: Any, true: Any, tolerance: float) -> None:
        """A result is right to a tolerance, in the Euclidean norm."""
        value, true = np.asarray(value), np.asarray(true)
        off = norm(value - true) / tolerance if value.shape == true.shape else np.inf
        if not off <= 1:
            raise Wrong(
                f"{name} is {off:.3g} times as far from NumPy's result as it may be: "
                f"{value.ravel()[:4]} and not {true.ravel()[:4]}"
            )
        self.tally.checked += 1
        self.tally.worst = max(self.tally.worst, off)

    def _bound(self) -> float:
        """What the last product promises, and what NumPy's own product and updates are off by."""
        bound = self.X.report.error_bound
        assert bound is not None
        return bound + (SIDE + 4 * self.X.updates) * EPS

    # Products.

    def product(self) -> None:
        w = self.rng.standard_normal(SIDE)
        self._multiply("X @ w", lambda: self.X @ w, self.A @ w, norm(w))

    def columns(self) -> None:
        B = self.rng.standard_normal((SIDE, self.dice.choice((2, 5, 200))))
        self._multiply("X @ B", lambda: self.X @ B, self.A @ B, norm(B))

    def adjoint(self) -> None:
        z = self.rng.standard_normal(SIDE)
        self._multiply("X.T @ z", lambda: self.X.T @ z, self.A.T @ z, norm(z))

    def iterate(self) -> None:
        if self.checked:  # what workers tell each other cannot be
            return
        w, rounds = self.rng.standard_normal(SIDE), self.dice.randint(1, 5)
        true = w
        for _ in range(rounds):
            true = half(self.A @ true)
        # What each round is off by is passed on by the rounds after it.
        factor = self.size / (2 * SIDE)
        scale = norm(w) * rounds * factor**rounds / self.size
        self._multiply("iterate", lambda: self.X.iterate(half, w, rounds), true, scale)

    def whole(self) -> None:
        done, array = self._attempt("toarray", self.X.toarray)
        if done:  # it has no bound of its own: a product that were off by more would be refused
            self._check("toarray", array, self.A, self.X.tolerance * self.size)

    def _multiply(self, name: str, action: Callable[[], Any], true: Any, length: float) -> None:
        done, value = self._attempt(name, action)
        if not done and self.dice.random() < 0.3 and not self.stale:
            done, value = self._attempt(name, action)
        if done:
            self._check(name, value, true, self._bound() * self.size * length)

    # Updates.

    def update(self) -> None:
        U, V = self.rng.standard_normal((2, SIDE, 2))

        def action() -> None:
            self.X += low_rank(U, V)

        self._change("X += UV'", action, self.A + U @ V.T, self.V)

    def move(self) -> None:
        U, V = self.rng.standard_normal((2, SIDE, 2))
        velocity = 0.5 * self.V + U @ V.T
        change = low_rank(U, V)
        self._change("X.move", lambda: self.X.move(change, 0.5), self.A + velocity, velocity)

    def _change(self, name: str, action: Callable[[], None], A: Array, velocity: Array) -> None:
        """It is there as a whole or not at all, and X.updates says which."""
        before = self.X.updates
        done, _ = self._attempt(name, action)
        made = self.X.updates - before
        if made not in (0, 1) or (done and not made):
            raise Wrong(f"{name}: X.updates went from {before} to {self.X.updates}")
        if made:
            self.A, self.V, self.size = A, velocity, max(self.size, norm(A))
        if not done and not self.stale:
            self.product()
        if self.X.updates >= UPDATES:  # rounding adds up
            self.encode()

    # Sums.

    def sum(self) -> None:
        """An exact sum, under any code."""
        code = self.dice.choice([*self.codes, RandomGroups(1), LT(), None])
        verify = self.dice.choice((0.0, 0.3)) if isinstance(code, FractionalRepetition) else 0.0
        choices: list[Any] = [square, total, both, scaled(self.dice.randint(1, 20))]
        fn, x = self.dice.choice(choices), self.rng.standard_normal(COLUMNS)
        name = f"sum {type(code).__name__}" if code else "sum"
        done, result = self._attempt(name, lambda: self.parts.sum(fn, x, code=code, verify=verify))
        if not done:
            return
        if not result.exact:
            raise Wrong(f"{name} says that it is not exact")
        self._terms(name, result, [fn(part, x) for part in self.D])

    def nearly(self) -> None:
        """An approximate sum: what is there, scaled up to all."""
        code = self.dice.choice(self.codes)
        few = self.dice.randint(1, self.workers - 1)
        rule = self.dice.choice([stop.first(few), stop.fraction(few / self.workers)])
        x = self.rng.standard_normal(COLUMNS)
        done, result = self._attempt(
            "sum, nearly", lambda: self.parts.sum(square, x, code=code, stop=rule)
        )
        if not done:
            return
        there = [part for part in self.D if part[0] not in result.missing]
        if abs(result.covered - len(there) / PARTS) > EPS:
            raise Wrong(f"a sum without parts {result.missing} says it has {result.covered:.3f}")
        self._terms("sum, nearly", result, [square(part, x) for part in there], PARTS / len(there))

    def _terms(self, name: str, result: Any, terms: list[Any], factor: float = 1.0) -> None:
        """A sum is right, relative to the size of its terms."""
        several = isinstance(terms[0], tuple)
        values = result.value if several else (result.value,)
        each = zip(*terms, strict=True) if several else (terms,)
        bound = result.report.error_bound
        for value, parts in zip(values, each, strict=True):
            scale = factor * sum(norm(part) for part in parts)
            # Where not all is there nothing is decoded: parts are added up, and scaled.
            tolerance = (2 * PARTS * EPS if bound is None else bound + PARTS * EPS) * scale
            self._check(name, value, factor * np.sum(parts, axis=0), tolerance)

    def fail(self) -> None:
        """A function that raises: the error has to have what it said."""
        x = (self.dice.randrange(PARTS), self.rng.standard_normal(COLUMNS))
        try:
            done, _ = self._attempt("raise", lambda: self.parts.sum(raising, x))
        except WorkerError as error:
            if f"asked to raise at part {x[0]}" not in str(error):
                raise
            self.tally.counts["raised"] += 1
            return
        if done:
            raise Wrong(f"a sum came out although its function raises at part {x[0]}")

    def grow(self) -> None:
        """A worker takes memory up to a limit of its own: it dies of it, or its task fails."""
        engine, dies = self.cluster.engine, self.dice.random() < 0.7
        victim = self.dice.choice(self.cluster.workers or (None,))

        def pid() -> int | None:
            return engine.pid(victim) if victim in engine.workers else None

        process = self.cluster._driver.call(pid)
        if process is None:
            return
        x = self.rng.standard_normal(COLUMNS)
        operand = (name_of(process), dies, x)

        def action() -> Any:  # without a code: nobody else has its parts, so it is waited for
            return self.parts.sum(growing, operand, code=Uncoded())

        try:
            done, result = self._attempt("grow", action)
        except WorkerError as error:
            if "MemoryError" not in str(error):
                raise
            self.tally.counts["out of memory"] += 1
            return
        self.tally.counts["killed for memory"] += dies and victim not in self.cluster.workers
        if done:
            self._terms("grow", result, [square(part, x) for part in self.D])

    # The rest.

    def sequence(self) -> None:
        if self.jobs >= JOBS:
            self.open()
        self.jobs += 1
        X, Y = self.rng.standard_normal((2, JOB, JOB))
        done, ticket = self._attempt("submit", lambda: self.stream.submit(X, Y))
        if not done:
            self.open()  # whether the job is in the queue nobody can say
            return
        done, result = self._attempt("result", lambda: ticket.result())
        if not done:
            done, result = self._attempt("result", lambda: ticket.result())
        if done:
            tolerance = (ticket.error_bound + JOB * EPS) * norm(X) * norm(Y)
            self._check("result", result, X @ Y, tolerance)

    def fit(self) -> None:
        X = np.concatenate([rows for _, rows in self.D])
        y = self.rng.standard_normal(len(X))
        model, k = Ridge(cluster=self.cluster, tol=FIT), self.dice.choice((K, None))

        def action() -> None:
            self.cluster.wait_for(K)  # fewer shares than that cannot be made
            model.fit(self.cluster.encode(X, k), y)  # an array would stay here

        done, _ = self._attempt("fit", action)
        if done:
            X, y = X - X.mean(axis=0), y - y.mean()
            H, g = X.T @ X + np.eye(COLUMNS), X.T @ y
            # A gradient of length g leaves the minimum at a distance of g / lowest curvature, at
            # most; that it is a recursion's own may double it.
            tolerance = 2 * FIT * norm(g) / float(np.linalg.eigvalsh(H)[0])
            self._check("fit", model.coef_, np.linalg.solve(H, g), tolerance)

    def save(self) -> None:
        """A checkpoint is of now; or, where it was interrupted, perhaps of one before."""
        self.saves += 1
        state = {"number": self.saves, "X": self.X, "w": np.full(COLUMNS, self.saves)}
        done, _ = self._attempt(
            "checkpoint", lambda: self.cluster.checkpoint(self.folder, every=0, **state)
        )
        saved = resume(self.folder)
        number = saved.get("number", 0)
        if not (self.saves if done else self.saved) <= number <= self.saves:
            raise Wrong(f"checkpoint {number} is the newest, after {self.saved} and {self.saves}")
        self.saved = number
        if saved:
            self._check("checkpoint", saved["w"], np.full(COLUMNS, float(number)), EPS)
        if number == self.saves:
            self._check("checkpoint", saved["X"], self.A, self.X.tolerance * self.size)

    def leave(self) -> None:
        if len(self.cluster.workers) < self.workers:
            return
        worker = self.dice.choice(self.cluster.workers)
        with suppress(UnknownWorker):  # it may be dying, or be gone
            self._attempt("lose", lambda: self.cluster.lose(worker))

    def come(self) -> None:
        if len(self.cluster.workers) <= self.workers:
            self._attempt("join", self.cluster.join)


def norm(array: Any) -> float:
    """The Euclidean norm."""
    return float(np.linalg.norm(array))
