"""Tables for `kofn fit`: CSV, Parquet, a pair of .npy files, or LIBSVM text."""

from __future__ import annotations

import gzip
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

from ..errors import BadInput


def load(path: Path, target: str | None, labels: Path | None) -> tuple[Any, NDArray[Any]]:
    """Return X (dense or CSR) and y.

    The target is a column by name (default: the last one), a second .npy file, or LIBSVM's own.
    """
    if not path.exists():
        raise BadInput(f"the data must be a file that is there; {path} is not. Check the path.")
    kind = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    kind = kind.removesuffix(".gz").lower()
    if kind == ".npy":
        return _pair(path, labels)
    if kind in (".svm", ".libsvm", ".txt"):
        return _libsvm(path)
    if kind in (".csv", ".parquet"):
        names, columns = _csv(path) if kind == ".csv" else _parquet(path)
        return _split(path, names, columns, target)
    raise BadInput(
        f"the data must be .csv, .parquet, .npy or LIBSVM text (.svm, .libsvm, .txt), .gz or not; "
        f"got {path.name}."
    )


def _pair(path: Path, labels: Path | None) -> tuple[Any, NDArray[Any]]:
    if labels is None:
        raise BadInput(f"{path.name} holds X only. Name the file of y: --labels y.npy.")
    if not labels.exists():
        raise BadInput(f"the labels must be a file that is there; {labels} is not.")
    return np.load(path), np.load(labels)


def _libsvm(path: Path) -> tuple[Any, NDArray[Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            X, y = load_svmlight_file(file)
    except ValueError as error:
        raise BadInput(
            f"{path} is not LIBSVM text (label index:value ...): {error}. For CSV name it .csv."
        ) from None
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    return X, y


def _csv(path: Path) -> tuple[list[str], list[NDArray[Any]]]:
    import csv

    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="") as file:
        rows = list(csv.reader(file))
    if len(rows) < 2:
        raise BadInput(f"{path} must have a line of column names and at least one row.")
    names, body = rows[0], rows[1:]
    short = next((i for i, row in enumerate(body, 2) if len(row) != len(names)), None)
    if short is not None:
        raise BadInput(
            f"every line of {path} must have {len(names)} fields, as its first one; line {short} "
            f"has {len(body[short - 2])}."
        )
    return names, [np.asarray(column) for column in zip(*body, strict=True)]


def _parquet(path: Path) -> tuple[list[str], list[NDArray[Any]]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise BadInput(f"reading {path.name} needs pyarrow: pip install 'kofn[store]'.") from None
    table = parquet.read_table(path)
    columns = [table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names]
    return list(table.column_names), columns


def _split(
    path: Path, names: list[str], columns: list[NDArray[Any]], target: str | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    chosen = names[-1] if target is None else target
    if chosen not in names:
        raise BadInput(
            f"--target must be a column of {path.name}; got {chosen!r}. It has: {', '.join(names)}."
        )
    at = names.index(chosen)
    numbers = []
    for name, column in zip(names, columns, strict=True):
        if name == chosen:
            continue
        try:
            numbers.append(column.astype(np.float64))
        except ValueError:
            raise BadInput(
                f"every column but the target must hold numbers; {name!r} of {path.name} has "
                f"{next(v for v in column if not _number(v))!r}. Encode it (one-hot) or drop it."
            ) from None
    y = columns[at]
    with suppress(ValueError):  # class names stay as they are
        y = y.astype(np.float64)
    return np.stack(numbers, axis=1), y


def _number(text: Any) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
