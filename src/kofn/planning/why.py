"""A plan in words: why this option, and what else is to be known."""

from __future__ import annotations

from collections.abc import Sequence

from ..delays import SpotTrace
from ..simulation import Work
from ..simulation.table import interval
from .goal import NEAR, WORTH, Goal, plain
from .options import Option
from .replays import note
from .risk import need


def why(
    work: Work, best: Option, options: Sequence[Option], goal: Goal, trace: SpotTrace | None
) -> list[str]:
    """Sentences about the option that was picked of these."""
    able = sorted((one for one in options if one.runs), key=goal.key)
    without = plain(able, goal)
    found = [_worth(best, able, without, goal)]
    if best is not able[0] and best.coded:
        top = able[0]
        more = "has more risk" if (top.risk or 0) > (best.risk or 0) else "keeps more on a worker"
        found.append(f"{top.code} on {top.workers} is better by less than {NEAR:.0%}, and {more}.")
    if goal.late(best):
        found.append(f"Nothing is done within {goal.deadline:g} s; this is the quickest.")
    if trace is not None:
        found += _market(work, best, trace)
    quicker = [o for o in options if not o.runs and o.coded and not goal.equal(best, o, WORTH)]
    quicker = [o for o in quicker if goal.key(o) < goal.key(best)]
    for one in sorted(quicker, key=goal.key)[:1]:
        less = 1 - goal.value(one) / goal.value(best)
        about = note(one.candidate) or "it is there for comparison alone (kofn.rivals)"
        found.append(f"{one.code} would be better by {less:.1%}; {about}.")
    return found


def _worth(best: Option, able: list[Option], without: Option | None, goal: Goal) -> str:
    if without is None:
        return f"{best.code} is best; nothing without a code was possible."
    coded = next((one for one in able if one.coded), None)
    if not best.coded:
        if coded is None:
            return "Do not code: nothing with a code is possible here."
        if best is not without:  # sums that are closed early
            return f"Do not code: {best.code} is enough, and no code is better by {WORTH:.0%}."
        gain = 1 - goal.value(coded) / goal.value(without)
        text = f"Do not code: the best code, {coded.code} on {coded.workers}, would be "
        if gain <= 0:
            return f"{text}{abs(gain):.1%} worse."
        return f"{text}better by {gain:.1%}; less than {WORTH:.0%} is not worth its memory."
    same = plain((o for o in able if (o.machine, o.workers) == (best.machine, best.workers)), goal)
    other = same or without
    text = f"{best.code} takes {_each(best)} s a round on {best.workers} machines; without a code "
    text += f"it is {_each(other)} s" + (f" on {other.workers}" if other is not same else "")
    if other is same:
        both = min(len(best.row.seconds), len(same.row.seconds))
        low, high = interval(same.row.seconds[:both] - best.row.seconds[:both])
        text += f", {low:.3g} to {high:.3g} s more in 95 of 100 cases" if low == low else ""
    if not goal.priced and goal.deadline is None:
        return text + "."
    unit = "machine seconds" if best.price is None else "USD"
    text += f". In all it costs {best.cost:.4g} {unit}, and without a code at best"
    text += f" {without.cost:.4g} on {without.workers} machines"
    return text + (", too late." if goal.late(without) and not goal.late(best) else ".")


def _each(option: Option) -> str:
    row = option.row
    return f"{row.seconds.mean():.4g}" if len(row.seconds) else "more than the market's"


def _market(work: Work, best: Option, trace: SpotTrace) -> list[str]:
    losses = sum(not event.added for event in trace.events if event.time > 0)
    hours = trace.seconds / 3600
    fewest = need(work, best.workers, best.candidate)
    text = f"Of {best.workers} machines {losses} are lost in {hours:.1f} hours of this market"
    risk = best.risk or 0.0
    found = [f"{text}; the chance that a run has fewer than {fewest} at some time is {risk:.0%}."]
    if best.row.problem:
        done = len(best.row.seconds)
        found.append(
            f"The market was over after {done} rounds; the figures assume that it goes on so."
        )
    return found
