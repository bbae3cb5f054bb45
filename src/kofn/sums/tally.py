"""What has come of a sum, and what it is worth: exact, or near it and how."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..checks import misfit
from ..codes.assignment import Assignment, CoverageDecoder, uncovered
from ..codes.linear import Decoder, Weights, error_bound
from ..codes.total import Shapes, Total, same_shapes
from ..errors import BadInput
from ..rounds.stop import RoundStatus, Stop
from .scattered import Rows

Kind = Literal["covered", "plain", "unbiased", "least-squares"]
KINDS: tuple[Kind, ...] = ("covered", "plain", "unbiased", "least-squares")
Leaves = tuple[NDArray[Any], ...]


class Rowwise:
    """Refuses what is not a row of numbers for each symbol: workers make that of whatever fn says.

    Rows of other shapes than those of other workers are fn's fault: BadInput.
    """

    def __init__(self) -> None:
        self._shapes: Shapes | None = None  # of a row
        self._last: Any = None  # what the last value looked like

    def prepare(self) -> None:
        """Nothing takes long."""

    def wrong(self, slot: int, what: tuple[int, int], value: Any) -> str | None:
        count, looks = what[1] - what[0], None
        if type(value) is np.ndarray:
            looks = count, value.shape, value.dtype
            if looks == self._last:
                return None
        leaves = value if isinstance(value, tuple) and value else (value,)
        for leaf in leaves:
            if isinstance(leaf, np.ndarray):
                if leaf.shape[:1] != (count,) or leaf.dtype.kind not in "fc":
                    return misfit(leaf, (count, *leaf.shape[1:]), "fc")
            elif not isinstance(leaf, Rows) or len(leaf.rows) != count:
                return misfit(leaf, (count,))
        shapes = tuple([leaf.shape[1:] for leaf in leaves])
        self._shapes, self._last = same_shapes(self._shapes, shapes, f"slot {slot}"), looks
        return None


class Tally(ABC):
    """Takes symbols as they come. `value` is what they make of the sum."""

    def __init__(self, code: Assignment) -> None:
        self.code = code
        self.several = False  # whether a value is a tuple of arrays
        self.off = 0.0  # of the last value: see SumReport.decoding_error

    def take(self, slot: int, first: int, last: int, value: Leaves | NDArray[Any] | None) -> int:
        """Take the symbols `first` up to `last` of a slot; how many of them were new.

        Values are as Rowwise lets them be.
        """
        if value is not None:
            self.several = isinstance(value, tuple)
        n, new = self.code.n, 0
        for i in range(first, last):
            row: Leaves | None = None
            if isinstance(value, tuple):
                row = tuple([leaf[i - first] for leaf in value])
            elif value is not None:
                row = (value[i - first],)
            new += self._take(i * n + slot, slot, i, row)
        return new

    @abstractmethod
    def _take(self, key: int, slot: int, i: int, value: Leaves | None) -> bool: ...

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether the exact sum is there, as accurate as it can be."""

    @property
    def decodable(self) -> bool:
        """Whether it is there at all: one more symbol might still make it more accurate."""
        return self.exact

    @property
    @abstractmethod
    def covered(self) -> float:
        """The fraction of the parts that are in the sum."""

    @property
    @abstractmethod
    def missing(self) -> tuple[int, ...]:
        """The parts that are not."""

    def lacking(self, over: Collection[int], enough: Callable[[float, bool], bool]) -> int:
        """How many more slots than `over` surely are enough(fraction covered, exact)."""
        return 1

    @abstractmethod
    def exactly(self, kind: Kind, finished: int) -> bool:
        """Whether `value` is the exact sum."""

    @abstractmethod
    def value(self, kind: Kind, finished: int) -> tuple[Leaves | None, float | None]:
        """The sum, or what stands for it, and the eta of its decode; `finished` workers are in."""

    def bound(self, value: Leaves | None, eta: float | None) -> float | None:
        """The error of such an exact sum, relative to Σ |fn(part, x)|."""
        if not self.decodable or value is None or eta is None:
            return None
        dtypes = [leaf.dtype for leaf in value]  # wide: see work.wide
        dtype = np.result_type(*dtypes) if len(dtypes) > 1 else dtypes[0]
        return error_bound(self.code.m, dtype, eta)


def lacking_beyond(code: Assignment, slots: Collection[int], stop: Stop) -> int:
    """How many more slots than these surely are enough for a rule, were all of their work here.

    0 where these are.
    """
    tally = Covering(code, CoverageDecoder(code.m))
    for slot in slots:
        tally.take(slot, 0, len(code.symbols(slot)), None)
    status = RoundStatus(0.0, len(slots), 0, tally.covered, tally.exact)
    return 0 if stop.accepts_when_idle(status) else tally.lacking(slots, stop.enough)


def tally_of(code: Assignment) -> Tally:
    """The tally for a code: by its own decoder, which may only count parts."""
    decoder = code.decoder()
    return Covering(code, decoder) if type(decoder) is CoverageDecoder else Combining(code, decoder)


