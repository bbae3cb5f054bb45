"""What a plan holds: the options that were tried, the one that was chosen, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from os import PathLike
from typing import TYPE_CHECKING, Any

from ..choice import Choice
from ..display import grid
from ..errors import BadInput
from ..rounds.stop import Stop
from ..simulation import Candidate, Row, Work
from .calls import Call, call_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Option:
    """A code on so many workers, and what all rounds of the work would take with it.

    `seconds`: with the placing of the data. `price`: in USD; None where no price is known.
    `memory`: the largest share of a worker, as a part of the data. `risk`: the chance that a run
    falls below the threshold; None without a market. `machine`: of which kind, where a market has
    several. `row`: the rounds that were played, which may be fewer than all.
    """

    candidate: Candidate
    workers: int
    machine: str
    row: Row
    seconds: float
    machine_seconds: float
    price: float | None
    risk: float | None
    runs: bool  # whether a cluster has a call for it, or it is simulated alone

    @property
    def code(self) -> str:
        """The code with its parameters."""
        return str(self.candidate)

    @property
    def coded(self) -> bool:
        """Whether there is any redundancy in it."""
        return self.candidate.code != "uncoded"

    @property
    def memory(self) -> float | None:
        """The largest share of a worker, as a part of the data."""
        return self.row.memory

    @property
    def cost(self) -> float:
        """The price, or machine seconds where there is none."""
        return self.machine_seconds if self.price is None else self.price

    def to_dict(self) -> dict[str, Any]:
        """All figures."""
        played = self.row.summary()
        return {
            "code": self.code,
            "workers": self.workers,
            "machine": self.machine or None,
            "seconds": self.seconds,
            "price": self.price,
            "machine_seconds": self.machine_seconds,
            "memory": self.memory,
            "risk": self.risk,
            "runs": self.runs,
            **{name: played[name] for name in ("mean", "low", "high", "p99", "rounds", "work")},
            "exact_share": played["exact_share"],
            "covered": played["covered"],
        }


@dataclass(frozen=True, eq=False)
class Plan(Choice):
    """How to run some work: pass it to connect, encode, parts or sequence, as `kofn.plan` made it.

    `best` is what these calls use. `options`: the last few that were compared, the best first; some
    may be quicker than `best`, where kofn cannot run them (`runs` is False). `tried`: every option,
    those that fell behind early with fewer rounds. `why`: sentences.
    """

    work: Work
    rounds: int
    best: Option
    options: tuple[Option, ...]
    tried: tuple[Option, ...]
    settings: int  # how many there were of codes, parameters and machines
    goal: str
    why: tuple[str, ...]

    @property
    def workers(self) -> int:
        """How many machines to have."""
        return self.best.workers

    @property
    def coded(self) -> bool:
        """Whether coding is worth it."""
        return self.best.coded

    @property
    def stop(self) -> Stop | None:
        """The stop rule of sums: `parts.sum(fn, x, stop=plan.stop)`; None is the default one."""
        return self._call.stop

    @property
    def python(self) -> str:
        """The same as lines of Python."""
        start = f'with kofn.connect("local", workers={self.workers}) as cluster:'
        return f"{start}\n    {self._call.text}"

    @property
    def _call(self) -> Call:
        return call_of(self.work, self.best.workers, self.best.candidate)

    def arguments(self, call: str) -> tuple[Any, ...]:
        """The options of connect, encode, parts or sequence; see `Choice`."""
        if call == "connect":
            return (self.workers,)
        name, arguments, *_ = self._call
        if name != call:
            raise BadInput(
                f"a plan is for one kind of work; this one is for a {self.work.kind}, and got to "
                f"cluster.{call}. Pass it to cluster.{name}, or plan another kind of work."
            )
        return arguments

    def to_dict(self) -> dict[str, Any]:
        """All of it, as `kofn plan --json` prints it."""
        return {
            "work": asdict(self.work),
            "rounds": self.rounds,
            "goal": self.goal,
            "coded": self.coded,
            "best": self.best.to_dict(),
            "options": [one.to_dict() for one in self.options],
            "settings": self.settings,
            "why": list(self.why),
            "python": self.python,
        }

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw time against memory and price, where the knee is; return the matplotlib Figure."""
        from .plots import draw

        return draw(self, path)

    def _repr_html_(self) -> str:
        heads = ("", "code", "machines", "seconds", "USD", "memory", "risk")
        shown = [self.best, *(one for one in self.options[:6] if one is not self.best)]
        rows = [
            ("*" if o is self.best else "", o.code, o.workers, o.seconds, o.price, o.memory, o.risk)
            for o in shown
        ]
        why = "".join(f"<p>{escape(line)}</p>" for line in self.why)
        return f"{grid(repr(self), heads, rows)}{why}<pre>{escape(self.python)}</pre>"

    def __repr__(self) -> str:
        best = self.best
        on = f" of {best.machine}" if best.machine else ""
        return f"<plan for a {self.work.kind}: {best.code} on {best.workers} workers{on}>"
