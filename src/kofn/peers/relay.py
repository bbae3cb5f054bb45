"""Large operands, passed on from worker to worker: the master sends one copy, not one a worker.

`kofn.rounds.relayed` decides which; here is how.

The master pushes the operand to one worker of its own machine, who maps its memory, and over the
network to one of another machine. That one passes it on to one of the next machine while it comes,
and so on; with many machines along a tree. The other workers of a machine map the memory of the
first. A worker that gets nothing in time says so, and is sent the operand by the engine.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model import Body, Last, Piece
from .kept import Kept
from .keys import FindKeys
from .node import Node
from .place import Address, machine_name

LARGE = 256 * 1024  # bytes; smaller operands go with the task that needs them
FEWEST = 3  # workers; with fewer there is nothing to gain
SILENT = 0.5  # seconds without a byte: another node is asked
BLOCK = 1.0  # seconds for which a worker waits without looking whether its round is over
KEPT = 3  # operands that a worker keeps

FIRST = "operand-"  # of the names of the blobs


class Unreached(NamedTuple):
    """The reply where an operand came from none of those that were to pass it on.

    A type of its own, and no exception: nothing that a body raises or returns is taken for it.
    """

    name: str


class Ticket(NamedTuple):
    """Where a worker gets an operand, and what it is."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    order: str
    size: int
    sources: tuple[tuple[Any, ...], ...]  # addresses, in the order in which they are asked


# At a worker.


def open_node(token: bytes, master: str, find: FindKeys | None) -> Kept:
    """For a Build. On the master's machine nobody else needs to reach it."""
    return Kept(token, machine_name() != master, None if find is None else find())


def hello(kept: Mapping[str, Any], operand: None, key: str) -> tuple[Piece, ...]:
    """Body: where the node of this worker is."""
    return (Piece(None, tuple(kept[key].node.address)),)


class Relayed:
    """A body whose operand comes from the nodes."""

    def __init__(self, key: str, body: Body) -> None:
        self.key, self.body = key, body

    def __call__(
        self, kept: Mapping[str, Any], operand: None, ticket: tuple[Any, ...], *args: Any
    ) -> Iterable[Piece]:
        node: Node = kept[self.key].node
        coming = fetch(node, Ticket(*ticket))
        limit = node.now() + BLOCK
        for value in coming:
            if type(value) is Unreached:
                return (Last(None, value),)
            if value is not None:
                return self.body(kept, value, *args)
            if node.now() >= limit:
                break
        return self._later(kept, coming, args)

    def _later(
        self, kept: Mapping[str, Any], coming: Iterator[Any], args: tuple[Any, ...]
    ) -> Iterator[Piece]:
        for value in coming:
            if type(value) is Unreached:
                yield Last(None, value)
                return
            if value is not None:
                yield from self.body(kept, value, *args)
                return
            yield Piece(None, None)


def fetch(node: Node, ticket: Ticket) -> Iterator[NDArray[Any] | Unreached | None]:
    """Yield None while an operand comes, and then it, or Unreached."""
    sources = [Address(*source) for source in ticket.sources]
    for old in [name for name in node.blobs() if name.startswith(FIRST)][:-KEPT]:
        node.withdraw(old)
    had, since = -1, node.now()
    if sources:
        node.fetch(ticket.name, ticket.size, sources.pop(0))
    while True:
        have, data = node.fetched(ticket.name)
        if data is not None:
            break
        if have != had:
            had, since = have, node.now()
        elif node.now() >= since + SILENT:
            if not sources:
                yield Unreached(ticket.name)
                return
            node.fetch(ticket.name, ticket.size, sources.pop(0))
            since = node.now()
        node.wait(0.05)
        yield None
    value = np.ndarray(ticket.shape, ticket.dtype, data, order=ticket.order)  # type: ignore[arg-type]
    value.flags.writeable = False
    yield value


# At the master.


Sources = tuple[tuple[Any, ...], ...]


def lay(
    at: Mapping[int, Address], busy: Collection[int], master: str, pieces: int
) -> tuple[dict[int, Sources], list[int]]:
    """Whom each worker asks, and to whom the master pushes; `pieces`: the size of the operand."""
    machines: dict[str, list[int]] = {}
    for worker in sorted(at, key=lambda w: (w in busy, w)):
        machines.setdefault(at[worker].machine, []).append(worker)
    here = machines.pop(master, [])
    firsts = [workers[0] for workers in machines.values()]
    # One after the other a piece arrives later by each hop, along a tree each link carries two.
    many = len(firsts)
    tree = 1 + (many - 1) / pieces > 2 + 2 * math.log2(max(1, many)) / pieces
    sources: dict[int, Sources] = {}
    for i, workers in enumerate(machines.values()):
        parents = []
        j = i
        while j > 0:
            j = (j - 1) // 2 if tree else j - 1
            parents.append(tuple(at[firsts[j]]))
            if len(parents) == 4:
                break
        sources[workers[0]] = tuple(parents)
        root = tuple(at[workers[0]])
        sources |= dict.fromkeys(workers[1:], (root, *parents))
    if here:
        sources[here[0]] = ()
        sources |= dict.fromkeys(here[1:], (tuple(at[here[0]]),))
    return sources, [*here[:1], *firsts[:1]]
