"""A share of a store from others: any k whole ones are enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadStore
from .formats import check_sum
from .writers import append, begin, finish, share_writers, writing

if TYPE_CHECKING:
    from .store import Store

AMPLIFIED = 100.0  # rounding by more than this: one share more is used
ROWS = 1 << 20  # numbers added up at a time


def rebuilt(store: Store, share: int, error: BadStore) -> Any:
    """Return a share, with which there is this error, from others; BadStore if k are not whole.

    Reads k shares twice: to check them, and to add them up. One file is open at a time.
    """
    code = store.code
    used = _whole(store, share, error)
    weights = code.row(share) @ code.weights(used).matrix
    if store.sparse:
        terms = (w * store.share(s) for w, s in zip(weights, used, strict=True) if w)
        total = sum(terms, start=store.share(used[0]) * 0.0)
        total.sort_indices()
        return total.astype(store.dtype)
    total = np.zeros((store.manifest.rows, store.shape[1]))
    step = max(1, ROWS // store.shape[1])
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
        except BadStore as found:
            spoiled[other] = found
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
