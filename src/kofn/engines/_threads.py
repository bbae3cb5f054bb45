"""One BLAS thread a worker: several workers share a machine."""

from __future__ import annotations

ONE_THREAD = {
    f"{name}_{'MAXIMUM' if name == 'VECLIB' else 'NUM'}_THREADS": "1"
    for name in ("OPENBLAS", "OMP", "MKL", "VECLIB", "NUMEXPR", "BLIS")
}
