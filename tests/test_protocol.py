"""Both sides of the protocol over a transport in memory, under random scripts.

The transport delays messages, lets workers overtake each other, lets a Cancel overtake other
messages to its worker, and loses workers at any moment. A small model says what must come out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support import examples

from kofn.engines.protocol import (
    KINDS,
    Cancel,
    MasterProtocol,
    Message,
    Outgoing,
    Values,
    WorkerDown,
    WorkerLeaving,
    WorkerProtocol,
    WorkerUp,
    master,
    plain,
    typed,
)
from kofn.errors import BadInput, UnknownWorker
from kofn.model import (
    Build,
    Dropped,
    Event,
    Failed,
    Joined,
    Last,
    Leaving,
    Lost,
    Piece,
    Reply,
    Stored,
    Task,
    Update,
)

KEYS = "abc"
FOREVER = 10**9
TURNS = 500  # more than the end of any script takes
WRONG: list[str] = []  # what bodies and values found: the protocol would take it for a failure


def must(true: bool, rule: str, *facts: object) -> None:
    """Note what is wrong, wherever it is found."""
    if not true:
        WRONG.append(f"{rule}: {facts}")
        raise AssertionError(WRONG[-1])


# Values: each is released once, and nobody looks at it afterwards.


@dataclass
class Packed:
    """A value on its way. `lasting`: its worker keeps it, also when this is released."""

    value: Any
    lasting: bool = False
    released: int = 0
    unpacked: int = 0


class View:
    """What a body sees of an operand or of its arguments: they lie where they were packed."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed

    @property
    def value(self) -> Any:
        must(not self.packed.released, "what was released is not used", self.packed)
        return self.packed.value


class Unreadable:
    """A value that cannot be unpacked."""


class Unpackable:
    """A value that cannot be packed."""


class MasterValues(Values):
    """Packs what the master sends, unpacks what workers reply."""

    def __init__(self) -> None:
        self.made: list[Packed] = []

    def pack(self, value: Any, lasting: bool = False) -> Packed:
        self.made.append(Packed(value, lasting))
        return self.made[-1]

    def unpack(self, packed: Packed) -> Any:
        packed.unpacked += 1
        must(packed.unpacked == 1, "a reply is unpacked once", packed)
        if isinstance(packed.value, Unreadable):
            raise ValueError("unreadable")
        return packed.value

    def release(self, packed: Packed) -> None:
        packed.released += 1
        must(packed.released == 1, "a value is released once", packed)


class WorkerValues(Values):
    """Unpacks what the master sends, packs what a worker replies."""

    def pack(self, value: Any, lasting: bool = False) -> Packed:
        if isinstance(value, Unpackable):
            raise ValueError("unpackable")
        return Packed(value)

    def unpack(self, packed: Packed) -> Any:
        must(not packed.released, "what was released is not unpacked", packed)
        if isinstance(packed.value, Unreadable):
            raise ValueError("unreadable")
        if packed.lasting:
            return packed.value
        return (View(packed),) if isinstance(packed.value, tuple) else View(packed)


# Bodies.


@dataclass(frozen=True)
class Expected:
    """What a task should find at its worker."""

    operand: int | None
    kept: dict[str, int]


class Body:
    """Yields pieces in its own way; looks at its operand, arguments and kept values at each."""

    over = False  # whether the script has ended, perhaps in the middle of a task

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"Body({self.kind!r})"

    def __call__(self, kept: dict[str, int], operand: View | None, args: View) -> Any:
        if self.kind not in ("list", "empty", "none"):
            return self.stream(kept, operand, args)
        look(kept, operand, args)
        return {"list": [Piece(i, i, 1) for i in range(3)], "empty": ()}.get(self.kind)

    def stream(self, kept: dict[str, int], operand: View | None, args: View) -> Iterator[Piece]:
        odd = {
            "unpackable": Piece(1, Unpackable()),
            "unreadable": Piece(1, Unreadable()),
            "unreadable what": Piece(Unreadable(), 1),
            "last": Last(1, 1, 1),
        }
        try:
            for number in range(FOREVER if self.kind == "forever" else 3):
                look(kept, operand, args)
                if number == 1 and self.kind == "raises":
                    raise ArithmeticError("as it should")
                silent = self.kind == "silent"
                common = Piece(None, None, 1) if silent else Piece(number, number, 1)
                yield odd.get(self.kind, common) if number == 1 else common
                must(self.kind != "last" or number < 1, "a body is not asked beyond its Last")
        finally:
            if not Body.over:
                look(kept, operand, args)  # a body may need its operand to clean up


