"""Seed in, durations and membership out: what simulated workers do with their time."""

from .models import Delays, Exponential, ExponentialByLoad, Pareto, PerUnit, Sampled, Scaled
from .recorded import Recorded, Recording, read_timings
from .spot import Announced, Change, Membership, Script, Spot
from .stragglers import (
    AsSlowAs,
    Fritchman,
    Given,
    Independent,
    Shifted,
    Slowed,
    Stragglers,
    Stratified,
)
from .traces import SpotTrace, read_spot_trace

__all__ = [
    "Announced",
    "AsSlowAs",
    "Change",
    "Delays",
    "Exponential",
    "ExponentialByLoad",
    "Fritchman",
    "Given",
    "Independent",
    "Membership",
    "Pareto",
    "PerUnit",
    "Recorded",
    "Recording",
    "Sampled",
    "Scaled",
    "Script",
    "Shifted",
    "Slowed",
    "Spot",
    "SpotTrace",
    "Stragglers",
    "Stratified",
    "read_spot_trace",
    "read_timings",
]
