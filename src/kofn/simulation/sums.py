"""How the codes of sums are played: exact sums, and sums that a stop rule closes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..checks import one_of
from ..codes import SumCode
from ..codes.rateless import LT, RandomGroups
from ..codes.repetition import CyclicRepetition, FractionalRepetition, Uncoded
from ..errors import BadInput
from ..model import Blank
from ..rounds.stop import Stop, exact, first, fraction
from ..sums.data import finer
from ..sums.given import check_weights
from ..sums.tally import KINDS
from .place import Outcome, Outcomes, Place
from .work import Work


def term(part: Any, x: Any) -> Any:
    """A gradient of a least-squares loss: what stands for the function of a sum."""
    return part.T @ (part @ x)


def cut_by_auto(work: Work, workers: int) -> int:
    """How many terms a sum has where kofn cuts the data."""
    if work.kind == "gradient" and work.parts is None:
        return finer(Blank(work.rows, work.columns), workers) or workers
    return work.cut(workers)


def sums(
    place: Place,
    code: SumCode | None,
    covered: float = 1.0,
    stop: Stop | None = None,
    weights: Any = "covered",
) -> Outcomes:
    """Place the parts; a round is over when the sum is exact, or the rule is met."""
    rule = _rule(covered, stop)
    one_of(weights, "weights", KINDS)
    work = place.work
    m = work.cut(place.workers) if code is not None else cut_by_auto(work, place.workers)
    rows = max(1, work.rows // m)
    if place.values:
        rng = np.random.default_rng(0)
        data: list[Any] = [rng.standard_normal((rows, work.columns)) for _ in range(m)]
    else:
        data = [Blank(rows, work.columns)] * m
    parts = place.cluster.parts(data, code, n=place.workers)
    if rule is not None:  # with none the cluster may choose another code in time
        rule.check(place.workers)
        check_weights(weights, parts.assignment)
    x = np.zeros(work.columns)

    def rounds() -> Iterator[Outcome]:
        while True:
            result = parts.sum(term, x, stop=rule, weights=weights)
            yield place.outcome(result.covered, result.exact, result.report.decoding_error)

    return rounds()


def _rule(covered: float, stop: Stop | None) -> Stop | None:
    if stop is None:
        return None if covered >= 1 else fraction(covered)
    if not isinstance(stop, Stop):
        raise BadInput(f"stop is a stop rule, as stop=first(15) | exact(); got stop={stop!r}.")
    if covered < 1:
        raise BadInput(
            f"covered={covered:g} is the rule fraction({covered:g}), and stop={stop!r} another. "
            f"Leave one of them out, or join them with | or &."
        )
    return stop


def auto_sum(place: Place) -> Outcomes:
    """What kofn does where no code is named: `cluster.parts(data)`."""
    return sums(place, None)


def uncoded_sum(
    place: Place,
    *,
    covered: float = 1.0,
    stream: str = "parts",
    stop: Stop | None = None,
    weights: str = "covered",
) -> Outcomes:
    """Each part on one worker; with covered < 1 stragglers are ignored."""
    return sums(place, Uncoded(stream), covered, stop, weights)  # type: ignore[arg-type]


def fractional(
    place: Place,
    *,
    c: int = 2,
    covered: float = 1.0,
    stream: str = "parts",
    stop: Stop | None = None,
    weights: str = "covered",
) -> Outcomes:
    """c workers hold the same parts; covered < 1 closes a sum at that fraction."""
    code = FractionalRepetition(c, stream)  # type: ignore[arg-type]
    return sums(place, code, covered, stop, weights)


def cyclic(
    place: Place,
    *,
    c: int = 2,
    covered: float = 1.0,
    stream: str = "parts",
    coefficients: str = "ones",
    stop: Stop | None = None,
    weights: str = "covered",
) -> Outcomes:
    """Each worker holds c parts in a row, as its neighbours do."""
    code = CyclicRepetition(c, stream, coefficients)  # type: ignore[arg-type]
    return sums(place, code, covered, stop, weights)


def tandon(place: Place, *, c: int = 2) -> Outcomes:
    """The cyclic code as Tandon et al. published it: one coded sum from each worker."""
    return sums(place, CyclicRepetition(c, "whole", "random"))


def erasurehead(place: Place, *, r: int, c: int = 2) -> Outcomes:
    """As Wang et al. published it: groups of c, one sum from each worker, the first r count."""
    return sums(place, FractionalRepetition(c, "whole"), stop=first(r) | exact())


def lt(place: Place, *, r: int = 1, decoder: str = "inactivation") -> Outcomes:
    """A rateless code over groups of r terms."""
    return sums(place, LT(r, decoder=decoder))  # type: ignore[arg-type]


def groups(place: Place, *, d: int = 10) -> Outcomes:
    """Groups of d terms, which every worker evaluates in an order of its own."""
    return sums(place, RandomGroups(d))
