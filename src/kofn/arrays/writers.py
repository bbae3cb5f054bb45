"""Array files of a share store that grow by appending, and can go on after a kill."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadStore
from ..files import Place, Spool, raw, write_all
from .formats import PIECE, ArrayFile, BrokenChunk, zarr, zarr_pieces
from .manifest import Manifest, share_files


@dataclass(frozen=True)
class Mark:
    """How far an array has come: `count` items along its first axis, with this checksum."""

    count: int
    sha256: str


class Writer(ABC):
    """An array file that grows at its end. It has its own name only when it is whole.

    A store may have more files than a process may open, so none is open between two calls.
    """

    def __init__(
        self, where: Place, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        self.where, self.name = where, name
        # `rows` is the expected length: only Zarr must know it beforehand.
        self.dtype, self.rows, self.tail = dtype.newbyteorder("<"), shape[0], shape[1:]
        self.count, self.hash = 0, hashlib.sha256()

    def begin(self) -> None:
        """Begin an empty array, over whatever is there."""
        self.count, self.hash = 0, hashlib.sha256()
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Make the file of an empty array."""

    @abstractmethod
    def resume(self, mark: Mark) -> bool:
        """Go on from a mark if all up to it is there and unchanged; return whether it is."""

    @abstractmethod
    def put(self, values: NDArray[Any]) -> None:
        """Hand contiguous `values` to the operating system, so that a kill loses nothing."""

    @abstractmethod
    def finish(self) -> None:
        """Give the file its final form and name."""

    def append(self, values: NDArray[Any]) -> None:
        """Add rows at the end."""
        values = np.ascontiguousarray(values, self.dtype)
        if len(values):
            self.put(values)
            self.hash.update(raw(values))
            self.count += len(values)

    def mark(self) -> Mark:
        """Where the array is now: a place to go on from."""
        return Mark(self.count, self.hash.hexdigest())

    def close(self) -> ArrayFile:
        """Finish the file; return what the manifest says of it."""
        self.finish()
        shape = (self.count, *self.tail)
        return ArrayFile(self.name, shape, self.dtype.str, self.hash.hexdigest())


class NpyWriter(Writer):
    """A local .npy file, appended in place as NAME.part."""

    def start(self) -> None:
        self._path(".part").write_bytes(header((0, *self.tail), self.dtype))

    def resume(self, mark: Mark) -> bool:
        part, whole = self._path(".part"), self._path()
        if not part.exists() and whole.exists():
            whole.rename(part)  # the stop came while files were being renamed
        try:
            with part.open("r+b") as file:
                file.seek(len(header((0, *self.tail), self.dtype)))
                item = self.dtype.itemsize * int(np.prod(self.tail, dtype=np.int64))
                left = mark.count * item
                while left and (data := file.read(min(left, PIECE))):
                    self.hash.update(data)
                    left -= len(data)
                if left or self.hash.hexdigest() != mark.sha256:
                    return False
                file.truncate()
        except FileNotFoundError:
            return False
        self.count = mark.count
        return True

    def put(self, values: NDArray[Any]) -> None:
        with self._path(".part").open("ab", buffering=0) as file:
            write_all(file, raw(values))

    def finish(self) -> None:
        with self._path(".part").open("r+b") as file:
            file.write(header((self.count, *self.tail), self.dtype))
        self._path(".part").replace(self._path())

    def _path(self, more: str = "") -> Path:
        local = self.where.child(self.name + more).local
        assert local is not None
        return local


class RemoteNpyWriter(Writer):
    """A .npy file behind fsspec: kept in a temporary file for all, sent off when it is whole."""

    def __init__(self, *file: Any, spool: Spool) -> None:
        super().__init__(*file)
        self._spool = spool  # of bytes
        self._pieces: list[tuple[int, int]] = []  # where ours are in it

    def start(self) -> None:
        self._pieces = []

    def resume(self, mark: Mark) -> bool:
        return False  # what was kept here is gone with the process

    def put(self, values: NDArray[Any]) -> None:
        first = self._spool.count
        self._spool.append(values.reshape(-1).view(np.uint8))
        self._pieces.append((first, self._spool.count))

    def finish(self) -> None:
        fs, path = self.where.child(self.name).remote()
        with fs.open(path, "wb") as out:
            out.write(header((self.count, *self.tail), self.dtype))
            for first, last in self._pieces:
                for a in range(first, last, PIECE):
                    out.write(self._spool.read(a, min(a + PIECE, last)).tobytes())


