"""The probes and bounds that check the replies of one matrix, through all its updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import NDArray

from ..checks import length
from ..codes import AnyKOfN
from ..codes.polydot import PolyDotPass
from ..errors import BadInput, CannotDo
from .decode import ETA_WANTED, Code
from .probes import UNIT, Edges, Probes, begin, edges_of
from .scales import Scales, change_lengths, factors
from .sizes import Pieces
from .sources import Source
from .verify import Finite, FiniteSum, Parity, ProbedProduct, ProbedRows, ProbedSum, Verify

if TYPE_CHECKING:
    from ..rounds import ElasticRound
    from .opened import Store
    from .reduce import SumRound
    from .shares import Shares

BUDGET = 32 << 20  # bytes of blocks that are looked at at a time

PiecesOf = Callable[[Edges], Pieces]


def _norm(array: NDArray[Any]) -> float:
    """The Frobenius norm; infinite where its square is too large for a float64."""
    with np.errstate(over="ignore"):
        return length(array)


@dataclass(frozen=True, eq=False)
class Checked:
    """A bound on the lengths of rows and, with `verify`, what replies are checked by.

    `longest()`: the bound for the rows of blocks as they were encoded. `grown`: by how much updates
    may have lengthened them; `speed`: by how much the velocity may in the next move. `rebuilt`:
    what shares may be off by from the start, relative to |g| L.
    """

    longest: Callable[[], float]
    across: float = 1.0  # what columns may be longer by: the square root of their length
    grown: float = 0.0
    speed: float = 0.0
    rebuilt: float = 0.0
    probes: Probes | None = None
    parity: bool = False  # whether X @ w is checked by replies to spare, not by probes

    def after(self, U: NDArray[Any], V: NDArray[Any] | None, momentum: float | None) -> Checked:
        """After X += U Vᵀ (or U), or a move with a momentum."""
        change = _norm(U) * (1.0 if V is None else _norm(V))
        speed = self.speed if momentum is None else momentum * self.speed + change
        grown = self.grown + (change if momentum is None else speed)
        new = replace(self, grown=grown, speed=speed)
        if self.probes is None:
            return new
        return replace(new, probes=self.probes.after(U, V, change_lengths(U, V), momentum))

    def watch_product(
        self,
        round: ElasticRound,
        code: Code,
        w: NDArray[Any],
        off: Mapping[int, float],
        check_finite: bool,
    ) -> None:
        """Have the replies of X @ w checked."""
        first = Finite(self._longest(code), w, w.shape[1:], check_finite)
        round.jury = first
        if self.probes is not None:
            round.has_idle_work, round.jury, off = True, None, self._off(code, off)
            if self.parity:
                round.verifier = round.jury = Parity(self.probes.sizes, code, off, first, w)
            else:
                round.verifier = ProbedProduct(self.probes, code, off, first, w)

    def watch_adjoint(
        self,
        round: SumRound,
        code: Code,
        shape: tuple[int, int],
        off: Mapping[int, float],
        check_finite: bool,
    ) -> None:
        """Have the replies of X.T @ z checked, which have this shape."""
        first = FiniteSum(self._longest(code), np.empty(0), shape, check_finite)
        probes = self.probes
        round.verifier = first
        if probes is not None:
            round.verifier = ProbedSum(probes, code, self._off(code, off), first)

    def of_rows(
        self, code: Code, columns: int, off: Mapping[int, float], start: int
    ) -> ProbedRows | Finite:
        """The check of rows of shares, from row `start` on; without probes of their shape."""
        if self.probes is None:
            return Finite(self._longest(code), np.empty(0), (columns,), False)
        dtype = np.float64 if self.probes.sizes.unit == UNIT else np.float32
        first = Finite(self._longest(code), np.ones(1, dtype), (columns,))
        return ProbedRows(self.probes, code, self._off(code, off), first, start)

    def _longest(self, code: Code) -> Callable[[int], float]:
        """How long the rows of a share are, at most."""

        def longest(share: int) -> float:
            most = self.longest() + self.grown
            if isinstance(code, PolyDotPass):  # coefficients of share and operand, added up
                m, p = code.code.m, code.code.p
                return most * m * p * max(m, p) * self.across
            return float(np.abs(code.row(share)).sum()) * most

        return longest

    def _off(self, code: Code, off: Mapping[int, float]) -> Mapping[int, float]:
        if not self.rebuilt:
            return off
        return {share: max(self.rebuilt, off.get(share, 0.0)) for share in range(code.n)}


def begun(
    verify: Verify | None,
    shares: Shares,
    shape: tuple[int, int, int],
    groups: int,
) -> Checked:
    """The probes and bounds of a matrix of `shape` (k, rows, d), before its first update."""
    k, rows, _ = shape
    # Of a store, a worker may have rebuilt its share from k others without our knowing.
    unit = float(np.finfo(shares.dtype).eps) / 2
    rebuilt = ETA_WANTED * (k + 2) * math.sqrt(k) * unit if shares.store is not None else 0.0
    kept = Checked(shares.longest, math.sqrt(rows), rebuilt=rebuilt)
    if verify is None:
        return kept
    if shares.pieces is None:
        raise CannotDo(
            f"verify={verify!r} needs a matrix that is cut by rows; this one is cut another way. "
            f"Use cluster.encode, or leave verify out."
        )
    probes = begin(shares.pieces(edges_of(rows, groups)), shape, shares.dtype, groups)
    return replace(kept, probes=probes, parity=verify == "parity")


def of_source(source: Source, code: AnyKOfN, scales: Scales | None) -> PiecesOf:
    """The rows of all blocks of a source, divided by its scales, as `probes.begin` takes them."""
    N, d = source.shape
    rows = code.block_rows(N)

    def block(j: int, first: int, last: int) -> Any:
        a, b = min(N, j * rows + first), min(N, j * rows + last)
        part: Any = source.rows(a, b)
        if scales is None or not scales.exponents[a:b].any():
            return part
        exponents = -scales.exponents[a:b]
        if source.sparse:
            each = np.repeat(exponents, np.diff(part.indptr))
            return scipy.sparse.csr_array(
                (part.data * factors(each, part.data), part.indices, part.indptr), part.shape
            )
        return part * factors(exponents, part)

    def pieces(edges: Edges) -> Iterator[tuple[int, int, list[Any]]]:
        for first, last in _cut(edges, code.k * d * 8):
            yield first, last, [block(j, first, last) for j in range(code.k)]

    return pieces


def of_store(store: Store) -> PiecesOf:
    """The same of a store. It reads the shares that are plain blocks once, and their checksums."""

    def pieces(edges: Edges) -> Iterator[tuple[int, int, list[Any]]]:
        code = store.code
        plain = np.argsort(np.count_nonzero(code.generator, axis=1), kind="stable")[: code.k]
        if not np.array_equal(code.generator[np.sort(plain)], np.eye(code.k)):
            raise BadInput(
                f"verify reads the plain blocks of a store, and {store.where.url} has none. Encode "
                f"the matrix itself, or leave verify out."
            )
        blocks = [store.share(int(share), verify=True) for share in np.sort(plain)]
        for first, last in _cut(edges, code.k * store.shape[1] * 8):
            yield first, last, [block[first:last] for block in blocks]

    return pieces


def _cut(edges: Edges, row: int) -> Iterator[tuple[int, int]]:
    """Groups, and pieces of those that are large; a row of all blocks takes so many bytes."""
    step = max(1, BUDGET // row)
    for a, b in pairwise(edges.tolist()):
        for first in range(a, b, step):
            yield first, min(first + step, b)
