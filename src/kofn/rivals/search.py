"""The parameters of a rival that would have been the best, by replay of recorded times."""

from __future__ import annotations

from dataclasses import dataclass

from ..checks import one_of
from ..delays import Recording
from .base import Rival, Rounds
from .masters import DSAG, BackupTasks, Hedged, Ignore, Replication, Uncoded
from .sequential import MSGC, SRSGC, GradientCode

RIVALS: dict[str, type[Rival]] = {
    rival.name: rival
    for rival in (
        Uncoded,
        Replication,
        BackupTasks,
        Hedged,
        Ignore,
        DSAG,
        GradientCode,
        SRSGC,
        MSGC,
    )
}


@dataclass(frozen=True, eq=False)
class Best:
    """A rival with the parameters that took the least time in all, and what its rounds took."""

    rival: Rival
    rounds: Rounds
    tried: int  # settings


def best(name: str, times: Recording, rounds: int | None = None, *, delay: int = 3) -> Best:
    """Try all settings of a rival's grid, up to a delay, on recorded times; the quickest wins."""
    one_of(name, "name", tuple(RIVALS))
    winner: Best | None = None
    tried = 0
    for rival in RIVALS[name].grid(times.workers):
        if rival.delay > delay:
            continue
        tried += 1
        played = rival.round_times(times, rounds)
        if winner is None or played.seconds.sum() < winner.rounds.seconds.sum():
            winner = Best(rival, played, tried)
    assert winner is not None
    return Best(winner.rival, winner.rounds, tried)
