"""A process that forks others: a fresh interpreter with a single thread.

Forking it is safe and takes milliseconds, whatever threads the user's own process has, and needs no
`if __name__ == "__main__"`. Orders and news are frames; descriptors may ride along with an order.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from . import _wire as wire
from ._forks import serve_a_master, signal_at_end
from ._processes import ONE_THREAD, interpreter

DIED, FAILED = "died", "failed"  # news: of a child that ended; of one that could not be forked
_KILL = "kill"
_BOOT = (
    "import sys; fd, module, folder = sys.argv[1:4]; sys.path[:] = sys.argv[4:]; "
    "from kofn.engines._launcher import launch; launch(int(fd), module, folder)"
)


class Launcher:
    """The master's hold on it. `module`: whose `begin(order, fds, control)` a child runs.

    `folder` is removed when it ends, be it after a kill -9 of the master.
    """

    def __init__(self, module: str, folder: str = "") -> None:
        self.folder = folder
        try:
            self._start(module)
        except BaseException:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def _start(self, module: str) -> None:
        program = interpreter()
        self.control, theirs = wire.pair()
        self._reader = wire.Reader(self.control)
        start = [program, "-c", _BOOT, str(theirs.fileno()), module, self.folder, *sys.path]
        # Ctrl-C goes to it too, before it can say that it does not want it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with theirs:
                self.process = subprocess.Popen(
                    start,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=os.environ | ONE_THREAD,
                )
        except BaseException:
            self.control.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def order(self, name: str, *order: Any, fds: Sequence[int] = ()) -> None:
        """Have a child forked that begins with this order; its name is for `kill` and news."""
        data = wire.frame(name, *order)
        if fds:
            socket.send_fds(self.control, [data], fds)
        else:
            self.control.sendall(data)

    def kill(self, name: str) -> None:
        """Have a child killed, by its parent: until it is reaped, its pid is nobody else's."""
        self.order(_KILL, name)

    def news(self, flags: int = 0) -> list[Any] | None:
        """Return what it says next, None at its end. May raise BlockingIOError or TimeoutError."""
        return self._reader.receive(flags)

    def close(self) -> None:
        """Make it kill and reap its children and end."""
        self.control.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:  # somebody stopped it
            self.process.kill()
            self.process.wait()
        if self.folder:  # it may have been killed before it could
            shutil.rmtree(self.folder, ignore_errors=True)


# The other side.


def report(control: socket.socket, *news: Any) -> None:
    """Tell the master something."""
    control.sendall(wire.frame(*news))


def launch(fd: int, module: str, folder: str) -> None:
    """Fork a child per order on socket `fd`; clean up when the master closes or dies, however."""
    serve_a_master()
    # What is blocked in the user's program is blocked here too: SIGCHLD, by which we
    # reap, or the SIGTERM that is a worker's notice.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    __import__(module)
    begin = sys.modules[module].begin
    control = wire.adopt(fd)
    signal_at_end(fd, signal.SIGCONT)  # if it is stopped then, it goes on, and cleans up
    reader = wire.Reader(control)
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    children: dict[int, str] = {}  # their names, by pid
    try:
        while True:
            ready = select.select([fd, wake], [], [])[0]
            if wake in ready:
                os.read(wake, 4096)
                for pid in list(children):
                    if os.waitpid(pid, os.WNOHANG)[0]:
                        report(control, DIED, children.pop(pid))
            orders = reader.receive() if fd in ready else []
            if orders is None:
                return
            for order in orders:
                if order[0] == _KILL:
                    for pid in [p for p, name in children.items() if name == order[1]]:
                        os.kill(pid, signal.SIGKILL)
                    continue
                # All that there are: the kernel lets nobody read on past descriptors.
                fds = list(reader.fds)
                reader.fds.clear()
                try:
                    if -1 in fds:  # there was no room for one
                        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                    run = partial(begin, order, fds, control)
                    children[_fork(order[0], run, (wake, wake_end))] = order[0]
                except OSError as error:  # no room for one more; the others go on
                    report(control, FAILED, order[0], os.strerror(error.errno or errno.EAGAIN))
                for passed in fds:
                    if passed >= 0:
                        os.close(passed)
    except ConnectionError:
        pass
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _fork(name: str, run: Callable[[], None], ours: tuple[int, int]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in ours:
                os.close(fd)
            run()
        except OSError as error:
            print(f"kofn: {name} cannot go on and ends: {error}", file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid
