"""Sequences of products: results, deadlines, losses and joiners, on virtual and local workers."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from support import DataFolder, driver_of

import kofn
from kofn.arrays.baselines import Replicated
from kofn.arrays.grid import encode_grid
from kofn.checks import factors
from kofn.delays import (
    AsSlowAs,
    Change,
    Delays,
    Given,
    Independent,
    PerUnit,
    Script,
    Slowed,
    read_timings,
)
from kofn.engines.base import Engine, Wrapped
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.model import Assign, Event, Joined, Reply, Send, Task, Tick
from kofn.rounds.roster import Roster, Slots
from kofn.sequence import SequenceCode, Stream, Uncoded
from kofn.sequence.ledger import Diagonal, Mini
from kofn.sequence.round import DeadlineRound
from kofn.sequence.work import multiply
from kofn.sums.rivals import Backups, Stale
from kofn.testing import Faults

Pairs = list[tuple[NDArray[np.float64], NDArray[np.float64]]]
CODES: list[SequenceCode] = [
    Uncoded(2, 2),
    kofn.Polynomial(2, 1),
    kofn.Polynomial(1, 1, z=2),
    kofn.DIP(2, 3, delay=3, lam=1),
    kofn.DIP(2, 2, delay=2, lam=2, z=2),
    kofn.IDIP(2, 3, delay=3, N=10, W=4),
    kofn.IDIP(4, 3, delay=3, N=4, W=4, burst=2),
    kofn.sequence.BurstIDIP(2, 6, delay=3, B=2, W=3, lam=2),
]
UNIT = 1e4 / 1e9  # simulated seconds a multiply-add: rounds of hours, so that slices do not count


def pairs(count: int, seed: int = 0) -> Pairs:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, (20, 15, 9), (count, 3)).tolist()
    return [(rng.standard_normal((m, n)), rng.standard_normal((n, p))) for m, n, p in sizes]


def right(stream: Stream, jobs: Pairs, found: list[NDArray[np.float64]]) -> None:
    bound = stream.report.error_bound
    assert bound is not None
    assert len(found) == len(jobs)
    for (X, Y), Z in zip(jobs, found, strict=True):
        assert Z.shape == (len(X), Y.shape[1])
        assert np.linalg.norm(Z - X @ Y) <= bound * np.linalg.norm(X) * np.linalg.norm(Y)


@pytest.mark.claim("sequential: Remark 5.1")
@pytest.mark.parametrize("code", CODES, ids=repr)
def test_jobs_of_many_shapes_are_right_and_in_order(code: SequenceCode) -> None:
    delays = Slowed(Independent(0.3, seed=1), 5.0, UNIT)
    with kofn.connect(VirtualEngine(4, delays=delays), limit=1e9) as cluster:
        stream = cluster.sequence(code, slack=0.1)
        jobs = pairs(25)
        for X, Y in jobs:
            stream.submit(X, Y)
        right(stream, jobs, list(stream))
        report = stream.report
    assert report.overdue == ()
    assert report.conforms == (report.waited == 0)  # nobody is lost: all they could do is wait
    assert report.jobs == 25
    assert [r.began for r in report.rounds if r.began is not None] == list(range(25))
    assert all(j - r.round + 1 <= 0 for r in report.rounds for j in r.done)
    assert all(r.round - 1 - j <= code.delay for r in report.rounds for j in r.done)


@pytest.mark.engine
@pytest.mark.parametrize("code", CODES, ids=repr)
def test_on_local_workers(cluster: kofn.Cluster, code: SequenceCode) -> None:
    stream = cluster.sequence(code)
    jobs = pairs(12, seed=3)
    tickets = [stream.submit(X, Y) for X, Y in jobs]
    right(stream, jobs, [ticket.result() for ticket in tickets])
    assert list(stream) == []  # all are taken
    assert stream.report.overdue == ()


def test_results_do_not_depend_on_who_straggled() -> None:
    jobs = pairs(10, seed=5)
    found = []
    for seed in range(3):
        delays = Slowed(Independent(0.5, seed), 4.0, UNIT)
        with kofn.connect(VirtualEngine(4, delays=delays), limit=1e9) as cluster:
            stream = cluster.sequence(kofn.DIP(2, 3, delay=3, lam=1))
            for X, Y in jobs:
                stream.submit(X, Y)
            found.append(list(stream))
            right(stream, jobs, found[-1])


def test_float32_stays_float32_and_too_small_a_tolerance_is_refused() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((8, 50)).astype(np.float32)
    Y = rng.standard_normal((50, 6)).astype(np.float32)
    with kofn.connect("virtual", workers=4) as cluster:
        stream = cluster.sequence(kofn.DIP(2, 3, delay=2, lam=2))
        Z = stream.submit(X, Y).result()
        assert Z.dtype == np.float32
        exact = X.astype(float) @ Y.astype(float)
        assert np.linalg.norm(Z - exact) <= 1e-2 * np.linalg.norm(exact)
        with pytest.raises(kofn.Inaccurate, match="float64"):
            cluster.sequence(kofn.DIP(2, 3, 2, 2), tolerance=1e-9).submit(X, Y)


def test_a_poor_decode_takes_more_replies_until_it_is_as_accurate_as_was_asked_for() -> None:
    """Monomials at k = 12: with every reply in time, k of them would leave few digits."""
    code = kofn.DIP(3, 4, delay=3, lam=4, points="monomial")
    X, Y = np.eye(6), np.arange(48.0).reshape(6, 8)
    with kofn.connect("virtual", workers=5) as cluster:
        stream = cluster.sequence(code, tolerance=1e-8)
        ticket = stream.submit(X, Y)
        Z = ticket.result()
        assert ticket.error_bound is not None
        assert ticket.error_bound <= 1e-8
        assert np.abs(Z - Y).max() <= 1e-8 * np.linalg.norm(Y) * np.linalg.norm(X)
        report = stream.report
        # Three rounds bring fifteen replies; the job was not done with those.
        assert len(report.rounds) >= 4 or report.rounds[-1].topped_up > 0


# Time.


def simulate(code: SequenceCode, delays: Slowed, jobs: int, P: int, mu: float) -> Stream:
    """Jobs of load 1, in simulated time alone; the stream with its report."""
    engine = VirtualEngine(P, delays=delays, compute=False)
    with kofn.connect(engine, limit=float("inf")) as cluster:
        stream = cluster.sequence(code, slack=mu)
        for _ in range(jobs):
            stream.submit_size(2520, 10, 2520)
        for _ in stream:
            pass
        return stream


UNIT_LOAD = 1e4 / (2520 * 10 * 2520)  # a whole job takes one worker 10,000 seconds


@pytest.mark.claim("sequential: Section 2.1, stragglers")
def test_stragglers_are_those_beyond_the_slack() -> None:
    pattern = np.zeros((8, 4), dtype=bool)
    pattern[2, 1] = pattern[3, 3] = True
    delays = Slowed(Given(pattern), 2.0, UNIT_LOAD)
    rounds = simulate(kofn.DIP(2, 3, 3, 1), delays, 6, 4, 0.25).report.rounds
    assert [r.stragglers for r in rounds[:6]] == [(), (), (1,), (3,), (), ()]
    patient = simulate(kofn.DIP(2, 3, 3, 1), delays, 6, 4, 1.1).report.rounds
    assert all(r.stragglers == () for r in patient)


def test_the_stream_waits_for_stragglers_where_the_code_must() -> None:
    everyone_but_one = np.ones((20, 4), dtype=bool)
    everyone_but_one[:, 0] = False
    delays = Slowed(Given(everyone_but_one), 3.0, UNIT_LOAD)
    stream = simulate(kofn.IDIP(2, 3, 3, N=10, W=4), delays, 8, 4, 0.0)
    assert stream.report.waited > 0
    assert all(r.conforms != r.waited for r in stream.report.rounds)
    assert stream.report.overdue == ()


def test_who_is_merely_not_needed_is_no_straggler() -> None:
    """Polynomial(2, 1) ends with two of four; only those still at it after the time are late."""
    slow = np.zeros((6, 4), dtype=bool)
    slow[2, 1] = True
    slow[3, 1:] = True
    rounds = simulate(kofn.Polynomial(2, 1), Slowed(Given(slow), 3.0, UNIT_LOAD), 6, 4, 0.25)
    found = rounds.report.rounds
    assert [r.stragglers for r in found if r.round != 4] == [()] * 5
    assert len(found[3].stragglers) == 2  # of three, one was waited for
    assert [r.conforms for r in found] == [True, True, True, False, True, True]


@pytest.mark.parametrize(
    ("code", "spare"), [(kofn.Polynomial(2, 1), 2), (kofn.DIP(2, 3, delay=1, lam=2), 2)]
)
def test_more_losses_than_the_code_can_do_without_do_not_conform(
    code: SequenceCode, spare: int
) -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        stream = cluster.sequence(code)
        for lost in range(spare + 2):
            found = stream.submit(np.eye(6), np.eye(6)).result()
            assert np.allclose(found, np.eye(6))
            assert stream.report.rounds[-1].conforms == (lost <= spare)
            if lost < 3:
                cluster.lose(lost)
        assert [w for r in stream.report.rounds for w in r.lost] == [0, 1, 2]


def test_one_that_never_comes_is_stood_in_for() -> None:
    """Two of four would have to be waited for: after long enough the others do what is due."""
    frozen = np.zeros((60, 4), dtype=bool)
    frozen[2:, 2:] = True
    delays = Slowed(Given(frozen), 1e9, UNIT_LOAD)
    for code in (kofn.Polynomial(3, 1), kofn.DIP(2, 6, 2, lam=4), kofn.IDIP(1, 11, 2, N=1, W=3)):
        stream = simulate(code, delays, 6, 4, 0.0)
        assert stream.report.overdue == ()
        assert sum(r.topped_up for r in stream.report.rounds) > 0
        assert stream.report.seconds < 1e7
        assert not any(r.conforms for r in stream.report.rounds if r.topped_up)


def test_recorded_stragglers(data_folder: DataFolder) -> None:
    data = data_folder("straggler_traces") / "straggler_traces"
    recorded = read_timings(data / "aws_lambda_256workers_2022.npz")
    slow = AsSlowAs(recorded[min(recorded)].timings[-1], UNIT_LOAD)
    engine = VirtualEngine(8, delays=slow)
    jobs = pairs(20, seed=2)
    with kofn.connect(engine, limit=1e9) as cluster:
        stream = cluster.sequence(kofn.DIP(4, 4, delay=3, lam=2))
        for X, Y in jobs:
            stream.submit(X, Y)
        right(stream, jobs, list(stream))
        assert stream.report.overdue == ()
        assert any(r.stragglers for r in stream.report.rounds)


class _Codec:
    """A codec at which everything is ready."""

    busy = False

    def __init__(self) -> None:
        self.done: list[int] = []
        self.tasks = 0

    def ready(self, worker: int, mini: Mini) -> bool:
        return True

    def give(self, worker: int, slot: int, mini: Mini) -> tuple[()]:
        return ()

    def task(self, round: int, worker: int, mini: Mini) -> Task:
        self.tasks += 1
        return Task(self.tasks, round, worker, multiply, (), tuple(mini))

    def wrong(self, mini: tuple[int, int], value: object) -> None: ...

    def take(self, mini: tuple[int, int], value: object) -> None: ...

    def complete(self, jobs: Sequence[int]) -> None:
        self.done += jobs

    def idle_work(self) -> tuple[()]:
        return ()


def test_partial_work_counts() -> None:
    """A straggler's first mini-task is in before the round's end: it is not lost."""
    ledger, codec = Diagonal(k=3, slots=2, delay=1, lam=1), cast(Any, _Codec())
    ledger.begin(0)
    ledger.end([])  # nobody delivered anything in the first round
    batches = ledger.begin(1)  # one mini-task of job 1, three of job 0
    round = DeadlineRound(7, batches, ledger, codec, Slots(2, {0: 0, 1: 1}), 0.0)
    sent = [c.task for c in round.start(0.0) if type(c) is Send]
    assert len(sent) == 2 * 4
    mine = [task for task in sent if task.worker == 1]
    other = [task for task in sent if task.worker == 0]

    def reply(time: float, task: Task) -> None:
        round.on(Reply(time, task.worker, 7, task.id, task.what, None, 0, 0.1, True))

    reply(1.0, mine[0])
    reply(1.0, mine[1])
    for time, task in enumerate(other[:3], 1):
        reply(float(time), task)
    assert codec.done == [0]  # two of worker 0, one of the straggler
    assert not round.done
    reply(4.0, other[3])
    round.on(Tick(round.wake))
    assert round.done
    assert round.finished == {0}
    assert ledger.jobs[1].rows == [batches[0][1].row, batches[0][0].row]


def test_who_takes_the_slot_of_a_wrong_worker_has_it_alone() -> None:
    """A joiner of the same round: else the next round would have two workers in one slot."""

    class Codec(_Codec):
        def wrong(self, mini: tuple[int, int], value: object) -> Any:
            return None if value is None else "it is"

    ledger, roster = Diagonal(k=2, slots=2, delay=1, lam=1), Roster([0, 1])
    slots = roster.slots(2)
    slots.update({0: 0, 1: 1})
    round = DeadlineRound(7, ledger.begin(0), ledger, cast(Any, Codec()), slots, 0.0)

    def told(event: Event) -> None:
        for command in round.on(roster.note(event)):
            if type(command) is Assign:
                roster.assign(command)

    task = next(c.task for c in round.start(0.0) if type(c) is Send and c.task.worker == 1)
    told(Reply(1.0, 1, 7, task.id, task.what, "no", 0, 0.1, True))
    assert round.wrong == {1: "it is"}
    assert slots == {0: 0, 1: 1}  # it is given work again, in the next round
    told(Joined(2.0, 2))
    assert round.slots == slots == {0: 0, 2: 1}


# Losses and joiners.


@pytest.mark.parametrize("code", CODES, ids=repr)
def test_a_lost_worker_straggles_until_a_joiner_takes_its_slot(code: SequenceCode) -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        stream = cluster.sequence(code)
        jobs = pairs(18, seed=9)
        found = []
        for number, (X, Y) in enumerate(jobs):
            ticket = stream.submit(X, Y)
            if number == 4:
                cluster.lose(2)
            if number == 12:
                cluster.join()
            found.append(ticket.result())
        right(stream, jobs, found)
        rounds = stream.report.rounds
    gone = next(r.round for r in rounds if r.lost)
    came = next(r.round for r in rounds if r.joined)
    assert [r.lost for r in rounds if r.lost] == [(2,)]
    assert [r.joined for r in rounds if r.joined] == [(4,)]
    assert all((2 in r.stragglers) == (gone <= r.round < came) for r in rounds)
    if isinstance(code, Uncoded):
        assert all(r.conforms == (not gone <= r.round < came) for r in rounds)
    without = [r for r in rounds if 2 in r.stragglers]
    assert without
    if code.delay:  # others end with the first k replies, whoever gives them
        assert all(2 not in r.stragglers for r in rounds[-3:])
    assert stream.report.overdue == ()


@pytest.mark.engine
def test_kills_in_mid_round_on_local_workers() -> None:
    """kill -9 while mini-tasks are out; the report says when the pattern did not conform."""
    faults = (
        Faults()
        .slow(1, by=1e4, round=3)
        .lose(1, round=3)
        .slow(0, by=1e4, round=5)
        .lose(0, round=5)
        .join(round=7)
    )
    jobs = pairs(14, seed=11)
    with kofn.connect(faults.on(LocalEngine(4))) as cluster:
        stream = cluster.sequence(kofn.IDIP(1, 15, delay=3, N=1, W=4))
        for X, Y in jobs:
            stream.submit(X, Y)
        right(stream, jobs, list(stream))
        report = stream.report
        driver_of(cluster).await_lost(0)
        driver_of(cluster).await_lost(1)
        assert {record.worker for record in cluster.log if record.kind == "lost"} == {0, 1}
        assert not report.conforms  # two slots empty: more than one straggler in four rounds
        assert any(r.topped_up for r in report.rounds)
        assert sum(len(r.joined) for r in report.rounds) <= 1
        cluster.wait_for(3)  # the one who joins may still be starting
        assert len(cluster.workers) == 3


def test_with_everyone_lost_it_says_so_and_goes_on_when_somebody_joins() -> None:
    with kofn.connect("virtual", workers=2) as cluster:
        stream = cluster.sequence(kofn.DIP(2, 2, delay=1, lam=1))
        X, Y = np.eye(4), np.arange(12.0).reshape(4, 3)
        ticket = stream.submit(X, Y)
        cluster.lose(0)
        cluster.lose(1)
        with pytest.raises(kofn.TooFewWorkers):
            ticket.result()
        cluster.join()
        assert np.allclose(ticket.result(), Y)


# Operands, and the master's own work.


class _Counting(Wrapped):
    """Remembers what workers were told to keep."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.puts: list[tuple[int, str]] = []

    def put(self, worker: int, key: str, value: Any) -> None:
        self.puts.append((worker, key))
        super().put(worker, key, value)


