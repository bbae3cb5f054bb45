"""A guard of an MPI rank, until the master has greeted it: see _mpi_setup.

A program that looks for rank 0 of its job on this machine, and kills its parent, which is another
rank, when there is none. It ends with its input. It needs nothing but Python itself: the rank is in
MPI's start meanwhile, where no other thread of it runs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from pathlib import Path

_LOOK, _MISSED = 0.5, 4  # seconds between two looks; looks in vain that are enough


def _rank_0_is_there() -> bool:
    job = os.environ.get("PMIX_NAMESPACE", "")
    marks = {b"PMIX_RANK=0", f"PMIX_NAMESPACE={job}".encode()}
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # not ours, or gone
            if marks <= set(entry.read_bytes().split(b"\0")):
                return True
    return False


if __name__ == "__main__":
    missed = 0
    while not select.select([0], [], [], _LOOK)[0]:
        missed = 0 if _rank_0_is_there() else missed + 1
        if missed == _MISSED:  # not at once: it may be about to be started
            os.kill(int(sys.argv[1]), signal.SIGKILL)
