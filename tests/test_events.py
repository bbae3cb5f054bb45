"""The event log holds many records, and costs Python's garbage collector nothing."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import kofn
from kofn.events import EventLog
from kofn.model import Record


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["send", "result"])
def test_records_are_no_work_for_the_collector(kind: str) -> None:
    log = EventLog(most=4)
    for i in range(6):
        numbers = (("eta", float(i)),)
        record = Record(0.1 * i, kind, i, 1, 2, 3, f"why {i}", numbers)
        (log.add if kind == "send" else log.append)(record)
    gc.collect()
    assert [record.round for record in log] == [2, 3, 4, 5]
    assert not any(map(gc.is_tracked, log))
    assert log[-1] == record
    del log, record
    gc.collect()  # they were let go of in order


def test_a_cluster_s_log_grows_and_the_collector_s_work_does_not() -> None:
    with kofn.connect("virtual", workers=6) as cluster:
        X = cluster.encode(np.ones((12, 2)), k=3)
        for _ in range(20):
            X @ np.ones(2)
        tracked = sum(gc.is_tracked(record) for record in cluster._driver.log)
    assert len(cluster.log) > 200
    assert tracked == 0
