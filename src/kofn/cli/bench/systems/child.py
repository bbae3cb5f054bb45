"""One peer in a process of its own: a work and a setting in, its seconds out."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from .libraries import Dask, DaskML, Joblib, Kofn, NumPy, Peer, Ray, ScikitLearn
from .ranks import DDP, Collectives, Polling, serve
from .settings import SETTINGS, delays
from .spark import Spark
from .works import WORKS, Data, Floats, Steps, Work

PEERS: dict[str, type[Peer]] = {
    "kofn": Kofn,
    "NumPy": NumPy,
    "Dask": Dask,
    "Ray actors": Ray,
    "joblib": Joblib,
    "Spark": Spark,
    "mpi4py": Collectives,
    "mpi4py polling": Polling,
    "torch DDP": DDP,
    "dask-ml": DaskML,
    "scikit-learn": ScikitLearn,
}


def main(name: str, folder: str) -> None:
    """Start the peer here, and attend to the parent."""
    # Workers compute with one thread each; what has no workers has all of them.
    if not PEERS[name].alone:
        threadpool_limits(1)
    data = Data(Path(folder))
    if issubclass(PEERS[name], Collectives) and serve(data):
        return
    attend(PEERS[name](data))


def attend(peer: Peer) -> None:
    """Read questions from stdin until its end, a line each; answer on what was stdout."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a peer prints is no answer

    def emit(**what: Any) -> None:
        print(json.dumps(what), file=out, flush=True)

    emit(started=True)
    tables: dict[str | None, Floats] = {}
    for line in sys.stdin:
        question = json.loads(line)
        if question == "stop":
            break
        name, setting = question["work"], SETTINGS[question["setting"]]
        work = WORKS[name]
        if setting.delays not in tables:
            tables[setting.delays] = delays(peer.data.folder, setting)
        table = tables[setting.delays]
        try:
            pids = peer.prepare(name, work, table)
            warm(peer, work)
        except Exception as error:
            emit(died=words(error))
            continue
        emit(pids=pids)
        if sys.stdin.readline() == "":
            break
        try:
            emit(**play(peer, name, work, question["seconds"]))
        except Exception as error:
            emit(died=words(error))
        if isinstance(peer, Collectives):
            peer.rest()
    if isinstance(peer, Collectives):
        peer._send("stop")


def warm(peer: Peer, work: Work) -> None:
    """One round that does not count: workers load what they run."""
    if type(peer).whole is Peer.whole:
        list(peer.results(work, islice(work.steps(peer.data, work.rounds), 1)))


def words(error: Exception) -> str:
    """The kind of an error and the beginning of what it says."""
    return plain(f"{type(error).__name__}: {error}")


def plain(text: str) -> str:
    """Without colours, addresses and folders of this machine, and not too long."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", " ".join(text.split()))
    text = re.sub(r"\d+\.\d+\.\d+\.\d+(:\d+)?", "ADDRESS", text)
    return re.sub(r"(?<![\w.])(/[\w.+-]+){2,}", "PATH", text)[:300]


def play(peer: Peer, name: str, work: Work, limit: float) -> dict[str, Any]:
    """Do the work for about so many seconds; seconds of each round, and how far off the last was.

    "of" is how many rounds the whole work has, None where it was not seen to its end.
    """
    began = at = time.perf_counter()
    if type(peer).whole is not Peer.whole:
        off = peer.whole(name)
        return {"rounds": [time.perf_counter() - began], "off": off, "of": 1}
    took: list[float] = []
    jobs = Jobs(work.steps(peer.data, work.rounds), began + limit)
    for value in peer.results(work, jobs):
        jobs.value = value
        now = time.perf_counter()
        took.append(now - at)
        at = now
    operand = jobs.given[len(took) - 1] if work.array is None else jobs.given[-1]
    whole = None if work.array is None else peer.data.array(work.array)
    exact = work.fn(whole, operand)
    off = float(np.abs(jobs.value - exact).max() / np.abs(exact).max())
    of = work.rounds if work.array is None else len(took) if jobs.ended else None
    return {"rounds": took, "off": off, "of": of}


class Jobs(Iterator[Any]):
    """The operands of a work, one after the other; each is given the value of the one before.

    A sequence does not depend on its values, so it may be asked for more before they are there.
    """

    def __init__(self, steps: Steps, end: float) -> None:
        self.steps, self.end = steps, end
        self.value: Any = None
        self.given: list[Any] = []
        self.ended = False

    def __next__(self) -> Any:
        if self.given and time.perf_counter() > self.end:
            raise StopIteration
        try:
            operand = self.steps.send(self.value if self.given else None)
        except StopIteration:
            self.ended = True
            raise
        self.given.append(operand)
        return operand


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
