"""Sums of any function over parts of the data, coded: exact or approximate, nobody waited for."""

from .parts import Parts, Sum
from .scattered import Scattered

__all__ = ["Parts", "Scattered", "Sum"]
