"""What passes between master and workers of an iteration: plans one way, a few words the other."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass

from ..exchange import Progress
from ..model import RowRange

Asked = Mapping[int, tuple[int, tuple[RowRange, ...]]]  # by share: since which epoch, which rows

# Messages of a worker to the master: the first entry of a small tuple.
READY = "ready"  # it could take part, and no plan names it
ROUND = "round"  # the leader: a round is done, and how much the vector has changed
BEAT = "beat"  # nothing, for long
END = "end"  # the run is over at this round
BROKEN = "broken"  # the vector of this round is not finite


@dataclass(frozen=True)
class EpochPlan:
    """Who does which rows, from `round` on."""

    epoch: int
    round: int
    # In that round: by share the epoch in which it was last asked for more, and all its rows.
    # Shares of lost workers are among them, with the rows they had delivered.
    first: Asked
    steady: Mapping[int, tuple[RowRange, ...]]  # in every later round
    leader: int  # the share that reports, and that says when the tolerance is met
    # By share the epoch from which its holder takes part without a break: what it knew before then
    # may be out of date.
    entered: Mapping[int, int]
    # What each share did in the round before: whoever stamped that one may not have heard of the
    # plan under which others completed it, and still has to. Empty where `round` is begun anew.
    before: Asked

    def asked(self, round: int) -> Asked:
        """What each share does in one round, the one before `self.round` or later."""
        if round == self.round:
            return self.first
        if round < self.round:
            return self.before
        return {share: (self.epoch, runs) for share, runs in self.steady.items()}

    def in_flight(self, now: Progress) -> tuple[int, Asked]:
        """The first round that lacks a stamp, and what each share was asked there."""
        if not all(stamped(now, share, due, self.round) for share, (due, _) in self.first.items()):
            return self.round, self.first
        done = min(
            int(now.rounds[share]) if now.epochs[share] >= self.epoch else -1
            for share in self.steady
        )
        round = max(self.round, done) + 1
        return round, self.asked(round)

    def dumps(self) -> bytes:
        """The plan as bytes: some tens a share, whatever the length of the vector."""
        return pickle.dumps(tuple(vars(self).values()), 5)

    @staticmethod
    def loads(data: bytes) -> EpochPlan:
        """The plan that was dumped."""
        return EpochPlan(*pickle.loads(data))


def stamped(now: Progress, share: int, epoch: int, round: int) -> bool:
    """Whether a share has stamped a round for an epoch."""
    return bool(now.epochs[share] >= epoch and now.rounds[share] >= round)
