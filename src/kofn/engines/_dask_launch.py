"""Our own Dask scheduler and workers: processes of this machine, forked by a launcher.

The launcher is a fresh interpreter with a single thread that imports Dask once: forking it is safe
whatever threads the user's own process has, and a worker comes in a tenth of the time that a
`dask worker` command takes. All listen on 127.0.0.1 only, and talk to those who have the keys:
other users of this machine can reach the ports too, and a Dask worker runs what it is sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Coroutine
from importlib import import_module
from typing import Any, NoReturn

from ._forks import reseed

START = 60.0  # seconds for a process to come up
_ONE_THREAD = ("OPENBLAS", "OMP", "MKL", "VECLIB_MAXIMUM", "NUMEXPR", "BLIS")
_BOOT = (
    "import sys; fd, directory = int(sys.argv[1]), sys.argv[2]; sys.path[:] = sys.argv[3:]; "
    "from kofn.engines._dask_launch import launch; launch(fd, directory)"
)
_CERTIFICATE, _KEY = "tls.crt", "tls.key"  # in the launcher's directory
_SETTINGS: dict[str, Any] = {
    "distributed.comm.require-encryption": True,
    "distributed.scheduler.worker-ttl": None,  # a silent worker is a straggler, not a loss
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}


class Launcher:
    """The master's hold on the process that forks our own scheduler and workers."""

    def __init__(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="kofn-dask-")
        self.control, theirs = socket.socketpair()
        threads = {f"{name}_NUM_THREADS": "1" for name in _ONE_THREAD}
        command = [sys.executable, "-c", _BOOT, str(theirs.fileno()), self.directory, *sys.path]
        with theirs:
            self.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **threads, "VECLIB_MAXIMUM_THREADS": "1"},
            )
        self.control.settimeout(START)
        self._rest = b""

    def order(self, *words: str) -> None:
        """Ask for a process, or for the end of one: see `launch`."""
        self.control.sendall(_line(*words))

    def security(self) -> Any:
        """Return the keys to what it starts, when the scheduler is there."""
        security: Any = import_module("distributed").Security
        return security(require_encryption=True, **_keys(self.directory))

    def news(self) -> list[list[str]] | None:
        """Return what it says next, None at its end (or after START seconds)."""
        try:
            data = self.control.recv(1 << 16)
        except OSError:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def close(self) -> None:
        """Make it kill and reap its children and end."""
        self.control.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:  # somebody stopped it
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


# On the other side.


def launch(fd: int, directory: str) -> None:
    """Fork a process per order on socket `fd`; at its end kill and reap them all.

    The end comes when the master closes or dies, be it by kill -9. Orders and news are lines of
    JSON: ["scheduler"], ["worker", name, scheduler] and ["kill", name]; ["at", address] of the
    scheduler, ["up", address] of a worker and ["died", name].
    """
    security = import_module("distributed").Security.temporary()  # once, for all that are forked
    _write(directory, _CERTIFICATE, security.tls_ca_file)
    _write(directory, _KEY, security.tls_client_key)
    keys = {f"distributed.comm.tls.{_option(k)}": v for k, v in _keys(directory).items()}
    import_module("dask").config.set({**_SETTINGS, **keys})
    # Ctrl-C goes to the whole process group; only the master decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    control = socket.socket(fileno=fd)
    bell, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    children: dict[int, str] = {}
    rest = b""
    try:
        while True:
            ready = select.select([fd, bell], [], [])[0]
            if bell in ready:
                os.read(bell, 4096)
                for name in _reap(children):
                    control.sendall(_line("died", name))
            if fd in ready:
                data = control.recv(1 << 16)
                if not data:
                    return
                *orders, rest = (rest + data).split(b"\n")
                for kind, *args in map(json.loads, orders):
                    if kind == "kill":
                        # By the parent: until it has reaped the child, the pid is nobody else's.
                        for pid in [p for p, name in children.items() if name == args[0]]:
                            os.kill(pid, signal.SIGKILL)
                        continue
                    name = args[0] if args else kind
                    try:
                        pid = os.fork()
                    except OSError as error:  # no room for one more; the others go on
                        print(f"kofn: no fork for a Dask {kind}: {error}", file=sys.stderr)
                        control.sendall(_line("died", name))
                        continue
                    if pid == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        os.close(bell)
                        os.close(ring)
                        _become(kind, args, control, directory)
                    children[pid] = name
    except ConnectionError:
        pass
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)
        shutil.rmtree(directory, ignore_errors=True)


def _keys(directory: str) -> dict[str, str]:
    """Return Dask's TLS settings: one certificate for all, which only the user can read."""
    certificate, key = (os.path.join(directory, name) for name in (_CERTIFICATE, _KEY))
    keys = {"tls_ca_file": certificate}
    for role in ("client", "scheduler", "worker"):
        keys |= {f"tls_{role}_cert": certificate, f"tls_{role}_key": key}
    return keys


def _option(name: str) -> str:
    """Return what Dask's configuration calls a field of its Security."""
    role, _, field = name.removeprefix("tls_").rpartition("_")
    return "ca-file" if role == "ca" else f"{role}.{field}"


def _write(directory: str, name: str, text: str) -> None:
    path = os.path.join(directory, name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _reap(children: dict[int, str]) -> list[str]:
    names = []
    for pid in list(children):
        if os.waitpid(pid, os.WNOHANG)[0]:
            names.append(children.pop(pid))
    return names


def _line(*news: str) -> bytes:
    return json.dumps(news).encode() + b"\n"


def _become(kind: str, args: list[str], control: socket.socket, directory: str) -> NoReturn:
    """Be a scheduler or a worker until the end of this process."""
    try:
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        be = _scheduler if kind == "scheduler" else _worker
        asyncio.run(_with_parent(kind, be(control, directory, *args)))
    finally:
        os._exit(1)


async def _with_parent(kind: str, main: Coroutine[Any, Any, None]) -> NoReturn:
    """Run until `main` ends or the launcher is gone, which kills its children if it can.

    Then leave at once: to be polite to what is gone could take Dask half a minute.
    """
    parent, task = os.getppid(), asyncio.ensure_future(main)
    while not task.done():
        await asyncio.wait([task], timeout=1.0)
        if os.getppid() != parent:
            os._exit(1)
    error = task.exception()
    if error is not None:
        print(f"kofn: a Dask {kind} ended: {error!r}", file=sys.stderr, flush=True)
    os._exit(1 if error else 0)


async def _scheduler(control: socket.socket, directory: str) -> None:
    async with import_module("distributed").Scheduler(
        host="127.0.0.1",
        port=0,
        protocol="tls://",
        dashboard=False,
        dashboard_address="127.0.0.1:0",
        local_directory=directory,
    ) as scheduler:
        control.sendall(_line("at", scheduler.address))
        control.close()
        await scheduler.finished()


async def _worker(control: socket.socket, directory: str, name: str, address: str) -> None:
    reseed()
    async with import_module("distributed").Worker(
        address,
        name=name,
        nthreads=1,
        host="127.0.0.1",
        dashboard=False,
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
        local_directory=directory,
        death_timeout=30,
    ) as worker:
        control.sendall(_line("up", worker.address))
        control.close()
        await worker.finished()
