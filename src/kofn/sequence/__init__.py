"""Streams of products with a deadline, coded across workers and rounds."""

from .report import RoundReport, SequenceReport
from .schemes import DIP, IDIP, BurstIDIP, Polynomial, SequenceCode, Uncoded
from .stream import Stream, Ticket

__all__ = [
    "DIP",
    "IDIP",
    "BurstIDIP",
    "Polynomial",
    "RoundReport",
    "SequenceCode",
    "SequenceReport",
    "Stream",
    "Ticket",
    "Uncoded",
]
