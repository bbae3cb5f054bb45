"""A Taylor series as a rateless sum: log(1 + x) at many x, each term a function of its own.

python examples/taylor.py [terms]
"""

from __future__ import annotations

import sys

import numpy as np

import kofn


def term(i: int, x: np.ndarray) -> np.ndarray:
    """The i-th term, i from 1: (-1)^(i+1) x^i / i."""
    return -((-x) ** i) / i


def main(terms: int = 400) -> None:
    x = np.linspace(-0.9, 0.9, 1000)
    with kofn.connect("local", workers=4) as cluster:
        for code in (kofn.LT(r=2), kofn.Raptor(), kofn.RandomGroups(d=10)):
            parts = cluster.parts([*range(1, terms + 1)], code)
            total = parts.sum(term, x)
            error = np.abs(total.value - np.log1p(x)).max()
            report = total.report
            print(f"{code}: off by {error:.1e} after {report.symbols_used} symbols")
            assert error < 1e-10


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
