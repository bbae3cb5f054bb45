"""Graph codes with optimal decoding (Glasgow and Wootters, 2021): approximate gradient codes.

The groups of parts are the vertices of a d-regular graph, and workers are its edges: a worker holds
the two groups at its ends, and sends the sum over both. Each part is on d workers. When workers are
missing, every connected piece of what is left is decoded on its own: a piece with an odd cycle is
exact; in one without, groups on its two sides count 2·|other side| / |piece|; a group without any
worker is missing. No weights come nearer to the exact sum. The cost is O(workers).

Under random losses it is as good as fractional repetition of the same d. Where losses are bad on
purpose, or come in clusters (a rack, a spot pool), it is up to twice as good: no small group of
workers holds all copies of many parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..checks import whole_fields
from ..errors import BadInput
from .assignment import Listed, Row, SumCode
from .linear import Decoder, EliminationDecoder, Weights, amplification

Edge = tuple[int, int]
TRIES = 30  # random graphs, of which the one with the largest gap is taken


@dataclass(frozen=True)
class GraphCode(SumCode):
    """Each part on d workers; a worker holds two of 2n/d groups of parts, and sends their sum.

    d must divide twice the number n of workers, and 2n/d be above d. The graph is drawn from
    `seed`.
    """

    d: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        whole_fields(self, d=2, seed=0)

    def assign(self, m: int, n: int) -> Listed:
        vertices = 2 * n // self.d
        if (2 * n) % self.d or vertices <= self.d:
            raise BadInput(
                f"a graph code needs d to divide 2n, and 2n/d to be above d; got d={self.d} and "
                f"n={n} workers. Use FractionalRepetition, or another d."
            )
        if m < vertices:
            raise BadInput(
                f"a graph code needs a part for each of its {vertices} groups; got {m} parts. Cut "
                f"the data into {vertices} parts or more."
            )
        edges = regular_graph(vertices, self.d, self.seed)
        groups = [range(j * m // vertices, (j + 1) * m // vertices) for j in range(vertices)]
        rows = tuple((Row((*groups[a], *groups[b])),) for a, b in edges)
        return _GraphAssignment(m, n, rows, _threshold(edges, vertices), repr(self), edges)


@dataclass(frozen=True)
class _GraphAssignment(Listed):
    edges: tuple[Edge, ...] = ()

    def decoder(self) -> Decoder:
        return GraphDecoder(self)


class GraphDecoder(EliminationDecoder):
    """Knows when the sum is there by elimination; where it is not, decodes piece by piece."""

    def __init__(self, code: _GraphAssignment) -> None:
        super().__init__(code.m, "sum", code.name)
        self._edges, self._n = code.edges, code.n

    def nearest(self, kind: str) -> Weights | None:
        if kind not in ("least-squares", "covered"):
            return None
        edges = {key: self._edges[key % self._n] for key in self.arrived}
        weights = optimal_weights(edges)
        matrix = np.array([[weights[key] for key in self.arrived]])
        return Weights(self.arrived, matrix, amplification(self.rows, matrix), "sum")


def optimal_weights(edges: Mapping[int, Edge]) -> dict[int, float]:
    """Weights of the edges that are there, by key: nearest to one at every vertex. O(edges).

    In each connected piece a spanning tree is walked from its leaves: an edge gets what its lower
    end still needs. An edge that closes an odd cycle settles what is left over at the root.
    """
    around: dict[int, list[tuple[int, int]]] = {}
    for key, (a, b) in edges.items():
        around.setdefault(a, []).append((b, key))
        around.setdefault(b, []).append((a, key))
    weights = dict.fromkeys(edges, 0.0)
    seen: dict[int, int] = {}  # vertex -> side
    for root in around:
        if root not in seen:
            _piece(root, around, edges, seen, weights)
    return weights


def _piece(
    root: int,
    around: Mapping[int, Sequence[tuple[int, int]]],
    edges: Mapping[int, Edge],
    seen: dict[int, int],
    weights: dict[int, float],
) -> None:
    order, up, odd = [root], {root: (-1, -1)}, None
    seen[root] = 0
    for vertex in order:  # grows while it is walked
        for other, key in around[vertex]:
            if other not in seen:
                seen[other] = 1 - seen[vertex]
                up[other] = vertex, key
                order.append(other)
            elif seen[other] == seen[vertex]:
                odd = key
    sides = [sum(seen[v] == side for v in order) for side in (0, 1)]
    # Without an odd cycle both sides receive the same in all: that is what each vertex can have.
    want = {v: 1.0 if odd is not None else 2 * sides[1 - seen[v]] / len(order) for v in order}
    extra = 0.0
    if odd is not None:
        # The root's remainder is a straight line in the weight of the odd edge.
        zero, one = (_remainder(order, up, want, edges[odd], x)[0] for x in (0.0, 1.0))
        extra = zero / (zero - one)
        weights[odd] = extra
    ends = edges[odd] if odd is not None else (root, root)
    by_vertex = _remainder(order, up, want, ends, extra)[1]
    for vertex, weight in by_vertex.items():
        weights[up[vertex][1]] = weight


def _remainder(
    order: Sequence[int],
    up: Mapping[int, tuple[int, int]],
    want: Mapping[int, float],
    odd: Edge,
    x: float,
) -> tuple[float, dict[int, float]]:
    """How much the root still needs, and the weight of the edge above each other vertex."""
    need = dict(want)
    for end in odd if x else ():
        need[end] -= x
    weights = {}
    for vertex in reversed(order[1:]):
        weights[vertex] = need[vertex]
        need[up[vertex][0]] -= need[vertex]
    return need[order[0]], weights


@lru_cache(maxsize=16)
def regular_graph(vertices: int, d: int, seed: int = 0) -> tuple[Edge, ...]:
    """A simple connected d-regular graph: of many random ones that with the largest gap d − λ₂."""
    rng = np.random.default_rng((seed, vertices, d))
    best: tuple[float, tuple[Edge, ...]] | None = None
    drawn = 0
    while drawn < TRIES or best is None:
        drawn += 1
        edges = _draw(rng, vertices, d)
        if edges is None:
            if drawn > 100 * TRIES:
                raise BadInput(f"no simple {d}-regular graph of {vertices} vertices was found.")
            continue
        A = np.zeros((vertices, vertices))
        for a, b in edges:
            A[a, b] = A[b, a] = 1.0
        gap = d - float(np.linalg.eigvalsh(A)[-2])
        if best is None or gap > best[0] + 1e-9:
            best = gap, edges
    return best[1]


def _draw(rng: np.random.Generator, vertices: int, d: int) -> tuple[Edge, ...] | None:
    """Pair up the ends at random; pairs that cannot stand are paired anew a few times."""
    ends = np.repeat(np.arange(vertices), d)
    known: set[Edge] = set()
    for _ in range(50):
        rng.shuffle(ends)
        left: list[int] = []
        for a, b in ends.reshape(-1, 2).tolist():
            edge = (min(a, b), max(a, b))
            if a == b or edge in known:
                left += [a, b]
            else:
                known.add(edge)
        if not left:
            return tuple(sorted(known))
        ends = np.array(left)
    return None


def _threshold(edges: Sequence[Edge], vertices: int) -> int:
    """Fewest workers such that any so many give the exact sum; one may be missing, or none."""
    n = len(edges)

    def exact(kept: Mapping[int, Edge]) -> bool:
        at = np.zeros(vertices)
        for key, weight in optimal_weights(kept).items():
            at[list(kept[key])] += weight
        return bool(np.abs(at - 1).max() < 1e-9)

    whole = dict(enumerate(edges))
    alone = all(exact({k: e for k, e in whole.items() if k != gone}) for gone in whole)
    return n - 1 if alone else n
