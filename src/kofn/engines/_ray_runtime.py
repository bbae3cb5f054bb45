"""This process's Ray: joined or started once, shared by its engines, let go with the last."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NoReturn

import ray
from ray._private.client_mode_hook import client_mode_should_convert
from ray._private.services import canonicalize_bootstrap_address

from ..errors import BadInput, EngineUnavailable
from ..interrupts import opened
from . import _processes
from ._ray_worker import ONE_THREAD

OLDEST = (2, 40)
_ANSWER = 5.0  # seconds for an address to answer

# For a cluster of our own. Workers at Ray's nice 15 would starve beside anything else.
_SETTINGS = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"} | ONE_THREAD
_JOINING = {"RAY_gcs_server_port_wait_time_s": "5"}  # tries, one a second
_LAST = "as the last `ray start` on this machine said"
# A death is an event here, and nothing to be printed to the user's terminal.
_NOISE = re.compile(
    "A worker died or was killed|Raylet is terminated|has been marked dead"
    "|worker processes have been started"  # more than CPUs, as it should be
)
# What ray.init and we leave in the environment of the caller, until the end.
_LEFT = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "PYTHONBREAKPOINT")


class Lease:
    """A use of Ray by one engine; `release` undoes what `enter` did, with the last engine."""

    def __init__(self, counted: bool) -> None:
        self._counted = counted

    @property
    def ours(self) -> bool:
        """Whether the cluster was started by us, and ends with us."""
        return self._counted and _hold.temp is not None

    def release(self) -> None:
        """Leave; idempotent."""
        with _lock:
            counted, self._counted = self._counted, False
            if counted:
                _hold.users -= 1
                if not _hold.users:
                    _hold.let_go()


class _Hold:
    """What our own ray.init did, as far as it must be undone."""

    def __init__(self) -> None:
        self.users = 0  # engines that live on our ray.init
        self.temp: str | None = None  # of a cluster that we started
        self.watcher: subprocess.Popen[bytes] | None = None  # of that folder
        self.before: dict[str, str | None] = {}
        self.skipped: Any = None

    def let_go(self) -> None:
        """Disconnect, which ends a cluster of our own, and leave the process as it was."""
        family = [] if self.temp is None else _processes.family(self.temp)
        try:
            ray.shutdown()
        finally:
            # Ray does not know what it has started yet when its start is interrupted.
            _processes.end(family)
            if self.temp is not None:
                _processes.end(_processes.family(self.temp))  # who was only just forked before
                _processes.remove(self.temp)
            if self.watcher is not None:
                self.watcher.kill()
                self.watcher.wait()
            self.temp = self.watcher = None
            _restore(self.before)
            _skip_lines(self.skipped)
            _forget_tokens()


_canonical: Any = canonicalize_bootstrap_address
_by_proxy: Any = client_mode_should_convert
_hold = _Hold()
_lock = threading.RLock()


def enter(address: Any, workers: int | None) -> Lease:
    """Use the Ray that this process is connected to, else join a cluster, else start one.

    An address is found as Ray finds it: the argument, RAY_ADDRESS, the last `ray start` here.
    Raises EngineUnavailable within 20 seconds when nothing answers there.
    """
    _check_version()
    if address is not None and not isinstance(address, str):
        raise BadInput(
            f"a Ray address is a string such as '10.0.0.1:6379', 'auto' or 'local'; "
            f"got {address!r}."
        )
    with _lock:
        if ray.is_initialized():
            _check_connected(address)
            counted = _hold.users > 0
            _hold.users += counted
            return Lease(counted)
        _hold.users = 0  # somebody else called ray.shutdown
        found, source = _find(address)
        _hold.before = {name: os.environ.get(name) for name in (*_SETTINGS, *_LEFT)}
        try:
            if found is None:
                _start(workers)
            else:
                _join(found, source)
        except BaseException:
            _hold.let_go()
            raise
        _hold.users, _hold.skipped = 1, _skip_lines(_NOISE)
        return Lease(True)


def _check_version() -> None:
    have = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if have < OLDEST:
        raise EngineUnavailable(
            f"engine 'ray' needs Ray {OLDEST[0]}.{OLDEST[1]} or later; {ray.__version__} is "
            f"installed: pip install -U 'kofn[ray]'."
        )


def _check_connected(address: str | None) -> None:
    """Refuse a Ray that this engine cannot use, or that is not the one asked for."""
    if _by_proxy():
        _refuse_proxy("ray://")
    connected = ray.get_runtime_context().gcs_address
    if address in (None, "auto") or (address == "local" and _hold.temp is not None):
        return
    with contextlib.suppress(Exception):
        if _canonical(address) == connected:
            return
    raise BadInput(
        f"a process has one Ray cluster at a time; this one is connected to {connected}, and "
        f"address={address!r} was asked for. Leave the address out to use what is connected, or "
        f"close that (ray.shutdown, or its kofn cluster) first."
    )


def _find(address: str | None) -> tuple[str | None, str]:
    """Return the address to join and who named it; None to start a cluster."""
    if address not in (None, "auto"):
        return (None, "") if address == "local" else (address, "as asked for")
    named = os.environ.get("RAY_ADDRESS", "")
    if named not in ("", "auto"):
        return (None, "") if named == "local" else (named, "as RAY_ADDRESS says")
    found = _canonical(None)
    if found is not None and not _refusal(*_host_and_port(found)):
        return found, _LAST
    if address == "auto":
        raise EngineUnavailable(
            "address='auto' joins a running Ray cluster; none was found: RAY_ADDRESS is not set, "
            "and no `ray start` has left one on this machine. Start one (ray start --head), or "
            "leave the address out to have a local one started."
        )
    return None, ""


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise BadInput(
            f"a Ray address is host:port, as `ray start --head` prints it; got {address!r}."
        )
    return host.strip("[]"), int(port)


def _refusal(host: str, port: int) -> str:
    """Say why no Ray cluster answers there; empty if one does, or may.

    Ray itself would try for a minute and more, and print what it tried.
    """
    stranger = "something listens there that is not Ray"
    try:
        with socket.create_connection((host, port), _ANSWER) as sock:
            if os.environ.get("RAY_USE_TLS", "0") not in ("0", "false"):
                return ""
            sock.sendall(_question(f"{host}:{port}"))
            answer, end = b"", time.monotonic() + _ANSWER
            while not (found := _answered(answer)) and time.monotonic() < end:
                more = sock.recv(4096)
                answer += more
                if not more or answer[3:4] not in (b"", b"\4"):  # HTTP/2 opens with SETTINGS
                    return stranger
            # 12: there is no such method, in what gRPC's own servers send.
            return "" if found and b"grpc-status\x0212" not in answer else stranger
    except OSError as error:
        return str(error) or type(error).__name__


def _question(authority: str) -> bytes:
    """The bytes of one gRPC call (HTTP/2, nothing compressed) that every Ray head answers."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/ray.rpc.NodeInfoGcsService/CheckAlive",
        ":authority": authority,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    text = b"".join(
        b"\0" + b"".join(bytes([len(word)]) + word.encode() for word in pair)
        for pair in headers.items()
    )
    opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"")
    return opening + _frame(1, 4, 1, text) + _frame(0, 1, 1, bytes(5))


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content


