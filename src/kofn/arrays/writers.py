"""Array files of a share store that grow by appending, and can go on after a kill."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from .files import Place, raw, temporary
from .formats import PIECE, ArrayFile, zarr_pieces


@dataclass(frozen=True)
class Mark:
    """How far an array has come: `count` items along its first axis, with this checksum."""

    count: int
    sha256: str


class Writer(ABC):
    """An array file that grows at its end. It has its own name only when it is whole."""

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
        """Write contiguous `values` after what is there."""

    @abstractmethod
    def flush(self) -> None:
        """Hand everything to the operating system, so that a kill loses nothing."""

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
        """Where the array is now; after flush, a place to go on from."""
        return Mark(self.count, self.hash.hexdigest())

    def entry(self) -> ArrayFile:
        """What the manifest says of it."""
        shape = (self.count, *self.tail)
        return ArrayFile(self.name, shape, self.dtype.str, self.hash.hexdigest())


class NpyWriter(Writer):
    """A local .npy file, appended in place as NAME.part."""

    _file: BinaryIO

    def start(self) -> None:
        self._open(self._path(".part"), "w+b")
        self._file.write(header((0, *self.tail), self.dtype))

    def resume(self, mark: Mark) -> bool:
        path = self._path(".part")
        if not path.exists():
            path = self._path()  # the stop came while files were being renamed
        try:
            self._open(path, "r+b")
        except FileNotFoundError:
            return False
        item = self.dtype.itemsize * int(np.prod(self.tail, dtype=np.int64))
        left = mark.count * item
        self._file.seek(len(header((0, *self.tail), self.dtype)))
        while left and (data := self._file.read(min(left, PIECE))):
            self.hash.update(data)
            left -= len(data)
        if left or self.hash.hexdigest() != mark.sha256:
            self._file.close()
            self.hash = hashlib.sha256()
            return False
        self._file.truncate()
        self.count = mark.count
        if path == self._path():
            path.rename(self._path(".part"))
        return True

    def put(self, values: NDArray[Any]) -> None:
        self._file.write(raw(values))

    def flush(self) -> None:
        self._file.flush()

    def finish(self) -> None:
        self._file.seek(0)
        self._file.write(header((self.count, *self.tail), self.dtype))
        self._file.close()
        self._path(".part").replace(self._path())

    def _open(self, path: Path, mode: str) -> None:
        self._file = cast(BinaryIO, path.open(mode))
        weakref.finalize(self, self._file.close)  # also when an error ends the writing

    def _path(self, more: str = "") -> Path:
        local = self.where.child(self.name + more).local
        assert local is not None
        return local


class RemoteNpyWriter(Writer):
    """A .npy file behind fsspec: kept in a local temporary file, sent off when it is whole."""

    def start(self) -> None:
        self._file = temporary(self)

    def resume(self, mark: Mark) -> bool:
        return False  # what was kept here is gone with the process

    def put(self, values: NDArray[Any]) -> None:
        self._file.write(raw(values))

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        fs, path = self.where.child(self.name).remote()
        self._file.seek(0)
        with fs.open(path, "wb") as out:
            out.write(header((self.count, *self.tail), self.dtype))
            shutil.copyfileobj(self._file, out, PIECE)
        self._file.close()


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
        import zarr

        place = self._place()
        if place.local and not place.local.exists() and self.where.child(self.name).exists():
            os.rename(self.where.child(self.name).url, place.url)
        try:
            array: Any = zarr.open_array(place.url, mode="r+")
        except Exception:  # zarr and fsspec raise what they like
            return False
        if array.shape != (self.rows, *self.tail):
            return False
        for values in zarr_pieces(array, mark.count):
            self.hash.update(raw(np.ascontiguousarray(values, self.dtype)))
        if self.hash.hexdigest() != mark.sha256:
            self.hash = hashlib.sha256()
            return False
        self._array, self.count = array, mark.count
        return True

    def put(self, values: NDArray[Any]) -> None:
        import zarr

        if self._array is None:
            self._array = zarr.create_array(
                self._place().url,
                shape=(self.rows, *self.tail),
                chunks=values.shape,
                dtype=self.dtype,
                compressors=None,
                fill_value=np.nan,  # a chunk that is missing must not read as zeros
                config={"write_empty_chunks": True},  # or each is compared with the fill value
            )
        self._array[self.count : self.count + len(values)] = values

    def flush(self) -> None:
        pass

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