class ZarrWriter(Writer):
    """A Zarr v3 array, local or remote, one chunk an append; uncompressed.

    Locally it is NAME.part until it is whole. Remotely a rename would copy it all, so there only
    the manifest makes it valid.
    """

    _array: Any

    def start(self) -> None:
        self._array = None
        self._place().remove()

    def resume(self, mark: Mark) -> bool:
        place = self._place()
        if place.local and not place.local.exists() and self.where.child(self.name).exists():
            os.rename(self.where.child(self.name).url, place.url)
        try:
            array: Any = zarr().open_array(place.url, mode="r+")
        except Exception:  # zarr and fsspec raise what they like
            return False
        if array.shape != (self.rows, *self.tail):
            return False
        try:
            for values in zarr_pieces(array, mark.count):
                self.hash.update(raw(np.ascontiguousarray(values, self.dtype)))
        except BrokenChunk:
            return False
        if self.hash.hexdigest() != mark.sha256:
            return False
        self._array, self.count = array, mark.count
        return True

    def put(self, values: NDArray[Any]) -> None:
        if self._array is None:
            self._array = zarr().create_array(
                self._place().url,
                shape=(self.rows, *self.tail),
                chunks=values.shape,
                dtype=self.dtype,
                compressors=None,
                fill_value=np.nan,  # a chunk that is missing must not read as zeros
                config={"write_empty_chunks": True},  # or each is compared with the fill value
            )
        self._array[self.count : self.count + len(values)] = values

    def finish(self) -> None:
        place = self._place()
        if place.local:
            whole = self.where.child(self.name)
            whole.remove()
            os.rename(place.url, whole.url)

    def _place(self) -> Place:
        return self.where.child(self.name + (".part" if self.where.local else ""))


def header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """A .npy header of 128 bytes, whatever the length: it is written again at the end."""
    out = io.BytesIO()
    text = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, text)
    assert len(out.getvalue()) == 128
    return out.getvalue()


Writers = dict[int, list[Writer]]  # by share: one writer a file


def _kind(place: Place, fmt: str) -> Callable[..., Writer]:
    if fmt == "zarr":
        return ZarrWriter
    return NpyWriter if place.local else partial(RemoteNpyWriter, spool=Spool(np.uint8))


def write_array(place: Place, name: str, values: NDArray[Any]) -> ArrayFile:
    """Write a small array to a .npy file of a store; return what the manifest says of it."""
    writer = _kind(place, "npy")(place, name, values.dtype, values.shape)
    writer.begin()
    writer.append(values)
    return writer.close()


def begin(writers: Writers) -> None:
    """Begin the files of shares."""
    for writer in chain.from_iterable(writers.values()):
        writer.begin()


def finish(writers: Writers) -> dict[int, tuple[ArrayFile, ...]]:
    """Finish the files of shares; return what the manifest says of them."""
    return {share: tuple(w.close() for w in mine) for share, mine in writers.items()}


def share_writers(place: Place, manifest: Manifest, fmt: str, shares: Iterable[int]) -> Writers:
    """New writers for the files of these shares."""
    kind = _kind(place, fmt)
    rows, d, dtype = manifest.rows, manifest.shape[1], np.dtype(manifest.dtype)
    wide = np.dtype(np.int64 if d > np.iinfo(np.int32).max else np.int32)
    dtypes = [dtype, wide, np.dtype(np.int64)] if manifest.sparse else [dtype]
    shape = (0,) if manifest.sparse else (rows, d)

    def files(share: int) -> list[Writer]:
        named = zip(share_files(share, manifest.sparse, fmt), dtypes, strict=True)
        return [kind(place, name, dtype, shape) for name, dtype in named]

    return {share: files(share) for share in shares}


def append(writers: list[Writer], rows: Any) -> int:
    """Append rows of a share to its files; return the bytes written."""
    written = 0
    for writer, values in zip(writers, _arrays(rows, writers), strict=True):
        writer.append(values)
        written += values.nbytes
    return written


def _arrays(rows: Any, writers: list[Writer]) -> Iterator[Any]:
    """The arrays to append for some rows of a share."""
    if len(writers) == 1:
        yield rows
        return
    done = writers[0].count  # entries before these rows
    yield rows.data
    yield rows.indices
    ends = rows.indptr.astype(np.int64) + done
    yield ends if writers[2].count == 0 else ends[1:]


@contextmanager
def writing(place: Place) -> Iterator[None]:
    """Say what stopped the writing of a store, and that it goes on from there."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "Make room" if full else "Mend that"
        raise BadStore(
            place.url,
            f"it cannot be written: {error.strerror or error}. {remedy}, and encode again: it "
            f"goes on from here.",
        ) from error