def look(kept: dict[str, int], operand: View | None, args: View) -> None:
    """Compare what a body sees with what it should see."""
    (expected,) = args.value
    seen = None if operand is None else operand.value
    must(seen == expected.operand, "a body sees the operand of its round", seen, expected)
    must(kept == expected.kept, "a body sees what was put before it", kept, expected)


# How many pieces with values a task sends, and how it ends, unless it is cancelled or lost.
OUTCOMES: dict[str, tuple[int, type[Event]]] = {
    "list": (3, Reply),
    "stream": (3, Reply),
    "empty": (0, Reply),
    "silent": (0, Reply),
    "last": (2, Reply),
    "forever": (FOREVER, Reply),
    "none": (0, Failed),
    "raises": (1, Failed),
    "unpackable": (1, Failed),
    "unreadable": (1, Failed),
    "unreadable what": (1, Failed),
}
READ = {"list": 3, "stream": 3, "silent": 3, "last": 2, "empty": 0}


def add(value: int, more: int) -> int:
    """Build or update a value."""
    return value + more


def fail(*_: Any) -> int:
    """Fail to."""
    raise ArithmeticError("as it should")


# A master, its workers, and what is between them.


class Site:
    """A live worker, and what is on its way to it and from it."""

    def __init__(self, look: Callable[[], int] | None) -> None:
        self.protocol = WorkerProtocol(WorkerValues(), look)
        self.inbox: deque[Message] = deque()
        self.outbox: deque[Message] = deque()
        self.running: Iterator[Message] = iter(())

    def step(self) -> bool:
        """Do a little of what there is to do; return whether there was something."""
        message = next(self.running, None)
        if message is not None:
            self.outbox.append(message)
        elif self.inbox:
            self.running = iter(self.protocol.handle(self.inbox.popleft()))
        else:
            return False
        return True

    def stop(self) -> None:
        """End what runs: a worker that is killed runs no more."""
        running, self.running = self.running, iter(())
        del running

    def overtake(self) -> None:
        """Let every Cancel pass the messages before it and the body that runs."""
        for message in [m for m in self.inbox if isinstance(m, Cancel)]:
            self.inbox.remove(message)
            assert list(self.protocol.handle(message)) == []


@dataclass
class Submitted:
    """A task, and what has been heard of it."""

    task: Task
    values: int = 0  # pieces with one
    read: int = 0
    end: Event | None = None


