"""Seed in, durations and membership out: what simulated workers do with their time."""

from .fits import Fit, Slowness, TwoState, fit, slowness
from .lifetimes import Lifetimes
from .membership import read_membership, read_spot_trace, write_membership
from .models import Delays, Exponential, ExponentialByLoad, Pareto, PerUnit, Sampled, Scaled
from .recorded import Recorded, Recording
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
from .timings import read_timings, write_timings
from .traces import SpotTrace

__all__ = [
    "Announced",
    "AsSlowAs",
    "Change",
    "Delays",
    "Exponential",
    "ExponentialByLoad",
    "Fit",
    "Fritchman",
    "Given",
    "Independent",
    "Lifetimes",
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
    "Slowness",
    "Spot",
    "SpotTrace",
    "Stragglers",
    "Stratified",
    "TwoState",
    "fit",
    "read_membership",
    "read_spot_trace",
    "read_timings",
    "slowness",
    "write_membership",
    "write_timings",
]
