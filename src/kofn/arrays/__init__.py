"""Coded matrices."""

from .lowrank import LowRank, low_rank
from .matrix import CodedMatrix
from .transpose import CodedTranspose

__all__ = ["CodedMatrix", "CodedTranspose", "LowRank", "low_rank"]
