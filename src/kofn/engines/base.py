"""The engine contract: where tasks run. See docs/design.md and `kofn.testing.EngineChecks`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Any, ClassVar, Self

from numpy.typing import DTypeLike

from ..errors import CannotDo, KofnError
from ..exchange import Exchange, ExchangeLayout
from ..model import Event, Room, Task
from ..notices.base import Source
from ..peers.keys import Encryption
from ._processes import memory


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can promise beyond the contract."""

    processes: bool  # workers are processes that kill -9 ends (see Engine.pid)
    can_lose: bool  # lose() ends a worker
    can_join: bool  # join() starts one
    virtual_time: bool = False  # now() is simulated
    values: bool = True  # replies carry values; False where only time is simulated
    # A delay model sets how long a piece takes: bodies yield every piece by itself.
    given_time: bool = False
    copies: bool = False  # broadcast sends a copy to each worker: better passed on (kofn.peers)
    exchange: bool = False  # workers can exchange: through memory (Engine.exchange), or sockets


class Engine(ABC):
    """Runs tasks on workers. Single-threaded: one caller, no callbacks.

    Membership changes only through events: `workers` gains an id when its Joined, and drops it
    when its Lost, is returned by `events`. The workers an engine starts with are there at once.
    """

    name: ClassVar[str]
    capabilities: Capabilities

    def counters(self) -> tuple[Iterator[int], Iterator[int]]:
        """The ids of rounds (from 1) and of tasks (from 0): never used twice on one engine."""
        counters: tuple[Iterator[int], Iterator[int]]
        counters = self.__dict__.setdefault("_counters", (count(1), count()))
        return counters

    @property
    @abstractmethod
    def workers(self) -> tuple[int, ...]:
        """Ids of the live workers, sorted; an id is never used twice."""

    @abstractmethod
    def now(self) -> float:
        """Seconds on the engine's clock; never runs backwards."""

    @abstractmethod
    def put(self, worker: int, key: str, value: Any) -> None:
        """Keep `value` at a worker under `key`, before any task submitted to it later.

        Ends in Stored, Failed (with `key`) or the worker's Lost; is never cancelled. A `Build` is
        made by the worker, an `Update` is made there of what it keeps under another key. What
        cannot be pickled may raise BadInput at once.
        """

    def room(self, shape: tuple[int, ...], dtype: DTypeLike) -> Room | None:
        """Return memory for an array that is to be `put` at one worker: it is not copied then.

        None where workers get copies, or memory is short: put the array itself.
        """
        return None

    @abstractmethod
    def forget(self, key: str) -> None:
        """Let every worker drop what it keeps under `key`."""

    @abstractmethod
    def broadcast(self, round: int, value: Any) -> None:
        """Give `value` to every task of `round`; written once, however many workers there are.

        Call it before the first submit of a task that needs it, at most once a round.
        """

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Run a task on its worker, after the ones submitted to it before.

        Ends in exactly one event: a Reply with `last`, a Failed, a Dropped after a cancel, or the
        Lost of its worker. Raises UnknownWorker when the worker is not in `workers`.
        """

    @abstractmethod
    def cancel(self, round: int) -> None:
        """Make this round and all before it stale: workers drop their tasks within a slice.

        Replies may still come; they are legal and to be ignored. It also ends the rounds' operands,
        so every round is cancelled in the end.
        """

    @abstractmethod
    def events(self, timeout: float) -> list[Event]:
        """Return what has arrived, in order, waiting at most `timeout` seconds for the first.

        Waits under `kofn.interrupts.opened`: an interrupt that comes out of it has cost no event.
        """

    def lose(self, worker: int) -> None:
        """End a worker as a spot market does: at once. Its Lost follows as an event."""
        raise CannotDo(f"engine {self.name!r} cannot end workers itself; stop the machine instead.")

    def give_up(self, worker: int) -> None:
        """End a worker that has been silent for too long. Its Lost follows as an event.

        Where it is its machine that is silent, that has workers again when it answers.
        """
        self.lose(worker)

    def join(self) -> int:
        """Start one more worker and return its id. Its Joined follows as an event.

        A joiner that never comes ends in its Lost.
        """
        raise CannotDo(f"engine {self.name!r} cannot start workers itself; add a machine to it.")

    def announce(self, worker: int, seconds: float, reason: str = "") -> None:
        """Take notice, from outside, that a worker will be gone in so many seconds.

        Its Leaving follows as an event. Infinity takes an earlier notice back.
        """
        raise CannotDo(f"engine {self.name!r} takes no notices; its workers may give them.")

    def spend(self, numbers: Callable[[], float]) -> None:
        """The master combines so many numbers now: where that is simulated, it takes its time."""
        del numbers  # elsewhere time passes by itself

    def exchange(self, layout: ExchangeLayout) -> Exchange | None:
        """Return memory that the master and the workers share; `put` it at those that take part.

        A worker finds it among what it keeps, as an Exchange. It lives until it is closed, and is
        forgotten like anything that was put. None where they share none: workers that run here as
        processes then exchange over sockets of their own (kofn.peers).
        """
        return None

    def watch(self, sources: Sequence[Source]) -> None:
        """Have workers look at sources of notices; what those announce becomes Leaving events."""
        raise CannotDo(f"engine {self.name!r} has no machines to watch; leave notices= out.")

    @property
    def encryption(self) -> Encryption | None:
        """How this engine's connections are encrypted: workers' own (kofn.peers) are alike.

        None: they are not.
        """
        return None

    @property
    def traffic(self) -> int | None:
        """Bytes that went through the master so far, both ways; None where nobody counts."""
        return None

    def pid(self, worker: int) -> int | None:
        """Process id of a worker on this machine, None where that makes no sense."""
        return None

    @property
    def crowded(self) -> Collection[int]:
        """Workers that share a machine with more workers than it has cores.

        They take turns on the cores: which of them is quicker is chance.
        """
        return ()

    def usage(self) -> dict[int, dict[str, float]]:
        """Bytes by live worker and name, as far as they are known; from any thread.

        resident: memory of its process, where that is on this machine. moved: to and from the
        master; what lies in memory that all workers share is not counted.
        """
        used: dict[int, dict[str, float]] = {}
        for worker in self.workers:
            with suppress(KofnError, KeyError):  # it has gone meanwhile
                pid = self.pid(worker)
                size = None if pid is None else memory(pid).get("VmRSS")
                used[worker] = {} if size is None else {"resident": size}
        return used

    @abstractmethod
    def close(self) -> None:
        """End what this engine started; leave no process, shared memory or file. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _delegated(name: str) -> Any:
    return lambda self, *args: getattr(self.engine, name)(*args)


class Wrapped(Engine):
    """Delegates every call to `engine`; closing it closes `engine`.

    It has the name of `engine`, unless its class has one of its own.
    """

    name: ClassVar[str] = ""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        if not self.name:
            self.__dict__["name"] = engine.name
        self.capabilities = engine.capabilities

    def events(self, timeout: float) -> list[Event]:
        return self.engine.events(timeout)

    workers = property(attrgetter("engine.workers"))
    encryption = property(attrgetter("engine.encryption"))
    traffic = property(attrgetter("engine.traffic"))
    crowded = property(attrgetter("engine.crowded"))
    counters = _delegated("counters")
    now = _delegated("now")
    put = _delegated("put")
    room = _delegated("room")
    forget = _delegated("forget")
    broadcast = _delegated("broadcast")
    submit = _delegated("submit")
    cancel = _delegated("cancel")
    lose = _delegated("lose")
    give_up = _delegated("give_up")
    join = _delegated("join")
    announce = _delegated("announce")
    spend = _delegated("spend")
    exchange = _delegated("exchange")
    watch = _delegated("watch")
    pid = _delegated("pid")
    usage = _delegated("usage")
    close = _delegated("close")
