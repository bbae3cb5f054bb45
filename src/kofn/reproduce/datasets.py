"""The three data sets of the gradient coding experiments, prepared to the published sizes.

Every distinct value of every field becomes a column of zeros and ones; categories are learnt on
all rows; a column of ones comes last. 80 % of the rows, by scikit-learn's `train_test_split` with
random state 0, are for training.
"""

from __future__ import annotations

import csv
import gzip
import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.model_selection import train_test_split

from ..errors import BadInput

Floats = NDArray[np.float64]

COVTYPE = "https://archive.ics.uci.edu/static/public/31/covertype.zip"
_TIMEOUT = 60.0  # seconds without a byte from the origin


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows to learn from and rows to test on, as CSR matrices of ones; y is ±1 or a number."""

    name: str
    X: csr_array
    y: Floats
    X_test: csr_array
    y_test: Floats
    regression: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the training matrix."""
        return int(self.X.shape[0]), int(self.X.shape[1])


def load(name: str, data: Path | None = None) -> Dataset:
    """Return "amazon", "covtype" or "kc_house" from the directory `data`.

    Without one, or where it lacks the file, covtype is fetched from its origin (11 MB); the other
    two need a login there, and BadInput says where to get them. Nothing is written to disk.
    """
    if name not in LOADERS:
        raise BadInput(f"the data sets are {', '.join(LOADERS)}; got {name!r}.")
    return LOADERS[name](data)


def amazon(data: Path | None) -> Dataset:
    """Amazon employee access: 9 ids and 34 of their pairs; 26,215 x 241,915."""
    origin = "kaggle.com/c/amazon-employee-access-challenge (train.csv, needs a login)"
    names, rows = _csv(data, "amazon_access/train.csv", origin)
    if len(names) != 10 or names[0] != "ACTION":
        raise BadInput(
            f"amazon_access/train.csv has the column ACTION and 9 columns of ids; got {names}."
        )
    table = rows.astype(np.int64)
    fields = [_codes(column) for column in table[:, 1:].T]
    known = {name: i for i, name in enumerate(names[1:])}
    # Pairs of which one tells the other almost entirely are left out, as published.
    without = {
        tuple(sorted(known[name] for name in pair))
        for pair in (("ROLE_ROLLUP_1", "ROLE_ROLLUP_2"), ("ROLE_TITLE", "ROLE_FAMILY"))
    }
    for i, j in combinations(range(9), 2):
        if (i, j) not in without:
            (a, _), (b, many) = fields[i], fields[j]
            fields.append(_codes(a.astype(np.int64) * many + b))
    return _split("amazon", fields, np.where(table[:, 0] == 1, 1.0, -1.0))


def covtype(data: Path | None) -> Dataset:
    """Forest cover types 1 and 2, 54 fields; 396,112 x 15,509."""
    text = _read(data, "covtype/covtype.data", None)
    width = text[: text.find(b"\n")].count(b",") + 1
    numbers: NDArray[np.int32] = np.fromstring(  # the quickest reader of numbers there is
        text.rstrip().replace(b"\n", b","), dtype=np.int32, sep=","
    )
    if width != 55 or numbers.size % 55:
        raise BadInput(f"covtype.data has 55 numbers a line; {numbers.size} in lines of {width}.")
    table = numbers.reshape(-1, 55)
    table = table[(table[:, 54] == 1) | (table[:, 54] == 2)]
    fields = [_codes(column) for column in np.ascontiguousarray(table[:, :54].T)]
    return _split("covtype", fields, np.where(table[:, 54] == 2, 1.0, -1.0))


def kc_house(data: Path | None) -> Dataset:
    """House sales in King County, 18 fields; price in million USD; 17,290 x 27,654."""
    origin = "kaggle.com/datasets/harlfoxem/housesalesprediction (needs a login)"
    names, rows = _csv(data, "kc_house/kc_house_data.csv", origin)
    if "price" not in names or "bedrooms" not in names:
        raise BadInput(f"kc_house_data.csv has columns price and bedrooms; got {names}.")
    fields = [_codes(column) for column in rows[:, names.index("bedrooms") :].astype(np.float64).T]
    price = rows[:, names.index("price")].astype(np.float64)
    return _split("kc_house", fields, price / 1e6, regression=True)


LOADERS: dict[str, Callable[[Path | None], Dataset]] = {
    "amazon": amazon,
    "covtype": covtype,
    "kc_house": kc_house,
}


def _read(data: Path | None, name: str, login: str | None) -> bytes:
    """The bytes of a file of `data`, packed with gzip or not, or of the origin."""
    if data is not None:
        for path in (data / name, data / f"{name}.gz"):
            if path.is_file():
                content = path.read_bytes()
                return gzip.decompress(content) if path.suffix == ".gz" else content
    if login is not None:
        where = "--data" if data is None else str(data)
        raise BadInput(f"{where} must hold {name} (or {name}.gz); get it from {login}.")
    try:
        with urlopen(COVTYPE, timeout=_TIMEOUT) as reply:
            packed = zipfile.ZipFile(io.BytesIO(reply.read()))
        return gzip.decompress(packed.read("covtype.data.gz"))
    except (URLError, OSError, KeyError, zipfile.BadZipFile) as error:
        raise BadInput(
            f"{name} (or {name}.gz) is neither in --data nor to be had from {COVTYPE}: {error}."
        ) from None


def _csv(data: Path | None, name: str, login: str) -> tuple[list[str], NDArray[np.str_]]:
    lines = list(csv.reader(io.StringIO(_read(data, name, login).decode("utf-8"))))
    names = lines[0] if lines else []
    for number, line in enumerate(lines, 1):
        if len(line) != len(names):
            raise BadInput(f"line {number} of {name} has {len(line)} fields, not {len(names)}.")
    if len(lines) < 3:
        raise BadInput(f"{name} has a line of names and at least two of data; got {len(lines)}.")
    return names, np.array(lines[1:])


def _codes(column: NDArray[Any]) -> tuple[NDArray[np.int32], int]:
    """Number the distinct values of a column; return the numbers and how many there are."""
    if column.dtype.kind == "i" and (span := int(np.ptp(column)) + 1) <= 4 * len(column):
        low = column - column.min()
        here = np.zeros(span, dtype=bool)
        here[low] = True
        number = np.cumsum(here, dtype=np.int32) - 1
        return number[low], int(here.sum())
    known, codes = np.unique(column, return_inverse=True)
    return codes.astype(np.int32), len(known)


def _split(
    name: str,
    fields: Sequence[tuple[NDArray[np.int32], int]],
    y: Floats,
    regression: bool = False,
) -> Dataset:
    train, test = train_test_split(np.arange(len(y)), test_size=0.2, random_state=0)
    offsets = np.concatenate([[0], np.cumsum([many for _, many in fields])])
    columns = int(offsets[-1]) + 1
    at = np.empty((len(y), len(fields) + 1), dtype=np.int32)
    for i, (codes, _) in enumerate(fields):
        at[:, i] = codes + np.int32(offsets[i])
    at[:, -1] = columns - 1
    return Dataset(
        name, ones(at[train], columns), y[train], ones(at[test], columns), y[test], regression
    )


def ones(at: NDArray[np.int32], columns: int) -> csr_array:
    """A matrix of zeros, and ones in the columns `at` (rows, ones a row)."""
    rows, each = at.shape
    starts = np.arange(0, rows * each + 1, each, dtype=np.int32)
    return csr_array((np.ones(at.size), at.ravel(), starts), shape=(rows, columns))
