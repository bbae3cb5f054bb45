"""Audits: some terms of a sum are evaluated by two workers, and compared.

fn is the user's, so its right value is not known. But where the code has the same symbol on
two slots, two workers evaluate it anyway, and the second value is thrown away. An audit draws some
of the symbols, in secret, and has a sum wait for both values of these. Where they differ, the
master evaluates the symbol too: it has the data and fn, and so learns who is wrong.

fn may be evaluated in another order elsewhere (another BLAS, other threads), so values need not be
equal to the last bit: each array must agree to half of its digits, √eps of its largest entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..codes.assignment import Assignment, Row
from ..errors import BadInput
from .scattered import Rows

Leaves = tuple[Any, ...]


class Claim(NamedTuple):
    """A reply of a worker: symbols first..last of a slot, and their values."""

    worker: int
    slot: int
    first: int
    last: int
    value: Any

    @property
    def leaves(self) -> Leaves:
        """The arrays of the first symbol."""
        value = self.value if isinstance(self.value, tuple) else (self.value,)
        return tuple(leaf[0] for leaf in value)


class Audit:
    """The symbols of one sum that two workers must agree on, a fraction `rate` of all.

    `evaluate(row)`: the value of a symbol, computed here.
    """

    def __init__(self, code: Assignment, rate: float, evaluate: Callable[[Row], Leaves]) -> None:
        self._code, self._evaluate = code, evaluate
        slots = Counter(row for slot in range(code.n) for row in dict.fromkeys(code.symbols(slot)))
        if alone := sum(count == 1 for count in slots.values()):
            raise BadInput(
                f"verify= compares what two workers say of the same parts; with this code {alone} "
                f"of {len(slots)} values come from one worker alone. Use "
                f"kofn.FractionalRepetition(c=2)."
            )
        chosen = np.random.default_rng().random(len(slots)) < rate  # not from a seed: a secret
        self._drawn = {row for row, here in zip(slots, chosen, strict=True) if here}
        self._known: dict[Row, Leaves] = {}  # what was evaluated here
        self.claims: list[Claim] = []  # all that came, for a tally anew without the wrong
        self.waiting: dict[Row, Claim] = {}  # drawn, and sent by one worker so far

    def find(self, row: Row) -> None:
        """Evaluate a symbol here: the second worker is late with it, or will not come."""
        self._known.setdefault(row, self._evaluate(row))

    def cut(self, claim: Claim) -> Iterator[tuple[Claim, Row | None]]:
        """A reply, cut so that the symbols that were drawn stand alone, each with its row."""
        symbols, begun = self._code.symbols(claim.slot), claim.first
        for i in range(claim.first, claim.last):
            if symbols[i] in self._drawn:
                if begun < i:
                    yield _part(claim, begun, i), None
                yield _part(claim, i, i + 1), symbols[i]
                begun = i + 1
        if begun < claim.last:
            yield _part(claim, begun, claim.last), None

    def compare(self, row: Row, claim: Claim) -> tuple[Any, dict[int, str]]:
        """The value to use of a symbol that was drawn, if it is known by now; and who is wrong."""
        other = self.waiting.get(row)
        if row not in self._known and (other is None or other.worker == claim.worker):
            self.waiting.setdefault(row, claim)
            return None, {}
        both = [claim] if other is None else [claim, other]
        self.waiting.pop(row, None)
        if row not in self._known:
            if agree(*(one.leaves for one in both)):
                return claim.value, {}
            self.find(row)
        right = self._known[row]
        why = f"its value of parts {list(row.parts)} is not what another worker and the master have"
        wrong = {one.worker: why for one in both if not agree(one.leaves, right)}
        several = isinstance(claim.value, tuple)
        made = tuple(np.array(leaf)[None] for leaf in right)
        return made if several else made[0], wrong


def agree(one: Leaves, other: Leaves) -> bool:
    """Whether two values agree to half of their digits, array by array."""
    if len(one) != len(other):
        return False
    for a, b in zip(map(np.array, one), map(np.array, other), strict=True):
        if a.shape != b.shape:
            return False
        kind = np.result_type(a, b)
        near = float(np.sqrt(np.finfo(kind).eps)) if kind.kind in "fc" else 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            most = near * max(float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in (a, b))
            if not np.allclose(a, b, rtol=0.0, atol=most, equal_nan=True):
                return False
    return True


def _part(claim: Claim, first: int, last: int) -> Claim:
    a, b = first - claim.first, last - claim.first

    def cut(leaf: Any) -> Any:
        return leaf[a:b] if isinstance(leaf, np.ndarray) else Rows(leaf.rows[a:b])

    value = claim.value
    rows = tuple(map(cut, value)) if isinstance(value, tuple) else cut(value)
    return claim._replace(first=first, last=last, value=rows)
