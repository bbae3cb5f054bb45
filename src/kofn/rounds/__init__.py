"""The master: decides without I/O; driver.py carries its events and commands."""

from .base import Round
from .cover import Cover
from .driver import RoundDriver
from .elastic import ElasticRound
from .lateness import Late
from .windows import Layout, Windows, fill, rows_moved, shifted

__all__ = [
    "Cover",
    "ElasticRound",
    "Late",
    "Layout",
    "Round",
    "RoundDriver",
    "Windows",
    "fill",
    "rows_moved",
    "shifted",
]
