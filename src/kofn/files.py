"""Places: a local path, or anything that fsspec reaches. Local paths need no fsspec.

A place is named by a URL and pickles as such: whoever receives it opens it for itself.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from .errors import BadInput, CannotWrite
from .interrupts import held, imported


@dataclass(frozen=True)
class Place:
    """A file or a directory. `url` is an absolute path, or a URL for fsspec."""

    url: str

    @classmethod
    def of(cls, where: object) -> Place:
        """Return the place that a str or a PathLike names."""
        text = name_of(where)
        text = text.removeprefix("file://")
        if "://" in text or "::" in text:
            return cls(text.rstrip("/"))
        return cls(os.path.abspath(os.path.expanduser(text)))

    @property
    def local(self) -> Path | None:
        """The path on this machine, None for a remote place."""
        return None if "://" in self.url or "::" in self.url else Path(self.url)

    @property
    def name(self) -> str:
        """The last part of the name, in small letters."""
        return self.url.rsplit("/", 1)[-1].lower()

    def child(self, name: str) -> Place:
        """The file `name` in this directory."""
        return Place(f"{self.url}/{name}")

    def remote(self) -> tuple[Any, str]:
        """The fsspec filesystem, and the path on it."""
        try:
            fsspec: Any = imported("fsspec")
        except ImportError as error:
            raise BadInput(
                f"{self.url} is not a local path, and fsspec is not installed: "
                f"pip install 'kofn[store]' (and the package of that file system, as s3fs)."
            ) from error
        try:
            with held():  # a file system is a package of its own
                fsspec.get_filesystem_class(fsspec.utils.get_protocol(self.url))
            fs, path = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise BadInput(f"fsspec cannot reach {self.url}: {error}") from error
        return fs, path

    def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        fs, path = self.remote()
        return getattr(fs, method)(path, *args, **options)

    def is_dir(self) -> bool:
        """Whether this is a directory."""
        return _told(self.local.is_dir) if self.local else bool(self._ask("isdir"))

    def exists(self) -> bool:
        """Whether anything is there."""
        return _told(self.local.exists) if self.local else bool(self._ask("exists"))

    def size(self) -> int:
        """Bytes in the file; FileNotFoundError when it is not there."""
        return self.local.stat().st_size if self.local else int(self._ask("size"))

    def open(self) -> BinaryIO:
        """Open the file to read it from front to back."""
        return self.local.open("rb") if self.local else cast(BinaryIO, self._ask("open", "rb"))

    def write(self, data: bytes) -> None:
        """Write a file whole or not at all: locally under another name first, then renamed."""
        if self.local is None:
            self._ask("pipe_file", data)
            return
        if self.local.exists() and not self.local.is_file():  # a device or a pipe keeps its name
            with self.local.open("wb", buffering=0) as file:
                write_all(file, memoryview(data))
            return
        target = self.local.resolve()
        part = target.with_name(target.name + ".part")
        with _alone(part) as file:
            try:
                write_all(file, memoryview(data))
                os.fsync(file.fileno())
                part.replace(target)
            except OSError:
                part.unlink(missing_ok=True)
                raise
        with suppress(OSError):  # not every file system knows it; the file is there either way
            _sync(target.parent)

    def make_dir(self) -> None:
        """Make the directory and those above it."""
        if self.local:
            self.local.mkdir(parents=True, exist_ok=True)
        else:
            self._ask("makedirs", exist_ok=True)

    def names(self) -> list[str]:
        """Names of what is in the directory."""
        if self.local:
            return [path.name for path in self.local.iterdir()]
        try:
            paths = self._ask("ls", detail=False)
        except FileNotFoundError:  # object stores have no empty directories
            return []
        return [str(name).rstrip("/").rsplit("/", 1)[-1] for name in paths]

    def remove(self) -> None:
        """Remove a file or a directory with all in it; nothing happens where nothing is."""
        if self.local is None:
            if self.exists():
                self._ask("rm", recursive=self.is_dir())
        elif self.local.is_dir():
            shutil.rmtree(self.local)
        else:
            self.local.unlink(missing_ok=True)

    def fingerprint(self) -> str:
        """A text that changes when the file, or a file below it, is written again."""
        seen = hashlib.sha256()
        if self.local is None:
            fs, path = self.remote()
            files = fs.find(path, detail=True) if fs.isdir(path) else {path: fs.info(path)}
            seen.update(repr(sorted((p, str(i)) for p, i in files.items())).encode())
        else:
            top = self.local
            files = sorted(p for p in top.rglob("*") if p.is_file()) if top.is_dir() else [top]
            for file in files:
                stat = file.stat()
                seen.update(f"{file.relative_to(top)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return seen.hexdigest()[:32]


def save(path: Path, data: bytes, what: str = "it") -> None:
    """Write a file whole or not at all. Raises CannotWrite."""
    try:
        Place.of(path).write(data)
    except OSError as error:
        problem = f"{what} cannot be written: {error.strerror or error}."
        raise CannotWrite(str(path), f"{problem} Make room, or name another place.") from error


def check_file(path: Path, name: str) -> None:
    """Raise BadInput where no file can be written; `name` is that of the option or argument."""
    if path.is_dir():
        raise BadInput(f"{name} must be a file; {path} is a directory. Name a file in it.")
    if path.exists() and not path.is_file():
        return  # a device or a pipe is written where it is
    folder = path.resolve().parent
    if not folder.is_dir():
        raise BadInput(
            f"{name} must be a file in a directory that is there; {folder} is not. Make the "
            f"directory first."
        )
    check_folder(folder, name)


def check_folder(path: Path, name: str) -> None:
    """Raise BadInput where a directory takes no files."""
    try:  # permissions do not tell all: some file systems take no files from anybody
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise BadInput(
            f"{name} must be where files can be written; {path} takes none: {error.strerror}. Name "
            f"another."
        ) from None


class Ranges:
    """Read byte ranges of a file into given memory, without mapping it.

    Mapped pages count as resident until the kernel wants them back; plain reads do not.
    """

    def __init__(self, place: Place) -> None:
        self.place, self.size = place, place.size()
        self._remote = None if place.local else place.remote()
        if place.local:
            self._fd = os.open(place.local, os.O_RDONLY)
            weakref.finalize(self, os.close, self._fd)

    def into(self, offset: int, out: NDArray[Any]) -> None:
        """Fill the C-contiguous `out` with the bytes from `offset` on."""
        if out.size == 0:
            return
        view = raw(out)
        if self._remote is None:
            read_into(self._fd, offset, view, self.place.url)
            return
        fs, path = self._remote
        data = fs.cat_file(path, start=offset, end=offset + len(view))
        if len(data) != len(view):
            raise ended_early(self.place.url)
        view[:] = data


class Spool:
    """A nameless temporary file of one dtype: append arrays, or put them, then read ranges back.

    It is gone when the spool is.
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype, self.count = np.dtype(dtype), 0
        try:
            self._file = tempfile.TemporaryFile(prefix="kofn-", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise _no_room(error) from error
        weakref.finalize(self, self._file.close)

    def append(self, values: NDArray[Any]) -> None:
        """Add values at the end, converted to the dtype."""
        self.put(self.count, values)

    def put(self, first: int, values: NDArray[Any]) -> None:
        """Write values from place `first` on, converted to the dtype."""
        flat = np.ascontiguousarray(values, self.dtype).reshape(-1)
        try:
            self._file.seek(first * self.dtype.itemsize)
            write_all(self._file, raw(flat))
        except OSError as error:
            raise _no_room(error) from error
        self.count = max(self.count, first + flat.size)

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Return the values first..last."""
        out = np.empty(last - first, self.dtype)
        self.into(first, out)
        return out

    def into(self, first: int, out: NDArray[Any]) -> None:
        """Fill the C-contiguous `out` with the values from `first` on."""
        if out.size:
            offset = first * self.dtype.itemsize
            read_into(self._file.fileno(), offset, raw(out), "a temporary file")


def name_of(where: object) -> str:
    """The text of a str or a PathLike; BadInput for what no file can be named by."""
    text = os.fspath(where) if isinstance(where, str | os.PathLike) else None
    with suppress(UnicodeEncodeError):
        if isinstance(text, str) and text and b"\0" not in os.fsencode(text):
            return text
    raise BadInput(
        f"a place is a path or a URL, as text; got {where!r}. Pass a str or a pathlib.Path."
    )


def _told(look: Callable[[], bool]) -> bool:
    """What is found at a path; BadInput where no file system takes such a name."""
    try:
        return look()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise BadInput(
            f"a place has a name that its file system takes; {error.filename} is too "
            f"long. Choose a shorter one."
        ) from None


def _alone(part: Path) -> io.FileIO:
    """Open a file to write it anew. OSError where another is writing it; what one left is used."""
    while True:
        file = io.FileIO(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "w")
        try:
            _lock(file)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), part.stat()):
                    file.truncate()
                    return file
        except OSError:
            file.close()
            raise
        file.close()  # it got its name just now: begin another


def _lock(file: io.FileIO) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(errno.EBUSY, "another process is just writing it") from error
    except OSError:  # a file system without locks
        pass


def _sync(folder: Path) -> None:
    """Have a folder's names on the disk: without that, a power cut may take a rename back."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def cause(error: BaseException) -> str:
    """The error of a library that read a file, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:200].rstrip(".")


def _no_room(error: OSError) -> CannotWrite:
    return CannotWrite(
        tempfile.tempdir or os.environ.get("TMPDIR", "/tmp"),
        f"temporary files need room there: {error.strerror or error}. Set TMPDIR to a larger disk.",
    )


def write_all(file: RawIOBase, view: memoryview) -> None:
    """Write to an unbuffered file; a disk that fills up takes less than it is given."""
    while view:
        view = view[file.write(view) :]


def raw(values: NDArray[Any]) -> memoryview:
    """The bytes of a C-contiguous array, without a copy."""
    flat: Any = values.reshape(-1).view(np.uint8)
    return memoryview(flat)


def read_into(fd: int, offset: int, view: memoryview, name: str) -> None:
    """Fill `view` from a local file; one read may give less than was asked for."""
    while view:
        got = os.preadv(fd, [view[: 1 << 30]], offset)
        if got == 0:
            raise ended_early(name)
        view, offset = view[got:], offset + got


def ended_early(name: str) -> BadInput:
    """The error for a file that became shorter while it was read."""
    return BadInput(f"{name} ended early: it was cut while it was read. Copy it again.")


def npy_header(place: Place) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, Fortran order, dtype and the place of the first number of a .npy file."""
    with place.open() as file:
        head = io.BytesIO(file.read(1 << 16))
    try:
        old = np.lib.format.read_magic(head) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(head)
    except Exception as error:  # whatever NumPy stumbles over
        raise BadInput(
            f"{place.url} is not a .npy file ({cause(error)}). Save it again."
        ) from error
    # One row or one column is in both orders at once.
    return shape, fortran and 1 not in shape, dtype, head.tell()
