"""How long a round would have taken without coding, from what its workers did.

Without coding, each of the n workers that were there would have had 1/n of the rows that the result
needed, and the round would have been over when the last of them had answered.

- A worker that answered, in time or later, would have taken as long for each row as it did. Where
  its rows came in pieces, what it took until it began with them does not depend on how many it has.
- One that was stopped would have gone on at the pace that it had in this round: it says how many
  rows it had read when it was stopped, delivered or not. Where it had read none, it would have had
  its usual pace; where that is not known, it would have taken at least until it was stopped.
- One that was not asked, because it was behind, would have been asked, and had its usual pace: if
  it had never answered until then, the first that it had later.
- What a lost worker had would have been started again when it was lost, and have taken as long as
  half of the others took for theirs. That its data would have to be sent first is left out.

So where something is not known the figure errs on the side of the run without coding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from .spans import Span

DRIFT = 1.02  # how much slower a worker's rows may be than those of its task before
# The operations for which it can be computed; see `Round.what`.
COMPARED = ("X @ w", "X.T @ z", "sum")


class Pace(NamedTuple):
    """Seconds before a worker begins, and for each row."""

    wait: float
    row: float

    def seconds(self, rows: float) -> float:
        """Seconds for so many rows."""
        return self.wait + rows * self.row


class Asked(NamedTuple):
    """One of the first tasks of a round: its worker, when it was sent, what became of it (an open
    one ends now), and the worker's usual pace, where that is known."""

    worker: int
    sent: float
    span: Span
    usual: Pace | None


@dataclass(frozen=True, slots=True)
class Uncoded:
    """Seconds of a round without coding; `at_least` where a worker's end is not known."""

    seconds: float
    at_least: bool
    restarts: int
    again: float = 0.0  # of the seconds, those that restarts would have cost
    slowest: int | None = None  # who would have been waited for, but for the restarts


@dataclass(slots=True)
class Compared:
    """All rounds that were compared, added up."""

    rounds: int = 0
    took: float = 0.0
    without: float = 0.0
    restarts: int = 0
    again: float = 0.0
    at_least: bool = False
    # By worker: seconds that rounds would have been waiting for it; -1: the others.
    waited: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, took: float, now: Uncoded, before: Uncoded | None) -> None:
        """Take in a round that took so long, in place of what was known of it before."""
        if before is None:
            self.rounds += 1
            self.took += took
        else:
            self._count(took, before, -1)
        self._count(took, now, 1)

    def _count(self, took: float, one: Uncoded, sign: int) -> None:
        self.without += sign * one.seconds
        self.restarts += sign * one.restarts
        self.again += sign * one.again
        who = -1 if one.slowest is None else one.slowest
        self.waited[who] += sign * max(0.0, one.seconds - one.again - took)

    @property
    def slowest(self) -> int | None:
        """The worker that would have been waited for most of the time, if there is one."""
        worker = max(self.waited, key=self.waited.__getitem__, default=-1)
        most = 2 * self.waited[worker] > sum(self.waited.values())
        return worker if worker >= 0 and most else None


def pace(span: Span, usual: Pace | None = None) -> Pace | None:
    """The pace of a task, as far as it came; None where nothing came.

    Where its rows came at once nobody knows how long it waited before. It has the rows of the
    `usual` pace, or quicker ones: the rest was a wait.
    """
    rows, until, whole = span.came, span.used_until, span.state in ("used", "late")
    if whole:
        rows, until = span.asked, span.end
    elif span.state == "wasted" and span.row is not None and span.came == 0:
        return Pace(span.wait or 0.0, span.row)  # it said how it was going when it was stopped
    elif span.state == "wasted" and span.read > span.came:
        rows, until = span.read, span.read_until
    lasted = until - span.start
    if rows <= 0 or lasted <= 0:
        return None
    if span.first is not None and span.first[1] < rows:
        began, some = span.first[0] - span.start, span.first[1]
        row = (lasted - began) / (rows - some)
        if 0.0 <= some * row <= began:
            return Pace(began - some * row, row)
    wait = span.wait
    if wait is None:
        wait = 0.0 if usual is None else lasted - DRIFT * rows * usual.row
    wait = min(max(wait, 0.0), lasted)
    return Pace(wait, (lasted - wait) / rows)


def uncoded(
    start: float,
    asked: Sequence[Asked],
    others: Mapping[int, Pace],
    used: int,
    behind: int = 0,
    gone: Sequence[float] = (),
) -> Uncoded:
    """The seconds that a round that began at `start` would have taken without coding.

    `others`: the paces of workers that were there and were not asked, by worker. `used`: rows of
    the result. `behind`: how many more were there and not asked, and have never answered. `gone`:
    seconds after which others that were not asked were lost.
    """
    need = used / (len(asked) + len(others) + behind + len(gone))
    alone = [one.seconds(need) for one in others.values()]  # seconds for 1/n of the rows
    ends = list(zip(alone, others, strict=True))
    at_least = behind > 0
    for worker, sent, span, usual in asked:
        if span.state == "lost":
            continue
        own, sofar = pace(span, usual), span.end - span.start
        whole = own or usual
        took = sofar if whole is None else whole.seconds(need)
        if whole is not None:
            alone.append(took)
        goes_on = span.state == "open" and span.came < need
        if goes_on or (span.state == "wasted" and own is None):
            at_least = at_least or took <= sofar
            took = max(took, sofar)
            if usual is not None and span.state == "wasted" and span.read == 0:
                took = max(took, sofar + need * usual.row)  # so far it had only waited
        ends.append((sent - start + took, worker))
    lost = [*gone, *(one.span.end - start for one in asked if one.span.state == "lost")]
    again = median(alone) if alone else 0.0
    last, slowest = max(ends, default=(0.0, None))
    longest = max([last, *(at + again for at in lost)])
    least = at_least or bool(lost and not alone)
    return Uncoded(longest, least, len(lost), longest - last, slowest)
