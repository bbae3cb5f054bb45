"""A plan in words: why this option, and what else is to be known."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

from ..delays import SpotTrace
from ..display import figure
from ..simulation import Work
from ..simulation.table import interval
from .goal import NEAR, WORTH, Goal, plain
from .options import Option
from .replays import note
from .risk import need

SAFER = 0.05  # a risk that is smaller by this is worth a sentence


def why(
    work: Work, best: Option, options: Sequence[Option], goal: Goal, trace: SpotTrace | None
) -> list[str]:
    """Sentences about the option that was picked of these."""
    able = sorted((one for one in options if one.runs), key=goal.key)
    without = plain(able, goal)
    lines = []
    if goal.risky(best):
        lines.append(f"Nothing has a risk of {goal.risk:.3g} or less; this has the least.")
    elif goal.late(best):
        lines.append(f"Nothing is done within {goal.deadline:g} s; this is the quickest.")
    lines.append(_worth(best, able, without, goal))
    if best is not able[0] and best.coded:
        top = able[0]
        more = "has more risk" if (top.risk or 0) > (best.risk or 0) else "keeps more on a worker"
        lines.append(f"{top.code} on {top.workers} is better by less than {NEAR:.0%}, and {more}.")
    if trace is not None:
        lines += [*_market(work, best, trace), *_safer(best, able, goal)]
    over = [one for one in dict.fromkeys((best, without)) if one is not None and one.over]
    lines += [
        f"The market ends before all rounds are done with {one.code} on {one.workers} machines; "
        f"its figures assume that it goes on so."
        for one in over
    ]
    quicker = [o for o in options if not o.runs and o.coded and not goal.equal(best, o, WORTH)]
    quicker = [o for o in quicker if goal.key(o) < goal.key(best)]
    for one in sorted(quicker, key=goal.key)[:1]:
        less = 1 - goal.value(one) / goal.value(best)
        about = note(one.candidate) or "it is there for comparison alone (kofn.rivals)"
        lines.append(f"{one.code} would be better by {less:.1%}; {about}.")
    return lines


def played(option: Option, rounds: int) -> str:
    """How much of a run was played."""
    count, starts = option.row.played
    where = f" from each of {starts} moments of the market" if starts > 1 else ""
    if option.row.problem or count >= rounds * starts:
        return f"All rounds of {option.code} were played{where}."
    each = round(count / starts)
    return (
        f"Of the {rounds} rounds {each} were played{where}, spread over the whole run; others take "
        f"as long as those next to them."
    )


def _worth(best: Option, able: list[Option], without: Option | None, goal: Goal) -> str:
    if without is None:
        return f"{best.code} is best; nothing without a code was possible."
    coded = next((one for one in able if one.coded), None)
    if not best.coded:
        if coded is None:
            return "Do not code: nothing with a code is possible here."
        if best is not without:  # sums that are closed early
            return f"Do not code: {best.code} is enough, and no code is better by {WORTH:.0%}."
        value = goal.value(without)
        gain = 1 - goal.value(coded) / value if value else 0.0  # where all is for nothing
        text = f"Do not code: the best code, {coded.code} on {coded.workers}, would be "
        if gain <= 0:
            return f"{text}{abs(gain):.1%} worse."
        return f"{text}better by {gain:.1%}; less than {WORTH:.0%} is not worth its memory."
    same = plain((o for o in able if (o.machine, o.workers) == (best.machine, best.workers)), goal)
    other = same or without
    text = f"{best.code} takes {_each(best)} s a round on {best.workers} machines; without a code "
    text += f"it is {_each(other)} s" + (f" on {other.workers}" if other is not same else "")
    if other is same:
        text += _surely(best, same)
    if not goal.priced and goal.deadline is None:
        return text + "."
    unit = "machine seconds" if best.price is None else "USD"
    text += f". In all it takes {figure(best.seconds)} s and {figure(best.cost)} {unit}. The best "
    text += f"without a code, on {without.workers} machines, takes {figure(without.seconds)} s and "
    text += f"{figure(without.cost)} {unit}"
    return text + (", too late." if goal.late(without) and not goal.late(best) else ".")


def _surely(best: Option, other: Option) -> str:
    """How much longer the other one takes, and how sure that is."""
    one, two = best.row, other.row
    if len(one.seconds) == len(two.seconds) == one.rounds:
        low, high = interval(two.seconds - one.seconds)  # round by round: the same delays
    else:
        ends = [interval(row.seconds, row.counts) for row in (one, two)]
        half = hypot(*((high - low) / 2 for low, high in ends))
        low, high = (other.mean - best.mean + sign * half for sign in (-1, 1))
    if low != low:
        return ""
    if low > 0:
        return f" (in 95 of 100 cases {figure(low, '.3g')} to {figure(high, '.3g')} s more)"
    return " (how large the difference is, is not sure: a few long rounds make it)"


def _each(option: Option) -> str:
    return figure(option.mean) if len(option.row.seconds) else "more than the market's"


def _market(work: Work, best: Option, trace: SpotTrace) -> list[str]:
    losses = sum(not event.added for event in trace.events if event.time > 0)
    hours = trace.seconds / 3600
    text = f"Of {best.workers} machines {losses} are lost in {hours:.3g} hours of this market. "
    fewest = need(best.workers, best.candidate)
    lack = f"has fewer than {fewest} machines" if fewest > 1 else "has no machine"
    if best.candidate.code in ("fractional", "cyclic"):
        lack = "loses all holders of a part at once"
    text += f"The chance that a run {lack} at some time is {best.risk or 0.0:.0%}"
    if not best.risk:
        return [f"{text}."]
    return [f"{text}. It then waits for machines; the figures have these waits in them."]


def _safer(best: Option, able: Sequence[Option], goal: Goal) -> list[str]:
    """A sentence on what less risk costs."""
    had = best.risk or 0.0
    less = [one for one in able if (one.risk or 0.0) <= had - SAFER and len(one.row.seconds)]
    if had < SAFER or not less:
        return []
    least = max(SAFER, min(one.risk or 0.0 for one in less))
    one = min((one for one in less if (one.risk or 0.0) <= least), key=goal.key)
    unit = "machine seconds" if one.price is None else "USD"
    text = f"Safer is {one.code} on {one.workers} machines, with a risk of {one.risk or 0.0:.0%}: "
    text += f"{_change(one.seconds, best.seconds)} time, {_change(one.cost, best.cost)} {unit}"
    if one.memory is not None and best.memory:
        text += f", and {one.memory:.1%} of the data on a worker in place of {best.memory:.1%}"
    return [f"{text}."]


def _change(value: float, other: float) -> str:
    if not other:
        return "as much"
    apart = value / other - 1
    return f"{abs(apart):.1%} {'more' if apart >= 0 else 'less'}"
