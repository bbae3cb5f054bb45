"""Interrupts: what is held back, and when it comes out. Those of any work are in test_chaos.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import PASS, SOAK, driver_of

import kofn
from kofn import interrupts
from kofn.arrays.coding import write_shares
from kofn.interrupts import Lock, due, held, opened

pytestmark = pytest.mark.engine

INTERRUPTING = "test_the_end_of_a_master_without_a_guard_leaves_nothing[local-interrupt]"


class Rung(Exception):
    """What the handler raises."""


def ring(*_: object) -> None:
    raise Rung


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, ring)
    yield
    assert signal.getsignal(signal.SIGUSR1) is ring
    assert interrupts._level == interrupts._FREE
    assert not interrupts._waiting
    signal.signal(signal.SIGUSR1, before)


def strike() -> None:
    signal.raise_signal(signal.SIGUSR1)


def test_what_is_held_back_comes_out_at_the_end() -> None:
    done = []
    with pytest.raises(Rung), held():  # noqa: PT012
        strike()
        with held():
            strike()
            done.append("within")
        done.append("to the end")
    assert done == ["within", "to the end"]


def test_it_comes_out_where_something_waits() -> None:
    with held():
        strike()
        with pytest.raises(Rung), opened():
            raise AssertionError("not reached")
        with pytest.raises(Rung), opened():
            strike()
        strike()
        with pytest.raises(Rung):
            due()
        due()


def test_what_cleans_up_is_held_again() -> None:
    done = []
    with pytest.raises(Rung), held():  # noqa: PT012
        try:
            with opened():
                strike()
        finally:
            strike()
            done.append("cleaned up")
    assert done == ["cleaned up"]


def test_inside_of_what_is_opened_it_can_be_held_again() -> None:
    done = []
    with held(), opened(foreign=True), pytest.raises(Rung), held():  # noqa: PT012
        strike()
        done.append("to the end")
    assert done == ["to the end"]


def test_the_handlers_are_the_users_own_again() -> None:
    other = lambda *_: None  # noqa: E731

    def change(*_: object) -> None:
        signal.signal(signal.SIGUSR1, other)

    signal.signal(signal.SIGUSR1, change)
    with held(), opened():
        strike()
    assert signal.getsignal(signal.SIGUSR1) is other
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with held():
        strike()
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
        with opened(foreign=True):
            signal.signal(signal.SIGUSR1, ring)
        strike()
        with pytest.raises(Rung):
            due()


def test_every_handler_that_waits_is_called() -> None:
    called = []

    def note(*_: object) -> None:
        called.append("USR2")

    before = signal.signal(signal.SIGUSR2, note)
    try:
        with pytest.raises(Rung), held():  # noqa: PT012
            signal.raise_signal(signal.SIGUSR2)
            strike()
        assert called == ["USR2"]
        with pytest.raises(Rung), held():  # noqa: PT012
            strike()
            signal.raise_signal(signal.SIGUSR2)
        assert called == ["USR2"] * 2
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_signal_that_comes_again_after_long_gets_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with held():
        strike()
        strike()
        monkeypatch.setattr(interrupts, "_ENOUGH", 0.0)
        with pytest.raises(Rung):
            strike()


def test_a_wait_for_a_lock_can_be_interrupted() -> None:
    lock, has, over = Lock(), threading.Event(), threading.Event()

    def other() -> None:
        with lock:
            has.set()
            over.wait()

    thread = threading.Thread(target=other)
    thread.start()
    try:
        has.wait()
        assert not lock.acquire(blocking=False)
        assert not lock.acquire(timeout=0.01)
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        with pytest.raises(Rung):  # noqa: PT012 - also where it rings before the wait
            timer.start()
            with lock:
                raise AssertionError("not reached")
    finally:
        over.set()
        thread.join()
    with lock, lock:
        assert interrupts._level == interrupts._HELD


def test_other_threads_hold_nothing() -> None:
    def other() -> None:
        with held():
            inside.set()
            over.wait()

    inside, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    try:
        inside.wait()
        with pytest.raises(Rung):
            strike()
    finally:
        over.set()
        thread.join()


STARTS = """
import random, signal, sys, time
import kofn
from kofn.testing.engines import descendants

def ring(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, ring)
dice, struck, usual = random.Random(int(sys.argv[2])), 0, 0.0
while struck < int(sys.argv[1]):
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-4, 1.2 * usual) if usual else 0)
        with kofn.connect("local", workers=2):
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        usual = time.monotonic() - began
    except KeyboardInterrupt:
        struck += 1
    limit = time.monotonic() + 300
    while descendants():
        assert time.monotonic() < limit, descendants()
        time.sleep(0.01)  # they are asked for again, up to the limit
