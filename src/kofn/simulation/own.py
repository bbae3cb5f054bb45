"""What is simulated: codes by their names, and objects beside them, such as codes of your own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from .. import checks
from ..arrays.options import Options
from ..arrays.placing import placed
from ..codes import AnyKOfN, SumCode
from ..errors import BadInput
from ..rounds.stop import Stop
from ..sequence import SequenceCode
from .calls import split_calls
from .codes import CODES, Candidate, data_of, products, sequences
from .place import Outcomes, Place
from .sums import sums
from .work import Kind

Code = SumCode | AnyKOfN | SequenceCode
# What is handed to the cluster for each kind of work.
KINDS: dict[Kind, tuple[type[Code], str]] = {
    "product": (AnyKOfN, "kofn.codes.AnyKOfN, as for cluster.encode(A, code=...)"),
    "gradient": (SumCode, "kofn.SumCode, as for cluster.parts(data, code)"),
    "sequence": (SequenceCode, "a code as for cluster.sequence(code)"),
    "sum": (SumCode, "kofn.SumCode, as for cluster.parts(data, code)"),
}


@dataclass(frozen=True)
class Stopped:
    """A code of sums whose rounds a stop rule closes: sums may then be approximate.

    `weights` says what stands for missing parts, as in `parts.sum`.
    """

    code: SumCode
    stop: Stop
    weights: Literal["covered", "plain", "unbiased", "least-squares"] = "covered"

    def __repr__(self) -> str:
        weights = "" if self.weights == "covered" else f", weights={self.weights!r}"
        return f"{self.code!r}, stop={self.stop!r}{weights}"


Given = str | Code | Stopped
Codes = Given | Iterable[Given] | Mapping[str, Given]


def candidates(codes: Codes, kind: Kind) -> dict[str, Candidate]:
    """Codes by what they are called, in order; raises BadInput for what does not exist."""
    given: Iterable[Any] = [codes]
    if isinstance(codes, str):
        given = split_calls(codes)
    elif isinstance(codes, Iterable):
        given = codes.values() if isinstance(codes, Mapping) else codes
    parsed = [Candidate.parse(one) if isinstance(one, str) else own(one, kind) for one in given]
    if not parsed:
        raise BadInput(f"at least one code is simulated; a {kind} has {', '.join(CODES[kind])}.")
    for one in parsed:
        one.check(kind)
    names = list(map(str, codes if isinstance(codes, Mapping) else parsed))
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise BadInput(
            f"every code has a row of its own, by its name; {', '.join(twice)} is there more than "
            f"once. Leave the others out, or give them names: {{'one': ..., 'two': ...}}."
        )
    return dict(zip(names, parsed, strict=True))


def own(code: Code | Stopped, kind: Kind) -> Candidate:
    """A candidate of a code that is an object; it is called by its repr."""
    base, wanted = KINDS[kind]
    inner = code.code if isinstance(code, Stopped) else code
    if not isinstance(inner, base):
        raise BadInput(
            f"a {kind} is simulated with names ({', '.join(CODES[kind])}), or with objects of "
            f"{wanted}; got {code!r}. Pass one of those, in a dict if it is to have another name."
        )
    if isinstance(code, Stopped):
        play = partial(sums, code=code.code, stop=code.stop, weights=code.weights)
        return Candidate(repr(code), (), play)
    if isinstance(code, SumCode):
        return Candidate(repr(code), (), partial(sums, code=code))
    if isinstance(code, AnyKOfN):
        return Candidate(repr(code), (), partial(_coded, code=code))
    cut = (("x", code.x), ("y", code.y), ("z", code.z))
    return Candidate(repr(code), cut, lambda place, **_cut: sequences(place, code, 0.25))


def _coded(place: Place, code: AnyKOfN) -> Outcomes:
    checks.slots(code.n, place.workers)
    X = placed(place.cluster._driver, data_of(place), code, Options(), False)
    return products(place, X)