@pytest.mark.engine
def test_encoded_operands_go_out_once() -> None:
    """IDIP asks again for mini-tasks that failed: without their operands."""
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((300, 200)), rng.standard_normal((200, 300))
    pair_bytes = (100 * 200 + 200 * 150) * 8  # x = 3, y = 2
    faults = Faults()
    for round in range(1, 9):
        faults = faults.slow(3, by=300.0, round=round)
    engine = _Counting(faults.on(LocalEngine(4)))
    with kofn.connect(engine) as cluster:
        stream = cluster.sequence(kofn.IDIP(3, 2, delay=3, N=10, W=4), slack=1.0)
        before, puts = engine.traffic, engine.puts
        tickets = [stream.submit(X, Y) for _ in range(5)]
        assert all(np.allclose(ticket.result(), X @ Y) for ticket in tickets)
        after = engine.traffic
        rounds = stream.report.rounds
    assert any(3 in r.stragglers for r in rounds)
    assert len(puts) == len(set(puts))
    assert before is not None
    assert after is not None
    results = 100 * 150 * 8 * sum(4 * r.mini_tasks for r in rounds)
    assert after - before <= len(puts) * 1.05 * pair_bytes + results + 1e5
    asked = sum(4 * r.mini_tasks for r in rounds)
    assert len(puts) < asked


