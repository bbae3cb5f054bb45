"""Codes: pure mathematics, no I/O and no clock."""

from .assignment import Assignment, Listed, SumCode
from .linear import (
    CountingDecoder,
    Decoder,
    EliminationDecoder,
    Row,
    Weights,
    amplification,
    error_bound,
    solve,
)
from .mds import MDSCode
from .threshold import AnyKOfN

__all__ = [
    "AnyKOfN",
    "Assignment",
    "CountingDecoder",
    "Decoder",
    "EliminationDecoder",
    "Listed",
    "MDSCode",
    "Row",
    "SumCode",
    "Weights",
    "amplification",
    "error_bound",
    "solve",
]
