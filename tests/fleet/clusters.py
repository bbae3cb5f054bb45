"""Clusters of several hosts, started by the commands of docs/engines.md, and their master."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, ClassVar

from hosts import Host, Hosts
from mpi_hosts import MPIHosts
from support import until

from . import ec2

METADATA = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": ec2.BASE}
EACH = 2  # workers of a host
ANSWER = 120.0  # seconds for the master to answer


class MasterFailed(Exception):
    """The master raised, or has ended; the text has what it said."""


class Remote:
    """The master's program, as seen from outside. `status` is what it said last of its rounds."""

    def __init__(self, process: subprocess.Popen[Any], log: Path) -> None:
        self.process, self.status = process, dict[str, Any]()
        self._log, self._lines = log, SimpleQueue[dict[str, Any] | None]()
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        with self.process.stdout as lines, suppress(ValueError):
            for line in lines:
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def send(self, **command: Any) -> None:
        """Say something to the master."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have the master do something and return what it answers."""
        self.send(do=do, **arguments)
        return self.answer()

    def answer(self) -> Any:
        """Wait for an answer; statuses before it are taken in."""
        limit = time.monotonic() + ANSWER
        while (line := self._next(limit - time.monotonic())) is not None:
            if "answer" in line:
                return line["answer"]
        raise MasterFailed(f"the master has not answered in {ANSWER:.0f} s. {self._said()}")

    def until(self, done: Callable[[dict[str, Any]], object], seconds: float) -> float | None:
        """Wait until the master's status is so; return when it was, None if it was not in time."""
        limit = time.monotonic() + seconds
        while not (self.status and done(self.status)):
            if self._next(limit - time.monotonic()) is None:
                return None
        return float(self.status["time"])

    def _next(self, seconds: float) -> dict[str, Any] | None:
        try:
            line = self._lines.get(timeout=max(0.0, seconds))
        except Empty:
            return None
        if line is None or "raised" in line:
            said = self._said() if line is None else line["raised"]
            raise MasterFailed(f"the master {'has ended' if line is None else 'raised'}: {said}")
        self.status = line.get("status", self.status)
        return line

    def _said(self) -> str:
        return self._log.read_text()[-4000:]

    def close(self) -> None:
        """Have it end."""
        assert self.process.stdin
        with suppress(OSError, ValueError):  # it is gone, or was closed before
            self.send(do="end")  # mpiexec does not pass on the end of its input
        with suppress(OSError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)


class Fleet(ABC):
    """An engine's cluster on hosts A, B, ..., with the master on A. `folder` is seen by all."""

    engine: ClassVar[str]
    address: str | None = None  # for kofn.connect
    rejoins: ClassVar[bool] = False  # whether a host that was given up is used again
    replaces: ClassVar[bool] = False  # whether a worker that died is replaced unasked
    program: tuple[str, ...] = ("-m", "fleet.master")

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.master: Remote
        self.metadata: dict[str, subprocess.Popen[Any]] = {}  # services, by letter of their host

    @abstractmethod
    def start(self) -> None:
        """Start the cluster on all hosts."""

    @abstractmethod
    def serve(self, *hosts: Host) -> None:
        """Make more hosts a part of the cluster; two workers come from each."""

    def command(self) -> list[str]:
        """What runs on A as the master."""
        return [sys.executable, *self.program]

    def connect(self, room: int = 0, **options: Any) -> Any:
        """Start a master and have it connect to all workers; return what it says of that.

        With `notices`, every host has a metadata service.
        """
        if options.get("notices"):
            self.metadata = {host.letter: self._metadata(host) for host in self.hosts}
        log, pipe = self.folder / "master.log", subprocess.PIPE
        with log.open("w") as errors:
            process = self.start_master(stdin=pipe, stdout=pipe, stderr=errors, text=True)
        self.master = Remote(process, log)
        came = self.master.ask(
            "connect",
            engine=self.engine,
            address=self.address,
            workers=EACH * len(list(self.hosts)),
            room=room,
            **options,
        )
        self._pid = came["pid"]
        return came

    def _metadata(self, host: Host) -> subprocess.Popen[Any]:
        pipe, program = subprocess.PIPE, [sys.executable, "-m", "fleet.ec2"]
        service = host.start(program, stdin=pipe, stdout=pipe, text=True)
        assert service.stdout
        assert service.stdout.readline() == "ready\n"
        return service

    def announce(self, host: Host, seconds: float) -> float:
        """Have a host's metadata service say that it ends then; return when that is."""
        service = self.metadata[host.letter]
        assert service.stdin
        assert service.stdout
        service.stdin.write(f"{seconds}\n")
        service.stdin.flush()
        return time.monotonic() + float(service.stdout.readline()) - time.time()

    def start_master(self, **options: Any) -> subprocess.Popen[Any]:
        """Start a master on A; `options` are those of Popen."""
        return self.hosts["A"].start(self.command(), **options)

    def kill_master(self) -> None:
        """Kill -9 the master, and nothing else."""
        self.hosts["A"].run(["kill", "-9", str(self._pid)])

    def signatures(self) -> dict[Path, str]:
        """Have all workers sign; return their files, named by host and process, and contents."""
        folder = self.folder / f"signed-{time.monotonic_ns()}"
        folder.mkdir()
        self.master.ask("signed", folder=str(folder))
        return {path: path.read_text() for path in sorted(folder.iterdir())}

    def pids(self, host: Host) -> list[str]:
        """The workers of a host, by the numbers that their processes have there."""
        names = [path.name.split() for path in self.signatures()]
        return [pid for name, pid in names if name == host.name]

    def works(self, signed: dict[Path, str]) -> bool:
        """Whether one of those who signed still works: its session, or where it has none, it."""
        for path, threads in signed.items():
            name, pid = path.name.split()
            host = next(host for host in self.hosts if host.name == name)
            there = host.run(["sh", "-c", f"ls /proc/{pid}/task 2>/dev/null || true"]).split()
            if set(there) & set(threads.split() or [pid]):
                return True
        return False

    def launch(self, host: Host, *words: str) -> subprocess.Popen[Any]:
        """Start a command of the documentation on a host; what it says is in the host's log."""
        with self.log(host).open("a") as out:
            return host.start(words, METADATA, stdout=out, stderr=out)

    def log(self, host: Host) -> Path:
        """The file of what was said on a host."""
        return self.folder / f"{host.name}.log"

    def close(self) -> None:
        """Have the master end; what is left ends with the hosts."""
        if hasattr(self, "master"):
            self.master.close()


