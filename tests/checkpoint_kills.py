"""Kill -9 of the master of a fit, at random moments, and another process goes on.

    python tests/checkpoint_kills.py --engine local --fits 50 --writes 50 --seed 0

Of each fit one process is killed, between two instructions wherever that is (`--fits`), or at a
line of the modules that write checkpoints, the file itself being written in small pieces
(`--writes`). A second process resumes. Its coefficients must be those of an undisturbed fit, and it
must begin no earlier than at the last iteration that the killed one had told of. Prints a line for
each, and one of counts in the end. Run by test_checkpoint_kills.py, in `make soak` with more kills.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from io import RawIOBase
from pathlib import Path
from types import FrameType
from typing import IO, Any

import numpy as np
from sklearn.datasets import make_classification, make_regression

import kofn
from kofn import checkpoint, files
from kofn.engines._processes import Process
from kofn.learn import CodedMLPClassifier, LinearSVC, LogisticRegression, Ridge

SAME = 1e-12  # relative to the largest coefficient
PIECE = 512  # bytes of a checkpoint that are written at a time
ROWS, COLUMNS, WORKERS = 1500, 20, 3
WATCHED = (checkpoint.__file__, files.__file__)

# Each ends in an iteration that rounding does not decide on.
MODELS: dict[str, Callable[[], Any]] = {
    "ridge-cg": lambda: Ridge(tol=1e-12),
    "ridge-gd": lambda: Ridge(solver="gd", tol=1e-8),
    "ridge-lbfgs": lambda: Ridge(solver="lbfgs", tol=1e-12),
    "logistic-lbfgs": lambda: LogisticRegression(tol=1e-12),
    "logistic-newton": lambda: LogisticRegression(solver="newton-cg", tol=1e-8),
    "logistic-sums": lambda: LogisticRegression(solver="coded-gradient", tol=1e-6),
    "svm": lambda: LinearSVC(tol=1e-6),
    "mlp": lambda: CodedMLPClassifier((10,), max_epochs=6, batch_size=500, random_state=0),
}


def data(name: str) -> tuple[Any, Any]:
    make: Any = make_regression if name.startswith("ridge") else make_classification
    X, y = make(ROWS, COLUMNS, random_state=0)
    return X, y


def coefficients(model: Any) -> Any:
    layers = getattr(model, "coefs_", None) or [model.coef_]
    return np.concatenate([np.ravel(layer) for layer in layers])


def fit(name: str, engine: str, folder: Path, out: Path, line: int | None) -> None:
    """Fit with checkpoints; tell of each iteration. Die at a line of those that write, if asked."""
    model, (X, y) = MODELS[name](), data(name)

    def told(iteration: int, *_: object) -> None:
        os.write(1, f"{iteration}\n".encode())

    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            lines += 1
            if lines == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    def in_pieces(file: RawIOBase, view: memoryview) -> None:
        while view:
            view = view[file.write(view[:PIECE]) :]

    workers = None if engine == "mpi" else WORKERS
    with kofn.connect(engine, workers) as cluster:
        # Ranks, actors and sessions are told apart from the master by nobody but it.
        os.write(1, f"master {os.getpid()}\n".encode())
        model.set_params(cluster=cluster, callback=told)
        if line is not None:
            files.write_all = in_pieces
            sys.settrace(trace)
        model.fit(X, y, checkpoint=kofn.Checkpoint(folder, every=0))
        sys.settrace(None)
    np.save(out, coefficients(model))
    os.write(1, f"lines {lines}\n".encode())


class Child:
    """A process that fits; what it has told so far."""

    def __init__(self, name: str, engine: str, folder: Path, out: Path, line: int | None) -> None:
        args = ["--child", name, str(folder), str(out), str(line or 0)]
        command = [sys.executable, __file__, "--engine", engine, *args]
        self.iterations: list[int] = []
        self.lines = 0
        self.file: IO[str]
        if engine == "local":  # forked: that saves the time of all imports
            read, write = os.pipe()
            self.pid = os.fork()
            if self.pid == 0:
                os.close(read)
                os.dup2(write, 1)
                os.close(write)
                status = 1
                try:
                    fit(name, engine, folder, out, line)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            os.close(write)
            self.file = os.fdopen(read)
            self.process = None
        else:
            if engine == "mpi":
                from ranks import start_ranks

                self.process = start_ranks(WORKERS + 1, command, stderr=None)
            else:
                self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert self.process.stdout is not None
            self.file = self.process.stdout
            self.pid = self.process.pid

    def step(self) -> bool:
        """Take in a line; False at the end."""
        words = self.file.readline().split()
        if words[:1] == ["master"]:
            self.pid = int(words[1])
        elif words[:1] == ["lines"]:
            self.lines = int(words[1])
        elif words and words[0].isdigit():
            self.iterations.append(int(words[0]))
        return bool(words)

    def end(self) -> int:
        """Take in what is left; return the exit status, negative for a signal."""
        while self.step():
            pass
        self.file.close()
        if self.process is not None:
            return self.process.wait(60)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Kills:
    """Kills masters and resumes; asserts what must hold."""

    def __init__(self, engine: str, seed: int) -> None:
        self.engine, self.random = engine, random.Random(seed)
        self.calm: dict[str, tuple[Any, float, int]] = {}  # coefficients, seconds, lines
        self.resumed = self.worst = 0.0

    def child(self, name: str, folder: Path, line: int | None = None) -> Child:
        return Child(name, self.engine, folder / "checkpoints", folder / "coef.npy", line)

    def undisturbed(self, name: str) -> tuple[Any, float, int]:
        if name not in self.calm:
            with tempfile.TemporaryDirectory() as path:
                folder = Path(path)
                # With a line that never comes, so that lines are counted.
                child = self.child(name, folder, 10**9)
                child.step()
                began = time.monotonic()
                status = child.end()
                assert status == 0, f"{name} exits with {status}"
                seconds = time.monotonic() - began
                self.calm[name] = np.load(folder / "coef.npy"), seconds, child.lines
        return self.calm[name]

    def strike(self, name: str, writing: bool) -> bool:
        """Kill and resume once. False if it had ended before."""
        exact, seconds, lines = self.undisturbed(name)
        with tempfile.TemporaryDirectory() as path:
            folder = Path(path)
            line = self.random.randint(1, lines) if writing else None
            child = self.child(name, folder, line)
            assert child.step()
            if not writing:
                time.sleep(self.random.uniform(0.0, seconds))
                Process.of(child.pid).kill()
            status = child.end()
            if (folder / "coef.npy").exists():
                return False
            assert self.engine == "mpi" or status == -signal.SIGKILL, status
            told = child.iterations
            again = self.child(name, folder)
            assert again.end() == 0
            # What an iteration told of, the one before had saved.
            first = again.iterations[0] if again.iterations else None  # None: it was at its end
            assert first is None or first >= (told[-1] if told else 1), (first, told[-1:])
            found = np.load(folder / "coef.npy")
        error = float(np.abs(found - exact).max() / np.abs(exact).max())
        assert error <= SAME, f"{name}: {error:.1e} after iteration {told[-1:]}"
        where = "writing" if writing else "in a fit"
        print(f"{name}, {where}: told of {len(told)}, went on at {first}, {error:.1e}", flush=True)
        self.worst = max(self.worst, error)
        self.resumed += 1
        return True

    def run(self, count: int, writing: bool) -> None:
        names = list(MODELS)
        done = 0
        while done < count:
            done += self.strike(names[self.random.randrange(len(names))], writing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--fits", type=int, default=50)
    parser.add_argument("--writes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=4)
    given = parser.parse_args()
    if given.child:
        name, folder, out, line = given.child
        fit(name, given.engine, Path(folder), Path(out), int(line) or None)
        return
    kills = Kills(given.engine, given.seed)
    kills.run(given.fits, writing=False)
    kills.run(given.writes, writing=True)
    print(
        f"{given.engine}, seed {given.seed}: {given.fits} masters killed in a fit, {given.writes} "
        f"while writing; {kills.resumed:.0f} resumed, coefficients the same to {kills.worst:.1e}"
    )


if __name__ == "__main__":
    main()
