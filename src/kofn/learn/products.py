"""The products that an estimator is fitted through: coded ones, or what coding is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..arrays import CodedMatrix, CodedTranspose
from ..arrays.baselines import Replicated
from ..arrays.shares import resolve_source
from ..checks import one_of
from ..cluster import Cluster
from ..errors import BadInput
from ..model import ProductReport

# What may be given to fit as it is: it lies on workers already.
Encoded = CodedMatrix | CodedTranspose | Replicated

# Plain blocks: how many copies of each, and what becomes of one that nobody holds any more.
INEXACT = {"ignore": (1, "ignore"), "stale": (1, "stale")}
BASELINES = {"noiseless": (1, "wait"), "replication": (2, "wait")} | INEXACT
KINDS = ("coded", *BASELINES)


@dataclass(eq=False)
class Here:
    """A matrix in this process, and what puts it on workers if one pass over it is not enough.

    To send it takes as long as that pass. The report is of the pass: no worker read a row.
    """

    rows: Any
    placed: Callable[[], Encoded]
    seconds: float = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.rows.shape
        return rows, columns

    @property
    def report(self) -> ProductReport:
        """The report of the pass."""
        return ProductReport(
            round=0,
            live=(),
            late=(),
            lost=(),
            joined=(),
            seconds={"total": self.seconds},
            eta=1.0,
            error_bound=None,
            rows_read={},
            rows_used=self.shape[0],
            extra={"where": "here"},
        )


def check(kind: object, solver: str, k: int | None, X: Any) -> None:
    """Refuse what cannot be meant, before any worker is touched."""
    one_of(kind, "products", KINDS)
    if kind != "coded" and k is not None:
        raise BadInput(
            f"k is the threshold of coded products; got k={k!r} with products={kind!r}. Leave it "
            f"out."
        )
    exact = getattr(X, "exact", True) if isinstance(X, Encoded) else kind not in INEXACT
    if not exact and solver != "gd":
        raise BadInput(
            f"solver {solver!r} counts on exact products, and these leave out or keep what a lost "
            f"worker held. Use solver='gd'."
        )
    if kind != "coded" and not isinstance(X, Encoded) and resolve_source(X) is not None:
        raise BadInput(
            f"products={kind!r} takes a matrix in memory; got {X!r}. Load it, or use 'coded'."
        )


def sums_alone(kind: object, k: int | None, X: Any) -> None:
    """Refuse what goes with products, where gradients are summed over parts instead."""
    if kind != "coded" or k is not None:
        raise BadInput(
            f"solver 'coded-gradient' multiplies with no matrix, so products= and k= say nothing; "
            f"got products={kind!r}, k={k!r}. Give it a code: CodedGradient(code=..., stop=...)."
        )
    if isinstance(X, Encoded) or resolve_source(X) is not None:
        raise BadInput(
            f"solver 'coded-gradient' cuts a matrix in memory into parts; got {X!r}. Pass an array "
            f"or a CSR matrix."
        )


def place(kind: str, cluster: Cluster, X: Any, k: int | None, n: int | None) -> Encoded:
    """Put X on the workers of a cluster, for products of this kind; n: how many there may be."""
    if kind == "coded":
        # An array has been checked by scikit-learn's rules; a source has not.
        return cluster.encode(X, k, n=n, check_finite=resolve_source(X) is not None)
    copies, lost = BASELINES[kind]
    return Replicated(cluster, X, copies, n=n, lost=lost)
