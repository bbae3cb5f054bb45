"""The array files of a share store, and how to read them back safely.

They are `.npy` or Zarr v3, with the SHA-256 of their numbers in row order, little endian.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput, BadStore
from ..files import Place, Ranges, cause, npy_header, raw
from ..interrupts import imported

PIECE = 8 << 20  # bytes hashed at a time


@dataclass(frozen=True)
class ArrayFile:
    """One array of a store: its file, and what must be in it."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as NumPy writes it, "<f8"
    sha256: str

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def load(where: Place, entry: ArrayFile, verify: bool) -> NDArray[Any]:
    """Return an array of a store, or raise BadStore, naming the file.

    A local .npy is mapped, copy on write: nothing is read until it is used, and writing to it
    changes no file. Everything else is fetched, and what is fetched is verified.
    """
    place = where.child(entry.name)
    dtype = np.dtype(entry.dtype)
    if entry.name.endswith(".npy"):
        start = check_npy(place, entry)
        if place.local:
            if verify:
                check_sum(where, entry)
            if entry.nbytes == 0:
                return np.empty(entry.shape, dtype)
            array = np.memmap(place.local, dtype, "c", start, entry.shape)
            return np.asarray(array)
    return filled(entry.shape, dtype, scan(where, entry))


def filled(
    shape: tuple[int, ...], dtype: np.dtype[Any], pieces: Iterable[NDArray[Any]]
) -> NDArray[Any]:
    """An array that is these pieces, one after the other."""
    out, done = np.empty(shape, dtype), 0
    for rows in pieces:
        out[done : done + len(rows)] = rows
        done += len(rows)
    return out


def check(where: Place, entry: ArrayFile) -> None:
    """Raise BadStore unless the file is there with the right size, shape and dtype."""
    place = where.child(entry.name)
    if entry.name.endswith(".npy"):
        check_npy(place, entry)
    else:
        open_zarr(place, entry)


def check_sum(where: Place, entry: ArrayFile) -> None:
    """Read the file once and raise BadStore unless its numbers have the checksum."""
    for _ in scan(where, entry):
        pass


def scan(where: Place, entry: ArrayFile) -> Iterator[NDArray[Any]]:
    """Yield the array a few rows at a time; at its end raise BadStore for a wrong checksum."""
    seen = hashlib.sha256()
    for values in pieces(where, entry):
        seen.update(raw(values))
        yield values
    checksum = seen.hexdigest()
    if checksum != entry.sha256:
        raise BadStore(
            where.child(entry.name).url,
            f"its numbers have checksum {checksum[:12]}…, the manifest says {entry.sha256[:12]}…: "
            f"it was altered, or belongs to another store. open_store(path).repair() rebuilds "
            f"shares from k whole ones; or encode again.",
        )


def pieces(where: Place, entry: ArrayFile) -> Iterator[NDArray[Any]]:
    """Yield the array a few rows at a time."""
    place = where.child(entry.name)
    try:
        if entry.name.endswith(".npy"):
            yield from _npy_pieces(place, entry)
        elif entry.shape[0]:
            for values in zarr_pieces(open_zarr(place, entry), entry.shape[0]):
                yield np.ascontiguousarray(values, entry.dtype)
    except BrokenChunk as error:
        raise BadStore(place.url, f"{error} Copy it again, or encode again.") from error
    except OSError as error:
        raise BadStore(place.url, f"it cannot be read: {error.strerror or error}.") from error


def _npy_pieces(place: Place, entry: ArrayFile) -> Iterator[NDArray[Any]]:
    start = check_npy(place, entry)
    ranges, dtype = Ranges(place), np.dtype(entry.dtype)
    tail = entry.shape[1:]
    item = dtype.itemsize * int(np.prod(tail, dtype=np.int64))
    step = max(1, PIECE // item)
    for first in range(0, entry.shape[0], step):
        out = np.empty((min(step, entry.shape[0] - first), *tail), dtype)
        try:
            ranges.into(start + first * item, out)
        except BadInput as error:
            raise BadStore(place.url, "it was cut while it was read. Copy it again.") from error
        yield out


def needed(module: str, what: str) -> Any:
    """Import a module that is not always installed; `what` is done with it."""
    try:
        return imported(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise BadInput(
            f"{what} with {package}, which is not installed: pip install 'kofn[store]'."
        ) from error


def zarr() -> Any:
    """The package."""
    return imported("zarr")


def open_array(url: str) -> Any:
    """Open a Zarr array to be read. Raises what zarr and fsspec like; ValueError for pickles."""
    array = zarr().open_array(url, mode="r")
    if any(
        getattr(codec, "codec_id", "") == "pickle" for codec in (*array.filters, *array.compressors)
    ):
        raise ValueError("its chunks are pickles, which could run code, and are not opened")
    return array


class BrokenChunk(Exception):
    """A chunk of a Zarr array cannot be read."""


def zarr_pieces(array: Any, rows: int) -> Iterator[NDArray[Any]]:
    """Yield the first rows of a Zarr array, a chunk at a time."""
    step = array.chunks[0]
    for first in range(0, rows, step):
        yield zarr_rows(array, first, min(first + step, rows))


def zarr_rows(array: Any, first: int, last: int) -> NDArray[Any]:
    """Rows first..last of a Zarr array. Raises OSError, or BrokenChunk."""
    try:
        return np.asarray(array[first:last])
    except OSError:
        raise
    except Exception as error:  # zarr and its codecs raise what they like
        raise BrokenChunk(
            f"rows {first} to {last - 1} have a chunk that was cut or altered ({cause(error)})."
        ) from error


def check_npy(place: Place, entry: ArrayFile) -> int:
    """Return where the numbers begin; raise BadStore unless header and size are as they must be."""
    try:
        size = place.size()
        shape, fortran, dtype, start = npy_header(place)
    except FileNotFoundError:
        raise BadStore(
            place.url, "it is missing. open_store(path).repair() rebuilds it from k others."
        ) from None
    except BadInput as error:
        raise BadStore(
            place.url,
            "it does not begin as a .npy file does: it was cut or altered. Copy it again, or "
            "encode again.",
        ) from error
    except OSError as error:
        raise BadStore(place.url, f"it cannot be read: {error.strerror or error}.") from error
    _expect(place, entry, shape, dtype)
    if fortran or size != start + entry.nbytes:
        raise BadStore(
            place.url,
            f"it has {size} bytes and must have {start + entry.nbytes}: it was cut or altered. "
            f"Copy it again, or encode again.",
        )
    return start


def open_zarr(place: Place, entry: ArrayFile) -> Any:
    """Open the array, or raise BadStore unless shape and dtype are as they must be."""
    needed("zarr", f"{place.url} is read")
    try:
        array = open_array(place.url)
    except Exception as error:  # zarr and fsspec raise what they like
        raise BadStore(
            place.url, f"it is missing, or no Zarr array ({cause(error)}). Encode again."
        ) from error
    _expect(place, entry, tuple(array.shape), np.dtype(array.dtype))
    return array


def _expect(place: Place, entry: ArrayFile, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if shape != entry.shape or dtype != np.dtype(entry.dtype):
        raise BadStore(
            place.url,
            f"it holds shape {shape} of {dtype}; the manifest says {entry.shape} of "
            f"{np.dtype(entry.dtype)}. It belongs to another store: copy the right one.",
        )