class World:
    """Plays a script and compares every event with a model. Numbers are never used twice."""

    def __init__(self, shown: bool) -> None:
        self.values = MasterValues()
        self.master = MasterProtocol(self.values)
        self.shown = shown  # whether workers see at once what is cancelled
        self.clock = self.round = self.broadcasts = self.heard = 0
        self.sites: dict[int, Site] = {}
        self.gone: set[int] = set()
        self.notices: list[Leaving] = []
        self.leaving: dict[int, float] = {}  # deadlines
        self.kept: dict[int, dict[str, int]] = {}  # by worker, once it has done all it was sent
        self.answers: dict[int, deque[tuple[type[Event], str]]] = {}  # to puts, yet to come
        self.tasks: dict[int, Submitted] = {}
        self.operands: dict[int, int] = {}  # of rounds that are not cancelled
        self.begun: set[int] = set()  # rounds with tasks
        self.bodies = [Body(kind) for kind in OUTCOMES for _ in range(2)]
        for _ in range(3):
            self.join(0, 0)

    def play(self, script: Iterable[tuple[str, int, int]]) -> None:
        """Do what the script says, then end everything and look what is left."""
        WRONG.clear()
        for what, one, two in script:
            getattr(self, what)(one, two)
            assert not WRONG, WRONG
        self.settle()
        assert not WRONG, WRONG

    def tick(self) -> int:
        """Return the time, which is a new number as well."""
        self.clock += 1
        return self.clock

    def pick(self, one: int) -> int:
        """Return a live worker, or -1."""
        live = sorted(self.sites)
        return live[one % len(live)] if live else -1

    def send(self, messages: Outgoing) -> None:
        """Put messages on their way."""
        for worker, message in messages:
            self.sites[worker].inbox.append(typed(plain(message)))

    # What a script can say, each with a number from 0 to 3 and one from 0 to 23.

    def join(self, one: int, two: int) -> None:
        worker = self.tick()
        if two == 1:
            self.hear(worker, WorkerDown("it never came"))
            return
        self.sites[worker] = Site((lambda: self.master.cancelled) if self.shown else None)
        self.kept[worker], self.answers[worker] = {}, deque()
        self.hear(worker, WorkerUp())

    def lose(self, one: int, two: int) -> None:
        worker = self.pick(one)
        if worker < 0:
            return
        self.sites[worker].stop()
        outbox = list(self.sites[worker].outbox)
        heard = len(outbox) * (two % 4) // 3  # the rest has not left the worker, or comes too late
        for message in outbox[:heard]:
            self.hear(worker, message)
        self.hear(worker, WorkerDown("by the script"))
        for message in outbox[heard:] if two > 11 else []:
            self.hear(worker, message)

    def leave(self, one: int, two: int) -> None:
        """A worker says that it will be gone; now and then one that is gone says so."""
        worker = self.pick(one)
        if worker < 0 or (two == 1 and self.gone):
            worker = max(self.gone, default=-1)
        seconds = float("inf") if two % 4 == 0 else float(two)
        known, before = worker in self.sites, len(self.notices)
        self.hear(worker, WorkerLeaving(seconds, "by the script"))
        deadline = self.clock + seconds
        news = known and self.leaving.get(worker, float("inf")) != deadline
        self.leaving[worker] = deadline
        expected = [Leaving(self.clock, worker, deadline, "by the script")]
        assert self.notices[before:] == (expected if news else [])

    def put(self, one: int, two: int) -> None:
        worker, key, of = self.pick(one), KEYS[two % 3], KEYS[(two + 1) % 3]
        if worker < 0:
            with pytest.raises(UnknownWorker):
                self.master.put(10**6, key, 0)
            return
        number, kept = self.tick(), self.kept[worker]
        value: Any = number
        answer: type[Event] = Stored
        match two % 7:
            case 0:
                value, answer = Build(fail), Failed
            case 1:
                value, answer = Unreadable(), Failed
            case 2:
                value = Build(add, (number, 1))
                kept[key] = number + 1
            case 3 | 4:
                value = Update(of, add, (1,))
                if key not in kept:
                    answer = Stored if of in kept else Failed
                    kept.update({key: kept.pop(of) + 1} if of in kept else {})
            case 5:
                value = Update(of, fail)
                if key not in kept:
                    answer = Failed
                    kept.pop(of, None)
            case _:
                kept[key] = number
        self.send(self.master.put(worker, key, value))
        self.answers[worker].append((answer, key))

    def forget(self, one: int, two: int) -> None:
        self.send(self.master.forget(KEYS[two % 3]))
        for kept in self.kept.values():
            kept.pop(KEYS[two % 3], None)

    def broadcast(self, one: int, two: int) -> None:
        round, value = self.round + two % 6, self.tick()
        known = round in self.operands
        if round <= self.master.cancelled or (not known and round in self.begun):
            return
        try:
            self.send(self.master.broadcast(round, value))
        except BadInput:
            assert known
        else:
            assert self.crowded() or not known, "a round has one operand"
            self.operands[round] = value
            self.broadcasts += 1

    def crowded(self) -> bool:
        """Whether some operand may have made room for another."""
        return self.broadcasts > master.OPERANDS

    def advance(self, one: int, two: int) -> None:
        self.round += one

    def submit(self, one: int, two: int) -> None:
        worker, round = self.pick(one), self.round + two % 4
        body = self.bodies[two % len(self.bodies)]
        if worker < 0:
            with pytest.raises(UnknownWorker):
                self.master.submit(Task(self.tick(), round, 10**6, body))
            return
        expected = Expected(self.operands.get(round), dict(self.kept[worker]))
        task = Task(self.tick(), round, worker, body, (expected,))
        try:
            messages = self.master.submit(task)
        except BadInput:
            assert self.crowded()
            assert not [s for s in self.tasks.values() if s.task.round == round and not s.end]
            return
        self.tasks[task.id] = Submitted(task)
        self.begun.add(round)
        self.send(messages)

    def cancel(self, one: int, two: int) -> None:
        self.send(self.master.cancel(self.round + two % 3 - 1))
        self.operands = {r: o for r, o in self.operands.items() if r > self.master.cancelled}

    def step(self, one: int, two: int) -> None:
        worker = self.pick(one)
        for _ in range(1 + two % 5 if worker >= 0 else 0):
            self.sites[worker].step()

    def deliver(self, one: int, two: int) -> None:
        worker = self.pick(one)
        for _ in range(1 + two % 5 if worker >= 0 else 0):
            if self.sites[worker].outbox:
                self.hear(worker, self.sites[worker].outbox.popleft())

    def overtake(self, one: int, two: int) -> None:
        if self.sites:
            self.sites[self.pick(one)].overtake()

    # What the master hears.

    def hear(self, worker: int, message: Message) -> None:
        self.heard += 1
        events = self.master.received(worker, typed(plain(message)), self.tick())
        for part in message:
            must(not isinstance(part, Packed) or part.unpacked == 1, "a reply is unpacked", message)
        assert len(events) <= 1
        for event in events:
            assert event.time == self.clock
            self.note(event)
            assert self.master.workers == tuple(sorted(self.sites))

    def note(self, event: Event) -> None:
        assert not isinstance(event, Joined) or event.worker in self.sites
        if isinstance(event, Lost):
            self.sites.pop(event.worker, None)
            self.kept.pop(event.worker, None)
            open = [s for s in self.tasks.values() if s.task.worker == event.worker and not s.end]
            assert event.tasks == tuple(s.task.id for s in open)
            for submitted in open:
                submitted.end = event
            assert event.worker not in self.gone
            self.gone.add(event.worker)
            return
        assert getattr(event, "worker", -1) not in self.gone, "nothing comes after Lost"
        if isinstance(event, Leaving):
            self.notices.append(event)
        if isinstance(event, Stored) or (isinstance(event, Failed) and event.key is not None):
            assert (type(event), event.key) == self.answers[event.worker].popleft()
        elif isinstance(event, Reply | Failed | Dropped) and event.task is not None:
            self.note_task(event, self.tasks[event.task])

    def note_task(self, event: Reply | Failed | Dropped, submitted: Submitted) -> None:
        task = submitted.task
        assert (event.worker, event.round) == (task.worker, task.round)
        assert submitted.end is None, f"a task ends once: {submitted}, then {event}"
        assert isinstance(task.body, Body)
        count, end = OUTCOMES[task.body.kind]
        if isinstance(event, Reply):
            submitted.read += event.read
            if event.value is not None:
                assert (event.what, event.value) == (submitted.values, submitted.values)
                submitted.values += 1
        if isinstance(event, Dropped):
            assert event.round <= self.master.cancelled
            submitted.end = event
        elif isinstance(event, Failed) or event.last:
            assert (submitted.values, type(event)) == (count, end)
            assert isinstance(event, Failed) or submitted.read == READ[task.body.kind]
            submitted.end = event

    # The end.

    def settle(self) -> None:
        """Cancel all that is open and deliver everything: nothing may be left."""
        # Just the last round that has tasks: who is not told of that one goes on.
        last = max((s.task.round for s in self.tasks.values()), default=self.round)
        self.send(self.master.cancel(last))
        for _ in range(TURNS):
            for worker, site in list(self.sites.items()):
                site.overtake()
                site.step()
                self.deliver(sorted(self.sites).index(worker), 4)
            if not any(s.step() or s.inbox or s.outbox for s in self.sites.values()):
                break
        else:
            raise AssertionError("a cancelled task goes on and on")
        self.round += 10
        self.cancel(0, 0)  # and operands of later rounds
        assert [s for s in self.tasks.values() if s.end is None] == []
        assert not any(self.answers[worker] for worker in self.sites)
        assert [packed for packed in self.values.made if packed.released != 1] == []
        for worker, site in self.sites.items():
            assert site.protocol.kept == self.kept[worker]
        books = self.master
        assert (books._operands, books._evicted) == ({}, set())
        assert not any(peer.tasks or peer.puts for peer in books._peers.values())


