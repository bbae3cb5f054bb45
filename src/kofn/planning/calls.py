"""A candidate as the call that runs it on a cluster, and as lines of Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..codes import SumCode
from ..codes.rateless import LT, RandomGroups
from ..codes.repetition import CyclicRepetition, FractionalRepetition, Uncoded
from ..rounds import Late, stop
from ..rounds.stop import Stop
from ..sequence import DIP, IDIP, Polynomial, SequenceCode
from ..sequence import Uncoded as UncodedSequence
from ..simulation import Candidate, Work

SUMS: Mapping[str, type[SumCode]] = {
    "uncoded": Uncoded,
    "fractional": FractionalRepetition,
    "cyclic": CyclicRepetition,
    "lt": LT,
    "groups": RandomGroups,
}
SEQUENCES: Mapping[str, type[SequenceCode]] = {
    "uncoded": UncodedSequence,
    "polynomial": Polynomial,
    "dip": DIP,
    "idip": IDIP,
}


class Call(NamedTuple):
    """A method of a cluster, its options in order, the stop rule of sums, and all that as text."""

    name: str
    arguments: tuple[Any, ...]
    stop: Stop | None
    text: str


def runs(work: Work, candidate: Candidate) -> bool:
    """Whether a cluster has a call for it; some rivals are simulated alone."""
    return work.kind not in ("gradient", "sum") or candidate.code in SUMS


def call_of(work: Work, workers: int, candidate: Candidate) -> Call:
    """The call that runs a candidate; one for which `runs` holds."""
    given = dict(candidate.parameters)
    if work.kind == "product":
        return _encode(workers, candidate.code, given)
    if work.kind == "sequence":
        slack = given.pop("slack", 0.25)
        order = SEQUENCES[candidate.code](**given)
        inner = ", ".join(f"{name}={value}" for name, value in given.items())
        path = "kofn.sequence.Uncoded" if candidate.code == "uncoded" else f"kofn.{_name(order)}"
        text = f"jobs = cluster.sequence({path}({inner}), slack={slack})"
        return Call("sequence", (order, slack), None, text)
    covered = given.pop("covered", 1.0)
    code = SUMS[candidate.code](**given)
    inner = ", ".join(f"{name}={value!r}" for name, value in given.items())
    cut = "" if work.parts is None else f", parts={work.parts}"
    text = f"parts = cluster.parts(data, kofn.{_name(code)}({inner}){cut})"
    rule = None if covered >= 1 else stop.fraction(covered)
    ending = "" if rule is None else f", stop=kofn.fraction({covered:g})"
    text += f"\n    r = parts.sum(fn, x{ending})"
    return Call("parts", (code, work.parts, workers), rule, text)


def _encode(workers: int, code: str, given: dict[str, Any]) -> Call:
    k, margin, late, loads = workers, 0, None, "equal"
    if code == "whole":
        k, margin = given["k"], workers - given["k"]
    elif code == "mds":
        k, margin, loads = given["k"], given.get("margin", 0), given.get("loads", "measured")
        late = given.get("late", 0.0)
    rule = Late() if late == 0 else Late.of(late)
    shown = [f"k={k}"]
    shown += [f"margin={margin}"] if margin else []
    shown += [f"late={late}"] if late != 0 else []
    shown += [f'loads="{loads}"'] if loads != "measured" else []
    text = f"X = cluster.encode(A, {', '.join(shown)})"
    return Call("encode", (k, workers, margin, rule, loads), None, text)


def _name(code: object) -> str:
    return type(code).__name__
