"""What kofn is compared with in simulation: each method by its name and parameters, replayed.

times = read_timings("aws_lambda_256workers_2022.npz")["cnn_desktop_Canada_batch2048"]
MSGC(1, 2, 27).round_times(sloped(times, 16.0)).summary()
best("gc", sloped(times, 16.0)).rival
"""

from .base import Rival, Rounds, sloped
from .bursts import Bursty
from .masters import DSAG, BackupTasks, Hedged, Ignore, Replication, Uncoded
from .search import RIVALS, Best, best
from .sequential import MSGC, SRSGC, GradientCode

__all__ = [
    "DSAG",
    "MSGC",
    "RIVALS",
    "SRSGC",
    "BackupTasks",
    "Best",
    "Bursty",
    "GradientCode",
    "Hedged",
    "Ignore",
    "Replication",
    "Rival",
    "Rounds",
    "Uncoded",
    "best",
    "sloped",
]
