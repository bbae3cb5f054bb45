"""The figures of a run as it stands: what pages, the terminal and metrics show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .counts import Json, brief
from .words import headline, sentences

if TYPE_CHECKING:
    from .state import RunState


def figures(state: RunState) -> Json:
    """All figures by name, as JSON; `headline` and `story` have them in sentences."""
    totals, compared, length = state.totals, state.compared, state.at(state.now)
    round, (p50, p99) = state.running, state.speed.quantiles(0.5, 0.99)
    slow = None if compared.slowest is None else state.workers.get(compared.slowest)
    out: Json = {
        "title": state.title,
        "engine": state.engine,
        "time": length,
        "closed": state.closed,
        "live": len(state.live),
        "k": state.threshold,
        "any": state.any,
        "rule": state.rule,
        "leaving": len(state.leaving),
        "round": None if round is None else [round.id, state.at(round.start), round.words],
        "rounds": totals.rounds,
        "raised": totals.raised,
        "rate": state.speed.rate(state.zero or 0.0),
        "p50": p50,
        "p99": p99,
        "lost": totals.lost,
        "joined": totals.joined,
        "used": totals.used,
        "read": totals.read,
        "wasted": totals.wasted,
        "topped_up": totals.topped_up,
        **_bytes(state),
        "eta": state.eta,
        "error_bound": state.error_bound,
        "followed": compared.rounds,
        "took": brief(compared.took),
        "without": brief(compared.without),
        "again": brief(compared.again),
        "restarts": compared.restarts,
        "at_least": compared.at_least,
        "slowest": compared.slowest,
        "slowest_died": slow is not None and slow.lost is not None,
        "price": state.price,
        "cost": None,
        "saved": None,
    }
    if state.price is not None and length > 0:
        each, worked = state.price / 3600.0, state.worked()
        out["cost"] = each * worked
        out["saved"] = each * (compared.without - compared.took) * worked / length
    out["headline"], out["story"] = headline(out), sentences(out)
    return out


def _bytes(state: RunState) -> Json:
    """Memory of live workers, together and the most of one; bytes moved, those of all that were."""
    held = [state.workers[w].usage.get("resident") for w in state.live if w in state.workers]
    known = [x for x in held if x is not None]
    moved = [x for w in state.workers.values() if (x := w.usage.get("moved")) is not None]
    return {
        "resident": sum(known) if known else None,
        "resident_most": max(known, default=None),
        "moved": sum(moved) if moved else None,
    }
