"""A plan: the options that were tried, the one that was chosen, and why."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from html import escape
from os import PathLike
from typing import TYPE_CHECKING, Any

from ..choice import Choice
from ..display import figure, grid
from ..errors import BadInput
from ..rounds.stop import Stop
from ..simulation import Candidate, Row, Work
from .calls import Call, call_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAIT = 600.0  # seconds that rounds wait for machines, at least, where they may be lost
YOURS = {
    "product": "A: your matrix.",
    "gradient": "data: your rows; fn(part, x): a gradient.",
    "sequence": "Then jobs.submit(X, Y).",
    "sum": "data: your terms; fn(part, x): a value.",
}


@dataclass(frozen=True, eq=False, repr=False)
class Option:
    """A code on so many workers, and what all rounds of the work would take with it.

    `mean`: seconds of a round. `seconds`: of all, with the placing of the data. `price`: in USD;
    None where no price is known. `memory`: the largest share of a worker, as a part of the data.
    `risk`: the chance that a run lacks machines at some time; None without a market. `machine`: of
    which kind, where a market has several. `row`: the rounds that were played, which may be fewer
    than all. `short`: for how long the market lacks machines, at most. `over`: whether it ended
    before all rounds were done, from one of the moments at which runs were begun; the figures are
    scaled up then.
    """

    candidate: Candidate
    workers: int
    machine: str
    row: Row
    mean: float
    seconds: float
    machine_seconds: float
    price: float | None
    risk: float | None
    runs: bool  # whether a cluster has a call for it, or it is simulated alone
    short: float = 0.0
    over: bool = False

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
            "mean": self.mean,
            "seconds": self.seconds,
            "price": self.price,
            "machine_seconds": self.machine_seconds,
            "memory": self.memory,
            "risk": self.risk,
            "runs": self.runs,
            "rounds": len(self.row.seconds),
            "market_over": self.over,
            **{name: played[name] for name in ("low", "high", "p99", "work")},
            "exact_share": played["exact_share"],
            "covered": played["covered"],
        }

    def __repr__(self) -> str:
        on = f" of {self.machine}" if self.machine else ""
        paid = "" if self.price is None else f", {figure(self.price)} USD"
        likely = "" if self.risk is None else f", risk {self.risk:.0%}"
        took = figure(self.seconds)
        return f"<{self.code} on {self.workers} workers{on}: {took} s{paid}{likely}>"


@dataclass(frozen=True, eq=False)
class Plan(Choice):
    """How to run some work: pass it to connect, encode, parts or sequence, as `kofn.plan` made it.

    `best` is what these calls use. `options`: the last few that were compared, the best first; some
    may be quicker than `best`, where kofn cannot run them (`runs` is False). `tried`: every option,
    those that fell behind early with fewer rounds. `met`: whether `best` keeps within the risk and
    the deadline that were asked for. `why`: sentences.
    """

    work: Work
    rounds: int
    best: Option
    options: tuple[Option, ...]
    tried: tuple[Option, ...]
    settings: int  # how many there were of codes, parameters and machines
    goal: str
    met: bool
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
        """The choice as lines of Python."""
        count, wait, keep = self.arguments("connect")
        lost = "" if keep is None else f", keep={keep}, wait={wait:g}"
        start = f'with kofn.connect("local", workers={count}{lost}) as cluster:'
        note = f'# "local": this machine; others are "dask", "ray", "mpi". {YOURS[self.work.kind]}'
        return f"import kofn\n\n{note}\n{start}\n    {self._call.text}"

    @property
    def _call(self) -> Call:
        return call_of(self.work, self.best.workers, self.best.candidate)

    def arguments(self, call: str) -> tuple[Any, ...]:
        """The options of connect, encode, parts or sequence; see `Choice`."""
        if call == "connect":
            if self.best.risk is None:  # nobody is lost, as far as is known
                return self.workers, 0.0, None
            wait = max(WAIT, 2 * self.best.short)
            return self.workers, 60.0 * math.ceil(wait / 60), self.workers
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
            "met": self.met,
            "coded": self.coded,
            "best": self._figures(self.best),
            "options": [self._figures(one) for one in self.options],
            "tried": [self._figures(one) for one in self.tried],
            "settings": self.settings,
            "why": list(self.why),
            "python": self.python,
        }

    def _figures(self, option: Option) -> dict[str, Any]:
        kept = None if option.memory is None else option.memory * self.work.data_bytes
        return {**option.to_dict(), "memory_bytes": kept}

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
