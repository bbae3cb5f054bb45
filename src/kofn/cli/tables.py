"""Tables for `kofn fit`: CSV, Parquet, a pair of .npy files, or LIBSVM text."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    return _npy(path), _npy(labels)


def _npy(path: Path) -> NDArray[Any]:
    try:
        with _reading(path, "rb") as file:
            found: Any = np.load(file)
    except (ValueError, EOFError) as error:
        raise BadInput(
            f"{path.name} must be one array of numbers or text, as np.save writes it; it is not: "
            f"{error}. Save it with another dtype."
        ) from None
    if not isinstance(found, np.ndarray):
        raise BadInput(f"{path.name} must be one array, as np.save writes it; it is an archive.")
    return found


@contextmanager
def _reading(path: Path, mode: str, **options: Any) -> Iterator[Any]:
    """The file, unpacked if it is named .gz; what goes wrong is told in one line."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, mode, **options) as file:
            yield file
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path.name} must be text in UTF-8; byte {error.start} is not. Save it as UTF-8."
        ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        if path.suffix != ".gz":
            raise
        raise BadInput(
            f"{path.name} is named as gzip has it, and is not whole: {error}. Compress it again, "
            f"or take the .gz off its name."
        ) from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}.") from None


def _libsvm(path: Path) -> tuple[Any, NDArray[Any]]:
    try:
        with _reading(path, "rb") as file:
            X, y = load_svmlight_file(file)
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(
            f"{path} is not LIBSVM text (label index:value ...): {error}. For CSV name it .csv."
        ) from None
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    return X, y


def _csv(path: Path) -> tuple[list[str], list[NDArray[Any]]]:
    import csv

    with _reading(path, "rt", newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        try:
            rows = [(reader.line_num, row) for row in reader if "".join(row).strip() or row[1:]]
        except csv.Error as error:
            raise BadInput(f"{path.name} is not CSV: line {reader.line_num}, {error}.") from None
    if len(rows) < 2:
        raise BadInput(f"{path} must have a line of column names and at least one row.")
    (_, names), *lines = rows
    if len(names) == 1 and len(parts := re.split("[;\t|]", names[0])) > 1:
        raise BadInput(
            f"the fields of {path.name} must be separated by commas; its first line has "
            f"{names[0][len(parts[0])]!r} instead. Save it with commas."
        )
    if all(_number(name) for name in names):
        raise BadInput(
            f"the first line of {path.name} must name the columns; it holds numbers only: "
            f"{', '.join(names[:4])}{' ...' if len(names) > 4 else ''}. Put a line of names first."
        )
    short = next(((at, row) for at, row in lines if len(row) != len(names)), None)
    if short is not None:
        raise BadInput(
            f"every line of {path} must have {len(names)} fields, as its first one; line "
            f"{short[0]} has {len(short[1])}."
        )
    body = [row for _, row in lines]
    return names, [np.asarray(column) for column in zip(*body, strict=True)]


def _parquet(path: Path) -> tuple[list[str], list[NDArray[Any]]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise BadInput(f"reading {path.name} needs pyarrow: pip install 'kofn[store]'.") from None
    try:
        table = parquet.read_table(path)
    except (ValueError, OSError) as error:
        raise BadInput(f"{path.name} is not a Parquet file: {error}. Check the path.") from None
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
    if len(names) < 2:
        raise BadInput(
            f"{path.name} must have a column besides the target; it has {chosen!r} alone."
        )
    if names.count(chosen) > 1:
        raise BadInput(
            f"the target must be one column; {names.count(chosen)} columns of {path.name} are "
            f"named {chosen!r}. Rename the others."
        )
    at = names.index(chosen)
    numbers = []
    for name, column in zip(names, columns, strict=True):
        if name == chosen:
            continue
        try:
            numbers.append(column.astype(np.float64))
        except (ValueError, TypeError):
            bad = next(i for i, v in enumerate(column) if not _number(v))
            value = plain(column[bad])
            if value is None or not str(value).strip():
                raise BadInput(
                    f"every value must be there; {name!r} of {path.name} has a missing value in "
                    f"row {bad + 1}. Fill or drop it."
                ) from None
            raise BadInput(
                f"every column but the target must hold numbers; {name!r} of {path.name} has "
                f"{value!r}. Encode it (one-hot) or drop it."
            ) from None
    y = columns[at]
    if y.dtype.kind in "UO":
        gone = [i for i, v in enumerate(y) if v is None or not str(v).strip()]
        if gone:
            raise BadInput(
                f"every row must have a label; the target {chosen!r} of {path.name} has "
                f"{len(gone)} missing values, the first in row {gone[0] + 1}. Drop these rows."
            )
    with suppress(ValueError):  # class names stay as they are
        y = y.astype(np.float64)
    return np.stack(numbers, axis=1), y


def _number(text: Any) -> bool:
    try:
        float(text)
    except (ValueError, TypeError):
        return False
    return True


def plain(value: Any) -> Any:
    """The same as Python writes it, not as NumPy does."""
    return value.item() if isinstance(value, np.generic) else value
