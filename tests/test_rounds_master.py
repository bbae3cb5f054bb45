"""The master: events in, commands out; then one long run with many changes of its workers.

Random scripts of faults are in search.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from search import check_log

import kofn
from kofn.delays import Change, Exponential, Script
from kofn.engines.virtual import VirtualEngine
from kofn.model import (
    Dropped,
    Joined,
    Lost,
    Piece,
    Reply,
    RowRange,
    Send,
    Stored,
    Supply,
    Task,
    Tick,
)
from kofn.rounds import Cover, ElasticRound, Late, Layout


def nothing(kept: Any, operand: Any) -> tuple[Piece]:
    raise AssertionError("the master runs no body")


class Plain:
    """Work whose tasks are numbered from 0, whose segments are never weak."""

    key = "share"

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def task(self, round: int, worker: int, share: int, runs: tuple[RowRange, ...]) -> Task:
        self.tasks.append(Task(len(self.tasks), round, worker, nothing, what=runs))
        return self.tasks[-1]

    def weak(self, cover: Cover) -> Sequence[int]:
        return ()

    def refused(self, cover: Cover) -> Sequence[int]:
        return ()


def begun(n: int = 4, k: int = 2, rows: int = 400) -> tuple[ElasticRound, list[tuple[int, Any]]]:
    shares = {worker: worker for worker in range(n)}
    round = ElasticRound(7, Layout(k).lay(range(n), rows), shares, Plain(), Late(factor=3, least=1))
    return round, sent(round.start(10.0))


def sent(commands: Sequence[Any]) -> list[tuple[int, Any]]:
    assert all(isinstance(c, Send) for c in commands)
    return [(c.task.worker, c.task.what) for c in commands]


def reply(round: ElasticRound, worker: int, time: float = 11.0, last: bool = True) -> Reply:
    task = next(t for t in round._work.tasks if t.worker == worker)  # type: ignore[attr-defined]
    return Reply(time, worker, 7, task.id, task.what, None, 100, 0.1, last)


def test_it_starts_by_sending_each_worker_its_window() -> None:
    _, commands = begun()
    assert commands == [
        (0, ((0, 200),)),
        (1, ((100, 300),)),
        (2, ((200, 400),)),
        (3, ((0, 100), (300, 400))),
    ]


def test_it_is_done_with_the_last_reply_and_not_before() -> None:
    round, _ = begun()
    for worker in (2, 0, 3):
        assert round.on(reply(round, worker)) == ()
        assert not round.done
    assert round.owing == (1,)
    assert round.on(reply(round, 1)) == ()
    assert round.done


def test_a_loss_is_topped_up_from_those_that_do_not_cover_the_rows() -> None:
    round, _ = begun()
    round.on(reply(round, 0))
    commands = sent(round.on(Lost(11.5, 1)))
    rows = np.zeros(400, dtype=int)
    for worker, runs in commands:
        for first, last in runs:
            rows[first:last] += 1
            if worker == 0:
                assert first >= 200  # it has delivered 0..200
    assert rows.nonzero()[0].tolist() == list(range(100, 300))
    assert rows.max() == 1
    assert round.missing == 0


def test_a_reply_already_in_stays_good() -> None:
    round, _ = begun()
    round.on(reply(round, 1))
    assert round.on(Lost(11.5, 1)) == []
    for worker in (0, 2, 3):
        round.on(reply(round, worker))
    assert round.done


def test_slices_count_one_by_one() -> None:
    round, _ = begun()
    round.on(Reply(11.0, 1, 7, 1, ((100, 250),), None, 150, 0.1, False))
    commands = sent(round.on(Lost(11.5, 1)))
    owed = sorted(run for _, runs in commands for run in runs)
    assert owed[0][0] == 250
    assert owed[-1][1] == 300
    assert sum(last - first for first, last in owed) == 50


def test_events_of_other_rounds_and_unknown_workers_change_nothing() -> None:
    round, _ = begun()
    assert round.on(Reply(11.0, 1, 6, 99, ((0, 5),), None, 5, 0.1, True)) == ()
    assert round.on(Dropped(11.0, 1, 6, 99)) == ()
    assert round.on(Lost(11.0, 42)) == ()
    assert round.on(Stored(11.0, 2, "another key")) == ()
    assert not round.done
    assert round.live == 4


def test_a_joiner_is_supplied_and_helps_only_where_needed() -> None:
    shares = {0: 0, 1: 1}
    round = ElasticRound(7, Layout(2).lay(range(2), 40), shares, Plain(), None)
    round.start(0.0)
    assert round.on(Joined(1.0, 5)) == [Supply(5)]
    assert sent(round.on(Lost(2.0, 0))) == []
    assert round.missing == 1
    # It takes over the share of the lost one.
    assert sent(round.on(Stored(3.0, 5, "share", slot=0))) == [(5, ((0, 40),))]
    assert round.missing == 0


def test_a_joiner_with_the_share_of_a_lost_worker_is_not_asked_what_that_one_delivered() -> None:
    shares = {0: 0, 1: 1}
    round = ElasticRound(7, Layout(2).lay(range(2), 40), shares, Plain(), None)
    round.start(0.0)
    round.on(Reply(1.0, 0, 7, 0, ((0, 30),), None, 30, 0.1, False))
    round.on(Lost(2.0, 0))
    assert sent(round.on(Stored(3.0, 5, "share", slot=0))) == [(5, ((30, 40),))]


def test_late_is_measured_by_this_rounds_replies() -> None:
    round, _ = begun()
    assert round.wake == float("inf")
    round.on(reply(round, 0, time=12.0))
    assert round.wake == float("inf")
    round.on(reply(round, 2, time=12.0))  # half are done after 2 s
    assert round.wake == 16.0
    round.on(reply(round, 3, time=12.5))
    commands = sent(round.on(Tick(16.0)))
    assert round.late == [1]
    assert {worker for worker, _ in commands} <= {0, 2, 3}
    assert sum(last - first for _, runs in commands for first, last in runs) == 200
    assert round.wake == 22.0
    round.on(reply(round, 1, time=17.0))  # the late one comes after all, and is enough
    assert round.done


@pytest.mark.parametrize("seed", range(3))
def test_hundreds_of_changes_of_membership(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 30, 200))
    kinds = rng.permutation([-1] * 100 + [None] * 100)
    script = Script(tuple(Change(float(t), w) for t, w in zip(times, kinds, strict=True)))
    A = rng.standard_normal((200, 3))
    engine = VirtualEngine(8, delays=Exponential(1e-4, 0.1), membership=script, seed=seed)
    with kofn.connect(engine, wait=100.0) as cluster:
        X = cluster.encode(A, k=1, n=100)
        w = rng.standard_normal(3)
        while cluster.engine.now() < 30:
            np.testing.assert_allclose(X @ w, A @ w, rtol=1e-9)
        assert sum(r.kind in ("lost", "joined") for r in cluster.log) > 150
        check_log(cluster.log)
