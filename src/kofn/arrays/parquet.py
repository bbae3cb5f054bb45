"""Parquet as a source: numeric columns, unpacked once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from ..files import Place, cause
from ..interrupts import held
from .formats import needed
from .sources import PIECE, Source, Unpacked, checked


class ParquetSource(Source):
    """A Parquet file whose columns are all numbers, one matrix column each.

    float32 if every column is, float64 otherwise. A range of rows decodes the row groups that it
    touches, so encoding unpacks the file first, a batch at a time.
    """

    kind = "parquet"

    def __init__(self, place: Place) -> None:
        pa, pq = (needed(name, f"{place.url} is read") for name in ("pyarrow", "pyarrow.parquet"))
        try:
            # Buffered: a column chunk is decoded page by page, not held whole.
            self._file = pq.ParquetFile(
                str(place.local) if place.local else place.open(),
                buffer_size=1 << 16,
                page_checksum_verification=True,
            )
        except Exception as error:  # whatever Arrow stumbles over
            raise BadInput(
                f"{place.url} is not a whole Parquet file: {cause(error)}. Copy it again."
            ) from error
        schema = self._file.schema_arrow
        for field in schema:
            if not holds_numbers(field.type):
                raise BadInput(
                    f"a matrix to encode has numeric columns only; column {field.name!r} of "
                    f"{place.url} is of type {field.type}. Drop it, or turn it into numbers."
                )
        single = all(field.type == pa.float32() for field in schema)
        shape, dtype = (self._file.metadata.num_rows, len(schema)), "f4" if single else "f8"
        self.shape, self.dtype = checked(place.url, shape, np.dtype(dtype))
        self.path, self.fingerprint = place.url, place.fingerprint()

    def rows(self, first: int, last: int) -> NDArray[Any]:
        meta = self._file.metadata
        counts = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
        ends = np.cumsum(counts)
        a, b = np.searchsorted(ends, (first, last - 1), "right").tolist()
        with self._whole():
            table = self._file.read_row_groups(list(range(a, b + 1)))
        return self._matrix(table.slice(first - int(ends[a]) + counts[a], last - first))

    def ready(self, step: int) -> Source:
        return Unpacked(self, self._batches())

    def _batches(self) -> Iterator[NDArray[Any]]:
        rows = max(1, PIECE // (8 * self.shape[1]))
        batches = self._file.iter_batches(rows)
        while True:
            with self._whole():
                batch = next(batches, None)
            if batch is None:
                return
            yield self._matrix(batch)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Say in one way that a page cannot be unpacked; Arrow has many."""
        try:
            yield
        except Exception as error:
            raise BadInput(
                f"{self.path} was cut or altered: {cause(error)}. Copy it again."
            ) from error

    def _matrix(self, table: Any) -> NDArray[Any]:
        out = np.empty((table.num_rows, self.shape[1]), self.dtype)
        for j, (name, column) in enumerate(zip(table.schema.names, table.columns, strict=True)):
            if column.null_count:
                raise BadInput(
                    f"a matrix to encode has a number everywhere; column {name!r} of {self.path} "
                    f"has empty cells. Fill them first."
                )
            # Arrow keeps booleans as bits; only NumPy's own widths convert without a copy.
            flat = column.combine_chunks() if hasattr(column, "combine_chunks") else column
            with held():  # Arrow imports pandas here
                out[:, j] = flat.to_numpy(zero_copy_only=False)
        return out


def holds_numbers(kind: Any) -> bool:
    """Whether a column of this Arrow type holds numbers. Dates and times do not."""
    from pyarrow import types

    known = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    return any(is_it(kind) for is_it in known)


def holds_text(kind: Any) -> bool:
    """Whether a column of this Arrow type holds text, a category's names included."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind))
