"""Windows and cover: which rows are read by whom, and what a loss costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import examples

import kofn
from kofn.rounds import Cover, Layout, fill
from kofn.rounds.still import rows_taken_up, still
from kofn.rounds.windows import with_extra


def groups(workers: list[int], threshold: int) -> dict[int, set[int]]:
    """Which groups (numbered from 1) each machine uses, at one row a group."""
    windows = Layout(threshold).lay(workers, len(workers))
    return {
        worker: {row + 1 for first, last in runs for row in range(first, last)}
        for worker, runs in zip(windows.shares, windows.runs, strict=True)
    }


def test_all_six_machines_use_the_groups_of_the_paper() -> None:
    assert groups([1, 2, 3, 4, 5, 6], 3) == {
        1: {1, 2, 3},
        2: {2, 3, 4},
        3: {3, 4, 5},
        4: {4, 5, 6},
        5: {5, 6, 1},
        6: {6, 1, 2},
    }


@pytest.mark.claim("elastic: Figure 1")
def test_with_machines_2_and_4_gone_the_sets_are_those_of_the_paper() -> None:
    used = groups([1, 3, 5, 6], 3)
    assert used[1] == {1, 2, 3}
    assert used[3] == {2, 3, 4}
    sets = {g: {m for m, mine in used.items() if g in mine} for g in (1, 2, 3, 4)}
    assert sets == {1: {1, 5, 6}, 2: {1, 3, 6}, 3: {1, 3, 5}, 4: {3, 5, 6}}


@pytest.mark.claim("elastic: Remarks 2, 3")
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 500))
def test_every_row_is_read_by_exactly_the_threshold(n: int, k: int, rows: int) -> None:
    windows = Layout(k).lay(range(n), rows)
    times = np.zeros(rows, dtype=int)
    read = []
    for runs in windows.runs:
        assert len(runs) <= 2
        for first, last in runs:
            times[first:last] += 1
        read.append(sum(last - first for first, last in runs))
    assert (times == min(k, n)).all()
    assert max(read) - min(read) <= min(k, n)  # ±1 row per group
    assert windows.cuts[0] == 0
    assert windows.rows == rows
    assert (np.diff(windows.cuts) > 0).all()


def test_windows_by_speed_read_every_row_by_exactly_the_threshold() -> None:
    rng = np.random.default_rng(0)
    cases = [([0.5, 7, 7, 1, 10, 1, 1, 0.5, 2, 10, 3, 5], 8, 3)]  # rounds to a window of 4 of 3
    for _ in range(2000):
        n = int(rng.integers(2, 13))
        speeds = rng.choice([0.5, 1, 2, 3, 5, 7, 10], n).tolist()
        cases.append((speeds, int(rng.integers(1, n + 1)), int(rng.integers(1, 200))))
    for speeds, k, rows in cases:
        shares = range(len(speeds))
        windows = Layout(k, fractions=fill(speeds, k)).lay(shares, rows, int(rng.integers(0, 200)))
        assert (windows.asked.sum(axis=0) == k).all(), (speeds, k, rows)
        assert windows.lengths.max() <= rows
        assert windows.lengths.sum() == k * rows


def test_an_extra_machine_is_asked_for_weak_segments_only() -> None:
    windows = Layout(3).lay(range(6), 60)
    more = with_extra(windows, [0, 4])
    extra = more.asked.sum(axis=0) - windows.asked.sum(axis=0)
    assert extra.tolist() == [1, 0, 0, 0, 1, 0]
    assert (more.need - windows.need).tolist() == [1, 0, 0, 0, 1, 0]
    assert with_extra(Layout(3).lay(range(3), 9), [0]).need.tolist() == [3]  # nobody to ask


@st.composite
def disturbed(draw: st.DrawFn) -> tuple[int, int, int, list[tuple[str, int]]]:
    n = draw(st.integers(2, 12))
    k = draw(st.integers(1, n))
    rows = draw(st.integers(1, 200))
    steps = draw(
        st.lists(st.tuples(st.sampled_from(["reply", "part", "lose", "late"]), st.integers(0, 99)))
    )
    return n, k, rows, steps


@examples(300)
@given(disturbed())
def test_whatever_is_lost_or_late_the_cover_completes_while_k_live(
    case: tuple[int, int, int, list[tuple[str, int]]],
) -> None:
    n, k, rows, steps = case
    windows = Layout(k).lay(range(n), rows)
    cover = Cover(windows)
    owed = {w: list(runs) for w, runs in zip(windows.shares, windows.runs, strict=True)}
    live, slow = list(range(n)), set[int]()

    def mend() -> None:
        runs, missing = cover.top_up(
            [w for w in live if w not in slow], [w for w in live if w in slow]
        )
        assert missing == 0
        for worker, more in runs.items():
            for first, last in more:  # never asked of someone who has it or owes it
                for a, b in owed[worker]:
                    assert last <= a or b <= first
            owed[worker] += more

    for step, pick in steps:
        worker = live[pick % len(live)]
        if step == "reply" and owed[worker]:
            cover.deliver(worker, tuple(owed[worker]))
            owed[worker] = []
        elif step == "part" and owed[worker]:
            first, last = owed[worker].pop()
            middle = (first + last) // 2
            if first < middle:
                cover.deliver(worker, [(first, middle)])
            owed[worker].append((middle, last))
        elif step == "lose" and len(live) > k:
            live.remove(worker)
            cover.retire(worker)
            mend()
        elif step == "late":
            slow.add(worker)
            mend()
    for worker in live:
        cover.deliver(worker, tuple(owed[worker]))
    assert cover.done
    assert cover.repeated_rows == 0
    assert (cover.count >= k).all()
    assert (cover.have.sum(axis=0) == cover.count).all()


def test_a_loss_costs_only_what_was_still_owed() -> None:
    windows = Layout(3).lay(range(6), 600)
    cover = Cover(windows)
    (first, last) = windows.runs[1][0]
    cover.deliver(1, [(first, first + 100)])
    live = [0, 2, 3, 4, 5]
    runs, missing = cover.top_up(live)
    assert missing == 0
    rows = sum(b - a for more in runs.values() for a, b in more)
    assert rows == last - first - 100
    assert len(runs) >= 3  # shared out, not dumped on one
    share = [sum(b - a for a, b in more) for more in runs.values()]
    assert max(share) <= 3 * SMALLEST(share)


def SMALLEST(share: list[int]) -> int:
    return max(16, min(share))


def test_missing_workers_are_counted() -> None:
    cover = Cover(Layout(3).lay(range(3), 30))
    _, missing = cover.top_up([0, 1])
    assert missing == 1
    _, missing = cover.top_up([0, 1], slow=[2])  # late is not lost
    assert missing == 0
    cover.admit(7)
    runs, missing = cover.top_up([0, 1, 7])
    assert missing == 0
    assert runs == {7: ((0, 30),)}


@pytest.mark.parametrize("n", [1, 2, 5])
def test_fewer_live_than_needed_read_everything(n: int) -> None:
    windows = Layout(6).lay(range(n), 10)
    assert all(runs == ((0, 10),) for runs in windows.runs)
    _, missing = Cover(windows).top_up(range(n))
    assert missing == 6 - n


@examples(60)
@given(st.integers(2, 8), st.data())
def test_windows_that_stay_move_nothing(n: int, data: st.DataObject) -> None:
    """Whoever leaves and comes: every row is read by k shares, and nobody takes rows up in vain."""
    k, rows = data.draw(st.integers(1, n - 1)), data.draw(st.integers(1, 400))
    layout = Layout(k, still=True)
    shares = list(range(n))
    windows = layout.lay(shares, rows)
    for _ in range(6):
        some = st.sets(st.integers(0, n - 1), min_size=k).filter(set(shares).intersection)
        shares = sorted(data.draw(some))  # several may leave and come at once
        after = still(windows, layout, shares, 10**6)
        assert after is not None
        assert after.shares == tuple(shares)
        assert (after.asked.sum(axis=0) == k).all()
        assert after.rows == rows
        assert sum(after.loads) == k * rows
        assert rows_taken_up(windows, after) == 0
        windows = after
    assert still(windows, layout, shares, 0) is None  # more runs than are allowed


def test_a_matrix_whose_windows_stay_multiplies_while_machines_come_and_go() -> None:
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((200, 6)), rng.standard_normal(6)
    with kofn.connect("virtual", workers=6) as cluster:
        X = cluster.encode(A, k=3, loads="still")
        np.testing.assert_allclose(X @ w, A @ w)
        for lost in (4, 1):
            before = X.windows()
            cluster.lose(lost)
            np.testing.assert_allclose(X @ w, A @ w)
            np.testing.assert_allclose(X.T @ (A @ w), A.T @ (A @ w))
            assert X.report.rows_moved == 0
            for worker, runs in X.windows().items():
                now = {row for first, last in runs for row in range(first, last)}
                then = {row for first, last in before[worker] for row in range(first, last)}
                assert then <= now  # it reads what it has read, and more
        cluster.join()
        np.testing.assert_allclose(X @ w, A @ w)
        assert X.report.rows_moved == 0
