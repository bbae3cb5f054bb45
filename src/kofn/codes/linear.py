"""Decoding any linear code: coefficient rows in, weights out, values combined in one product.

Every reply is a known linear combination of k source values. A decoder is offered the coefficient
rows as replies arrive, says when what is wanted lies in their span, and yields the weights.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..errors import BadInput, NotDecodable

Floats = NDArray[np.float64]
Wanted = Literal["all", "sum"]

# A unit row whose part outside the span so far is shorter than this adds nothing but noise: it
# would amplify rounding more than 1e11 times. Rows of 0/1 codes are far from it on either side.
NEGLIGIBLE = 1e-11


def error_bound(d: int, dtype: DTypeLike, eta: float) -> float:
    """Bound on the relative error of decoded products of inner dimension `d` (numerics.md).

    (16 + sqrt(d) / 2) u eta, u the unit round-off. An eta below one counts as one: replies from
    equal shares make equal errors, which do not average out.
    """
    return (16 + math.sqrt(d) / 2) * round_off(dtype) * max(1.0, eta)


def round_off(dtype: DTypeLike) -> float:
    """The unit round-off of a type."""
    return _round_off(np.dtype(dtype))


@cache
def _round_off(dtype: np.dtype[Any]) -> float:
    return float(np.finfo(dtype).eps) / 2


def amplification(rows: Floats, matrix: Floats) -> float:
    """Eta: sqrt(sum_i |a_i|^2 |B e_i|^2 / k) for rows A (m, k) and weights B (wanted, m)."""
    return float(np.linalg.norm(matrix * np.linalg.norm(rows, axis=1)) / np.sqrt(rows.shape[1]))


def solve(rows: Floats) -> tuple[Floats, float]:
    """Return (B, eta) with B @ rows = I, shape (k, m), for `rows` (m, k) of rank k, m >= k.

    B = R^-1 Q^T of the rows scaled to length one: a reply's rounding error grows with its row, so
    this is the left inverse that minimises eta. Cost O(m k^2). Raises LinAlgError when singular.
    """
    scale = _lengths(rows)
    q, r = np.linalg.qr(rows / scale[:, None])
    # Elimination does nothing to a triangle, so this is back substitution. LAPACK's own routine for
    # it wakes every BLAS thread, even for three rows: milliseconds on a machine that is busy.
    matrix: Floats = np.linalg.solve(r, q.T)
    eta = float(np.linalg.norm(matrix) / np.sqrt(rows.shape[1]))
    return matrix / scale, eta


def _lengths(rows: Floats) -> Floats:
    lengths: Floats = np.linalg.norm(rows, axis=-1)
    return np.where(lengths > 0, lengths, 1.0)  # a zero row weighs nothing, whatever its scale


@dataclass(frozen=True, eq=False)
class Weights:
    """How to combine replies: `matrix` (wanted, m) times the m values in the order of `keys`."""

    keys: tuple[int, ...]
    matrix: Floats
    eta: float  # how much the decode may amplify rounding; does not change with row scaling
    wanted: Wanted = "all"

    def error_bound(self, d: int, dtype: DTypeLike) -> float:
        """Bound on the relative error for inner dimension `d` and values of `dtype`."""
        return error_bound(d, dtype, self.eta)

    def combine(self, values: Mapping[int, NDArray[Any]]) -> NDArray[Any]:
        """Return what is wanted: shape (k, *value), or the shape of one value for a sum.

        One (wanted, m) product, done in double precision and returned in the values' own
        floating type. Values under other keys are ignored.
        """
        try:
            replies = [values[key] for key in self.keys]
            # Thousands of single numbers are one array much faster than so many arrays are.
            single = bool(replies) and np.ndim(replies[0]) == 0
            stack = np.array(replies) if single else np.stack([np.asarray(one) for one in replies])
        except KeyError as missing:
            raise BadInput(
                f"these weights combine the replies {list(self.keys)}; reply {missing} is not "
                f"among those given. Ask the decoder for the weights of what arrived."
            ) from None
        dtype = np.result_type(stack, np.float32) if stack.dtype.kind in "fc" else np.float64
        shape = stack.shape[1:]
        out = (self.matrix @ stack.reshape(len(stack), -1)).astype(dtype, copy=False)
        result: NDArray[Any] = out.reshape(shape if self.wanted == "sum" else (len(out), *shape))
        return result


Known = Callable[[tuple[int, ...]], Weights]


def weigh(name: str, keys: tuple[int, ...], rows: Floats) -> Weights:
    """Return the weights for all source values. Raises NotDecodable for rows of rank below k."""
    try:
        matrix, eta = solve(rows)
    except np.linalg.LinAlgError:
        raise NotDecodable(name, keys, len(keys) + 1, rows.shape[1]) from None
    matrix.flags.writeable = False  # weights are shared between rounds
    return Weights(keys, matrix, eta)


class Row(NamedTuple):
    """A coefficient row by what is not zero in it: Σ coefficients · fn(part, x) over `parts`."""

    parts: tuple[int, ...]
    coefficients: tuple[float, ...] | None = None  # None: all ones

    def dense(self, m: int) -> Floats:
        """The row as an array (m,)."""
        row = np.zeros(m)
        row[list(self.parts)] = 1.0 if self.coefficients is None else self.coefficients
        return row


class Decoder(ABC):
    """Takes coefficient rows as replies arrive; the one interface to all codes."""

    def __init__(self, k: int, name: str) -> None:
        self.k, self.name = k, name
        self._rows: dict[int, Floats] = {}

    @property
    def arrived(self) -> tuple[int, ...]:
        """The keys offered so far, in order of arrival."""
        return tuple(self._rows)

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether what is wanted lies in the span of the rows offered."""

    @property
    def good(self) -> bool:
        """Ready, and not worth waiting for one more row, should one come, for better weights."""
        return self.ready

    def offer(self, key: int, row: Row | ArrayLike) -> bool:
        """Take the row of reply `key`, and return `ready`. A key seen before is ignored.

        A row is an array (k,), or a Row; a decoder that can do without the array never makes it.
        """
        if key not in self._rows:
            dense = row.dense(self.k) if isinstance(row, Row) else row
            new = np.asarray(dense, np.float64)
            if new.shape != (self.k,):
                raise BadInput(
                    f"{self.name} takes rows of {self.k} coefficients; row {key} has shape "
                    f"{new.shape}. Offer rows of the code that this decoder was made for."
                )
            self._rows[key] = new
            self.take_row(new)
        return self.ready

    @property
    def reached(self) -> float | None:
        """How much of the sum lies in the span: 1 − |all-ones row outside it|² / k, if known.

        For rows that are disjoint sets of parts: the fraction that they cover.
        """
        return 1.0 if self.ready else None

    def weights(self) -> Weights:
        """Return the weights over all rows that arrived. Raises NotDecodable when not ready."""
        if not self.ready:
            raise NotDecodable(self.name, self.arrived, self._need())
        return self.find_weights()

    def take_row(self, row: Floats) -> None:  # noqa: B027 - counting needs no more than the key
        """Account for a new row."""

    def _need(self) -> int:
        return self.k

    @property
    def rows(self) -> Floats:
        """The rows that arrived, (m, k), in the order of `arrived`."""
        return np.array(list(self._rows.values())).reshape(-1, self.k)

    def nearest(self, kind: str) -> Weights | None:
        """Weights of a sum that is not there, in a way of the code's own; None: least squares.

        `kind` is what `parts.sum` has as weights; "covered" is scaled by whoever asks.
        """
        return None

    @abstractmethod
    def find_weights(self) -> Weights:
        """The weights over all rows that arrived, or some of them. Called only when ready."""


