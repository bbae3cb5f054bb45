"""Search for faults: random scripts of work and of what goes wrong, over the real master.

    python tests/search.py --first 0 --count 20000     play so many; the first that fails ends it
    python tests/search.py --seed 4711                 replay one, and show its script
    python tests/search.py --seed 4711 --shrink        the same, with what is not needed left out

A seed is a script: a cluster, and steps. A step is one piece of work and the faults that strike in
it, counted in calls of the engine, so that they fall between any two. The engine is the virtual
one, with values or with times alone, or `Simulated`: the real protocol on both sides over a
transport in memory. Everything happens in simulated time, from the seed alone.

What must hold: a result is right, within the bound that its own report derives, or an error says
why, and that is true; nobody waits where nothing can happen; every task ends once; an update is
there as a whole or not at all, as `X.updates` says; what was decoded or delivered is not lost; an
exception of the caller's comes out, and leaves everything usable.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

import numpy as np
from acting import (
    Acting,
    Baton,
    Interrupted,
    Simulated,
    Strike,
    Violation,
    What,
    interruptible,
    must,
)
from numpy.typing import NDArray
from support import gently

import kofn
from kofn import interrupts
from kofn.arrays.baselines import Replicated
from kofn.arrays.grid import encode_grid
from kofn.arrays.rateless import Rateless
from kofn.delays import Delays, Exponential, PerUnit
from kofn.engines.virtual import VirtualEngine

Array = NDArray[Any]
LIMIT = 40.0  # simulated seconds; far more than any patience in these scripts
SIDE = 12  # rows of a matrix; columns too, where it must be square

# What a theme does, and how often.
PRODUCTS = ("X @ w", "X @ B", "X.T @ z", "X.T @ Z", "toarray", "encode")
CHANGES = ("update", "update", "move", "X @ w", "X @ w", "X.T @ z", "toarray")
SUMS = ("sum", "sum", "some", "parts")
JOBS = ("submit", "submit", "submit", "result", "result", "results")
CLUSTER = ("lose", "join", "rest")
WORK: dict[str, tuple[str, ...]] = {
    "rows": (*PRODUCTS, *CLUSTER),
    "columns": ("X @ w", "X.T @ z", "update", *CLUSTER),
    "grid": ("X @ w", "X.T @ z", "update", "toarray"),
    "copies": ("X @ w", "X.T @ z", "rest"),
    "backups": ("X @ w", "X.T @ z", "rest"),
    "updates": (*CHANGES, "rest"),
    "leaving": (*CHANGES, "sum", "rest", "rest"),
    "iterate": ("iterate", "iterate", "iterate", "X @ w", "rest"),
    "sums": (*SUMS, "rest"),
    "rateless": (*SUMS, "rest"),
    "sequence": JOBS,
    "mixed": ("X @ w", "X.T @ z", "update", "sum", "submit", "result", *CLUSTER),
    "threads": ("both", "both", "both", "X @ w", "sum"),
}
# So many seeds of a hundred are of each theme; the others are of the protocol alone.
SHARE = {
    "rows": 14,
    "columns": 3,
    "grid": 3,
    "copies": 2,
    "backups": 2,
    "updates": 9,
    "leaving": 5,
    "iterate": 5,
    "sums": 8,
    "rateless": 5,
    "sequence": 6,
    "mixed": 4,
    "threads": 4,
    "protocol": 30,
}
THEMES = [theme for theme, share in SHARE.items() for _ in range(share)]
THEMES = [THEMES[i * 37 % 100] for i in range(100)]  # so that a few seeds in a row are of many
IN_THREADS = ("X @ w", "X.T @ z", "update", "sum", "result", "rest", "join", "lose")
FAULTS: tuple[What, ...] = (
    *("lose", "freeze", "thaw", "join", "leave", "slow"),
    *("double", "fail", "refuse", "interrupt"),
)
# In two of five scripts of these themes something is done otherwise: codes and margins are left to
# kofn, windows stay where they are, products are with some rows, sums are compared, or replies are
# wrong and found out.
OTHERWISE: dict[str, tuple[str, ...]] = {
    "rows": ("learnt", "still", "some rows", "low weight", "probe", "parity"),
    "columns": ("learnt", "low weight", "probe"),
    "updates": ("still", "some rows", "low weight", "probe", "parity"),
    "iterate": ("learnt", "low weight"),
    "leaving": ("learnt", "still", "probe"),
    "sums": ("learnt", "audited", "lied to"),
    "rateless": ("", "", "", "raptor"),  # it takes thrice as long
    "sequence": ("learnt",),
    "mixed": ("learnt",),
    "threads": ("learnt",),
}
VERIFIED = ("probe", "parity")
# Where all of a sum is asked of two, and what takes the second away does not strike.
TWO_SAY = ("double", "fail", "interrupt")


class Step(NamedTuple):
    """One piece of work, and what strikes in it. `seed`: of its numbers."""

    work: str
    seed: int
    strikes: tuple[Strike, ...] = ()


@dataclass(frozen=True)
class Script:
    """A cluster, what is done with it and what goes wrong."""

    seed: int
    theme: str
    place: str  # virtual: with values; timed: without; messages: over the real protocol
    n: int
    k: int
    workers: int
    wait: float = 0.0
    lost_after: float = float("inf")
    keep: int | None = None
    margin: int = 0
    otherwise: str = ""
    steps: tuple[Step, ...] = ()


def scripted(seed: int) -> Script:
    """Make the script of a seed; not of one that is of the protocol alone."""
    theme = THEMES[seed % 100]
    rng = random.Random(seed)
    place = rng.choice(("virtual", "virtual", "timed", "messages", "messages"))
    if theme == "iterate" and place == "messages":
        place = "virtual"  # its transport has no memory that workers share
    n = rng.choice((2, 3, 4, 5, 6, 6, 8))
    k = rng.randint(1, n)
    workers = rng.randint(k, n)
    if theme == "rows" and rng.random() < 0.1:
        n, k = 20, 10
        workers = k + rng.randint(0, 4)
    if theme == "grid":
        n, k, workers = rng.choice((6, 8)), 6, 6
    if theme in ("sequence", "mixed", "threads"):
        n, k, workers = 7, rng.randint(2, 4), 6
    if theme in ("sums", "rateless", "leaving"):
        n = max(n, 4)
        workers = max(workers, n - 2)
    weights = [rng.random() ** 3 for _ in FAULTS]
    if theme == "leaving":
        weights[FAULTS.index("leave")] += 1.5
    steps = tuple(_step(rng, WORK[theme], weights) for _ in range(rng.randint(2, 14)))
    script = Script(
        *(seed, theme, place, n, k, workers),
        wait=rng.choice((0.0, 0.0, 0.0, 0.5, 10.0)),
        lost_after=rng.choice((float("inf"), float("inf"), float("inf"), 3.0)),
        keep=rng.choice((None, None, None, None, workers)),
        margin=min(n - k, rng.choice((0, 0, 0, 1))),
        steps=steps,
    )
    others = OTHERWISE.get(theme, ())
    if not others or seed // 100 % 5 < 3:
        return script
    rng = random.Random(f"otherwise {seed}")
    return _with_lies(rng, replace(script, otherwise=rng.choice(others)))


def _with_lies(rng: random.Random, script: Script) -> Script:
    """The same; where replies are checked, some are wrong."""
    if script.otherwise == "parity":
        k = min(script.k, script.n - 1)
        script = replace(script, k=k, margin=rng.randint(1, min(2, script.n - k)))
    if script.otherwise == "lied to":
        return _lied_to(rng, script)
    if script.otherwise not in VERIFIED or script.place == "timed":
        return script
    steps = []
    for step in script.steps:
        number = rng.choice((0, 0, 1, 1, 2))
        when = sorted(rng.randint(1, 20) for _ in range(number))
        lies = [Strike(calls, 0.0, "lie", rng.randrange(1 << 20), rng.random()) for calls in when]
        steps.append(step._replace(strikes=tuple(sorted([*step.strikes, *lies]))))
    return replace(script, steps=tuple(steps))


def _lied_to(rng: random.Random, script: Script) -> Script:
    """The same with a liar: caught twice, it is gone, and so is the second who says its parts."""
    n, pick = script.n + script.n % 2, rng.randrange(1 << 20)
    liars = rng.sample(range(len(script.steps)), min(2, len(script.steps)))
    steps = []
    for i, step in enumerate(script.steps):
        strikes = [strike for strike in step.strikes if strike.what in TWO_SAY]
        if i in liars:
            strikes.append(Strike(rng.randint(1, 12), 0.0, "lie", pick, rng.random()))
        steps.append(step._replace(strikes=tuple(sorted(strikes))))
    return replace(script, n=n, workers=n, steps=tuple(steps))


def _step(rng: random.Random, work: Sequence[str], weights: Sequence[float]) -> Step:
    number = rng.choice((0, 1, 1, 2, 3, 5))
    reach = rng.choice((8, 20, 60))
    strikes = []
    for what in rng.choices(FAULTS, weights, k=number):
        seconds = rng.choice((0.0, 0.0, 0.0, 1e-4, 2e-3, 0.3, 6.0))
        size = 0.0
        if what == "leave":
            size = rng.choice((0.0, 0.002, 0.02, 0.2, 3.0, float("inf")))
        elif what == "slow":
            size = rng.choice((1.0, 2.0, 8.0, 50.0))
        strikes.append(Strike(rng.randint(1, reach), seconds, what, rng.randrange(1 << 20), size))
    return Step(rng.choice(work), rng.randrange(1 << 30), tuple(sorted(strikes)))


def evacuated(script: Script) -> Script:
    """The same, but whenever one is told to leave, or to stay, all are, and so in each step."""
    rng, steps = random.Random(script.seed), []
    for step in script.steps:
        calls, seconds = rng.randint(1, 20), rng.choice((0.0, 0.0, 1e-4, 2e-3, 0.3))
        pick, size = rng.randrange(1 << 20), rng.choice((0.0, 0.002, 0.02, 0.2, 3.0, float("inf")))
        told = sorted([*step.strikes, Strike(calls, seconds, "leave", pick, size)])
        all_told = (s._replace(what="leave-all") if s.what == "leave" else s for s in told)
        steps.append(step._replace(strikes=tuple(all_told)))
    keep = script.workers if script.seed % 2 else None
    return replace(script, steps=tuple(steps), keep=keep)


# Work.


def weighed(part: Array, x: float) -> Array:
    """A term of a sum."""
    return part * x


def squared(part: Array, x: float) -> Array:
    """Another one."""
    return part * part * x


def same(y: Array) -> Array:
    """A step of an iteration."""
    return y


class Own(Exception):
    """The caller's."""


