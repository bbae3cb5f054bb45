"""kofn encode: a matrix to a share store."""

from __future__ import annotations

import io
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..arrays.sources import Recast, Source, open_source
from ..arrays.store import write_store
from ..codes.mds import MDSCode
from ..engines._processes import memory
from ..errors import BadInput, StoreWarning
from ..files import Place, check_file
from . import places, tables
from .output import progress


def run(
    source: str,
    store: str,
    n: int,
    k: int,
    fmt: str = "npy",
    dtype: str | None = None,
    overwrite: bool = False,
    target: str | None = None,
    labels: Path | None = None,
    axis: int = 0,
    quiet: bool = False,
) -> dict[str, Any]:
    """Write the store; return sizes, seconds and the peak of this process's memory."""
    code = MDSCode(n, k)
    if dtype not in (None, "float64", "float32"):
        raise BadInput(f"--dtype is float64 or float32; got {dtype!r}.")
    began = time.perf_counter()
    opened = _opened(source, target, labels)
    if dtype is not None and opened.dtype.name != dtype:
        opened = Recast(opened, dtype)
    recorded = warnings.catch_warnings(record=True)
    with progress("encoding", None, quiet) as update, recorded as caught:
        warnings.simplefilter("always", StoreWarning)
        note = lambda done, total: update(completed=done, total=total)  # noqa: E731
        how: dict[str, Any] = {"axis": axis, "fmt": fmt, "resume": not overwrite}
        manifest = write_store(opened, store, code, progress=note, **how)
    return {
        "store": Place.of(store).url,
        "rows": manifest.shape[0],
        "columns": manifest.shape[1],
        "dtype": manifest.dtype,
        "sparse": manifest.sparse,
        "axis": axis,
        "format": fmt,
        "n": n,
        "k": k,
        "share_rows": manifest.rows,
        "bytes": manifest.nbytes,
        "seconds": time.perf_counter() - began,
        "peak_memory_bytes": _most(),
        "mended": [str(warning.message) for warning in caught],
    }


def _opened(source: str, target: str | None, labels: Path | None) -> Source:
    """The matrix; of a CSV file, its columns but the target, whose labels are written beside."""
    if not source.removesuffix(".gz").lower().endswith(".csv"):
        if target is not None or labels is not None:
            raise BadInput(f"--target and --labels are for CSV; got {source}. Leave them out.")
        return open_source(source)
    if labels is not None and (target is None or labels.suffix != ".npy"):
        raise BadInput(
            f"--labels is a .npy file for the column of --target; got --labels {labels}, --target "
            f"{target}."
        )
    if labels is not None:
        check_file(labels, "--labels")
    X, y = tables.table(Path(source), target)
    if labels is not None:
        file = io.BytesIO()
        np.save(file, np.asarray(y))
        places.save(labels, file.getvalue())
    return open_source(X)


def _most() -> int:
    """The most bytes that were resident. Elsewhere than on Linux the parent's at the fork count."""
    if most := memory().get("VmHWM"):
        return most
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the result for a person."""
    kind = f"{'sparse ' if result['sparse'] else ''}{result['dtype']}"
    kind += ", cut by columns: its transpose" if result["axis"] else ""
    of = f"of {result['share_rows']} rows, any {result['k']} are enough"
    size, peak = result["bytes"] / 1e6, result["peak_memory_bytes"] / 1e6
    for text in (
        f"{result['rows']} x {result['columns']} {kind} -> {result['n']} shares {of}",
        f"{size:.1f} MB in {result['seconds']:.1f} s, peak memory {peak:.0f} MB",
        result["store"],
        *(f"mended: {text}" for text in result["mended"]),
    ):
        console.print(text, highlight=False, markup=False, soft_wrap=True)
