"""The share store: a directory with one coded share a file, written once, read by any worker.

    manifest.json     written last: without it there is no store
    share-0000.npy    (or .zarr; or .data.npy, .indices.npy, .indptr.npy for a sparse matrix)
    share-0001.npy    ...
    scales.npy        only where rows were scaled: exponents of two, one a row of the matrix

Writing is one pass over the source. A run that was killed goes on where it last noted its
progress, after checking that all up to there is as it was.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from ..checks import indexed, is_sparse
from ..codes.mds import MDSCode
from ..errors import BadInput, BadStore, StoreWarning
from ..files import Place
from .coding import Coder
from .formats import needed
from .manifest import NAME, OURS, PROGRESS, SCALES, Manifest, checksum, read_manifest
from .opened import Store, is_store, open_store
from .rebuild import spoiled_text
from .scales import Scales
from .sources import Source, open_source
from .turned import turned
from .writers import Mark, Writers, append, begin, finish, share_writers, write_array, writing

__all__ = ["Store", "is_store", "open_store", "write_store"]

MARK_BYTES = 256 << 20  # written between two notes of progress
Progress = Callable[[int, int], None]


class _Marks(NamedTuple):
    """What an earlier run has noted: `rows` of every share are there, its files as marked."""

    step: int
    rows: int
    files: list[list[Mark]]


def write_store(
    source: object,
    where: object,
    code: MDSCode,
    *,
    axis: int = 0,
    fmt: str = "npy",
    resume: bool = True,
    check_finite: bool = True,
    progress: Progress | None = None,
) -> Manifest:
    """Encode a source (see `open_source`) to a store at a path or a URL; return its manifest.

    One pass over the source; memory: about 50 MB, or n + k rows where those are more. Written:
    n / k times the size of the source. `progress` is told (rows done, rows in all) of a share.
    axis: 0 cuts the source by rows, 1 by columns: the store is then one of its transpose, for
    `cluster.encode(store, axis=1)`. A file is turned first, to a temporary file (see `turned`).

    resume: go on with a run that was stopped, if source and code are the same. A store that is
    complete is read once; shares that are not as written are written again, with a StoreWarning.
    resume=False begins anew. BadInput if another store, or an unfinished one of another source,
    is there.
    """
    if is_sparse(source):
        source = indexed(source, "a matrix to encode")
    place, opened = Place.of(where), turned(open_source(source), axis)
    if fmt not in ("npy", "zarr"):
        raise BadInput(f"shares are written as 'npy' or 'zarr'; got fmt={fmt!r}.")
    if fmt == "zarr":
        if opened.sparse:
            raise BadInput("sparse shares are written as .npy files; leave fmt='zarr' out.")
        needed("zarr", "fmt='zarr' is written")
    about = (opened.shape, opened.dtype.name, opened.sparse, opened.describe())
    manifest = Manifest(code, *about, shares=())
    # All that must be the same for a run to go on where another stopped.
    facts = {**manifest.facts, "fmt": fmt}
    with writing(place):
        if place.exists() and not place.is_dir():
            raise BadInput(f"a store is a directory; {place.url} is a file. Choose another name.")
        done = _finished(place, facts) if resume else None
        if done is not None:
            return _mended(Store(place, done), opened, check_finite)
        marks = _progress(place, facts) if resume else None
        place.make_dir()
        return _write(place, opened, manifest, facts, marks, check_finite, progress)


def _finished(place: Place, facts: dict[str, Any]) -> Manifest | None:
    """Return the manifest if this very store is there already; raise BadInput for another one."""
    if not place.child(NAME).exists():
        return None
    manifest = read_manifest(place)
    there = {**manifest.facts, "fmt": manifest.fmt}
    if there == facts and facts["source"]["fingerprint"]:
        return manifest
    raise _taken(place, "a store already", there)


def _taken(place: Place, what: str, facts: Mapping[str, Any]) -> BadInput:
    n, k = facts["code"]["n"], facts["code"]["k"]
    return BadInput(
        f"{place.url} holds {what} (n={n}, k={k}, {facts['shape'][0]} x {facts['shape'][1]} "
        f"{facts['dtype']}, from {facts['source'].get('path') or 'memory'}). Choose another place, "
        f"or overwrite it with resume=False (kofn encode --overwrite)."
    )


def _mended(store: Store, source: Source, check_finite: bool) -> Manifest:
    """Write the spoiled shares of a complete store again; return its manifest."""
    spoiled, manifest = store.spoiled(verify=True), store.manifest
    try:
        scales = store.scales()
    except BadStore as error:
        every = Coder(source, store.code, range(store.code.n), check_finite, "measured")
        every.measure(0, every.rows)
        scales = every.scales
        manifest = _with_scales(store.where, manifest, scales)
        manifest.write(store.where)
        warnings.warn(f"{error} It was written again.", StoreWarning, stacklevel=4)
    if not spoiled:
        return manifest
    writers = share_writers(store.where, manifest, manifest.fmt, list(spoiled))
    begin(writers)
    coder = Coder(source, store.code, list(spoiled), check_finite, scales)
    _extend(coder, writers, 0, coder.rows, coder.step)
    manifest = manifest.with_shares(finish(writers))
    manifest.write(store.where)
    warnings.warn(spoiled_text(spoiled, "written again"), StoreWarning, stacklevel=4)
    return manifest


def _write(
    place: Place,
    source: Source,
    manifest: Manifest,
    facts: dict[str, Any],
    marks: _Marks | None,
    check_finite: bool,
    progress: Progress | None,
) -> Manifest:
    code = manifest.code
    coder = Coder(source, code, range(code.n), check_finite, "measured")
    facts = {**facts, "step": coder.step}
    writers = share_writers(place, manifest, facts["fmt"], range(code.n))
    start, bad = _resumed(marks, coder, writers)
    if not start:
        # First a note of whose files these are, so that nobody else takes them for nobody's.
        _note(place, facts, 0, writers)
        place.child(NAME).remove()
        _clear(place)
        bad = list(writers)
    begin({share: writers[share] for share in bad})
    try:
        coder.measure(0, start)
        if start and bad:  # the others are kept
            again = Coder(coder.source, code, bad, check_finite, coder.scales)
            _extend(again, writers, 0, start, coder.step)
        since = 0
        for first in range(start, coder.rows, coder.step):
            last = min(first + coder.step, coder.rows)
            if progress:
                progress(first, coder.rows)
            since += _extend(coder, writers, first, last, coder.step)
            if since >= MARK_BYTES or last == coder.rows:
                _note(place, facts, last, writers)
                since = 0
    except BadInput:
        if not start:
            _clear(place)  # the data will have to change: nothing to go on from
            place.child(PROGRESS).remove()
        raise
    manifest = manifest.with_shares(finish(writers))
    if progress:
        progress(coder.rows, coder.rows)
    manifest = _with_scales(place, manifest, coder.scales)
    manifest.write(place)
    place.child(PROGRESS).remove()
    return manifest


def _with_scales(place: Place, manifest: Manifest, scales: Scales | None) -> Manifest:
    """Write the scales of the rows, if there are any; return the manifest that says so."""
    file = None if scales is None else write_array(place, SCALES, scales.exponents)
    return replace(manifest, scales=file)


def _extend(coder: Coder, writers: Writers, first: int, last: int, step: int) -> int:
    """Append rows first..last of the coder's shares to their files; return the bytes written."""
    return sum(
        append(writers[share], rows)
        for a in range(first, last, step)
        for share, rows in coder.make(a, min(a + step, last))
    )


