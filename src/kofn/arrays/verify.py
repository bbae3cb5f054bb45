"""What the replies of a round over shares are checked by, as they arrive or at its end.

Every product looks at whether replies are finite. With verify="probe" each is checked as it
arrives, by secret sums (`probes`); with verify="parity" at the end, against the others
(`codes.syndrome`), but for X.T @ z, of which every reply is needed and none to
spare. The bounds on rounding are those of `sizes`. No I/O: rounds ask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..checks import ON_ONE_THREAD, is_finite, misfit
from ..codes.syndrome import Syndrome
from ..errors import BadInput
from ..model import RowRange
from .decode import Code, gather, segments
from .probes import SAFE, SURELY, UNIT, Probes
from .sizes import MEASURED, MORE, Floats, Sizes

if TYPE_CHECKING:
    from ..rounds import Cover
    from .reduce import Item

Verify = Literal["parity", "probe"]
Runs = tuple[RowRange, ...]
Values = Sequence[tuple[int, Runs, Any]]
HUGE = 1e150  # operands beyond it, or below its inverse, are scaled before they are checked


def check_options(verify: object, margin: int, check_finite: bool) -> None:
    """Refuse what cannot be verified."""
    if verify is None:
        return
    if not isinstance(verify, str) or verify not in get_args(Verify):
        raise BadInput(
            f"verify must be 'probe', 'parity' or None; got {verify!r}. Leave it out for None."
        )
    if not check_finite:
        raise BadInput(
            f"verify={verify!r} tells wrong numbers from right ones, and cannot where NaN or "
            f"infinity may be right; got check_finite=False. Leave one of them out."
        )
    if verify == "parity" and margin < 1:
        raise BadInput(
            f"verify='parity' compares replies beyond the threshold: margin=1 detects a wrong one, "
            f"margin=2 says whose it is; got margin={margin}. Use verify='probe' without a margin."
        )


class Shaped:
    """Refuses what is no array of numbers of one shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def prepare(self) -> None:
        """Nothing takes long."""

    def wrong(self, slot: int, what: Any, value: Any) -> str | None:
        return misfit(value, self._shape)


class Finite:
    """Refuses what is no array of the right shape, and NaN and infinity that cannot be right.

    With `check_finite=False` any numbers may be right, and only the form is looked at. The rows of
    a share are at most `longest(share)` long, so its products with w are at most that times |w|,
    and so is every partial sum. What stays below the largest number is finite.
    """

    def __init__(
        self,
        longest: Callable[[int], float],
        operand: NDArray[Any],
        shape: tuple[int, ...],
        check_finite: bool = True,
    ) -> None:
        self._longest, self._operand, self._shape = longest, operand, shape
        self._check_finite = check_finite

    def prepare(self) -> None:
        """Nothing takes long."""

    def wrong(self, slot: int, what: Any, value: Any) -> str | None:
        return self._judged(slot, value, (_rows(what), *self._shape), self._operand)

    def judge(self, cover: Cover, values: Values) -> tuple[dict[int, str], list[int]]:
        """The same for all replies at once, where nothing else is checked.

        It is done in every product, so few numbers are looked at in one go.
        """
        if self._at_once(values):
            return {}, []
        found = ((share, self.wrong(share, what, value)) for share, what, value in values)
        return {share: why for share, why in found if why is not None}, []

    def _at_once(self, values: Values) -> bool:
        """Whether all are seen to be right without a look at each."""
        every, shape, wide = [value for _, _, value in values], self._shape, math.prod(self._shape)
        try:
            sizes = [value.size for value in every]
            if sizes != [_rows(what) * wide for _, what, _ in values]:
                return False
            if not self._check_finite:
                return all(v.dtype.kind == "f" and v.ndim and v.shape[1:] == shape for v in every)
            if sum(sizes) > ON_ONE_THREAD:
                return False
            joined = np.concatenate(every, dtype=every[0].dtype, casting="no")
        except (AttributeError, TypeError, ValueError):
            return False  # not all are arrays of one type and shape
        return joined.shape[1:] == shape and joined.dtype.kind == "f" and is_finite(joined)

    def _judged(
        self, slot: int, value: Any, shape: tuple[int, ...], w: NDArray[Any], times: float = 1.0
    ) -> str | None:
        if (why := misfit(value, shape)) is not None:
            return why
        if not self._check_finite or is_finite(value) or self._may_overflow(slot, w, times):
            return None
        return "a value that is not finite, though its factors are too small to overflow"

    def _may_overflow(self, slot: int, w: NDArray[Any], times: float) -> bool:
        with np.errstate(over="ignore"):
            size = 2 * times * np.linalg.norm(w.astype(np.float64, copy=False))
            return not self._longest(slot) * size < np.finfo(w.dtype).max


