"""The transpose of a source, for axis=1: a wide matrix is cut by columns."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeVar

from numpy.typing import NDArray

from .. import checks
from ..errors import BadInput
from ..files import Spool
from .opened import Store
from .sources import ArraySource, Source, SparseSource

PIECE = 48 << 20  # bytes of the source that are read at a time

S = TypeVar("S", Store, Source, Store | Source)


def turned(source: S, axis: int) -> S:
    """What is cut along `axis`: for 1 the transpose of a source, or a store that is one."""
    axis = checks.whole(axis, "axis", 0, 1, "0 cuts by rows, 1 by columns.")
    if not isinstance(source, Store):
        return Turned(source) if axis else source
    if source.manifest.axis != axis:
        how = ("rows", "columns")
        raise BadInput(
            f"a store is cut as it was written; {source.where.url} was cut by "
            f"{how[source.manifest.axis]}, and axis={axis} cuts by {how[axis]}. Use "
            f"axis={source.manifest.axis}, or write another store (kofn encode --axis {axis})."
        )
    return source


class Turned(Source):
    """The transpose of a source: its columns as rows.

    An array is not copied, a sparse matrix is turned in memory. Of all else the first rows that are
    asked for cost one pass, which writes the transpose to a temporary file of the same size.
    """

    def __init__(self, source: Source) -> None:
        self._source, self.shape = source, (source.shape[1], source.shape[0])
        self.kind, self.path, self.fingerprint = source.kind, source.path, source.fingerprint
        self.dtype, self.sparse, self.nnz = source.dtype, source.sparse, source.nnz

    def rows(self, first: int, last: int) -> Any:
        return self._made.rows(first, last)

    def fill(self, first: int, last: int, out: NDArray[Any]) -> None:
        self._made.fill(first, last, out)

    def ready(self, step: int) -> Source:
        return self._made

    def describe(self) -> dict[str, Any]:
        return {**self._source.describe(), "axis": 1}

    @cached_property
    def _made(self) -> Source:
        source, N = self._source, self._source.shape[0]
        if isinstance(source, ArraySource):
            return ArraySource(source.array.T)
        if source.sparse:
            return SparseSource(source.rows(0, N).T.tocsr())
        return Spooled(source)


class Spooled(Source):
    """The transpose of a dense source, in a temporary file: written a few columns at a time."""

    def __init__(self, source: Source) -> None:
        N, d = source.shape
        self.kind, self.shape, self.dtype = source.kind, (d, N), source.dtype
        step = max(1, PIECE // (d * source.dtype.itemsize))
        source, self._spool = source.ready(step), Spool(source.dtype)
        for first in range(0, N, step):
            columns = source.rows(first, min(first + step, N)).T
            for j, column in enumerate(columns):
                self._spool.put(j * N + first, column)

    def fill(self, first: int, last: int, out: NDArray[Any]) -> None:
        self._spool.into(first * self.shape[1], out)
