"""Codes: pure mathematics, no I/O and no clock."""

from .assignment import Assignment, Listed, SumCode
from .graph import GraphCode
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
from .lowweight import LowWeightCode
from .mds import MDSCode
from .reliable import ReliableRepetition
from .threshold import AnyKOfN

__all__ = [
    "AnyKOfN",
    "Assignment",
    "CountingDecoder",
    "Decoder",
    "EliminationDecoder",
    "GraphCode",
    "Listed",
    "LowWeightCode",
    "MDSCode",
    "ReliableRepetition",
    "Row",
    "SumCode",
    "Weights",
    "amplification",
    "error_bound",
    "solve",
]