class DaskFleet(Fleet):
    engine = "dask"
    rejoins = True
    replaces = True  # by its nanny

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        super().__init__(hosts, folder)
        self._expected: dict[Host, int] = {}  # workers that were started so far

    def start(self) -> None:
        self.address = f"tcp://{self.hosts['A'].address}:8786"
        self.launch(self.hosts["A"], "dask", "scheduler", "--no-dashboard")
        self.serve(*self.hosts)

    def serve(self, *hosts: Host) -> None:
        for host in hosts:
            for _ in range(EACH):
                words = ("dask", "worker", str(self.address), "--nthreads", "1", "--no-dashboard")
                self.launch(host, *words)
            self._expected[host] = self._expected.get(host, 0) + EACH

        def there(host: Host) -> bool:
            return self.log(host).read_text().count("Registered to:") >= self._expected[host]

        until(lambda: all(map(there, hosts)), "Dask's workers to come", ANSWER)


class RayFleet(Fleet):
    engine = "ray"
    rejoins = True

    def start(self) -> None:
        head = self.hosts["A"]
        self.address = f"{head.address}:6379"
        self._ray(head, "--head", "--port=6379", "--include-dashboard=false")
        self.serve(*(host for host in self.hosts if host is not head))

    def serve(self, *hosts: Host) -> None:
        for host in hosts:
            self._ray(host, f"--address={self.address}")

    def _ray(self, host: Host, *words: str) -> None:
        # Hosts of one machine share its memory, of which each would take a third.
        memory = "--object-store-memory=200000000"
        options = (f"--node-ip-address={host.address}", f"--num-cpus={EACH}", memory)
        started = self.launch(host, "ray", "start", *words, *options)
        assert started.wait(ANSWER) == 0, self.log(host).read_text()


class MPIFleet(Fleet):
    """Its workers are ranks, and mpiexec on A starts them with every master."""

    engine = "mpi"
    rejoins = True

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        super().__init__(hosts, folder)
        self._mpi = MPIHosts(hosts, folder)

    def start(self) -> None:
        pass

    def start_master(self, **options: Any) -> subprocess.Popen[Any]:
        ranks = {host.letter: EACH for host in self.hosts}
        # What mpiexec is given in its environment does not reach the ranks of other hosts.
        given = [f"{name}={value}" for name, value in METADATA.items()]
        command = ["env", *given, *self.command()]
        return self._mpi.start(command, {**ranks, "A": EACH + 1}, **options)

    def serve(self, *hosts: Host) -> None:
        raise NotImplementedError("mpiexec takes in no host that was not there from the start")

    def close(self) -> None:
        super().close()
        self._mpi.close()


@contextmanager
def opened(
    engine: str, hosts: Hosts, folder: Path, room: int = 0, **options: Any
) -> Iterator[Fleet]:
    """A fleet whose master is connected to all its workers."""
    fleet = FLEETS[engine](hosts, folder)
    try:
        fleet.start()
        fleet.connect(room, **options)
        yield fleet
    finally:
        fleet.close()


FLEETS: dict[str, type[Fleet]] = {"dask": DaskFleet, "ray": RayFleet, "mpi": MPIFleet}
