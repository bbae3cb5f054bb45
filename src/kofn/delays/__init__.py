"""Seed in, durations and membership out: what simulated workers do with their time."""

from .models import Delays, Exponential, PerUnit
from .spot import Change, Membership, Script, Spot
from .traces import SpotTrace, read_spot_trace

__all__ = [
    "Change",
    "Delays",
    "Exponential",
    "Membership",
    "PerUnit",
    "Script",
    "Spot",
    "SpotTrace",
    "read_spot_trace",
]
