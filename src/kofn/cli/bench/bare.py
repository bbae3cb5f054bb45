"""The bare primitive of each engine, doing the same uncoded products: what kofn is held against.

Each is a context manager over (A, seconds): A's rows are dealt to the workers once, and what it
gives is w -> A @ w by one message to each worker and one back, each taking at least `seconds`.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ...errors import CannotDo
from .turns import timed

WORKERS = 6
ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
TOLERANT = ("--with-ft", "ulfm")  # options of mpiexec
Floats = NDArray[np.float64]
Product = Callable[[Floats], Floats]


class Rows:
    """Some rows, and how long a product with them takes at least."""

    def __init__(self, rows: Floats, seconds: float) -> None:
        threadpool_limits(1)
        self.rows, self.seconds = rows, seconds

    def product(self, w: Floats) -> Floats:
        """The rows times w."""
        start = time.perf_counter()
        value = np.asarray(self.rows @ w)
        if (left := self.seconds - (time.perf_counter() - start)) > 0:
            time.sleep(left)
        return value

    def raw(self, w: bytes) -> bytes:
        """The same with bytes, which some engines pass on unchanged."""
        return self.product(np.frombuffer(w)).tobytes()


@contextmanager
def pipes(A: Floats, seconds: float) -> Iterator[Product]:
    """One multiprocessing pipe a worker."""
    with served(_serve_pipe, [(rows, seconds) for rows in np.array_split(A, WORKERS)]) as workers:

        def product(w: Floats) -> Floats:
            for end, _ in workers:
                end.send(w)
            return np.concatenate([end.recv() for end, _ in workers])

        yield product


@contextmanager
def served(
    serve: Callable[..., None], each: Iterable[tuple[Any, ...]]
) -> Iterator[list[tuple[Connection, int]]]:
    """Run `serve(pipe, *arguments)` in a process for each; our ends of the pipes, and the pids."""
    context = multiprocessing.get_context("spawn")
    ends: list[tuple[Connection, int]] = []
    processes: list[Any] = []
    for arguments in each:
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(theirs, *arguments), daemon=True))
        processes[-1].start()
        theirs.close()
        ends.append((ours, int(processes[-1].pid)))
    try:
        yield ends
    finally:
        for end, _ in ends:
            end.close()
        for process in processes:
            process.join()


def _serve_pipe(pipe: Connection, rows: Floats, seconds: float) -> None:
    mine = Rows(rows, seconds)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(mine.product(pipe.recv()))


def fastest(ways: Sequence[Product], w: Floats) -> Product:
    """Return the way that takes least here and now: some rounds of each, in turn."""
    times: dict[Product, list[float]] = {way: [] for way in ways}
    for _ in range(4):
        for way, seconds in times.items():
            seconds += timed(way, w)(15)
    return min(ways, key=lambda way: float(np.median(times[way][15:])))  # the first are cold


@contextmanager
def ray_actors(A: Floats, seconds: float) -> Iterator[Product]:
    """One Ray actor a worker, one call each, one get for all; the operand the fastest way."""
    import ray

    actor: Any = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(Rows)
    actors = [actor.remote(rows, seconds) for rows in np.array_split(A, WORKERS)]

    def put_once(w: Floats) -> Floats:
        held = ray.put(w)
        return np.concatenate(ray.get([a.product.remote(held) for a in actors]))

    def inline(w: Floats) -> Floats:
        return np.concatenate(ray.get([a.product.remote(w) for a in actors]))

    def inline_bytes(w: Floats) -> Floats:
        data = w.tobytes()
        result = ray.get([a.raw.remote(data) for a in actors])
        return np.concatenate([np.frombuffer(part) for part in result])

    try:
        yield fastest([put_once, inline, inline_bytes], np.ones(A.shape[1]))
    finally:
        for a in actors:
            ray.kill(a)


@contextmanager
def dask_actors(A: Floats, seconds: float) -> Iterator[Product]:
    """One Dask actor a worker, called directly; one call each, awaited the fastest way."""
    import distributed

    untyped: Any = distributed
    here = {"n_workers": WORKERS, "threads_per_worker": 1, "processes": True, "host": "127.0.0.1"}
    with (
        untyped.LocalCluster(**here, dashboard_address=None) as cluster,
        untyped.Client(cluster, direct_to_workers=True, set_as_default=True) as client,
    ):
        addresses = list(client.scheduler_info(n_workers=-1)["workers"])
        pinned = {"actor": True, "allow_other_workers": False, "pure": False}
        futures = [
            client.submit(Rows, rows, seconds, workers=[at], **pinned)
            for rows, at in zip(np.array_split(A, WORKERS), addresses, strict=True)
        ]
        actors: list[Any] = [future.result() for future in futures]
        loop = client.loop.asyncio_loop

        def one_by_one(w: Floats) -> Floats:
            calls = [a.product(w) for a in actors]
            return np.concatenate([call.result() for call in calls])

        def gathered(method: str, operand: Any) -> list[Any]:
            """Call all of them on Dask's own thread: one hop there and one back."""

            async def call(actor: Any) -> Any:
                return await getattr(actor, method)(operand)

            async def calls() -> list[Any]:
                return await asyncio.gather(*map(call, actors))

            return asyncio.run_coroutine_threadsafe(calls(), loop).result()

        def together(w: Floats) -> Floats:
            return np.concatenate(gathered("product", w))

        def together_bytes(w: Floats) -> Floats:
            return np.concatenate([np.frombuffer(p) for p in gathered("raw", w.tobytes())])

        yield fastest([one_by_one, together, together_bytes], np.ones(A.shape[1]))


