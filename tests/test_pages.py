"""Huge pages: what is read stays what was written, and memory that is not used is let go of."""

from __future__ import annotations

import gc
import os
import sys

import numpy as np
import pytest

from kofn.engines._pages import HUGE, Gathering, aligned
from kofn.engines.memory import WHOLE, Segment, attach_own

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is Linux's")


def written() -> tuple[Segment, np.ndarray]:
    segment = Segment(WHOLE + HUGE)
    values = np.random.default_rng(0).integers(0, 256, WHOLE + HUGE, np.uint8)
    segment.write(0, values.data)
    return segment, values


def test_what_is_gathered_stays_as_it_was() -> None:
    segment, values = written()
    view = attach_own(os.dup(segment.fd))
    assert isinstance(view, memoryview)
    assert view.readonly
    array = np.frombuffer(view, np.uint8)
    assert array.ctypes.data % HUGE == 0
    gathering = Gathering()
    gathering.add(view, values.nbytes)
    steps = 0
    while gathering.left:  # it ends, also where the system cannot do it
        gathering.step()
        steps += 1
    assert 1 <= steps <= values.nbytes // HUGE + 1
    assert np.array_equal(array[: values.nbytes], values)
    segment.close()
    assert np.array_equal(array[: values.nbytes], values)


def test_memory_that_nobody_uses_is_not_kept_for_it() -> None:
    segment, values = written()
    view = aligned(segment.fd, segment.size)
    assert view is not None
    gathering = Gathering()
    gathering.add(view, values.nbytes)
    before = len(mappings())
    del view
    gc.collect()
    assert len(mappings()) < before
    gathering.step()
    assert not gathering.left
    segment.close()


def mappings() -> list[str]:
    with open("/proc/self/maps") as file:
        return [line for line in file if "memfd:kofn" in line]
