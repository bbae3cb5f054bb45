"""From rows of a source to rows of shares, a few rows of every block at a time.

Row r of share s is sum_i G[s, i] * (row r of block i), so rows r..r+m of all k blocks give rows
r..r+m of all shares: one pass over the source, memory for one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from ..checks import finite, is_sparse
from ..codes import AnyKOfN
from ..threads import cores, each
from .decode import plain
from .formats import filled
from .scales import ZERO, Exponents, Scales, balanced, factors, lengths
from .sources import Source, csr, open_source

BUDGET = 48 << 20  # bytes of blocks and shares in one step
# Multiply-adds in one product: below this OpenBLAS stays on one thread, and the operands in cache.
PRODUCT = 500_000
AT_ONCE = 8 << 20  # bytes of the blocks that are coded at a time, of an array in memory

Fill = Callable[[int, NDArray[Any]], object]  # where rows of a share go, from which row on


class Coder:
    """Makes rows of the given shares of a source, step by step.

    Plain blocks are copied; the rest is added up in double precision. `step` is how many
    rows that is: BUDGET bytes of blocks and shares, or one row of each where that is more. Rows are
    divided by `scales` first; "measured" are those of the rows that have been made, which takes
    all blocks, and are noted in `exponents` (k, rows of a share).
    """

    def __init__(
        self,
        source: Source,
        code: AnyKOfN,
        shares: Sequence[int],
        check_finite: bool = True,
        scales: Scales | Literal["measured"] | None = None,
    ) -> None:
        self.code, self.shares, self._check = code, list(shares), check_finite
        self.rows = code.block_rows(source.shape[0])
        self.exponents = np.zeros((code.k, self.rows), np.int16)
        self._measured = scales == "measured"
        if isinstance(scales, Scales):
            self.exponents.reshape(-1)[: source.shape[0]] = scales.exponents
        G = np.array([code.row(s) for s in self.shares])
        self._blocks = np.flatnonzero(G.any(axis=0)).tolist()  # those that these shares need
        self._G = G[:, self._blocks]
        ones = self._G == 1.0
        plain = (np.count_nonzero(self._G, axis=1) == 1) & ones.any(axis=1)
        self._plain = {int(j): int(ones[j].argmax()) for j in np.flatnonzero(plain)}
        self._mixed = np.flatnonzero(~plain).tolist()
        self.step = min(self.rows, self._rows_of_step(source))
        self.source = source.ready(self.step)
        self._buffer: NDArray[Any] | None = None

    def _rows_of_step(self, source: Source) -> int:
        blocks, mixed = len(self._blocks), len(self._mixed)
        if source.sparse:
            # A mixed share has up to the entries of all blocks; held are they, and one share
            # while it is made and sorted. 16 bytes an entry.
            row = 16 * 4 * blocks * (1 + source.nnz / source.shape[0])
        else:
            row = (blocks + mixed) * source.shape[1] * source.dtype.itemsize
        return max(1, int(BUDGET / row))

    def make(self, first: int, last: int) -> Iterator[tuple[int, Any]]:
        """Yield (share, its rows first..last) for every share; use each before the next call."""
        if self.source.sparse:
            yield from self._sparse(first, last)
        else:
            yield from self._dense(first, last)

    def _ranges(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The rows of the source that are rows first..last of each block, cut at its end."""
        N = self.source.shape[0]
        for block in self._blocks:
            yield min(N, block * self.rows + first), min(N, block * self.rows + last)

    @property
    def scales(self) -> Scales | None:
        """What the rows made so far were divided by."""
        exponents = self.exponents.reshape(-1)[: self.source.shape[0]]
        return Scales(exponents) if exponents.any() else None

    def measure(self, first: int, last: int) -> None:
        """Note the scales of rows first..last of the shares without making them."""
        for a in range(first, last, self.step):
            b = min(a + self.step, last)
            pieces = [self.source.rows(*ends) for ends in self._ranges(a, b)]
            self._note([lengths(piece) for piece in pieces], a, b)

    def _note(self, exponents: Sequence[Exponents], first: int, last: int) -> None:
        places = np.full((len(exponents), last - first), ZERO, np.int16)
        for place, mine in zip(places, exponents, strict=True):
            place[: len(mine)] = mine
        self.exponents[self._blocks, first:last] = balanced(places, self.source.dtype)

    def _scale(self, pieces: Any, first: int, last: int) -> None:
        """Divide rows first..last of the blocks by their scales, in place."""
        if self._measured:
            self._note([lengths(piece) for piece in pieces], first, last)
        uneven = np.flatnonzero(self.exponents[:, first:last].any(axis=0))
        if len(uneven) == 0:
            return
        for i, block in enumerate(self._blocks):
            exponents = -self.exponents[block, first:last]
            if is_sparse(pieces[i]):
                each = np.repeat(exponents, np.diff(pieces[i].indptr))
                pieces[i].data = pieces[i].data * factors(each, pieces[i].data)
            else:
                pieces[i, uneven] *= factors(exponents[uneven], pieces[i])

    def _dense(self, first: int, last: int) -> Iterator[tuple[int, NDArray[Any]]]:
        d, dtype, m = self.source.shape[1], self.source.dtype, last - first
        blocks, mixed = len(self._blocks), len(self._mixed)
        if self._buffer is None:
            self._buffer = np.empty((blocks + mixed) * self.step * d, dtype)
        both = self._buffer[: (blocks + mixed) * m * d].reshape(blocks + mixed, m, d)
        pieces, out = both[:blocks], both[blocks:]
        for i, (a, b) in enumerate(self._ranges(first, last)):
            if b > a:
                self.source.fill(a, b, pieces[i, : b - a])
                if self._check:
                    finite(pieces[i, : b - a], "the matrix to encode", a)
            pieces[i, b - a :] = 0
        self._scale(pieces, first, last)
        if mixed:
            G, flat = self._G[self._mixed], pieces.reshape(blocks, -1)
            total = out.reshape(mixed, -1)
            width = max(256, PRODUCT // (blocks * mixed))
            for a in range(0, m * d, width):
                total[:, a : a + width] = G @ flat[:, a : a + width]
        places = {j: i for i, j in enumerate(self._mixed)}
        for j, share in enumerate(self.shares):
            yield share, pieces[self._plain[j]] if j in self._plain else out[places[j]]

    def _sparse(self, first: int, last: int) -> Iterator[tuple[int, Any]]:
        m, d = last - first, self.source.shape[1]
        pieces = []
        for a, b in self._ranges(first, last):
            piece = self.source.rows(a, b)
            if self._check:
                finite(piece, "the matrix to encode", a)
            piece.resize((m, d))
            pieces.append(piece)
        self._scale(pieces, first, last)
        stack = scipy.sparse.vstack(pieces, format="csr", dtype=np.float64)
        column = np.arange(m)[:, None] + m * np.arange(len(pieces))
        for j, share in enumerate(self.shares):
            if j in self._plain:
                yield share, pieces[self._plain[j]]
                continue
            used = np.flatnonzero(self._G[j])
            entries, ends = np.tile(self._G[j, used], m), np.arange(m + 1) * len(used)
            where = (entries, column[:, used].ravel(), ends)
            total = scipy.sparse.csr_array(where, shape=(m, m * len(pieces))) @ stack
            total.sort_indices()
            yield share, total.astype(self.source.dtype)


def write_shares(
    code: AnyKOfN,
    shares: Sequence[int],
    A: NDArray[Any],
    fills: Sequence[Fill],
    dtype: np.dtype[Any],
) -> None:
    """Write several shares of a contiguous array of floats in one pass over it, by some threads.

    `fills` take all rows of each; those beyond the end of A are zeros. Those of shares that are no
    blocks are of type `dtype`.
    """
    B, k, width, N = code.block_rows(len(A)), code.k, max(1, A.shape[1]), len(A)
    full = N // B  # blocks that A fills; the next one may be filled in part
    flat = A[: full * B].reshape(full, -1)
    blocks, coded, rows = [], [], []
    for share, fill in zip(shares, fills, strict=True):
        if (block := plain(code, share)) is not None:
            blocks.append((block, fill))
        else:
            coded.append(fill)
            rows.append(code.row(share))
    G = np.array(rows).reshape(len(coded), k)
    step = max(1, AT_ONCE // (k * width * A.itemsize))
    columns = max(256, PRODUCT // max(1, len(coded) * k))

    def some(start: int, end: int) -> None:
        for block, fill in turned(blocks, start):
            rows = A[block * B + start : min(N, block * B + end)]
            if len(rows):
                fill(start, rows)
        total = np.empty((len(coded), step * width))
        for first in range(start, end, step) if coded else ():
            last = min(first + step, end)
            # Sums of huge entries may overflow: products look at what comes out.
            with np.errstate(over="ignore", invalid="ignore"):
                for a in range(first * width, last * width, columns):
                    b = min(a + columns, last * width)
                    out = total[:, a - first * width : b - first * width]
                    np.matmul(G[:, :full], flat[:, a:b], out=out)
                rest = A[full * B + first : full * B + last].reshape(-1)
                if len(rest):
                    total[:, : len(rest)] += G[:, full : full + 1] * rest
                made = total[:, : (last - first) * width].astype(dtype, copy=False)
            for fill, row in turned(list(zip(coded, made, strict=True)), start):
                fill(first, row.reshape(last - first, width))

    def turned(some: list[Any], start: int) -> list[Any]:
        # No two threads are to begin at the same share: the system writes one at a time.
        at = len(some) * start // B
        return some[at:] + some[:at]

    parts = cores() if A.nbytes > AT_ONCE else 1
    ends = [B * i // parts for i in range(parts + 1)]
    each(some, ends[:-1], ends[1:])
    for block, fill in blocks:
        if (lack := min(B, (block + 1) * B - N)) > 0:
            fill(B - lack, np.zeros((lack, A.shape[1]), A.dtype))


def make_share(data: object, code: AnyKOfN, share: int, scales: Scales | None = None) -> Any:
    """Return one share of a source, path, array or CSR matrix; a plain block reads that alone."""
    coder = Coder(open_source(data), code, [share], False, scales)
    source = coder.source
    starts = range(0, coder.rows, coder.step)
    ranges = ((first, min(first + coder.step, coder.rows)) for first in starts)
    made = (rows for first, last in ranges for _, rows in coder.make(first, last))
    if source.sparse:
        return csr(scipy.sparse.vstack(list(made), format="csr"), source.dtype)
    return filled((coder.rows, source.shape[1]), source.dtype, made)
