"""Workers as if on other machines: messages of every size, in many pieces. Under mpiexec -n 3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from apart import refuse_all

import kofn
from kofn.engines import _mpi_messages, _mpi_setup
from kofn.engines.mpi import MPIEngine
from kofn.model import Lost, Piece
from kofn.testing._bodies import SHAPES, echo, measure, recall, shaped
from kofn.testing.engines import EngineProbe


def writable(kept: Any, operand: Any, argument: Any) -> Iterator[Piece]:
    yield Piece(None, [a.flags.writeable for a in (operand, kept["key"], argument)])


_mpi_messages.PIECE = 100_001  # on every rank
refuse_all()
with MPIEngine() as engine:
    assert engine.capabilities.exchange
    assert [engine.pid(worker) for worker in engine.workers] == [None, None]
    X = kofn.connect(engine).encode(np.eye(4) * 2.0, k=1)
    np.testing.assert_allclose(X.iterate(lambda y: y, np.ones(4), rounds=5), np.full(4, 32.0))
    probe = EngineProbe(engine, 120)
    engine.put(0, "key", np.ones(300_000))
    engine.broadcast(1001, np.ones(300_000))
    tasks = [probe.submit(worker, measure, round=1001) for worker in engine.workers]
    kept = probe.submit(0, recall, "key", round=1001)
    large = probe.submit(1, shaped, "huge", round=1001)
    own = probe.submit(0, writable, np.ones(300_000), round=1001)
    assert [probe.value(task)[1] for task in tasks] == [300_000, 300_000]
    assert probe.value(kept) == ("has", 300_000)
    np.testing.assert_array_equal(probe.value(large), SHAPES["huge"]())
    assert probe.value(own) == [False, False, False]
    values = np.random.default_rng(0).standard_normal((2, 200_001))
    found = probe.value(probe.submit(1, echo, values, round=1001))[0]
    np.testing.assert_array_equal(found, values)
    assert found.flags.writeable
    for round in range(1002, 1050):
        engine.broadcast(round, np.full(20_000, float(round)))
        assert probe.value(probe.submit(round % 2, measure, round=round))[2] == round
        engine.cancel(round)
    # A process that cannot import kofn is a joiner that was lost; the others go on. If the master
    # were the first to speak, one of these calls would never return.
    _mpi_setup._BOOT = _mpi_setup._BOOT.replace("from kofn", "from no_kofn")
    engine._transport._command = _mpi_setup.command(engine._transport.lifeline.fd)
    for _ in range(12):
        probe.wait(Lost, worker=engine.join())
    engine.lose(0)  # told to end, as it cannot be killed from here
    probe.wait(Lost, worker=0)
    assert probe.value(probe.submit(1, echo, 1, round=1050)) == (1,)
print("all of it held")