def _rows(what: Runs) -> int:
    rows = 0
    for first, last in what:
        rows += last - first
    return rows


class FiniteSum(Finite):
    """The same for X.T @ z, whose operands are in the items. A sum of m rows is √m as long."""

    def wrong(self, slot: int, what: Item, value: Any) -> str | None:
        u = np.zeros(0) if what.u is None else what.u
        return self._judged(slot, value, self._shape, u, math.sqrt(len(u)))


class Probed:
    """What all checks by probes share: coefficients, and how far shares are off."""

    def __init__(self, probes: Probes, code: Code, off: Mapping[int, float], first: Finite) -> None:
        self._probes, self._code, self._off, self._first = probes, code, off, first

    def _share(self, share: int) -> tuple[Floats, float, float]:
        row = self._code.row(share)
        return row, float(np.linalg.norm(row)), self._off.get(share, 0.0)

    def prepare(self) -> None:
        """Nothing takes long."""


class ProbedProduct(Probed):
    """Replies for X @ w: whole groups of rows."""

    def __init__(
        self, probes: Probes, code: Code, off: Mapping[int, float], first: Finite, w: NDArray[Any]
    ) -> None:
        super().__init__(probes, code, off, first)
        self._w = w

    def prepare(self) -> None:
        _ = self._expected

    @cached_property
    def _scale(self) -> float:
        size = float(np.abs(self._w).max(initial=0.0))
        return 1.0 if 1 / HUGE < size < HUGE or not size else float(np.exp2(-np.frexp(size)[1]))

    @cached_property
    def _expected(self) -> tuple[Floats, Floats]:
        """The kept sums times w, (groups, k, PROBES, c), and the length of each column of w."""
        w = self._w.reshape(len(self._w), -1).astype(np.float64, copy=False) * self._scale
        return self._probes.sums.r @ w, np.linalg.norm(w, axis=0)

    def wrong(self, slot: int, what: Runs, value: Any) -> str | None:
        if (why := self._first.wrong(slot, what, value)) is not None or not is_finite(value):
            return why
        probes, (expected, lengths) = self._probes, self._expected
        row, size, off = self._share(slot)
        flat, done = value.reshape(len(value), -1), 0
        if not flat.shape[1]:
            return None
        for first, last in what:
            groups = probes.groups(first, last)
            if groups is None:
                return f"rows {first} to {last}, which were not asked for"
            y = flat[done : done + last - first].astype(np.float64, copy=False)
            done += last - first
            with np.errstate(over="ignore", invalid="ignore"):
                y = y if self._scale == 1.0 else y * self._scale
                probed = probes.of_product(first, last, y)
                apart = np.abs(probed - np.tensordot(expected[groups], row, (1, 0)))
            limit = probes.tolerance[groups] + off * probes.off_tolerance[groups]
            limit = size * limit[:, None] * lengths + probes.smallest[groups, None] * self._scale
            good = apart <= limit[:, None, :]
            if not good.all():
                g = int(np.flatnonzero(~good.all(axis=(1, 2)))[0])
                rows = probes.edges[groups.start + g :][:2].tolist()
                return _explained(rows, apart[g], limit[g])
        return None

    def unseen(self, eta: float) -> float:
        """A bound on what a wrong reply may move the result by and not be seen: see docs/verify.md.

        Relative to the size of its k rows times |w|. The reply is off by SURELY τ, in units of the
        size of its rows, which is up to twice their length; decoding makes at most √k η of it.
        """
        worst = float(self._probes.tolerance.max())
        worst += float(self._probes.off_tolerance.max()) * max(self._off.values(), default=0.0)
        return 2 * SURELY * worst * math.sqrt(self._probes.sizes.k) * max(1.0, eta)