def _answered(answer: bytes) -> bool:
    """Whether the call has been answered: a whole frame of headers or data on its stream."""
    at = 0
    while len(answer) >= at + 9:
        end = at + 9 + int.from_bytes(answer[at : at + 3])
        stream = int.from_bytes(answer[at + 5 : at + 9])
        if stream == 1 and answer[at + 3] in (0, 1) and len(answer) >= end:
            return True
        at = end
    return False


def _join(address: str, source: str) -> None:
    if address.startswith("ray://"):
        _refuse_proxy(address)
    host, port = _host_and_port(address)
    if refusal := _refusal(host, port):
        raise EngineUnavailable(
            f"no Ray cluster answers at {address}, {source}: tried to connect to {host} port "
            f"{port} for up to {_ANSWER:.0f} s: {refusal}. Start one there (ray start --head "
            f"--port={port}), or pass address='local' to have one started here."
        )
    try:
        with _environment(_JOINING):
            # Ray may use this machine's token for a cluster that it finds itself, only.
            _init(address=None if source == _LAST else address)
    except Exception as error:
        raise EngineUnavailable(
            f"a cluster answers at {address}, {source}, but could not be joined. {_reason(error)}"
        ) from error


def _refuse_proxy(address: str) -> NoReturn:
    raise BadInput(
        f"engine 'ray' needs Ray's object store on this machine; {address} goes through a proxy. "
        f"Make this machine a part of the cluster, without workers if you like (ray start "
        f"--address=host:6379 --num-cpus=0), then connect with that address."
    )


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip()
    if "AuthToken" in text or "AuthenticationError" in text:
        return (
            "It asks for a token: set RAY_AUTH_MODE=token, with the cluster's token in "
            "~/.ray/auth_token (the same file on every machine) or in RAY_AUTH_TOKEN."
        )
    return f"Ray says: {text}"


def _start(workers: int | None) -> None:
    # Unix sockets lie below it, whose paths must be short: Ray adds up to 66 bytes, of 107.
    base = tempfile.gettempdir()
    _hold.temp = tempfile.mkdtemp(prefix="kofn-ray-", dir=base if len(base) < 22 else "/tmp")
    _hold.watcher = _processes.watch(_hold.temp)
    # Its own token, in a folder of the user alone: Ray's would be readable by others and stay.
    token = os.path.join(_hold.temp, "token")
    with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if "RAY_AUTH_TOKEN" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN_PATH", token)
    _forget_tokens()  # another's, of before
    with _environment(_SETTINGS), _processes.marked(_hold.temp):
        try:
            _init(
                address="local",
                # Also how many workers Ray starts at a time.
                num_cpus=max(workers or 1, os.cpu_count() or 1),
                include_dashboard=False,
                _temp_dir=os.path.join(_hold.temp, "r"),  # which Ray opens to everyone
            )
        except Exception as error:
            raise EngineUnavailable(
                f"Ray could not start a local cluster: {error}. See if `ray start --head` works."
            ) from error


def _init(**options: Any) -> None:
    """Call ray.init, with SIGTERM left to the user: what is ours ends with this process anyway."""
    with opened(foreign=True):
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM) if main else None
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        finally:
            if before is not None:  # else it is not Python's
                signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Settings that Ray reads from the environment only; what the user has set stays."""
    before = {name: os.environ.get(name) for name in settings}
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        _restore(before)


def _skip_lines(pattern: Any) -> Any:
    """Have Ray print no lines like this, and return what it was told before."""
    with contextlib.suppress(Exception):  # it is not a part of Ray that is promised to stay
        from ray._private.ray_logging import stdout_deduplicator

        before, stdout_deduplicator.skip_re = stdout_deduplicator.skip_re, pattern
        return before
    return None


def _forget_tokens() -> None:
    """Have Ray look again whether it uses tokens.

    It turns them on for a cluster of its own, and remembers. A process that still asked for them
    would refuse the calls of the next cluster, one without, and have its actors ended there.
    """
    with contextlib.suppress(Exception):
        raylet: Any = import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
