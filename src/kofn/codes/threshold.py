"""Codes with a threshold: any k replies are enough.

`AnyKOfN` is the class to inherit for a code of your own (docs/extending.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput, NotDecodable
from .linear import CountingDecoder, Decoder, Floats, Weights, weigh

# Numbers of A that are added up at a time: enough to keep the calls few, small enough for a cache.
AT_ONCE = 1 << 19


class ThresholdCode(ABC):
    """Any `k` replies are enough; reply i is known by its coefficient row, `row(i)`.

    Codes are compared and kept by value: a subclass is hashable, as frozen dataclasses are.
    """

    if TYPE_CHECKING:  # a subclass may have fields or properties

        @property
        def k(self) -> int:
            """The threshold."""

    @abstractmethod
    def row(self, share: int, /) -> Floats:
        """The k coefficients of one reply."""

    @property
    def name(self) -> str:
        """The code in a few words, for messages."""
        return repr(self)

    def decoder(self) -> Decoder:
        """Return a fresh decoder: it is offered rows and yields weights.

        The default is ready at any k rows. A code that overrides this decodes with its own.
        """
        return CountingDecoder(self.k, self.name, self.weights)

    def weights(self, shares: Iterable[int]) -> Weights:
        """Return the weights that decode from these shares, at least k of them.

        One QR, O(m k^2), or the code's own decoder. Weights are kept: thousands of sets, up to
        256 MB in all. Raises NotDecodable below k.
        """
        return _kept.weights(self, tuple(sorted(set(shares))))

    def eta(self, shares: Iterable[int]) -> float:
        """How much decoding from these shares may amplify rounding."""
        return self.weights(shares).eta

    def decode(self, replies: Mapping[int, NDArray[Any]]) -> NDArray[Any]:
        """Return what is wanted from what arrived, by share: for most codes the k blocks.

        One (k, m) product with kept weights. Raises NotDecodable below k replies.
        """
        return self.weights(replies).combine(replies)

    def _wanted(self, every: Weights) -> Weights:
        """The weights of what is wanted, from those of all k source values."""
        return every

    def _solve(self, shares: tuple[int, ...]) -> Weights:
        if len(shares) < self.k:
            raise NotDecodable(self.name, shares, self.k)
        rows = [self.row(share) for share in shares]
        if type(self).decoder is ThresholdCode.decoder:
            return self._wanted(weigh(self.name, shares, np.array(rows)))
        decoder = self.decoder()
        for share, row in zip(shares, rows, strict=True):
            decoder.offer(share, row)
        own = decoder.weights()
        matrix = np.zeros((len(own.matrix), len(shares)))
        matrix[:, [shares.index(key) for key in own.keys]] = own.matrix
        matrix.flags.writeable = False
        return Weights(shares, matrix, own.eta)


class _Kept:
    """Keeps the weights used last, up to `limit` bytes; safe to use from several threads.

    Not lru_cache: a set of k=500 takes 2 MB and a set of k=10 less than 1 kB, so counting
    entries would either forget the small ones or fill the memory with the large ones.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._kept: OrderedDict[tuple[ThresholdCode, tuple[int, ...]], Weights] = OrderedDict()
        self._lock = Lock()

    def weights(self, code: ThresholdCode, shares: tuple[int, ...]) -> Weights:
        """Return the weights of a code for these shares; make and keep them first if need be."""
        key = (code, shares)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        made = code._solve(shares)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._used += made.matrix.nbytes
            while self._used > self._limit and len(self._kept) > 1:
                self._used -= self._kept.popitem(last=False)[1].matrix.nbytes
        return made


_kept = _Kept(256 << 20)


