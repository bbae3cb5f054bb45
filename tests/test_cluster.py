"""A cluster in other people's programs: threads, forks, garbage, stores, and bad moments."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import driver_of, rested, spread, until

import kofn
from kofn.arrays.store import write_store
from kofn.codes.mds import MDSCode
from kofn.delays import Change, Script
from kofn.engines.base import Wrapped
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.learn import Ridge
from kofn.model import Task

A = np.random.default_rng(0).standard_normal((300, 20))
W = np.ones(20)


@pytest.mark.engine
def test_two_threads_may_multiply_and_a_third_may_look() -> None:
    wrong: list[BaseException] = []
    with kofn.connect("local", workers=4) as cluster:
        X = cluster.encode(A, k=2)
        stop = threading.Event()

        def multiply() -> None:
            try:
                for _ in range(50):
                    np.testing.assert_allclose(X @ W, A @ W, rtol=1e-10)
            except BaseException as error:
                wrong.append(error)

        def look() -> None:
            while not stop.is_set():
                assert len(cluster.workers) == 4
                len(cluster.log)

        watcher = threading.Thread(target=look)
        threads = [threading.Thread(target=multiply) for _ in range(2)]
        for thread in (watcher, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        watcher.join()
        assert wrong == []


@pytest.mark.engine
def test_a_join_from_another_thread_saves_a_round_that_waits() -> None:
    begun = threading.Event()

    class Telling(Wrapped):
        def submit(self, task: Task) -> None:
            super().submit(task)
            begun.set()

    with kofn.connect(Telling(LocalEngine(4)), wait=300) as cluster:
        X = cluster.encode(A, k=3)
        cluster.lose(0)
        cluster.lose(1)
        assert cluster.workers == (2, 3)
        joined: list[int] = []

        def join() -> None:
            begun.wait()
            joined.append(cluster.join())

        other = threading.Thread(target=join)
        other.start()
        np.testing.assert_allclose(X @ W, A @ W, rtol=1e-10)
        other.join()
        assert joined == [4]
        assert 4 in X.report.joined


@pytest.mark.engine
def test_a_newcomer_takes_part_at_once() -> None:
    with kofn.connect("local", workers=3) as cluster:
        X = cluster.encode(A, k=2)
        spread(cluster, X)
        X @ W
        cluster.lose(1)
        cluster.join()
        rested(cluster)
        X @ W
        assert sorted(X.report.live) == [0, 2, 3]


def test_workers_forget_a_matrix_that_nobody_can_use_any_more() -> None:
    with kofn.connect("virtual", workers=2) as cluster:
        engine: Any = cluster.engine
        for _ in range(3):
            X = cluster.encode(A, k=1)
            X @ W
        del X
        gc.collect()
        assert cluster.workers == (0, 1)
        assert all(home.kept == {} for home in engine._workers.values())


@pytest.mark.engine
def test_a_worker_that_is_stopped_does_not_keep_encode_waiting() -> None:
    with kofn.connect("local", workers=4, lost_after=60) as cluster:
        pid = cluster.engine.pid(0)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        X = cluster.encode(A, k=2)
        np.testing.assert_allclose(X @ W, A @ W, rtol=1e-10)
        assert 0 not in X.report.live
        os.kill(pid, signal.SIGCONT)

        def back() -> bool:
            X @ W
            return 0 in X.report.live

        until(back, "the worker that goes on")


@pytest.mark.engine
def test_a_forked_child_is_told_and_the_parent_goes_on() -> None:
    with kofn.connect("local", workers=3) as cluster:
        X = cluster.encode(A, k=2)
        X @ W
        read, write = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            try:
                X @ W
                said = b"no error"
            except kofn.Closed as error:
                said = str(error).encode()
            except BaseException as error:
                said = repr(error).encode()
            os.write(write, said)
            os._exit(0)
        os.waitpid(child, 0)
        assert b"forked" in os.read(read, 1000)
        os.close(read)
        os.close(write)
        np.testing.assert_allclose(X @ W, A @ W, rtol=1e-10)


@pytest.mark.engine
def test_a_child_forked_after_the_end_of_a_cluster_keeps_its_descriptors() -> None:
    cluster = kofn.connect("local", workers=1)
    cluster.close()
    pipes = [os.pipe() for _ in range(10)]  # among them numbers that the cluster had
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        os._exit(sum(not Path(f"/proc/self/fd/{fd}").exists() for fd in chain(*pipes)))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    for fd in chain(*pipes):
        os.close(fd)
    del cluster


@pytest.mark.engine
def test_workers_end_with_their_master_even_if_a_forked_child_of_it_lives_on(
    tmp_path: Path,
) -> None:
    note = tmp_path / "pids"
    read, write = os.pipe()  # the grandchild lives until the test has let go of its end
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        cluster = kofn.connect("local", workers=2)
        pids = [cluster.engine.pid(w) for w in cluster.workers]
        grandchild = os.fork()
        if grandchild == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        note.write_text(" ".join(map(str, pids)))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    workers = [int(pid) for pid in note.read_text().split()]
    until(lambda: not any(map(alive, workers)), "the end of the workers")
    os.close(read)
    os.close(write)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.engine
@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_what_cannot_be_pickled_says_why(engine: str) -> None:
    with kofn.connect(engine, workers=2) as cluster:
        X = cluster.encode(A, k=1)
        scaled = cluster.encode(A * np.geomspace(1, 1e6, len(A))[:, None], k=1)
        stream = cluster.sequence(kofn.Polynomial(1, 1))
        ticket = stream.submit(A, A.T)
        for thing in (cluster, X, X.T, scaled, cluster.parts(A), stream, ticket):
            with pytest.raises(kofn.CannotDo, match="cannot be pickled"):
                pickle.dumps(thing)
        if engine == "local":
            with pytest.raises(kofn.CannotDo, match="cannot be pickled"):
                pickle.dumps(cluster.engine)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_masks_matrices_and_other_arrays() -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        with pytest.raises(kofn.BadInput, match="a mask cannot be coded"):
            cluster.encode(np.ma.masked_array(A, mask=A > 1), k=2)
        X = cluster.encode(np.asmatrix(A), k=2)
        np.testing.assert_allclose(X @ W, A @ W, rtol=1e-10)
        with pytest.raises(kofn.BadInput, match="a mask cannot be coded"):
            X @ np.ma.masked_array(W, mask=False)
        with pytest.raises(kofn.BadInput, match="rows of equal length"):
            cluster.encode([[1.0, 2.0], [3.0]], k=1)
        with pytest.raises(kofn.BadInput, match="got a CodedMatrix"):
            X @ X
        with pytest.raises(kofn.BadInput, match="got a NoneType"):
            X @ None
        assert cluster.encode(A.astype(">f4"), k=2).dtype == np.float32


@pytest.mark.engine
def test_an_overflow_on_the_way_is_an_error_not_an_infinity() -> None:
    with kofn.connect("local", workers=6) as cluster:
        X = cluster.encode(np.full((12, 2), 1.7e308), k=3)
        with pytest.raises(kofn.Overflowed, match="Scale the data"):
            X @ np.array([0.5, 0.5])
        with pytest.raises(kofn.Overflowed):
            X.T @ np.full(12, 100.0)


def test_limits_of_nothing_are_refused() -> None:
    options: list[dict[str, Any]] = [{"limit": 0}, {"lost_after": 0}]
    for option in options:
        with pytest.raises(kofn.BadInput, match=f"{next(iter(option))} must be a number > 0"):
            kofn.connect("virtual", workers=2, **option)


def test_nobody_left_is_said_as_such() -> None:
    with kofn.connect("virtual", workers=2) as cluster:
        cluster.lose(0)
        cluster.lose(1)
        with pytest.raises(kofn.TooFewWorkers, match="needs 1 live worker; 0 are live"):
            cluster.encode(A, k=1)


def test_the_error_names_the_whole_threshold() -> None:
    with kofn.connect("virtual", workers=6) as cluster:
        X = cluster.encode(A, k=5)
        for worker in range(4):
            cluster.lose(worker)
        with pytest.raises(
            kofn.TooFewWorkers, match=r"needs 5 live workers; 2 are live, so 3 miss"
        ):
            X @ W


def test_a_wait_for_joiners_may_be_made_shorter_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a market does when nobody will come: a product must not wait on, be it for ever."""
    with kofn.connect("virtual", workers=2, wait=1e6) as cluster:
        X = cluster.encode(A, k=2)
        cluster.lose(0)
        driver = driver_of(cluster)
        settle = driver.settle

        def settle_and_end(timeout: float = 0.0) -> None:
            settle(timeout)
            if timeout:
                driver.wait = 0.0

        monkeypatch.setattr(driver, "settle", settle_and_end)
        with pytest.raises(kofn.TooFewWorkers) as raised:
            X.T @ np.ones(len(A))
        assert raised.value.waited < 1e3


