"""Several trainings or solvers at once, their products interleaved through one coded sequence.

Job i belongs to program i mod M: its operands depend on the result of job i - M. With a delay of at
most M - 2 that result is decoded when it is needed, and no round is run without a new job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ..checks import plain
from ..errors import BadInput, Diverged
from ..sequence import Stream, Ticket
from .network import Floats, Network, Program

T = TypeVar("T")


def interleave(stream: Stream, programs: Sequence[Program[T]]) -> list[T]:
    """Run programs to their ends, one product of each in turn; return what they return."""
    results: dict[int, T] = {}
    waiting: list[Ticket | None] = [None] * len(programs)

    def resume(i: int, value: Floats | None) -> None:
        try:
            pair = next(programs[i]) if value is None else programs[i].send(value)
        except StopIteration as end:
            results[i], waiting[i] = end.value, None
        else:
            waiting[i] = stream.submit(*pair)

    for i in range(len(programs)):
        resume(i, None)
    while len(results) < len(programs):
        for i, ticket in enumerate(waiting):
            if ticket is not None:
                resume(i, ticket.result())
    return [results[i] for i in range(len(programs))]


def alone(program: Program[T]) -> T:
    """Run a program with plain NumPy products: what interleaving is compared with."""
    try:
        X, Y = next(program)
        while True:
            X, Y = program.send(X @ Y)
    except StopIteration as end:
        result: T = end.value
        return result


def train_many(
    stream: Stream,
    networks: Sequence[Network],
    X: Any,
    y: Any,
    *,
    steps: int,
    batch: int = 1024,
    callback: Callable[[int, int, float], None] | None = None,
) -> Sequence[Network]:
    """Train networks concurrently, every product of theirs through one coded sequence.

    X (N, d) and class numbers y (N,) from 0. The networks are changed in place; their `losses` are
    those of plain NumPy training, up to the error bound of the products. callback(network, step,
    loss) is called after every step, from 1. A delay of at most len(networks) - 2 never stalls.
    """
    rows, labels = plain(X, "X").astype(np.float64, copy=False), plain(y, "y")
    if rows.ndim != 2 or labels.shape != rows.shape[:1] or labels.dtype.kind not in "iu":
        raise BadInput(
            f"train_many takes rows X (N, d) and class numbers y (N,); got shapes {rows.shape} and "
            f"{labels.shape}, y of {labels.dtype}. Number the classes from 0."
        )
    if not networks or steps < 1 or batch < 1:
        raise BadInput(
            f"train_many needs at least one network, step and row a batch; got {len(networks)} "
            f"networks, steps={steps}, batch={batch}."
        )
    for network in networks:
        first, last = network.widths[0], network.widths[-1]
        if first != rows.shape[1] or not 0 <= labels.min() <= labels.max() < last:
            raise BadInput(
                f"a network must take what the data have; got widths {tuple(network.widths)}, "
                f"{rows.shape[1]} columns and classes {labels.min()} to {labels.max()}."
            )
    programs = [
        network.train(rows, labels, steps, batch, callback and partial(callback, number))
        for number, network in enumerate(networks)
    ]
    return interleave(stream, programs)


def solve_many(
    stream: Stream,
    systems: Sequence[tuple[Any, Any]],
    *,
    tolerance: float = 1e-8,
    max_iterations: int = 1000,
) -> list[Floats]:
    """Solve several systems A x = b at once by Jacobi's iteration, x ← (b - R x) / diag(A).

    b may have several columns. Each iteration is one product, R = A without its diagonal times x.
    Stops where |b - A x| <= tolerance |b|; raises Diverged for iterates that are not finite, and
    BadInput where Jacobi's iteration cannot begin or has not come so far.
    """
    programs = []
    for number, (A, b) in enumerate(systems):
        pair = plain(A, f"A of system {number}"), plain(b, f"b of system {number}")
        matrix, right = (one.astype(np.float64, copy=False) for one in pair)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(right) != len(matrix):
            raise BadInput(
                f"a system is a square A (n, n) and b of n rows; system {number} has shapes "
                f"{matrix.shape} and {right.shape}."
            )
        if not np.all(np.diag(matrix)):
            raise BadInput(
                f"Jacobi's iteration divides by the diagonal of A; that of system {number} has a "
                f"zero. Reorder its rows."
            )
        programs.append(_jacobi(number, matrix, right, tolerance, max_iterations))
    return interleave(stream, programs)


def _jacobi(number: int, A: Floats, b: Floats, tolerance: float, most: int) -> Program[Floats]:
    d = np.diag(A)[:, None]
    R = A - np.diag(np.diag(A))
    right = b.reshape(len(A), -1)
    x = right / d
    size = float(np.linalg.norm(right))
    for iteration in range(1, most + 1):
        rest = right - (yield R, x)
        # b - A x = b - R x - D x: the residual of x costs no product of its own.
        if np.linalg.norm(rest - d * x) <= tolerance * size:
            return x.reshape(b.shape)
        x = rest / d
        if not np.isfinite(x).all():
            raise Diverged(iteration, 0, float("nan"))
    raise BadInput(
        f"Jacobi's iteration comes to the tolerance for diagonally dominant systems; system "
        f"{number} has not in {most} iterations. Use max_iterations=, or another solver."
    )
