"""Mailboxes beside a stream: whatever way a message goes, the order is that of sending."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from bodies import says_and_goes
from hypothesis import given
from hypothesis import strategies as st
from support import examples, until

import kofn
from kofn.engines import _wire as wire
from kofn.engines._peer import Peer
from kofn.engines._processes import Process
from kofn.engines._socket_worker import SocketWorker
from kofn.engines._sockets import HELLO, SocketTransport
from kofn.engines._wakeup import MAILBOXES, Mailbox, Waker
from kofn.engines.local import LocalEngine
from kofn.engines.memory import Segment, attach
from kofn.engines.protocol.messages import TaskReply
from kofn.model import Lost, Reply, Task
from kofn.testing._bodies import echo

pytestmark = pytest.mark.skipif(not MAILBOXES, reason="needs Linux and a processor in order")


A = np.random.default_rng(0).standard_normal((600, 40))


class Listener(SocketWorker):
    """A worker that only notes what it is told."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heard: list[int] = []

    def handle(self, fields: tuple[Any, ...]) -> None:
        self.heard.append(fields[1])

    def catch_up(self, reads: int) -> None:
        """Look as often as a worker would whom so many things wake."""
        for _ in range(reads):
            self.open_mailbox()
            if select.select([self.sock], [], [], 0)[0]:
                messages = self.reader.receive()
                assert messages is not None
                self.take(messages)


@examples(200)
@given(
    st.lists(st.sampled_from(["post", "hold", "send", "large", "read"]), max_size=40),
    st.integers(1, 3),
)
def test_messages_are_handled_in_the_order_of_sending(steps: list[str], reads: int) -> None:
    ours, theirs = socket.socketpair()
    poll = select.epoll()
    peer, word, waker = Peer(0, ours, poll), Segment(8), Waker()
    assert peer.mailbox is not None
    given = (peer.mailbox.fd, waker.fd, waker.fd)
    worker = Listener(theirs, word.map, *(os.dup(fd) for fd in given))
    sent: list[int] = []
    for number, step in enumerate(steps):
        if step == "read":
            worker.catch_up(reads)
            continue
        sent.append(number)
        data = wire.frame(1, number, b"x" * (80_000 if step == "large" else 10))
        if step == "send":
            peer.send(data)
        else:
            peer.unsent.append(data)
            if step != "hold" and not peer.post():
                peer.send()
    while peer.outbox or peer.unsent:
        peer.flush()
        worker.catch_up(2)
        if peer.unsent:
            peer.send()
    worker.catch_up(100)
    assert worker.heard == sent
    worker.poll.close()
    theirs.close()
    peer.close()
    worker.word.release()
    word.close()
    waker.close()
    poll.close()


