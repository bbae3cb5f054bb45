"""The Ray of this process and its machines: shared by its engines, let go with the last of them."""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from itertools import cycle, islice, zip_longest
from typing import Any

import ray
import ray.util.client

# Private: nothing public tells where the last `ray start` was without connecting to it.
from ray._private.services import canonicalize_bootstrap_address

from ..errors import BadInput, EngineUnavailable
from ..interrupts import opened
from ._processes import MARK, ONE_THREAD, end_folder, interpreter, watch
from .memory import room_for

RESOURCE = "kofn"  # a machine that offers it says how many workers it takes
_ANSWER = 5.0  # seconds for an address to be connected to; twice as long to answer
# What a child runs to ask a cluster: the command `ray`, after a line that says it has started.
_ASK = "from ray.scripts.scripts import main; print(flush=True); main()"

# For a cluster of our own. Workers at Ray's nice 15 would starve beside anything else.
_SETTINGS = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"} | ONE_THREAD
_TRIES = "RAY_gcs_server_port_wait_time_s"  # how often Ray tries to join a cluster, once a second
_LAST = "as the last `ray start` on this machine said"
# A death is an event here, and nothing to be printed to the user's terminal.
_NOISE = re.compile(
    "A worker died or was killed|Raylet is terminated|has been marked dead"
    "|worker processes have been started"  # more than CPUs, as it should be
)
# What ray.init and we leave in the environment of the caller, until the end.
_LEFT = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "PYTHONBREAKPOINT")

_proxy: Any = ray.util.client.ray
_canonical: Any = canonicalize_bootstrap_address
_lock = threading.RLock()


@dataclass
class Session:
    """One ray.init and the engines that use it; what we did is undone with the last of them."""

    users: int = 0
    temp: str | None = None  # of a cluster that we started, which ends with us
    undo: ExitStack = field(default_factory=ExitStack)  # empty where the user called ray.init

    def release(self) -> None:
        """End one engine's use."""
        with _lock:
            self.users -= 1
            if not self.users:
                self.undo.close()


_session = Session()  # the last of ours


def enter(address: Any, workers: int | None) -> Session:
    """Use the Ray that this process is connected to, else join a cluster, else start one.

    Raises EngineUnavailable within 20 seconds when nothing answers at the address.
    """
    if tuple(map(int, ray.__version__.split(".")[:2])) < (2, 52):  # the first that asks for tokens
        raise EngineUnavailable(
            f"engine 'ray' needs Ray 2.52 or later; {ray.__version__} is installed: pip install -U "
            f"'kofn[ray]'."
        )
    if not isinstance(address, str | None):
        raise _bad_address(address)
    global _session
    with _lock:
        if ray.is_initialized():
            _check_connected(address)
            session = _session if _session.users else Session()
        else:
            existing, source = _find(address)
            _session.undo.close()  # if somebody else called ray.shutdown
            _session = session = Session()
            with ExitStack() as undo:
                undo.callback(_forget_tokens)
                undo.enter_context(_kept(*_LEFT))
                # Private: the public setting is read when Ray is imported, maybe long ago.
                with suppress(Exception):
                    printer: Any = import_module("ray._private.ray_logging").stdout_deduplicator
                    undo.callback(setattr, printer, "skip_re", printer.skip_re)
                    printer.skip_re = _NOISE
                if existing is None:
                    session.temp = _start(undo, workers)
                else:
                    undo.callback(ray.shutdown)
                    _join(existing, source)
                session.undo = undo.pop_all()
        session.users += 1
        return session


def _bad_address(address: Any) -> BadInput:
    return BadInput(
        f"a Ray address is a string, 'auto', 'local' or host:port as `ray start --head` prints it; "
        f"got {address!r}. What begins with ray:// goes through a proxy, but engine 'ray' needs "
        f"Ray's object store on this machine: make it a part of the cluster, without workers if "
        f"you like (ray start --address=host:6379 --num-cpus=0)."
    )


