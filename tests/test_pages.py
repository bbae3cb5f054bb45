"""Huge pages: what is read stays what was written, and memory that is not used is let go of."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import numpy as np
import pytest

from kofn.engines import _pages
from kofn.engines._pages import HUGE, Gathering, HugePages, aligned
from kofn.engines.memory import WHOLE, Segment, attach_own, reserve

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


@pytest.mark.parametrize("slow", [1e9, -1.0])  # seconds: none is slow, all are
def test_what_is_written_into_fresh_huge_pages_is_all_there(
    slow: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting:
        def __init__(self) -> None:
            self.tried = 0

        def madvise(self, *call: int) -> int:
            self.tried += call[2] == _pages._COLLAPSE
            found: int = libc.madvise(*call)
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(libc, name)

    libc, counting = _pages._libc(), Counting()
    monkeypatch.setattr(_pages, "SLOW", slow)
    monkeypatch.setattr(HugePages, "until", 0.0)
    monkeypatch.setattr(HugePages, "slow", 0)
    rows = np.random.default_rng(0).integers(0, 256, (WHOLE // 1000 + 3000, 1000), np.uint8)
    room = reserve(rows.shape, rows.dtype)
    assert room is not None
    monkeypatch.setattr(_pages, "_libc", lambda: counting)
    before = resident()
    for first in (*range(7000, len(rows), 700), *range(0, 7000, 700)):  # not in order
        room.fill(first, rows[first : min(first + 700, len(rows))])
    pages = -(-(rows.nbytes + 64) // HUGE)
    assert 1 <= counting.tried <= (pages if slow > 0 else _pages.MOST_SLOW)
    assert resident() < before + WHOLE  # what is written is not the master's
    view = attach_own(os.dup(room.fd))
    assert np.array_equal(np.frombuffer(view, np.uint8)[64 : 64 + rows.nbytes], rows.ravel())
    room.close()


@pytest.mark.parametrize("gathered", [0, 1, 7, 8])  # huge pages, the first ones
def test_written_memory_is_written_through_its_huge_pages_if_it_lies_in_such(gathered: int) -> None:
    size = 8 * HUGE
    segment = Segment(size - 64)
    segment.write(0, np.zeros(size, np.uint8).data)
    libc, view = _pages._libc(), aligned(segment.fd, size)
    assert view is not None
    at = _pages._address(view)
    if gathered and libc.madvise(at, gathered * HUGE, _pages._COLLAPSE):
        pytest.skip("the system has no huge pages now")
    memory, before = HugePages(segment.fd, size, True), resident()
    rows = np.random.default_rng(0).integers(0, 256, 3 * HUGE, np.uint8)
    for first in (0, 5 * HUGE // 2, size - rows.nbytes):
        assert memory.write(first, rows.data) == (gathered == 8)
        assert resident() < before + HUGE
        if gathered == 8:
            assert np.array_equal(np.frombuffer(view, np.uint8)[first:][: rows.nbytes], rows)
            libc.madvise(at, size, _pages._DONTNEED)  # what was looked at is not looked for
    segment.close()


def mappings() -> list[str]:
    with open("/proc/self/maps") as file:
        return [line for line in file if "memfd:kofn" in line]


def resident() -> int:
    """Bytes of shared memory that are mapped and there."""
    with open("/proc/self/status") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("RssShmem"))
