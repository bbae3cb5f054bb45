"""CSV files, gzipped or not, as rows; whatever is wrong with one is a BadInput."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Sequence
from os import PathLike, strerror
from pathlib import Path
from typing import IO, NamedTuple, cast

from ..errors import BadInput
from ..files import save

_GZIP = b"\x1f\x8b"


class Line(NamedTuple):
    """A row of a table by column, and the line of the file that it stands in."""

    number: int
    row: dict[str, str]


def cells(row: dict[str, str]) -> str:
    """A row for an error: each column with its value, where they can be told apart."""
    return ", ".join(f"{name} = {value!r}" for name, value in row.items())


def read_rows(
    path: str | PathLike[str], what: str, forms: Sequence[Sequence[str]] = ()
) -> list[Line]:
    """The rows of a CSV file by column; `what` the caller calls it, with its article.

    `forms`: sets of columns, of which it has one, among others and in any order. Spaces beside a
    comma and a byte order mark, as of spreadsheets, are left out. Raises BadInput, which names the
    line, where a row has more or fewer fields than the first line has names, where two columns have
    one name, where columns are missing, and where there are no rows.
    """
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == _GZIP
        opened = gzip.open if packed else open
        with cast("IO[str]", opened(path, "rt", encoding="utf-8-sig", newline="")) as file:
            reader = csv.reader(file, skipinitialspace=True)
            rows = ([text.strip() for text in row] for row in reader if row)
            names = next(rows, [])
            lines = [(reader.line_num, row) for row in rows]
        if any(not name.replace("\t", "").isprintable() for name in names):
            raise csv.Error
    except (UnicodeDecodeError, csv.Error):
        problem = "this is no text"
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        problem = f"the gzip file is cut or damaged ({error})"
    except OSError as error:
        problem = error.strerror or (strerror(error.errno) if error.errno else str(error))
    else:
        if not lines:
            raise BadInput(
                f"{what} has a line of names and at least one of values; {path} has "
                f"{'only its names' if names else 'not even names'}: it is empty."
            )
        if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
            raise BadInput(
                f"{what} has commas between its columns; the first line of {path} has "
                f"{names[0]!r}. Save it with commas, and points in numbers."
            )
        if forms and not any(set(form) <= set(names) for form in forms):
            nearest = max(forms, key=lambda form: len(set(form) & set(names)))
            lacking = [name for name in nearest if name not in names]
            raise BadInput(
                f"the first line of {what} names its columns: {', '.join(nearest)}. That of {path} "
                f"has {', '.join(names)[:200]}; {', '.join(lacking)} "
                f"{'is' if len(lacking) == 1 else 'are'} missing. Add what lacks, or rename it."
            )
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(f"columns of {what} have a name each; {path} has {twice[0]!r} twice.")
        for number, row in lines:
            if len(row) != len(names):
                raise BadInput(
                    f"every line of {what} has a value for each of the {len(names)} columns "
                    f"{', '.join(names)}; line {number} of {path} has "
                    f"{'more' if len(row) > len(names) else 'fewer'}."
                )
        return [Line(number, dict(zip(names, row, strict=True))) for number, row in lines]
    raise BadInput(f"{what} is a CSV file, gzipped or not; {path}: {problem}.")


def write_rows(
    path: str | PathLike[str], header: Iterable[str], rows: Iterable[Iterable[object]], what: str
) -> None:
    """Write a CSV file, whole or not at all; CannotWrite names `what` it is."""
    text = io.StringIO(newline="")
    out = csv.writer(text)
    out.writerow(header)
    out.writerows(rows)
    save(Path(path), text.getvalue().encode(), what)
