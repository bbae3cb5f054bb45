"""kofn bench encode: encoding against what the machine does with the same bytes.

The limit in memory: every share is copied once (the uncoded ones) or written by one gemm (the coded
ones), into memory that is there. The limit of a file: the disk's own rate, one plain read of the
matrix and one plain write of all shares, each through to the disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...cluster import connect
from ...codes import MDSCode
from ..encode import run as encode_file
from .bare import Floats
from .turns import Turns

N, K, COLUMNS = 20, 10, 2000


def run(megabytes: int, times: int) -> dict[str, Any]:
    """Encode (20, 10) in memory and from a .npy file, each in turn with its limit."""
    rows = max(K, int(megabytes * 1e6 / 8 / COLUMNS) // K * K)
    A = np.random.default_rng(0).standard_normal((rows, COLUMNS))
    turns = Turns(("memory", "gemm", "file", "disk"))
    limit = _gemm(A)
    with connect("local", workers=N) as cluster, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "A.npy", A)
        os.sync()
        for _ in range(times):
            _time(turns, "gemm", limit)
            _time(turns, "memory", lambda: cluster.encode(A, k=K))
        for turn in range(times):
            store = folder / f"store{turn}"
            _time(turns, "disk", partial(_read_write, folder / "A.npy", folder / "plain"))
            _time(turns, "file", partial(_store, folder / "A.npy", store))
            shutil.rmtree(store)
    memory = turns.figure("memory", "gemm", "copies and one gemm of the same bytes", "ms")
    file = turns.figure("file", "disk", "reading it and writing as many bytes, plainly", "ms")
    size = f"({N}, {K}), {A.nbytes / 1e6:.0f} MB"
    return {"figures": {f"{size} in memory": memory, f"{size} of a file": file}}


def _time(turns: Turns, kind: str, call: Callable[[], object]) -> None:
    began = time.perf_counter()
    call()
    turns.turns[kind].append([time.perf_counter() - began])


def _gemm(A: Floats) -> Callable[[], None]:
    G = MDSCode(N, K).generator
    plain = [i for i in range(N) if np.count_nonzero(G[i]) == 1]
    coded = [i for i in range(N) if i not in plain]
    blocks = A.reshape(K, -1)
    shares = np.ones((N, blocks.shape[1]))  # touched: its pages are there

    def call() -> None:
        np.matmul(G[coded], blocks, out=shares[len(plain) :])
        for at, i in enumerate(plain):
            shares[at] = blocks[int(G[i].argmax())]

    call()
    return call


def _store(source: Path, store: Path) -> None:
    encode_file(str(source), str(store), N, K, quiet=True)
    os.sync()


def _read_write(source: Path, target: Path) -> None:
    data = source.read_bytes()
    with target.open("wb") as file:
        for _ in range(N // K):
            file.write(data)
        os.fsync(file.fileno())
    target.unlink()
