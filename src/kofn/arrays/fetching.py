"""Rows of shares as they are: to read a matrix back, and to rebuild the share of a joiner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..model import RowRange, Task
from ..rounds import ElasticRound, Layout
from ..rounds.copying import CopyRound
from . import work
from .decode import Segment, combine, covered, gather
from .drift import COLUMNS, vectors
from .plan import Plan
from .scales import Scales
from .tasks import Pass

if TYPE_CHECKING:
    from .matrix import CodedMatrix

FETCH = 16 << 20  # bytes of a share that are fetched at a time
WINDOWS = 8  # runs of places that a sample is taken from, if they have MANY rows each
MANY = 16


def fetched(
    X: CodedMatrix, columns: int, wanted: Sequence[RowRange] | None = None
) -> Iterator[tuple[int, int, list[Segment], NDArray[Any]]]:
    """Fetch rows up to a column: yields rows first..last, how to decode them, and the replies.

    `wanted`: which rows of the shares (default: all). Each time those are asked that can take part
    then. Yields nothing where values are skipped.
    """
    code, driver, holders = X._stored, X._driver, X._holders
    step = max(1, FETCH // max(1, columns * X.dtype.itemsize))

    def where(share: int) -> tuple[int, int]:
        return first, columns

    for first, last in work.slices(wanted or ((0, X._rows),), step):
        rows = last - first
        ready = X._planner.answering(holders.ready(), code.k)
        plan = Plan(code, ready, Layout(code.k), rows, values=X._values)
        fetch = Pass(driver, code, holders.key, work.fetch, more=where)
        late = X._planner.late(code, rows, work.fetch, columns)
        shares, resting = X._planner.members(plan)
        round = ElasticRound(driver.next_round(), plan.windows, shares, fetch, late, resting)
        X._planner.prepare(round)
        drift = X._drift
        round.verifier = drift.checked.of_rows(code, columns, drift.share_errors, first)
        driver.run(round, None, holders.supply)
        X._planner.ended(round)
        if not X._values:
            continue
        cover = round.cover
        places = {share: i for i, share in enumerate(cover.shares)}
        replies = gather(round.values, places, (len(places), rows, columns))
        parts = covered(code, cover)
        yield first, last, parts, replies


def sampled(X: CodedMatrix, count: int) -> tuple[NDArray[np.intp], NDArray[Any]] | None:
    """About `count` rows of the matrix, and which they are: (s,) and (s, d); they are fetched.

    Rows that lie at the same places of all blocks cost least. So they come from WINDOWS runs of
    places, far apart. None where values are skipped, or rows lie in pieces.
    """
    if not X._values or X._stored is not X.code:
        return None
    X._driver.check()
    k, most, d = X.code.k, X._rows, X.shape[1]
    places = min(most, -(-count // k))
    runs = max(1, min(WINDOWS, places // MANY))
    edges = [i * most // runs for i in range(runs + 1)]
    wanted = [(a, min(b, a + -(-places // runs))) for a, b in pairwise(edges)]
    index, rows = [], []
    with X._driver.lock, np.errstate(over="ignore", invalid="ignore"):
        X._planner.await_enough()
        for first, last, parts, replies in fetched(X, d, wanted):
            index.append(np.arange(k)[:, None] * most + np.arange(first, last))
            rows.append(combine(parts, replies))
    which = np.concatenate(index, axis=1).ravel()
    values = np.concatenate(rows, axis=1).reshape(-1, d)
    which, values = which[which < X.shape[0]], values[which < X.shape[0]]
    scales = X._scales
    return which, values if scales is None else Scales(scales.exponents[which]).times(values)


def blocks(X: CodedMatrix, velocity: bool = False) -> NDArray[Any]:
    """The blocks of the matrix, or its velocity's: (k, rows, columns); NaN without values."""
    value = np.full((X._stored.k, X._rows, X._columns), np.nan, X.dtype)
    before = velocity * X._columns  # columns of the share that are not wanted
    for first, last, parts, replies in fetched(X, before + X._columns):
        value[:, first:last] = combine(parts, replies[..., before:])
    return value


