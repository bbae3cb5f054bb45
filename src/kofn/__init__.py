"""kofn: any k of n workers are enough."""

from .arrays import CodedMatrix
from .cluster import Cluster, connect
from .errors import (
    BadInput,
    CannotDo,
    Closed,
    EngineUnavailable,
    Inaccurate,
    KofnError,
    NotDecodable,
    Stalled,
    TooFewWorkers,
    UnknownWorker,
    WorkerError,
)
from .model import Report

__version__ = "0.1.0"

__all__ = [
    "BadInput",
    "CannotDo",
    "Closed",
    "Cluster",
    "CodedMatrix",
    "EngineUnavailable",
    "Inaccurate",
    "KofnError",
    "NotDecodable",
    "Report",
    "Stalled",
    "TooFewWorkers",
    "UnknownWorker",
    "WorkerError",
    "connect",
]