@dataclass
class Tally:
    """What scripts did."""

    scripts: int = 0
    events: int = 0
    ended: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Count another one's too."""
        self.scripts += other.scripts
        self.events += other.events
        self.ended += other.ended

    def __str__(self) -> str:
        each = ", ".join(f"{how} {times}" for how, times in self.ended.most_common())
        return f"{self.scripts} scripts, {self.events} events ({each})"


class World:
    """A cluster that a script is played on, and what its matrices and sums should be."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.rng = np.random.default_rng(script.seed)
        self.values = script.place != "timed"
        engine: Any
        if script.place == "messages":
            engine = Simulated(script.workers, script.seed)
        else:
            delays = _delays(random.Random(script.seed))
            engine = VirtualEngine(
                script.workers, delays=delays, compute=self.values, seed=script.seed
            )
        self.engine = Acting(engine)
        self.cluster = kofn.connect(
            *(self.engine,),
            wait=script.wait,
            limit=LIMIT,
            lost_after=script.lost_after,
            keep=script.keep,
        )
        self.driver = self.cluster._driver
        self.tally = Tally(1)
        self.alone = True  # no other thread is at work
        self.resting = 0  # who lets time pass, and waits for nobody
        self.tickets: list[tuple[Any, Array | None, Array | None]] = []
        self.X: Any = None
        self.parts: Any = None
        self.stream: Any = None
        works = WORK[script.theme]
        if {"X @ w", "update", "both"} & set(works):
            self._encode()
        if {"sum", "both"} & set(works):
            self._part()
        if {"submit", "both"} & set(works):
            self._open()
        # From here on: whoever waits has somebody to wait for.
        self.engine.patient = self._patient

    def _patient(self) -> bool:
        """Whether somebody may join, or will be gone at a known time."""
        script = self.script
        return bool(self.resting or script.wait or script.keep or self.driver.roster.leaving)

    # What is there.

    def _encode(self) -> None:
        """Make a matrix; `self.A` is what it should be, `self.V` its velocity."""
        script, rng = self.script, self.rng
        A = rng.standard_normal((SIDE, SIDE if script.theme == "iterate" else 5))
        if script.theme == "iterate":
            A = np.linalg.qr(A)[0]  # keeps errors as large as they were
        elif script.seed % 7 == 0:
            A = A.astype(np.float32)
        n = max(script.n, len(self.driver.roster.kept))
        options: dict[str, Any] = {"k": script.k, "n": n, "margin": script.margin}
        match script.otherwise:
            case "learnt":
                options = {"n": n}
            case "still":
                options["loads"] = "still"
            case "low weight":
                options = {"code": kofn.codes.LowWeightCode(n, script.k), "margin": script.margin}
            case "probe" | "parity":
                options["verify"] = script.otherwise
        if script.theme == "grid":
            X: Any = encode_grid(self.cluster, A, (2, 2), n=script.n)
        elif script.theme == "copies" and script.seed % 2:
            X = Rateless(self.cluster, A, n=script.n, seed=script.seed % 5)
        elif script.theme in ("copies", "backups"):
            backup = 2.0 if script.theme == "backups" else None
            X = Replicated(self.cluster, A, min(script.n, 2), n=script.n, backup=backup)
        elif script.theme == "columns":
            X = self.cluster.encode(A, axis=1, **options)
        else:
            X = self.cluster.encode(A, **options)
        self.X, self.A, self.V = X, A.astype(np.float64), np.zeros(A.shape)
        self.dtype, self.count, self.coming = A.dtype, 0, self.A
        self.held: Any = X if hasattr(X, "_holders") else X.T  # whose shares they are

    def _part(self) -> None:
        rateless, otherwise = self.script.theme == "rateless", self.script.otherwise
        D = self.rng.standard_normal((64 if otherwise == "raptor" else 12, 3))
        n = max(self.script.n, len(self.cluster.workers))
        codes: list[Any] = [kofn.Uncoded(), kofn.CyclicRepetition(min(2, n))]
        if n % 2 == 0:
            codes.append(kofn.FractionalRepetition(2))
        if rateless:
            codes = [kofn.Raptor() if otherwise == "raptor" else kofn.LT()]
        if otherwise == "learnt":
            codes = [None]
        if otherwise in ("audited", "lied to"):
            n += n % 2
            codes = [kofn.FractionalRepetition(2)]
        code = codes[self.script.seed % len(codes)]
        self.parts = self.cluster.parts(list(D), code, n=n)
        self.D = D

    def _open(self) -> None:
        codes: Any = (
            kofn.DIP(x=2, y=3, delay=3, lam=1),
            kofn.IDIP(x=3, y=4, delay=3, N=12, W=4),
            kofn.Polynomial(x=2, y=2),
        )
        learnt = self.script.otherwise == "learnt"
        self.stream = self.cluster.sequence(None if learnt else codes[self.script.seed % 3])

    # One step.

    def play(self) -> Tally:
        """Play the script to its end, and look what is left."""
        for step in self.script.steps:
            self.step(step)
        self.over()
        return self.tally

    def step(self, step: Step) -> None:
        """Do one piece of work while faults strike."""
        engine = self.engine
        engine.strikes.extend(s._replace(calls=s.calls + engine.calls) for s in step.strikes)
        self.work(step.work, step.seed)
        engine.strikes.clear()
        must(not interrupts._waiting, "an interrupt comes out with the work that it struck")

    def work(self, work: str, seed: int) -> None:
        """Do one piece of work; an error must say why, and be true."""
        dice, engine = random.Random(seed), self.engine
        struck, lies = engine.struck, engine.lies
        if self.script.otherwise in VERIFIED:
            engine.checked = self._is_product(work)
        elif self.script.otherwise == "lied to":
            engine.checked = work in ("sum", "some")
        try:
            how = self.DO[work](self, dice) or "right"
        except Violation:
            raise
        except Interrupted:
            must(engine.struck > struck, "nobody is interrupted unasked")
            how = "interrupted"
        except kofn.KofnError as error:
            how = type(error).__name__
            self.note("error", how)
            self._true(error, work, engine.lies - lies)
        else:
            must(
                not self.alone or work == "both" or engine.struck == struck,
                "an interrupt comes out of the work that it struck",
            )
        self.tally.ended[how] += 1

    def note(self, what: str, *values: Any) -> None:
        """Hear what the user was given; see oracle.py."""

    def _true(self, error: kofn.KofnError, work: str, lies: int) -> None:
        """Look whether an error says what is."""
        engine, name = self.engine, type(error).__name__
        if isinstance(error, kofn.WorkerError):
            must(engine.spoiled, "a worker raised nothing", error)
        elif isinstance(error, kofn.Stalled):
            must(engine.froze, "everybody answers", error)
            if self.alone and self._is_product(work):
                # Who has thawed at this very moment came too late.
                now = engine.now()
                frozen = engine.frozen.keys() | {w for w, at in engine.thawed.items() if at == now}
                awake = self.held._holders.ready().keys() - frozen
                awake -= engine.liars
                must(not self._enough(awake, work), "those that answer are enough", error, awake)
        elif isinstance(error, kofn.WrongReplies):
            must(lies, "all replies were right", error)
            must(engine.liars >= error.workers.keys(), "who was right is not accused", error)
            if error.workers:
                others = self.held._holders.ready().keys() - error.workers.keys()
                must(not self._enough(others, work), "the others are enough", error, others)
        elif isinstance(error, kofn.SharesLost):
            must(self.held.updates, "what was not updated can be made again", error)
        elif isinstance(error, kofn.TooFewWorkers):
            if self.alone and self._is_product(work):
                ready = self.held._holders.ready().keys()
                enough = self._enough(ready, work)
                must(not enough, "those that hold shares are enough", error, ready)
                must(not self._could(work), "those that live are enough", error, engine.workers)
            elif self.alone and work in ("sum", "some"):
                self._too_few_parts(error)
            if self.alone:
                must(error.need > error.live, "more are needed than live", error)
                waited = error.waited >= self.script.wait * (1 - 1e-9)  # a difference of times
                at_once = work in ("encode", "parts")  # nobody is there to be given anything
                must(waited or at_once, "joiners are waited for", error, self.script.wait)
        elif isinstance(error, kofn.Inaccurate):
            must(error.bound > error.tolerance, "it is accurate enough", error)
        else:
            allowed = {"OutOfSymbols"} if self.script.theme == "rateless" else set()
            if work in ("encode", "parts"):
                allowed.add("BadInput")  # somebody joined meanwhile, and there are too few shares
            must(name in allowed, "an error that may be", name, error)

    @staticmethod
    def _is_product(work: str) -> bool:
        return "@" in work or work in ("toarray", "update", "move")

    def _need(self, work: str) -> int:
        """How many are enough for a product with the shares as they are."""
        spare = self.script.otherwise == "parity" and work in ("X @ w", "X @ B")
        return int(self.held.code.k + spare)

    def _enough(self, workers: Iterable[int], work: str) -> bool:
        """Whether these are enough for a product."""
        X = self.held
        if isinstance(X, Rateless):
            decoder, slots = X.decoder(), [X._holders.shares[w] for w in workers]
            keys = (i * X.code.n + slot for slot in slots for i in range(X.code.each))
            return any(decoder.offer(key) for key in keys)
        if not isinstance(X, Replicated):
            return len(list(workers)) >= self._need(work)
        held = {block for w in workers for block in X.slots[X._holders.shares[w]]}
        return bool(len(held) == X.blocks)

    def _could(self, work: str) -> bool:
        """Whether those that live, and are given shares, would be enough."""
        X, roster = self.held, self.driver.roster
        if isinstance(X, Replicated | Rateless) or X.updates or X._holders._twice:
            return False
        live = set(roster.kept) - self.engine.frozen.keys()
        live -= {worker for worker, key in roster.refused if key == X._holders.key}
        need = self._need(work)
        if self.script.otherwise == "learnt":
            need = min(need, X._fewest)  # it is coded anew for these
        return len(live) >= need

    def _too_few_parts(self, error: kofn.TooFewWorkers) -> None:
        """A sum that ended for want of workers: those that have parts do not have them all."""
        placed = self.parts._place(self.parts.code)
        decoder, code = placed.code.decoder(), placed.code
        for slot in placed._holders.ready().values():
            for i, row in enumerate(code.symbols(slot)):
                decoder.offer(i * code.n + slot, row)
        must(not decoder.ready, "those that hold parts are enough", error)

    # What a script can say.

    def _times(self, dice: random.Random, width: int = 0, flipped: bool = False) -> None:
        flipped = flipped and not isinstance(self.X, Rateless)  # which has no X.T
        X, before = self.X, self.A
        target = before
        if self.script.otherwise == "some rows":
            index = [dice.randrange(SIDE) for _ in range(dice.randint(1, SIDE))]
            X, target = X.rows(index), before[index]
        Y, target = (X.T, target.T) if flipped else (X, target)
        w = np.random.default_rng(dice.randrange(1 << 30)).standard_normal(
            (target.shape[1], width) if width else target.shape[1]
        )
        w = w.astype(self.dtype)
        found = Y @ w
        self.note("product", found, Y.report)
        if not self.alone:  # another thread may update it: then before that, or after
            other = [self.A, self.coming]
            near = [A.T if flipped else A for A in (before, *other)]
            target = min(near, key=lambda A: float(np.linalg.norm(found - A @ w)))
        self._same("a product", found, target @ w.astype(np.float64), Y.report.error_bound, w)
        must(not getattr(Y.report, "restarted", False), "what was delivered is not asked again")
        must(self.engine.liars.issuperset(Y.report.wrong), "who was right is not accused", Y.report)

    def _same(self, what: str, found: Array, true: Array, bound: float | None, w: Array) -> None:
        """The error is within the bound, which is relative to the size of the terms."""
        must(found.shape == true.shape, f"{what} has its shape", found.shape)
        if not self.values:
            return
        assert bound is not None
        size = float(np.linalg.norm(self.A) * np.linalg.norm(w.astype(np.float64)))
        error = float(np.linalg.norm(found - true))
        # The product that it is compared with is rounded too.
        bound += 2 * max(self.A.shape) * np.finfo(np.float64).eps
        must(error <= bound * size, f"{what} is right", f"off by {error:g}, bound {bound * size:g}")

    def _whole(self, dice: random.Random) -> None:
        found = self.X.toarray()
        self.note("matrix", found)
        if self.values:
            # Decoded as a product with the unit vectors is, with what such a product promises.
            error, size = np.linalg.norm(found - self.A), np.linalg.norm(self.A)
            must(error <= self.X.tolerance * size, "the matrix is what it should be", error)

    def _again(self, dice: random.Random) -> None:
        before = self.X, self.A, self.V, self.count, self.held
        try:
            self._encode()
        except BaseException:
            self.X, self.A, self.V, self.count, self.held = before
            raise

    def _update(self, dice: random.Random, momentum: float | None = None) -> None:
        rng = np.random.default_rng(dice.randrange(1 << 30))
        N, d = self.A.shape
        U, V = (rng.standard_normal((side, 2)).astype(self.dtype) for side in (N, d))
        change = U.astype(np.float64) @ V.astype(np.float64).T
        velocity = self.V if momentum is None else momentum * self.V + change
        after = self.A + (change if momentum is None else velocity)
        self.coming = after
        X, before = self.held, self.held.updates
        must(before == self.count, "nobody else updates", before, self.count)
        given = kofn.low_rank(V, U) if X is not self.X else kofn.low_rank(U, V)
        try:
            if momentum is None:
                X += given
            else:
                X.move(given, momentum)
        finally:
            must(X.updates - before in (0, 1), "an update is there once or not at all", X.updates)
            if X.updates > before:
                self.A, self.V, self.count = after, velocity, X.updates
        must(X.updates == before + 1, "an update that raised nothing is there")

    def _iterate(self, dice: random.Random) -> str | None:
        rounds, stop = dice.randint(1, 6), dice.choice((0, 0, 0, 2))
        w = np.random.default_rng(dice.randrange(1 << 30)).standard_normal(SIDE)
        vectors = [w]
        for _ in range(rounds):
            vectors.append(self.A @ vectors[-1])
        size = float(np.linalg.norm(w) * np.linalg.norm(self.A))
        eps = SIDE * np.finfo(np.float64).eps  # of each product in the comparison
        told: list[int] = []
        call = dice.randint(1, 12), dice.choice(("join", "lose", "rest"))

        def on_round(round: int, change: float) -> None:
            told.append(round)
            if stop == round:
                raise Own
            if round == call[0]:
                self.DO[call[1]](self, dice)

        try:
            found = self.X.iterate(same, w, rounds=rounds, on_round=on_round)
        except Own:
            must(stop in told, "the caller's own exception comes out")
            return "own"
        except kofn.Inaccurate:
            raise
        except kofn.KofnError as error:
            if error.reached is None:
                must(not told, "it did not begin", told)
                raise
            reached, vector = error.reached
            must(0 <= reached <= rounds, "no round beyond the last is reached", reached)
            if self.values:
                off = float(np.linalg.norm(vector - vectors[reached]))
                must(
                    off <= (reached + 1) * self.X.tolerance * size, "what is reached is right", off
                )
            must(max(told, default=0) <= reached, "what was reached is not lost", told, reached)
            raise
        self.note("iteration", found, self.X.report)
        must(told == sorted(set(told)), "rounds are told in order, once", told)
        must(self.X.report.extra["rounds"] == rounds, "all rounds are done", self.X.report.extra)
        if self.values:
            bound = rounds * (self.X.report.error_bound + eps) * size
            off = float(np.linalg.norm(found - vectors[-1]))
            must(off <= bound, "an iteration is right", f"off by {off:g}, bound {bound:g}")
        return None

    def _sum(self, dice: random.Random, part: float = 1.0) -> None:
        fn, x = dice.choice((weighed, squared)), dice.uniform(0.5, 2.0)
        stop: Any = kofn.exact() if part == 1.0 else kofn.fraction(part)
        if part == 1.0 and self.script.otherwise == "learnt":
            stop = None  # of a sum with a rule of its own nothing is learnt
        terms = np.array([fn(row, x) for row in self.D])
        disjoint = isinstance(self.parts.code, kofn.FractionalRepetition | kofn.Uncoded)
        weights: Any = "plain" if part < 1.0 and disjoint else "covered"
        rate = {"audited": dice.choice((0.3, 1.0)), "lied to": 1.0}.get(self.script.otherwise, 0.0)
        found = self.parts.sum(fn, x, stop=stop, weights=weights, verify=rate)
        self.note("sum", found.value, found.missing, found.covered, found.report)
        right = self.engine.liars.issuperset(found.report.wrong)
        must(right, "who was right is not accused", found.report)
        must(found.exact or part < 1.0, "a sum is exact unless less was asked for")
        must(found.covered >= part - 1e-12, "as much is covered as was asked for", found.covered)
        if not self.values or not (found.exact or weights == "plain"):
            return
        there = [i for i in range(len(terms)) if i not in found.missing]
        true, size = terms[there].sum(axis=0), float(np.abs(terms[there]).sum())
        bound = found.report.error_bound
        if bound is None:  # values that are added up, one after the other
            bound = len(terms) * float(np.finfo(np.float64).eps)
        error = float(np.abs(found.value - true).max())
        must(error <= bound * size, "a sum is right", f"off by {error:g}, bound {bound * size:g}")

    def _parts_again(self, dice: random.Random) -> None:
        before = self.parts, self.D
        try:
            self._part()
        except BaseException:
            self.parts, self.D = before
            raise

    def _submit(self, dice: random.Random) -> None:
        if not self.values:
            self.tickets.append((self.stream.submit_size(4, 6, 8), None, None))
            return
        rng = np.random.default_rng(dice.randrange(1 << 30))
        X, Y = rng.standard_normal((4, 6)), rng.standard_normal((6, 8))
        self.tickets.append((self.stream.submit(X, Y), X, Y))

    def _result(self, dice: random.Random) -> None:
        if not self.tickets:
            self._submit(dice)
        if not self.tickets:
            return  # another thread has taken it
        ticket, X, Y = dice.choice(self.tickets)
        self._took(ticket, X, Y)
        self.tickets = [one for one in self.tickets if one[0] is not ticket]

    def _took(self, ticket: Any, X: Array | None, Y: Array | None) -> None:
        found = ticket.result()
        self.note("job", found, ticket.error_bound)
        if X is None or Y is None:
            return
        size = float(np.linalg.norm(X) * np.linalg.norm(Y))
        bound = ticket.error_bound + 2 * X.shape[1] * np.finfo(np.float64).eps
        error = float(np.linalg.norm(found - X @ Y))
        must(error <= bound * size, "a job is right", f"off by {error:g}, bound {bound * size:g}")

    def _results(self, dice: random.Random) -> None:
        for one in list(self.tickets):
            self._took(*one)
            self.tickets.remove(one)

    def _lose(self, dice: random.Random) -> None:
        workers = self.cluster.workers
        if len(workers) > 1:
            worker = dice.choice(workers)
            try:
                self.cluster.lose(worker)
            except kofn.UnknownWorker:
                return  # it was lost meanwhile
            must(worker not in self.cluster.workers, "who was lost is not live")

    def _join(self, dice: random.Random) -> None:
        self.engine.joins += 1
        self.cluster.join()

    def _rest(self, dice: random.Random) -> None:
        """Let time pass between two rounds."""
        end = self.engine.now() + dice.choice((0.0, 1e-3, 0.1, 3.0, 12.0))
        self.resting += 1
        try:
            while self.engine.now() < end:
                self.driver.settle(end - self.engine.now())
        finally:
            self.resting -= 1

    def _both(self, dice: random.Random) -> None:
        """Two pieces of work, from two threads that take turns."""
        baton = Baton(random.Random(dice.randrange(1 << 30)), self.driver.lock)
        lock, wrong = self.driver.lock, list[BaseException]()
        works = [(dice.choice(IN_THREADS), dice.randrange(1 << 30)) for _ in range(2)]
        if works[0][0] == works[1][0] == "update":
            works[1] = ("X @ w", works[1][1])  # which of two came first nobody could say

        def do(work: str, seed: int) -> None:
            try:
                self.work(work, seed)
            except BaseException as error:
                wrong.append(error)

        self.alone, self.engine.turn = False, baton.turn
        self.driver.lock = baton  # type: ignore[assignment]
        try:
            baton.run(partial(do, *works[0]), partial(do, *works[1]))
        finally:
            self.alone, self.engine.turn, self.driver.lock = True, None, lock
        if wrong:
            raise wrong[0]

    DO: ClassVar[dict[str, Callable[[World, random.Random], str | None]]] = {
        "X @ w": _times,
        "X @ B": lambda self, dice: self._times(dice, 3),
        "X.T @ z": lambda self, dice: self._times(dice, 0, True),
        "X.T @ Z": lambda self, dice: self._times(dice, 2, True),
        "toarray": _whole,
        "encode": _again,
        "update": _update,
        "move": lambda self, dice: self._update(dice, 0.5),
        "iterate": _iterate,
        "sum": _sum,
        "some": lambda self, dice: self._sum(dice, 0.5),
        "parts": _parts_again,
        "submit": _submit,
        "result": _result,
        "results": _results,
        "lose": _lose,
        "join": _join,
        "rest": _rest,
        "both": _both,
    }

    # The end.

    def over(self) -> None:
        """Close the cluster; nothing may be left undone."""
        self.engine.acts.clear()
        check_log(self.cluster.log)
        caught = Counter(record.worker for record in self.cluster.log if record.kind == "wrong")
        must(self.engine.liars.issuperset(caught), "who was right is not accused", caught)
        aside = {record.worker for record in self.cluster.log if record.kind == "aside"}
        twice = {worker for worker, times in caught.items() if times > 1}
        must(aside <= twice, "who was caught once is not put aside", aside, caught)
        lost = {record.worker for record in self.cluster.log if record.kind == "lost"}
        must(twice <= aside | lost, "who was caught twice is put aside", caught)
        if self.script.keep:
            # Who is leaving is replaced, and may stay after all.
            most = max(self.script.keep, self.script.workers)
            most += self.engine.joins + self.engine.notices
            must(len(self.engine.workers) <= most, "no more are ordered than are to be kept")
        self.engine.drain()
        self.tally.events = self.engine.heard
        if isinstance(self.engine.engine, Simulated):
            books = self.engine.engine._protocol
            must(not books._operands, "every operand is let go", books._operands)
            left = [p for p in books._peers.values() if p.tasks or p.puts]
            must(not left, "every put and task has its answer", left)
        self.cluster.close()


def _delays(rng: random.Random) -> Delays:
    slow = {rng.randrange(8): rng.choice((1.5, 5.0, 30.0)) for _ in range(2)}
    return rng.choice((PerUnit(1e-3), PerUnit(1e-3, slow), Exponential(5e-4, 0.02)))


def check_log(log: Sequence[Any]) -> None:
    """Every task ends at most once, every round once; no work for the dead; time goes forward."""
    ended: dict[int, int] = {}
    dead: set[int] = set()
    rounds: dict[int, str] = {}
    for record in log:
        if record.kind == "send":
            must(record.worker not in dead, "no work for the dead", record)
            must(record.task not in ended, "a task is sent once", record)
            ended[record.task] = 0
        elif record.kind in ("reply", "dropped", "failed"):
            if record.task >= 0:  # else a put that failed
                ended[record.task] += 1
                must(ended[record.task] == 1, "a task ends once", record)
            must(record.worker not in dead, "the dead say nothing", record)
        elif record.kind == "lost":
            dead.add(record.worker)
        elif record.kind in ("round", "done", "raised"):
            before = rounds.get(record.round)
            must(before == (None if record.kind == "round" else "round"), "a round ends once")
            rounds[record.round] = record.kind
    must("round" not in rounds.values(), "every round ends", rounds)


def play(seed: int) -> Tally:
    """Play the script of a seed."""
    if THEMES[seed % 100] == "protocol":
        return protocol(seed)
    return played(scripted(seed))


def played(script: Script) -> Tally:
    """Play a script. What is secret, and drawn from no seed, is drawn from the script's here."""
    draws, real = count(), np.random.default_rng

    def drawn(seed: Any = None) -> np.random.Generator:
        return real([script.seed, next(draws)] if seed is None else seed)

    with patch.object(np.random, "default_rng", drawn):
        return World(script).play()


