"""Shared memory without names: segments, a pool that reuses them, packing values into them.

A segment is anonymous (memfd): it lives as long as somebody holds its descriptor or its map, so a
kill -9 leaves nothing behind.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import pickle
import weakref
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput, OutOfResources, TooLarge
from ..threads import each
from ._pages import HugePages, aligned, free_when_gone, nameless, used

LARGE = 32 * 1024  # bytes; below this a copy through the socket is cheaper than a mapping
FRAME = (1 << 31) - 1  # bytes; marshal, which makes frames, counts in 32 bits
WHOLE = 16 << 20  # bytes; from here on memory is mostly fresh, and written by system calls
PIECE = 4 << 20  # bytes of one such call, of which several threads make some
BORROWED = 64 * 1024  # bytes of an array that is read where it lies, if its task allows that
LENT = 64  # segments of one pool for that
_ALIGN = 64
_HEADER = 64  # the first word says busy (1) or free (0); see Pool

# What crosses a channel in place of a value: what it is, its buffers, and the id of the segment
# that holds the large ones, each of which is a pair (offset, length) then. What it is: None for a
# value that marshal knows, PICKLE for a pickle and its buffers, else dtype, shape and order of an
# array.
Packed = tuple[Any, tuple[Any, ...], int | None]
PICKLE = "pickle"
_ATOMS = frozenset({int, float, bool, str, type(None)})
_FEW = 16  # members of a tuple that are looked at
_PLAIN = frozenset("?bBhHiIlLqQefdgFDG")  # dtypes that are their bytes
_Take = Callable[[int], "Segment | None"] | None  # gives a segment of so many bytes, or None
Spare = Callable[[int], int | None]  # gives a descriptor of written memory for so many bytes
Memory = mmap.mmap | memoryview
OWN = -1  # the id of a segment that the receiver keeps for itself

_ids = count()
_dtype = cache(np.dtype)  # of a name: to read it takes longer than to make an array
_LACKS = "EMFILE ENFILE ENOMEM ENOBUFS EAGAIN ENOSPC EDQUOT EFBIG"
_SHORT = {getattr(errno, name) for name in _LACKS.split()}


class room_for:
    """Say in one error that there are no descriptors or no memory for something."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        lacks = isinstance(error, OSError) and error.errno in _SHORT
        if lacks or isinstance(error, MemoryError):
            raise OutOfResources(self._what, str(error) or "out of memory") from error


class Segment:
    """Zeroed memory without a name, mapped here; `fd` is what to pass to another process."""

    __slots__ = ("fd", "id", "map", "size")

    def __init__(self, size: int, id: int | None = None, written: int | None = None) -> None:
        """`written`: a descriptor of such memory to write over, which is taken over."""
        # A power of two, for reuse by what is a little larger; untouched pages cost nothing.
        self.size = 1 << (size + _HEADER - 1).bit_length()
        self.fd = nameless() if written is None else written
        try:
            os.ftruncate(self.fd, self.size)
            self.map = mmap.mmap(self.fd, self.size)
        except BaseException:
            os.close(self.fd)
            self.fd = -1
            raise
        self.id = next(_ids) if id is None else id

    def write(self, at: int, view: memoryview) -> None:
        """Copy bytes to offset `at`."""
        if view.nbytes < WHOLE:
            self.map[at : at + view.nbytes] = view
            return
        # The system call fills fresh pages twice as fast as a fault for each of them does.
        pieces = [view[a : a + PIECE] for a in range(0, view.nbytes, PIECE)]
        each(self._write, range(at, at + view.nbytes, PIECE), pieces)

    def _write(self, at: int, view: memoryview) -> None:
        while view.nbytes:
            done = os.pwrite(self.fd, view, at)
            at, view = at + done, view[done:]

    def close(self) -> None:
        """Unmap here; the memory lives on where it was passed to."""
        self.map.close()
        os.close(self.fd)


def fresh(size: int, id: int | None = None) -> Segment | None:
    """Return a new segment, None without descriptors or memory: the socket still works."""
    try:
        return Segment(size, id)
    except OSError:
        return None


