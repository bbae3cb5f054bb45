"""The master of a fleet, a program on one of its hosts: a line of JSON in, a line of JSON out.

A line is `{"do": NAME, ...}`, with the arguments of the method of that name. The answer has what
the method returns as `answer`, or `raised`. `rounds` goes on until the next line, and says what
changes meanwhile. Times are of the clock that all hosts of one machine share.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kofn
from kofn.arrays.store import write_store
from kofn.cli.ranks import become_worker
from kofn.codes.mds import MDSCode
from kofn.learn import Ridge

ROWS, COLUMNS, THRESHOLD = 6000, 400, 4
LATELY = 9  # operations in which a worker that is used has had rows: it may be late in some
PAUSE = 0.02  # seconds between two operations: hosts that share a machine should have some peace


def sign(_: object, folder: str) -> NDArray[np.float64]:
    """Body: leave a file that names the host and the process, with the threads of sessions."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("kofn-")]
    path = Path(folder, f"{os.uname().nodename} {os.getpid()}")
    path.write_text(" ".join(str(thread.native_id) for thread in threads))
    return np.zeros(1)


def squares(part: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Body: a term of a sum."""
    return part.T @ (part @ x)


def off_by(value: Any, exact: Any) -> float:
    return float(np.linalg.norm(value - exact) / np.linalg.norm(exact))


def timed(run: Callable[[], Any], exact: Any) -> tuple[float, float, float]:
    began = time.monotonic()
    value = run()
    return began, time.monotonic() - began, off_by(value, exact)


class Master:
    """What the program knows to do."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.A = self.rng.standard_normal((ROWS, COLUMNS))
        self.cluster: kofn.Cluster

    def connect(
        self, engine: str, address: str | None, workers: int, room: int = 0, **options: Any
    ) -> dict[str, Any]:
        """Open the cluster, with a matrix of which any four shares are enough, and parts."""
        began = time.monotonic()
        self.cluster = kofn.connect(engine, address=address, **options)
        self.cluster.wait_for(workers)
        live = len(self.cluster.workers)
        self.X = self.cluster.encode(self.A, k=THRESHOLD, n=live + room)
        code = kofn.CyclicRepetition(c=min(3, live))  # any two may be missing
        self.parts = self.cluster.parts(self.A, code)
        for operation in self.operations().values():
            operation()
        return {"pid": os.getpid(), "workers": live, "seconds": time.monotonic() - began}

    def operations(self) -> dict[str, Callable[[], tuple[float, float, float]]]:
        """What is done in turn: each returns its start, seconds, and how far it is from NumPy."""
        return {"X @ w": self.product, "X.T @ z": self.transposed, "sum": self.sum}

    def product(self) -> tuple[float, float, float]:
        w = self.rng.standard_normal(COLUMNS)
        return timed(lambda: self.X @ w, self.A @ w)

    def transposed(self) -> tuple[float, float, float]:
        z = self.rng.standard_normal(ROWS)
        return timed(lambda: self.X.T @ z, self.A.T @ z)

    def sum(self) -> tuple[float, float, float]:
        x = self.rng.standard_normal(COLUMNS)
        return timed(lambda: self.parts.sum(squares, x).value, self.A.T @ (self.A @ x))

    def fit(self) -> float:
        """Fit a ridge regression; return how far it is from the solution of the equations."""
        y = self.A @ self.rng.standard_normal(COLUMNS) + self.rng.standard_normal(ROWS)
        model = Ridge(alpha=2.0, cluster=self.cluster, fit_intercept=False, tol=1e-12)
        exact = np.linalg.solve(self.A.T @ self.A + 2.0 * np.eye(COLUMNS), self.A.T @ y)
        return off_by(model.fit(self.cluster.encode(self.A), y).coef_, exact)

    def saved_fit(self, folder: str, hold: int | None = None) -> dict[str, Any]:
        """Fit by descent, with a checkpoint after each iteration, and say so; or go on with it.

        `hold`: the iteration after which it waits to be struck.
        """
        seen = list[int]()

        def told(iteration: int, *_: object) -> None:
            seen.append(iteration)
            say({"status": {"iteration": iteration, "time": time.monotonic()}})
            while hold is not None and iteration > hold:
                time.sleep(0.1)

        rng = np.random.default_rng(1)
        y = self.A @ rng.standard_normal(COLUMNS) + rng.standard_normal(ROWS)
        model = Ridge(2.0, solver="gd", tol=1e-12, fit_intercept=False)
        model.set_params(cluster=self.cluster, callback=told)
        model.fit(self.A, y, checkpoint=kofn.Checkpoint(folder, every=0))
        exact = np.linalg.solve(self.A.T @ self.A + 2.0 * np.eye(COLUMNS), self.A.T @ y)
        return {"first": seen[0], "error": off_by(model.coef_, exact)}

    def store(self, folder: str) -> float:
        """Multiply by shares that every worker reads from a folder that all hosts see."""
        path = Path(folder, f"STORE-{time.monotonic_ns()}")
        write_store(self.A, str(path), MDSCode(n=len(self.cluster.workers), k=THRESHOLD))
        X = self.cluster.encode(str(path))
        w = self.rng.standard_normal(COLUMNS)
        return off_by(X @ w, self.A @ w)

    def signed(self, folder: str) -> None:
        """Have every worker leave a file that names it."""
        live = len(self.cluster.workers)
        self.cluster.parts([None] * live, kofn.Uncoded()).sum(sign, folder)

    def rounds(self, joins: int = 0) -> dict[str, Any]:
        """Do one operation after another until a line comes; return all that happened.

        After the first thirty operations so many workers are started, by `cluster.join()`.
        """
        seen = len(self.cluster.log)
        done: list[tuple[float, float, str]] = []
        topped: list[tuple[float, int]] = []  # rows that others were asked for, and when
        worst, status = 0.0, None
        lately: deque[set[int]] = deque(maxlen=LATELY)
        for kind, operation in cycle(self.operations().items()):
            began, seconds, error = operation()
            worst = max(worst, error)
            done.append((began, seconds, kind))
            if kind != "sum" and (rows := self.X.report.rows_topped_up):
                topped.append((began, rows))
            lately.append({worker for worker, rows in self.X.report.rows_read.items() if rows})
            live = set(self.cluster.workers)
            now = {"workers": len(live), "used": len(live & set().union(*lately))}
            if len(done) == 30:
                for _ in range(joins):
                    threading.Thread(target=self.cluster.join).start()
            if now != status or len(done) == 1 or len(done) % 10 == 0:
                status = now
                say({"status": {**now, "time": time.monotonic(), "rounds": len(done)}})
            if select.select([sys.stdin], [], [], PAUSE)[0]:
                break
        kinds = ("lost", "joined", "leaving")
        events = [(r.time, r.kind, r.worker) for r in self.cluster.log[seen:] if r.kind in kinds]
        return {"rounds": done, "error": worst, "events": events, "topped": topped}

    def close(self) -> None:
        self.cluster.close()


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    become_worker("mpi")  # under mpiexec this returns on rank 0 only
    master = Master()
    # Not through a buffer: `rounds` looks whether something can be read.
    with open(0, "rb", buffering=0, closefd=False) as lines:
        for line in lines:
            command = json.loads(line)
            if not command:
                continue  # it has ended the rounds
            if command["do"] == "end":
                return
            try:
                say({"answer": getattr(master, command.pop("do"))(**command)})
            except Exception:
                say({"raised": traceback.format_exc()})


if __name__ == "__main__":
    main()
