"""The links of a simulated cluster: when a message that is sent now arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..costs import Costs
from ..model import Event, Reply, Update
from ..peers.relay import LARGE

SMALL = 200  # bytes of a message beside its data
ITEM = 8  # of a number


@dataclass(frozen=True)
class Sizes:
    """Bytes of messages whose values are not there: with each task, each piece and each row read.

    What is put and broadcast says its size itself, as `nbytes`.
    """

    task: float = 0.0
    piece: float = 0.0
    row: float = 0.0


def size_of(value: Any) -> float:
    """Bytes of a value that is put or broadcast, as far as it says so."""
    if isinstance(value, Update):
        value = value.args
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return sum(map(size_of, value))
    return float(getattr(value, "nbytes", 0))


class Links:
    """The master's link, which carries one message at a time each way, and what is on it."""

    def __init__(self, costs: Costs, sizes: Sizes) -> None:
        self.costs, self.sizes = costs, sizes
        self._out = self._in = 0.0  # when each way is free
        self._operands: dict[int, tuple[float, float]] = {}  # round -> arrival, bytes with a task

    def broadcast(self, round: int, value: Any, workers: int, now: float) -> None:
        """The operand of a round: a small one goes with each task, a large one is passed on."""
        size = size_of(value)
        if size < LARGE:
            self._operands[round] = 0.0, size
            return
        start = max(now, self._out)
        self._out = start + self.costs.transfer(size)
        self._operands[round] = start + self.costs.passed_on(workers, size), 0.0

    def cancel(self, round: int) -> None:
        """The operands up to this round are not needed any more."""
        self._operands = {r: operand for r, operand in self._operands.items() if r > round}

    def task(self, round: int, now: float) -> float:
        """When a task is at its worker, with its operand."""
        there, size = self._operands.get(round, (0.0, 0.0))
        return max(there, self.put(self.sizes.task + size, now))

    def put(self, size: float, now: float) -> float:
        """When so many bytes are at a worker."""
        self._out = max(now, self._out) + self.costs.transfer(SMALL + size)
        return self._out + self.costs.latency

    def reply(self, event: Event, now: float) -> float:
        """When what a worker says now is at the master."""
        size = SMALL + ITEM * self.numbers(event)
        self._in = max(now + self.costs.latency, self._in) + self.costs.transfer(size)
        return self._in

    def numbers(self, event: Event) -> float:
        """How many an event brings: those of a reply that has a value."""
        if type(event) is not Reply or event.what is None:
            return 0.0
        return (self.sizes.piece + self.sizes.row * event.read) / ITEM
