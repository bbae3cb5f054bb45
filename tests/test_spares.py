"""Memory of shares is written again when nobody reads it any more, and never before."""

from __future__ import annotations

import gc
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from support import until

import kofn
from kofn.cluster import Cluster
from kofn.engines import _spares
from kofn.engines._spares import COUNT, SHARE, Spares
from kofn.engines.memory import Reserved, attach_own, unpack

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is Linux's")
SHAPE = (SHARE // 800, 100)


@pytest.fixture
def spares() -> Iterator[Spares]:
    with closing(Spares()) as made:
        yield made


def lent(spares: Spares, worker: int, fill: float, rows: int = 2 * SHAPE[0]) -> Any:
    """What a worker has of an array that it was sent, and the file that it lies in."""
    room = spares.room((rows, SHAPE[1]), np.dtype(np.float64))
    assert isinstance(room, Reserved)
    room.fill(0, np.full((rows, SHAPE[1]), fill))
    spares.lend(worker, "key", room)
    memory, file = attach_own(os.dup(room.fd)), os.fstat(room.fd).st_ino
    room.close()
    return unpack(room.packed, memory), file


def test_memory_is_written_again_when_its_worker_has_let_go(spares: Spares) -> None:
    first, file = lent(spares, 0, 1.0)
    second, other = lent(spares, 1, 2.0)
    assert other != file
    assert (first == 1.0).all()
    view = first[1:]
    del first
    third, another = lent(spares, 0, 3.0)
    assert another not in (file, other)  # somebody has a view of the first
    del view
    fourth, again = lent(spares, 0, 4.0)
    assert again == file
    assert [(x == v).all() for x, v in ((second, 2.0), (third, 3.0), (fourth, 4.0))] == [True] * 3


def test_less_than_was_there_fits_and_much_less_does_not(spares: Spares) -> None:
    array, file = lent(spares, 0, 1.0, 4 * SHAPE[0])
    del array
    array, again = lent(spares, 0, 2.0, 2 * SHAPE[0])
    assert again == file
    del array
    room = spares.room((SHAPE[0] // 2, 100), np.dtype(np.float64))
    assert room is not None
    assert os.fstat(room.fd).st_ino != file
    assert not spares.lent  # what did not fit has made room


def test_what_was_forgotten_is_waited_for_a_little(
    spares: Spares, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = dict(zip(("array", "file"), lent(spares, 0, 1.0), strict=True))
    file = held["file"]
    spares.forgotten(0, "another")
    spares.forgotten(0, "key")
    monkeypatch.setattr(_spares, "LEAVING", 60.0)
    monkeypatch.setattr(os, "sched_yield", held.clear)  # it lets go meanwhile
    assert lent(spares, 0, 2.0)[1] == file


def test_memory_of_a_lost_worker_is_written_again(spares: Spares) -> None:
    held, file = lent(spares, 0, 1.0)  # it could not say that it lets go
    other, _ = lent(spares, 1, 2.0)
    spares.lost(0)
    assert lent(spares, 2, 3.0)[1] == file
    assert (other == 2.0).all()
    assert (held == 3.0).all()


def test_memory_of_twins_is_not_kept(spares: Spares) -> None:
    room = spares.room(SHAPE, np.dtype(np.float64))
    assert room is not None
    twin = room.twin()
    assert twin is not None
    before = len(spares.lent)
    spares.lend(0, "key", room)
    spares.lend(1, "key", twin)
    assert len(spares.lent) == before


def test_what_nobody_wants_is_let_go_of(spares: Spares, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spares, "LINGER", 0.0)
    array, _ = lent(spares, 0, 1.0)
    for _ in range(3):
        spares.trim()
        assert len(spares.lent) == 1
    fd = os.dup(spares.lent[0].fd)
    del array
    for left in (1, 0):  # it has to be free at two looks
        spares.trim()
        assert len(spares.lent) == left
    sizes = [os.fstat(fd).st_blocks * 512]
    while spares.going:  # nobody waits until all of it is freed
        spares.trim()
        sizes.append(os.fstat(fd).st_blocks * 512)
    os.close(fd)
    assert sizes[0] >= 2 * SHARE
    assert max(a - b for a, b in itertools.pairwise(sizes)) <= _spares.STEP
    assert sizes[-1] <= _spares.STEP  # its last descriptor frees the rest


def test_so_many_are_kept_at_most(spares: Spares) -> None:
    before = len(os.listdir("/proc/self/fd"))
    arrays = [lent(spares, 0, 1.0, SHAPE[0] + 1) for _ in range(COUNT + 3)]
    assert len(spares.lent) == COUNT
    spares._most = 3 * arrays[0][0].nbytes
    arrays.append(lent(spares, 0, 1.0, SHAPE[0] + 1))
    assert len(spares.lent) == 3
    spares.close()
    arrays.clear()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.engine
def test_a_forked_child_does_not_let_go_for_its_parent(spares: Spares) -> None:
    array, file = lent(spares, 0, 1.0)
    if not (child := os.fork()):
        del array
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert lent(spares, 0, 2.0)[1] != file
    assert (array == 1.0).all()


@pytest.mark.engine
class TestCluster:
    @pytest.fixture
    def cluster(self) -> Iterator[Cluster]:
        with kofn.connect("local", workers=3) as cluster:
            yield cluster

    def files(self, cluster: Any) -> set[int]:
        return {os.fstat(one.fd).st_ino for one in cluster.engine._transport.spares.lent}

    def test_a_matrix_takes_the_memory_of_one_that_was_dropped(self, cluster: Cluster) -> None:
        rng, w = np.random.default_rng(0), np.ones(100)
        # The last block lacks a row: that is zero, whatever was there before.
        A, B, C = (rng.standard_normal((4 * SHAPE[0] - 1, 100)) for _ in range(3))
        X, Y = cluster.encode(A, k=2), cluster.encode(B, k=2)
        before = self.files(cluster)
        assert len(before) == 6
        np.testing.assert_allclose(X @ w, A @ w, atol=1e-9)
        del X
        spares: Any = cluster.engine._transport.spares  # type: ignore[attr-defined]
        cluster.parts([1, 2, 3])  # which has the matrix forgotten
        until(lambda: sum(one.free for one in spares.lent) == 3, "three to let go")
        Z = cluster.encode(C, k=2)
        assert self.files(cluster) == before
        np.testing.assert_allclose(Z @ w, C @ w, atol=1e-9)
        np.testing.assert_allclose(Y @ w, B @ w, atol=1e-9)
        np.testing.assert_allclose(Z.toarray(), C, atol=1e-9)
        cluster.lose(0)
        free = {os.fstat(one.fd).st_ino for one in spares.lent if one.free}
        assert len(free) == 2  # a share of each matrix
        np.testing.assert_allclose(Z @ w, C @ w, atol=1e-9)
        assert before & {os.fstat(room.fd).st_ino for room in self.rooms(cluster)} == free

    def rooms(self, cluster: Any) -> list[Any]:
        return [cluster.engine.room((2 * SHAPE[0], 100), np.float64) for _ in range(3)]

    def test_an_update_frees_what_it_replaces(self, cluster: Cluster) -> None:
        A, U = np.ones((4 * SHAPE[0], 100)), np.ones((4 * SHAPE[0], 1))
        X = cluster.encode(A, k=2)
        before = self.files(cluster)
        X += kofn.low_rank(U, np.ones((100, 1)))
        spares: Any = cluster.engine._transport.spares  # type: ignore[attr-defined]
        until(lambda: all(one.free for one in spares.lent), "all to let go")
        Y = cluster.encode(3 * A, k=2)
        assert self.files(cluster) == before
        np.testing.assert_allclose(X @ np.ones(100), np.full(len(A), 200.0), atol=1e-9)
        np.testing.assert_allclose(Y @ np.ones(100), np.full(len(A), 300.0), atol=1e-9)
