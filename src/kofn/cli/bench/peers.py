"""kofn bench peers: the same work and the same faults for kofn and for others, in one run.

Each peer lives in a process of its own, which is asked for one cell after the other: a piece of
work under a setting. A cell is done by all peers in turn before the next. A peer that dies or hangs
in a cell is recorded so, with its last words, and started anew.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from select import select
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from ...engines._processes import Process, end, marked
from ...reproduce import datasets
from .. import places
from ..output import print_sentences, print_table, progress
from .bare import mpiexec, ranks_env
from .frame import Figure
from .systems.child import PEERS, plain
from .systems.grid import grid
from .systems.settings import SETTINGS, draw, strike
from .systems.works import FULL, QUICK, WORKERS, WORKS, Data, Floats, evaluations, make

START = 180.0  # seconds that a peer may take to start
GRACE = 25.0  # seconds beyond its own that a cell may take; then the peer hangs
TOKEN = "KOFN_BENCH_PEER"
QUICKLY = 1.5  # seconds of a cell below which sizes are small
RECORDING = "cnn_mbp_Canada_batch256"
# Whatever ends the run, a kill -9 too: what its peers started ends with it.
WATCH = """
import glob, os, sys
sys.stdin.read()
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        with open(path, "rb") as file:
            if sys.argv[1].encode() in file.read():
                os.kill(int(path.split("/")[2]), 9)
    except OSError:
        pass
