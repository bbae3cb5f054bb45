"""A run's state in a few sentences, for people who know nothing of codes."""

from __future__ import annotations

import math

from .counts import Json

SAME = 0.05  # by which two figures may differ that are about the same


def headline(head: Json) -> str:
    """An event and what coding saved, as short as can be."""
    died = f"{_count(head['lost'], 'worker')} died" if head["lost"] else ""
    took, without = head["took"], head["without"]
    if without <= (1.0 + SAME) * took:
        nobody = "Nobody was slow" if head["closed"] else "So far nobody is slow"
        went_on = f"{died}, and the work went on. No time was lost."
        return went_on if died else f"{nobody}, and nobody has died."
    slow = f"{_slow(head)} was slow" if _waits(head) > SAME * without or not died else ""
    if died and slow and head["slowest_died"]:
        what = f"{died}, {'one of which' if head['lost'] > 1 else 'which'} was slow ({_slow(head)})"
    else:
        what = " and ".join(filter(None, (died, slow)))
    least = "at least " if head["at_least"] else ""
    share = f"{100 * (without - took) / without:.0f} %"
    saved = "Saved" if head["closed"] else "Saved so far"
    what = f"{what}; the work went on." if died else f"{what}, and was not waited for."
    what = what[:1].upper() + what[1:]
    return f"{what} {saved}: {least}{seconds(without - took)}, {share} of the time."


def sentences(head: Json) -> list[str]:
    """A run in words: what happens, what happened, and what coding saved."""
    lines = [_now(head)]
    if head["lost"] or head["joined"]:
        went_on = "; the others did their work in the same round, and nothing was started again"
        lines.append(
            f"{_changes(head['lost'], head['joined'])}"
            f"{went_on if head['lost'] and not head['raised'] else ''}."
        )
    if head["raised"]:
        lines.append(f"{_count(head['raised'], 'round')} raised an error.")
    if head["followed"]:
        lines.append(_without(head))
    if head["price"] is not None and head["cost"] is not None:
        saved = head["saved"]
        what = f"coding saved {_money(saved)}"
        if saved < 0 and head["at_least"]:
            what = "what coding saved is not known"
        elif abs(saved) <= SAME * head["cost"]:
            what = "without coding it would have been about the same"
        elif saved < 0:
            what = f"without coding it would have been {_money(-saved)} less"
        cost = _money(head["cost"])
        lines.append(f"At {head['price']:g} an hour for a worker this has cost {cost}; {what}.")
    return lines


def _now(head: Json) -> str:
    if head["closed"]:
        return f"The run is over: {_count(head['rounds'], 'round')} in {seconds(head['time'])}."
    live = f"{_count(head['live'], 'worker')} {'is' if head['live'] == 1 else 'are'} live"
    if not head["k"] or not head["live"]:
        return f"{live}."
    if not head["any"]:
        return f"{live}. A round is over when {head['rule']}." if head["rule"] else f"{live}."
    return (
        f"{live}; any {head['k']} of them are enough, because each keeps a coded part of the data."
    )


def _without(head: Json) -> str:
    took, without, restarts = head["took"], head["without"], head["restarts"]
    rounds = "The rounds"
    if head["followed"] < head["rounds"]:
        part = f"{_count(head['followed'], 'round')} of {head['rounds']:,}"
        rounds = f"{part}, those that were followed task by task,"
    same = abs(without - took) <= SAME * max(took, without)
    if same and not restarts:
        return f"{rounds} took {seconds(took)}; without coding it would have been about the same."
    length = "about as long" if same else seconds(without)
    least = "at least " if head["at_least"] else ""
    would = f"Without coding they would have taken {least}{length}"
    why = []
    if _waits(head) > SAME * without:
        why.append(f"{_slow(head)} would have been waited for ({seconds(_waits(head))})")
    if restarts:
        again = f"work would have been started again {_times(restarts)}"
        why.append(again + (f" ({seconds(head['again'])})" if head["again"] else ""))
    because = f": {', and '.join(why)}" if why else ""
    return f"{rounds} took {seconds(took)}. {would}{because}."


def _waits(head: Json) -> float:
    """Of what coding saved, what slow workers would have cost."""
    return float(head["without"] - head["again"] - head["took"])


def _slow(head: Json) -> str:
    return "now and then a worker" if head["slowest"] is None else f"worker {head['slowest']}"


def _changes(lost: int, joined: int) -> str:
    if not lost:
        return f"{_count(joined, 'worker')} joined"
    were = f"{_count(lost, 'worker')} {'was' if lost == 1 else 'were'} lost"
    return f"{were} and {joined:,} joined" if joined else were


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _money(amount: float) -> str:
    if 0 < abs(amount) < 1e-4:
        return "less than 0.0001"
    return f"{amount:,.2f}" if abs(amount) >= 1 or amount == 0 else f"{amount:.2g}"


def size(count: float) -> str:
    """A number of bytes, with three digits at most."""
    power = min(4, max(0, int(math.log10(max(count, 1)) // 3)))
    return f"{count / 1000**power:.3g} {('B', 'KB', 'MB', 'GB', 'TB')[power]}"


def seconds(length: float) -> str:
    """A length of time, with three digits at most."""
    if length >= 3600:
        return f"{length // 3600:.0f} h {length % 3600 // 60:.0f} min"
    if length >= 100:
        return f"{length // 60:.0f} min {length % 60:.0f} s"
    if length >= 1:
        return f"{length:.3g} s"
    return f"{1e3 * length:.3g} ms"
