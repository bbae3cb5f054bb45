"""kofn bench memory: what the master and a worker take at most, beside what they must hold.

Each case has a process of its own: the most that was ever resident in it, Python, kofn and the
data included.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ...engines._processes import memory
from ...errors import CannotDo
from .frame import Figure

COLUMNS = 2000
SPARE = 60e6  # bytes that a worker may take beyond its share, operand and reply
FILE = 300e6  # bytes that encoding a file may take
MASTER = 1.2  # times the input and a result
# They print {"master": bytes}, one also "worker"; argv: rows, a .npy file, a folder.
IN_MEMORY = """
import json, sys
import numpy as np, kofn
from kofn.cli.bench.memory import COLUMNS, peak
A = np.ones((int(sys.argv[1]), COLUMNS))
w = np.ones(COLUMNS)
with kofn.connect("local", workers=20) as cluster:
    X = cluster.encode(A, k=10)
    y = X @ w
    workers = max(peak(cluster.engine.pid(worker)) for worker in cluster.workers)
print(json.dumps({"master": peak(), "worker": workers}))
"""
OF_A_FILE = """
import json, sys
from kofn.cli.bench.memory import peak
from kofn.cli.encode import run
run(sys.argv[2], sys.argv[3], 20, 10, quiet=True)
print(json.dumps({"master": peak()}))
"""
FROM_A_FILE = """
import json, sys
import numpy as np, kofn
from kofn.cli.bench.memory import COLUMNS, peak
with kofn.connect("local", workers=20) as cluster:
    X = cluster.encode(sys.argv[2], k=10)
    y = X @ np.ones(COLUMNS)
print(json.dumps({"master": peak()}))
"""


def run(megabytes: int) -> dict[str, Any]:
    """The most that each took, in MB, beside its limit."""
    peak()  # raises before any work where that cannot be read
    rows = max(10, int(megabytes * 1e6 / 8 / COLUMNS) // 10 * 10)
    size, result, operand = 8 * rows * COLUMNS, 8 * rows, 8 * COLUMNS
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "A.npy"
        np.save(file, np.ones((rows, COLUMNS)))
        peaks = {
            key: _child(program, str(rows), str(file), str(Path(name) / key))
            for key, program in (("memory", IN_MEMORY), ("store", OF_A_FILE), ("file", FROM_A_FILE))
        }
    worker = size / 10 + operand + result / 20 + SPARE
    cases = {
        "master, encode and a product": (
            peaks["memory"]["master"],
            MASTER * (size + result),
            f"{MASTER} x (input + one result)",
        ),
        "a worker": (peaks["memory"]["worker"], worker, "share + operand + reply + 60 MB"),
        "kofn encode of a file": (peaks["store"]["master"], FILE, "300 MB"),
        "master, cluster.encode of a file": (peaks["file"]["master"], FILE, "300 MB"),
    }
    kind = f"(20, 10), {size / 1e6:.0f} MB: "
    figures = {
        kind + name: Figure(value / 1e6, "MB", limit / 1e6, of)
        for name, (value, limit, of) in cases.items()
    }
    return {"figures": figures}


def _child(program: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    peaks: dict[str, float] = json.loads(done.stdout)
    return peaks


def peak(pid: int | str = "self") -> float:
    """The most bytes that were ever resident in a process."""
    if (most := memory(pid).get("VmHWM")) is None:
        raise CannotDo("kofn bench memory reads /proc, which this system does not have.")
    return float(most)
