"""Figures from the event log alone."""

from .spans import Lane, Lanes, RoundSpan, Span, lanes
from .timeline import ready, save, timeline

__all__ = ["Lane", "Lanes", "RoundSpan", "Span", "lanes", "ready", "save", "timeline"]
