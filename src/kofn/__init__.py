"""kofn: any k of n workers are enough."""

from .arrays import CodedMatrix, CodedTranspose, LowRank, low_rank
from .cluster import Cluster, connect
from .errors import (
    BadInput,
    BadStore,
    CannotDo,
    Closed,
    Diverged,
    EngineUnavailable,
    Inaccurate,
    KofnError,
    NotDecodable,
    NothingYet,
    Overflowed,
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
    "BadStore",
    "CannotDo",
    "Closed",
    "Cluster",
    "CodedMatrix",
    "CodedTranspose",
    "Diverged",
    "EngineUnavailable",
    "Inaccurate",
    "KofnError",
    "Late",
    "LowRank",
    "NotDecodable",
    "NothingYet",
    "Overflowed",
    "Report",
    "Stalled",
    "TooFewWorkers",
    "UnknownWorker",
    "WorkerError",
    "connect",
    "low_rank",
]