@pytest.mark.engine
def test_what_is_done_is_forgotten(cluster: kofn.Cluster) -> None:
    stream = cluster.sequence(kofn.IDIP(2, 3, delay=3, N=10, W=4))
    for X, Y in pairs(40):
        stream.submit(X, Y)
    list(stream)
    driver_of(cluster).settle()
    kept = driver_of(cluster).roster.kept
    assert all(len(keys) < 8 for keys in kept.values())  # of the last jobs
    assert not stream._codec.jobs  # with all that was encoded of them


@pytest.mark.engine
def test_the_share_of_time_that_the_master_holds_up_is_reported(cluster: kofn.Cluster) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((64, 50)), rng.standard_normal((50, 30))
    stream = cluster.sequence(kofn.DIP(2, 3, delay=3, lam=1))
    for _ in range(10):
        stream.submit(X, Y)
    list(stream)
    report = stream.report
    assert 0 <= report.held_share < 1
    assert all(0 <= r.held <= r.seconds for r in report.rounds)
    assert report.seconds > 0
    assert report.encode_seconds > 0
    assert report.decode_seconds > 0


# What is asked wrongly.


def test_bad_input_is_refused_before_any_worker_is_touched() -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        wrong: list[tuple[Callable[[], Stream], str]] = [
            (lambda: cluster.sequence(kofn.IDIP(2, 3, 3, N=16, W=4)), "N < 16"),
            (lambda: cluster.sequence(kofn.IDIP(4, 5, 3, N=0, W=4)), "x·y <= 16"),
            (lambda: cluster.sequence(kofn.IDIP(3, 4, 3, N=4, W=4, burst=9)), "burst=9, W=4"),
            (lambda: cluster.sequence(kofn.Polynomial(3, 2)), "needs 6 replies"),
            (lambda: cluster.sequence(kofn.DIP(2, 3, 3, 1), slack=-1), "slack"),
            (lambda: cluster.sequence(2), "kofn.DIP"),  # type: ignore[arg-type]
        ]
        for make, word in wrong:
            with pytest.raises(kofn.BadInput, match=word):
                make()
        stream = cluster.sequence(kofn.DIP(2, 3, 3, 1))
        for X, Y, word in (
            (np.ones((3, 4)), np.ones((3, 4)), r"\(3, 4\) and \(3, 4\)"),
            (np.ones(3), np.ones((3, 4)), "reshape"),
            (csr_matrix(np.eye(3)), np.ones((3, 4)), r"csr_matrix of shape \(3, 3\)"),
            (np.ones((0, 4)), np.ones((4, 4)), "at least one row"),
            (np.ones((2, 4)) * 1j, np.ones((4, 4)), "real numbers"),
            (np.ones((2, 4)), np.full((4, 2), np.nan), r"\[0, 0\] is nan"),
        ):
            with pytest.raises(kofn.BadInput, match=word):
                stream.submit(X, Y)
        with pytest.raises(kofn.BadInput, match="submit_size"):
            stream.submit_size(1, 1, 1)
        assert cluster.log == []


