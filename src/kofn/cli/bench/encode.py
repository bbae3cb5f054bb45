"""kofn bench encode: encoding against what the machine does with the same bytes.

In memory there are two limits, which both copy every uncoded share and write the coded ones by one
gemm. One writes into fresh shared memory, which the system has to find. That is what the first
encode of a session has to do. The other writes into memory that is there, written before, in huge
pages. That is what an encode over a dropped matrix does. Its memory is in huge pages, too, if its
workers had had nothing to do for a while, or if the system had some at once. The second encode of a
session, right after the first, shows what it takes where neither is so. The last row has the first
encode beside the limit of memory that is there, which nothing that needs fresh memory can reach.

After a product OpenBLAS's threads look for the next one for a while, on the cores that the other
side needs. So each is timed when nothing of this process runs.

The limit of a file: the disk's own rate, one plain read of the matrix and one plain write of all
shares, each through to the disk.
"""

from __future__ import annotations

import mmap
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
from ...engines._socket_worker import IDLE
from ..encode import run as encode_file
from .bare import Floats
from .frame import Figure
from .turns import Turns, cpu, rest

N, K, COLUMNS = 20, 10, 2000


def run(megabytes: int, times: int) -> dict[str, Any]:
    """Encode (20, 10) in memory and from a .npy file, each in turn with its limits."""
    rows = max(K, int(megabytes * 1e6 / 8 / COLUMNS) // K * K)
    A = np.random.default_rng(0).standard_normal((rows, COLUMNS))
    turns = Turns(("first", "second", "again", "there", "fresh", "file", "disk"))
    limit = _gemm(A)
    there = np.ones((N, A.size // K))  # touched: its pages are there
    limit(there)
    with connect("local", workers=N) as cluster, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "A.npy", A)
        os.sync()
        X = cluster.encode(A, k=K)
        rest(lambda: 1e-6 * cpu(cluster)[1], 2 * IDLE)  # until its memory is in huge pages
        del X
        for _ in range(times):
            _time(turns, "there", partial(limit, there))
            _time(turns, "again", lambda: cluster.encode(A, k=K))
            _time(turns, "fresh", lambda: limit(_fresh(there)))
            with connect("local", workers=N) as other:
                _time(turns, "first", lambda: other.encode(A, k=K))
                _time(turns, "second", lambda: other.encode(A, k=K))
        for turn in range(times):
            store = folder / f"store{turn}"
            _time(turns, "disk", partial(_read_write, folder / "A.npy", folder / "plain"))
            _time(turns, "file", partial(_store, folder / "A.npy", store))
            shutil.rmtree(store)
    return {"figures": figures(turns, f"({N}, {K}), {A.nbytes / 1e6:.0f} MB")}


def figures(turns: Turns, size: str) -> dict[str, Figure]:
    """Each encode beside the limit of its own kind: first the fresh memory, then what is there."""
    both = "copies and one gemm of the same bytes, into "
    fresh, there = f"{both}fresh shared memory", f"{both}memory that is there"
    plain = "reading it and writing as many bytes, plainly"
    return {
        f"{size} into fresh memory: the first of a session": turns.figure(
            "first", "fresh", fresh, "ms"
        ),
        f"{size} over a dropped matrix": turns.figure("again", "there", there, "ms"),
        f"{size} over a dropped matrix: the second of a session": turns.figure(
            "second", "there", there, "ms"
        ),
        f"{size} of a file": turns.figure("file", "disk", plain, "ms"),
        f"{size}, the first of a session, beside another kind of limit": turns.figure(
            "first", "there", there, "ms"
        ),
    }


def _time(turns: Turns, kind: str, call: Callable[[], object]) -> None:
    rest()
    began = time.perf_counter()
    call()
    turns.turns[kind].append([time.perf_counter() - began])


def _gemm(A: Floats) -> Callable[[Floats], None]:
    G = MDSCode(N, K).generator
    plain = [i for i in range(N) if np.count_nonzero(G[i]) == 1]
    coded = [i for i in range(N) if i not in plain]
    blocks = A.reshape(K, -1)

    def call(shares: Floats) -> None:
        np.matmul(G[coded], blocks, out=shares[len(plain) :])
        for at, i in enumerate(plain):
            shares[at] = blocks[int(G[i].argmax())]

    return call


def _fresh(like: Floats) -> Floats:
    """Shared memory of this shape that nobody has touched; it goes with the array."""
    return np.frombuffer(mmap.mmap(-1, like.nbytes), like.dtype).reshape(like.shape)


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
