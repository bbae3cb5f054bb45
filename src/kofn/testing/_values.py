"""The engine's promises about values: what workers keep, operands, and who owns an array."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest

from ..errors import BadInput
from ..exchange import ExchangeLayout
from ..model import Build, Failed, Stored, Update
from ..peers import Address, Node
from ..peers.relay import open_node
from ._bodies import (
    append,
    calls,
    echo,
    flags,
    hears,
    labels,
    make,
    measure,
    miscounts,
    offers,
    reached,
    recall,
    spoil,
    takes,
    thread_names,
    threads,
)
from ._probe import EngineProbe
from ._tasks import values_travel


class ValueChecks:
    """See EngineChecks."""

    def test_put_is_kept_until_forgotten(self, probe: EngineProbe) -> None:
        first, second = probe.engine.workers[:2]
        probe.engine.put(first, "small", np.arange(4))
        probe.engine.put(first, "large", np.ones(300_000))
        probe.engine.put(first, "built", Build(make, (123,)))
        # Before any task submitted later: no need to wait for Stored.
        tasks = [probe.submit(first, recall, key) for key in ("small", "large", "built")]
        assert [probe.value(t) for t in tasks] == [("has", 6), ("has", 300_000), ("has", 123)]
        for key in ("small", "large", "built"):
            assert probe.wait(Stored, worker=first, key=key)
        assert probe.value(probe.submit(second, recall, "large")) == ("no",)
        probe.engine.forget("large")
        assert probe.value(probe.submit(first, recall, "large")) == ("no",)
        assert probe.value(probe.submit(first, recall, "small")) == ("has", 6)

    def test_put_replaces(self, probe: EngineProbe) -> None:
        probe.engine.put(probe.first, "key", np.ones(3))
        probe.engine.put(probe.first, "key", np.ones(100_000))
        assert probe.run(recall, "key") == ("has", 100_000)

    def test_what_was_written_where_it_is_kept_is_there(self, probe: EngineProbe) -> None:
        engine, first = probe.engine, probe.first
        room = engine.room((3, 40_000), np.float64)
        if room is None:
            pytest.skip("workers of this engine are sent copies")
        room.fill(2, np.full((1, 40_000), 2.0))
        room.fill(0, np.ones((1, 40_000)))
        twin = room.twin()
        engine.put(first, "key", room)
        assert probe.value(probe.submit(first, recall, "key")) == ("has", 120_000.0)
        if twin is not None:  # the same memory at another worker, whoever drops it first
            second = engine.workers[1]
            engine.forget("key")
            engine.put(second, "key", twin)
            assert probe.value(probe.submit(second, recall, "key")) == ("has", 120_000.0)

    def test_a_put_that_fails_says_which(self, probe: EngineProbe) -> None:
        worker = probe.engine.workers[3]
        probe.engine.put(worker, "bad", Build(spoil))
        failed = probe.wait(Failed, key="bad")
        assert (failed.worker, failed.task) == (worker, None)
        assert "cannot be built" in failed.error
        assert "spoil" in failed.traceback
        assert probe.value(probe.submit(worker, recall, "bad")) == ("no",)

    def test_a_put_is_never_cancelled(self, probe: EngineProbe) -> None:
        for worker in probe.engine.workers:
            probe.engine.put(worker, "key", Build(make, (5,)))
        probe.engine.cancel(100)
        for worker in probe.engine.workers:
            probe.wait(Stored, worker=worker, key="key")
            assert probe.value(probe.submit(worker, recall, "key", round=101)) == ("has", 5)

    def test_an_update_is_done_once_and_what_fails_is_kept_no_longer(
        self, probe: EngineProbe
    ) -> None:
        probe.engine.put(probe.first, "old", np.arange(4))
        for _ in range(2):  # sent again in doubt: nothing is done
            probe.engine.put(probe.first, "new", Update("old", append, (5,)))
        probe.engine.put(probe.first, "copy", Update("new", append, (5,), keeps=True))
        tasks = [probe.submit(probe.first, recall, key) for key in ("old", "new", "copy")]
        assert [probe.value(t) for t in tasks] == [("no",), ("has", 11), ("has", 16)]
        probe.until(
            lambda: len(probe.find(Stored, worker=probe.first, key="new")) == 2, "both answers"
        )
        probe.engine.put(probe.first, "newer", Update("new", spoil))
        assert probe.wait(Failed, key="newer")
        probe.engine.put(probe.first, "orphan", Update("never there", append, (5,)))
        assert probe.wait(Failed, key="orphan")
        tasks = [probe.submit(probe.first, recall, key) for key in ("new", "newer", "orphan")]
        assert [probe.value(t) for t in tasks] == [("no",)] * 3

    def test_a_worker_does_all_in_the_order_sent(self, probe: EngineProbe) -> None:
        """Puts, updates, forgets and tasks at random, against a dict; nobody waits for answers."""
        engine, worker, dice = probe.engine, probe.first, random.Random(3)
        kept: dict[str, int] = {}
        wanted: dict[int, Any] = {}
        answers: list[tuple[type[Any], str]] = []
        for number in range(200):
            key, of = dice.sample("abcd", 2)
            match dice.choice(["put", "update", "forget", "task", "task"]):
                case "put":
                    engine.put(worker, key, number)
                    kept[key] = number
                    answers.append((Stored, key))
                case "update":
                    engine.put(worker, key, Update(of, int.__add__, (number,)))
                    answers.append((Stored if key in kept or of in kept else Failed, key))
                    if key not in kept and of in kept:
                        kept[key] = kept.pop(of) + number
                case "forget":
                    engine.forget(key)
                    kept.pop(key, None)
                case _:
                    value = ("has", kept[key]) if key in kept else ("no",)
                    wanted[probe.submit(worker, recall, key)] = value
        assert {task: probe.value(task) for task in wanted} == wanted
        probe.until(lambda: len(self._answers(probe)) == len(answers), "every answer")
        assert self._answers(probe) == answers

    def _answers(self, probe: EngineProbe) -> list[tuple[type[Any], str]]:
        """The answers to puts, in order."""
        answers = [e for e in probe.log if isinstance(e, Stored | Failed) and e.key is not None]
        return [(type(e), str(e.key)) for e in answers]

    # Operands.

    @pytest.mark.parametrize("size", [3, 300_000])
    def test_each_round_has_its_own_operand(self, probe: EngineProbe, size: int) -> None:
        tasks = {}
        for round in range(1, 9):
            probe.engine.broadcast(round, np.full(size, float(round)))
            for worker in probe.engine.workers:
                for _ in range(2):
                    tasks[probe.submit(worker, measure, round=round)] = round
            if round % 2:  # one round alone, then two at a time
                probe.until_ended()
                probe.engine.cancel(round)
        for task, round in tasks.items():
            assert probe.value(task) == ((size,), float(round * size), float(round))
        assert probe.run(measure, round=20) == "none"

    def test_an_operand_serves_tasks_submitted_late(self, probe: EngineProbe) -> None:
        probe.engine.broadcast(1, np.ones((500, 200)))
        assert probe.run(measure)[1] == 100_000
        probe.engine.broadcast(2, np.zeros((500, 200)))
        assert probe.value(probe.submit(probe.engine.workers[1], measure, round=2))[1] == 0
        assert probe.value(probe.submit(probe.engine.workers[1], measure, round=1))[1] == 100_000

    def test_a_round_has_one_operand(self, probe: EngineProbe) -> None:
        probe.engine.broadcast(1, np.ones(3))
        with pytest.raises(BadInput, match="one operand"):
            probe.engine.broadcast(1, np.zeros(3))
        assert probe.run(measure)[1] == 3

    def test_an_operand_is_pickled_once_a_round(self, probe: EngineProbe) -> None:
        operand = CountedOperand()
        probe.engine.broadcast(1, operand)
        tasks = [probe.submit(w, measure) for w in probe.engine.workers for _ in range(2)]
        assert [probe.value(task) for task in tasks] == [((2,), 2.0, 1.0)] * 8
        assert operand.pickled <= 1

    def test_rounds_that_are_never_cancelled(self, probe: EngineProbe) -> None:
        """An engine may keep 64 operands; for one that made room there is an error, no value."""
        first, second = probe.engine.workers[:2]
        for round in range(200):
            probe.engine.broadcast(round, np.full(5_000, float(round)))
            assert probe.value(probe.submit(first, measure, round=round))[2] == round
        for round in (136, 199):
            assert probe.value(probe.submit(second, measure, round=round))[2] == round
        try:
            late = probe.submit(first, measure, round=3)
        except BadInput as error:
            assert "Cancel rounds" in str(error)  # noqa: PT017 - it may be kept, too
        else:
            assert probe.value(late)[2] == 3
        probe.engine.cancel(199)
        probe.engine.broadcast(200, np.ones(3))
        assert probe.value(probe.submit(first, measure, round=200))[1] == 3

    def test_an_operand_with_open_tasks_makes_no_room(self, probe: EngineProbe) -> None:
        engine, (first, second, *_) = probe.engine, probe.engine.workers
        tasks = []
        for round in range(100):
            engine.broadcast(round, np.full(5_000, float(round)))
            tasks.append(probe.submit(first, measure, round=round))
        tasks += [probe.submit(second, measure, round=round) for round in range(100)]
        assert [probe.value(task)[2] for task in tasks] == [*range(100), *range(100)]

    def test_a_large_operand_and_a_large_reply(self, probe: EngineProbe) -> None:
        probe.engine.broadcast(1, np.arange(4_000_000.0))
        tasks = [probe.submit(worker, measure) for worker in probe.engine.workers]
        last = 4_000_000 - 1
        want = ((4_000_000,), last * (last + 1) / 2, float(last))
        assert [probe.value(task) for task in tasks] == [want] * 4
        (back,) = probe.run(echo, np.arange(4_000_000.0))
        np.testing.assert_array_equal(back, np.arange(4_000_000.0))

    def test_what_is_large_beside_a_value_arrives_too(self, probe: EngineProbe) -> None:
        task = probe.submit(probe.first, labels, 60_000)
        probe.until_ended(task)
        labelled = [reply for reply in probe.pieces[task] if reply.value is not None]
        assert [(r.what.sum(), r.value.sum()) for r in labelled] == [(0, 60_000), (60_000, 60_000)]

    def test_traffic_grows_where_it_is_counted(self, probe: EngineProbe) -> None:
        before = probe.engine.traffic
        if before is None:
            pytest.skip("nobody counts the bytes of this engine")
        probe.run(echo, "x" * 10_000)
        assert (probe.engine.traffic or 0) >= before + 20_000

    def test_usage_tells_of_live_workers_alone(self, probe: EngineProbe) -> None:
        engine = probe.engine
        probe.run(echo, "x" * 10_000)
        used = engine.usage()
        assert used.keys() == set(engine.workers)
        for worker, numbers in used.items():
            assert numbers.keys() <= {"resident", "moved"}
            assert all(number > 0 for number in numbers.values())
            if engine.pid(worker) is not None and sys.platform == "linux":
                assert numbers["resident"] > 1 << 20  # no Python is smaller
        if "moved" in used[probe.first]:
            assert sum(numbers["moved"] for numbers in used.values()) >= 20_000

    def test_who_is_crowded_is_live(self, probe: EngineProbe) -> None:
        assert set(probe.engine.crowded) <= set(probe.engine.workers)

    # Arrays.

    @pytest.mark.parametrize("size", [3, 100_000])
    def test_workers_read_and_the_master_owns(self, probe: EngineProbe, size: int) -> None:
        values_travel(probe.engine)
        probe.engine.broadcast(1, np.ones(size))
        probe.engine.put(probe.first, "key", np.ones(size))
        task = probe.submit(probe.first, flags, np.ones(size))
        assert probe.value(task) == [(False, True)] * 3
        given = np.ones(size)
        (first,), (second,) = (probe.run(echo, given) for _ in range(2))
        for array in (first, second):
            assert (array.flags.writeable, array.flags.aligned) == (True, True)
            array += 1.0
        assert given.sum() == size
        assert second.sum() == 2 * size

    def test_what_is_sent_is_what_it_was(self, probe: EngineProbe) -> None:
        worker, array = probe.first, np.ones(100_000)
        with probe.frozen(worker):
            probe.engine.broadcast(1, array)
            probe.engine.put(worker, "key", array)
            tasks = probe.submit(worker, measure), probe.submit(worker, echo, array)
            kept = probe.submit(worker, recall, "key")
            array[:] = 7.0
        assert probe.value(tasks[0])[1] == 100_000
        assert probe.value(tasks[1])[0].sum() == 100_000
        assert probe.value(kept) == ("has", 100_000)

    @pytest.mark.parametrize("size", [100, 100_000])
    def test_an_operand_is_what_it_was(self, probe: EngineProbe, size: int) -> None:
        values_travel(probe.engine)
        for round in (1, 2):
            array = np.ones(size)
            probe.engine.broadcast(round, array)
            array[:] = 7.0
            tasks = [probe.submit(w, measure, round=round) for w in probe.engine.workers]
            assert [probe.value(task)[1] for task in tasks] == [size] * 4

    def test_a_reply_that_fails_changes_no_other(self, probe: EngineProbe) -> None:
        values_travel(probe.engine)
        for i in range(3):
            (end,) = probe.until_ended(probe.submit(probe.first, miscounts))
            assert isinstance(end, Failed), end
            want = np.arange(50_000.0) + i
            (back,) = probe.value(probe.submit(probe.first, echo, want))
            np.testing.assert_array_equal(back, want)

    def test_one_blas_thread_each(self, probe: EngineProbe) -> None:
        probe.needs("processes")  # or workers have the threads of this one
        for task in [probe.submit(worker, threads) for worker in probe.engine.workers]:
            assert set(probe.value(task)) <= {1}

    # Exchange.

    def test_workers_exchange_where_the_engine_can(self, probe: EngineProbe) -> None:
        engine, shape = probe.engine, ExchangeLayout(4, 3, 5, "<f8")
        exchange = engine.exchange(shape)
        if exchange is None:
            if engine.capabilities.exchange:
                self._reach_each_other(probe)
            return
        for worker in engine.workers:
            engine.put(worker, "exchange", exchange)
        tasks = [probe.submit(w, offers, slot) for slot, w in enumerate(engine.workers)]
        assert [probe.value(task) for task in tasks] == [0, 1, 2, 3]
        progress = exchange.progress()
        assert progress.rounds.tolist() == [0, 1, 2, 3, 0]
        assert progress.reads.tolist() == [7, 7, 7, 7, 0]
        for slot, worker in enumerate(engine.workers):
            vector = probe.value(probe.submit(worker, takes, 3 - slot))
            np.testing.assert_array_equal(vector, np.full(5, 3.0 - slot))
        np.testing.assert_array_equal(exchange.vector(2, 2), np.full(5, 2.0))
        engine.forget("exchange")
        exchange.close()
        assert probe.value(probe.submit(engine.workers[0], echo, 5)) == (5,)

    def _reach_each_other(self, probe: EngineProbe) -> None:
        """Without memory that they share, workers connect to each other, by the engine's keys."""
        engine = probe.engine
        keys, find = engine.encryption or (None, None)
        for worker in engine.workers:
            build = Build(open_node, (b"token", "another machine", find))
            engine.put(worker, "node", build)
        addresses = [probe.value(probe.submit(worker, reached)) for worker in engine.workers]
        last = engine.workers[-1]
        for worker in engine.workers[:-1]:
            probe.value(probe.submit(worker, calls, addresses[-1], worker))
        # The master's reaches it as from another machine: by TCP, encrypted where there are keys.
        node = Node(b"token", listen=False, same_host=False, keys=keys)
        node.send(Address(*addresses[-1]), {"k": "value"}, np.array([last]))
        assert sorted(probe.value(probe.submit(last, hears, 4))) == list(engine.workers)
        node.close()
        engine.forget("node")
        assert "kofn-peers" not in probe.value(probe.submit(last, thread_names))


class CountedOperand:
    """An operand that knows how often it was pickled; what arrives is an array."""

    shape, flat, pickled = (2,), (1.0,), 0

    def sum(self) -> float:
        """As of an array."""
        return 2.0

    def __reduce__(self) -> Any:
        self.pickled += 1
        return np.ones, ((2,),)
