"""The engine's promises about tasks: their ends, pieces, failures, and how they are cancelled."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from ..engines.base import Engine
from ..errors import BadInput, UnknownWorker
from ..interrupts import held
from ..model import Dropped, Failed, Piece, Reply, Task
from . import _bodies as bodies
from ._probe import EngineProbe


def values_travel(engine: Engine) -> None:
    """Skip where bodies run inside of `events`, on the caller's own values."""
    if engine.capabilities.virtual_time:
        pytest.skip("values do not leave this thread")


class TaskChecks:
    """See EngineChecks."""

    def test_a_task_ends_in_one_reply(self, probe: EngineProbe) -> None:
        task = probe.submit(probe.first, bodies.echo, 1, "two", (3, 4), round=7)
        assert probe.value(task) == (1, "two", (3, 4))
        (reply,) = [r for r in probe.pieces[task] if r.value is not None]
        assert (reply.worker, reply.round, reply.what, reply.read) == (probe.first, 7, "echo", 1)
        assert reply.seconds >= 0

    def test_pieces_stream_in_order_and_end_once(self, probe: EngineProbe) -> None:
        tasks = [probe.submit(w, bodies.steps, 20) for w in probe.engine.workers for _ in range(3)]
        probe.until_ended()
        for task in tasks:
            pieces = [r for r in probe.pieces[task] if r.value is not None]
            assert [r.what for r in pieces] == [(i, i + 1) for i in range(20)]
            assert all((r.value == i).all() for i, r in enumerate(pieces))
            assert sum(r.read for r in probe.pieces[task]) == 20
            assert [r.last for r in probe.pieces[task]].count(True) == 1
            assert probe.pieces[task][-1].last

    def test_pieces_keep_their_order_whatever_their_size(self, probe: EngineProbe) -> None:
        tasks = [
            probe.submit(w, bodies.uneven, 30) for w in probe.engine.workers[:2] for _ in range(2)
        ]
        for task in tasks:
            assert [value[-1] for value in probe.values(task)] == list(range(30))

    def test_a_worker_takes_its_tasks_in_order(self, probe: EngineProbe) -> None:
        worker = probe.engine.workers[1]
        tasks = [probe.submit(worker, bodies.echo, i) for i in range(50)]
        probe.until_ended()
        assert [e.task for e in probe.log if isinstance(e, Reply) and e.last] == tasks

    def test_a_body_without_pieces_or_values_still_ends(self, probe: EngineProbe) -> None:
        empty = probe.submit(probe.first, bodies.steps, 0)
        silent = probe.submit(probe.engine.workers[1], bodies.toil, 3)
        assert probe.values(empty) == []
        assert probe.values(silent) == [1.0]

    def test_every_way_to_give_pieces_ends(self, probe: EngineProbe) -> None:
        assert probe.values(probe.submit(probe.first, bodies.listed, 4)) == [0, 1, 2, 3]
        assert probe.values(probe.submit(probe.first, bodies.listed, 0)) == []
        assert probe.values(probe.submit(probe.first, bodies.ends_early)) == ["first", "last"]
        assert isinstance(probe.end_of(bodies.nothing), Failed)

    def test_rows_read_without_a_reply_are_counted(self, probe: EngineProbe) -> None:
        task = probe.submit(probe.first, bodies.counts)
        probe.until_ended(task)
        assert [(r.what, r.read) for r in probe.pieces[task]] == [("some", 6), (None, 4)]

    @pytest.mark.parametrize("name", sorted(bodies.SHAPES))
    def test_values_of_every_shape_arrive_whole(self, probe: EngineProbe, name: str) -> None:
        got = probe.run(bodies.shaped, name)
        want = bodies.SHAPES[name]()
        assert type(got) is type(want)
        for a, b in zip(got, want, strict=True) if name == "tuple" else [(got, want)]:
            np.testing.assert_array_equal(a, b)
            assert np.asarray(a).dtype == np.asarray(b).dtype

    def test_many_bodies(self, probe: EngineProbe) -> None:
        def make(i: int) -> Any:
            return lambda kept, operand: iter([Piece(i, i)])

        bodies, order = [make(i) for i in range(600)], (*range(600), *range(10))
        workers = probe.engine.workers[:2]
        tasks = [probe.submit(worker, bodies[i]) for i in order for worker in workers]
        assert [probe.value(t) for t in tasks] == [i for i in order for _ in workers]

    def test_a_body_is_pickled_once(self, probe: EngineProbe) -> None:
        body = CountedBody()
        for round in range(1, 4):
            tasks = [probe.submit(w, body, w, round=round) for w in probe.engine.workers]
            assert [probe.value(task) for task in tasks] == list(probe.engine.workers)
        assert body.pickled <= 1

    def test_no_wait_returns_at_once(self, engine: Engine) -> None:
        took: list[float] = []
        for _ in range(100):
            began = engine.now()
            assert engine.events(0) == []
            took.append(engine.now() - began)
        assert min(took) < 0.02  # a busy machine holds up most of them, and not every one

    def test_an_unknown_worker_is_refused(self, engine: Engine) -> None:
        with pytest.raises(UnknownWorker):
            engine.submit(Task(0, 1, 10_000, bodies.echo))
        with pytest.raises(UnknownWorker):
            engine.put(10_000, "key", 1)
        if engine.capabilities.can_lose:
            with pytest.raises(UnknownWorker):
                engine.lose(10_000)

    def test_ids_are_never_given_twice(self, engine: Engine) -> None:
        rounds, tasks = engine.counters()
        given = {next(rounds) for _ in range(3)}, {next(tasks) for _ in range(3)}
        again = engine.counters()
        assert next(again[0]) not in given[0]
        assert next(again[1]) not in given[1]

    # Failures.

    def test_a_raising_task_is_an_event_and_the_worker_lives_on(self, probe: EngineProbe) -> None:
        worker = probe.engine.workers[2]
        bad, good = probe.submit(worker, bodies.raises, 2), probe.submit(worker, bodies.echo, 5)
        failed = probe.until_ended(bad)[0]
        assert isinstance(failed, Failed)
        assert (failed.worker, failed.task, failed.key) == (worker, bad, None)
        assert "the raising line" in failed.error
        assert 'raise ValueError("the raising line")' in failed.traceback
        assert [r.what for r in probe.pieces[bad]] == [(0, 1), (1, 2)]
        assert probe.value(good) == (5,)

    @pytest.mark.parametrize("kind", sorted(bodies.BAD))
    def test_whatever_goes_wrong_is_a_failure_and_the_worker_lives_on(
        self, probe: EngineProbe, kind: str
    ) -> None:
        """It cannot be ended politely, either."""
        values_travel(probe.engine)
        if kind == "unreadable":
            probe.needs("processes")
        body, error = bodies.BAD[kind]
        failed = probe.end_of(body)
        assert isinstance(failed, Failed)
        assert error in failed.error
        assert probe.run(bodies.echo, 5) == (5,)

    def test_what_cannot_be_pickled_is_refused(self, probe: EngineProbe) -> None:
        values_travel(probe.engine)
        with pytest.raises(BadInput, match="pickling"):
            probe.engine.put(probe.first, "key", (i for i in range(3)))
        with pytest.raises(BadInput, match="pickling"):
            probe.submit(probe.first, bodies.echo, (i for i in range(3)))
        with pytest.raises(BadInput, match="pickling"):
            probe.engine.broadcast(1, (i for i in range(3)))
        assert probe.run(bodies.echo, 5) == (5,)

    # Cancelling.

    def test_cancel_frees_the_worker(self, probe: EngineProbe) -> None:
        running = probe.occupy(probe.first)
        behind = [probe.occupy(probe.first) for _ in range(1000)]
        probe.until_begun(running)
        probe.engine.cancel(1)
        later = probe.submit(probe.first, bodies.echo, 9, round=2)
        assert probe.value(later) == (9,)
        for end in probe.until_ended(running, *behind):
            assert isinstance(end, Dropped)
            assert (end.worker, end.round) == (probe.first, 1)
        # The worker was freed before: what it owed ended first.
        assert probe.log[-1].time >= max(probe.ends[t][0].time for t in behind)

    def test_a_round_cancelled_before_it_starts_is_dropped(self, probe: EngineProbe) -> None:
        probe.engine.cancel(5)
        probe.engine.cancel(3)  # changes nothing
        stale = [
            probe.submit(w, bodies.echo, 1, round=r) for w in probe.engine.workers for r in (4, 5)
        ]
        fresh = [probe.submit(w, bodies.echo, 1, round=6) for w in probe.engine.workers]
        assert all(isinstance(end, Dropped) for end in probe.until_ended(*stale))
        assert all(isinstance(end, Reply) for end in probe.until_ended(*fresh))

    def test_a_reply_after_a_cancel_is_legal(self, probe: EngineProbe) -> None:
        for round in range(1, 30):
            for worker in probe.engine.workers:
                probe.submit(worker, bodies.steps, 3, round=round)
            probe.engine.cancel(round)
        assert all(isinstance(end, Dropped | Reply) for end in probe.until_ended())

    # Interrupts.

    def test_an_interrupt_out_of_a_wait_costs_no_event(self, probe: EngineProbe) -> None:
        """And every wait can be interrupted."""
        if probe.engine.capabilities.virtual_time:
            pytest.skip("this engine never waits")

        def strike(*_: Any) -> None:
            raise KeyboardInterrupt

        def strikes() -> None:
            while not over.wait(0.002):
                signal.pthread_kill(main, signal.SIGUSR1)

        main, over, interrupts = threading.main_thread().ident or 0, threading.Event(), 0
        before = signal.signal(signal.SIGUSR1, strike)
        thread = threading.Thread(target=strikes)
        try:
            with suppress(KeyboardInterrupt), held():  # one may wait until the end of `held`
                thread.start()
                for worker in probe.engine.workers:
                    for _ in range(5):
                        probe.submit(worker, bodies.uneven, 20)
                limit = probe.engine.now() + probe.patience
                while interrupts < 20 or not all(probe.ends.values()):
                    assert probe.engine.now() < limit, f"{interrupts} interrupts came out"
                    try:
                        probe.listen(1.0)
                    except KeyboardInterrupt:
                        interrupts += 1
                over.set()
                thread.join()
        finally:
            over.set()
            thread.join()
            signal.signal(signal.SIGUSR1, before)
        for task in probe.tasks:
            assert [value[-1] for value in probe.values(task)] == list(range(20))


class CountedBody:
    """A body that knows how often it was pickled."""

    pickled = 0

    def __call__(self, kept: Any, operand: Any, number: int) -> tuple[Piece]:
        return (Piece(None, number),)

    def __reduce__(self) -> Any:
        self.pickled += 1
        return CountedBody, ()
