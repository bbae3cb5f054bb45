"""Codes compared in simulated time, from recorded or made-up timings. See docs/simulate.md."""

from .calibration import calibrate
from .codes import CODES, Candidate
from .logs import Traces, record
from .own import Stopped, candidates
from .place import Outcome, Place
from .run import Stage, simulate
from .table import Row, Table
from .timings import delays_of, market_of
from .work import Work

__all__ = [
    "CODES",
    "Candidate",
    "Outcome",
    "Place",
    "Row",
    "Stage",
    "Stopped",
    "Table",
    "Traces",
    "Work",
    "calibrate",
    "candidates",
    "delays_of",
    "market_of",
    "record",
    "simulate",
]
