"""Tables for `kofn fit`: CSV, Parquet, a pair of .npy files, or LIBSVM text."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.parquet import holds_numbers, holds_text
from ..arrays.text import TextSource
from ..errors import BadInput
from ..files import Place, cause

LONGEST = 1000  # letters of a name: a model keeps as many for each of its columns
CANONICAL = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")  # 7, not 07: that is a name


class Read(NamedTuple):
    """X (dense or CSR); y, if there is one; the names of X's columns, if each has its own."""

    X: Any
    y: Any
    names: tuple[str, ...] | None = None


def read(
    path: Path,
    target: str | None,
    labels: Path | None,
    *,
    classes: bool = True,
    like: Sequence[str] | None = None,
) -> Read:
    """Return what a file holds.

    The target is a column by name (default: the last one), a .npy file beside (`labels`), or
    LIBSVM's own. classes: whether labels are names of classes; text such as 01 then stays text.
    like: the columns that are wanted, by name and in this order, where the file has names.
    """
    for file in filter(None, (path, labels)):
        if not file.exists():
            raise BadInput(f"the data must be a file that is there; {file} is not. Check the path.")
        if file.is_dir():
            raise BadInput(f"the data must be a file; {file} is a directory. Name the file in it.")
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind in (".csv", ".parquet"):
        if target is not None and labels is not None:
            raise BadInput("the labels are a column (--target) or a file (--labels); got both.")
        table = _csv(path) if kind == ".csv" else _parquet(path)
        if labels is not None:
            return _picked(path, table, like)._replace(y=_npy(labels))
        return _parted(path, table, target, classes, like)
    if target is not None:
        raise BadInput(f"--target names a column of CSV or Parquet; {path.name} has no names.")
    if kind == ".npy":
        if labels is None:
            raise BadInput(f"{path.name} holds X only. Name the file of y: --labels y.npy.")
        return Read(_npy(path), _npy(labels))
    if kind in (".svm", ".libsvm", ".txt"):
        if labels is not None:
            raise BadInput(
                f"{path.name} is LIBSVM text and has its own labels. Leave --labels out, or save X "
                f"as .npy."
            )
        return Read(*_libsvm(path))
    raise BadInput(
        f"the data must be .csv, .parquet, .npy or LIBSVM text (.svm, .libsvm, .txt), .gz or not; "
        f"got {path.name}."
    )