def _explained(rows: Sequence[int], apart: Floats, limit: Floats) -> str:
    at = int(np.argmax(apart.max(axis=0)))
    return (
        f"rows {rows[0]} to {rows[1]} fail a check: off by {apart[:, at].max():.1e}, where "
        f"rounding makes at most {limit[at]:.1e}"
    )


class ProbedSum(Probed):
    """Replies for X.T @ z: Σ share[i]ᵀ u[i] over the rows of an item."""

    def wrong(self, slot: int, what: Item, value: Any) -> str | None:
        if (why := self._first.wrong(slot, what, value)) is not None or not is_finite(value):
            return why
        if what.u is None or not value.size:
            return None
        probes, sizes = self._probes, self._probes.sizes
        row, size, off = self._share(slot)
        u = what.u.astype(np.float64, copy=False)
        most = float(np.abs(u).max(initial=0.0))
        scale = 1.0 if 1 / HUGE < most < HUGE or not most else float(np.exp2(-np.frexp(most)[1]))
        u, v = u * scale, value.reshape(value.shape[0], -1).astype(np.float64, copy=False) * scale
        rows = what.flat
        seen = np.concatenate([probes.of_share(row, a, b) for a, b in what.runs])
        with np.errstate(over="ignore", invalid="ignore"):
            apart = np.abs(probes.sigma.T @ v - seen.T @ u)
            magnitude = np.abs(probes.sigma).T @ np.abs(v)
        # The reply: m terms an entry, each at most |g| L |u| long; see sizes. Then what is kept
        # here, and three sums of ours: over blocks, over rows, over columns.
        terms, d = len(rows), len(probes.sigma)
        L, large = sizes.length[rows], np.abs(u)
        noise = sizes.unit * ((terms + sizes.k + MORE) * L + sizes.past[rows]) + MEASURED * off * L
        limit = size * (2 * SAFE * noise + UNIT * probes.sums.s_off[rows]) @ large
        limit = limit + UNIT * ((terms + sizes.k + MORE) * np.abs(seen).T @ large + d * magnitude)
        limit += scale * sizes.tiny * (terms + MORE) * 2 * d
        self.worst = max(self.worst, float((limit / (size * L @ large + 1e-300)).max()))
        if (apart <= limit).all() and np.isfinite(apart).all():
            return None
        at = int(np.argmax((apart - limit).max(axis=0)))
        return (
            f"a sum over {terms} rows fails a check: off by {apart[:, at].max():.1e}, where "
            f"rounding makes at most {limit[:, at].max():.1e}"
        )

    worst = 0.0  # the largest tolerance so far, relative to |g| Σ L |u|

    def unseen(self, eta: float) -> float:
        """The same as of ProbedProduct, relative to the size of X times |z|."""
        return SURELY * self.worst * math.sqrt(self._probes.sizes.k) * max(1.0, eta)


class ProbedRows(Probed):
    """Rows of shares as they are; those of a round count from `start`."""

    def __init__(
        self, probes: Probes, code: Code, off: Mapping[int, float], first: Finite, start: int
    ) -> None:
        super().__init__(probes, code, off, first)
        self.start = start

    def wrong(self, slot: int, what: Runs, value: Any) -> str | None:
        if (why := self._first.wrong(slot, what, value)) is not None:
            return why
        probes, sizes, done = self._probes, self._probes.sizes, 0
        row, size, off = self._share(slot)
        sigma, d = probes.sigma, len(probes.sigma)
        for first, last in what:
            a, b = first + self.start, last + self.start
            rows = value[done : done + last - first, :d].astype(np.float64, copy=False)
            done += last - first
            with np.errstate(over="ignore", invalid="ignore"):
                apart = np.abs(rows @ sigma - probes.of_share(row, a, b))
                own = UNIT * (d + MORE) * (np.abs(rows) @ np.abs(sigma))
            noise = sizes.noise(0, off)[a:b]
            limit = size * (2 * SAFE * noise + UNIT * probes.sums.s_off[a:b])[:, None] + own
            limit += sizes.tiny * 2 * d
            if not ((apart <= limit).all() and np.isfinite(apart).all()):
                return f"rows {a} to {b} of its share are not what they should be"
        return None