def test_submit_after_close_is_an_error_and_results_can_still_be_taken() -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        with cluster.sequence(kofn.DIP(2, 2, 1, 2)) as stream:
            ticket = stream.submit(np.eye(3), np.eye(3))
        with pytest.raises(kofn.Closed, match="no more jobs"):
            stream.submit(np.eye(3), np.eye(3))
        assert np.allclose(ticket.result(), np.eye(3))
    with pytest.raises(kofn.Closed):
        stream.submit(np.eye(3), np.eye(3))


def test_a_result_that_cannot_be_there_yet_says_what_it_waits_for() -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        stream = cluster.sequence(kofn.DIP(2, 4, delay=3, lam=4))
        with pytest.raises(kofn.NothingYet):
            _ = stream.report
        first, second = (stream.submit(np.eye(8), np.eye(8)) for _ in range(2))
        with pytest.raises(kofn.NothingYet, match="begins 1 round"):
            first.result(wait=False)
        stream._round(0.0)
        with pytest.raises(kofn.NothingYet, match=r"by round 4; 1 rounds .* 4 of the 8"):
            first.result(wait=False)
        assert "begins" in repr(second)
        assert not first.done
        assert np.allclose(second.result(), np.eye(8))
        assert first.waits_for == ""
        assert np.allclose(first.result(wait=False), np.eye(8))


