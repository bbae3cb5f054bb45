"""Under mpiexec every rank runs the command; all but the first are workers."""

from __future__ import annotations

import atexit
import os
import time
from contextlib import suppress
from typing import Any

from ..engines.known import find

_LEAVE = 10.0  # seconds for ranks that are not needed to take that in


def become_worker(engine: str) -> None:
    """Under mpiexec with engine mpi: return on rank 0 only. The other ranks serve until it ends.

    It is called before anything else, so that workers need none of the command's files.
    """
    if engine != "mpi" or not os.environ.keys() & {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"}:
        return
    kind = find(engine)
    from ..engines._mpi_setup import start

    MPI = start()
    if MPI.COMM_WORLD.Get_rank():
        kind()
    atexit.register(_send_away, MPI)


def _send_away(MPI: Any) -> None:
    """Let the other ranks end, where the command has failed before it had a cluster.

    MPI tells them when rank 0 is killed, but not when it exits.
    """
    from ..engines import mpi
    from ..engines._mpi_messages import URGENT
    from ..engines._mpi_worker import LEAVE

    if mpi.ranks_taken:
        return
    world, end = MPI.COMM_WORLD, time.monotonic() + _LEAVE
    with suppress(MPI.Exception):
        word = [LEAVE, MPI.BYTE]
        sent = [world.Issend(word, rank, URGENT) for rank in range(1, world.Get_size())]
        while not all(request.Test() for request in sent) and time.monotonic() < end:
            time.sleep(0.002)
