"""Shares of a matrix: of one in memory, of one in a file, or those of a store."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import checks
from ..codes import AnyKOfN
from ..codes.mds import MDSCode
from ..codes.threshold import check_code
from ..errors import BadInput, StoreWarning
from ..model import Blank, Build, Room
from ..rounds.holders import ShareOf
from .checking import PiecesOf, of_source, of_store
from .coding import BUDGET, make_share, write_shares
from .decode import DataCode, plain
from .opened import Store, is_store, open_store
from .rebuild import enough, spoiled_text
from .scales import ZERO, Exponents, Scales, all_lengths, lengths, scales_at, scales_by
from .sources import Recast, Source, open_source

MOST = 64  # shares that are written at a time: each takes a descriptor until it is sent

# So many workers are live, after a wait for those that are needed; so many there should be.
Count = Callable[[object], tuple[int, int]]
MakeRoom = Callable[[tuple[int, ...], Any], Room | None]  # of a shape and a dtype


@dataclass(frozen=True)
class Shares:
    """What a coded matrix must know of its shares, wherever they are.

    `share_of(s)` is share s, or a Build of it. `scales`: what rows were divided by before coding.
    `pieces`: reads the blocks, for what is kept to check replies. `longest`: a bound on the lengths
    of their rows. `doubled`: whether shares that are no blocks are in double precision, though the
    matrix is not; `double` makes such ones of it.
    """

    code: DataCode
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    share_of: ShareOf
    sparse: bool = False
    scales: Scales | None = None
    store: str | None = None  # where they lie, as written; workers have their shares from there
    pieces: PiecesOf | None = None
    longest: Callable[[], float] = lambda: math.inf
    doubled: bool = False
    double: Callable[[], Shares] | None = None

    def __enter__(self) -> None:
        """Until the end, what is made ahead is kept. Where `held`, no interrupt is lost there."""

    def __exit__(self, *_: object) -> None:
        if isinstance(self.share_of, Plain):
            self.share_of.clear()


class Plain:
    """Shares of an array of floats in one piece, made when they are asked for.

    Where `room` has memory for them, the `first` ones are written there in one pass over the array;
    of those after them one at a time. Else a share that is a block is no copy, whoever puts it must
    make one, and two others are made at a time: the array is then read half as often. Shares that
    are no blocks are of type `coded`.
    """

    def __init__(
        self, A: NDArray[Any], code: AnyKOfN, room: MakeRoom, first: int, coded: np.dtype[Any]
    ) -> None:
        self._A, self._code, self._rows = A, code, code.block_rows(len(A))
        self._room, self._first, self._coded = room, min(first, code.n), coded
        self._ahead = dict[int, Any]()

    def __call__(self, share: int) -> Any:
        if share not in self._ahead:
            self._ahead = self._in_rooms(share) or self._in_arrays(share)
        return self._ahead.pop(share)

    def _in_rooms(self, share: int) -> dict[int, Any]:
        """This share and those that will be asked for next; none where there is no memory."""
        shares = range(share, min(max(share + 1, self._first), share + MOST))
        shape, rooms = (self._rows, self._A.shape[1]), dict[int, Room]()
        own: list[int] = []  # with memory of their own
        alike: dict[int, int] = {}  # a block -> the first share that is it
        for one in shares:
            block = plain(self._code, one)
            first = one if block is None else alike.setdefault(block, one)
            if first == one:
                own.append(one)
                room = self._room(shape, self._dtype(block))
            else:
                room = rooms[first].twin()
            if room is None:
                return {}
            rooms[one] = room
        write_shares(self._code, own, self._A, [rooms[one].fill for one in own], self._coded)
        return dict(rooms)

    def _in_arrays(self, share: int) -> dict[int, Any]:
        code, block, rows = self._code, plain(self._code, share), self._rows
        if block is not None and (block + 1) * rows <= len(self._A):
            return {share: self._A[block * rows : (block + 1) * rows]}
        two = range(share, min(share + 2, max(share + 1, self._first)))
        shape = rows, self._A.shape[1]
        made = {one: np.empty(shape, self._dtype(plain(code, one))) for one in two}
        fills = [partial(_copy, to) for to in made.values()]
        write_shares(code, two, self._A, fills, self._coded)
        return dict(made)

    def _dtype(self, block: int | None) -> np.dtype[Any]:
        """Of a share that is this block, or none."""
        return self._coded if block is None else self._A.dtype

    def clear(self) -> None:
        """Let go of what was made and not asked for; those who come later ask for one each."""
        self._ahead.clear()
        self._first = 0


def _copy(to: NDArray[Any], first: int, rows: NDArray[Any]) -> None:
    to[first : first + len(rows)] = rows


def shares_of(
    A: Any,
    code: AnyKOfN,
    scales: Scales | None = None,
    *,
    values: bool = True,
    room: MakeRoom | None = None,
    first: int = 0,
    doubled: bool = False,
) -> Shares:
    """Return the shares of A, its rows divided by `scales`. It is kept, not copied.

    A sparse parity share holds the non-zeros of up to k blocks: it is that much denser. Without
    `values` A may be a Blank, and shares are blank: nobody looks at them, and making thousands
    takes long. `room`: makes memory for shares, of which the `first` are asked for at once; whoever
    is given a share that is an array must copy it, as it may be a view of A. `doubled`: shares that
    are no blocks are in double precision.
    """
    sparse = checks.is_sparse(A)
    unscaled = scales is None and not sparse
    dtype = np.dtype(np.float64) if isinstance(A, Blank) else A.dtype
    blank = Blank(code.block_rows(A.shape[0]), A.shape[1], dtype.itemsize)

    def share_of(share: int) -> Any:
        if not values:
            return blank
        # Sums of huge entries may overflow: products look at what comes out.
        with np.errstate(over="ignore", invalid="ignore"):
            if unscaled and not doubled:
                return code.encode_share(share, A)
            return _made(open_source(A), code, share, scales, doubled)

    pieces = of_source(open_source(A), code, scales) if values else None
    longest = partial(longest_of, A)
    make: ShareOf = share_of
    if room and values and unscaled and A.dtype.char in "df" and A.flags.c_contiguous:
        make = Plain(A, code, room, first, np.dtype(float) if doubled else dtype)
    double: Callable[[], Shares] | None = None
    if values and not doubled and dtype.itemsize < 8:
        double = partial(shares_of, A, code, scales, room=room, first=first, doubled=True)
    about = code, A.shape, dtype, make, sparse, scales, None, pieces, longest
    return Shares(*about, doubled=doubled, double=double)


def _made(source: Source, code: AnyKOfN, share: int, scales: Scales | None, doubled: bool) -> Any:
    """A share of a source; `doubled` is as in shares_of."""
    if doubled and plain(code, share) is None:
        source = Recast(source, np.float64)
    return make_share(source, code, share, scales)


def _built(path: str, *about: Any) -> Any:
    """The same of a file, by whoever can read it."""
    return _made(open_source(path), *about)


def scaled_shares(A: Any, engine: Any, live: int, check_finite: bool, code: AnyKOfN) -> Shares:
    """The same, with rows divided as this code needs it, for so many workers of an engine."""
    can, lengths = engine.capabilities, all_lengths(A)
    # Rows with NaN or infinity have no length: one pass says both.
    if check_finite and (checks.is_sparse(A) or (lengths == ZERO).any()):
        checks.finite(A, "the matrix to encode")
    scales, room = scales_by(lengths, code.k, A.dtype), engine.room if can.processes else None
    return shares_of(A, code, scales, values=can.values, room=room, first=live)


def longest_of(A: Any) -> float:
    """A bound on the lengths of the rows of A, or on those of scaled ones. One pass."""
    return _longest(all_lengths(A))


def _longest(exponents: Exponents) -> float:
    return float(np.ldexp(1.0, max(0, int(exponents.max(initial=0)))))


def threshold(k: object, n: object) -> MDSCode:
    """Return the code for a threshold k over n shares, or say what is wrong with them."""
    count = checks.whole(n, "n (shares)", 1)
    need = checks.whole(k, "k (the threshold)", 1)
    if need > count:
        raise BadInput(
            f"k must be at most the number of shares; got k={need} and n={count}. "
            f"Use k <= {count}, or more workers."
        )
    return MDSCode(count, need)


def resolve_source(A: object) -> Store | Source | None:
    """Return the store or source that A is or names, as a path or URL; None for one in memory."""
    if isinstance(A, Store | Source):
        return A
    if isinstance(A, str | os.PathLike):
        return open_store(A) if is_store(A) else open_source(A)
    return open_source(A) if type(A).__module__.split(".")[0] == "zarr" else None


def choose_code(
    source: Store | Source | None, code: AnyKOfN | None, k: int | None, n: int | None, count: Count
) -> tuple[AnyKOfN, int]:
    """The code of a matrix, as given, as its store has it, or of k and n; and how many live."""
    plain = n is None and code is None and not isinstance(source, Store)
    live, usual = count(k if plain else 1)
    if code is not None and (k is not None or n is not None or isinstance(source, Store)):
        given = "a store" if isinstance(source, Store) else f"k={k}, n={n}"
        raise BadInput(
            f"a code says how many shares there are and how many are enough; got both "
            f"code={code!r} and {given}. Leave one of them out."
        )
    if isinstance(source, Store):
        return source.agree(k, n), live  # workers beyond its n shares wait for one to be free
    if code is None:
        code = threshold((usual + 1) // 2 if k is None else k, usual if n is None else n)
    else:
        check_code(code)
    checks.slots(code.n, live)
    return code, live


def shares_from(
    data: Store | Source, code: AnyKOfN, check_finite: bool = True, doubled: bool = False
) -> Shares:
    """Return the shares of a store, or those of a source under a code.

    A store's workers load their share, or rebuild it from others if its file is gone or spoiled;
    the files are looked at here first, with a StoreWarning for such. Of a file whose rows
    are cheap to reach, each worker codes its own share (one pass over the file); of others they
    are made here. A source is read once here, for the scales of its rows and for `check_finite`; a
    store was when it was written. `doubled`: as in shares_of; a store's shares are as written.
    """
    if isinstance(data, Store):
        spoiled = data.spoiled()  # better said here than by every worker
        enough(data, spoiled)
        if spoiled:
            text = spoiled_text(spoiled, "rebuilt from others where needed; repair the store")
            warnings.warn(text, StoreWarning, stacklevel=3)
        build, scaled = data.held_build, data.scales()
        about = (data.code, data.shape, data.dtype, build, data.sparse, scaled)
        return Shares(*about, store=data.where.url, pieces=of_store(data))
    step = rows_at_once(data)
    source = data.ready(step)
    N = source.shape[0]
    places = np.full((code.k, code.block_rows(N)), ZERO, np.int16)
    for first in range(0, N, step):
        rows = source.rows(first, min(first + step, N))
        if check_finite:
            checks.finite(rows, "the matrix to encode", first)
        places.reshape(-1)[first : first + step][: rows.shape[0]] = lengths(rows)
    scales = scales_at(places, N, source.dtype)
    path = source.path if source is data and source.kind in ("npy", "zarr") else None

    def share_of(share: int) -> Any:
        if path is not None:
            return Build(_built, (path, code, share, scales, doubled))
        return _made(source, code, share, scales, doubled)

    pieces, most = of_source(source, code, scales), _longest(places)
    double = partial(shares_from, data, code, check_finite=False, doubled=True)
    return Shares(
        *(code, source.shape, source.dtype, share_of, source.sparse, scales),
        pieces=pieces,
        longest=lambda: most,
        doubled=doubled,
        double=None if doubled or source.dtype.itemsize == 8 else double,
    )


def rows_at_once(source: Source) -> int:
    """Rows of a source that are read in one step."""
    N, d = source.shape
    row = 16 * (1 + source.nnz / N) if source.sparse else d * source.dtype.itemsize
    return max(1, int(BUDGET / row))
