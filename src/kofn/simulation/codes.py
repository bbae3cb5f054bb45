"""The codes that can be simulated, by kind of work and name; each plays rounds on a cluster.

A player places the data, then yields an `Outcome` for each round. It runs the real master, on
simulated workers or on real ones: with an engine that has no values the data are sizes alone.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..arrays.matrix import CodedMatrix
from ..arrays.options import Options
from ..arrays.placing import placed
from ..arrays.shares import Shares, shares_of, threshold
from ..codes import AnyKOfN
from ..errors import BadInput
from ..model import Blank
from ..rivals.masters import DSAG, BackupTasks, Hedged, Ignore, MasterRival, Replication
from ..rounds import Late
from ..sequence import DIP, IDIP, Polynomial, SequenceCode, Ticket
from ..sequence import Uncoded as UncodedSequence
from ..sequence.schemes import usual
from .calls import parse_call
from .place import Outcome, Outcomes, Place
from .sums import (
    auto_sum,
    cut_by_auto,
    cyclic,
    erasurehead,
    fractional,
    groups,
    lt,
    tandon,
    uncoded_sum,
)
from .work import ITEM, Kind, Work

Player = Callable[..., Outcomes]  # (place, **parameters)


@dataclass(frozen=True)
class Candidate:
    """A code by its name, with parameters: `Candidate.parse("mds(k=12)")`.

    player: what plays it, where that is none of CODES.
    """

    code: str
    parameters: tuple[tuple[str, Any], ...] = ()
    player: Player | None = None

    @classmethod
    def parse(cls, text: str) -> Candidate:
        """Read "name" or "name(k=12, margin=1)"."""
        name, parameters = parse_call(text)
        return cls(name, tuple(parameters.items()))

    def __str__(self) -> str:
        if self.player is not None:
            return self.code
        inner = ", ".join(f"{name}={value!r}" for name, value in self.parameters)
        return f"{self.code}({inner})" if inner else self.code

    def check(self, kind: Kind) -> Player:
        """Return what plays it; raises BadInput where there is no such code for this work."""
        if self.player is not None:
            return self.player
        known = CODES[kind]
        if self.code not in known:
            raise BadInput(
                f"a {kind} is simulated with {', '.join(known)}; got {self.code!r}. Use one of "
                f"those."
            )
        player = known[self.code]
        named = list(inspect.signature(player).parameters.values())[1:]
        given = dict(self.parameters)
        if unknown := given.keys() - {one.name for one in named}:
            raise BadInput(
                f"{self.code} takes {', '.join(one.name for one in named) or 'no parameters'}; "
                f"got {', '.join(sorted(unknown))}."
            )
        lacking = [one.name for one in named if one.default is one.empty and one.name not in given]
        if lacking:
            raise BadInput(
                f"{self.code} needs {', '.join(lacking)}; got {self}. Say {self.code}"
                f"({', '.join(f'{name}=2' for name in lacking)}), for instance."
            )
        return player

    def play(self, place: Place) -> Iterator[Outcome]:
        """Place the data; the rounds run as the outcomes are asked for."""
        return self.check(place.work.kind)(place, **dict(self.parameters))


# Products.


def products(place: Place, X: Any) -> Iterator[Outcome]:
    w = (
        np.zeros((place.work.columns, place.work.width))
        if place.work.width > 1
        else np.zeros(place.work.columns)
    )

    def rounds() -> Iterator[Outcome]:
        while True:
            X @ w
            yield place.outcome()

    return rounds()


def mds(
    place: Place, *, k: int, margin: int = 0, late: float | None = 0.0, loads: str = "measured"
) -> Iterator[Outcome]:
    """kofn's own: `cluster.encode(A, k, margin=..., late=...)`; late 0 is its default rule."""
    rule = Late() if late == 0 else None if late is None else Late(factor=float(late))
    options = Options(margin=margin, late=rule, measured_loads=loads == "measured")
    return products(place, _matrix(place, k, options))