class InPlace(SocketTransport):
    """A transport whose workers are objects of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: list[SocketWorker] = []

    def start(self, worker: int) -> None:
        ours, theirs = socket.socketpair()
        with self._adding(worker, ours) as given:
            word, _, *mailbox = map(os.dup, given)
            self.workers.append(SocketWorker(theirs, attach(word), *mailbox))


@examples(200)
@given(st.lists(st.sampled_from(["small", "large", "descriptor", "poll"]), max_size=40))
def test_replies_come_in_the_order_of_sending(steps: list[str]) -> None:
    transport, segments = InPlace(), list[Segment]()
    transport.start(0)
    (worker,) = transport.workers
    worker.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    sent, heard = list[int](), list[int]()

    def poll() -> None:
        for _, message in transport.poll(0.0):
            if isinstance(message, TaskReply):
                heard.append(message.task)

    worker.stream(wire.frame(HELLO, *Process.of(os.getpid())))
    for number, step in enumerate(steps):
        if step == "poll":
            poll()
            continue
        what, fds = (None, (None,), None), list[int]()
        value: Any = (None, (b"x" * (80_000 if step == "large" else 10),), None)
        if step == "descriptor":
            segments.append(Segment(100))
            value, fds = ("<f8", ((64, 8),), segments[-1].id), [segments[-1].fd]
        sent.append(number)
        worker.send(wire.frame(7, number, what, value, 1, 0.0, True), fds)
        if step == "large":
            poll()  # or the socket would be full some time
    worker.sock.close()
    while transport.peers:
        poll()
    assert heard == sent
    transport.close()
    worker.poll.close()
    worker.word.release()
    os.close(worker.master_waker.fd)
    for segment in segments:
        segment.close()


def test_a_mailbox_holds_one_message_each_way_and_only_what_fits() -> None:
    box = Mailbox()
    other = Mailbox(os.dup(box.fd))
    for one, two in ((box, other), (other, box)):
        assert two.take(0) is None
        assert one.post(b"first", 0)
        assert not one.post(b"second", 0)
        assert one.take(0) is None  # it is not its own
        assert two.take(0) == b"first"
        assert not one.post(b"x" * 70_000, 0)
        assert one.post(b"later", 10)
        assert two.take(9) is None  # one byte of the stream comes before it
        assert two.take(10) == b"later"
    box.given()


@pytest.mark.engine
def test_what_a_worker_said_last_is_heard_before_its_end() -> None:
    with LocalEngine(1) as engine:
        for task in range(20):
            (worker,) = engine.workers
            engine.submit(Task(task, task, worker, says_and_goes))
            events: list[Any] = []
            while not any(isinstance(event, Lost) for event in events):
                events += engine.events(10.0)
            assert [event.value for event in events if isinstance(event, Reply)] == ["the last"]
            engine.join()
            while not engine.workers:
                engine.events(10.0)


@pytest.mark.engine
def test_tasks_for_all_and_for_one_come_in_order_through_both() -> None:
    with LocalEngine(3) as engine:
        expected, heard = (
            {w: list[int]() for w in engine.workers},
            {w: list[int]() for w in (0, 1, 2)},
        )
        task = 0
        for burst in range(30):
            for worker in engine.workers if burst % 3 else (burst % 2,):
                for _ in range(1 + burst % 2):
                    task += 1
                    engine.submit(Task(task, 1, worker, echo, (task, "x" * (30_000 * (burst % 4)))))
                    expected[worker].append(task)
            if burst % 5 == 0:
                engine.put(burst % 3, "key", burst)  # goes by the socket, after what was submitted
            for event in engine.events(0.0):
                if isinstance(event, Reply):
                    heard[event.worker].append(event.task)
        while sum(map(len, heard.values())) < task:
            for event in engine.events(10.0):
                if isinstance(event, Reply):
                    heard[event.worker].append(event.task)
        assert heard == expected


def test_who_never_reads_is_told_of_every_wake_once() -> None:
    waker, waiting = Waker(), select.epoll()
    waiting.register(waker.fd, select.EPOLLIN | select.EPOLLET)
    for _ in range(3):
        waker.wake()
        assert len(waiting.poll(0)) == 1
        assert not waiting.poll(0)
    waiting.close()
    waker.close()


@pytest.mark.engine
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_while_tasks_are_posted_is_no_harm(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    post, due = Mailbox.post, [True]

    def interrupted(box: Mailbox, data: bytes, order: int) -> bool:
        if when == "after":
            post(box, data, order)
        if due:
            due.clear()
            raise KeyboardInterrupt
        return post(box, data, order) if when == "before" else True

    with kofn.connect("local", workers=6) as cluster:
        X = cluster.encode(A, k=3)
        X @ np.ones(40)
        with monkeypatch.context() as patch:
            patch.setattr(Mailbox, "post", interrupted)
            with pytest.raises(KeyboardInterrupt):
                X @ np.ones(40)

        def all_live() -> bool:  # on a busy machine one may owe its answer for a while
            np.testing.assert_allclose(X @ np.ones(40), A @ np.ones(40), rtol=1e-9, atol=1e-9)
            return len(X.report.live) == 6

        until(all_live, "all six")


INTERRUPTS = """
import random, signal
import numpy as np, kofn

def ring(*_):
    raise KeyboardInterrupt

A = np.random.default_rng(0).standard_normal((600, 40))
dice, rung = random.Random(0), 0
signal.signal(signal.SIGVTALRM, ring)
with kofn.connect("local", workers=6) as cluster:
    X = cluster.encode(A, k=3)
    while rung < 40:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, dice.uniform(1e-5, 2e-3))
            for _ in range(20):
                X @ np.ones(40)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except KeyboardInterrupt:
            rung += 1
        np.testing.assert_allclose(X @ np.ones(40), A @ np.ones(40), rtol=1e-9, atol=1e-9)
    assert len(cluster.workers) == 6
"""


@pytest.mark.engine
def test_interrupts_at_any_moment_are_no_harm() -> None:
    # In a process of its own: pytest and hypothesis run code that must not be interrupted.
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.engine
def test_only_what_nobody_can_change_is_packed_once() -> None:
    with LocalEngine(1) as engine:
        transport = engine._transport
        fixed, changing = ("key", (1, 2.0)), ("key", np.zeros(2))
        assert transport.pack(fixed) is transport.pack(fixed)
        assert transport.unpack(transport.pack(("key", (True, 2)))) == ("key", (True, 2))
        before = transport.pack(changing)
        changing[1][0] = 5.0
        assert transport.pack(changing) is not before
        assert transport.unpack(transport.pack(changing))[1][0] == 5.0
