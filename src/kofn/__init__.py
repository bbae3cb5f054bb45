"""kofn: any k of n workers are enough."""

from .arrays import CodedMatrix, CodedTranspose, LowRank, low_rank
from .cluster import Cluster, connect
from .codes.assignment import SumCode
from .codes.rateless import LT, DenseMDS, RandomGroups
from .codes.repetition import CyclicRepetition, FractionalRepetition, Uncoded
from .errors import (
    BadInput,
    BadStore,
    CannotDo,
    CannotWrite,
    Closed,
    Diverged,
    EngineUnavailable,
    Inaccurate,
    KofnError,
    NotDecodable,
    NotFinite,
    NothingYet,
    OutOfResources,
    OutOfSymbols,
    Overflowed,
    SharesLost,
    Stalled,
    StoreWarning,
    TooFewWorkers,
    UnknownWorker,
    WorkerError,
    WrongReplies,
)
from .model import ProductReport, Report, SumReport
from .rounds import Late, stop
from .rounds.stop import Stop, deadline, exact, first, fraction
from .sequence import DIP, IDIP, Polynomial
from .sums import Parts, Scattered, Sum

__version__ = "0.1.0"

__all__ = [
    "DIP",
    "IDIP",
    "LT",
    "BadInput",
    "BadStore",
    "CannotDo",
    "CannotWrite",
    "Closed",
    "Cluster",
    "CodedMatrix",
    "CodedTranspose",
    "CyclicRepetition",
    "DenseMDS",
    "Diverged",
    "EngineUnavailable",
    "FractionalRepetition",
    "Inaccurate",
    "KofnError",
    "Late",
    "LowRank",
    "NotDecodable",
    "NotFinite",
    "NothingYet",
    "OutOfResources",
    "OutOfSymbols",
    "Overflowed",
    "Parts",
    "Polynomial",
    "ProductReport",
    "RandomGroups",
    "Report",
    "Scattered",
    "SharesLost",
    "Stalled",
    "Stop",
    "StoreWarning",
    "Sum",
    "SumCode",
    "SumReport",
    "TooFewWorkers",
    "Uncoded",
    "UnknownWorker",
    "WorkerError",
    "WrongReplies",
    "connect",
    "deadline",
    "exact",
    "first",
    "fraction",
    "low_rank",
    "stop",
]