def _clear(place: Place) -> None:
    """Remove the shares that an earlier run left; files that are not ours stay."""
    for name in place.names():
        if OURS.fullmatch(name.removesuffix(".part")):
            place.child(name).remove()


def _note(place: Place, facts: dict[str, Any], rows: int, writers: Writers) -> None:
    """Write down how far all files have come."""
    marks = [[asdict(writer.mark()) for writer in share] for share in writers.values()]
    content = {"facts": facts, "rows": rows, "marks": marks}
    note = json.dumps({**content, "sha256": checksum(content)})
    place.child(PROGRESS).write(note.encode())


def _progress(place: Place, facts: dict[str, Any]) -> _Marks | None:
    """Return what a run of this encoding noted, or None; BadInput where another is in the way."""
    note = place.child(PROGRESS)
    if not note.exists():
        if place.is_dir() and any(OURS.fullmatch(name) for name in place.names()):
            raise BadInput(
                f"{place.url} holds shares of a store without its {NAME}. Copy that too, choose "
                f"another place, or overwrite them with resume=False (kofn encode --overwrite)."
            )
        return None
    try:
        with note.open() as file:
            content = json.loads(file.read())
        if content["sha256"] != checksum(content):
            raise ValueError
        theirs, rows = dict(content["facts"]), int(content["rows"])
        marks = [[Mark(int(m["count"]), str(m["sha256"])) for m in s] for s in content["marks"]]
        step = int(theirs.pop("step"))
        same = theirs == facts
        # A file that was written again is the same source, and so is an array in memory.
        mine, other = facts["source"], theirs["source"]
        again = mine["path"] is not None and mine["fingerprint"] != other["fingerprint"]
        loose = ("source", "shape", "dtype", "sparse") if again else ("source",)
        akin = other["path"] == mine["path"] and all(
            theirs[key] == value for key, value in facts.items() if key not in loose
        )
        error = None if akin else _taken(place, "an unfinished store", theirs)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError):
        raise BadInput(
            f"{note.url} is none of kofn's notes, or was altered. Choose another place, or "
            f"overwrite it with resume=False (kofn encode --overwrite)."
        ) from None
    if error:
        raise error
    return _Marks(step, rows, marks) if same and facts["source"]["fingerprint"] else None


def _resumed(marks: _Marks | None, coder: Coder, writers: Writers) -> tuple[int, list[int]]:
    """Return the rows written already, 0 to begin anew, and the shares that lack some of them."""
    files = [len(share) for share in writers.values()]
    if marks is None or marks.step != coder.step or not 0 <= marks.rows <= coder.rows:
        return 0, []
    if [len(share) for share in marks.files] != files:
        return 0, []
    bad = [
        s
        for s, share in writers.items()
        if not all(w.resume(mark) for w, mark in zip(share, marks.files[s], strict=True))
    ]
    return (0, []) if len(bad) == len(writers) else (marks.rows, bad)
