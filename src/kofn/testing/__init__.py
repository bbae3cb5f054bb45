"""For those who write their own codes and engines: conformance checks and scripted faults."""

from .codes import CodeChecks
from .engines import EngineChecks
from .faults import Faults

__all__ = ["CodeChecks", "EngineChecks", "Faults"]
