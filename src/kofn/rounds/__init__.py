"""The master: decides without I/O; drive.py carries its events and commands."""

from .base import Round
from .cover import Cover
from .drive import Drive
from .elastic import ElasticRound
from .watch import Late
from .windows import Layout, Windows, cyclic, fill, rows_moved, shifted

__all__ = [
    "Cover",
    "Drive",
    "ElasticRound",
    "Late",
    "Layout",
    "Round",
    "Windows",
    "cyclic",
    "fill",
    "rows_moved",
    "shifted",
]