"""
FIGURES = False  # the grid says it all


def run(only: str, seconds: float, data: Path | None, *, quiet: bool = True) -> dict[str, Any]:
    """Every cell of every peer; figures have kofn against the best of the others."""
    places.data(data, "peers")
    cells: dict[str, Any] = {}
    settings = {name: s for name, s in SETTINGS.items() if data is not None or name != "lambda"}
    wanted = [
        (setting, work, peer)
        for setting in settings
        for work in WORKS
        for peer, kind in PEERS.items()
        if work in kind.does and (kind.delayed or settings[setting].delays is None)
        if chosen(only, f"{peer}, {work}, {setting}")
    ]
    asked = {peer for _, _, peer in wanted}
    missing = {peer: absent for peer in PEERS if peer in asked and (absent := _absent(peer))}
    sizes = QUICK if seconds < QUICKLY else FULL
    with (
        tempfile.TemporaryDirectory(prefix="kofn-peers-") as name,
        progress("peers", len(wanted), quiet, "cell") as update,
        _watched(),
    ):
        folder = Path(name)
        cases, regression = None, any(work == "logistic" for _, work, _ in wanted)
        if not regression:
            sizes = replace(sizes, cases=100)  # nobody uses them
        elif data is not None:
            cases = covertype(data, sizes.cases)
        made = make(folder, sizes, cases)
        rounds = evaluations(made) if regression else 0
        recorded = None if data is None else datasets.recording(data, RECORDING).timings[0]
        draw(folder, recorded)
        children: dict[str, Child] = {}
        try:
            for setting, work, peer in wanted:
                update(cell=f"{peer}, {work}, {setting}")
                if peer not in missing:
                    child = children.setdefault(peer, Child(peer, made))
                    usual = cells.get(f"{peer}, {work}, quiet", {}).get("seconds", seconds)
                    cell = child.ask(work, setting, seconds, usual)
                else:
                    cell = {"missing": missing[peer]}
                cells[f"{peer}, {work}, {setting}"] = cell
                update(advance=1)
        finally:
            for child in children.values():
                child.end()
    _extrapolate(cells, rounds)
    problems = [f"{peer} is not installed: {what}" for peer, what in missing.items()]
    problems += [] if data else ["Lambda timings and Covertype need --data: left out, made up."]
    more = {"cells": cells, "sizes": {"rows": sizes.rows, "columns": sizes.columns}}
    return {"figures": _figures(cells), **more, "problems": problems}


def chosen(only: str, cell: str) -> bool:
    """Whether a cell has all the words that --only joins by +, and none that has a minus."""
    words = [] if only == "all" else only.split("+")
    return all((word[1:] not in cell) if word[:1] == "-" else word in cell for word in words)


def covertype(data: Path, most: int) -> Floats:
    """Cover types 1 and 2: 54 scaled fields, a one, and the label ±1 last."""
    table = datasets.cover_types(data)
    X = table[:, :54].astype(np.float64)
    X[:, :10] = (X[:, :10] - X[:, :10].mean(axis=0)) / X[:, :10].std(axis=0)
    whole = np.column_stack([X, np.ones(len(X)), np.where(table[:, 54] == 2, 1.0, -1.0)])
    kept: Floats = whole[:: max(1, len(whole) // most)]
    return kept


def _absent(peer: str) -> str:
    missing = []
    for name in PEERS[peer].needs:
        with suppress(ModuleNotFoundError):
            if find_spec(name) is not None:
                continue
        missing.append(name)
    if peer == "Spark" and shutil.which("java") is None:
        missing.append("java")
    return ", ".join(missing)


class Child:
    """A peer's process, and all that it has started."""

    def __init__(self, peer: str, data: Data) -> None:
        self.peer, self.data = peer, data
        self.process: subprocess.Popen[str] | None = None
        self.log = data.folder / f"{peer.replace(' ', '_')}.log"

    def ask(self, work: str, setting: str, seconds: float, usual: float) -> dict[str, Any]:
        """Do one cell; signals come at a third of what it usually takes."""
        try:
            if self.process is None:
                self._start()
            self._signal(signal.SIGCONT)
            self._send({"work": work, "setting": setting, "seconds": seconds})
            answer = self._receive(START)
            if "died" in answer:
                raise Trouble("died", answer["died"])  # it cannot even be restored: start it anew
            pids = answer["pids"]
            began = time.perf_counter()
            self._send("go")
            thread = strike(SETTINGS[setting], pids, min(usual, seconds) / 3)
            answer = self._receive(seconds + GRACE)
            spent = time.perf_counter() - began
            if thread is not None:
                thread.join()
            self._signal(signal.SIGSTOP)
            return answer if "died" in answer else {**_summary(answer), "seconds": spent}
        except Trouble as trouble:
            self.end()
            return {trouble.kind: f"{trouble}"}

    def _start(self) -> None:
        program = "from kofn.cli.bench.systems.child import main; main(*__import__('sys').argv[1:])"
        command = [sys.executable, "-c", program, self.peer, str(self.data.folder)]
        env = {**os.environ, TOKEN: f"{os.getpid()}-{self.log.stem}", "PYTHONUNBUFFERED": "1"}
        env |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        if PEERS[self.peer].alone:
            env = {k: v for k, v in env.items() if not k.endswith("_NUM_THREADS")}
        if getattr(PEERS[self.peer], "ranks", False):
            spread = ["--bind-to", "none", "--oversubscribe", "-n", str(WORKERS + 1)]
            command = [mpiexec(), *spread, *command]
            env |= ranks_env(str(self.data.folder))
        both: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stderr=log, start_new_session=True, env=env, **both
            )
        self._receive(START)

    def _signal(self, number: signal.Signals) -> None:
        """Stop ranks between their cells: those that wait in MPI burn the cores of all others."""
        if getattr(PEERS[self.peer], "ranks", False):
            for process in self._processes():
                process.send(number)

    def _processes(self) -> list[Process]:
        """All that bear the token, in whatever session."""
        return list(marked(f"{TOKEN}={os.getpid()}-{self.log.stem}"))

    def _send(self, what: Any) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise Trouble("died", self._last_words()) from None

    def _receive(self, seconds: float) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        if not select([self.process.stdout], [], [], seconds)[0]:
            raise Trouble("hangs", f"nothing in {seconds:.0f} s. {self._last_words()}".rstrip())
        line = self.process.stdout.readline()
        if not line:
            raise Trouble("died", self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        """Why the peer ended: the last line of an error, else the last line."""
        code = None
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self.process.wait(2)
        lines = [x.strip() for x in self.log.read_text(errors="replace").splitlines() if x.strip()]
        named = [x for x in lines if "Error" in x.split(":")[0] or "Exception" in x.split(":")[0]]
        line = (named or [x for x in lines if any(c.isalpha() for c in x)] or [""])[-1]
        return plain(line) or ("" if code is None else f"exit code {code}, without a word")

    def end(self) -> None:
        """Kill every process that bears the token."""
        if self.process is None:
            return
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        for _ in range(3):  # again, for who was only just forked
            end(set(self._processes()))
        self.process.wait(10)
        self.process = None


@contextmanager
def _watched() -> Iterator[None]:
    """End what peers have started even if this process is killed meanwhile."""
    command = [sys.executable, "-S", "-c", WATCH, f"{TOKEN}={os.getpid()}-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield


class Trouble(Exception):
    """A peer that died or hangs."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def _summary(answer: Mapping[str, Any]) -> dict[str, Any]:
    rounds = answer["rounds"]
    return {
        "done": len(rounds),
        "of": answer["of"],
        "took": sum(rounds),
        "median_ms": 1e3 * median(rounds),
        "worst_ms": 1e3 * max(rounds),
        "off": answer["off"],
    }


def _extrapolate(cells: dict[str, Any], evaluated: int) -> None:
    """Seconds of the whole work: what was done, and the median for each round that was not.

    `evaluated`: rounds that the logistic regression takes.
    """
    for key, cell in cells.items():
        if "done" not in cell:
            continue
        work = key.split(", ")[1]
        of = cell["of"] or (evaluated if work == "logistic" else WORKS[work].rounds)
        cell["total"] = cell["took"] + 1e-3 * cell["median_ms"] * max(0, of - cell["done"])
        if work == "svd":  # one of them, however many were done
            cell["total"] /= 1 if of == 1 else WORKS["svd"].rounds / 6


def _figures(cells: Mapping[str, Any]) -> dict[str, Figure]:
    """kofn, and the best of all that ended, by work and setting."""
    figures: dict[str, Figure] = {}
    for key, cell in cells.items():
        peer, work, setting = key.split(", ")
        if peer != "kofn" or "total" not in cell:
            continue
        others = {
            name: cells[f"{name}, {work}, {setting}"]["total"]
            for name in PEERS
            if name != "kofn" and "total" in cells.get(f"{name}, {work}, {setting}", {})
        }
        best = min(others, key=lambda name: others[name], default=None)
        limit = None if best is None else others[best]
        figures[f"{work}, {setting}"] = Figure(cell["total"], "s", limit, best or "nobody ended")
    return figures


def table(console: Console, result: dict[str, Any]) -> None:
    """Print a table for each work, and why peers ended."""
    for work, (settings, rows) in grid(result["cells"]).items():
        columns = {"": "", **dict.fromkeys(settings, ">")}
        title = f"{work}: seconds in all (worst round)"
        print_table(console, title, columns, [(peer, *texts) for peer, texts in rows.items()])
    for key, cell in result["cells"].items():
        for kind in ("died", "hangs"):
            if kind in cell:
                console.print(f"{key}: {kind}: {cell[kind]}", markup=False, highlight=False)
    for problem in result["problems"]:
        print_sentences(console, problem)
