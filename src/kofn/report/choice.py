"""Which rounds are looked at task by task, where there are too many for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import Record


def passed_over(rare: Sequence[Record], began: Sequence[int], bulk: int, most: int) -> set[int]:
    """Return those of the rounds that are not looked at: of `began`, evenly, and no stirred ones.

    `rare`: the records that are not of tasks; `bulk`: how many of tasks there are beside them;
    `most`: how many may be looked at.
    """
    stirred, current = set(), -1
    for record in rare:
        if record.kind == "round":
            current = record.round
        elif record.kind in ("lost", "joined", "leaving", "raised"):
            stirred.add(current)
    if not began:
        return set()
    each = max(1.0, bulk / len(began))
    room = int(max(0.0, most - len(rare)) / each)
    calm = [id for id in began if id not in stirred]
    room = max(0, room - (len(began) - len(calm)))
    step = -(-len(calm) // room) if room else 0
    return set(calm) - set(calm[step - 1 :: step] if step else ())
