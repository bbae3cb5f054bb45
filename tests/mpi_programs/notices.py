"""Notices on ranks, near and as if on other machines. Under mpiexec -n 3."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from apart import refuse_all

import kofn
from kofn.engines.mpi import MPIEngine
from kofn.model import Leaving, Lost, Piece
from kofn.notices import Notice, SigTerm, Source
from kofn.testing._bodies import echo
from kofn.testing.engines import EngineProbe


@dataclass(kw_only=True)
class Timed(Source):
    """Announces an end; takes it back at the second look."""

    name: ClassVar[str] = "timed"
    looks: int = 0

    def look(self) -> Sequence[Notice]:
        self.looks += 1
        return [Notice(time.time() + 300.0, "soon")] if self.looks == 1 else []


def pid(kept: Any, operand: Any) -> Iterator[Piece]:
    yield Piece(None, os.getpid())


if sys.argv[1] == "far":
    refuse_all()
with MPIEngine() as engine:
    sources: list[str | Source] = [Timed(every=0.02), SigTerm(grace=3600.0)]
    probe = EngineProbe(engine, 120)
    cluster = kofn.connect(engine, notices=sources)
    for worker in engine.workers:  # one machine: one watcher speaks for both
        assert probe.wait(Leaving, worker=worker).deadline > engine.now() + 200
        assert probe.wait(Leaving, worker=worker, deadline=inf).reason == "it stays"
    assert len(probe.find(Leaving)) == 4
    victim = probe.value(probe.submit(1, pid))
    os.kill(victim, signal.SIGTERM)
    probe.until(lambda: any(e.reason == "SIGTERM" for e in probe.find(Leaving)), "the notice")
    assert probe.value(probe.submit(1, echo, 1)) == (1,)  # however busy the machine is
    os.kill(victim, signal.SIGKILL)
    probe.wait(Lost, worker=1)
    assert probe.value(probe.submit(0, echo, 2)) == (2,)
print("all of it held")
