"""Coded matrices."""

from .lowrank import LowRank, low_rank
from .matrix import CodedMatrix, CodedTranspose

__all__ = ["CodedMatrix", "CodedTranspose", "LowRank", "low_rank"]