class Covering(Tally):
    """Rows that are equal or disjoint: each value is added as it comes, while others work."""

    def __init__(self, code: Assignment, decoder: CoverageDecoder) -> None:
        super().__init__(code)
        self._decoder = decoder
        self._total = Total()  # values are wide: see work.plain

    def _take(self, key: int, slot: int, i: int, value: Leaves | None) -> bool:
        if not self._decoder.add(key, self.code.symbols(slot)[i].parts):
            return False
        if value is not None:
            self._total.add(value)
        return True

    @property
    def exact(self) -> bool:
        return self._decoder.left == 0

    @property
    def covered(self) -> float:
        return self._decoder.reached

    @property
    def missing(self) -> tuple[int, ...]:
        return () if self.exact else tuple(np.flatnonzero(~self._decoder.covered).tolist())

    def lacking(self, over: Collection[int], enough: Callable[[float, bool], bool]) -> int:
        m = self.code.m
        missing, slots = set(self.missing), 0
        free = {slot: {*self.code.parts(slot)} for slot in range(self.code.n) if slot not in over}
        while free and not enough((m - len(missing)) / m, not missing):
            best = max(free, key=lambda slot: len(free[slot] & missing))
            missing -= free.pop(best)
            slots += 1
        return max(1, slots)

    def exactly(self, kind: Kind, finished: int) -> bool:
        return self.exact and self._factor(kind, finished) == 1.0

    def _factor(self, kind: Kind, finished: int) -> float:
        if not self.exact and kind == "covered":
            return 1.0 / self.covered
        if kind == "unbiased":  # whatever is covered: else its mean would not be the sum
            copies = self.code.copies
            assert copies is not None  # see Parts.sum
            return 1.0 / (1.0 - uncovered(self.code.n, copies, finished))
        return 1.0

    def value(self, kind: Kind, finished: int) -> tuple[Leaves | None, float | None]:
        factor = self._factor(kind, finished)
        self.off = self.covered * (factor - 1) ** 2 + 1 - self.covered
        leaves = self._total.leaves
        if leaves is None:
            return None, 1.0
        return tuple(leaf[()] * factor if factor != 1.0 else leaf[()] for leaf in leaves), 1.0


class Combining(Tally):
    """Any rows: values are kept, and combined with the decoder's weights in the end."""

    def __init__(self, code: Assignment, decoder: Decoder) -> None:
        super().__init__(code)
        self._decoder = decoder
        self._values: dict[int, Leaves] = {}
        self._seen: set[int] = set()
        self._touched = np.zeros(code.m, dtype=bool)

    def _take(self, key: int, slot: int, i: int, value: Leaves | None) -> bool:
        row = self.code.symbols(slot)[i]
        if key in self._seen:
            return False
        self._seen.add(key)
        self._decoder.offer(key, row)
        self._touched[list(row.parts)] = True
        if value is not None:
            self._values[key] = value
        return True

    @property
    def exact(self) -> bool:
        return self._decoder.good

    @property
    def decodable(self) -> bool:
        return self._decoder.ready

    @property
    def covered(self) -> float:
        if self.decodable:
            return 1.0
        reached = self._decoder.reached
        # Parts may all be in what came without their sum being: at least one is not known then.
        return min(float(self._touched.mean()), 1 - 1 / self.code.m) if reached is None else reached

    @property
    def missing(self) -> tuple[int, ...]:
        return () if self.decodable else tuple(np.flatnonzero(~self._touched).tolist())

    def exactly(self, kind: Kind, finished: int) -> bool:
        if kind != "unbiased":
            return self.decodable
        # A code with chances of its own divides by them always: else its mean would not be the sum.
        return self.decodable and finished == self.code.n and self._decoder.nearest(kind) is None

    def value(self, kind: Kind, finished: int) -> tuple[Leaves | None, float | None]:
        exact = self.exactly(kind, finished)
        weights = self._decoder.weights() if exact else self._nearest(kind, finished)
        if weights.wanted != "sum" or weights.matrix.shape != (1, len(weights.keys)):
            raise BadInput(
                f"the decoder of a sum gives one row of weights and says that it is a sum; "
                f"{type(self._decoder).__name__} gave shape {weights.matrix.shape}, wanted="
                f"{weights.wanted!r}. Return Weights(keys, row[None, :], eta, wanted='sum')."
            )
        if not self._values:
            return None, weights.eta
        count = len(next(iter(self._values.values())))
        parts = ({key: v[i] for key, v in self._values.items()} for i in range(count))
        return tuple(weights.combine(part)[()] for part in parts), weights.eta

    def _nearest(self, kind: Kind, finished: int) -> Weights:
        """Weights λ for which λᵀA is near the all-ones row."""
        keys = self._decoder.arrived
        A = np.stack([self.code.row(key).dense(self.code.m) for key in keys])
        own = self._decoder.nearest(kind)
        if own is not None:
            keys, lam = own.keys, own.matrix[0].copy()
        elif kind == "least-squares" or kind == "covered":
            lam = np.linalg.lstsq(A.T, np.ones(self.code.m), rcond=None)[0]
        else:
            assert self.code.copies is not None  # see Parts.sum
            lam = np.full(len(keys), 1.0 / self.code.copies)
        if kind == "covered":
            lam *= self.code.m / max(float((lam @ A).sum()), 1e-12)
        elif kind == "unbiased" and own is None:
            lam *= self.code.n / max(1, finished)
        self.off = float(np.square(lam @ A - 1).mean())
        return Weights(keys, np.asarray(lam, np.float64)[None, :], 1.0, "sum")
