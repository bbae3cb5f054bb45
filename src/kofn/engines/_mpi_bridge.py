"""MPI for a process that mpiexec did not start: a small world of its own, and a way into it.

MPI can be started once in a process, its daemon then lives as long as the process, and its errors
end it. So a plain process never starts MPI: it runs mpiexec, whose rank 0 does nothing but carry
messages between a Unix socket and MPI. Closing ends that world without a trace, and another may
follow. The price is one hop more for each message.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from ..errors import EngineUnavailable
from . import _wire as wire
from ._mpi_link import Link, News
from ._mpi_worker import SMALL, Patience, kill, serve

_SEND, _CONTROL, _SPAWN, _DROP, _SHARE, _SHARED, _UNSHARE = range(7)
_START = 60.0  # seconds for mpiexec to bring up its first process
# MPI starts first: a Spawn is over when it has, and the next one need not wait for our imports.
_BOOT = (
    "import json, os, sys; os.environ.update(json.loads(sys.argv[1])); path = sys.argv[2]; "
    "sys.path[:] = sys.argv[3:]; import mpi4py; mpi4py.rc.finalize = False; "
    "from mpi4py import MPI; from kofn.engines._mpi_bridge import main; main(path)"
)
_THREADS = ("OPENBLAS", "OMP", "MKL", "VECLIB_MAXIMUM", "NUMEXPR", "BLIS")

# For a machine of its own; each only where the user has not set it. Shared memory does not reach
# from one mpiexec job to the next, so joiners are spoken to over TCP.
HERE = {"OMPI_MCA_btl": "self,sm,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
# The heartbeat detector, where a user turns it on, takes a busy worker for dead without a thread.
ALWAYS = {"OMPI_MCA_mpi_ft_detector_thread": "1"}
DAEMON = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    # A lost worker is no failed job, be it spawned or not, and none says goodbye.
    "PRTE_MCA_state_base_recoverable": "1",
    "PRTE_MCA_prte_allowed_exit_without_sync": "1",
    "PRTE_MCA_prte_report_child_jobs_separately": "1",
    "PRTE_MCA_prte_execute_quiet": "1",
}


def start() -> Any:
    """Start MPI in this process, if nobody has, and return mpi4py.MPI."""
    import mpi4py

    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.thread_level = "multiple"  # for Spawn in the background
        mpi4py.rc.finalize = False  # it would wait for workers that are gone
    from mpi4py import MPI

    return MPI


def command(settings: dict[str, str], path: str = "-") -> list[str]:
    """Return what a worker (or, with a socket's path, rank 0) runs."""
    threads = {f"{name}_NUM_THREADS": "1" for name in _THREADS}
    paths = [entry or os.getcwd() for entry in sys.path]
    return [sys.executable, "-c", _BOOT, json.dumps({**threads, **settings}), path, *paths]


def unset(settings: dict[str, str]) -> dict[str, str]:
    """Return those settings that the user has not made."""
    return {name: value for name, value in settings.items() if name not in os.environ}


class Bridge:
    """Link's face in a plain process; rank 0 of our own mpiexec has the Link."""

    def __init__(self, workers: int) -> None:
        self.poll: Any = wire.poller()
        self.channel: wire.Channel | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.pid = 0  # of rank 0
        self._news: list[News] = []
        self._shared: dict[int, int] = {}  # id of the bytes -> number
        self._numbers = 0
        try:
            self._start(workers)
        except BaseException:
            self.close(())
            raise

    def _start(self, workers: int) -> None:
        program = _mpiexec()
        settings = unset({**HERE, **ALWAYS})
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PMIX_", "OMPI_COMM_"))}
        options = ["--with-ft", "ulfm", "--bind-to", "none", "-n", str(workers + 1)]
        with (
            # Gone once rank 0 has found the socket in it, so that nothing can be left behind.
            tempfile.TemporaryDirectory(prefix="kofn-mpi-") as directory,
            socket.socket(socket.AF_UNIX) as listener,
        ):
            path = os.path.join(directory, "socket")
            listener.bind(path)
            listener.listen(1)
            self.process = subprocess.Popen(
                [program, *options, *command(settings, path)],
                stdin=subprocess.DEVNULL,
                env={**env, **unset(DAEMON)},
                start_new_session=True,  # Ctrl-C is for this process alone
            )
            limit = time.monotonic() + _START
            while not select.select([listener], [], [], 0.05)[0]:
                if self.process.poll() is not None or time.monotonic() > limit:
                    raise EngineUnavailable(
                        f"engine 'mpi' starts its workers with {program}; that "
                        + ("ended" if self.process.returncode is not None else "stayed silent")
                        + f" within {_START:.0f} s. See its message above."
                    )
            sock, _ = listener.accept()
        self.channel = wire.Channel(sock, self.poll)

    def add(self, worker: int, comm: Any, rank: int) -> None:
        """Not needed: rank 0 knows the ranks it starts with."""

    def spawn(self, worker: int) -> None:
        """Order one more process."""
        if self.channel is None:
            self._news.append((worker, "the mpiexec that this engine had started has ended"))
        self._say(_SPAWN, worker)

    def send(self, worker: int, data: bytes) -> None:
        """Send frames: one system call."""
        number = self._shared.get(id(data))
        if number is None:
            self._say(_SEND, worker, data)
        else:
            self._say(_SHARED, worker, number)

    def share(self, data: bytes) -> None:
        """Bring bytes over that will be sent to many workers."""
        if len(data) > SMALL:
            self._shared[id(data)] = self._numbers
            self._say(_SHARE, self._numbers, data)
            self._numbers += 1

    def unshare(self, data: bytes) -> None:
        """Let them go."""
        number = self._shared.pop(id(data), None)
        if number is not None:
            self._say(_UNSHARE, number)

    def control(self, worker: int, round: int | None) -> None:
        """Speak to a worker out of turn."""
        self._say(_CONTROL, worker, round)

    def drop(self, worker: int) -> None:
        """Forget a worker."""
        self._say(_DROP, worker)

    def _say(self, *message: Any) -> None:
        if self.channel is not None:
            self.channel.send(wire.frame(*message))

    def receive(self, timeout: float) -> list[News]:
        """Return what has arrived, waiting at most `timeout` seconds for the first.

        The worker -1 is rank 0 itself.
        """
        channel = self.channel
        if channel is None:
            news, self._news = self._news, []
            if not news:
                time.sleep(timeout)
            return news
        for _, mask in self.poll.poll(timeout):
            if mask & wire.OUT and channel.outbox:
                channel.flush()
            if mask & ~wire.OUT:
                try:
                    arrived = channel.receive()
                except BlockingIOError:
                    continue
                if arrived is None:
                    self._hang_up()
                    return [(-1, None)]
                return arrived
        return []

    def _hang_up(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def close(self, pids: Iterable[int]) -> None:
        """Let rank 0 end its workers and itself; kill what is left: `pids` are the workers here."""
        self._hang_up()
        if self.process is not None and not self._ended(5):
            for pid in (*pids, self.pid):
                kill(pid)
            if not self._ended(5):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
                # What it would have removed itself.
                session = os.path.join(tempfile.gettempdir(), f"ompi.{self.process.pid}")
                shutil.rmtree(session, ignore_errors=True)
        self.poll.close()

    def _ended(self, seconds: float) -> bool:
        assert self.process is not None
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def _mpiexec() -> str:
    """Return Open MPI's mpiexec: the one installed with this Python, else the one on the path."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise EngineUnavailable(
            "engine 'mpi' needs Open MPI's mpiexec, beside Python or on the PATH; there is none: "
            "pip install 'kofn[mpi]'."
        )
    about = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in about:
        raise EngineUnavailable(
            f"engine 'mpi' needs Open MPI 5.0.6 or newer, which can survive a lost worker; {found} "
            f"is {about.strip().splitlines()[0] if about.strip() else 'of unknown kind'}: "
            f"pip install 'kofn[mpi]'."
        )
    check_version(about)
    return found


def check_version(about: str) -> None:
    """Raise EngineUnavailable when Open MPI is older than what this was made for."""
    words = about.replace(",", " ").replace("v", "").split()
    found = next((w for w in words if w[:1].isdigit() and "." in w), "0")
    numbers = [int("".join(filter(str.isdigit, part)) or 0) for part in found.split(".")[:3]]
    if numbers < [5, 0, 6]:
        raise EngineUnavailable(
            f"engine 'mpi' needs Open MPI 5.0.6 or newer; this is {found}: "
            f"pip install -U 'kofn[mpi]'."
        )


# The other side.


def main(path: str) -> NoReturn:
    """Be what mpiexec or Spawn started this process for."""
    MPI = start()
    parent = MPI.Comm.Get_parent()
    if parent != MPI.COMM_NULL:
        serve(MPI, parent)
    if MPI.COMM_WORLD.Get_rank():
        serve(MPI, MPI.COMM_WORLD)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _carry(MPI, path)
    finally:
        os._exit(0)


def _carry(MPI: Any, path: str) -> None:
    """Carry messages until the other end of the socket is gone; then end the workers."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    poll = wire.poller()
    channel = wire.Channel(sock, poll)
    settings = {k: v for k, v in os.environ.items() if k in {**HERE, **ALWAYS}}
    link = Link(MPI, command(settings))
    channel.send(wire.frame(-1, os.getpid().to_bytes(8, "little")))
    for rank in range(1, MPI.COMM_WORLD.Get_size()):
        link.add(rank - 1, MPI.COMM_WORLD, rank)
    shared: dict[int, bytes] = {}

    patience = Patience()
    while True:
        moved = False
        for _, mask in poll.poll(0):
            moved = True
            if mask & wire.OUT and channel.outbox:
                channel.flush()
            if mask & ~wire.OUT:
                with contextlib.suppress(BlockingIOError):
                    messages = channel.receive()
                    if messages is None:
                        link.close()
                        return
                    for message in messages:
                        _obey(link, shared, *message)
        if news := link.receive(0):
            moved = True
            channel.send(b"".join(wire.frame(*item) for item in news))  # one wake-up for all
        if moved:
            patience = Patience()
        elif rest := patience.rest():
            select.select([sock], [], [], rest)


def _obey(link: Link, shared: dict[int, bytes], op: int, number: int, data: Any = None) -> None:
    if op == _SEND:
        link.send(number, data)
    elif op == _SHARED:
        link.send(number, shared[data])
    elif op == _CONTROL:
        link.control(number, data)
    elif op == _SPAWN:
        link.spawn(number)
    elif op == _DROP:
        link.drop(number)
    elif op == _SHARE:
        shared[number] = data
    else:
        del shared[number]
