"""The codes a sequence can run under: frozen, plain numbers, each with its ledger."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from ..checks import whole_fields
from ..codes.product import Points, ProductCode
from ..errors import BadInput
from .ledger import Diagonal, Eta, Improved, Ledger, OneRound, perfect
from .models import Arbitrary, Bursts


class SequenceCode(ABC):
    """How the jobs of a sequence are cut, coded and spread over workers and rounds."""

    x: int
    y: int
    z: int = 1
    points: Points | None = None
    seed: int = 0
    delay: int  # a job that begins in round i is done by round i + delay
    asks_again: ClassVar[bool] = False  # whether a mini-task that failed is given again

    def __post_init__(self) -> None:
        _ = self.product  # says what is wrong

    @property
    def product(self) -> ProductCode:
        """The code over the blocks of one job."""
        return ProductCode(self.x, self.y, self.z, self.points, self.seed)

    @abstractmethod
    def ledger(self, slots: int, eta: Eta = perfect) -> Ledger:
        """The bookkeeping for so many workers; raises BadInput if they cannot be enough."""


@dataclass(frozen=True)
class Uncoded(SequenceCode):
    """One block product for each of xy workers, all of which are waited for: the baseline."""

    x: int
    y: int
    delay = 0

    def __post_init__(self) -> None:
        whole_fields(self, x=1, y=1)

    def ledger(self, slots: int, eta: Eta = perfect) -> Ledger:
        if self.x * self.y != slots:
            raise BadInput(
                f"Uncoded gives each worker one of x·y block products; got x={self.x}, y={self.y} "
                f"and {slots} workers. Choose x·y = {slots}."
            )
        return OneRound(self.product.k, slots, coded=False, eta=eta)


@dataclass(frozen=True)
class Polynomial(SequenceCode):
    """One coded block product for each of P workers; any k of them are enough, in one round.

    k = xy, so P - xy stragglers cost nothing. z > 1 cuts the inner dimension too: k = xyz + z - 1.
    """

    x: int
    y: int
    z: int = 1
    points: Points | None = None
    seed: int = 0
    delay = 0

    def ledger(self, slots: int, eta: Eta = perfect) -> Ledger:
        k = self.product.k
        if k > slots:
            raise BadInput(
                f"Polynomial needs {k} replies and each worker gives one; got {slots} workers. "
                f"Choose a smaller x·y, or a code with a delay: kofn.DIP."
            )
        return OneRound(k, slots, coded=True, eta=eta)


@dataclass(frozen=True)
class DIP(SequenceCode):
    """Diagonally interleaved polynomial code: a job is spread over delay + 1 rounds.

    In its last round any `lam` workers are enough for what it lacks. With xy = PW - N, lam = P and
    delay = W - 1 the load is the least there is, 1 / (P - N/W), for any pattern with at most N
    stragglers in W rounds; other patterns are waited for.

    plain: if the number of workers divides xy and z is 1, the first xy mini-tasks of
    a job are uncoded, which saves the master work. With plain=False every mini-task is
    coded, as in Algorithm 1 of Krishnan et al., 2020.
    """

    x: int
    y: int
    delay: int
    lam: int
    z: int = 1
    points: Points | None = None
    seed: int = 0
    plain: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_fields(self, delay=0, lam=1)

    def ledger(self, slots: int, eta: Eta = perfect) -> Ledger:
        if self.lam > slots:
            raise BadInput(
                f"lam of DIP is how many workers must be enough in a job's last round, 1 to the "
                f"number of workers; got lam={self.lam} and {slots} workers. Use lam <= {slots}."
            )
        plain = self.plain and self.z == 1
        return Diagonal(self.product.k, slots, self.delay, self.lam, eta, plain=plain)


@dataclass(frozen=True)
class IDIP(SequenceCode):
    """Improved DIP: made for patterns with at most N stragglers in any W consecutive rounds.

    xy must be PW - N and delay W - 1. Mini-tasks that cannot fail under the model are uncoded.
    `burst`: nobody straggles more than so many rounds in a row either. That is a restriction of our
    own; the variant for bursts of Krishnan et al., 2020 is `BurstIDIP`.
    """

    x: int
    y: int
    delay: int
    N: int
    W: int
    burst: int | None = None
    points: Points | None = None
    asks_again: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_fields(self, delay=0, N=0, W=1)
        if self.delay != self.W - 1:
            raise BadInput(
                f"delay of IDIP is W - 1: a job lives for one window of the straggler model; got "
                f"delay={self.delay}, W={self.W}. Use delay={self.W - 1}."
            )
        if self.burst is not None:
            whole_fields(self, burst=1)
            if self.burst > self.W:
                raise BadInput(
                    f"burst of IDIP is how many rounds of a window one worker may straggle "
                    f"in a row, 1 to W; got burst={self.burst}, W={self.W}. Leave it out for no "
                    f"limit."
                )

    def ledger(self, slots: int, eta: Eta = perfect) -> Ledger:
        most = slots * self.W
        if most <= self.N:
            raise BadInput(
                f"N of IDIP is below P·W, or no worker need ever deliver; got N={self.N}, "
                f"P={slots} workers, W={self.W}. Use N < {most}."
            )
        if self.x * self.y != most - self.N:
            remedy = f"Choose x·y = {most - self.N}, or N = {most - self.x * self.y}."
            if self.x * self.y > most:
                remedy = f"Choose x·y <= {most} and N = P·W - x·y."
            raise BadInput(
                f"{slots} workers surely deliver P·W - N = {most - self.N} results by a job's "
                f"deadline, and x·y must be as many; got x·y = {self.x * self.y}, N={self.N}, "
                f"W={self.W}. {remedy}"
            )
        return Improved(self.product.k, slots, Arbitrary(self.N, self.W, self.burst), eta)


@dataclass(frozen=True)
class BurstIDIP(SequenceCode):
    """IDIP for bursts: in any W rounds at most `lam` workers straggle, each within a span of B.

    So from a worker's first to its last straggle in these rounds there are at most B rounds, both
    counted. xy must be (W - 1 + B)P - B·lam, and delay W - 2 + B. Krishnan et al., 2020 describe it
    in a supplement, where `lam` is ε. Longer bursts, and more of them, are waited for.
    """

    x: int
    y: int
    delay: int
    B: int
    W: int
    lam: int
    points: Points | None = None
    asks_again: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_fields(self, delay=0, B=1, W=2, lam=0)
        if not self.B < self.W:
            raise BadInput(
                f"a burst is shorter than the window it is in, B < W; got B={self.B} and "
                f"W={self.W}. Use W >= {self.B + 1}."
            )
        if self.delay != self.W - 2 + self.B:
            raise BadInput(
                f"delay of BurstIDIP is W - 2 + B; got delay={self.delay}, W={self.W}, B={self.B}. "
                f"Use delay={self.W - 2 + self.B}."
            )

    def ledger(self, slots: int, eta: Eta = perfect) -> Ledger:
        model = Bursts(self.B, self.W, self.lam)
        if self.lam > slots:
            raise BadInput(
                f"lam of BurstIDIP is how many workers may straggle in a window, 0 to the number "
                f"of workers; got lam={self.lam} and {slots} workers. Use lam <= {slots}."
            )
        most = slots * model.life - model.lost()
        if self.x * self.y != most:
            raise BadInput(
                f"{slots} workers surely deliver (W - 1 + B)P - B·lam = {most} results by a job's "
                f"deadline, and x·y must be as many; got x·y = {self.x * self.y}. Choose x·y = "
                f"{most}."
            )
        return Improved(self.product.k, slots, model, eta)


def usual(slots: int) -> DIP:
    """The code where none is named: as many block products as workers, each once, as without one.

    What is late by the end of a round all do in the next, coded: any of them is enough for it.
    """
    return _squarest(slots, [slots])


def over_two_rounds(slots: int, stragglers: range) -> DIP:
    """DIP over two rounds, in which any of so many stragglers together cost nothing."""
    return _squarest(slots, [2 * slots - late for late in stragglers])


def _squarest(slots: int, products: Collection[int]) -> DIP:
    """DIP over two rounds, of so many products as make x and y alike: the least is sent."""

    def cut(k: int) -> int:
        return max(x for x in range(1, k + 1) if k % x == 0 and x * x <= k)

    k = max(products, key=lambda k: (cut(k) ** 2 / k, k))
    return DIP(cut(k), k // cut(k), delay=1, lam=slots)
