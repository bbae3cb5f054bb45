"""Where a matrix comes from: one small reader for arrays in memory and for files of many kinds.

A source gives any range of rows, so that a matrix need never be in memory whole. Files whose rows
are not cheap to reach (Parquet, Zarr with tall chunks) are unpacked once to a temporary file.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy
from numpy.typing import DTypeLike, NDArray

from ..checks import is_sparse, plain
from ..errors import BadInput
from ..files import Place, Ranges, Spool, cause, npy_header
from .formats import BrokenChunk, needed, open_array, zarr_rows

PIECE = 16 << 20  # bytes unpacked at a time


class Source:
    """A matrix (N, d) to be read by ranges of rows: a kind of it has its own `rows` or `fill`.

    dtype is float64 or float32. `path`: where another process can open it, None for what lives in
    this one. `fingerprint` changes when the data was written again; None where nobody can tell.
    """

    kind: str
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    sparse: bool = False
    nnz: int = 0  # of a sparse source
    path: str | None = None
    fingerprint: str | None = None

    def rows(self, first: int, last: int) -> Any:
        """Return rows first..last: an array (last - first, d) of `dtype`, or CSR if sparse."""
        out = np.empty((last - first, self.shape[1]), self.dtype)
        self.fill(first, last, out)
        return out

    def fill(self, first: int, last: int, out: NDArray[Any]) -> None:
        """Write rows first..last of a dense source to `out`, C-contiguous, of `dtype`."""
        out[...] = self.rows(first, last)

    def ready(self, step: int) -> Source:
        """Return a source of which `step` rows anywhere are cheap: itself, or an unpacked copy."""
        return self

    def labels(self) -> NDArray[np.float64] | None:
        """Return the labels (N,) that came with the rows, None if there were none."""
        return None

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says of it."""
        return {"kind": self.kind, "path": self.path, "fingerprint": self.fingerprint}


def open_source(data: Any) -> Source:
    """Return a reader for an array, a CSR matrix, a Zarr array, a path or a URL.

    Files: .npy, .npz (scipy.sparse), Zarr, Parquet with numeric columns, LIBSVM text (.svm,
    .libsvm, .svmlight, .txt, also .gz or .bz2). URLs go through fsspec. Cost: the header, except
    for LIBSVM text, which is read once here.
    """
    if isinstance(data, Source):
        return data
    if isinstance(data, str | os.PathLike):
        return _open_file(Place.of(data))
    if is_sparse(data):
        if data.format != "csr":
            raise BadInput(
                f"a sparse matrix to encode must be in CSR format, whose rows can be cut; got "
                f"{data.format.upper()}. Pass A.tocsr()."
            )
        return SparseSource(data)
    if type(data).__module__.split(".")[0] == "zarr":
        return ZarrSource(data, "a zarr array")
    return ArraySource(plain(data, "a matrix to encode"))


def _open_file(place: Place) -> Source:
    name = place.url
    try:
        if not place.exists():
            raise BadInput(
                f"a matrix is read from a file that is there; {name} is not. Check the path."
            )
        if place.is_dir():
            if place.name.endswith(".zarr") or any(
                place.child(mark).exists() for mark in ("zarr.json", ".zarray", ".zgroup")
            ):
                return ZarrSource.open(place)
            raise BadInput(f"{name} is a directory and not a Zarr array. Name the file in it.")
        return _kind(place)(place)
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror or error}.") from error


