"""Codes: pure mathematics, no I/O and no clock."""

from .linear import CountingDecoder, Decoder, EliminationDecoder, Weights, error_bound, solve
from .mds import MDSCode

__all__ = [
    "CountingDecoder",
    "Decoder",
    "EliminationDecoder",
    "MDSCode",
    "Weights",
    "error_bound",
    "solve",
]