def test_a_product_beyond_floating_point_says_so_and_the_stream_goes_on() -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        stream = cluster.sequence(kofn.DIP(2, 3, delay=1, lam=1))
        big = np.full((4, 4), 1e300)
        with pytest.raises(kofn.Overflowed, match="Scale the operands"):
            stream.submit(big, big).result()
        assert np.allclose(stream.submit(np.eye(4), np.eye(4)).result(), np.eye(4))


def test_operands_may_be_changed_after_submit() -> None:
    rng = np.random.default_rng(0)
    X, W = rng.standard_normal((12, 8)), rng.standard_normal((8, 6))
    for code in (kofn.DIP(2, 3, delay=3, lam=1), kofn.IDIP(3, 4, delay=3, N=4, W=4)):
        with kofn.connect("virtual", workers=4) as cluster:
            stream = cluster.sequence(code)
            expected = []
            for _ in range(8):
                stream.submit(X, W)
                expected.append(X @ W)
                W -= 0.1 * W
            for found, right in zip(stream, expected, strict=True):
                assert np.allclose(found, right, rtol=1e-9)


def test_only_operands_that_nobody_can_write_to_are_not_copied() -> None:
    frozen = np.ones((3, 3))
    frozen.flags.writeable = False
    open_, shown = np.ones((3, 3)), np.ones((3, 3))
    view = shown.view()
    view.flags.writeable = False  # but its base can be written to
    for array, shared in ((frozen, True), (open_, False), (open_.T, False), (view, False)):
        for one in factors(array, array, True):
            assert np.shares_memory(one, array) == shared


