"""Coded matrices."""

from typing import TYPE_CHECKING, Any

from ..interrupts import imported as _imported
from .lowrank import LowRank, low_rank

if TYPE_CHECKING:
    from .matrix import CodedMatrix
    from .transpose import CodedTranspose

__all__ = ["CodedMatrix", "CodedTranspose", "LowRank", "low_rank"]


if not TYPE_CHECKING:
    _later = {"CodedMatrix": "matrix", "CodedTranspose": "transpose"}

    def __getattr__(name: str) -> Any:
        """Only the master has these. They need SciPy, whose import takes longer than kofn's."""
        if name in _later:
            return getattr(_imported(f".{_later[name]}", __name__), name)
        raise AttributeError(f"module 'kofn.arrays' has no attribute {name!r}")
