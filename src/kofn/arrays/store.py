"""The share store: a directory with one coded share a file, written once, read by any worker.

    manifest.json     written last: without it there is no store
    share-0000.npy    (or .zarr; or .data.npy, .indices.npy, .indptr.npy for a sparse matrix)
    share-0001.npy    ...

Writing is one pass over the source. A run that was killed goes on where it last noted its
progress, after checking that all up to there is as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..codes.mds import MDSCode
from ..errors import BadInput, BadStore
from ..model import Build
from .coding import Coder
from .files import Place
from .formats import ArrayFile, check, load
from .manifest import (
    NAME,
    OURS,
    PROGRESS,
    VERSION,
    Manifest,
    code_facts,
    read_manifest,
    share_files,
)
from .sources import Source, open_source
from .verify import verify
from .writers import Mark, NpyWriter, RemoteNpyWriter, Writer, ZarrWriter

MARK_BYTES = 256 << 20  # written between two notes of progress
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Store:
    """A complete store. Opening it reads the manifest only."""

    where: Place
    manifest: Manifest

    @property
    def code(self) -> MDSCode:
        """The code of its shares."""
        return self.manifest.code

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (N, d) of the matrix that was encoded."""
        return self.manifest.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64 or float32."""
        return np.dtype(self.manifest.dtype)

    @property
    def sparse(self) -> bool:
        """Whether shares are CSR matrices."""
        return self.manifest.sparse

    def agree(self, k: int | None = None, n: int | None = None) -> MDSCode:
        """Return the code; raise BadInput if another k or n is asked for (None: any)."""
        code = self.code
        if k not in (None, code.k) or n not in (None, code.n):
            asked = ", ".join(f"{x}={v}" for x, v in (("k", k), ("n", n)) if v is not None)
            raise BadInput(
                f"the store {self.where.url} was written with k={code.k}, n={code.n}; {asked} was "
                f"asked for. Leave k and n out, or encode another store."
            )
        return code

    def share_build(self, share: int, verify: bool | None = None) -> Build:
        """Return what a worker runs to have a share: see `load_share`."""
        self.code.row(share)  # says so if there is no such share
        files, columns = self.manifest.shares[share], self.shape[1]
        # Checked by default: a share of the right size and other numbers would decode to nonsense.
        return Build(load_share, (self.where.url, files, columns, verify is not False))

    def share(self, share: int, verify: bool = False) -> Any:
        """Return a share here: an array (ceil(N / k), d), or a csr_array of that shape."""
        build = self.share_build(share, verify)
        return build.fn(*build.args)

    def check(self) -> None:
        """Raise BadStore for the first file that has not the right size, shape and dtype."""
        for file in (file for files in self.manifest.shares for file in files):
            check(self.where, file)

    def verify(self, progress: Progress | None = None) -> None:
        """Read every share once; raise BadStore for the first file that is not as written.

        Also that the shares are those of one matrix, in the order of the manifest.
        """
        verify(self, progress)


def open_store(where: object) -> Store:
    """Open the store at a path or a URL. Raises BadStore, naming the file, when it is not whole."""
    place = Place.of(where)
    return Store(place, read_manifest(place))


def is_store(where: object) -> bool:
    """Whether a store, complete or not, is at this path or URL."""
    place = Place.of(where)
    return place.is_dir() and (place.child(NAME).exists() or place.child(PROGRESS).exists())


def load_share(url: str, files: tuple[ArrayFile, ...], columns: int, verify: bool) -> Any:
    """Return a share of the store at `url`. Runs on the worker that keeps it.

    A local .npy is mapped, copy on write; remote files and Zarr are fetched. Sizes, shapes and
    dtypes are always checked; checksums when `verify`, and of all that is fetched. Raises
    BadStore, naming the file.
    """
    where = Place.of(url)
    arrays = [load(where, file, verify) for file in files]
    if len(arrays) == 1:
        return arrays[0]
    data, indices, ends = arrays
    # Products of a CSR matrix do not look where its indices lead: they must be right.
    if ends[0] != 0 or ends[-1] != len(data) or (np.diff(ends) < 0).any():
        raise BadStore(where.child(files[2].name).url, "its row ends are wrong. Encode again.")
    if len(indices) and not 0 <= indices.min() <= indices.max() < columns:
        raise BadStore(
            where.child(files[1].name).url,
            f"it names columns outside of 0 to {columns - 1}. Encode again.",
        )
    return sp.csr_array((data, indices, ends), shape=(len(ends) - 1, columns))


def write_store(
    source: object,
    where: object,
    code: MDSCode,
    *,
    fmt: str = "npy",
    resume: bool = True,
    check_finite: bool = True,
    progress: Progress | None = None,
) -> Manifest:
    """Encode a source (see `open_source`) to a store at a path or a URL; return its manifest.

    One pass over the source; memory: about 50 MB, or n + k rows where those are more. Written:
    n / k times the size of the source. `progress` is told (rows done, rows in all) of a share.

    resume: go on with a run that was stopped, if source and code are the same; a store that is
    complete is left as it is. resume=False begins anew. BadInput if another store is there.
    """
    place, opened = Place.of(where), open_source(source)
    if fmt not in ("npy", "zarr"):
        raise BadInput(f"shares are written as 'npy' or 'zarr'; got fmt={fmt!r}.")
    if fmt == "zarr":
        if opened.sparse:
            raise BadInput("sparse shares are written as .npy files; leave fmt='zarr' out.")
        _need_zarr()
    if place.exists() and not place.is_dir():
        raise BadInput(f"a store is a directory; {place.url} is a file. Choose another name.")
    facts = _facts(opened, code, fmt)
    if resume and (done := _finished(place, facts)):
        return done
    try:
        place.make_dir()
        place.child(NAME).remove()
        return _write(place, opened, code, facts, resume, check_finite, progress)
    except BadInput:
        _clear(place)  # the data will have to change: nothing to go on from
        raise
    except OSError as error:
        raise BadStore(
            place.url,
            f"it cannot be written: {error.strerror or error}. Make room, and encode "
            f"again: it goes on from here.",
        ) from error


def _facts(source: Source, code: MDSCode, fmt: str) -> dict[str, Any]:
    """All that must be the same for a run to go on where another stopped."""
    return {
        "kofn_store": VERSION,
        "code": code_facts(code),
        "shape": list(source.shape),
        "dtype": source.dtype.name,
        "sparse": source.sparse,
        "fmt": fmt,
        "source": source.describe(),
    }


def _finished(place: Place, facts: dict[str, Any]) -> Manifest | None:
    """Return the manifest if this very store is there already; raise BadInput for another one."""
    if not place.child(NAME).exists():
        return None
    found = read_manifest(place)
    there = {
        "kofn_store": VERSION,
        "code": code_facts(found.code),
        "shape": list(found.shape),
        "dtype": found.dtype,
        "sparse": found.sparse,
        "fmt": found.fmt,
        "source": dict(found.source),
    }
    if there == facts and facts["source"]["fingerprint"]:
        return found
    raise BadInput(
        f"{place.url} holds a store already ({found.code.name} of {found.shape[0]} x "
        f"{found.shape[1]} {found.dtype}, from {found.source.get('path') or 'memory'}). Choose "
        f"another place, or overwrite it with resume=False (kofn encode --overwrite)."
    )


def _write(
    place: Place,
    source: Source,
    code: MDSCode,
    facts: dict[str, Any],
    resume: bool,
    check_finite: bool,
    progress: Progress | None,
) -> Manifest:
    coder = Coder(source, code, range(code.n), check_finite)
    writers = [_writers(place, source, s, coder.rows, facts["fmt"]) for s in range(code.n)]
    facts = {**facts, "step": coder.step}
    start, bad = _resumed(place, facts, writers) if resume else (0, [])
    if not start:
        _clear(place)
        bad = list(range(code.n))
    for writer in (w for s in bad for w in writers[s]):
        writer.begin()
    if start and bad:  # the others are kept
        again = Coder(coder.source, code, bad, check_finite)
        for first in range(0, start, coder.step):
            _extend(again, writers, first, min(first + coder.step, start))
    since = 0
    for first in range(start, coder.rows, coder.step):
        last = min(first + coder.step, coder.rows)
        if progress:
            progress(first, coder.rows)
        since += _extend(coder, writers, first, last)
        if since >= MARK_BYTES or last == coder.rows:
            _note(place, facts, last, writers)
            since = 0
    for writer in (w for share in writers for w in share):
        writer.finish()
    if progress:
        progress(coder.rows, coder.rows)
    shares = tuple(tuple(w.entry() for w in share) for share in writers)
    manifest = Manifest(
        code, source.shape, source.dtype.name, source.sparse, source.describe(), shares
    )
    manifest.write(place)
    place.child(PROGRESS).remove()
    return manifest


def _extend(coder: Coder, writers: list[list[Writer]], first: int, last: int) -> int:
    """Append rows first..last of the coder's shares to their files; return the bytes written."""
    written = 0
    for share, rows in coder.chunk(first, last):
        for writer, values in zip(writers[share], _arrays(rows, writers[share]), strict=True):
            writer.append(values)
            written += values.nbytes
    return written


