"""Figures from the event log alone."""

from .spans import Lane, Lanes, RoundSpan, Span, lanes
from .timeline import timeline

__all__ = ["Lane", "Lanes", "RoundSpan", "Span", "lanes", "timeline"]
