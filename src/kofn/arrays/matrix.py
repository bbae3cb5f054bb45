"""CodedMatrix: a matrix that lives as shares on workers and keeps multiplying."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from .. import checks
from ..codes.linear import error_bound
from ..codes.mds import MDSCode
from ..errors import BadInput, CannotDo, Inaccurate, NothingYet, Overflowed
from ..model import ProductReport, RowRange, Update
from ..rounds import ElasticRound, Late, Layout, RoundDriver
from ..rounds.elastic import Work
from ..rounds.holders import Change, Holders, ShareOf
from ..rounds.reduce import Item, SumRound
from . import fetching, work
from .decode import FEW, Code, DataCode, combine, combine_at_once, gather, recode, segments
from .drift import Drift
from .iterate import iterate
from .lowrank import LowRank, as_change
from .plan import Paces, Plan
from .scales import Growth, Scales, change_lengths
from .tasks import Adjoint, Product
from .walk import Step

TOLERANCE = {np.dtype(np.float64): 1e-6, np.dtype(np.float32): 1e-2}
SILENT = 0.25  # seconds: who owes an answer from an earlier round for so long is left out


@dataclass(frozen=True)
class Options:
    """How a coded matrix multiplies; see Cluster.encode."""

    tolerance: float | None = None
    check_finite: bool = True
    margin: int = 0
    late: Late | None = Late()  # noqa: RUF009 - frozen
    measured_loads: bool = True


class CodedMatrix:
    """A matrix of which any `k` of `n` shares are enough. Made by `Cluster.encode`.

    Every live worker holds one share of ceil(N / k) rows and reads about N / n of them per
    product, n being the number of live workers. `X.T` multiplies with the transpose. The source
    is kept (not copied) to make the shares of workers that join later.
    """

    __array_ufunc__ = None  # so that `array @ X` is refused by NumPy, not taken apart

    def __init__(
        self,
        driver: RoundDriver,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        code: DataCode,
        share_of: ShareOf,
        options: Options,
        sparse: bool = False,
        scales: Scales | None = None,
    ) -> None:
        self._scales = scales  # what the rows were divided by before they were coded
        self.code, self.shape, self.dtype, self.sparse = code, shape, dtype, sparse
        self.tolerance = TOLERANCE[dtype] if options.tolerance is None else options.tolerance
        self._driver, self._options = driver, options
        self._rows = code.block_rows(shape[0])
        self._holders = Holders(driver, code.n, share_of, None, code.k, self._stored.k)
        self._paces = Paces()
        self._plans: dict[tuple[Code, int], Plan] = {}  # by code and margin
        self._report: ProductReport | None = None
        self._laggards: set[int] = set()  # late, and still at it
        self._values = driver.engine.capabilities.values
        # A worker that is stopped must not keep the others waiting for long.
        self._holders.place(enough=code.k)

    @property
    def T(self) -> CodedTranspose:
        """The transpose: shares no data of its own."""
        return CodedTranspose(self)

    @T.setter
    def T(self, value: CodedTranspose) -> None:
        # X.T += change ends in this assignment.
        if not isinstance(value, CodedTranspose) or value.T is not self:
            raise BadInput(
                f"X.T is X seen from its other side, and takes nothing but X.T += change; got a "
                f"{type(value).__name__}. Encode that instead."
            )

    @property
    def updates(self) -> int:
        """How many updates it has taken: after an exception, whether the last one is among them."""
        return self._holders.version.updates

    @property
    def report(self) -> ProductReport:
        """What the last product did. Raises NothingYet before the first."""
        if self._report is None:
            raise NothingYet("a report describes the last product; there was none yet. Multiply.")
        return self._report

    @property
    def shares(self) -> dict[int, int]:
        """Which share each live worker holds."""
        self._driver.settle()
        return self._holders.ready()

    def windows(self) -> dict[int, tuple[RowRange, ...]]:
        """Rows of its share that each live worker reads in the next product, as runs."""
        with self._driver.lock:
            self._driver.settle()
            plan = self._planned(self.code, self._rows, self._options.margin)
        return {w: plan.windows.runs[plan.places[share]] for w, share in plan.holders.items()}

    def __matmul__(self, w: object) -> NDArray[Any]:
        """X @ w for a vector (d,) or columns (d, c): exact to `report.error_bound`.

        Any k live workers are enough. Raises TooFewWorkers below that, and keeps the matrix
        usable: the next product works as soon as enough workers have joined.
        """
        self._driver.check()
        operand = checks.operand(w, self.shape[1], self.dtype, self._options.check_finite)
        with self._driver.lock, np.errstate(over="ignore", invalid="ignore"):
            return self._finite(self._product(operand))

    def __iadd__(self, change: object) -> Self:
        """X += kofn.low_rank(U, V): add U Vᵀ to the matrix, in place, on the workers.

        Only the coded U and V travel. A plain array of X's shape is taken too, and travels whole.
        What is raised in the middle of it leaves X with all of it or without it: see `updates`.
        """
        self._check_dense()
        U, V = self._change(change)
        self._update(
            lambda old, share: Update(old, work.add_low_rank, self._coded(share, U, V)),
            lambda: self._drift.added(fetching.change_seen(self, U, V)),
            lambda growth: growth.after(change_lengths(U, V)),
        )
        return self

    def move(self, change: object, momentum: float) -> None:
        """Gradient descent with momentum: velocity = momentum · velocity + change, X += velocity.

        The velocity, zero at first, is of X's shape and full rank; it is kept coded beside the
        shares, on the workers, and rebuilt with them. Only the coded change travels, as in
        X += kofn.low_rank(U, V). Doubles the memory of a share.
        """
        self._check_dense()
        made = checks.number(momentum, "momentum", "in [0, 1)")
        U, V = self._change(change)
        self._update(
            lambda old, share: Update(old, work.add_velocity, (*self._coded(share, U, V), made)),
            lambda: self._drift.moved(fetching.change_seen(self, U, V), made),
            lambda growth: growth.after(change_lengths(U, V), made),
        )

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

        Workers exchange their pieces among themselves, once a round. What passes here a round is
        some hundred bytes, whatever the length of w; w0 and the last w pass once each. A round that
        loses a worker is repaired by the others; who joins takes part as soon as it has its share.
        Raises CannotDo on engines whose workers cannot exchange, Diverged when w is not finite.
        """
        return iterate(self, f, w0, rounds, tol, report_every, on_round)

    def toarray(self) -> NDArray[Any]:
        """The matrix as it is now, updates included: (N, d), decoded from live shares."""
        self._driver.check()
        with self._driver.lock:
            self._driver.settle()
            self._driver.await_enough(self._live, self.code.k)
            blocks = fetching.blocks(self)
        return self._unscaled(self._joined(blocks))

    def __reduce__(self) -> NoReturn:
        raise CannotDo(
            "a coded matrix cannot be pickled: its shares stay with its workers. Encode it there, "
            "or write a store (kofn encode) and pass its path."
        )

    def __repr__(self) -> str:
        return (
            f"<CodedMatrix {self.shape[0]} x {self.shape[1]} {self.dtype}, any {self.code.k} of "
            f"{self.code.n} shares; {len(self._holders.ready())} live>"
        )

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

    def _check_dense(self) -> None:
        if self.sparse:
            raise BadInput(
                "a sparse matrix cannot take a low-rank update: its shares would become dense. "
                "Encode A.toarray() if it fits, or X of the dense part and the rest apart."
            )

    def _change(self, change: object) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """(U, V) of an update U Vᵀ of the scaled rows, or (array, None)."""
        finite = self._options.check_finite
        return as_change(change, self.shape, self.dtype, finite, self._scaled)

    @property
    def _drift(self) -> Drift:
        """What is known of this version of the matrix beside its shares."""
        return self._holders.version.note or Drift()

    @_drift.setter
    def _drift(self, drift: Drift) -> None:
        self._holders.version = replace(self._holders.version, note=drift)

    def _update(
        self, change: Change, drift: Callable[[], Drift], grow: Callable[[Growth], Growth]
    ) -> None:
        with self._driver.lock:
            self._driver.settle()
            self._driver.await_enough(self._live, self.code.k)
            note = drift()
            if self._scales is not None:
                grown = note.growth or Growth.begun(self._scales, self._rows)
                note = replace(note, growth=grow(grown))
            self._holders.update(change, note=note)

    # One product: plan, round, decode.

    def _product(self, operand: NDArray[Any]) -> NDArray[Any]:
        N = self.shape[0]
        work = Product(self._driver, self.code, self._holders.key, self._worst(self.shape[1]))
        blocks = self._pass(self.code, self._rows, work, operand, self.shape[1])
        return self._unscaled(blocks[:N].reshape(N, *operand.shape[1:]))

    def _scaled(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows (N, ...) divided as those of the matrix were before they were coded."""
        return rows if self._scales is None else self._scales.over(rows)

    def _unscaled(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows (N, ...) that were so divided."""
        return rows if self._scales is None else self._scales.times(rows)

    def _pass(
        self, code: Code, rows: int, work: Work, operand: NDArray[Any], inner: int
    ) -> NDArray[Any]:
        """One elastic round over so many rows of the shares: the decoded blocks, one by one."""
        driver = self._driver
        began = driver.engine.now()
        driver.settle()
        plan = self._planned(code, rows, self._options.margin)
        late, (shares, resting) = self._options.late, self._members(plan)
        round = ElasticRound(driver.next_round(), plan.windows, shares, work, late, resting)
        driver.run(round, operand, self._holders.supply)
        gathered = driver.engine.now()
        result, eta = self._decode(code, round, plan, operand)
        cover = round.cover
        count = (cover.rows_used, cover.delivered_rows - cover.rows_used, cover.topped_up_rows)
        self._conclude(round, plan, eta, count, (began, gathered), inner)
        return result

    def _finite(self, result: NDArray[Any]) -> NDArray[Any]:
        """Refuse infinities that finite data and operands cannot have meant."""
        if not self._options.check_finite or not self._values:
            return result
        if not np.isfinite(result.sum()) and not np.isfinite(result).all():
            most = np.finfo(self.dtype).max
            raise Overflowed(
                f"coded products of finite numbers must stay below {most:.1e}; this one, or a "
                f"coded sum on the way to it, does not. Scale the data or the operand down, or "
                f"pass check_finite=False to encode."
            )
        return result

    def _decode(
        self, code: Code, round: ElasticRound, plan: Plan, operand: NDArray[Any]
    ) -> tuple[NDArray[Any], float | None]:
        width = 1 if operand.ndim == 1 else operand.shape[1]
        rows = plan.windows.rows
        if not self._values:
            return np.full((code.k * rows, width), np.nan, self.dtype), None
        if width == 0:
            return np.empty((code.k * rows, width), self.dtype), plan.eta
        if round.cover.as_planned:
            parts, places, eta = plan.segments, plan.places, plan.eta
        else:
            parts = segments(code, round.cover)
            places = {share: i for i, share in enumerate(round.cover.shares)}
            eta = max(s.weights.eta for s in parts)
        replies = gather(round.values, places, (len(places), rows, width))
        if parts is plan.segments and plan.at_once is not None and replies.size <= FEW:
            return combine_at_once(plan.at_once, replies).reshape(-1, width), eta
        return combine(parts, replies).reshape(-1, width), eta

    def _adjoint(self, z: NDArray[Any]) -> NDArray[Any]:
        """Aᵀ z, for z (N,) or (N, c): every reply is needed, and what is lost is re-expressed."""
        driver, code = self._driver, self.code
        began = driver.engine.now()
        driver.settle()
        driver.await_enough(self._live, code.k)
        plan = self._planned(code, self._rows, 0)
        width = 1 if z.ndim == 1 else z.shape[1]
        shares, resting = self._members(plan)
        round = SumRound(
            driver.next_round(),
            self._items(plan, self._unscaled(z.reshape(len(z), width))),
            shares,
            Adjoint(
                driver,
                code,
                self._holders.key,
                self._worst(len(z)),
                (self._rows, self._columns),
                z,
            ),
            self._options.late,
            resting,
        )
        driver.run(round, None, self._holders.supply)
        gathered = driver.engine.now()
        total = round.total()
        shape = (self.shape[1], *z.shape[1:])
        if total is None:
            result = np.full(shape, np.nan, self.dtype)
        else:
            result = np.asarray(total).reshape(shape).astype(self.dtype, copy=False)
        rows = (round.rows_used, 0, round.rows_topped_up)
        eta = None if plan.eta is None else float(np.sqrt(plan.eta**2 + round.strain))
        self._conclude(round, plan, eta, rows, (began, gathered), self.shape[0])
        return result

    def _items(self, plan: Plan, z: NDArray[Any]) -> list[Item]:
        """What each holder does for Aᵀ z: the rows of its window, times the re-encoded z."""
        shares, runs = plan.windows.shares, plan.windows.runs
        if not self._values:
            return [
                Item(share, mine, None) for share, mine in zip(shares, runs, strict=True) if mine
            ]
        blocks = np.zeros((self.code.k * self._rows, z.shape[1]), self.dtype)
        blocks[: len(z)] = z
        u = recode(plan.segments, len(shares), blocks.reshape(self.code.k, self._rows, -1))
        return [
            Item(share, mine, np.concatenate([u[i, first:last] for first, last in mine]))
            for i, (share, mine) in enumerate(zip(shares, runs, strict=True))
            if mine
        ]

    def _conclude(
        self,
        round: ElasticRound | SumRound,
        plan: Plan,
        eta: float | None,
        rows: tuple[int, int, int],
        times: tuple[float, float],
        inner: int,
    ) -> None:
        """Write the report, learn from it, and refuse a result that is too inaccurate."""
        ended = self._driver.engine.now()
        bound = None if eta is None else self._bound(inner, eta, round.shares)
        used, wasted, topped_up = rows
        self._report = ProductReport.of(
            round,
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
        )
        self._laggards = self._driver.roster.owing([*self._laggards, *round.late])
        plan.rows_moved = 0  # moved once; later rounds on the same windows move nothing
        if self._options.measured_loads:
            self._paces.learn(round.read, round.spent)
        if bound is not None and eta is not None and bound > self.tolerance:
            raise Inaccurate(bound, self.tolerance, eta)

    # Who takes part.

    def _planned(self, code: Code, rows: int, margin: int) -> Plan:
        """The plan for those that can take part now, made anew only when something changed."""
        ready = self._answering(self._ready(), code.k)
        span = code.k + margin
        loads = self._paces.loads(ready, span) if self._options.measured_loads else None
        plan = self._plans.get((code, margin))
        if plan is None or plan.holders != ready or Paces.differ(plan.layout.fractions, loads):
            layout = Layout(code.k, margin, loads)
            plan = Plan(code, ready, layout, rows, plan, values=self._values)
            self._plans[code, margin] = plan
        return plan

    def _members(self, plan: Plan) -> tuple[dict[int, int], Collection[int]]:
        """Live workers with their shares, and those among them that have no part in a plan."""
        if len(self._holders.shares) == len(plan.holders):
            return plan.holders, ()
        ready = self._holders.ready()
        return ready, ready.keys() - plan.holders.keys()

    def _worst(self, inner: int) -> float:
        """The η above which products of this inner dimension are refused."""
        return self.tolerance / self._bound(inner, 1.0, set(self._holders.shares.values()))

    def _bound(self, inner: int, eta: float, shares: Collection[int]) -> float:
        """Bound on the relative error of products of this inner dimension, decoded with such η.

        Shares that were updated carry a rounding of each update, those that were rebuilt the
        errors of others.
        """
        found = error_bound(inner, self.dtype, eta)
        if self.updates or self._drift.off:
            rounding = float(np.finfo(self.dtype).eps) / 2 * math.sqrt(self.updates)
            off = math.sqrt(self.code.k) * self._drift.error(shares)
            found += max(1.0, eta) * (rounding + off)
        growth = self._drift.growth
        return found if growth is None else found * growth.factor

    def _answering(self, ready: dict[int, int], need: int) -> dict[int, int]:
        """Those without whom is still at the work of an earlier round, if they are enough.

        It is stopped, or far behind, and counted on again as soon as it answers.
        """
        silent = self._driver.silent(SILENT) | self._driver.roster.owing(self._laggards)
        if not silent or len(ready.keys() - silent) < need:
            return ready
        return {worker: share for worker, share in ready.items() if worker not in silent}

    def _live(self) -> int:
        return len(self._ready())

    def _ready(self) -> dict[int, int]:
        """Live workers with their shares; when few, those fetching theirs are waited for."""
        holders = self._holders
        holders.enlist()
        for worker, share in holders.vacant():
            if len(holders.ready()) >= self._stored.k:
                fetching.rebuild(self, worker, share)
        ready = holders.ready()
        if len(ready) < self.code.k:
            holders.wait()
            ready = holders.ready()
        return ready


class CodedTranspose:
    """The transpose of a CodedMatrix: X.T @ z, by a second kind of pass over the same shares."""

    __array_ufunc__ = None

    def __init__(self, matrix: CodedMatrix) -> None:
        self.T = matrix
        self.shape = matrix.shape[::-1]
        self.dtype = matrix.dtype

    @property
    def report(self) -> ProductReport:
        """What the last product with the matrix, either way, did."""
        return self.T.report

    @property
    def code(self) -> Any:
        """The code of the shares."""
        return self.T.code

    @property
    def shares(self) -> dict[int, int]:
        """Which share each live worker holds."""
        return self.T.shares

    def windows(self) -> dict[int, tuple[RowRange, ...]]:
        """Rows of its share (of X, not of its transpose) that each worker reads next."""
        return self.T.windows()

    def __matmul__(self, z: object) -> NDArray[Any]:
        """X.T @ z for a vector (N,) or columns (N, c): exact to `report.error_bound`."""
        self.T._driver.check()
        operand = checks.operand(
            z, self.shape[1], self.dtype, self.T._options.check_finite, name="X.T @ z"
        )
        if operand.ndim == 2 and operand.shape[1] == 0:
            return np.empty((self.shape[0], 0), self.dtype)
        with self.T._driver.lock, np.errstate(over="ignore", invalid="ignore"):
            return self.T._finite(self.T._adjoint(operand))

    def __iadd__(self, change: object) -> Self:
        """Add kofn.low_rank(U, V), or an array of this shape, to the transpose."""
        matrix = self.T
        matrix += change.T if isinstance(change, LowRank) else checks.plain(change, "an update").T
        return self

    def __repr__(self) -> str:
        return f"<transpose of {self.T!r}>"


def threshold(k: object, n: object) -> MDSCode:
    """Return the code for a threshold k over n shares, or say what is wrong with them."""
    count = checks.whole(n, "n (shares)", 1)
    need = checks.whole(k, "k (the threshold)", 1)
    if need > count:
        raise BadInput(
            f"k must be at most the number of shares; got k={need} and n={count}. "
            f"Use k <= {count}, or more workers."
        )
    return MDSCode(count, need)
