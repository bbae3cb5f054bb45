"""What the rounds of a sequence did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round of a sequence; seconds are the engine's clock."""

    round: int  # from 1
    began: int | None  # the job that began in it
    done: tuple[int, ...]  # jobs that were done in it
    mini_tasks: int  # for each worker, trivial ones left out
    load: float  # multiply-adds for each worker
    seconds: float  # from the end of the round before, or from the call that began it
    fastest: float | None  # seconds in which the first worker finished
    # Slots that had not finished after (1 + slack) times the fastest one's time, nor when the
    # round ended; empty ones among them. Who was merely not needed is none.
    stragglers: tuple[int, ...]
    late: tuple[int, ...]  # workers that had not answered when the round ended (see kofn.Report)
    waited: bool  # beyond (1 + slack) times the fastest, because the code had to
    # Whether the stragglers were a pattern that the code is made for: it was enough by itself, with
    # nobody waited for, nothing topped up, and no more lost than it can do without.
    conforms: bool
    topped_up: int  # mini-tasks asked for beyond the code's own
    lost: tuple[int, ...]  # workers, in this round or since the one before
    joined: tuple[int, ...]  # workers that took a slot, likewise
    held: float  # seconds in which no worker had work, because the master had none ready
    tuned: tuple[str, ...] = ()  # what was changed before the round, of what was left to kofn; why


@dataclass(frozen=True, slots=True)
class SequenceReport:
    """What a sequence has done so far."""

    rounds: Sequence[RoundReport]
    jobs: int  # done
    overdue: tuple[int, ...]  # jobs that missed their deadline
    eta: float | None  # the largest of all decodes; None where values are skipped
    error_bound: float | None  # relative, the largest
    encode_seconds: float  # of the master, for all jobs; much of it while workers are at work
    decode_seconds: float  # likewise, for the results that are there

    @property
    def seconds(self) -> float:
        """Of all rounds, what the master held up before each of them included."""
        return sum(round.seconds for round in self.rounds)

    @property
    def held_share(self) -> float:
        """The share of that time in which no worker had work because of the master."""
        return sum(round.held for round in self.rounds) / max(self.seconds, 1e-300)

    @property
    def late(self) -> tuple[int, ...]:
        """Workers that were late in any round (see kofn.Report)."""
        return tuple(sorted({worker for round in self.rounds for worker in round.late}))

    @property
    def tuned(self) -> tuple[str, ...]:
        """What was changed in any round, of what was left to kofn, and why."""
        return tuple(change for round in self.rounds for change in round.tuned)

    @property
    def conforms(self) -> bool:
        """Whether every round's pattern was one that the code is made for."""
        return all(round.conforms for round in self.rounds)

    @property
    def waited(self) -> int:
        """Rounds that had to wait for stragglers."""
        return sum(round.waited for round in self.rounds)
