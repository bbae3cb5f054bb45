"""Prints by which devices master and workers, one of them spawned, can be reached."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import kofn
from kofn.engines._mpi_setup import listening
from kofn.engines.base import Engine
from kofn.model import Piece
from kofn.testing.engines import EngineProbe


def devices() -> list[str]:
    """Return to what each listening socket of this process is bound; empty if to nothing."""
    option = (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
    return [sock.getsockopt(*option).rstrip(b"\0").decode() for sock in listening()]


def look(kept: Any, operand: Any) -> Iterator[Piece]:
    """Tell it of the worker."""
    yield Piece(None, devices())


def found(engine: Engine) -> list[list[str]]:
    """Return it for each worker; there must be some, as joiners are spoken to by TCP."""
    probe = EngineProbe(engine, 120)
    return [probe.value(probe.submit(worker, look)) for worker in engine.workers]


if __name__ == "__main__":
    with kofn.connect("mpi") as cluster:
        cluster.join()
        print("listens", *devices(), *(d for each in found(cluster.engine) for d in each))
