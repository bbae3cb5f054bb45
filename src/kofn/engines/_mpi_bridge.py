"""MPI for a process that mpiexec did not start: a small world of its own, and a way into it.

MPI can be started once in a process, its daemon then lives as long as the process, and its errors
end it. So a plain process never starts MPI: it runs mpiexec, whose rank 0 does nothing but carry
messages between a Unix socket and MPI. Closing ends that world without a trace, and another may
follow. The price is one hop more for each message.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from typing import Any, NoReturn

from ..errors import EngineUnavailable
from ..interrupts import opened
from . import _wire as wire
from ._mpi_doors import close_doors
from ._mpi_link import Link, News
from ._mpi_near import Mark, Process, Sample, neighbour
from ._mpi_pieces import Bytes, cut
from ._mpi_setup import ALWAYS, HERE, at_home, command, mpiexec, start, unset
from ._mpi_worker import Patience, serve

_SEND, _CONTROL, _SPAWN, _DROP = range(4)
_START = 60.0  # seconds for mpiexec to bring up its first process
_END = 20.0  # seconds for rank 0 to end everybody; it is longer than Link.close takes


class Bridge:
    """Link's face in a plain process; rank 0 of our own mpiexec has the Link."""

    def __init__(self, workers: int, mark: Mark) -> None:
        self.poll: Any = wire.poller()
        self.channel: wire.Channel | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.carrier: Process | None = None  # rank 0
        self._news: list[News] = []
        self._waiting: list[bytes] = []  # not yet sent
        try:
            self._start(workers, mark)
        except BaseException:
            self.close(())
            raise

    def _start(self, workers: int, mark: Mark) -> None:
        program, env = mpiexec(workers + 1)
        settings = unset({**HERE, **ALWAYS})
        with (
            # Gone once rank 0 has found the socket in it, so that nothing can be left behind.
            tempfile.TemporaryDirectory(prefix="kofn-mpi-") as directory,
            socket.socket(socket.AF_UNIX) as listener,
        ):
            path = os.path.join(directory, "socket")
            listener.bind(path)
            listener.listen(1)
            self.process = subprocess.Popen(
                [*program, *command(settings, path, mark)],
                stdin=subprocess.DEVNULL,
                env=env,
                start_new_session=True,  # Ctrl-C is for this process alone
            )
            limit = time.monotonic() + _START
            while not self._knocks(listener):
                if self.process.poll() is not None or time.monotonic() > limit:
                    raise EngineUnavailable(
                        f"engine 'mpi' starts its workers with {program[0]}; that "
                        + ("ended" if self.process.returncode is not None else "stayed silent")
                        + f" within {_START:.0f} s. See its message above."
                    )
            sock, _ = listener.accept()
        close_doors(self.process.pid)
        self.channel = wire.Channel(sock, self.poll)

    @staticmethod
    def _knocks(listener: socket.socket) -> bool:
        with opened():
            return bool(select.select([listener], [], [], 0.05)[0])

    def add(self, worker: int, comm: Any, rank: int) -> None:
        """Not needed: rank 0 knows the ranks it starts with."""

    def spawn(self, worker: int) -> None:
        """Order one more process."""
        if self.channel is None:
            self._news.append((worker, "the mpiexec that this engine had started has ended"))
        self._say(_SPAWN, worker)

    def send(self, worker: int, data: Bytes) -> None:
        """Send a message, once `flush` or anything else is called: one system call for many."""
        self._waiting += (wire.frame(_SEND, worker, *part) for part in cut(data))

    def control(self, worker: int, round: int | None) -> None:
        """Speak to a worker out of turn."""
        self._say(_CONTROL, worker, round)

    def drop(self, worker: int) -> None:
        """Forget a worker."""
        self._say(_DROP, worker)

    def _say(self, *message: Any) -> None:
        self._waiting.append(wire.frame(*message))
        self.flush()

    def flush(self) -> None:
        """Send what waits."""
        waiting, self._waiting = self._waiting, []
        if waiting and self.channel is not None:
            self.channel.send(b"".join(waiting))

    def receive(self, timeout: float) -> list[News]:
        """Return what has arrived, waiting at most `timeout` seconds for the first.

        The worker -1 is rank 0 itself.
        """
        self.flush()
        channel = self.channel
        if channel is None:
            news, self._news = self._news, []
            if not news:
                with opened():
                    time.sleep(timeout)
            return news
        if timeout <= 0:
            found = self.poll.poll(0)
        else:
            with opened():
                found = self.poll.poll(timeout)
        for _, mask in found:
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

    def met(self, mark: Mark) -> None:
        """Take note of who rank 0 is."""
        with contextlib.suppress(OSError):  # gone: the channel will tell
            self.carrier = neighbour(mark)

    def _hang_up(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def close(self, workers: Iterable[Process]) -> None:
        """Let rank 0 end its workers and itself; kill what is left."""
        self._hang_up()
        if self.process is not None and not self._ended(_END):
            for process in (*workers, *([self.carrier] if self.carrier is not None else [])):
                process.kill()
            if not self._ended(5):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
                # What it would have removed itself.
                session = os.path.join(tempfile.gettempdir(), f"ompi.{self.process.pid}")
                shutil.rmtree(session, ignore_errors=True)
        if self.carrier is not None:
            self.carrier.close()
        self.poll.close()

    def _ended(self, seconds: float) -> bool:
        assert self.process is not None
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


# The other side.


def main(*bridge: Any) -> NoReturn:
    """Be what mpiexec or Spawn started this process for."""
    MPI = start()  # it was before, see _BOOT
    if at_home():
        close_doors()
    parent = MPI.Comm.Get_parent()
    if parent != MPI.COMM_NULL:
        serve(MPI, parent)
    if MPI.COMM_WORLD.Get_rank():
        # Until rank 0 greets, who started us is all that there is to watch.
        serve(MPI, MPI.COMM_WORLD, bridge[1][0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _carry(MPI, *bridge)  # raises where nobody is there any more, and that ends all
    os._exit(0)


def _carry(MPI: Any, path: str, mark: Mark) -> None:
    """Carry messages until the other end of the socket is gone; then end the workers."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(path)
    except OSError:  # killed meanwhile: it cannot remove this itself
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)
        raise
    poll = wire.poller()
    channel = wire.Channel(sock, poll)
    settings = {k: v for k, v in os.environ.items() if k in {**HERE, **ALWAYS}}
    link = Link(MPI, command(settings), mark)
    link.ear.register(sock.fileno(), wire.IN)  # what comes there ends a rest too
    sample = Sample()
    channel.send(wire.frame(-1, sample.mark))
    for rank in range(1, MPI.COMM_WORLD.Get_size()):
        link.add(rank - 1, MPI.COMM_WORLD, rank)

    patience = Patience(link.spin)
    while True:
        moved = False
        for _, mask in poll.poll(0.001 if channel.outbox else 0):
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
                        _obey(link, *message)
                    link.flush()
        if news := link.receive(0):
            moved = True
            channel.send(b"".join(wire.frame(*item) for item in news))  # one wake-up for all
        patience = Patience(link.spin) if moved else link.rest(patience, 1.0)


def _obey(link: Link, op: int, number: int, what: Any = None, data: Any = None) -> None:
    if op == _SEND:
        link.carry(number, what, data)
    elif op == _CONTROL:
        link.control(number, what)
    elif op == _SPAWN:
        link.spawn(number)
    else:
        link.drop(number)