class Parity:
    """Replies of an elastic round against each other, once they are all there."""

    def __init__(
        self, sizes: Sizes, code: Code, off: Mapping[int, float], first: Finite, w: NDArray[Any]
    ) -> None:
        self._sizes, self._code, self._off = sizes, code, off
        self._w, self.first = w, first
        self.sight = math.inf

    def prepare(self) -> None:
        _ = self._noise

    @cached_property
    def _noise(self) -> Floats:
        """By how much a row of a reply may be off, (rows, c), relative to |g|."""
        w = self._w.reshape(len(self._w), -1).astype(np.float64, copy=False)
        most = max(self._off.values(), default=0.0)
        small = self._sizes.tiny * (len(w) + MORE)
        return np.outer(self._sizes.noise(len(w), most), np.linalg.norm(w, axis=0)) + small

    def wrong(self, slot: int, what: Runs, value: Any) -> str | None:
        return self.first.wrong(slot, what, value)

    def judge(self, cover: Cover, values: Values) -> tuple[dict[int, str], list[int]]:
        """Shares whose replies are wrong, and why; and segments of the cover that nobody explains.

        Cost: r (k + r) numbers for each row that is decoded, r being the margin.
        """
        guilty: dict[int, str] = {}
        doubtful: set[int] = set()
        places = {share: i for i, share in enumerate(cover.shares)}
        gathered = gather(values, places, (len(places), *self._noise.shape))
        for first, last, used, _ in segments(self._code, cover.shares, cover.cuts, cover.have):
            shares = [cover.shares[i] for i in used.tolist()]
            syndrome = self.look(tuple(shares))
            if syndrome is None:
                continue
            noise = self._noise[first:last].reshape(-1)
            replies = gathered[used, first:last].reshape(len(used), -1)
            verdict = syndrome.judge(replies, noise)
            if verdict is None:
                continue
            for place in verdict.guilty:
                guilty[shares[place]] = (
                    f"rows {first} to {last} do not agree with those of {len(shares) - 1} others"
                )
            if len(verdict.doubtful) and not verdict.guilty:
                cuts = cover.cuts[:-1]
                doubtful.update(np.flatnonzero((cuts >= first) & (cuts < last)).tolist())
        return guilty, sorted(doubtful)

    def unseen(self, eta: float) -> float:
        """As of ProbedProduct: 2 √m noise / sight, relative to a row, is seen, and whose it is."""
        inner = len(self._w)
        noise, length = self._sizes.noise(inner, max(self._off.values(), default=0.0)), self._sizes
        worst = np.divide(noise, length.length, out=np.zeros_like(noise), where=length.length > 0)
        k = math.sqrt(self._sizes.k)
        return 2 * float(worst.max(initial=0.0)) / self.sight * k * max(1.0, eta)

    def look(self, shares: tuple[int, ...]) -> Syndrome | None:
        """The checks of these shares, and how sharp they are; None where none is to spare."""
        if len(shares) <= self._code.k:
            return None
        syndrome = syndrome_of(self._code, shares)
        self.sight = min(self.sight, syndrome.sight / math.sqrt(len(shares)))
        return syndrome


def unseen(verifier: object, eta: float) -> float | None:
    """What a wrong reply may move a result by and not be seen; None where nothing was checked."""
    if isinstance(verifier, ProbedProduct | ProbedSum | Parity):
        return verifier.unseen(eta)
    return None


@lru_cache(maxsize=1024)  # windows change rarely
def syndrome_of(code: Code, shares: tuple[int, ...]) -> Syndrome:
    """The checks that the replies of these shares must pass."""
    return Syndrome(np.array([code.row(share) for share in shares]))