@pytest.mark.engine
def test_products_from_a_store_and_a_share_whose_file_is_gone(tmp_path: Path) -> None:
    write_store(A, tmp_path / "store", MDSCode(4, 2))
    np.save(tmp_path / "A.npy", A)
    with kofn.connect("local", workers=3) as cluster:
        Y = cluster.encode(str(tmp_path / "A.npy"), k=2)
        np.testing.assert_allclose(Y @ W, A @ W, rtol=1e-10)
        X = cluster.encode(tmp_path / "store")
        np.testing.assert_allclose(X @ W, A @ W, rtol=1e-10)
        np.testing.assert_allclose(X.T @ np.ones(300), A.T @ np.ones(300), rtol=1e-10)
        spread(cluster, X)
        held = set(X.shares.values())
        (spare,) = set(range(4)) - held
        for file in (tmp_path / "store").iterdir():
            if file.name.startswith(f"share-{spare:0}") or f"{spare}" in file.stem.split("-"):
                file.unlink()
        joiner = cluster.join()  # its file is gone: the share is rebuilt from live ones

        def takes_part() -> bool:
            np.testing.assert_allclose(X @ W, A @ W, rtol=1e-10)
            return joiner in X.report.live

        until(takes_part, "the joiner")
        assert X.shares[joiner] == spare
        with pytest.raises(kofn.KofnError, match="k"):
            cluster.encode(tmp_path / "store", k=3)
        with pytest.raises(kofn.BadInput, match="axis=1"):
            cluster.encode(tmp_path / "store", axis=1)


