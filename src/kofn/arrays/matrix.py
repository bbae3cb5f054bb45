"""CodedMatrix: a matrix that lives as shares on workers and keeps multiplying."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import checks
from ..codes.linear import error_bound, round_off
from ..display import Displayed
from ..errors import BadInput, Inaccurate
from ..model import Body, ProductReport, Record, RowRange, Update
from ..rounds import ElasticRound, RoundDriver
from ..rounds.holders import Holders
from . import fetching, work
from .batches import CodedRows, aligned
from .checking import Checked, begun
from .decode import Code, plain
from .drift import Drift
from .iterate import iterate
from .lowrank import as_change
from .operator import Reporting, check_assigned
from .options import TOLERANCE, Options
from .plan import Plan, Planner
from .recoding import MOST, with_fewer
from .reduce import SumRound
from .scales import Growth, change_lengths
from .shares import Shares
from .tasks import Adjoint, More, Pass
from .transpose import CodedTranspose
from .verify import unseen
from .worker_body import Step


class CodedMatrix(Displayed, Reporting):
    """A matrix of which any `k` of `n` shares are enough. Made by `Cluster.encode`.

    Every live worker holds one share of ceil(N / k) rows and reads about N / n of them per
    product, n being the number of live workers. `X.T` multiplies with the transpose. The source
    is kept (not copied) to make the shares of workers that join later.
    """

    _displayed = ("shape", "dtype", "code", "shares", "updates", "columns")

    def __init__(self, driver: RoundDriver, shares: Shares, options: Options) -> None:
        super().__init__(shares.dtype, shares.shape)
        self._driver, self._options = driver, options
        self.tolerance = self._tolerance(self.dtype)
        self._values = driver.engine.capabilities.values
        self._fewest = -(-shares.code.k // MOST)  # if its k is left to kofn
        self._begin(shares)

    def _begin(self, shares: Shares) -> None:
        """Place these shares, in place of others if there are any."""
        driver, options, began = self._driver, self._options, self._driver.engine.now()
        self.code = shares.code
        self.sparse, self._scales, self._store = shares.sparse, shares.scales, shares.store
        self._doubled, self._double = shares.doubled, shares.double
        code, least = self.code, self._stored.k
        self._rows = code.block_rows(self.shape[0])
        self._holders = Holders(driver, code.n, shares.share_of, None, code.k, least)
        this: Any = weakref.proxy(self)
        rebuild = partial(fetching.rebuild, this)
        self._planner = Planner(self._holders, rebuild, least, code.k, options.measured_loads)
        self._planner.configure(options, self._rows, code)
        self._drift = Drift(checked=self._begin_checks(shares))
        left = options.recode is not None and self._store is None
        self._placing = 0.0 if left else None  # seconds; also where it is interrupted
        with driver.lock, shares:
            self._holders.place(enough=code.k)  # nobody waits for long for one that is stopped
        if left:
            self._placing = driver.engine.now() - began

    @property
    def T(self) -> CodedTranspose:
        """The transpose: shares no data of its own."""
        return CodedTranspose(self)

    @T.setter
    def T(self, value: CodedTranspose) -> None:
        check_assigned(isinstance(value, CodedTranspose) and value.T is self, value)

    @property
    def updates(self) -> int:
        """How many updates it has taken: after an exception, whether the last one is among them."""
        return self._holders.version.updates

    @property
    def shares(self) -> dict[int, int]:
        """Which share each live worker holds."""
        self._driver.settle()
        return self._holders.ready()

    def windows(self) -> dict[int, tuple[RowRange, ...]]:
        """Rows of its share that each live worker reads in the next product, as runs."""
        with self._driver.lock:
            self._driver.settle()
            tuner = self._planner.tuner
            margin = self._options.margin if tuner is None else tuner.margin
            plan = self._planner.plan(self.code, self._rows, margin)
        runs, places = plan.windows.runs, plan.windows.places
        return {worker: runs[places[share]] for worker, share in plan.holders.items()}

    def _multiplied(self, operand: NDArray[Any]) -> NDArray[Any]:
        with self._driver.lock, np.errstate(over="ignore", invalid="ignore"):
            return self._finite(with_fewer(self, partial(self._product, operand)))

    def __iadd__(self, change: object) -> Self:
        """X += kofn.low_rank(U, V): add U Vᵀ to the matrix, in place, on the workers.

        Only the coded U and V travel. A plain array of X's shape is taken too, and travels whole.
        What is raised in the middle of it leaves X with all of it or without it: see `updates`.
        """
        self._update(change, None)
        return self

    def move(self, change: object, momentum: float) -> None:
        """Gradient descent with momentum: velocity = momentum · velocity + change, X += velocity.

        The velocity, zero at first, is of X's shape and full rank; it is kept coded beside the
        shares, on the workers, and rebuilt with them. Only the coded change travels, as in
        X += kofn.low_rank(U, V). Doubles the memory of a share.
        """
        self._update(change, checks.number(momentum, "momentum", "in [0, 1)", "0.9 is usual."))

    def iterate(
        self,
        f: Step,
        w0: object,
        rounds: int | None = None,
        tol: float | None = None,
        *,
        report_every: int = 1,
        on_round: Callable[[int, float], object] | None = None,
    ) -> NDArray[Any]:
        """w ← f(X w), from w0 on, without the master touching the values; returns the last w.

        X must be square. f takes the decoded X w, or that and w, and returns the next w; every
        worker applies it to the whole vector, so it must be deterministic (and picklable).
        Stops after `rounds`, or when the Euclidean norm of the change of w is at most `tol` (at
        most 10,000 rounds then, if `rounds` is left out); `report.extra` says which. `on_round` is
        called here with the round and the change, every `report_every` rounds, and may end and
        start workers, but not multiply.

        Workers exchange their pieces among themselves, once a round. The master sends w0, receives
        the last w, and in between some hundred bytes a round, whatever the length of w. When a
        worker is lost, the others repair the round; a joiner takes part once it has its share.
        Raises CannotDo on engines whose workers cannot exchange, and with `verify`, because the
        exchanged values cannot be checked. Raises Diverged when w is not finite.
        """
        return iterate(self, f, w0, rounds, tol, report_every, on_round)

    def rows(self, index: ArrayLike) -> CodedRows:
        """Some rows as a matrix: X.rows(index) @ w reads only their places of every share."""
        return CodedRows(self, index)

    def batches(self, size: int, seed: Any = None) -> Iterator[NDArray[np.intp]]:
        """Row numbers in random batches of about `size`, each row once; see docs/arrays.md."""
        return aligned(self.shape[0], self._rows, size, seed)

    def toarray(self) -> NDArray[Any]:
        """The matrix as it is now, updates included: (N, d), decoded from live shares."""
        self._driver.check()
        with self._driver.lock:
            blocks = with_fewer(self, self._blocks)
        return self._unscaled(self._joined(blocks))

    def velocity(self) -> NDArray[Any] | None:
        """The velocity that `move` has given it, (N, d), decoded from live shares; None: none."""
        self._driver.check()
        with self._driver.lock:
            if not self._drift.moving:
                return None
            blocks = self._blocks(velocity=True)
        return self._unscaled(self._joined(blocks))

    def _blocks(self, velocity: bool = False) -> NDArray[Any]:
        self._planner.await_enough()
        return fetching.blocks(self, velocity)

    def __checkpoint__(self) -> NDArray[Any] | str:
        """What a checkpoint has of it, and `encode` takes: its store's path, or all its numbers."""
        return self._store if self._store is not None and not self.updates else self.toarray()

    def __repr__(self) -> str:
        (rows, columns), code, planner = self.shape, self.code, self._planner
        margin = self._options.margin if planner.tuner is None else planner.tuner.margin
        spare = f", margin {margin}" if margin else ""
        text = f"<CodedMatrix {rows} x {columns} {self.dtype}, any {code.k} of {code.n} shares"
        return f"{text}{spare}; {len(self._holders.ready())} live>"

    # What another way of cutting a matrix does otherwise (see grid.py).

    @property
    def _columns(self) -> int:
        """Columns of a share that belong to the matrix."""
        return self.shape[1]

    @property
    def _stored(self) -> Code:
        """The code of the shares themselves: by it they are rebuilt and read."""
        return self.code

    def _coded(
        self, share: int, U: NDArray[Any], V: NDArray[Any] | None
    ) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """What a change U Vᵀ (or U) is to one share, in the same form."""
        return self.code.encode_share(share, U) if self._values else None, V

    def _joined(self, blocks: NDArray[Any]) -> NDArray[Any]:
        """The matrix that these blocks are of."""
        return blocks.reshape(-1, self.shape[1])[: self.shape[0]]

    # Updates: puts that change what is kept.

    def _update(self, given: object, momentum: float | None) -> None:
        """Add a change to the matrix; with a momentum, to its velocity, and that to the matrix."""
        if self.sparse:
            raise BadInput(
                "a sparse matrix cannot take a low-rank update: its shares would become dense. "
                "Encode A.toarray() if it fits, or X of the dense part and the rest apart."
            )
        U, V = as_change(given, self.shape, self.dtype, self._check_finite, self._scaled)

        def change(old: str, share: int) -> Update:
            coded = self._coded(share, U, V)
            if momentum is None:
                return Update(old, work.add_low_rank, coded)
            return Update(old, work.add_velocity, (*coded, momentum))

        with self._driver.lock:
            with_fewer(self, lambda: self._planner.await_enough())
            note = self._drift.after(fetching.change_seen(self, U, V), momentum)
            if self._values:
                note = replace(note, checked=note.checked.after(U, V, momentum))
            if self._scales is not None:
                grown = note.growth or Growth.begun(self._scales, self._rows)
                note = replace(note, growth=grown.after(change_lengths(U, V), momentum or 0.0))
            self._holders.update(change, note=note)

    @property
    def _drift(self) -> Drift:
        """What is known of this version of the matrix beside its shares."""
        return self._holders.version.note or Drift()

    @_drift.setter
    def _drift(self, drift: Drift) -> None:
        self._holders.version = replace(self._holders.version, note=drift)

    def _begin_checks(self, shares: Shares) -> Checked:
        verify = self._options.verify if self._values else None
        groups = self._planner.groups or 1  # with parity only X.T @ z is checked by probes
        return begun(verify, shares, (self._stored.k, self._rows, self._columns), groups)

    # One product: plan, round, decode.

    def _product(self, operand: NDArray[Any]) -> NDArray[Any]:
        N = self.shape[0]
        groups = self._planner.groups
        body, more = (work.grouped, lambda _: (groups,)) if groups else (work.product, None)
        blocks = self._pass(self.code, self._rows, operand, body, more)
        return self._unscaled(blocks[:N].reshape(N, *operand.shape[1:]))

    def _scaled(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows (N, ...) divided as those of the matrix were before they were coded."""
        return rows if self._scales is None else self._scales.over(rows)

    def _unscaled(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows (N, ...) that were so divided."""
        return rows if self._scales is None else self._scales.times(rows)

    def _pass(
        self, code: Code, rows: int, operand: NDArray[Any], body: Body, more: More | None = None
    ) -> NDArray[Any]:
        """One elastic round over so many rows of the shares: the decoded blocks, one by one."""
        self._admit(operand.dtype)
        driver, planner, inner = self._driver, self._planner, len(operand)
        precision = self._precision(operand.dtype)
        began = driver.engine.now()
        driver.settle()
        plan = planner.plan(code, rows, planner.margin(self._options.margin))
        width = 1 if operand.ndim == 1 else operand.shape[1]
        late = planner.late(code, rows, body, width, operand.dtype.char)
        (shares, resting), worst = planner.members(plan), partial(self._worst, inner, precision)
        work = Pass(driver, code, self._holders.key, body, worst, more)
        round = ElasticRound(driver.next_round(), plan.windows, shares, work, late, resting)
        planner.prepare(round)
        drift, finite = self._drift, self._check_finite
        drift.checked.watch_product(round, code, operand, drift.share_errors, finite)
        driver.run(round, operand, self._holders.supply)
        gathered = driver.engine.now()
        result, eta = plan.decode(code, round, width, operand.dtype)
        if not self._values:
            driver.engine.spend(lambda: width * plan.combined(code, round))
        cover = round.cover
        count = (cover.rows_used, cover.delivered_rows - cover.rows_used, cover.topped_up_rows)
        self._conclude(round, plan, eta, count, (began, gathered), inner, precision)
        return result

    @property
    def _check_finite(self) -> bool:
        return self._options.check_finite

    def _transposed(self, operand: NDArray[Any]) -> NDArray[Any]:
        """X.T @ z, for an operand that has been checked."""
        if operand.ndim == 2 and operand.shape[1] == 0:
            return np.empty((self.shape[1], 0), operand.dtype)
        with self._driver.lock, np.errstate(over="ignore", invalid="ignore"):
            return self._finite(with_fewer(self, partial(self._back, operand)))

    def _finite(self, result: NDArray[Any]) -> NDArray[Any]:
        """Refuse infinities that finite data and operands cannot have meant."""
        return checks.not_overflowed(result) if self._check_finite and self._values else result

    def _back(self, z: NDArray[Any]) -> NDArray[Any]:
        """Aᵀ z, for z (N,) or (N, c)."""
        return self._sum(self._unscaled(z[:, None] if z.ndim == 1 else z), z.shape[1:])

    def _sum(
        self, unscaled: NDArray[Any], shape: tuple[int, ...], places: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Aᵀ z in `shape`, z (rows, width): every reply is needed, what is lost is re-expressed.

        With `places` of the shares, z has a row for each of them in each block.
        """
        self._admit(unscaled.dtype)
        driver, planner, code = self._driver, self._planner, self.code
        precision = self._precision(unscaled.dtype)
        began = driver.engine.now()
        planner.await_enough()
        rows, width = self._rows if places is None else len(places), unscaled.shape[1]
        plan = planner.plan(code, rows, 0)
        late = planner.late(code, rows, Adjoint, width, unscaled.dtype.char)
        shares, resting = planner.members(plan)
        sizes, worst = (rows, self._columns), self._worst(len(unscaled), precision)
        # Of what meets the rows as they were coded: η is relative to that.
        length = checks.length(unscaled)
        work = Adjoint(driver, code, self._holders.key, worst, sizes, length, places)
        items = plan.items(code.k, unscaled)
        round = SumRound(driver.next_round(), items, shares, work, late, resting)
        planner.prepare(round)
        drift, sizes, finite = self._drift, (self._columns, width), self._check_finite
        drift.checked.watch_adjoint(round, code, sizes, drift.share_errors, finite)
        driver.run(round, None, self._holders.supply)
        gathered = driver.engine.now()
        total = round.total()
        made = np.full(self.shape[1] * width, np.nan) if total is None else np.asarray(total)
        result = made.reshape(self.shape[1], *shape).astype(unscaled.dtype, copy=False)
        counts = (round.rows_used, 0, round.rows_topped_up)
        eta = None if plan.eta is None else float(np.sqrt(plan.eta**2 + round.strain))
        times = began, gathered
        self._conclude(round, plan, eta, counts, times, len(unscaled), precision)
        return result

    def _conclude(
        self,
        round: ElasticRound | SumRound,
        plan: Plan,
        eta: float | None,
        rows: tuple[int, int, int],
        times: tuple[float, float],
        inner: int,
        precision: np.dtype[Any],
    ) -> None:
        """Write the report, learn from it, and refuse a result that is too inaccurate."""
        bound = None if eta is None else self._bound(inner, eta, round.shares, precision)
        hidden = None if eta is None else unseen(round.verifier, eta)
        hidden = None if hidden is None else hidden * self._uneven
        used, wasted, topped_up = rows
        ended = self._driver.engine.now()
        self._report = round.report(
            ProductReport,
            plan.holders,
            (*times, ended),
            rows_read=dict(round.read),
            rows_used=used,
            rows_wasted=wasted,
            rows_topped_up=topped_up,
            rows_moved=plan.rows_moved,
            restarted=isinstance(round, ElasticRound) and round.cover.repeated_rows > 0,
            eta=eta,
            error_bound=bound,
            unseen=hidden,
            tuned=self._planner.tuned,
        )
        self._driver.log.append(Record.result(ended, self._report))
        self._planner.ended(round)
        self._planner.learn(round, tuple(plan.holders))
        plan.rows_moved, self._planner.tuned = 0, ()  # moved, and changed, once
        if bound is not None and eta is not None:
            self._refuse(bound, eta, precision)

    def _refuse(self, bound: float, eta: float, precision: np.dtype[Any]) -> None:
        """Refuse a result that is too inaccurate."""
        if bound > (tolerance := self._tolerance(precision)):
            raise Inaccurate(bound, tolerance, eta)

    def _tolerance(self, precision: np.dtype[Any]) -> float:
        return self._options.tolerance or TOLERANCE[precision]

    def _admit(self, dtype: np.dtype[Any]) -> None:
        """Have shares that an operand of this type loses no digits by, where there can be such.

        The blocks of a float32 matrix are exact, but sums of them are rounded. With the first
        operand of float64 these are made again, in double precision.
        """
        if dtype == self.dtype or self._double is None or self.updates:
            return
        if any(plain(self._stored, share) is None for share in range(self.code.n)):
            why = f"coded shares in {dtype}, not {self.dtype}: an operand is {dtype}"
            self._driver.log.append(Record(self._driver.engine.now(), "tuned", -1, -1, -1, 0, why))
            self._begin(self._double())
            self._planner.tuned = (why,)
        self._doubled, self._double = True, None

    def _precision(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The type whose rounding a product with an operand of this type has."""
        return dtype if self._doubled else self.dtype

    def _worst(self, inner: int, precision: np.dtype[Any]) -> float:
        """The η above which products of this inner dimension are refused."""
        holding = set(self._holders.shares.values())
        return self._tolerance(precision) / self._bound(inner, 1.0, holding, precision)

    def _bound(
        self, inner: int, eta: float, shares: Collection[int], precision: np.dtype[Any]
    ) -> float:
        """Bound on the relative error of products of this inner dimension, decoded with such η."""
        least = error_bound(inner, precision, eta)
        rounding = round_off(self.dtype) * math.sqrt(self.updates) if self.updates else 0.0
        bound = self._drift.widened(least, max(1.0, eta), rounding, self.code.k, shares)
        return bound * self._uneven

    @property
    def _uneven(self) -> float:
        """What errors of a row set may be larger by, relative to its length, where it is scaled.

        Scaled rows have about one length, and those of m rows together are √m long. Their error may
        be all in the row that was the largest. That is half of its power of two long, at least, and
        as long as the row set, if the others are small.
        """
        if self._scales is None:
            return 1.0
        return 2.0 * math.sqrt(-(-self.shape[0] // self._rows))
