"""What is simulated: codes by their names, and objects beside them, such as codes of your own."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from .. import checks
from ..arrays.options import Options
from ..arrays.placing import placed
from ..codes import AnyKOfN, SumCode
from ..errors import BadInput
from ..sequence import SequenceCode
from .calls import split_calls
from .codes import CODES, Candidate, Outcomes, Place, data_of, products, sequences, sums
from .work import Kind

Code = SumCode | AnyKOfN | SequenceCode
# What is handed to the cluster for each kind of work.
KINDS: dict[Kind, tuple[type[Code], str]] = {
    "product": (AnyKOfN, "kofn.codes.AnyKOfN, as for cluster.encode(A, code=...)"),
    "gradient": (SumCode, "kofn.SumCode, as for cluster.parts(data, code)"),
    "sequence": (SequenceCode, "a code as for cluster.sequence(code)"),
    "sum": (SumCode, "kofn.SumCode, as for cluster.parts(data, code)"),
}
Given = str | Candidate | Code


def candidates(codes: Given | Iterable[Given], kind: Kind) -> dict[str, Candidate]:
    """Codes by what they are called, in order; raises BadInput for what does not exist."""
    given: list[Given] = [codes]  # type: ignore[list-item] # the next lines take it apart
    if isinstance(codes, str):
        given = [*split_calls(codes)]
    elif isinstance(codes, Iterable):
        given = [*codes]
    found = []
    for one in given:
        if isinstance(one, Candidate):
            found.append(one)
        else:
            found.append(Candidate.parse(one) if isinstance(one, str) else own(one, kind))
    if not found:
        raise BadInput(f"at least one code is simulated; a {kind} has {', '.join(CODES[kind])}.")
    for one in found:
        one.check(kind)
    return {str(one): one for one in found}


def own(code: Code, kind: Kind) -> Candidate:
    """A candidate of a code that is an object; it is called by its repr."""
    base, wanted = KINDS[kind]
    if not isinstance(code, base):
        raise BadInput(
            f"a {kind} is simulated with names ({', '.join(CODES[kind])}), or with objects of "
            f"{wanted}; got {code!r}. Pass one of those."
        )
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