class Reserved(Segment):
    """A segment for one array, written before it is packed; it closes itself if it never is."""

    __slots__ = ("_huge", "_row", "alone", "packed")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], spare: Spare) -> None:
        size = math.prod(shape) * dtype.itemsize
        self.fd, self.alone = -1, True  # no other worker has it
        written = spare(size)
        super().__init__(size, OWN, written)
        self._row = size // max(1, shape[0])
        whole = _HEADER + size if size > WHOLE else 0
        self._huge = HugePages(self.fd, whole, written is not None)
        self.packed: Packed = ((dtype.str, shape, "C"), ((_HEADER, size),), OWN)

    def fill(self, first: int, rows: NDArray[Any]) -> None:
        """Write rows from row `first` on; their pages do not stay this process's."""
        at, data = _HEADER + first * self._row, rows.data.cast("B")
        with room_for("a share"):
            while data.nbytes:
                piece = data[: PIECE - at % PIECE]
                if not self._huge.write(at, piece):
                    self._write(at, piece)
                at, data = at + piece.nbytes, data[piece.nbytes :]

    def twin(self) -> Reserved | None:
        """The same memory by another descriptor, for another worker."""
        other = object.__new__(Reserved)
        other.fd = -1  # so that it can be closed, whatever fails
        other.size, other.id, other._row, other.packed = self.size, OWN, self._row, self.packed
        other._huge = self._huge
        other.alone = self.alone = False
        try:
            other.fd = os.dup(self.fd)
            other.map = mmap.mmap(other.fd, other.size)
        except OSError:
            if other.fd >= 0:
                os.close(other.fd)
                other.fd = -1
            return None
        return other

    def close(self) -> None:
        if self.fd >= 0:
            super().close()
            self.fd = -1

    __del__ = close


def reserve(
    shape: tuple[int, ...], dtype: np.dtype[Any], spare: Spare = lambda size: None
) -> Reserved | None:
    """Return a segment for an array that is large enough for one; None without memory.

    `spare` may have one that is written already, for so many bytes.
    """
    if math.prod(shape) * dtype.itemsize < LARGE or dtype.char not in _PLAIN:
        return None
    try:
        return Reserved(shape, dtype, spare)
    except OSError:
        return None


def attach(fd: int, write: bool = False) -> mmap.mmap:
    """Map a segment that another process passed; takes the descriptor over."""
    if fd < 0:  # it was passed, and there was no room for it: see _wire.Reader
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    try:
        return mmap.mmap(fd, 0, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ)
    finally:
        os.close(fd)


def attach_own(fd: int) -> Memory:
    """The same for what this process alone will read: where huge pages can be, if it is large.

    Where it is marked as used, the master is told when nobody here has it any more.
    """
    if fd < 0:
        return attach(fd)
    own, size = used(fd), os.fstat(fd).st_size
    view = aligned(fd, size) if size > WHOLE else None
    if view is not None:
        os.close(fd)
    memory: Memory = attach(fd) if view is None else view
    free_when_gone(memory if view is None else view.obj, own)
    return memory


class Pool:
    """Segments to be written, read elsewhere, given back and written again.

    Keeps at most `keep` free bytes and makes at most `most` segments; `take` then answers None and
    the value goes through the socket instead. `written` counts the bytes packed so far. The first
    word of a segment in use is 1; a reader that clears it gives the segment back by that.
    """

    def __init__(self, keep: int = 256 << 20, most: int = 128) -> None:
        self.keep, self.most = keep, most
        self.written = 0
        self.used: dict[int, Segment] = {}
        self.free: list[Segment] = []  # the least recently used first

    def take(self, size: int) -> Segment | None:
        """Return the free segment that fits best, or a new one: O(free segments)."""
        fits = [s for s in self.free if size + _HEADER <= s.size <= 4 * (size + _HEADER)]
        segment = min(fits, key=lambda s: s.size, default=None)
        if segment is not None:
            self.free.remove(segment)
        elif len(self.used) < self.most:
            segment = fresh(size)
        if segment is None:
            return None
        segment.map[0] = 1
        self.used[segment.id] = segment
        self.written += size
        return segment

    def give(self, segment: Segment) -> list[int]:
        """Take a segment back; return the ids of those closed, for others to unmap."""
        del self.used[segment.id]
        self.free.append(segment)
        closed = []
        while self.free and (
            sum(s.size for s in self.free) > self.keep or len(self.free) > self.most // 4
        ):
            old = self.free.pop(0)
            old.close()
            closed.append(old.id)
        return closed

    def reclaim(self) -> list[int]:
        """Take back what readers have cleared; return the ids of those closed."""
        return [i for s in list(self.used.values()) if not s.map[0] for i in self.give(s)]

    def close(self) -> None:
        for segment in (*self.free, *self.used.values()):
            segment.close()
        self.free, self.used = [], {}