def _check_connected(address: str | None) -> None:
    """Refuse a Ray that this engine cannot use, or that is not the one asked for."""
    if _proxy.is_connected():
        raise _bad_address("ray://")
    if address in (None, "auto") or (address == "local" and _session.users and _session.temp):
        return
    connected = ray.get_runtime_context().gcs_address
    with suppress(Exception):
        if _canonical(address) == connected:
            return
    raise BadInput(
        f"a process has one Ray cluster at a time; this one is connected to {connected}, not to "
        f"{address!r}. Leave the address out to use it, or end it (its kofn cluster, ray.shutdown)."
    )


def _find(address: str | None) -> tuple[str | None, str]:
    """Return the address to join and who named it, as Ray finds it; None to start a cluster."""
    named = os.environ.get("RAY_ADDRESS")
    for name, source in ((address, "as asked for"), (named, "as RAY_ADDRESS says")):
        if name and name != "auto":
            return (None, "") if name == "local" else (name, source)
    existing = _canonical(None)
    if existing is not None and not _refusal(existing):
        return existing, _LAST
    if address == "auto":
        raise EngineUnavailable(
            "address='auto' joins a running Ray cluster; none was found, by RAY_ADDRESS or on this "
            "machine. Start one (ray start --head), or leave the address out for a local one."
        )
    return None, ""


def _refusal(address: str) -> str:
    """Say why no Ray cluster answers there; empty if one does, or may.

    A child asks: Ray would try for 40 seconds, print what it tried, and cannot be stopped.
    """
    host, _, port = address.rpartition(":")
    if not host or "//" in host or not port.isdigit():
        raise _bad_address(address)
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER).close()
    except OSError as error:
        return f"tried to connect to {host} port {port} for up to {_ANSWER:.0f} s: {error}"
    command = [interpreter(), "-P", "-c", _ASK, "status", "--address", address]
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, stdin=null, stdout=pipe, stderr=null) as child:
        try:
            with opened():
                assert child.stdout is not None
                child.stdout.readline()  # not a part of the answer: it may take long to start
                child.communicate(timeout=2 * _ANSWER)
        except subprocess.TimeoutExpired:
            return "what listens there is not Ray, or is frozen: `ray status` timed out"
        finally:
            child.kill()
    return ""


def _join(address: str, source: str) -> None:
    if source != _LAST and (refusal := _refusal(address)):
        raise EngineUnavailable(
            f"no Ray cluster answers at {address}, {source}: {refusal}. Start one there (ray "
            f"start --head), or pass address='local' to have one started here."
        )
    try:
        with _kept(_TRIES):
            os.environ.setdefault(_TRIES, "5")
            # Ray may use this machine's token for a cluster that it finds itself, only.
            _init(address=None if source == _LAST else address)
    except Exception as error:
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
        remedy = f"Ray says: {str(reason).strip()}"
        if "AuthToken" in remedy or "AuthenticationError" in remedy:
            remedy = (
                "It asks for a token: set RAY_AUTH_MODE=token, with the cluster's token in "
                "~/.ray/auth_token (the same file on every machine) or in RAY_AUTH_TOKEN."
            )
        raise EngineUnavailable(
            f"a cluster answers at {address}, {source}, but could not be joined. {remedy}"
        ) from error


def _start(undo: ExitStack, workers: int | None) -> str:
    """Start a cluster in a folder of its own; return the folder."""
    # Unix sockets lie below it, whose paths must be short: Ray adds up to 66 bytes, of 107.
    base = tempfile.gettempdir()
    with room_for("a Ray cluster"):
        temp = tempfile.mkdtemp(prefix="kofn-ray-", dir=base if len(base) < 22 else "/tmp")
    undo.callback(undo.enter_context(watch(temp)).kill)
    undo.callback(_shutdown, temp)
    # Its own token, in a folder of the user alone: Ray's would be readable by others and stay.
    token = os.path.join(temp, "token")
    with (
        room_for("a Ray cluster"),
        open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file,
    ):
        file.write(secrets.token_hex(32))
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if "RAY_AUTH_TOKEN" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN_PATH", token)
    _forget_tokens()  # another's, of before
    with _kept(*_SETTINGS, MARK), _at_loopback():
        os.environ.update(_SETTINGS | os.environ | {MARK: temp})
        try:
            _init(
                address="local",
                num_cpus=max(workers or 1, os.cpu_count() or 1),  # so many start at a time
                include_dashboard=False,
                _temp_dir=os.path.join(temp, "r"),  # which Ray opens to everyone
            )
        except Exception as error:
            raise EngineUnavailable(
                f"Ray could not start a local cluster: {error}. See if `ray start --head` works."
            ) from error
    return temp