def test_a_job_that_cannot_be_decoded_raises_once_and_iteration_moves_on() -> None:
    big, one = np.full((4, 4), 1e200), np.eye(4)
    with kofn.connect("virtual", workers=4) as cluster:
        stream = cluster.sequence(kofn.DIP(2, 3, delay=1, lam=1))
        for X in (one, big, one):
            stream.submit(X, X)
        asked = stream.submit(big, big)
        stream.submit(one, one)
        with pytest.raises(kofn.Overflowed):
            asked.result()
        results = iter(stream)
        assert np.allclose(next(results), one)
        with pytest.raises(kofn.Overflowed):
            next(results)
        assert len(list(results)) == 2
        assert list(stream) == []
        with pytest.raises(kofn.Overflowed):  # by its ticket, as often as it is asked
            asked.result()


@pytest.mark.parametrize("code", [Uncoded(2, 2), kofn.DIP(2, 3, delay=3, lam=1)])
def test_results_that_were_taken_or_dropped_are_not_kept(code: SequenceCode) -> None:
    X = np.eye(4)
    with kofn.connect("virtual", workers=4) as cluster:
        stream = cluster.sequence(code)
        tickets = [stream.submit(X, number * X) for number in range(8)]
        first, taken, dropped, waiting = tickets[0], tickets[1], tickets[2], tickets[-1]
        waiting.drop()  # it has not begun
        assert not waiting.done
        result = weakref.ref(taken.result())
        for ticket in (dropped, tickets[3]):
            ticket.drop()
            ticket.drop()
            with pytest.raises(kofn.Closed, match="was dropped"):
                ticket.result()
        jobs = [weakref.ref(ticket._job) for ticket in (taken, dropped, waiting)]
        assert np.allclose(tickets[4].result(), 4 * X)
        assert [round(Z[0, 0]) for Z in stream] == [0, 5, 6]
        del taken, dropped, waiting, ticket, tickets
        assert result() is None
        assert [job() for job in jobs] == [None] * 3
        first.drop()  # it was taken before
        assert np.allclose(first.result(), 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_let_through_where_that_was_asked_for(bad: float) -> None:
    X = np.eye(4)
    X[1, 2] = bad
    with kofn.connect("virtual", workers=4) as cluster:
        for code in CODES:
            stream = cluster.sequence(code, check_finite=False)
            assert not np.isfinite(stream.submit(X, X).result()).all()
            assert np.allclose(stream.submit(np.eye(4), np.eye(4)).result(), np.eye(4))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_without_a_code_it_stays_where_it_is(bad: float) -> None:
    """Every block was combined with all others, times zero: NaN came of it everywhere."""
    X, Y = np.ones((6, 3)), np.ones((3, 4))
    X[1, 2] = Y[0, 3] = bad
    with np.errstate(invalid="ignore"):  # some processors' kernels say so, others do not
        expected = X @ Y
    with kofn.connect("virtual", workers=4) as cluster:
        for code in (None, Uncoded(2, 2), Uncoded(4, 1)):
            stream = cluster.sequence(code, check_finite=False)
            np.testing.assert_array_equal(stream.submit(X, Y).result(), expected)


@pytest.mark.engine
def test_another_thread_may_use_the_cluster_meanwhile() -> None:
    """A round's id is taken under the lock: a later round that ends first would cancel it."""
    stop = threading.Event()
    with kofn.connect("local", workers=3) as cluster:
        M = cluster.encode(np.eye(6), k=2)
        failed: list[BaseException] = []

        def multiply_on() -> None:
            try:
                while not stop.is_set():
                    np.testing.assert_allclose(M @ np.ones(6), np.ones(6), atol=1e-12)
            except BaseException as error:
                failed.append(error)

        other = threading.Thread(target=multiply_on)
        other.start()
        try:
            stream = cluster.sequence(kofn.Polynomial(2, 1))
            for _ in range(15):
                found = stream.submit(np.eye(9), np.eye(9)).result()
                np.testing.assert_allclose(found, np.eye(9), atol=1e-12)
        finally:
            stop.set()
            other.join()
    assert not failed


def test_nobody_takes_a_round_or_touches_the_engine_without_the_lock() -> None:
    """Every way of using a cluster, on an engine that looks at who holds the lock."""

    class Guarded(VirtualEngine):
        lock: Any = None
        calls: ClassVar[set[str]] = set()

        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name not in TOUCHES or self.lock is None:
                return found

            def guarded(*args: Any) -> Any:
                assert self.lock._lock._is_owned(), f"{name} without the lock"
                self.calls.add(name)
                return found(*args)

            return guarded

    engine = Guarded(6)
    with kofn.connect(engine) as cluster:
        driver = driver_of(cluster)
        engine.lock, ids = driver.lock, driver.next_round

        def next_round() -> int:
            assert engine.lock._lock._is_owned(), "a round's id without the lock"
            return ids()

        driver.next_round = next_round
        A = np.arange(36.0).reshape(6, 6) / 36
        X = cluster.encode(A, k=3)
        parts = cluster.parts(A, kofn.FractionalRepetition(2))
        grid = encode_grid(cluster, A, (1, 2))
        copies = Replicated(cluster, A, 2)
        backups, stale = Backups(cluster, A), Stale(cluster, A)
        stream = cluster.sequence(kofn.DIP(2, 2, delay=1, lam=1))
        for again in range(2):
            X @ np.ones(6), X.T @ np.ones(6), X.windows(), X.shares, X.toarray()
            grid @ np.ones(6), grid.T @ np.ones(6)
            copies @ np.ones(6), copies.T @ np.ones(6)
            X.iterate(abs, np.ones(6), rounds=3)
            parts.sum(_total)
            backups.sum(_total)
            stale.run(_total, 0.0, lambda t, *_: None if t > 2 else 0.0, 5)
            for _ in range(3):
                stream.submit(A, A)
            assert len(list(stream)) == 3
            X += kofn.low_rank(np.ones((6, 1)), np.ones((6, 1)))
            grid += kofn.low_rank(np.ones((6, 1)), np.ones((6, 1)))
            if not again:
                cluster.lose(0)
                cluster.join()
                cluster.wait_for(6)
        assert cluster.workers == (1, 2, 3, 4, 5, 6)
        assert cluster.log
        del X, parts, grid, copies
        gc.collect()
        assert cluster.workers
    assert engine.calls == TOUCHES


TOUCHES = {"put", "forget", "exchange", "broadcast", "submit", "cancel", "events"}
TOUCHES |= {"lose", "join", "close"}


def _total(part: Any, x: Any) -> Any:
    return part.sum(axis=0)


def test_what_a_round_calls_may_not_begin_another() -> None:
    with kofn.connect(VirtualEngine(3)) as cluster:
        X = cluster.encode(np.eye(6), k=2)
        with pytest.raises(kofn.CannotDo, match="one round runs at a time"):
            X.iterate(abs, np.ones(6), rounds=9, on_round=lambda *_: X @ np.ones(6))
        np.testing.assert_allclose(X @ np.ones(6), np.ones(6), atol=1e-12)


def test_one_that_stands_by_takes_the_slot_of_a_lost_worker_in_mid_round() -> None:
    """Four slots, and a fifth worker that joined when all were taken; then all four are lost."""
    losses = tuple(Change(50.0 + i, i) for i in range(4))
    membership = Script((Change(1.0, None), *losses))
    engine = VirtualEngine(4, delays=PerUnit(1.0), membership=membership)
    with kofn.connect(engine) as cluster:
        stream = cluster.sequence(kofn.Polynomial(2, 2))
        cluster.wait_for(5)
        X = np.arange(64.0).reshape(8, 8)
        np.testing.assert_allclose(stream.submit(X, X).result(), X @ X)
        (only,) = stream.report.rounds
        assert (only.lost, only.joined) == ((0, 1, 2, 3), (4,))


def test_one_that_stands_by_and_is_lost_is_not_given_a_slot() -> None:
    changes = ((1.0, None), (1.0, None), (40.0, 4), *((50.0 + i, i) for i in range(4)))
    membership = Script(tuple(Change(*change) for change in changes))
    with kofn.connect(VirtualEngine(4, delays=PerUnit(1.0), membership=membership)) as cluster:
        stream = cluster.sequence(kofn.Polynomial(2, 2))
        cluster.wait_for(6)
        X = np.arange(64.0).reshape(8, 8)
        np.testing.assert_allclose(stream.submit(X, X).result(), X @ X)
        assert stream.report.rounds[0].joined == (5,)


def test_a_submit_that_raises_has_added_nothing() -> None:
    with kofn.connect(VirtualEngine(3)) as cluster:
        stream = cluster.sequence(kofn.Polynomial(2, 1))
        X = [float(i + 1) * np.eye(2) for i in range(4)]
        stream.submit(X[0], np.eye(2))
        for worker in range(3):
            cluster.lose(worker)
        with pytest.raises(kofn.TooFewWorkers):  # for the round of the first to begin
            stream.submit(X[1], np.eye(2))
        for _ in range(3):
            cluster.join()
        assert stream.submit(X[2], np.eye(2)).job == 1
        assert stream.submit(X[3], np.eye(2)).job == 2
        np.testing.assert_allclose(list(stream), [X[0], X[2], X[3]], atol=1e-12)
        assert not stream._codec.jobs


def test_a_job_that_is_done_can_be_taken_when_all_workers_are_lost() -> None:
    with kofn.connect(VirtualEngine(3)) as cluster:
        stream = cluster.sequence(kofn.Polynomial(2, 1))
        first = stream.submit(np.eye(2), np.eye(2))
        more = stream.submit(3 * np.eye(2), np.eye(2))  # the round of the first
        assert first.done
        for worker in range(3):
            cluster.lose(worker)
        np.testing.assert_allclose(first.result(), np.eye(2), atol=1e-12)
        with pytest.raises(kofn.TooFewWorkers):
            more.result()
        cluster.join()
        cluster.join()
        np.testing.assert_allclose(more.result(), 3 * np.eye(2), atol=1e-12)


class _Raising(Wrapped):
    """Raises `error` once, when a round has done all its idle work and waits."""

    error: BaseException | None = None

    def events(self, timeout: float) -> list[Event]:
        error = self.error
        if error is None or not timeout:
            return super().events(timeout)
        self.error = None
        raise error


ALL_AT_ONCE: list[SequenceCode] = [  # the job that begins next is the one being submitted
    kofn.DIP(2, 2, delay=0, lam=2),
    kofn.IDIP(2, 2, delay=0, N=0, W=1),
]


@pytest.mark.parametrize("error", [kofn.Stalled(1, 1.0, [0]), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("code", CODES + ALL_AT_ONCE, ids=repr)
def test_nothing_of_a_job_that_was_not_added_gets_into_another(
    code: SequenceCode, error: BaseException
) -> None:
    """Its operands were encoded ahead when the submit raised; the next job has others."""
    engine = _Raising(VirtualEngine(4))
    with kofn.connect(engine) as cluster:
        stream = cluster.sequence(code)
        jobs: Pairs = [(np.full((4, 4), 1.0 + i), np.eye(4)) for i in range(3 * code.delay + 4)]
        first, last = jobs[: code.delay + 1], jobs[code.delay + 2 :]
        tickets = [stream.submit(X, Y) for X, Y in first]
        engine.error = error
        with pytest.raises(type(error)):
            stream.submit(*jobs[code.delay + 1])
        assert engine.error is None
        tickets += [stream.submit(X, Y) for X, Y in last]
        assert [ticket.job for ticket in tickets] == list(range(len(first + last)))
        right(stream, first + last, list(stream))
        done = [job for round in stream.report.rounds for job in round.done]
        assert sorted(done) == list(range(len(tickets)))
        assert [r.began for r in stream.report.rounds if r.began is not None] == sorted(done)
        assert not stream._codec.jobs  # with all that was encoded of them
        driver_of(cluster).settle()
        assert not any(driver_of(cluster).roster.kept.values())


def test_what_was_decoded_in_a_round_that_raised_is_not_decoded_again() -> None:
    engine = _Raising(VirtualEngine(2))
    with kofn.connect(engine) as cluster:
        stream = cluster.sequence(kofn.Polynomial(2, 1))
        first = stream.submit(np.eye(2), np.eye(2))
        more = stream.submit(3 * np.eye(2), np.eye(2))  # the round of the first
        engine.error = kofn.Stalled(2, 1.0, [0])  # of the second's: the first is decoded in it
        np.testing.assert_allclose(first.result(), np.eye(2), atol=1e-12)
        assert engine.error is None
        np.testing.assert_allclose(more.result(), 3 * np.eye(2), atol=1e-12)
        np.testing.assert_allclose(first.result(), np.eye(2), atol=1e-12)


class _Frozen(Delays):
    """Some never answer; the others take `seconds`."""

    def __init__(self, workers: Sequence[int], seconds: float) -> None:
        self.workers, self.each = workers, seconds

    def seconds(self, rng: Any, worker: int, round: int, cost: float) -> float:
        return 1e9 if worker in self.workers else self.each


@pytest.mark.parametrize("seconds", [1.0, 14.0, 16.0, 250.0])
def test_idle_workers_stand_in_before_a_wait_in_silence_is_given_up(seconds: float) -> None:
    with kofn.connect(VirtualEngine(3, delays=_Frozen([1], seconds))) as cluster:
        stream = cluster.sequence(kofn.Polynomial(3, 1))
        X = np.arange(12.0).reshape(6, 2)
        np.testing.assert_allclose(stream.submit(X, np.eye(2)).result(), X, atol=1e-12)
        (only,) = stream.report.rounds
        assert (only.waited, only.conforms, only.stragglers) == (True, False, (1,))


@pytest.mark.parametrize(
    "code",
    [kofn.Polynomial(2, 1), kofn.DIP(2, 2, delay=1, lam=2), kofn.IDIP(2, 1, delay=1, N=2, W=2)],
    ids=repr,
)
def test_those_that_stand_by_take_the_slots_of_workers_that_say_nothing(
    code: SequenceCode,
) -> None:
    membership = Script((Change(1.0, None), Change(1.0, None)))
    engine = VirtualEngine(2, delays=_Frozen([0, 1], 16.0), membership=membership)
    with kofn.connect(engine) as cluster:
        stream = cluster.sequence(code)
        cluster.wait_for(4)
        X = np.arange(12.0).reshape(6, 2)
        for _ in range(3):
            np.testing.assert_allclose(stream.submit(X, np.eye(2)).result(), X, atol=1e-12)
        first, *others = stream.report.rounds
        assert (first.lost, first.joined) == ((), (2, 3))
        assert all(r.conforms and not r.topped_up for r in others)


def test_a_wait_in_silence_is_given_up_when_those_that_stand_by_say_nothing_either() -> None:
    membership = Script((Change(1.0, None), Change(1.0, None)))
    engine = VirtualEngine(2, delays=_Frozen(range(4), 1.0), membership=membership)
    with kofn.connect(engine) as cluster:
        stream = cluster.sequence(kofn.Polynomial(2, 1))
        cluster.wait_for(4)
        with pytest.raises(kofn.Stalled):
            stream.submit(np.eye(2), np.eye(2)).result()