def _kind(place: Place) -> Callable[[Place], Source]:
    suffixes = place.name.split(".")[1:]
    last = suffixes[-1] if suffixes else ""
    if last in ("gz", "bz2"):
        last = suffixes[-2] if len(suffixes) > 1 else "svm"
        if last not in ("svm", "libsvm", "svmlight", "txt"):
            raise BadInput(f"only LIBSVM text is read compressed; got {place.url}. Unpack it.")
    if last in ("svm", "libsvm", "svmlight", "txt"):
        from .text import TextSource

        return TextSource
    with place.open() as file:
        magic = file.read(6)
    if magic == b"\x93NUMPY":
        return NpySource
    if magic[:4] == b"PAR1":
        from .parquet import ParquetSource

        return ParquetSource
    if magic[:2] == b"PK" and last == "npz":
        return _load_npz
    known = {"npy": ".npy", "parquet": "Parquet", "pq": "Parquet", "npz": ".npz"}.get(last)
    if known:
        raise BadInput(
            f"{place.url} does not begin as a {known} file does. Was it cut, or named wrongly?"
        )
    raise BadInput(
        f"a matrix is read from .npy, .npz (scipy.sparse), Zarr, Parquet or LIBSVM text (.svm, "
        f".libsvm, .txt); {place.url} is none of them. Convert it, for example with numpy.save; "
        f"read a CSV with pandas, or fit to it with `kofn fit`."
    )


def _load_npz(place: Place) -> Source:
    with place.open() as file:
        try:
            matrix = scipy.sparse.csr_array(scipy.sparse.load_npz(io.BytesIO(file.read())))
            # Products of a CSR matrix do not look where its indices lead: they must be right.
            matrix.check_format(full_check=True)
        except MemoryError:
            raise
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise BadInput(
                f"{place.url} was cut or altered: it is no whole .npz ({cause(error)}). Copy it "
                f"again."
            ) from error
        except Exception as error:  # whatever NumPy and SciPy stumble over
            raise BadInput(
                f"{place.url} is not a sparse matrix of scipy.sparse.save_npz ({cause(error)}). "
                f"Save a dense array with numpy.save."
            ) from error
    source = SparseSource(matrix, place.url)
    source.kind, source.path, source.fingerprint = "npz", place.url, place.fingerprint()
    return source