class CountingDecoder(Decoder):
    """For any-k-of-n codes: ready at k rows. O(1) per row; weights from one QR, or from `known`."""

    def __init__(self, k: int, name: str = "this code", known: Known | None = None) -> None:
        super().__init__(k, name)
        self._known = known  # weights by sorted keys, where the code keeps them

    @property
    def ready(self) -> bool:
        return len(self._rows) >= self.k

    def find_weights(self) -> Weights:
        if self._known is not None:
            return self._known(tuple(sorted(self._rows)))
        return weigh(self.name, self.arrived, self.rows)


class EliminationDecoder(Decoder):
    """For any linear code: orthogonal elimination, O(k * rank) per row.

    `wanted` is "all" source values (ready at rank k) or their "sum" (ready once the all-ones row
    lies in the span, at whatever rank).
    """

    def __init__(self, k: int, wanted: Wanted = "all", name: str = "this code") -> None:
        super().__init__(k, name)
        self.wanted: Wanted = wanted
        self.rank = 0
        self._basis = np.empty((min(k, 16), k))  # orthonormal rows; grows up to (k, k)
        self._left = np.full(k, k**-0.5)  # the part of the sum that the span does not reach

    @property
    def ready(self) -> bool:
        if self.wanted == "all":
            return self.rank == self.k
        return float(np.linalg.norm(self._left)) < NEGLIGIBLE * self.k

    @property
    def reached(self) -> float:
        return 1.0 if self.ready else 1.0 - float(self._left @ self._left)

    def take_row(self, row: Floats) -> None:
        length = np.linalg.norm(row)
        if self.rank == self.k or not length:
            return
        basis = self._basis[: self.rank]
        rest = row / length
        for _ in range(2):  # the second pass restores the orthogonality that cancellation lost
            rest = rest - (basis @ rest) @ basis
        size = np.linalg.norm(rest)
        if size < NEGLIGIBLE:
            return
        rest /= size
        rest -= (basis @ rest) @ basis  # a short remainder blown up to length one needs a third
        rest /= np.linalg.norm(rest)
        if self.rank == len(self._basis):
            self._basis = np.resize(self._basis, (min(2 * self.rank, self.k), self.k))
        self._basis[self.rank] = rest
        self.rank += 1
        if self.wanted == "sum":
            for _ in range(2):
                self._left = self._left - (rest @ self._left) * rest

    def _need(self) -> int:
        # Which replies come next decides when a sum is covered: one more is all we can say.
        return self.k if self.wanted == "all" else len(self._rows) + 1

    def find_weights(self) -> Weights:
        rows = self.rows
        if self.wanted == "all":
            return weigh(self.name, self.arrived, rows)
        # With V the orthonormal basis, A = C V and C has full column rank: the shortest lambda
        # with lambda^T C = 1^T V^T is Q R^-T V 1.
        basis, scale = self._basis[: self.rank], _lengths(rows)
        q, r = np.linalg.qr((rows / scale[:, None]) @ basis.T)
        lam = q @ np.linalg.solve(r.T, basis.sum(axis=1))
        matrix = (lam / scale)[None, :]
        return Weights(self.arrived, matrix, amplification(rows, matrix), "sum")