def _clear(place: Place) -> None:
    """Remove what an earlier run left; files that are not ours stay."""
    for name in place.names():
        if name == PROGRESS or OURS.fullmatch(name.removesuffix(".part")):
            place.child(name).remove()


def _writers(place: Place, source: Source, share: int, rows: int, fmt: str) -> list[Writer]:
    kind = ZarrWriter if fmt == "zarr" else NpyWriter if place.local else RemoteNpyWriter
    names = share_files(share, source.sparse, fmt)
    if not source.sparse:
        return [kind(place, names[0], source.dtype, (rows, source.shape[1]))]
    wide = np.dtype(np.int64 if source.shape[1] > np.iinfo(np.int32).max else np.int32)
    types = (source.dtype, wide, np.dtype(np.int64))
    return [kind(place, name, dtype, (0,)) for name, dtype in zip(names, types, strict=True)]


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


def _note(place: Place, facts: dict[str, Any], rows: int, writers: list[list[Writer]]) -> None:
    """Write down how far all files have come."""
    for writer in (w for share in writers for w in share):
        writer.flush()
    marks = [[asdict(writer.mark()) for writer in share] for share in writers]
    place.child(PROGRESS).write(json.dumps({"facts": facts, "rows": rows, "marks": marks}).encode())


def _resumed(
    place: Place, facts: dict[str, Any], writers: list[list[Writer]]
) -> tuple[int, list[int]]:
    """Return the rows written already, 0 to begin anew, and the shares that lack some of them.

    The writers of the other shares stand after those rows.
    """
    note = place.child(PROGRESS)
    if not facts["source"]["fingerprint"] or not note.exists():
        return 0, []
    try:
        with note.open() as file:
            content = json.loads(file.read())
        if content["facts"] != facts or len(content["marks"]) != len(writers):
            return 0, []
        rows = int(content["rows"])
        marks = [[Mark(**mark) for mark in share] for share in content["marks"]]
    except (ValueError, KeyError, TypeError):
        return 0, []
    bad = [
        s
        for s, share in enumerate(writers)
        if not all(w.resume(mark) for w, mark in zip(share, marks[s], strict=True))
    ]
    return (0, []) if len(bad) == len(writers) else (rows, bad)


def _need_zarr() -> None:
    try:
        import zarr  # noqa: F401
    except ImportError as error:
        raise BadInput("fmt='zarr' needs zarr: pip install 'kofn[store]'.") from error