def dumps(value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle, with cloudpickle for what plain pickle cannot name in another process."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = pickle.dumps(value, 5, buffer_callback=buffers.append)
    except Exception:
        data = b"__main__"
    # Names in __main__ mean something else in a worker; a chance match costs time only.
    by_value = cloudpickle.list_registry_pickle_by_value()
    if b"__main__" in data or any(name.encode() in data for name in by_value):
        buffers = []
        try:
            data = cloudpickle.dumps(value, 5, buffer_callback=buffers.append)
        except Exception as error:
            raise BadInput(
                f"what passes between master and workers must survive pickling; "
                f"{type(value).__name__} does not: {error!r}. Build it where it is used."
            ) from error
    return data, buffers


def contiguous(value: Any, nested: bool = False) -> Any:
    """Return `value` with its strided arrays (also one level down in a tuple or list) copied."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return value
        if nested and not value.flags.writeable:
            # Pickle remembers that an array was read-only; what is received should not be.
            return value.copy(order="A")
        return value if value.flags.forc else np.ascontiguousarray(value)
    if not nested and type(value) in (tuple, list):
        return type(value)(contiguous(v, nested=True) for v in value)
    return value


def _buffers(value: Any, tidy: bool) -> tuple[Any, list[memoryview]]:
    """Return what a value is, and its buffers; `tidy`: as `contiguous` makes it."""
    # A plain contiguous array goes without pickle, which takes five times as long.
    if type(value) is np.ndarray and value.dtype.char in _PLAIN:
        if tidy and not value.flags.forc:
            value = np.ascontiguousarray(value)
        if value.flags.c_contiguous:
            return (value.dtype.str, value.shape, "C"), [value.data]
        if value.flags.f_contiguous:
            return (value.dtype.str, value.shape, "F"), [value.T.data]
    data, buffers = dumps(contiguous(value) if tidy else value)
    return PICKLE, [memoryview(data), *(buffer.raw() for buffer in buffers)]


def _marshals(value: Any) -> bool:
    """Tell whether marshal brings just this over: most of what tasks and replies carry besides."""
    if type(value) in _ATOMS:
        return True
    if type(value) is not tuple or len(value) > _FEW:
        return False
    for member in value:  # noqa: SIM110  (for every task: no call that can be left out)
        if type(member) not in _ATOMS and not _marshals(member):
            return False
    return True


def pack(value: Any, take: _Take = None, tidy: bool = False) -> tuple[Packed, Segment | None]:
    """Pack a value; buffers of LARGE bytes or more are written to one segment from `take`.

    Raises TooLarge where `take` has none, and they are too large to go in a frame instead.
    """
    if _marshals(value):
        return (None, (value,), None), None
    head, views = _buffers(value, tidy)
    if take is None or (len(views) == 1 and views[0].nbytes < LARGE):
        return (head, tuple(views), None), None
    sizes = [-(-view.nbytes // _ALIGN) * _ALIGN for view in views if view.nbytes >= LARGE]
    segment = take(sum(sizes)) if sizes else None
    if segment is None:
        return framed((head, tuple(views), None)), None
    parts, at = list[Any](views), _HEADER
    for i, view in enumerate(views):
        if view.nbytes >= LARGE:
            segment.write(at, view.cast("B"))
            parts[i] = (at, view.nbytes)
            at += sizes.pop(0)
    return (head, tuple(parts), segment.id), segment


def unpack(packed: Packed, memory: Memory | None = None, copy: bool = False) -> Any:
    """Return the value: views of `memory`, or with `copy` private writable arrays."""
    head, parts, _ = packed
    if head is None:
        return parts[0]
    if memory is not None:
        view = memoryview(memory)
        parts = tuple(view[p[0] : p[0] + p[1]] if type(p) is tuple else p for p in parts)
    if head == PICKLE:
        return pickle.loads(parts[0], buffers=map(bytearray, parts[1:]) if copy else parts[1:])
    dtype, shape, order = head
    data = bytearray(parts[0]) if copy else parts[0]
    return np.ndarray(shape, _dtype(dtype), data, order=order)


def borrowed(packed: Packed, memory: mmap.mmap, lent: set[int]) -> NDArray[Any] | None:
    """Return a large array where it lies, in memory that is given back when nobody has it any more.

    For a copy the system would have to find memory, page by page, which takes longer than to copy.
    None if it is small, if it is no array, or if so much of the writer's memory is `lent` already.
    """
    if type(packed[0]) is not tuple or large(packed) < BORROWED or len(lent) >= LENT:
        return None
    array: NDArray[Any] = unpack(packed, memory)
    lent.add(segment := packed[2] or 0)
    weakref.finalize(array, _give_back, memory, lent, segment, os.getpid()).atexit = False
    return array


def _give_back(memory: mmap.mmap, lent: set[int], segment: int, pid: int) -> None:
    lent.discard(segment)
    if os.getpid() == pid:  # in a forked child it is still the parent's
        memory[0] = 0


def framed(packed: Packed) -> Packed:
    """Return a packed value whose buffers are to go in a frame. Raises TooLarge."""
    sizes = [part[1] if type(part) is tuple else memoryview(part).nbytes for part in packed[1]]
    if max(sizes, default=0) > FRAME:
        raise TooLarge("what cannot go through shared memory", max(sizes), FRAME)
    return packed


def inline(packed: Packed, segment: Segment) -> Packed:
    """Return a packed value with the bytes that lie in its segment: for another machine."""
    head, parts, _ = framed(packed)
    data = segment.map
    return head, tuple(data[p[0] : p[0] + p[1]] if type(p) is tuple else p for p in parts), None


def large(packed: Packed) -> int:
    """Bytes of a packed value that lie in a segment."""
    return 0 if packed[2] is None else sum(p[1] for p in packed[1] if type(p) is tuple)
