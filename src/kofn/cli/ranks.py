"""Under mpiexec every rank runs the command; all but the first are workers."""

from __future__ import annotations

import os

from ..cluster import find


def become_worker(engine: str) -> None:
    """Under mpiexec with engine mpi: return on rank 0 only. The other ranks serve until it ends.

    It is called before anything else, so that workers need none of the command's files. MPI is
    started on rank 0 too: if that ends without a cluster, the others are told, and end.
    """
    if engine != "mpi" or not os.environ.keys() & {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"}:
        return
    kind = find(engine)
    from ..engines._mpi_setup import start

    if start().COMM_WORLD.Get_rank():
        kind()
