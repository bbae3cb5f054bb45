"""LIBSVM text as a source: parsed once, in pieces, to temporary files."""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import numpy as np
import scipy
from numpy.typing import NDArray

from ..errors import BadInput
from ..files import Place, Spool, cause
from ..interrupts import imported
from .sources import Source, checked

PIECE = 4 << 20  # bytes of text parsed at a time
COLUMNS = 1 << 28  # and fewer: a vector of them takes 2 GB


class TextSource(Source):
    """LIBSVM text, `label index:value ...` a row, as a sparse source with labels.

    Indices count from 1, or from 0 if a 0 occurs anywhere. The whole text is parsed at opening:
    its shape is not known before. Memory: a few pieces of text; disk: 12 bytes an entry.
    """

    kind = "libsvm"
    sparse = True

    def __init__(self, place: Place) -> None:
        self.path, self.fingerprint = place.url, place.fingerprint()
        self._data, self._columns = Spool(np.float64), Spool(np.int32)
        self._ends, self._labels = Spool(np.int64), Spool(np.float64)
        self._ends.append(np.zeros(1, np.int64))
        least, most = 1, 0
        for piece, labels in _parsed(place):
            if piece.nnz:
                least = min(least, int(piece.indices.min()))
                most = max(most, int(piece.indices.max()))
            if most >= COLUMNS:
                raise BadInput(
                    f"a column's number must be below {COLUMNS}, for every worker keeps vectors of "
                    f"that length; {place.url} has column {most}. Number the columns that occur, "
                    f"or hash them to fewer."
                )
            self._ends.append(piece.indptr[1:].astype(np.int64) + self._data.count)
            self._data.append(piece.data)
            self._columns.append(piece.indices)
            self._labels.append(labels)
        self._shift = 0 if least == 0 else 1
        self.nnz = self._data.count
        if self._labels.count == 0:
            raise BadInput(f"a matrix to encode needs at least one row; {place.url} has none.")
        shape = (self._labels.count, most + 1 - self._shift)
        self.shape, self.dtype = checked(place.url, shape, np.dtype(np.float64))

    def rows(self, first: int, last: int) -> Any:
        ends = self._ends.read(first, last + 1)
        a, b = int(ends[0]), int(ends[-1])
        columns = self._columns.read(a, b) - np.int32(self._shift)
        shape = (last - first, self.shape[1])
        matrix = scipy.sparse.csr_array((self._data.read(a, b), columns, ends - a), shape=shape)
        matrix.sum_duplicates()  # sorts; a column given twice counts twice
        return matrix

    def labels(self) -> NDArray[np.float64]:
        return self._labels.read(0, self._labels.count)


def _parsed(place: Place) -> Iterator[tuple[Any, NDArray[np.float64]]]:
    read: Any = imported("sklearn.datasets").load_svmlight_file

    line = 1
    for text in _pieces(place):
        lines = text.count(b"\n")
        try:
            # The number of columns only bounds them: pieces know nothing of each other.
            X, y = read(io.BytesIO(text), zero_based=True)
        except (ValueError, OverflowError) as error:
            raise BadInput(
                f"{place.url} is not LIBSVM text (`label index:value ...` a row): somewhere in "
                f"lines {line} to {line + lines}: {cause(error)}. Correct that line."
            ) from error
        line += lines
        yield X, y


def _pieces(place: Place) -> Iterator[bytes]:
    """Yield the text in whole lines, about PIECE bytes at a time."""
    with place.open() as raw:
        file: BinaryIO = raw
        if place.name.endswith(".gz"):
            file = cast(BinaryIO, gzip.GzipFile(fileobj=raw))
        elif place.name.endswith(".bz2"):
            file = cast(BinaryIO, bz2.BZ2File(raw))
        left = b""
        try:
            while text := file.read(PIECE):
                cut = text.rfind(b"\n") + 1
                if cut:
                    yield left + text[:cut]
                    left = b""
                left += text[cut:]
        except (EOFError, zlib.error) as error:
            raise BadInput(
                f"{place.url} was cut or altered: {cause(error)}. Copy it again."
            ) from error
        if left.strip():
            yield left
