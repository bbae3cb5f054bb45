"""How long a round would have taken without coding, from what its workers did.

Without coding, each of the n workers that were there would have had 1/n of the rows that the result
needed, and the round would have been over when the last of them had answered.

- A worker that answered, in time or later, would have taken as long for each row as it did.
- One that was stopped would have gone on at the pace that it had in this round, or else in its last
  one. Where neither is known, it would have taken at least until it was stopped.
- One that was not asked, because it was behind, would have been asked; it would have had the pace
  of its last round.
- What a lost worker had would have been started again when it was lost, and have taken as long as
  half of the others took for theirs. That its data would have to be sent first is left out.

So where something is not known the figure errs on the side of the run without coding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from .spans import Span


class Asked(NamedTuple):
    """One of the first tasks of a round: when it was sent, what became of it (an open one ends
    now), and the seconds that its worker took for a row before, where that is known."""

    sent: float
    span: Span
    pace: float | None


@dataclass(frozen=True, slots=True)
class Uncoded:
    """Seconds of a round without coding; `at_least` where a worker's end is not known."""

    seconds: float
    at_least: bool
    restarts: int


def pace(span: Span) -> float | None:
    """Seconds that a task took for each row, as far as it came; None where nothing came."""
    whole = span.state in ("used", "late")
    rows = span.asked if whole else span.came
    lasted = (span.end if whole else span.used_until) - span.start
    return lasted / rows if rows > 0 and lasted > 0 else None


def uncoded(start: float, asked: Sequence[Asked], others: Sequence[float], used: int) -> Uncoded:
    """What a round that began at `start` would have taken without coding.

    `others`: the paces of workers that were there and were not asked. `used`: rows of the result.
    """
    need = used / (len(asked) + len(others))
    alone = [need * one for one in others]  # seconds for 1/n of the rows, by worker
    ends = list(alone)
    at_least = False
    for sent, span, before in asked:
        if span.state == "lost":
            continue
        found = pace(span) or before
        took = span.end - span.start
        if found is not None:
            alone.append(need * found)
        if span.state in ("wasted", "open"):
            at_least = at_least or found is None or (span.state == "open" and need * found < took)
            took = max(took, need * (found or 0.0)) if not span.came else need * (found or 0.0)
        elif found is not None:
            took = need * found
        ends.append(sent - start + took)
    lost = [span.end - start for _, span, _ in asked if span.state == "lost"]
    again = median(alone) if alone else 0.0
    ends += [at + again for at in lost]
    return Uncoded(max(ends), at_least or bool(lost and not alone), len(lost))
