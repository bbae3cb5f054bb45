"""Figures, pictures and files from the event log alone."""

from .logs import read_log
from .otel import RoundSpans, Telemetry
from .perfetto import trace
from .spans import Lane, Lanes, RoundSpan, Span, lanes
from .state import RunState
from .timeline import ready, save, timeline
from .uncoded import Uncoded, uncoded

__all__ = [
    "Lane",
    "Lanes",
    "RoundSpan",
    "RoundSpans",
    "RunState",
    "Span",
    "Telemetry",
    "Uncoded",
    "lanes",
    "read_log",
    "ready",
    "save",
    "timeline",
    "trace",
    "uncoded",
]