class AnyKOfN(ThresholdCode):
    """Any `k` of `n` shares recover the `k` blocks: what `cluster.encode(A, code=...)` takes.

    The rows of a matrix are cut in k blocks of B = ceil(N / k) rows, padded with zeros at the end.
    Share s is sum_i generator[s, i] * block_i. A subclass has `n`, `k` and `generator`; it may
    have its own `decoder`. It must be hashable and picklable: write it as a frozen dataclass.
    """

    if TYPE_CHECKING:

        @property
        def n(self) -> int:
            """How many shares there are."""

    @property
    @abstractmethod
    def generator(self) -> Floats:
        """The coefficient rows of all shares, shape (n, k), read-only. It is asked for often."""

    @property
    def name(self) -> str:
        return f"{type(self).__name__}(n={self.n}, k={self.k})"

    def row(self, share: int) -> Floats:
        """The k coefficients of one share."""
        check_share(self.name, self.n, share)
        row: Floats = self.generator[share]
        return row

    def block_rows(self, N: int) -> int:
        """Rows of a block, and of a share, of a matrix with N rows."""
        return -(-N // self.k)

    def encode_share(self, share: int, A: NDArray[Any]) -> NDArray[Any]:
        """Return one share of `A` (N, ...), shape (ceil(N / k), ...), C-contiguous.

        Reads A once, or only one block of it for a share that is a plain block; adds up in double
        precision over a few rows at a time, so that A is never copied whole. float32 stays
        float32, all else becomes float64.
        """
        g = self.row(share)
        if A.dtype.kind not in "fiub":
            raise BadInput(
                f"a matrix to encode holds real numbers; this one has dtype {A.dtype}. "
                f"Encode the real and the imaginary part apart, or convert with astype(float)."
            )
        return mix(g, A)


def check_share(name: str, n: int, share: int) -> None:
    """Raise BadInput where a code of n shares has no such share."""
    if not 0 <= share < n:
        raise BadInput(
            f"{name} has shares 0 to {n - 1}; share {share} was asked for. "
            f"Plan with a larger n for more workers."
        )


def check_code(code: object) -> AnyKOfN:
    """Return `code` if `cluster.encode` can use it, or raise BadInput."""
    if not isinstance(code, AnyKOfN):
        raise BadInput(
            f"code= takes an any-k-of-n code, an object of a class that inherits "
            f"kofn.codes.AnyKOfN; got {code!r}. See docs/extending.md, or leave it out."
        )
    n, k, G = code.n, code.k, code.generator
    if not (isinstance(n, int) and isinstance(k, int) and 1 <= k <= n):
        raise BadInput(
            f"an any-k-of-n code needs whole numbers 1 <= k <= n; {type(code).__name__} has "
            f"n={n!r}, k={k!r}. Run kofn.testing.CodeChecks on it."
        )
    if np.shape(G) != (n, k) or not np.isfinite(G).all():
        raise BadInput(
            f"the generator of a code holds finite numbers, shape (n, k) = ({n}, {k}); that of "
            f"{code.name} has shape {np.shape(G)}. Run kofn.testing.CodeChecks on it."
        )
    try:
        hash(code)
    except TypeError:
        raise BadInput(
            f"a code must be hashable: its weights are kept by it; {code.name} is not. Write it "
            f"as a dataclass with frozen=True."
        ) from None
    return code


def mix(g: Floats, A: NDArray[Any], doubled: bool = False) -> NDArray[Any]:
    """Cut the rows of A in as many blocks as there are coefficients: sum_i g[i] * block_i.

    Blocks have ceil(len(A) / len(g)) rows; beyond the end of A are zeros. float32 stays float32
    unless `doubled`, all else becomes float64; sums are in double precision. A plain block is
    copied.
    """
    B = -(-len(A) // len(g))
    kind = np.float32 if A.dtype == np.float32 and not doubled else np.float64
    out: NDArray[Any] = np.empty((B, *A.shape[1:]), kind)
    if B == 0:
        return out
    used = np.flatnonzero(g)
    if len(used) == 1 and g[used[0]] == 1.0:
        block = A[used[0] * B : (used[0] + 1) * B]
        out[: len(block)] = block
        out[len(block) :] = 0
        return out
    full = len(A) // B  # blocks that A fills; the next one may be filled in part
    width = max(1, A[:1].size)
    step = max(1, AT_ONCE // (len(g) * width))
    # All full blocks side by side, without a copy where the memory allows it.
    flat = A[: full * B].reshape(full, -1) if A.flags.c_contiguous else None
    for first in range(0, B, step):
        last = min(first + step, B)
        if flat is not None:
            piece = flat[:, first * width : last * width]
        else:
            piece = np.stack([A[i * B + first : i * B + last].ravel() for i in range(full)])
        total = g[:full] @ piece
        rest = A[full * B + first : full * B + last].ravel()
        if len(rest):
            total[: len(rest)] += g[full] * rest
        out[first:last] = total.reshape(last - first, *out.shape[1:])
    return out


def check_threshold(code: AnyKOfN) -> None:
    """Refuse a k that is not from 1 to n."""
    if not 1 <= code.k <= code.n:
        raise BadInput(
            f"{type(code).__name__} needs 1 <= k <= n; k={code.k} and n={code.n} were given. "
            f"Choose k as the fewest workers that must be enough, at most all n of them."
        )