def copy(X: CodedMatrix, worker: int, share: int) -> bool:
    """Give a worker a share as another has it, who is leaving; whether that could be done."""
    driver, holders = X._driver, X._holders
    source = next((w for w, s in holders.ready().items() if s == share), None)
    if source is None or not X.updates or source in X._planner.silent():
        return False
    columns = (1 + X._drift.moving) * X._columns
    value = np.empty((X._rows, columns), X.dtype)
    step = max(1, FETCH // max(1, columns * X.dtype.itemsize))
    for first in range(0, X._rows, step):
        runs = ((0, min(step, X._rows - first)),)
        args = (holders.key, runs, first, columns)
        id, round = driver.next_task(), driver.next_round()
        task = Task(id, round, source, work.fetch, args, runs, runs[0][1])
        copying = CopyRound(task)
        if source in driver.roster.kept:
            driver.run(copying, None, holders.supply)
        drift = X._drift
        checks = drift.checked.of_rows(X._stored, columns, drift.share_errors, first)
        wrong = X._values and any(checks.wrong(share, *one) for one in copying.values)
        if wrong or not copying.whole:
            return False  # it is rebuilt from others
        for ((a, b),), rows in copying.values if X._values else ():
            value[first + a : first + b] = rows
    holders.give(worker, share, value if X._values else None)
    return True


def rebuild(X: CodedMatrix, worker: int, share: int) -> None:
    """Give a worker a share that is rebuilt from live ones, and note how far it is off."""
    if copy(X, worker, share):
        return
    code, columns, drift = X._stored, X._columns, X._drift
    row, parts = code.row(share), 1 + drift.moving
    value = np.empty((X._rows, parts * columns), X.dtype)
    known = np.empty((code.k, X._rows, parts * COLUMNS))  # before the first: what the others say
    seen = np.empty((X._rows, parts * COLUMNS))
    v, eta = vectors(columns), 1.0

    def times(rows: NDArray[Any]) -> NDArray[np.float64]:
        """(..., parts * columns) times the vectors, part by part."""
        apart = rows.reshape(*rows.shape[:-1], parts, columns).astype(np.float64, copy=False)
        return np.asarray(apart @ v).reshape(*rows.shape[:-1], -1)

    for first, last, how, replies in fetched(X, parts * columns):
        value[first:last] = combine(how, replies, row)[0]
        seen[first:last] = times(value[first:last])
        if drift.blocks is None:
            known[:, first:last] = combine(how, times(replies))
            eta = max(eta, *(part.weights.eta for part in how))
    if X._values:
        if drift.blocks is None:
            # A few roundings of each share, and of the products here.
            drift = drift.begun(known, 4 * eta * float(np.finfo(X.dtype).eps) / 2)
        X._drift = drift.measured(share, row, seen)
    X._holders.give(worker, share, value if X._values else None)


def change_seen(
    X: CodedMatrix, U: NDArray[Any], V: NDArray[Any] | None
) -> NDArray[np.float64] | None:
    """What an update U Vᵀ (or U) is to the blocks times the vectors; None before there are any."""
    if X._drift.blocks is None:
        return None
    columns, v = X._columns, vectors(X._columns)
    seen = []
    for first in range(0, X.shape[1], columns):
        cut = slice(first, first + columns)
        part = U[:, cut] if V is None else V[cut].T
        some = part.astype(np.float64, copy=False) @ v[: part.shape[1]]
        seen.append(some if V is None else U.astype(np.float64, copy=False) @ some)
    count = X._stored.k // len(seen)  # blocks of rows
    whole = np.zeros((count * X._rows, len(seen), COLUMNS))
    whole[: X.shape[0]] = np.stack(seen, axis=1)
    by_block = whole.reshape(count, X._rows, len(seen), COLUMNS).transpose(0, 2, 1, 3)
    return by_block.reshape(X._stored.k, X._rows, COLUMNS)
