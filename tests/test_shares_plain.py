"""Shares of an array in memory: written where workers keep them, or views and two at a time."""

from __future__ import annotations

from functools import partial
from threading import current_thread
from typing import Any

import numpy as np
import pytest

from kofn.arrays import coding
from kofn.arrays.decode import plain
from kofn.arrays.shares import MakeRoom, Plain, shares_of
from kofn.codes import LowWeightCode
from kofn.codes.mds import MDSCode
from kofn.engines.memory import reserve, unpack
from kofn.threads import each

CODES = [MDSCode(3, 1), MDSCode(4, 4), MDSCode(6, 4), MDSCode(7, 3), LowWeightCode(6, 4)]


class Room:
    """Memory for a share, as an engine gives it; `rooms` has all that were made."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, rooms: list[Room] | None = None) -> None:
        self.array = np.full(shape, np.nan, dtype)  # all of it must be filled
        if rooms is not None:
            rooms.append(self)

    def fill(self, first: int, rows: np.ndarray[Any, Any]) -> None:
        assert rows.dtype == self.array.dtype
        assert rows.flags.c_contiguous
        rows.data.cast("B")  # as it is written
        self.array[first : first + len(rows)] = rows

    def twin(self) -> Room:
        other = Room((0,), self.array.dtype)
        other.array = self.array
        return other


@pytest.mark.parametrize("make", [Room, lambda *_: None], ids=["rooms", "arrays"])
@pytest.mark.parametrize("N", [1, 7, 39, 40, 41])
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_every_share_is_the_codes_own(code: MDSCode, N: int, make: MakeRoom) -> None:
    n, k = code.n, code.k
    A = np.random.default_rng(N).standard_normal((N, 5))
    orders = [list(range(n)), list(range(n))[::-1], [0, n - 1, *range(n), n - 1]]
    # Sums of k products each, in another order.
    bound = 2 * k * np.finfo(float).eps * np.abs(code.generator).max() * np.abs(A).max() * k
    for dtype, times in ((np.float64, 1), (np.float32, 1 << 29)):
        B = A.astype(dtype)
        share_of = shares_of(B, code, room=make, first=n - 1).share_of
        assert isinstance(share_of, Plain)
        for share in [share for order in orders for share in order]:
            value = share_of(share)
            found = value.array if isinstance(value, Room) else value
            assert found.dtype == dtype
            expected = code.encode_share(share, B)
            np.testing.assert_allclose(found, expected, rtol=0, atol=times * bound)
            block = plain(code, share)
            whole = block is not None and (block + 1) * code.block_rows(N) <= N
            assert np.shares_memory(found, B) == (whole and make is not Room)
        share_of.clear()
        assert not share_of._ahead


def test_what_is_asked_for_at_first_is_written_in_one_pass() -> None:
    code, A = MDSCode(20, 10), np.random.default_rng(0).standard_normal((400, 700))
    rooms: list[Room] = []
    share_of = shares_of(A, code, room=partial(Room, rooms=rooms), first=15).share_of
    assert isinstance(share_of, Plain)
    for share in range(15):
        found: Any = share_of(share)
        assert len(rooms) == 15
        expected = code.encode_share(share, A)
        np.testing.assert_allclose(found.array, expected, rtol=0, atol=1e-12)
    share_of(15)  # for one who came later
    assert len(rooms) == 16
    share_of(3)  # a worker was lost before it had it
    share_of.clear()
    share_of(4)
    assert len(rooms) == 16 + 12 + 1


@pytest.mark.parametrize("k", [1, 3, 5, 8])
def test_several_threads_and_chunks_write_every_row(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coding, "AT_ONCE", 1 << 12)  # bytes of A; it has 300 times as many
    monkeypatch.setattr(coding, "cores", lambda: 3)
    code, A = MDSCode(8, k), np.random.default_rng(0).standard_normal((1999, 80))
    share_of = shares_of(A, code, room=Room, first=8).share_of
    bound = 2 * k * np.finfo(float).eps * np.abs(code.generator).max() * np.abs(A).max() * k
    for share in range(8):
        found: Any = share_of(share)
        np.testing.assert_allclose(found.array, code.encode_share(share, A), rtol=0, atol=bound)


def test_shares_that_are_the_same_block_are_written_once() -> None:
    A = np.random.default_rng(0).standard_normal((400, 70))
    rooms: list[Room] = []
    share_of = shares_of(A, MDSCode(5, 1), room=partial(Room, rooms=rooms), first=5).share_of
    found: list[Any] = [share_of(share).array for share in range(5)]
    assert len(rooms) == 1
    assert all(np.shares_memory(one, rooms[0].array) for one in found)
    np.testing.assert_array_equal(found[4], A)


def test_what_is_written_to_a_twin_is_in_the_memory_of_both() -> None:
    room = reserve((100, 70), np.dtype(np.float64))
    assert room is not None
    twin = room.twin()
    assert twin is not None
    twin.fill(0, np.ones((100, 70)))
    assert np.array(unpack(room.packed, room.map)).sum() == 7000.0


def test_a_single_call_starts_no_thread() -> None:
    ran: list[str] = []
    each(lambda _: ran.append(current_thread().name), [1])
    assert ran == [current_thread().name]
    each(lambda a, b: ran.append(f"{a}{b}"), "xyz", "uvw")
    assert sorted(ran[1:]) == ["xu", "yv", "zw"]
    each(ran.append, [])
    with pytest.raises(ValueError, match="no"):
        each(lambda _: int("no"), range(3))