ACTIONS = [
    *["submit"] * 6,
    *["step"] * 5,
    *["deliver"] * 4,
    *["put", "broadcast"] * 3,
    *["cancel", "overtake", "advance"] * 2,
    *["forget", "join", "lose", "leave"],
]
scripts = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 3), st.integers(0, 23)),
    min_size=10,
    max_size=60,
)


def play(script: list[tuple[str, int, int]], shown: bool, crowded: bool) -> int:
    """Play one script; how many messages the master heard. `crowded`: it remembers little."""
    bodies, operands = (4, 3) if crowded else (master.BODIES, master.OPERANDS)
    world = World(shown)
    with mock.patch.multiple(master, BODIES=bodies, OPERANDS=operands):
        try:
            world.play(script)
        finally:
            Body.over = True
            for site in world.sites.values():
                site.stop()
            Body.over = False
    return world.heard


@settings(examples(300), phases=set(Phase) - {Phase.explain})
@given(scripts, st.booleans(), st.booleans())
def test_random_scripts(script: list[tuple[str, int, int]], shown: bool, crowded: bool) -> None:
    play(script, shown, crowded)


# Bugs that were put in: the scripts find them.


def released_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancel lets go of operands that open tasks still read."""
    cancel = MasterProtocol.cancel

    def early(self: MasterProtocol, round: int) -> Outgoing:
        for number, operand in self._operands.items():
            operand.pending *= number > round
        return cancel(self, round)

    monkeypatch.setattr(MasterProtocol, "cancel", early)


def one_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancel forgets one of several workers."""
    cancel = MasterProtocol.cancel

    def forgetful(self: MasterProtocol, round: int) -> Outgoing:
        messages = cancel(self, round)
        return messages[:-1] if len(messages) > 1 else messages

    monkeypatch.setattr(MasterProtocol, "cancel", forgetful)