@pytest.mark.engine
def test_two_clusters_one_after_the_other_on_one_engine() -> None:
    with LocalEngine(2) as engine:
        for _ in range(2):
            X = kofn.connect(engine).encode(A, k=1)
            for _ in range(5):
                np.testing.assert_allclose(X @ W, A @ W, rtol=1e-10)


def test_one_that_stood_by_takes_the_share_of_one_lost_in_the_same_round() -> None:
    script = Script((Change(0.5e-5, None), Change(1e-5, 0)))  # comes first, then there is a place
    with kofn.connect(VirtualEngine(3, membership=script), wait=10.0) as cluster:
        X = cluster.encode(A, k=3)
        np.testing.assert_allclose(X @ W, A @ W, rtol=1e-10)
        assert X.report.lost == (0,)
        assert 3 in X.report.rows_read


@pytest.mark.parametrize("wait", [10.0, 1.0])
def test_where_there_were_enough_workers_encode_and_fits_wait_for_them(wait: float) -> None:
    """A fleet that is small for a moment is no reason to call k wrong."""
    script = Script((Change(5.0, None),))
    with kofn.connect(VirtualEngine(3, membership=script), wait=wait) as cluster:
        with pytest.raises(kofn.BadInput, match="k must be at most"):
            cluster.encode(A, k=4)  # there never were so many
        cluster.lose(0)
        cluster.lose(1)
        if wait < 5.0:
            with pytest.raises(kofn.TooFewWorkers, match="needs 2 live workers; 1"):
                cluster.encode(A, k=2)
            with pytest.raises(kofn.TooFewWorkers, match="needs 2 live workers; 1"):
                Ridge(cluster=cluster, k=2).fit(A, A @ W)
        else:
            np.testing.assert_allclose(cluster.encode(A, k=2) @ W, A @ W, rtol=1e-10)
            assert cluster.workers == (2, 3)


def multiply_on(X: kofn.CodedMatrix, began: threading.Event, ended: list[Exception]) -> None:
    try:
        while True:
            X @ np.ones(60)
            began.set()
    except Exception as error:
        ended.append(error)


@pytest.mark.engine
@pytest.mark.parametrize("engine", ["local", "virtual"])
def test_a_cluster_may_be_closed_while_another_thread_uses_it(engine: str) -> None:
    """Whoever drives the engine closes it, and is told."""
    ended: list[Exception] = []
    began = threading.Event()
    with kofn.connect(engine, workers=3) as cluster:
        X = cluster.encode(np.eye(60), k=2)
        other = threading.Thread(target=multiply_on, args=(X, began, ended))
        other.start()
        began.wait()
    other.join()
    assert [type(error) for error in ended] == [kofn.Closed]
    cluster.close()


HUGE = 10**400  # more than any float
AMBIGUOUS = np.array([0, 1])  # has no truth value


@pytest.mark.parametrize(
    "options", [{"wait": HUGE}, {"keep": HUGE}, {"keep": 2**31}, {"workers": 2**31}, {"log": 5}]
)
def test_connect_refuses_what_is_no_number_or_no_name(options: dict[str, Any]) -> None:
    with pytest.raises(kofn.BadInput):
        kofn.connect("virtual", **options)


@pytest.mark.parametrize("log", [".", "a\0b"])
def test_a_log_needs_a_name(log: str) -> None:
    with pytest.raises(kofn.KofnError):
        kofn.connect("virtual", log=log)


@pytest.mark.parametrize(
    "options",
    [{"n": 2**31}, {"axis": AMBIGUOUS}, {"loads": AMBIGUOUS}, {"verify": AMBIGUOUS}],
)
def test_encode_refuses_what_is_no_option(options: dict[str, Any]) -> None:
    with kofn.connect("virtual") as cluster, pytest.raises(kofn.BadInput):
        cluster.encode(A, **options)


def test_the_reason_of_a_notice_is_text() -> None:
    with kofn.connect("virtual") as cluster:
        with pytest.raises(kofn.BadInput, match="reason must be text"):
            cluster.announce(1, 3.0, AMBIGUOUS)  # type: ignore[arg-type]
        assert not [record for record in cluster.log if record.kind == "leaving"]


def test_rows_of_unequal_length_are_no_factor() -> None:
    with pytest.raises(kofn.BadInput, match="rows of equal length"):
        kofn.low_rank([[1.0], [1.0, 2.0]], [1.0])
