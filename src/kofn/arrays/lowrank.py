"""U Vᵀ, not multiplied out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import finite, floats, plain
from ..errors import BadInput, Overflowed


@dataclass(frozen=True, eq=False)
class LowRank:
    """U Vᵀ with U (N, r) and V (d, r); made by `low_rank`."""

    U: NDArray[Any]
    V: NDArray[Any]

    @property
    def T(self) -> LowRank:
        """V Uᵀ."""
        return LowRank(self.V, self.U)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""
        return len(self.U), len(self.V)


def low_rank(U: object, V: object) -> LowRank:
    """Return U Vᵀ for `X += low_rank(U, V)`, not multiplied out: U (N, r), V (d, r), or vectors."""
    given = plain(U, "U of low_rank(U, V)"), plain(V, "V of low_rank(U, V)")
    u, v = (a[:, None] if a.ndim == 1 else a for a in given)
    if u.ndim != 2 or v.ndim != 2 or u.shape[1] != v.shape[1]:
        raise BadInput(
            f"low_rank(U, V) takes U (N, r) and V (d, r) with the same r; got shapes "
            f"{given[0].shape} and {given[1].shape}. Did you mean low_rank(U, V.T)?"
        )
    return LowRank(u, v)


def as_change(
    value: object,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    check_finite: bool,
    scaled: Callable[[NDArray[Any]], NDArray[Any]],
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return (U, V) of an update U Vᵀ, or (array, None) of a plain one; copies, rows `scaled`."""
    made = value if isinstance(value, LowRank) else plain(value, "an update")
    if made.shape != shape:
        raise BadInput(
            f"an update of X must have its shape {shape}; got {made.shape}. Use "
            f"X += kofn.low_rank(U, V) with U ({shape[0]}, r) and V ({shape[1]}, r)."
        )
    parts = (made.U, made.V) if isinstance(made, LowRank) else (made,)
    # Copies: an update that was interrupted is sent to the rest later, and must be the same then.
    done = [np.array(floats(part, "an update"), dtype=dtype, order="C") for part in parts]
    if check_finite:
        for part in done:
            finite(part, "the update")
    with np.errstate(over="ignore", invalid="ignore"):
        done[0] = scaled(done[0])
    if check_finite:
        with np.errstate(over="ignore"):
            # Room for the sums of a share, whatever its coefficients.
            most = np.prod([np.abs(part).max(initial=0.0) for part in done], dtype=dtype)
            if not np.isfinite(most * dtype.type(1e3 * done[0].shape[1])):
                raise Overflowed(
                    f"an update must stay well below {np.finfo(dtype).max:.1e}; this one goes up "
                    f"to {float(most):.1e}, or its rows do beside those that they are added to. "
                    f"Scale it down."
                )
    return done[0], done[1] if len(done) == 2 else None
