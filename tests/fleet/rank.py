"""The master under mpiexec. All ranks but the first become workers, and import no more for it."""

from __future__ import annotations

from kofn.cli.ranks import become_worker

if __name__ == "__main__":
    become_worker("mpi")
    from fleet.master import main

    main()