def checked(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[tuple[int, int], np.dtype[Any]]:
    """Return shape and dtype of a matrix to encode, or raise BadInput.

    It has a row and a column. It stays float32; all other real numbers become float64.
    """
    if len(shape) != 2:
        raise BadInput(
            f"a matrix to encode must have 2 dimensions; {name} has {len(shape)} (shape {shape}). "
            f"Use A.reshape(-1, 1) for a single column."
        )
    if min(shape) < 1:
        raise BadInput(
            f"a matrix to encode must have at least one row and one column; {name} has shape "
            f"{shape}. Check how it was made."
        )
    if dtype.kind not in "biuf":
        raise BadInput(
            f"a matrix to encode must hold real numbers (float64, float32, or integers, which "
            f"become float64); {name} has dtype {dtype}. Convert it with .astype(float)."
        )
    small = dtype.kind == "f" and dtype.itemsize == 4
    return (int(shape[0]), int(shape[1])), np.dtype(np.float32 if small else np.float64)


class ArraySource(Source):
    """An array in memory (or mapped)."""

    kind = "array"

    def __init__(self, A: NDArray[Any]) -> None:
        self.shape, self.dtype = checked("this array", A.shape, A.dtype)
        self.array = A

    def rows(self, first: int, last: int) -> NDArray[Any]:
        return np.ascontiguousarray(self.array[first:last], self.dtype)

    def fill(self, first: int, last: int, out: NDArray[Any]) -> None:
        out[...] = self.array[first:last]


class SparseSource(Source):
    """A sparse matrix in memory."""

    kind = "csr"
    sparse = True

    def __init__(self, A: Any, name: str = "this matrix") -> None:
        self.shape, self.dtype = checked(name, A.shape, A.dtype)
        self._csr = csr(A, self.dtype)
        self.nnz = int(self._csr.nnz)

    def rows(self, first: int, last: int) -> Any:
        return self._csr[first:last]


class NpySource(Source):
    """A .npy file, read by byte ranges. Fortran order works, one range per column."""

    kind = "npy"

    def __init__(self, place: Place) -> None:
        self._ranges = Ranges(place)
        self.path, self.fingerprint = place.url, place.fingerprint()
        shape, self._fortran, self._stored, self._start = npy_header(place)
        self.shape, self.dtype = checked(place.url, shape, self._stored)
        need = self._start + self._stored.itemsize * self.shape[0] * self.shape[1]
        if self._ranges.size < need:
            raise BadInput(
                f"{place.url} was cut: its header says shape {self.shape} of {self._stored}, which "
                f"takes {need} bytes, and it has {self._ranges.size}. Copy it again."
            )

    def fill(self, first: int, last: int, out: NDArray[Any]) -> None:
        N, d = self.shape
        item = self._stored.itemsize
        if self._fortran:
            column = np.empty(last - first, self._stored)
            for j in range(d):
                self._ranges.into(self._start + item * (j * N + first), column)
                out[:, j] = column
            return
        plain = self._stored == self.dtype
        raw = out if plain else np.empty((last - first, d), self._stored)
        self._ranges.into(self._start + item * d * first, raw)
        if not plain:
            out[...] = raw


class ZarrSource(Source):
    """A Zarr array, version 2 or 3."""

    kind = "zarr"

    def __init__(self, array: Any, name: str) -> None:
        self.shape, self.dtype = checked(name, array.shape, np.dtype(array.dtype))
        self._array, self._name = array, name

    @classmethod
    def open(cls, place: Place) -> ZarrSource:
        """Open the array at a place."""
        needed("zarr", f"{place.url} is read")
        try:
            array = open_array(place.url)
        except Exception as error:
            raise BadInput(
                f"{place.url} is not a Zarr array ({cause(error)}). Name one array, not a group of "
                f"them."
            ) from error
        source = cls(array, place.url)
        source.path, source.fingerprint = place.url, place.fingerprint()
        return source

    def rows(self, first: int, last: int) -> NDArray[Any]:
        try:
            return np.ascontiguousarray(zarr_rows(self._array, first, last), self.dtype)
        except BrokenChunk as error:
            raise BadInput(f"{self._name} is not whole: {error} Copy it again.") from error

    def ready(self, step: int) -> Source:
        # Every range decodes the whole chunks that it touches.
        tall = int((getattr(self._array, "shards", None) or self._array.chunks)[0])
        if min(tall, self.shape[0]) <= 2 * step:
            return self
        some = max(tall, PIECE // (8 * self.shape[1]))
        N = self.shape[0]
        return Unpacked(self, (self.rows(a, min(a + some, N)) for a in range(0, N, some)))


class Unpacked(Source):
    """A dense source unpacked to a temporary file: N x d numbers of disk, any rows at once."""

    def __init__(self, source: Source, pieces: Iterator[NDArray[Any]]) -> None:
        self.kind, self.shape, self.dtype = source.kind, source.shape, source.dtype
        self.path, self.fingerprint = source.path, source.fingerprint
        self._spool = Spool(self.dtype)
        for piece in pieces:
            self._spool.append(piece)

    def fill(self, first: int, last: int, out: NDArray[Any]) -> None:
        self._spool.into(first * self.shape[1], out)


class Recast(Source):
    """A source with every number rounded to another dtype first."""

    def __init__(self, source: Source, dtype: DTypeLike) -> None:
        self.shape, self.sparse, self.nnz = source.shape, source.sparse, source.nnz
        self.kind, self.path, self.fingerprint = source.kind, source.path, source.fingerprint
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float64, np.float32):
            raise BadInput(f"shares hold float64 or float32; got dtype {self.dtype}.")
        self._source = source

    def rows(self, first: int, last: int) -> Any:
        return self._source.rows(first, last).astype(self.dtype)

    def ready(self, step: int) -> Source:
        return Recast(self._source.ready(step), self.dtype)

    def labels(self) -> NDArray[np.float64] | None:
        return self._source.labels()


def csr(A: Any, dtype: np.dtype[Any]) -> Any:
    """Return A as a csr_array with sorted indices, no entry twice; A itself is not changed."""
    matrix = scipy.sparse.csr_array(A, dtype=dtype)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix
