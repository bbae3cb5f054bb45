"""What a sum is given, looked at before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from ..codes.assignment import Assignment, SumCode
from ..errors import BadInput
from .tally import Kind

Function = Callable[[Any, Any], Any]
Slots = list[tuple[int, ...]]  # the parts of each


def parts_of_slots(code: SumCode, assigned: Assignment) -> Slots:
    """Return the parts of each slot, after a look whether they are just those that there are."""
    slots = [assigned.parts(slot) for slot in range(assigned.n)]
    named, known = {part for slot in slots for part in slot}, set(range(assigned.m))
    may_miss = hasattr(code, "symbols")  # a rateless code draws its rows
    if not named <= known or (named < known and not may_miss):
        raise BadInput(
            f"the rows of a code name each of the parts 0 to {assigned.m - 1}, and no others; "
            f"those of {type(code).__name__} leave out {sorted(known - named)[:9]} and name "
            f"{sorted(named - known)[:9]} besides. Correct its assign(), and run "
            f"kofn.testing.SumCodeChecks on it."
        )
    return slots


def check_weights(weights: Kind, code: Assignment) -> None:
    """Refuse weights that a code gives no meaning to."""
    if weights not in ("unbiased", "plain"):
        return
    slots = [code.symbols(slot) for slot in range(code.n)]
    if weights == "unbiased" and any(len(slot) > 1 for slot in slots):
        raise BadInput(
            "weights='unbiased' divides by the chance that a part is among those of workers "
            "that have finished; with stream='parts' half-done work counts too, and nobody "
            "knows its chance. Use a repetition code with stream='whole', or "
            "weights='covered'."
        )
    if any(row.coefficients is not None for slot in slots for row in slot):
        raise BadInput(
            f"weights={weights!r} adds up what workers say; with this code they say "
            f"combinations of their parts. Use weights='covered' or 'least-squares'."
        )
    if code.copies is None and (weights == "unbiased" or not code.disjoint):
        raise BadInput(
            f"weights={weights!r} counts every part as often as the others; with this code some "
            f"are in more of what workers say than others. Use weights='covered' or "
            f"'least-squares'."
        )


def takes_two(fn: Function) -> None:
    """Refuse a function that cannot be called as fn(part, x)."""
    try:
        known = signature(fn)
    except (TypeError, ValueError):
        return  # of some built-in functions nobody knows
    try:
        known.bind(None, None)
    except TypeError as error:
        raise BadInput(
            f"fn is called as fn(part, x); {getattr(fn, '__name__', fn)}{known} cannot be: "
            f"{error}. Let it take both, also where it uses no x; what else it needs goes into x, "
            f"or is bound with functools.partial."
        ) from None