def table(path: Path, target: str | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return all columns of a CSV file, or all but the target and that one: (X, y)."""
    if not path.is_file():
        raise BadInput(f"the data must be a file that is there; {path} is not. Check the path.")
    columns = _csv(path)
    X, y, _ = _picked(path, columns) if target is None else _parted(path, columns, target)
    return X, y


def rows(
    path: Path,
    target: str | None,
    labels: Path | None,
    columns: int,
    *,
    classes: bool,
    like: Sequence[str] | None = None,
) -> tuple[Any, NDArray[Any] | None]:
    """Return X with so many columns, and y where the file has one column more, or its own labels.

    That column is the target, by name; or the one that is not in `like`; or the last one.
    """
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind == ".npy" and labels is None and target is None and path.is_file():
        X, y, _ = Read(_npy(path), None)
    elif (kind in (".csv", ".parquet") and target is None and labels is None) and path.is_file():
        every = _csv(path) if kind == ".csv" else _parquet(path)
        alone = len(every) == columns
        X, y, _ = _picked(path, every, like) if alone else _parted(path, every, None, classes, like)
    else:
        X, y, _ = read(path, target, labels, classes=classes, like=like)
        if hasattr(X, "indptr") and X.shape[1] < columns:
            X.resize((X.shape[0], columns))  # LIBSVM text: the last columns are all zeros
    if X.ndim != 2 or X.shape[1] != columns:
        raise BadInput(
            f"the model was fitted to {columns} columns; {path.name} has {X.shape[-1]} beside the "
            f"target. Check that they belong together, and --target."
        )
    return X, y


def _npy(path: Path) -> NDArray[Any]:
    try:
        with _reading(path, "rb") as file:
            array: Any = np.load(file)
    except (BadInput, MemoryError):
        raise
    except Exception as error:  # whatever NumPy stumbles over
        raise BadInput(
            f"{path.name} must be one array of numbers or text, as np.save writes it; it is not: "
            f"{cause(error)}. Save it with another dtype."
        ) from None
    if not isinstance(array, np.ndarray):
        raise BadInput(f"{path.name} must be one array, as np.save writes it; it is an archive.")
    return array


@contextmanager
def _reading(path: Path, mode: str, **options: Any) -> Iterator[Any]:
    """The file, unpacked if it is named .gz; an error is one line."""
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
    with _reading(path, "rb"):  # is it there, and gzip if it is named so?
        source = TextSource(Place.of(path))
    X = source.rows(0, source.shape[0])
    X.indptr = X.indptr.astype(np.int32) if X.nnz < 1 << 31 else X.indptr
    return X, source.labels()


class Column(NamedTuple):
    """A named column. `text`: its cells were not typed, so what they mean is to be found out."""

    name: str
    values: NDArray[Any]
    text: bool


def _csv(path: Path) -> list[Column]:
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
    if _all_numbers(np.asarray(names)):
        raise BadInput(
            f"the first line of {path.name} must name the columns; it holds numbers only: "
            f"{', '.join(names[:4])}{' ...' if len(names) > 4 else ''}. Put a line of names first."
        )
    for at, row in rows:
        if len(row) != len(names):
            raise BadInput(
                f"every line of {path} must have {len(names)} fields, as its first one; line {at} "
                f"has {len(row)}."
            )
        if "\0" in "".join(row):  # NumPy would cut it off
            raise BadInput(f"{path.name} must be text; line {at} has a zero byte. Save it anew.")
    columns = zip(names, *(row for _, row in lines), strict=True)
    return [Column(name, np.asarray(cells), text=True) for name, *cells in columns]


def _parquet(path: Path) -> list[Column]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise BadInput(f"reading {path.name} needs pyarrow: pip install 'kofn[store]'.") from None
    try:
        table = parquet.read_table(path, page_checksum_verification=True)
        fields = list(zip(table.schema, table, strict=True))
    except Exception as error:  # whatever Arrow stumbles over
        problem = f"{path.name} is not a Parquet file: {cause(error)}. Check the path."
        raise BadInput(problem) from None
    if len(table) == 0 or table.num_columns == 0:
        raise BadInput(
            f"{path.name} must have a column and a row; it has {table.num_columns} columns and "
            f"{len(table)} rows."
        )
    return [_typed(path, field, column) for field, column in fields]


def _typed(path: Path, field: Any, column: Any) -> Column:
    if holds_text(field.type):
        return Column(field.name, np.asarray(column.to_pylist(), object), text=False)
    if not holds_numbers(field.type):
        raise BadInput(
            f"columns must hold numbers, and the target numbers or text; {field.name!r} of "
            f"{path.name} is of type {field.type}. Turn it into numbers (a date into days since "
            f"another, say), or drop it."
        )
    if column.null_count:
        row = next(i for i, valid in enumerate(column.is_valid().to_pylist()) if not valid)
        raise BadInput(
            f"every value must be there; {field.name!r} of {path.name} has {column.null_count} "
            f"missing, the first in row {row + 1}. Fill or drop these rows."
        )
    numbers = column.to_numpy(zero_copy_only=False)
    # Whole numbers stay what they are: as labels, those above 2^53 would become one another.
    whole = numbers.dtype.kind in "iub"
    return Column(field.name, numbers if whole else numbers.astype(np.float64), text=False)


def _parted(
    path: Path,
    table: list[Column],
    target: str | None,
    classes: bool = True,
    like: Sequence[str] | None = None,
) -> Read:
    """The features and the target of a table."""
    names = [column.name for column in table]
    chosen = names[-1] if target is None else target
    if like is not None and target is None:
        others = [name for name in names if name not in like]
        if len(others) != 1:
            _picked(path, table, like)  # says what is wrong, unless there is nothing but features
            raise BadInput(
                f"the target must be a column beside those of the model; {path.name} has none. Add "
                f"it."
            )
        chosen = others[0]
    if chosen not in names:
        raise BadInput(
            f"--target must be a column of {path.name}; got {chosen!r}. It has: {', '.join(names)}."
        )
    if len(names) < 2:
        problem = f"{path.name} must have a column besides the target; it has {chosen!r} alone."
        raise BadInput(problem)
    if names.count(chosen) > 1:
        raise BadInput(
            f"the target must be one column; {names.count(chosen)} columns of {path.name} are "
            f"named {chosen!r}. Rename the others."
        )
    at = names.index(chosen)
    features = _picked(path, table[:at] + table[at + 1 :], like)
    return features._replace(y=_labels(path, table[at], classes))


def _picked(path: Path, table: list[Column], like: Sequence[str] | None = None) -> Read:
    """The features of a table: all of its columns, in the order of `like`."""
    names = [column.name for column in table]
    if like is not None and sorted(names) != sorted(like):
        lacking = ", ".join(name for name in like if name not in names)
        unknown = ", ".join(name for name in names if name not in like)
        raise BadInput(
            f"{path.name} must have the columns that the model is fitted to, each once; it lacks "
            f"{lacking or 'none'}, and has besides {unknown or 'none'}. Rename or drop them, or "
            f"name the --target."
        )
    if like is not None:
        table = [table[names.index(name)] for name in like]
        names = list(like)
    once = len(set(names)) == len(names) and max(map(len, names)) <= LONGEST
    features = np.stack([_numbers(path, column) for column in table], axis=1)
    return Read(features, None, tuple(names) if once else None)


def _numbers(path: Path, column: Column) -> NDArray[np.float64]:
    """The cells of a column as numbers; text counts as such only where its type was not known."""
    if column.values.dtype.kind not in "UO" or (column.text and _all_numbers(column.values)):
        return column.values.astype(np.float64)
    bad = next((i for i, v in enumerate(column.values) if not _number(v)), 0)
    value = plain(column.values[bad])
    if value is None or not str(value).strip():
        raise BadInput(
            f"every value must be there; {column.name!r} of {path.name} has a missing value in "
            f"row {bad + 1}. Fill or drop it."
        )
    raise BadInput(
        f"every column but the target must hold numbers; {column.name!r} of {path.name} has "
        f"{value!r}. Encode it (one-hot) or drop it."
    )


def _labels(path: Path, column: Column, classes: bool) -> NDArray[Any]:
    """Numbers, or text: of an untyped column, text that is not just another way to write them."""
    y = column.values
    if y.dtype.kind not in "UO":
        return y if classes else y.astype(np.float64)
    gone = [i for i, v in enumerate(y) if v is None or not str(v).strip()]
    if gone:
        raise BadInput(
            f"every row must have a label; the target {column.name!r} of {path.name} has "
            f"{len(gone)} missing values, the first in row {gone[0] + 1}. Drop these rows."
        )
    y = np.asarray([v.strip() for v in y])  # space around a label is no part of it
    if not column.text or not _all_numbers(y):
        return y
    numbers = y.astype(np.float64)
    if not classes or not np.isfinite(numbers).all():  # the latter is told later
        return numbers
    names = np.unique(y)
    same = len(np.unique(names.astype(np.float64))) < len(names)
    if same or not all(CANONICAL.fullmatch(v) for v in names):
        return y
    whole = all(v.lstrip("-").isdigit() for v in names) and np.abs(numbers).max() < 2.0**53
    return numbers.astype(np.int64) if whole else numbers  # 0 and 1 are predicted as such


def _all_numbers(cells: NDArray[Any]) -> bool:
    """Whether all are numbers; Python takes 1_000 and the digits of all scripts, tables do not."""
    together = "".join(cells)
    if "_" in together or not together.isascii():
        return False
    try:
        cells.astype(np.float64)
    except ValueError:
        return False
    return True


def _number(cell: Any) -> bool:
    return isinstance(cell, str) and _all_numbers(np.asarray([cell]))


def plain(value: Any) -> Any:
    """The same as Python writes it, not as NumPy does."""
    return value.item() if isinstance(value, np.generic) else value
