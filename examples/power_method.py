"""The largest eigenvalue of a dense symmetric matrix by the power method, on six workers.

python examples/power_method.py [size]
"""

from __future__ import annotations

import sys

import numpy as np

import kofn


def normalised(y: np.ndarray) -> np.ndarray:
    """Back to length one; y is the whole product, so its norm is at hand on every worker."""
    return y / np.linalg.norm(y)


def main(size: int = 600) -> None:
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((size, size)))[0]
    A = (Q * np.concatenate([[3.0, 2.0], rng.random(size - 2)])) @ Q.T
    with kofn.connect("local", workers=6) as cluster:
        X = cluster.encode(A, k=3)
        v = X.iterate(normalised, rng.standard_normal(size), rounds=500, tol=1e-13)
        rounds = X.report.extra["rounds"]
        largest = float(v @ (X @ v))
    print(f"after {rounds} rounds: {largest:.12f}; it is 3")
    assert abs(largest - 3.0) < 1e-10
    assert abs(abs(float(v @ Q[:, 0])) - 1.0) < 1e-10


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
