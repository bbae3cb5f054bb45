"""kofn: any k of n workers are enough."""

from .arrays import CodedMatrix, CodedTranspose, LowRank, low_rank
from .cluster import Cluster, connect
from .errors import (
    BadInput,
    CannotDo,
    Closed,
    EngineUnavailable,
    Inaccurate,
    KofnError,
    NotDecodable,
    NothingYet,
    Stalled,
    TooFewWorkers,
    UnknownWorker,
    WorkerError,
)
from .model import Report
from .rounds import Late

__version__ = "0.1.0"

__all__ = [
    "BadInput",
    "CannotDo",
    "Closed",
    "Cluster",
    "CodedMatrix",
    "CodedTranspose",
    "EngineUnavailable",
    "Inaccurate",
    "KofnError",
    "Late",
    "LowRank",
    "NotDecodable",
    "NothingYet",
    "Report",
    "Stalled",
    "TooFewWorkers",
    "UnknownWorker",
    "WorkerError",
    "connect",
    "low_rank",
]
