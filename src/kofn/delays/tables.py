"""CSV files, gzipped or not, as rows; whatever is wrong with one is a BadInput."""

from __future__ import annotations

import csv
import gzip
import zlib
from os import PathLike, strerror
from typing import IO, cast

from ..errors import BadInput

_GZIP = b"\x1f\x8b"


def read_rows(path: str | PathLike[str], what: str) -> list[dict[str, str]]:
    """The rows of a CSV file by column; `what` the caller calls it, with its article."""
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == _GZIP
        opened = gzip.open if packed else open
        with cast("IO[str]", opened(path, "rt", encoding="utf-8", newline="")) as file:
            return list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error):
        problem = "this is no text"
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        problem = f"the gzip file is cut or damaged ({error})"
    except OSError as error:
        problem = error.strerror or (strerror(error.errno) if error.errno else str(error))
    raise BadInput(f"{what} is a CSV file, gzipped or not; {path}: {problem}.")
