"""A complete share store, opened: what it holds, and how workers have their shares from it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import scipy

from ..codes.mds import MDSCode
from ..errors import BadInput, BadStore
from ..files import Place
from ..model import Build
from .formats import ArrayFile, check, check_sum, load
from .manifest import NAME, PROGRESS, Manifest, read_manifest
from .rebuild import rebuilt, repair, verify
from .scales import Scales


class Store:
    """A complete store of a matrix (N, d) = `shape`: opening it reads the manifest only.

    `code` and `dtype` are those of its shares, which are CSR matrices where it is `sparse`.
    """

    def __init__(self, where: Place, manifest: Manifest) -> None:
        self.where, self.manifest, self.code = where, manifest, manifest.code
        self.shape, self.sparse = manifest.shape, manifest.sparse
        self.dtype: np.dtype[Any] = np.dtype(manifest.dtype)

    def __repr__(self) -> str:
        return f"<Store of {self.shape[0]} x {self.shape[1]} {self.dtype} at {self.where.url}>"

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

    def share_build(self, share: int, verify: bool = True) -> Build:
        """Return what a worker runs to have a share: see `load_share`."""
        self.code.row(share)  # says so if there is no such share
        files, columns = self.manifest.shares[share], self.shape[1]
        # Checked by default: a share of the right size and other numbers would decode to nonsense.
        return Build(load_share, (self.where.url, files, columns, verify))

    def share(self, share: int, verify: bool = False) -> Any:
        """Return a share here: an array (ceil(N / k), d), or a csr_array of that shape.

        Decoded rows of a store with `scales()` are to be multiplied with those.
        """
        build = self.share_build(share, verify)
        return build.fn(*build.args)

    def held_build(self, share: int) -> Build:
        """Return what a worker runs to have a share even if its file is gone: see `hold_share`."""
        build, digest = self.share_build(share), self.manifest.digest
        return Build(hold_share, (*build.args, share, digest))

    def spoiled(self, verify: bool = False) -> dict[int, BadStore]:
        """Shares with a missing or wrong file; `verify` reads every file for its checksum."""
        errors: dict[int, BadStore] = {}
        for share, files in enumerate(self.manifest.shares):
            try:
                for file in files:
                    (check_sum if verify else check)(self.where, file)
            except BadStore as error:
                errors[share] = error
        return errors

    def scales(self) -> Scales | None:
        """What the rows of the matrix were divided by before they were coded, None for nothing."""
        file = self.manifest.scales
        return None if file is None else Scales(np.array(load(self.where, file, True), np.int16))

    def repair(self) -> list[int]:
        """Write spoiled shares anew from k whole ones; return which. Reads every share.

        They are right to rounding; `write_store` from the same source makes them to the last bit.
        """
        return repair(self)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read every share; BadStore for a file not as written, or shares not of one matrix."""
        verify(self, progress)


def open_store(where: object) -> Store:
    """Open the store at a path or a URL. Raises BadStore, naming the file, when it is not whole."""
    place = Place.of(where)
    return Store(place, read_manifest(place))


def is_store(where: object) -> bool:
    """Whether a store, complete or not, is at this path or URL."""
    place = Place.of(where)
    with suppress(OSError):  # whoever opens it as a file is told why he may not
        return place.is_dir() and (place.child(NAME).exists() or place.child(PROGRESS).exists())
    return False


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
    return scipy.sparse.csr_array((data, indices, ends), shape=(len(ends) - 1, columns))


def hold_share(
    url: str, files: tuple[ArrayFile, ...], columns: int, verify: bool, share: int, digest: str
) -> Any:
    """Return a share of the store at `url`; where its file is gone or spoiled, from k others.

    Runs on the worker that keeps it. `digest` identifies the store.
    """
    try:
        return load_share(url, files, columns, verify)
    except BadStore as error:
        store = open_store(url)
        if store.manifest.digest != digest:
            raise
        value = rebuilt(store, share, error)
        # A worker has nobody to raise a warning to, but its log is read.
        logging.getLogger("kofn").warning("%s Share %d was rebuilt from others.", error, share)
        return value