"""


def test_an_interrupted_start_or_end_leaves_nothing() -> None:
    command = [sys.executable, "-W", "error", "-c", STARTS, str(6 * SOAK), str(PASS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_tests_that_interrupt_work_where_sigint_is_ignored() -> None:
    # As under nohup, in the background, and in some CI.
    test = f"{Path(__file__).with_name('test_engines.py')}::{INTERRUPTING}"
    line = f"trap '' INT; exec {sys.executable} -m pytest -q --timeout=1500 -p no:cacheprovider"
    with subprocess.Popen(
        ["sh", "-c", f'{line} "$0"', test], stdout=subprocess.PIPE, text=True
    ) as process:
        out, _ = process.communicate()
    assert "1 passed" in out


def test_an_interrupt_in_what_another_thread_wanted_is_not_handed_to_that_thread() -> None:
    with kofn.connect("virtual", workers=2) as cluster:
        driver, calls, came = driver_of(cluster), list[int](), list[object]()

        def action() -> str:
            calls.append(threading.get_ident())
            if len(calls) == 1:
                with opened():  # as an engine does where it waits
                    signal.raise_signal(signal.SIGUSR1)
            return "done"

        def other() -> None:
            try:
                came.append(driver.call(action))
            except BaseException as error:
                came.append(error)

        asking = threading.Thread(target=other)

        def serve() -> None:
            asking.start()  # while the lock is held here
            while not calls:
                driver.settle()

        with driver.lock, pytest.raises(Rung):
            serve()
        asking.join()
        assert came == ["done"]
        assert calls == [threading.get_ident(), asking.ident]


def test_an_interrupted_encode_lets_go_of_what_it_made_ahead() -> None:
    A = np.ones((6000, 10))  # shares that are written ahead, too small to be kept for later

    def interrupts(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)  # it waits until the first share is given
        return write_shares(*given)

    with kofn.connect("local", workers=4) as cluster:
        cluster.encode(A, k=2)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kofn.arrays.shares.write_shares", interrupts)
            with pytest.raises(KeyboardInterrupt) as raised:
                cluster.encode(A, k=2)
        # Not when the exception goes: an interrupt that came just there would be lost.
        assert len(os.listdir("/proc/self/fd")) == before
        del raised


# Ctrl-C strikes after each extension module; what was interrupted is done again.
IMPORTING = """
import signal, sys
from importlib.machinery import ExtensionFileLoader

import numpy as np
import kofn

run = ExtensionFileLoader.exec_module

def struck(loader, module):
    run(loader, module)
    signal.raise_signal(signal.SIGINT)

ExtensionFileLoader.exec_module = struck
A = np.arange(300.0).reshape(60, 5) % 7

def fit(cluster):
    from kofn.learn import Ridge
    Ridge(cluster=cluster).fit(A, A[:, 0])

def raptor(cluster):
    cluster.parts([*range(80)], kofn.Raptor()).sum(lambda part, x: float(part))

def drawn(cluster):
    from kofn.report import timeline
    cluster.encode(A, k=2) @ A[0]
    timeline(cluster.log)

folder = sys.argv[1]
for operation in (
    raptor,
    lambda cluster: cluster.encode(A, k=2) @ A[0],
    lambda cluster: cluster.encode(folder + "/A.parquet", k=2),
    lambda cluster: cluster.encode(folder + "/A.svm", k=2),
    lambda cluster: cluster.encode(folder + "/A.zarr", k=2),
    fit,
    drawn,
    lambda cluster: kofn.simulate("product", "mds(k=2)", 4, "exponential(unit=8, mean=1)"),
):
    while True:
        try:
            operation(kofn.connect("virtual", 4))
            break
        except KeyboardInterrupt:
            pass
print("done")
"""


def test_ctrl_c_while_an_operation_imports_what_it_needs(tmp_path: Path) -> None:
    table = pytest.importorskip("pyarrow").table({"a": [1.0, 2.0], "b": [0.5, 4.0]})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "A.parquet")
    pytest.importorskip("zarr").save_array(tmp_path / "A.zarr", np.ones((4, 2)))
    (tmp_path / "A.svm").write_text("1 1:2 2:4\n0 2:1\n")
    command = [sys.executable, "-c", IMPORTING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr
