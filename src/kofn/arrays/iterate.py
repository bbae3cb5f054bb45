"""X.iterate: w ← f(X w) on the workers, who exchange their pieces among themselves."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import checks
from ..errors import BadInput, CannotDo, Diverged, KofnError
from ..exchange import TASK, ExchangeLayout
from ..interrupts import from_handler, held, opened
from ..model import Task
from ..rounds import Cover
from ..rounds.iterate import IterateRound
from . import mesh
from .decode import judged, segments, weak, worst
from .runs import Count, Laid, Listener, OnRound, conclude, extra
from .worker_body import Loop, Step, scales_key, worker_body

if TYPE_CHECKING:
    from .matrix import CodedMatrix

ROUNDS = 10_000  # at most, where only a tolerance is given
Vector = NDArray[Any]


def iterate(
    X: CodedMatrix,
    f: Step,
    w0: object,
    rounds: int | None,
    tol: float | None,
    report_every: int,
    on_round: OnRound | None,
) -> NDArray[Any]:
    """See CodedMatrix.iterate."""
    driver, engine = X._driver, X._driver.engine
    driver.check()
    w = _vector(X, w0)
    if on_round is not None and not callable(on_round):
        raise BadInput(
            f"on_round must be a function of (round, change), or None; got {on_round!r}."
        )
    loop = _loop(X, f, w, rounds, tol, report_every)
    if X._options.verify is not None:
        raise CannotDo(
            f"X.iterate cannot check replies: workers pass them on among themselves. X was encoded "
            f"with verify={X._options.verify!r}. Go round by round, w = f(X @ w), or encode the "
            f"matrix without verify."
        )
    if not engine.capabilities.exchange:
        raise CannotDo(
            f"X.iterate needs workers that exchange pieces among themselves; engine "
            f"{engine.name!r} cannot do that. Use the local engine, or go round by round: "
            f"w = f(X @ w)."
        )
    with driver.lock:
        X._admit(w.dtype)
        began = engine.now()
        driver.settle()
        plan = X._planner.plan(X.code, X._rows, 0)
        shape = ExchangeLayout(X.code.n, X._rows, len(w), w.dtype.str, X._values)
        exchange = engine.exchange(shape)
        if exchange is None and not driver.peers:
            raise CannotDo(
                "X.iterate has workers connect to each other where they share no memory; this "
                "cluster was opened with peers=False. Go round by round: w = f(X @ w)."
            )
        if exchange is None:  # workers share no memory: by messages between them
            return mesh.iterate(X, loop, w, plan, on_round)
        count = Count(driver, exchange)
        listener, laid = Listener(on_round, loop.report_every, count), Laid(X, plan)
        work = _Work(X, loop, laid, listener)
        key, scales = work.exchange_key, scales_key(work.exchange_key)
        try:
            exchange.offer(shape.shares, 0, w)  # the one time that w0 is written

            def provide(worker: int) -> None:
                if X._scales is not None and X._values:
                    driver.put(worker, scales, X._scales)

            held = list(X._holders.shares)
            with count.aside():  # scales are of the matrix, as shares are
                for worker in held:
                    provide(worker)
            for worker in held:
                driver.put(worker, key, exchange)

            def supply(worker: int) -> None:
                if worker in X._holders.shares:
                    return  # it has been given the exchange too
                with count.aside():
                    X._holders.supply(worker)
                    if worker in X._holders.shares:
                        provide(worker)
                        driver.put(worker, key, exchange)

            ready, late = X._holders.ready(), X._options.late
            round = IterateRound(driver.next_round(), plan.windows, ready, work, exchange, late)
            X._planner.prepare(round)
            driver.run(round, None, supply)
            driver.check()  # what a closed engine had in memory is gone
            if round.broken is not None:
                raise Diverged(*round.broken)
            assert round.ended is not None
            share, reached = round.ended
            final = exchange.vector(share, reached).copy() if X._values else np.full_like(w, np.nan)
            passed = count.total()
        except KofnError as error:
            vectors = exchange.progress().vectors  # the newest that anybody has is kept
            if len(vectors):  # none in memory that was closed with its engine
                share, reached = int(vectors.argmax()), int(vectors.max())
                error.reached = reached, exchange.vector(share, reached).copy()
            raise
        finally:
            driver.forget(key)
            if X._scales is not None:
                driver.forget(scales)
            exchange.close()
        X._planner.ended(round)
        about = extra(reached, round.change, (loop.rounds, loop.tol), len(round.plans), w.nbytes)
        about["bytes_through_master"] = passed
        about["bytes_per_round"] = listener.per_round(passed, reached)
        rows = round.read, round.rows_topped_up, round.repeated_rows
        eta = laid.eta if judged(X.code, X._values) else None
        conclude(X, round, (round.working, round.shares), rows, eta, about, began, w.dtype)
    return final


class _Work:
    """The work of an iteration: one task a worker, windows for any set of shares."""

    def __init__(self, X: CodedMatrix, loop: Loop, laid: Laid, listener: Listener) -> None:
        self.key, self.threshold = X._holders.key, X.code.k
        self.exchange_key = f"exchange-{X._driver.next_task()}"
        self._driver, self._X, self._loop = X._driver, X, loop
        self._laid, self.windows, self.on_round = laid, laid.windows, listener.on_round

    def task(self, round: int, worker: int, share: int) -> Task:
        args = (self.exchange_key, self.key, share, self._loop)
        return Task(self._driver.next_task(), round, worker, worker_body, args, TASK)

    def weak(self, cover: Cover) -> Sequence[int]:
        X = self._X
        if not judged(X.code, X._values):
            return ()
        plan = segments(X.code, cover.shares, cover.cuts, cover.asked)
        poor = weak(plan, cover.cuts)
        if not poor:
            self._laid.eta = max(self._laid.eta, worst(plan))
        return poor


# Bad input, caught before a worker is touched.


def _vector(X: CodedMatrix, w0: object) -> NDArray[Any]:
    if X.shape[0] != X.shape[1]:
        raise BadInput(
            f"X.iterate feeds X w back into X, so X must be square; got shape {X.shape}. "
            f"Multiply round by round instead: X @ w."
        )
    w = checks.operand(w0, X.shape[1], X.dtype, X._options.check_finite)
    if w.dtype.kind == "c":
        raise BadInput(
            f"X.iterate takes a vector of real numbers; got dtype {w.dtype}. Iterate over the real "
            f"and the imaginary part one after the other."
        )
    if w.ndim != 1:
        raise BadInput(
            f"X.iterate takes one vector w0 of length {X.shape[1]}; got shape {w.shape}. "
            f"Iterate over the columns one by one."
        )
    return w


def _loop(
    X: CodedMatrix, f: Step, w: Vector, rounds: int | None, tol: float | None, report_every: int
) -> Loop:
    if not callable(f):
        raise BadInput(
            f"f must be a function of the decoded vector; got {f!r}. Use lambda y: y to have X w "
            f"itself."
        )
    if rounds is None and tol is None:
        raise BadInput("X.iterate needs a rule to stop by; got none. Pass rounds=, tol= or both.")
    limit = ROUNDS if rounds is None else checks.whole(rounds, "rounds", 1)
    if tol is not None:
        checks.number(tol, "tol", "> 0", "Leave it out to stop by rounds alone.", infinite=True)
    driver = X._driver
    loop = Loop(
        code=X.code,
        f=f,
        with_w=_takes_two(f),
        rounds=limit,
        tol=-1.0 if tol is None else float(tol),
        report_every=checks.whole(report_every, "report_every", 1),
        work_beat=min(driver.limit, driver.lost_after) / 3,
        wait_beat=driver.lost_after / 3,
        check_finite=X._options.check_finite,
    )
    if X._values:
        try:
            with held(), opened(foreign=True):
                loop.step(w.copy(), w)
        except Exception as error:
            if from_handler(error):
                raise
            raise BadInput(
                f"f must take a vector of length {len(w)} and return one; tried on w0, it raised "
                f"{error!r}. Try f(w0) yourself."
            ) from error
    return loop


def _takes_two(f: Step) -> bool:
    """Whether f wants w beside X w: it has a second positional argument without a default."""
    try:
        parameters = signature(f).parameters.values()
    except (TypeError, ValueError):
        return False  # a ufunc, or something built in
    places = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in places and p.default is Parameter.empty for p in parameters) >= 2
