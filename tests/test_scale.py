"""Large fleets in virtual time: what an event costs does not grow with the workers.

Counted are the interpreter's own steps (opcodes), not seconds: a loop over all workers for each of
them shows, on a busy machine too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import driver_of, examples

import kofn
from kofn.codes.generators import make_generator
from kofn.delays import Change, Exponential, Script
from kofn.engines.virtual import VirtualEngine
from kofn.model import Event, Reply
from kofn.rounds.cover import Cover
from kofn.rounds.roster import Slots
from kofn.rounds.windows import Layout
from kofn.sums.rivals import Backups

pytestmark = pytest.mark.slow  # together they take seconds

FEW, MANY = 40, 400
FLAT = (
    1.25  # the steps of a worker may differ by so much; those of a loop over all would be 10 times
)


def steps(action: Callable[[], object]) -> int:
    """How many opcodes of kofn's an action takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(kofn.__path__[0]):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    assert count
    return count


def engine(n: int, **more: Any) -> VirtualEngine:
    return VirtualEngine(n, delays=Exponential(1e-3, 0.1), compute=False, seed=1, **more)


def total(part: Any, x: Any) -> Any:
    return part.sum()


def placing_parts(n: int) -> int:
    with kofn.connect(engine(n)) as cluster:
        return steps(lambda: cluster.parts(np.zeros((n, 1)), kofn.FractionalRepetition(2)))


def summing(n: int) -> int:
    with kofn.connect(engine(n)) as cluster:
        parts = cluster.parts(np.zeros((n, 1)), kofn.FractionalRepetition(2, "whole"))
        parts.sum(total)
        return steps(lambda: [parts.sum(total) for _ in range(2)])


def encoding(n: int) -> int:
    with kofn.connect(engine(n)) as cluster:
        return steps(lambda: cluster.encode(np.zeros((n, 1)), k=n // 2))


def multiplying(n: int) -> int:
    with kofn.connect(engine(n)) as cluster:
        X = cluster.encode(np.zeros((n, 1)), k=10, late=None)
        X @ np.zeros(1)
        return steps(lambda: [X @ np.zeros(1) for _ in range(2)])


def backups(n: int) -> int:
    with kofn.connect(engine(n)) as cluster:
        sums = Backups(cluster, np.zeros((n, 1)), factor=float("inf"))
        sums.sum(total)
        return steps(lambda: sums.sum(total))


def many_stragglers(n: int) -> int:
    """Half of the workers are not waited for, in each round."""
    with kofn.connect(engine(n)) as cluster:
        parts = cluster.parts(np.zeros((n, 1)), kofn.Uncoded())
        parts.sum(total, stop=kofn.first(n // 2))
        return steps(lambda: [parts.sum(total, stop=kofn.first(n // 2)) for _ in range(2)])


@pytest.mark.parametrize(
    "action", [placing_parts, summing, encoding, multiplying, backups, many_stragglers]
)
def test_what_a_worker_costs_is_the_same_among_many(action: Callable[[int], int]) -> None:
    few, many = action(FEW) / FEW, action(MANY) / MANY
    assert many <= FLAT * few, f"{few:.0f} steps a worker among {FEW}, {many:.0f} among {MANY}"


def test_shares_that_nobody_looks_at_are_not_made() -> None:
    before = make_generator.cache_info()
    with kofn.connect(VirtualEngine(500, compute=False)) as cluster:
        X = cluster.encode(np.ones((1000, 3)), k=250)
        assert np.isnan(X @ np.ones(3)).all()
        assert len(X.shares) == 500
    assert make_generator.cache_info() == before


def test_who_is_lost_at_random_is_who_was_before() -> None:
    """Drawn from a stream of its own, one number a loss, from the workers in order."""
    losses = Script(tuple(Change(float(t), -1) for t in range(1, 6)))
    with kofn.connect(engine(30, membership=losses)) as cluster:
        driver_of(cluster).settle(10.0)
        for _ in range(5):
            driver_of(cluster).settle(1.0)
        lost = [record.worker for record in cluster.log if record.kind == "lost"]
    live, rng = list(range(30)), np.random.default_rng((1, 2))
    expected = []
    for _ in range(5):
        expected.append(int(rng.choice(live)))
        live.remove(expected[-1])
    assert lost == expected


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 3)), max_size=40))
@examples(100)
def test_free_slots_are_those_that_nobody_has(changes: list[tuple[int, int]]) -> None:
    slots, plain = Slots(4), dict[int, int]()
    for worker, slot in changes:
        if slot >= 0:
            slots[worker] = plain[worker] = slot
        elif worker % 2 and worker in plain:
            del slots[worker], plain[worker]
        else:
            assert slots.pop(worker, None) == plain.pop(worker, None)
        free = [one for one in range(4) if one not in plain.values()]
        assert dict(slots) == plain
        assert slots.free() == free
        assert slots.first_free() == (free[0] if free else None)
        assert set(slots.taken) == set(plain.values())
        assert slots.copy().free() == free
    slots.update({7: 0, 8: 0})
    assert slots.taken[0] >= 2


@given(st.integers(2, 7), st.data())
@examples(60)
def test_who_owes_rows_is_known_before_and_after_arrays_are_made(n: int, data: Any) -> None:
    k = data.draw(st.integers(1, n))
    windows = Layout(k).lay(range(n), 24)
    cover, other = Cover(windows), Cover(windows)
    for share in data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=n)):
        cover.deliver(share, windows.runs[share])
        other.deliver(share, windows.runs[share])
    assert other.have.shape == windows.asked.shape  # now there are arrays
    owed = (other.asked & ~other.have).any(axis=1)
    assert [cover.owes(share) for share in range(n)] == owed.tolist()
    assert [other.owes(share) for share in range(n)] == owed.tolist()
    asked = windows.asked.copy()
    other.top_up(range(n))
    other.retire(0)
    np.testing.assert_array_equal(windows.asked, asked)  # it is all rounds'


class Counting(VirtualEngine):
    """Counts the numbers that reach the master."""

    numbers = 0

    def events(self, timeout: float) -> list[Event]:
        found = super().events(timeout)
        self.numbers += sum(np.size(e.value) for e in found if isinstance(e, Reply))
        return found


@pytest.mark.parametrize("n", [4, 8])
def test_replies_to_a_product_are_one_result_and_to_a_gradient_n(n: int) -> None:
    """What docs/scale.md says of the master's link: n · d numbers for a gradient of d."""
    A = np.ones((80, 30))
    numbers = {}
    engine = Counting(n)
    with kofn.connect(engine) as cluster:
        X, parts = cluster.encode(A, k=2), cluster.parts(A, parts=n)
        calls: dict[str, Callable[[], object]] = {
            "X @ w": lambda: X @ np.ones(30),
            "X.T @ z": lambda: X.T @ np.ones(80),
            "sum": lambda: parts.sum(columns),
        }
        for name, call in calls.items():
            engine.numbers = 0
            call()
            numbers[name] = engine.numbers
    assert numbers == {"X @ w": 80, "X.T @ z": n * 30, "sum": n * 30}


def columns(part: Any, x: Any) -> Any:
    return part.sum(axis=0)
