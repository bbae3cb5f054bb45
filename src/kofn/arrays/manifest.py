"""The manifest of a share store: a small JSON file, written last, that makes the store valid."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ..codes.mds import MDSCode
from ..errors import BadInput, BadStore
from ..files import Place
from .formats import ArrayFile

NAME, PROGRESS = "manifest.json", "progress.json"
VERSION = 2
PARTS = ("data", "indices", "indptr")  # the arrays of a sparse share
SCALES = "scales.npy"
OURS = re.compile(r"(share-\d{4,}(\.(data|indices|indptr))?\.(npy|zarr)|scales\.npy)")


def share_files(share: int, sparse: bool, fmt: str) -> tuple[str, ...]:
    """The names of a share's files: one, or one for each array of a CSR matrix."""
    name = f"share-{share:04d}"
    return tuple(f"{name}.{part}.npy" for part in PARTS) if sparse else (f"{name}.{fmt}",)


@dataclass(frozen=True)
class Manifest:
    """What a store holds: n shares of a matrix (N, d), any k of them enough.

    `shares[s]` are the files of share s: one array (ceil(N / k), d), or the three arrays of a CSR
    matrix of that shape. `source` says where the matrix came from; with "axis": 1 it is the
    transpose of what was there. `scales` is the file of the exponents (N,) of the powers of two
    that its rows were divided by, None where they were not.
    """

    code: MDSCode
    shape: tuple[int, int]
    dtype: str
    sparse: bool
    source: Mapping[str, Any]
    shares: tuple[tuple[ArrayFile, ...], ...]
    scales: ArrayFile | None = None

    @property
    def rows(self) -> int:
        """Rows of a share."""
        return self.code.block_rows(self.shape[0])

    @property
    def axis(self) -> int:
        """0 if the source was cut by rows, 1 if by columns: rows here are columns there."""
        return int(self.source.get("axis") == 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all shares."""
        return sum(file.nbytes for files in self.shares for file in files)

    @property
    def fmt(self) -> str:
        """The kind of its files: npy or zarr."""
        return self.shares[0][0].name.rsplit(".", 1)[-1]

    @property
    def facts(self) -> dict[str, Any]:
        """The matrix and the code as JSON; `check` identifies the generator."""
        code, check = self.code, [float(f"{x:.9g}") for x in _probe(self.code)]
        facts = {"n": code.n, "k": code.k, "construction": code.construction, "seed": code.seed}
        return {
            "kofn_store": VERSION,
            "code": {**facts, "check": check},
            "shape": list(self.shape),
            "dtype": self.dtype,
            "sparse": self.sparse,
            "source": dict(self.source),
        }

    @property
    def content(self) -> dict[str, Any]:
        """The content of its file; the last entry is a checksum of all others."""
        shares = [[asdict(file) for file in files] for files in self.shares]
        content = {**self.facts, "shares": shares}
        if self.scales is not None:
            content["scales"] = asdict(self.scales)
        return {**content, "sha256": checksum(content)}

    @property
    def digest(self) -> str:
        """A checksum of all that it says."""
        return str(self.content["sha256"])

    def with_shares(self, files: Mapping[int, tuple[ArrayFile, ...]]) -> Manifest:
        """A copy with other files for some shares."""
        shares = {**dict(enumerate(self.shares)), **files}
        return replace(self, shares=tuple(shares[s] for s in sorted(shares)))

    def write(self, where: Place) -> None:
        """Make the store valid."""
        where.child(NAME).write(json.dumps(self.content, indent=1).encode())


def checksum(content: Mapping[str, Any]) -> str:
    """The checksum of all in a manifest, or a note of progress, but the checksum itself."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _probe(code: MDSCode) -> list[float]:
    values: list[float] = (code.generator @ np.cos(np.arange(code.k))).tolist()
    return values


def read_manifest(where: Place) -> Manifest:
    """Return the manifest of the store at `where`; BadStore says what is wrong with it."""
    place = where.child(NAME)
    try:
        with place.open() as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise BadStore(where.url, _why_none(where)) from None
    except OSError as error:
        raise BadStore(place.url, f"it cannot be read: {error.strerror or error}.") from error
    try:
        content = json.loads(text)
        version = content["kofn_store"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadStore(
            place.url, "it is not the manifest of a kofn store. Encode again, elsewhere."
        ) from None
    if version != VERSION:
        raise BadStore(
            place.url,
            f"it is of format {version!r}; this kofn reads format {VERSION}. Update kofn, or "
            f"encode again.",
        )
    try:
        manifest = _parse(content)
        _agree(place, manifest, content["code"]["check"])
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, BadInput) as error:
        raise BadStore(
            place.url, f"it was altered or cut ({type(error).__name__}: {error}). Encode again."
        ) from error
    if content.get("sha256") != checksum(content):  # last: the other errors say more
        raise BadStore(place.url, "its own checksum does not match: it was altered. Encode again.")
    return manifest


def _why_none(where: Place) -> str:
    if where.child(PROGRESS).exists():
        return (
            "this store is not complete: its encoding was stopped. Run the same encode again, it "
            "goes on from there."
        )
    if where.is_dir():
        if any(name.endswith(".part") for name in where.names()):
            return (
                f"kofn encode was stopped before it was done: there are parts, and no {NAME}. Run "
                f"the same command again; it goes on or begins anew."
            )
        return f"this directory is no kofn store: it has no {NAME}. Make one with kofn encode."
    return "there is no store. Make one with kofn encode."


def _parse(content: Mapping[str, Any]) -> Manifest:
    code = content["code"]
    N, d = (int(x) for x in content["shape"])
    return Manifest(
        code=MDSCode(code["n"], code["k"], code["construction"], code["seed"]),
        shape=(N, d),
        dtype=np.dtype(content["dtype"]).name,
        sparse=bool(content["sparse"]),
        source=dict(content["source"]),
        shares=tuple(tuple(_file(file) for file in files) for files in content["shares"]),
        scales=_file(content["scales"]) if "scales" in content else None,
    )


def _file(file: Mapping[str, Any]) -> ArrayFile:
    shape, dtype = tuple(int(x) for x in file["shape"]), np.dtype(file["dtype"]).str
    return ArrayFile(str(file["name"]), shape, dtype, str(file["sha256"]))


def _agree(place: Place, manifest: Manifest, check: Any) -> None:
    """Raise BadStore unless the manifest agrees with itself and with this kofn's generator."""

    def bad(problem: str) -> BadStore:
        return BadStore(place.url, f"{problem}: it was altered. Encode again.")

    code, (N, d) = manifest.code, manifest.shape
    if N < 1 or d < 1 or manifest.dtype not in ("float64", "float32"):
        raise bad(f"it names a matrix {N} x {d} of {manifest.dtype}")
    if len(manifest.shares) != code.n:
        raise bad(f"it lists {len(manifest.shares)} shares, and its code has n={code.n}")
    for s, files in enumerate(manifest.shares):
        names = tuple(file.name for file in files)
        if names not in (share_files(s, manifest.sparse, fmt) for fmt in ("npy", "zarr")):
            raise bad(f"share {s} has files named {list(names)}")
        if manifest.sparse:
            (nnz,), (also,), (ends,) = (file.shape for file in files)
            fits = nnz == also and ends == manifest.rows + 1
        else:
            fits = files[0].shape == (manifest.rows, d)
        if not fits:
            raise bad(f"share {s} has shapes {[file.shape for file in files]}")
        kinds = [np.dtype(file.dtype) for file in files]
        if kinds[0].name != manifest.dtype or any(kind.kind != "i" for kind in kinds[1:]):
            raise bad(f"share {s} has dtypes {[file.dtype for file in files]}")
    scales = manifest.scales
    if scales and (scales.name, scales.shape, scales.dtype) != (SCALES, (N,), "<i2"):
        raise bad(f"its scales are {scales.dtype} in shape {scales.shape}, named {scales.name}")
    if not isinstance(check, list) or not all(isinstance(x, int | float) for x in check):
        raise bad("its check of the generator is no list of numbers")
    if len(check) != code.n or not np.allclose(check, _probe(code), rtol=1e-6, atol=1e-6):
        raise BadStore(
            place.url,
            f"its shares were made with another generator than this kofn's {code.name} "
            f"({code.construction}). Read it with the kofn that wrote it, or encode again.",
        )
