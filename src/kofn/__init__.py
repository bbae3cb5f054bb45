"""kofn: any k of n workers are enough.

Results are exact while workers are lost, late or new:

    import numpy as np
    import kofn

    A, w = np.random.rand(1000, 20), np.random.rand(20)
    with kofn.connect("local", workers=4) as cluster:
        X = cluster.encode(A, k=2)          # any 2 of 4 workers are enough
        cluster.lose(3)                     # as if a machine were gone
        assert np.allclose(X @ w, A @ w)
        print(X.report)

Where to go on:

    connect      open a cluster on an engine: local, ray, dask, mpi, virtual
    Cluster      encode (products X @ w, X.T @ z), parts (sums of any function), sequence
    kofn.learn   scikit-learn's estimators, trained through losses
    plan         which code, and how many machines; simulate: codes in simulated time
    kofn.delays, kofn.testing, kofn.report    recorded markets; faults by script; pictures

Events (who was lost, who has joined) go to the logger "kofn" at INFO. All errors are KofnError.
The command is `kofn`; try `kofn demo`.
"""

from typing import TYPE_CHECKING, Any

from .arrays import LowRank, low_rank
from .checkpoint import Checkpoint, resume
from .cluster import Cluster, connect
from .codes.assignment import SumCode
from .codes.raptor import Raptor
from .codes.rateless import LT, DenseMDS, RandomGroups
from .codes.repetition import CyclicRepetition, FractionalRepetition, Uncoded
from .costs import Costs
from .errors import (
    BadCheckpoint,
    BadFile,
    BadInput,
    BadStore,
    CannotDo,
    CannotWrite,
    CheckpointWarning,
    Closed,
    Diverged,
    EngineUnavailable,
    Inaccurate,
    KofnError,
    LogWarning,
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
    TooLarge,
    TraceWarning,
    UnknownWorker,
    WorkerError,
    WrongReplies,
)
from .interrupts import imported as _imported
from .model import ProductReport, Report, SumReport
from .rounds import Late, stop
from .rounds.stop import Stop, deadline, exact, first, fraction
from .sequence import DIP, IDIP, Polynomial
from .sums import Parts, Scattered, Sum

if TYPE_CHECKING:
    from .arrays import CodedMatrix, CodedTranspose
    from .planning import Plan, plan
    from .simulation import Table, Work, calibrate, simulate

__version__ = "0.1.0"

__all__ = [
    "DIP",
    "IDIP",
    "LT",
    "BadCheckpoint",
    "BadFile",
    "BadInput",
    "BadStore",
    "CannotDo",
    "CannotWrite",
    "Checkpoint",
    "CheckpointWarning",
    "Closed",
    "Cluster",
    "CodedMatrix",
    "CodedTranspose",
    "Costs",
    "CyclicRepetition",
    "DenseMDS",
    "Diverged",
    "EngineUnavailable",
    "FractionalRepetition",
    "Inaccurate",
    "KofnError",
    "Late",
    "LogWarning",
    "LowRank",
    "NotDecodable",
    "NotFinite",
    "NothingYet",
    "OutOfResources",
    "OutOfSymbols",
    "Overflowed",
    "Parts",
    "Plan",
    "Polynomial",
    "ProductReport",
    "RandomGroups",
    "Raptor",
    "Report",
    "Scattered",
    "SharesLost",
    "Stalled",
    "Stop",
    "StoreWarning",
    "Sum",
    "SumCode",
    "SumReport",
    "Table",
    "TooFewWorkers",
    "TooLarge",
    "TraceWarning",
    "Uncoded",
    "UnknownWorker",
    "Work",
    "WorkerError",
    "WrongReplies",
    "calibrate",
    "connect",
    "deadline",
    "exact",
    "first",
    "fraction",
    "low_rank",
    "plan",
    "resume",
    "simulate",
    "stop",
]


if not TYPE_CHECKING:  # a checker knows them, and that there are no others
    _later = dict.fromkeys(("Table", "Work", "calibrate", "simulate"), "simulation")
    _later |= dict.fromkeys(("Plan", "plan"), "planning")
    _later |= dict.fromkeys(("CodedMatrix", "CodedTranspose"), "arrays")

    def __getattr__(name: str) -> Any:
        """These are imported when they are asked for: workers import kofn too, and need none."""
        if name in _later:
            return getattr(_imported(f".{_later[name]}", __name__), name)
        raise AttributeError(f"module 'kofn' has no attribute {name!r}")