class Remote:
    """Ranks under an mpiexec of their own; rank 0 does the rounds, and times them, on request."""

    def __init__(self, process: subprocess.Popen[str], way: str = "") -> None:
        self.process, self.way = process, way

    def by(self, way: str) -> Remote:
        """Return the same ranks, that do it another way."""
        return Remote(self.process, way)

    def ask(self, question: dict[str, Any]) -> Any:
        """Return what rank 0 answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"way": self.way, **question}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise CannotDo("a program under mpiexec ended; see what it printed above.")
        return json.loads(answer)

    def __call__(self, w: Floats) -> Floats:
        return np.asarray(self.ask({"w": w.tolist()}))

    def block(self, rounds: int) -> list[float]:
        """Seconds of so many rounds, by rank 0's own clock."""
        seconds: list[float] = self.ask({"rounds": rounds})
        return seconds


def mpiexec() -> str:
    """The path of mpiexec, beside Python or wherever it is."""
    near = Path(sys.executable).with_name("mpiexec")
    path = str(near) if near.exists() else shutil.which("mpiexec")
    if path is None:
        raise CannotDo("mpiexec is not there: pip install 'kofn[mpi]'.")
    return path


def ranks_env(folder: str) -> dict[str, str]:
    """What mpiexec needs, with a folder of its own.

    One that is killed leaves a folder with the number of its process in the name, and the next with
    that number would not start.
    """
    return {**dict.fromkeys(ROOT, "1"), "OMPI_MCA_btl": "self,sm", "TMPDIR": folder}


@contextmanager
def ranks(
    main: str,
    A: Floats,
    seconds: float,
    options: Sequence[str] = TOLERANT,
    workers: int = WORKERS,
) -> Iterator[Remote]:
    """Run `main` (a module and its function) on a master's rank and on one for each worker.

    Fault tolerance is on by default: without it one lost worker would end them all.
    """
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, **ranks_env(folder)}
        np.save(Path(folder) / "A.npy", A)
        module, name = main.split(":")
        program = f"from {module} import {name}; {name}({folder!r}, {seconds!r})"
        spread = ("--bind-to", "none", "--oversubscribe", "-n", str(workers + 1))
        command = [mpiexec(), *options, *spread, sys.executable, "-c", program]
        both: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=env, **both) as process:
            try:
                yield Remote(process)
            finally:
                # mpiexec does not pass the end of its input on to rank 0.
                assert process.stdin is not None
                process.stdin.write('{"stop": true}\n')
                process.stdin.close()
                process.wait(30)


def questions() -> Iterator[dict[str, Any]]:
    """As rank 0: what `Remote` asks, until its end."""
    for line in sys.stdin:
        question = json.loads(line)
        if "stop" in question:
            return
        yield question


def answer(
    product: Callable[[str, Floats], Floats],
    columns: int,
    begin: Callable[[str, int], None] = lambda way, rounds: None,
) -> None:
    """As rank 0: do what `Remote` asks for, in the way that it asks for.

    `begin` is called with the way and the number of rounds before a block of them.
    """
    for question in questions():
        way, rounds = question["way"], question.get("rounds", 1)
        begin(way, rounds)
        if "w" in question:
            result: Any = product(way, np.asarray(question["w"])).tolist()
        else:
            result = timed(product, way, np.ones(columns))(rounds)
        print(json.dumps(result), flush=True)


def mpi_ranks(A: Floats, seconds: float) -> AbstractContextManager[Remote]:
    """One rank a worker; the way is the fastest of those in bare_mpi.py.

    Without fault tolerance, which costs a little: one lost worker would end them all.
    """
    return ranks("kofn.cli.bench.bare_mpi:products", A, seconds, ())


PRIMITIVES: dict[str, Callable[[Floats, float], AbstractContextManager[Product]]]
PRIMITIVES = {"local": pipes, "ray": ray_actors, "dask": dask_actors, "mpi": mpi_ranks}