def ends_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose reply cannot be read ends again with its worker's own end."""
    monkeypatch.setattr(
        master._Open, "failed", property(lambda task: False, lambda task, failed: None)
    )


@pytest.mark.parametrize("bug", [released_early, one_not_told, ends_twice])
def test_a_seeded_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bug(monkeypatch)
    played = 0

    @settings(
        max_examples=2_000,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
    )
    @given(scripts, st.booleans(), st.booleans())
    def search(script: list[tuple[str, int, int]], shown: bool, crowded: bool) -> None:
        nonlocal played
        played += 1
        play(script, shown, crowded)

    began = time.perf_counter()
    with pytest.raises(AssertionError) as found:
        search()
    with capsys.disabled():
        what = str(found.value).splitlines()[0][:80]
        seconds = time.perf_counter() - began
        print(f"\n{bug.__name__}: found by script {played}, after {seconds:.1f} s: {what}")


# Messages.


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_becomes_plain_and_typed_again(kind: type[Any]) -> None:
    message = kind(*(f"field {name}" for name in kind._fields))
    fields = plain(message)
    assert type(fields) is tuple
    assert fields == (KINDS.index(kind), *message)
    again = typed(fields)
    assert type(again) is kind
    assert again == message


def test_every_kind_of_message_is_listed_once() -> None:
    from kofn.engines.protocol import messages

    classes = [c for c in vars(messages).values() if isinstance(c, type) and hasattr(c, "_fields")]
    assert set(classes) == set(KINDS)
    assert len(KINDS) == len(set(KINDS))
