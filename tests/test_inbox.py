"""What threads hand to the master: an interrupted wait takes nothing from it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from kofn.engines.transport import Inbox
from kofn.interrupts import due, held


class Rung(Exception):
    """What the handler raises."""


def ring(*_: object) -> None:
    raise Rung


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, ring)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_a_wait_ends_with_the_first_item_or_in_time() -> None:
    inbox = Inbox[int]()
    inbox.wait(0.0)
    inbox.wait(0.01)
    assert inbox.take() is None
    for item in (1, 2):
        inbox.put(item)
    inbox.wait(1e9)
    assert [inbox.take() for _ in range(3)] == [1, 2, None]
    threading.Timer(0.01, inbox.put, (3,)).start()
    inbox.wait(1e9)  # an old ring at most, and then the new one
    inbox.wait(1e9)
    assert inbox.take() == 3


def test_an_interrupt_ends_a_wait() -> None:
    threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    with pytest.raises(Rung), held():
        Inbox[int]().wait(1e9)


def test_interrupts_lose_nothing() -> None:
    """A thread puts and strikes at once, again and again."""
    inbox, count = Inbox[int](), 300
    again = threading.Semaphore(0)

    def strike() -> None:
        for item in range(count):
            again.acquire()
            if item % 2:
                inbox.put(item)
            os.kill(os.getpid(), signal.SIGUSR1)
            if not item % 2:
                inbox.put(item)

    thread = threading.Thread(target=strike)
    thread.start()
    taken: list[int] = []
    with held():
        for number in range(1, count + 1):
            again.release()
            rung = False
            while len(taken) < number or not rung:
                try:
                    inbox.wait(60.0)
                    due()
                except Rung:
                    rung = True
                while (item := inbox.take()) is not None:
                    taken.append(item)
    thread.join()
    assert taken == list(range(count))