def protocol(seed: int) -> Tally:
    """Play a script of the protocol alone: see test_protocol.py."""
    from test_protocol import ACTIONS
    from test_protocol import play as play_protocol

    rng = random.Random(seed)
    steps = rng.choices(ACTIONS, k=rng.randint(20, 200))
    script = [(step, rng.randrange(4), rng.randrange(24)) for step in steps]
    events = play_protocol(script, rng.random() < 0.5, rng.random() < 0.5)
    return Tally(1, events, Counter({"protocol": 1}))


class Failing(Exception):
    """The script of a seed, and what it violates."""

    def __init__(self, seed: int, why: BaseException) -> None:
        super().__init__(
            f"seed {seed} ({THEMES[seed % 100]}): {type(why).__name__}: {why}\n"
            f"To replay it alone: python tests/search.py --seed {seed} --shrink"
        )
        self.seed = seed


def search(
    seeds: Iterable[int], seconds: float = float("inf"), total: Tally | None = None
) -> Tally:
    """Play the scripts of these seeds, for so long; raise Failing at the first that fails.

    Seconds are those of this process: other work on the machine does not count. What is done is
    counted in `total`.
    """
    total = Tally() if total is None else total
    gc.freeze()  # a tenth of the time is spent on looking through what was imported
    try:
        with gently, interruptible():
            for seed in seeds:
                gently()
                try:
                    total.add(play(seed))
                except Exception as error:
                    raise Failing(seed, error) from error
                if time.process_time() > seconds:
                    break
    finally:
        gc.unfreeze()
    return total


def fails(script: Script) -> bool:
    """Whether a script fails."""
    try:
        with interruptible():
            played(script)
    except Exception:
        return True
    return False


def shrunk(script: Script) -> Script:
    """Leave out steps and strikes one by one, as long as it still fails."""
    smaller = True
    while smaller:
        smaller = False
        steps = script.steps
        without = [steps[:i] + steps[i + 1 :] for i in reversed(range(len(steps)))]
        for i, step in enumerate(steps):
            for j in range(len(step.strikes)):
                less = step._replace(strikes=step.strikes[:j] + step.strikes[j + 1 :])
                without.append((*steps[:i], less, *steps[i + 1 :]))
        for fewer in without:
            if fails(replace(script, steps=fewer)):
                script, smaller = replace(script, steps=fewer), True
                break
    return script


def replay(seed: int, shrink: bool) -> None:
    """Play one seed and show it."""
    if THEMES[seed % 100] == "protocol":
        print(protocol(seed))
        return
    script = scripted(seed)
    if shrink and fails(script):
        script = shrunk(script)
    print(replace(script, steps=()))
    for step in script.steps:
        print("   ", step.work, step.seed, *step.strikes, sep="\n        ")
    with interruptible():
        print(played(script))


def main() -> None:
    """Search as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one alone")
    parser.add_argument("--shrink", action="store_true", help="leave out what is not needed")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="of this process, at most"
    )
    args = parser.parse_args()
    if args.seed is not None:
        replay(args.seed, args.shrink)
        return
    seeds, total = range(args.first, args.first + args.count), Tally()
    try:
        search(seeds, args.seconds, total)
        print(f"{total} in {time.process_time():.1f} s")
    except KeyboardInterrupt:
        print(f"{total} in {time.process_time():.1f} s, and was cut")
        sys.exit(2)  # as pytest does
    except Failing as failing:
        traceback.print_exception(failing)
        sys.exit(f"{failing}\nfound after {time.process_time():.1f} s")


if __name__ == "__main__":
    main()