def _shutdown(temp: str) -> None:
    """End a cluster of our own, and what Ray does not know of if its start was interrupted.

    Private: nothing public tells Ray's own processes. It forgets those that are slow to end, and
    Python would warn of each of them wherever the caller is by then.
    """
    started: list[Any] = []
    with suppress(Exception):
        worker: Any = import_module("ray._private.worker")
        for infos in worker._global_node.all_processes.values():
            started += [info.process for info in infos]
    try:
        ray.shutdown()
    finally:
        end_folder(temp)
        for process in started:
            process.poll()


def _init(**options: Any) -> None:
    """Call ray.init, with SIGTERM left to the user: what is ours ends with this process anyway."""
    with opened(foreign=True):
        before = signal.getsignal(signal.SIGTERM)
        main = threading.current_thread() is threading.main_thread()
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        finally:
            if main and before is not None:  # else it is not Python's
                signal.signal(signal.SIGTERM, before)


@contextmanager
def _at_loopback() -> Iterator[None]:
    """Have a cluster of our own listen at the loopback, where Ray's default is every interface.

    Private: ray.init turns 127.0.0.1 into this machine's outer address, unless Ray is told that it
    is not for clusters; the public setting of that is read when Ray is imported, maybe long ago.
    """
    constants: Any = import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _kept(*names: str) -> Iterator[None]:
    """Put these variables of the environment back at the end."""
    before = {name: os.environ[name] for name in names if name in os.environ}
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)


def _forget_tokens() -> None:
    """Have Ray look again whether it uses tokens.

    It remembers that a cluster of its own did, and would refuse the calls of the next one, without.
    Private: nothing public makes Ray forget.
    """
    with suppress(Exception):
        raylet: Any = import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


class Machines:
    """The machines of the cluster and how many workers each offers to take."""

    def __init__(self) -> None:
        self.offers: dict[str, int] = {}  # of those alive
        self.resource = "CPU"  # of which a worker takes one
        self.most: float = float("inf")  # workers on a machine that comes later
        self._seen: set[str] = set()

    def learn(self, nodes: Iterable[dict[str, Any]]) -> list[str]:
        """Take in what Ray says; return, for each worker to start on a new machine, the machine."""
        alive = {n["NodeID"]: n["Resources"] for n in nodes if n["Alive"]}
        self.offers = {n: int(has.get(RESOURCE, has.get("CPU", 0))) for n, has in alive.items()}
        self.resource = next((RESOURCE for has in alive.values() if RESOURCE in has), "CPU")
        new = [n for n in alive if n not in self._seen]
        self._seen.update(new)
        return [n for n in new for _ in range(int(min(self.most, self.offers[n])))]

    def spread(self, count: int | None) -> list[str]:
        """Return a machine for each of the first workers, in turn; without a count, all offered."""
        turns = zip_longest(*([node] * offer for node, offer in self.offers.items()))
        nodes = [node for turn in turns for node in turn if node]
        if count is not None:
            nodes = nodes or list(self.offers)
            self.most = -(-count // len(set(nodes)))
            return list(islice(cycle(nodes), count))
        if not nodes:
            raise EngineUnavailable(
                f"RayEngine starts one worker per CPU; the {len(self.offers)} machines of this "
                f"cluster offer none. Say how many: connect('ray', workers=4), or start a "
                f"machine with CPUs or --resources='{{\"{RESOURCE}\": 4}}'."
            )
        return nodes

    def emptiest(self, has: list[str], live: set[str]) -> str:
        """Return the machine with the fewest workers for what it offers; a silent one last.

        `has`: the machine of each worker, `live`: machines from which somebody has come.
        """
        if not self.offers:
            raise EngineUnavailable("this Ray cluster has no machine left to start a worker on.")

        def rank(node: str) -> tuple[bool, bool, float]:
            offer, taken = self.offers[node], has.count(node)
            return not offer, taken > 0 and node not in live, (taken + 1) / (offer or 1)

        return min(self.offers, key=rank)
