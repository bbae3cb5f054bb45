"""Whether a store is whole, and a share of it from others: any k whole ones are enough.

Checksums show that a file was altered, not that it is the share that its name says. That
the shares belong together is checked by their code: with y_s = uᵀ (share s) v for fixed u and v,
the y of all shares must be a code word as the shares are, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadStore
from .formats import check_sum, scan
from .manifest import NAME, read_manifest
from .writers import append, begin, finish, share_writers, writing

if TYPE_CHECKING:
    from .store import Store

AMPLIFIED = 100.0  # rounding by more than this: one share more is used
NUMBERS = 1 << 20  # added up at a time
ROWS = 1 << 14  # of a sparse share that are looked at at a time


def rebuilt(store: Store, share: int, error: BadStore) -> Any:
    """Return a share, which has this error, from k whole others, read twice; BadStore without k."""
    code = store.code
    used = _whole(store, share, error)
    weights = code.row(share) @ code.weights(used).matrix
    if store.sparse:
        terms = (w * store.share(s) for w, s in zip(weights, used, strict=True) if w)
        total = sum(terms, start=store.share(used[0]) * 0.0)
        total.sort_indices()
        return total.astype(store.dtype)
    total = np.zeros((store.manifest.rows, store.shape[1]))
    step = max(1, NUMBERS // store.shape[1])
    for w, s in zip(weights, used, strict=True):
        other = store.share(s)
        for first in range(0, len(total), step):
            total[first : first + step] += w * other[first : first + step]
    return total.astype(store.dtype, copy=False)


def _whole(store: Store, share: int, error: BadStore) -> tuple[int, ...]:
    """At least k other shares that are as written: plain blocks first, few roundings apart."""
    code = store.code
    order = np.argsort(np.count_nonzero(code.generator, axis=1), kind="stable").tolist()
    used: tuple[int, ...] = ()
    spoiled = {share: error}
    for other in order:
        if other == share:
            continue
        try:
            for file in store.manifest.shares[other]:
                check_sum(store.where, file)
        except BadStore as wrong:
            spoiled[other] = wrong
            continue
        used = tuple(sorted((*used, other)))
        if len(used) >= code.k and code.eta(used) <= AMPLIFIED:
            break
    enough(store, spoiled)
    return used


def enough(store: Store, spoiled: Mapping[int, BadStore]) -> None:
    """Raise BadStore, naming the first file that is not whole, if fewer than k shares are."""
    code, whole = store.code, store.code.n - len(spoiled)
    if whole < code.k:
        error = next(iter(spoiled.values()))
        raise BadStore(
            error.path,
            f"{error.problem} Any {code.k} of the {code.n} shares are enough, and only {whole} "
            f"are whole.",
        )


def spoiled_text(spoiled: Mapping[int, BadStore], what: str) -> str:
    """One sentence on the shares of a store that are not whole, and what became of them."""
    first = next(iter(spoiled.values()))
    more = f" (and {len(spoiled) - 1} more)" if len(spoiled) > 1 else ""
    which = ", ".join(map(str, spoiled))
    return f"{first}{more} Share{'s' * (len(spoiled) > 1)} {which}: {what}."


def repair(store: Store) -> list[int]:
    """See Store.repair."""
    spoiled = store.spoiled(verify=True)
    enough(store, spoiled)
    manifest = store.manifest
    with writing(store.where):
        for share, error in spoiled.items():
            writers = share_writers(store.where, manifest, manifest.fmt, [share])
            value = rebuilt(store, share, error)
            begin(writers)
            append(writers[share], value)
            manifest = manifest.with_shares(finish(writers))
        if spoiled:
            manifest.write(store.where)
    return list(spoiled)


def verify(store: Store, progress: Callable[[int, int], None] | None = None) -> None:
    """See Store.verify. Memory: a few MB, for a sparse store behind fsspec one share."""
    manifest, code = store.manifest, store.code
    if read_manifest(store.where) != manifest:
        raise BadStore(
            store.where.child(NAME).url,
            "it was written again since this store was opened. Open the store again.",
        )
    store.scales()
    projections = np.empty((code.n, 2))
    for share in range(code.n):
        projections[share] = _projected(store, share)
        if progress:
            progress(share + 1, code.n)
    _check_code(store, projections[:, 0], projections[:, 1])


def _projected(store: Store, share: int) -> tuple[float, float]:
    """Return uᵀ S v of a share S, and at least |u|ᵀ |S| |v|, which bounds its rounding."""
    v = _numbers(0, store.shape[1])
    end = _end(store, share)
    total = size = beyond = 0.0
    first = 0
    for rows in _pieces(store, share):
        last = first + rows.shape[0]
        u = _numbers(first, last)
        with np.errstate(over="ignore", invalid="ignore"):  # if the matrix was not finite
            total += float(u @ (rows @ v))
            size += float(np.abs(u).sum() * np.abs(v).sum() * max(rows.max(), -rows.min()))
            if last > end:
                beyond += float(abs(rows[max(0, end - first) :]).sum())
        first = last
    if beyond:
        raise BadStore(
            store.where.child(NAME).url,
            f"it says that the matrix has {store.shape[0]} rows, and share {share} has more: it "
            f"was altered. Encode again.",
        )
    return total, size


def _end(store: Store, share: int) -> int:
    """Rows of a share after which there is nothing: the last block is filled up with zeros."""
    used = np.flatnonzero(store.code.row(share))
    rows = store.manifest.rows
    return max(0, store.shape[0] - int(used[0]) * rows) if len(used) == 1 else rows


def _numbers(first: int, last: int) -> NDArray[np.float64]:
    """Entries first..last of one fixed sequence in which no two are alike."""
    numbers: NDArray[np.float64] = np.cos(np.sqrt(2.0) * np.arange(first, last) ** 2 + 1.0)
    return numbers


def _pieces(store: Store, share: int) -> Iterator[Any]:
    """Yield a share a few rows at a time; after the last, its checksum has been compared."""
    files = store.manifest.shares[share]
    if not store.sparse:
        yield from scan(store.where, files[0])
        return
    rows = store.share(share, verify=True)
    for first in range(0, rows.shape[0], ROWS):
        yield rows[first : first + ROWS]


def _check_code(store: Store, y: NDArray[Any], size: NDArray[Any]) -> None:
    code, (_, d) = store.code, store.shape
    simple = np.argsort(np.count_nonzero(code.generator, axis=1), kind="stable")
    base = np.sort(simple[: code.k])  # the plain blocks, in all constructions so far
    weights = code.weights(tuple(base.tolist()))
    mix = code.generator @ weights.matrix  # all shares from these
    # Sums of k terms when it was written and of rows + d here, and the rounding to its dtype.
    unit = np.finfo(np.float64).eps * (store.manifest.rows + d + 2 * code.k + 2) * weights.eta
    unit += np.finfo(store.dtype).eps
    # Numbers below the smallest normal one are rounded as that is.
    size = size + np.finfo(store.dtype).smallest_normal * store.manifest.rows * d
    most = unit * (np.abs(mix) @ size[base] + size)
    with np.errstate(invalid="ignore"):
        off = np.flatnonzero(np.abs(mix @ y[base] - y) > most)
    if len(off):
        raise BadStore(
            store.where.child(NAME).url,
            f"share {off[0]} and shares {base.tolist()} are not of one matrix: some were swapped, "
            f"or copied from another store. Encode again.",
        )
