"""Which rounds are looked at task by task, where there are too many for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import Record


def eventful(marks: Sequence[Record]) -> set[int]:
    """Return the rounds in which workers come or go, or that raise; -1 for before the first."""
    rounds, current = set(), -1
    for record in marks:
        if record.kind == "round":
            current = record.round
        elif record.kind in ("lost", "joined", "leaving", "raised"):
            rounds.add(current)
    return rounds


def passed_over(marks: Sequence[Record], began: Sequence[int], tasks: int, most: int) -> set[int]:
    """Return the rounds of `began` that are skipped: evenly chosen, and no eventful ones.

    `marks`: the records that are not of single tasks. `tasks`: how many other records there are.
    `most`: how many records may be looked at.
    """
    if not began:
        return set()
    special = eventful(marks)
    each = max(1.0, tasks / len(began))
    room = int(max(0.0, most - len(marks)) / each)
    calm = [id for id in began if id not in special]
    room = max(0, room - (len(began) - len(calm)))
    step = -(-len(calm) // room) if room else 0
    return set(calm) - set(calm[step - 1 :: step] if step else ())
