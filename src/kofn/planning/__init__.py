"""Which code, how much redundancy, how many machines: chosen by simulation. See docs/plan.md."""

from .options import Option, Plan
from .search import plan

__all__ = ["Option", "Plan", "plan"]
