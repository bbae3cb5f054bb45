"""Seed in, durations and membership out: what simulated workers do with their time."""

from .models import Delays, Exponential, PerUnit
from .spot import Change, Membership, Script, Spot

__all__ = ["Change", "Delays", "Exponential", "Membership", "PerUnit", "Script", "Spot"]
