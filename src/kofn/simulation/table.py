"""What codes came to, side by side, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, stdtrit

from ..display import grid
from ..errors import CannotDo
from ..interrupts import imported
from .work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
BATCHES = 20
SURE = 0.95
FIGURES = (
    *("mean", "low", "high", "median", "p99", "p99_low", "p99_high", "total", "rounds", "work"),
    *("wasted", "covered", "exact_share", "decoding_error", "machine_seconds", "usd", "memory"),
    "problem",
)


def interval(values: Floats, counts: Floats | None = None) -> tuple[float, float]:
    """The 95 % interval of the mean, by the means of batches of rounds.

    Rounds in a row are not independent (a slow worker stays slow), batches of them nearly are. NaN
    with fewer than four rounds. `counts`: how many rounds each value stands for.
    """
    if len(values) < 4:
        return float("nan"), float("nan")
    middle, spread, batches = _spread(values, counts)
    half = float(stdtrit(batches - 1, (1 + SURE) / 2)) * np.sqrt(spread)
    return float(middle - half), float(middle + half)


def _spread(values: Floats, counts: Floats | None) -> tuple[float, float, int]:
    """The mean, the variance of it by batches, and how many batches.

    They are 20 runs of rounds, or runs of two where there are fewer than 40.
    """
    if not len(values):
        return float("nan"), float("nan"), 0
    by = np.ones(len(values)) if counts is None else counts
    middle = float(values.mean() if counts is None else by @ values / by.sum())
    batches = np.array_split(np.arange(len(values)), max(1, min(BATCHES, len(values) // 2)))
    sizes = np.array([by[some].sum() for some in batches])
    means = np.array([by[some] @ values[some] for some in batches]) / sizes
    spread = sizes / sizes.sum() @ (means - middle) ** 2 / max(1, len(means) - 1)
    return middle, float(spread), len(means)


def tail(values: Floats, part: float = 0.99, counts: Floats | None = None) -> tuple[float, float]:
    """The 95 % interval of the quantile: between two of the sorted rounds.

    How many rounds are below the quantile is binomial, for as many independent rounds as have a
    mean as sure as that of these. NaN for an end that no round reaches: of p99 the upper one with
    fewer than some 370 independent rounds. `counts`: how many rounds each value stands for.
    """
    if len(values) < 4:
        return float("nan"), float("nan")
    alone, known = values.var(ddof=1) / len(values), _spread(values, counts)[1]
    n = max(1, int(len(values) * min(1.0, alone / known) if known > 0 else len(values)))
    below = bdtr(np.arange(n + 1.0), n, part)
    low, high = np.searchsorted(below, [(1 - SURE) / 2, (1 + SURE) / 2]).tolist()
    order = np.argsort(values)
    reached = np.cumsum(np.ones(len(values)) if counts is None else counts[order])
    reached /= reached[-1]
    first = int(np.searchsorted(reached, low / n + 1e-9, side="right")) - 1
    last = int(np.searchsorted(reached, (high + 1) / n - 1e-9))
    return (
        float(values[order][max(0, first)]) if low >= 1 else float("nan"),
        float(values[order][last]) if high < n else float("nan"),
    )


@dataclass(frozen=True, eq=False)
class Row:
    """One code. Times are seconds; work is in multiples of the whole work, a round.

    `ends` are the times at which rounds ended, `seconds` how long they took. `work` counts all that
    workers did, `wasted` what of it was not needed. `memory` is the largest share of a worker, as a
    part of the data. `usd` is None where the market has no prices. `began`: when the data lay on
    the workers, and the first round began. Where only some rounds of a run were played
    (`Stage.play`), `counts` says how many rounds each of those stands for, and `took` what all
    took, or all that were done.
    """

    ends: Floats
    seconds: Floats
    covered: float
    exact_share: float
    work: float
    machine_seconds: float
    usd: float | None
    memory: float | None
    problem: str = ""  # why there are fewer rounds than were asked for
    began: float = 0.0
    decoding_error: float = 0.0
    counts: Floats | None = None
    took: float | None = None
    runs: int = 1
    effort: float = 0.0  # seconds of a core that the simulation took, by what happened in it

    @property
    def rounds(self) -> int:
        """How many were done, played or not."""
        return len(self.seconds) if self.counts is None else round(float(self.counts.sum()))

    @property
    def played(self) -> tuple[int, int]:
        """How many rounds were really played, and in how many runs."""
        return len(self.seconds), self.runs

    @property
    def mean(self) -> float:
        """Seconds of a round."""
        return _spread(self.seconds, self.counts)[0]

    @property
    def low(self) -> float:
        """The mean of very many rounds is above this, in 95 of 100 cases."""
        return interval(self.seconds, self.counts)[0]

    @property
    def high(self) -> float:
        """And below this."""
        return interval(self.seconds, self.counts)[1]

    @property
    def median(self) -> float:
        """Half of the rounds took no longer."""
        return _quantile(self, 0.5)

    @property
    def p99(self) -> float:
        """99 of 100 rounds took no longer."""
        return _quantile(self, 0.99)

    @property
    def p99_low(self) -> float:
        """As `low`, of p99."""
        return tail(self.seconds, counts=self.counts)[0]

    @property
    def p99_high(self) -> float:
        """As `high`, of p99; NaN where the rounds are too few to tell."""
        return tail(self.seconds, counts=self.counts)[1]

    @property
    def total(self) -> float:
        """Seconds of all rounds."""
        return float((_counts(self) * self.seconds).sum())

    def __str__(self) -> str:
        if not self.rounds:
            return self.problem
        low, high = self.low, self.high
        mean = f"mean {self.mean:.4g} s" + (f" ({low:.4g} to {high:.4g})" if low == low else "")
        low, high = self.p99_low, self.p99_high
        to = "or more" if high != high else f"to {high:.4g}"
        p99 = f"p99 {self.p99:.4g} s" + (f" ({low:.4g} {to})" if low == low else "")
        error = f", decoding error {self.decoding_error:.2g}" if self.exact_share < 1 else ""
        return f"{self.rounds} rounds, {mean}, {p99}, work {self.work:.3g}{error}"

    @property
    def wasted(self) -> float:
        """Work beyond what is in the results."""
        return max(0.0, self.work - self.covered)

    def summary(self) -> dict[str, Any]:
        """The figures by name."""
        figures = {name: getattr(self, name) for name in FIGURES}
        return {name: None if value != value else value for name, value in figures.items()}


def _counts(row: Row) -> Floats:
    return np.ones(len(row.seconds)) if row.counts is None else row.counts


def _quantile(row: Row, part: float) -> float:
    values = row.seconds
    if not len(values):
        return float("nan")
    if row.counts is None:
        return float(np.quantile(values, part))
    order = np.argsort(values)
    reached = np.cumsum(row.counts[order])
    return float(values[order][np.searchsorted(reached, part * reached[-1])])


def merged(rows: Sequence[Row]) -> Row:
    """Runs of one code as one row: their rounds in a row, and means of the rest."""
    if len(rows) == 1:
        return rows[0]
    seconds = np.concatenate([row.seconds for row in rows])
    usd = [row.usd for row in rows if row.usd is not None]
    count = np.array([row.rounds for row in rows], float)
    by = count / count.sum() if count.any() else np.full(len(rows), 1 / len(rows))
    covered, exact, error, work = (
        float(by @ np.array([getattr(row, name) for row in rows]))
        for name in ("covered", "exact_share", "decoding_error", "work")
    )
    return replace(
        rows[0],
        ends=np.cumsum(seconds),
        seconds=seconds,
        covered=covered,
        exact_share=exact,
        decoding_error=error,
        work=work,
        machine_seconds=float(np.mean([row.machine_seconds for row in rows])),
        usd=float(np.mean(usd)) if len(usd) == len(rows) else None,
        memory=max((row.memory for row in rows if row.memory is not None), default=None),
        problem=next((row.problem for row in rows if row.problem), ""),
        began=float(np.mean([row.began for row in rows])),
        counts=(
            None
            if all(row.counts is None for row in rows)
            else np.concatenate([_counts(row) for row in rows])
        ),
        took=None,
        runs=len(rows),
        effort=sum(row.effort for row in rows),
    )


@dataclass(frozen=True, eq=False)
class Table:
    """The codes of one simulation, by name, in the order given."""

    work: Work
    workers: int
    rows: Mapping[str, Row]
    live: tuple[tuple[float, int], ...] = field(default=())  # machines of the market over time
    left_out: Mapping[str, str] = field(default_factory=dict)  # codes, and why they are
    assumed: str = ""  # what the timings do not show, and what was assumed

    @property
    def title(self) -> str:
        """The heading: what was simulated, and what was assumed."""
        known = [self.work.kind, f"{self.workers} workers", "simulated", self.assumed]
        return f"{', '.join(part for part in known if part)}; best: {self.best}"

    @property
    def best(self) -> str:
        """The code with the most rounds, and of those the one that took the least time."""
        seconds = {name: row.seconds for name, row in self.rows.items()}
        return min(seconds, key=lambda name: (-len(seconds[name]), seconds[name].sum()))

    def against(self, name: str, other: str | None = None) -> tuple[float, float, float]:
        """How much longer a round takes than under `other` (default: the best), and the interval.

        Round by round: both met the same stragglers, so this is surer than the two means.
        """
        mine, theirs = self.rows[name].seconds, self.rows[other or self.best].seconds
        both = min(len(mine), len(theirs))
        apart = mine[:both] - theirs[:both]
        return (float(apart.mean()) if both else float("nan"), *interval(apart))

    def to_dict(self) -> dict[str, Any]:
        """All figures, as `kofn simulate --json` prints them."""
        codes = {}
        for name, row in self.rows.items():
            apart = [None if value != value else value for value in self.against(name)]
            difference = dict(zip(("slower", "slower_low", "slower_high"), apart, strict=True))
            codes[name] = {**row.summary(), **difference}
        work = asdict(self.work)
        head = {"work": work, "workers": self.workers, "assumed": self.assumed}
        return {**head, "best": self.best, "codes": codes, "left_out": dict(self.left_out)}

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each code; needs pandas."""
        try:
            pandas: Any = imported("pandas")
        except ImportError:
            raise CannotDo(
                "to_pandas needs pandas, which is not installed: pip install pandas. to_dict() "
                "has the same figures."
            ) from None
        return pandas.DataFrame.from_dict(self.to_dict()["codes"], orient="index")

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw round times, progress over time and cost; return the matplotlib Figure."""
        from .plots import draw

        return draw(self, path)

    def _repr_html_(self) -> str:
        names = ["mean", "low", "high", "p99", "p99_low", "p99_high", "total", "work", "memory"]
        names += ["exact_share", "decoding_error", "usd", "problem"]
        rows = [row.summary() for row in self.rows.values()]
        shown = [name for name in names if any(row[name] not in (None, "") for row in rows)]
        cells = zip(self.rows, ([row[name] for name in shown] for row in rows), strict=True)
        heads = ["code", *(name.replace("_", " ") for name in shown)]
        return grid(f"{self.title}; seconds", heads, ([name, *values] for name, values in cells))

    def __repr__(self) -> str:
        lines = [self.title, *(f"  {name}: {row}" for name, row in self.rows.items())]
        lines += [f"  {name} is left out: {reason}" for name, reason in self.left_out.items()]
        return "\n".join(lines)