def auto_product(place: Place) -> Iterator[Outcome]:
    """What kofn does where no k is named: `cluster.encode(A)`."""
    return products(place, _matrix(place, (place.workers + 1) // 2, Options(), left=True))


def uncoded_product(place: Place) -> Iterator[Outcome]:
    """Every worker has a block, and all must answer."""
    options = Options(late=None, measured_loads=False)
    return products(place, _matrix(place, place.workers, options))


def whole_product(place: Place, *, k: int) -> Iterator[Outcome]:
    """Every worker multiplies its whole share, the first k replies count."""
    options = Options(margin=place.workers - k, late=None, measured_loads=False)
    return products(place, _matrix(place, k, options))


def _matrix(place: Place, k: int, options: Options, left: bool = False) -> CodedMatrix:
    code = threshold(k, place.workers)
    return placed(place.cluster._driver, data_of(place), code, options, left)


def data_of(place: Place) -> Callable[[AnyKOfN], Shares]:
    """What makes the shares of the matrix, under a code."""
    A: Any = Blank(place.work.rows, place.work.columns)
    if place.values:
        A = np.random.default_rng(0).standard_normal((place.work.rows, place.work.columns))
    return partial(shares_of, A, values=place.values)


# Rivals, which place a part for each worker themselves.


def _rival(kind: type[MasterRival]) -> Player:
    def play(place: Place, **parameters: Any) -> Iterator[Outcome]:
        rival = kind(**parameters)
        rival.load(place.workers)  # whether so many can have it

        def rounds() -> Iterator[Outcome]:  # DSAG has but one round of the engine for all
            for time, covered, _ in rival.play(place.cluster, place.rounds):
                # DSAG has old gradients for what is missing: how far off they are is not known.
                error = float("nan") if kind is DSAG else 1 / covered - 1
                yield Outcome(time, covered, covered == 1.0, error if covered < 1 else 0.0)

        return rounds()

    own = list(inspect.signature(kind).parameters.values())
    first = list(inspect.signature(play).parameters.values())[:1]
    named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    play.__signature__ = inspect.Signature(first + named)  # type: ignore[attr-defined]
    play.__doc__ = kind.__doc__
    return play


MASTERS = {kind.name: kind for kind in (Replication, BackupTasks, Hedged, Ignore, DSAG)}


# Sequences.


def sequences(
    place: Place, code: SequenceCode | None, slack: float | None = None
) -> Iterator[Outcome]:
    work, stream = place.work, place.cluster.sequence(code, slack)
    shape = work.rows, work.columns, work.width
    X, Y = np.ones(shape[:2] if place.values else 0), np.ones(shape[1:] if place.values else 0)

    def submit() -> Ticket:
        return stream.submit(X, Y) if place.values else stream.submit_size(*shape)

    def rounds() -> Iterator[Outcome]:
        """The caller has jobs at hand: rounds are begun by those that come, not by a wait."""
        tickets, done = deque([submit()]), deque[Ticket]()
        while True:
            while not tickets[0].done:
                tickets.append(submit())
            done.append(tickets.popleft())
            while done and done[0]._job.decoded:  # others would have a round run first
                done.popleft().result()
            yield place.outcome()

    return rounds()


def auto_sequence(place: Place) -> Iterator[Outcome]:
    """What kofn does where no code is named: `cluster.sequence()`."""
    return sequences(place, None)


def uncoded_sequence(place: Place, *, x: int, y: int, slack: float = 0.25) -> Iterator[Outcome]:
    """One block product for each of xy workers, all of which are waited for."""
    return sequences(place, UncodedSequence(x, y), slack)


def polynomial(
    place: Place, *, x: int, y: int, z: int = 1, slack: float = 0.25
) -> Iterator[Outcome]:
    """Any xy of the workers are enough, in one round."""
    return sequences(place, Polynomial(x, y, z), slack)


def dip(
    place: Place, *, x: int, y: int, delay: int, lam: int, slack: float = 0.25
) -> Iterator[Outcome]:
    """A job is spread over delay + 1 rounds."""
    return sequences(place, DIP(x, y, delay, lam), slack)


def idip(
    place: Place, *, x: int, y: int, delay: int, N: int, W: int, slack: float = 0.25
) -> Iterator[Outcome]:
    """For at most N stragglers in any W rounds."""
    return sequences(place, IDIP(x, y, delay, N, W), slack)


CODES: Mapping[Kind, Mapping[str, Player]] = {
    "product": {
        "auto": auto_product,
        "uncoded": uncoded_product,
        "mds": mds,
        "whole": whole_product,
    },
    "gradient": {
        "auto": auto_sum,
        "uncoded": uncoded_sum,
        "fractional": fractional,
        "cyclic": cyclic,
        "tandon": tandon,
        "erasurehead": erasurehead,
        **{name: _rival(kind) for name, kind in MASTERS.items()},
    },
    "sequence": {
        "auto": auto_sequence,
        "uncoded": uncoded_sequence,
        "polynomial": polynomial,
        "dip": dip,
        "idip": idip,
    },
    "sum": {
        "auto": auto_sum,
        "uncoded": uncoded_sum,
        "fractional": fractional,
        "lt": lt,
        "groups": groups,
    },
}


def _as_rival(work: Work, candidate: Candidate) -> MasterRival | None:
    """The rival that a candidate is, if it is one."""
    if work.kind != "gradient" or candidate.code not in MASTERS:
        return None
    return MASTERS[candidate.code](**dict(candidate.parameters))


def units(work: Work, candidate: Candidate, workers: int) -> float:
    """All of the work in the units in which this code's tasks are counted."""
    if candidate.code == "auto" and work.kind == "gradient":
        return float(cut_by_auto(work, workers))
    rival = _as_rival(work, candidate)
    return work.units(workers) if rival is None else float(workers * rival.pieces)


def memory(work: Work, candidate: Candidate, workers: int, most: float) -> float | None:
    """The part of the data that a worker keeps, if it was given `most` bytes."""
    rival = _as_rival(work, candidate)
    if rival is not None:
        return rival.storage(workers)
    return most / work.data_bytes if work.data_bytes else None


def message_sizes(work: Work, candidate: Candidate, workers: int) -> tuple[float, float, float]:
    """Bytes that travel with each task, with each piece of a reply, and for each row in it."""
    if work.kind == "product":
        return 0.0, 0.0, float(ITEM * work.width)
    if work.kind in ("gradient", "sum"):
        return 0.0, float(ITEM * (work.columns if work.kind == "gradient" else work.width)), 0.0
    given = dict(candidate.parameters)
    if candidate.code == "auto":
        code = usual(workers)
        given = {"x": code.x, "y": code.y}
    x, y, z = (int(given.get(name, 1)) for name in "xyz")
    m, n, p = -(-work.rows // x), -(-work.columns // z), -(-work.width // y)
    return float(ITEM * (m * n + n * p)), float(ITEM * m * p), 0.0
