"""CSV files, gzipped or not, as rows; whatever is wrong with one is a BadInput."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable
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


def read_rows(path: str | PathLike[str], what: str) -> list[Line]:
    """The rows of a CSV file by column; `what` the caller calls it, with its article.

    Spaces after a comma and a byte order mark, as of spreadsheets, are left out. Raises BadInput,
    which names the line, where a row has more or fewer fields than the first line has names, where
    two columns have one name, and where there are no rows.
    """
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == _GZIP
        opened = gzip.open if packed else open
        with cast("IO[str]", opened(path, "rt", encoding="utf-8-sig", newline="")) as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            lines = [Line(reader.line_num, row) for row in reader]
            names = reader.fieldnames
        if any(not name.replace("\t", "").isprintable() for name in names or ()):
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
        if len(names or ()) == 1 and any(mark in (names or ())[0] for mark in ";\t"):
            raise BadInput(f"{what} has commas between its columns; {path} has {names}.")
        if twice := sorted({name for name in names or () if (names or ()).count(name) > 1}):
            raise BadInput(f"columns of {what} have a name each; {path} has {twice[0]!r} twice.")
        for number, row in lines:
            if None in row or None in row.values():
                raise BadInput(
                    f"every line of {what} has a value for each of the {len(names or ())} columns "
                    f"{', '.join(names or ())}; line {number} of {path} has "
                    f"{'more' if None in row else 'fewer'}."
                )
        return lines
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
