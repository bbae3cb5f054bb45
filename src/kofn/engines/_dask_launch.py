"""Our own Dask scheduler and workers: processes of this machine, forked by a launcher.

All listen on 127.0.0.1 only, and talk to those who have the keys: other users of this machine can
reach the ports too, and a Dask worker runs what it is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from importlib import import_module
from pathlib import Path
from typing import Any

from ._forks import reseed
from ._launcher import report

dask: Any = import_module("dask")
distributed: Any = import_module("distributed")

_SETTINGS: dict[str, Any] = {
    "distributed.scheduler.worker-ttl": None,  # a silent worker is a straggler, not a loss
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.profile.enabled": False,
}


def security(folder: str) -> Any:
    """Return the keys in a folder: one certificate for all, which only the user can read."""
    file = os.path.join(folder, "tls.pem")
    roles = ("client_cert", "client_key", "scheduler_cert", "scheduler_key")
    keys = {f"tls_{role}": file for role in (*roles, "worker_cert", "worker_key", "ca_file")}
    return distributed.Security(require_encryption=True, **keys)


def begin(order: list[Any], fds: list[int], control: socket.socket) -> None:
    """Be a scheduler, or a worker of the one at an address: what the launcher's child runs."""
    # Not asyncio.run: to be polite to what is gone could take Dask half a minute.
    asyncio.new_event_loop().run_until_complete(_be(control, *order))


async def _be(control: socket.socket, name: str, folder: str, address: str = "") -> None:
    parent = os.getppid()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    dask.config.set(_SETTINGS)
    keys = security(folder)
    options = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    options |= {"security": keys, "local_directory": folder}
    if address:
        reseed()
        options |= {"name": name, "nthreads": 1, "memory_limit": 0, "death_timeout": 30}
        server = distributed.Worker(address, **options)
    else:
        made, file = distributed.Security.temporary(), Path(keys.tls_ca_file)
        file.touch(0o600)
        file.write_text(made.tls_ca_file + made.tls_client_key)
        server = distributed.Scheduler(port=0, protocol="tls://", **options)
    await server
    report(control, "up", name, server.address)
    control.close()
    ended = asyncio.ensure_future(server.finished())
    # The launcher kills its children if it can: it may have been killed itself.
    while not ended.done() and os.getppid() == parent:
        await asyncio.wait([ended], timeout=1.0)
    os._exit(0)
