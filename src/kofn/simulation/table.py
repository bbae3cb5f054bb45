"""What codes came to, side by side, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from ..display import grid
from ..errors import CannotDo
from .work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
BATCHES = 20
SURE = 0.95


def interval(values: Floats) -> tuple[float, float]:
    """Where the mean is with a probability of 0.95, by the means of batches of rounds.

    Rounds in a row are not independent (who is slow stays slow), batches of them nearly are. NaN
    with fewer than four rounds.
    """
    if len(values) < 4:
        return float("nan"), float("nan")
    means = np.array([b.mean() for b in np.array_split(values, min(BATCHES, len(values) // 2))])
    half = float(stdtrit(len(means) - 1, (1 + SURE) / 2)) * means.std(ddof=1)
    half /= np.sqrt(len(means))
    return float(values.mean() - half), float(values.mean() + half)


@dataclass(frozen=True, eq=False)
class Row:
    """One code. Times are seconds; work is in multiples of the whole work, a round.

    `ends` are the times at which rounds ended, `seconds` how long they took. `work` counts all that
    workers did, `wasted` what of it was not needed. `memory` is the largest share of a worker, as a
    part of the data. `usd` is None where the market has no prices. `began`: when the data lay on
    the workers, and the first round began.
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

    @property
    def wasted(self) -> float:
        """Work beyond what is in the results."""
        return max(0.0, self.work - self.covered)

    def summary(self) -> dict[str, Any]:
        """The figures by name."""
        some = self.seconds if len(self.seconds) else np.array([np.nan])
        low, high = interval(self.seconds)
        found = {
            "mean": float(some.mean()),
            "low": low,
            "high": high,
            "median": float(np.median(some)),
            "p99": float(np.quantile(some, 0.99)),
            "total": float(self.seconds.sum()),
            "rounds": len(self.seconds),
            "work": self.work,
            "wasted": self.wasted,
            "covered": self.covered,
            "exact_share": self.exact_share,
            "machine_seconds": self.machine_seconds,
            "usd": self.usd,
            "memory": self.memory,
            "problem": self.problem,
        }
        return {name: None if value != value else value for name, value in found.items()}


def merged(rows: Sequence[Row]) -> Row:
    """Runs of one code as one row: their rounds in a row, and means of the rest."""
    if len(rows) == 1:
        return rows[0]
    seconds = np.concatenate([row.seconds for row in rows])
    usd = [row.usd for row in rows if row.usd is not None]
    count = np.array([len(row.seconds) for row in rows], float)
    by = count / count.sum() if count.any() else np.full(len(rows), 1 / len(rows))
    covered, exact, work = (
        float(by @ np.array([getattr(row, name) for row in rows]))
        for name in ("covered", "exact_share", "work")
    )
    return replace(
        rows[0],
        ends=np.cumsum(seconds),
        seconds=seconds,
        covered=covered,
        exact_share=exact,
        work=work,
        machine_seconds=float(np.mean([row.machine_seconds for row in rows])),
        usd=float(np.mean(usd)) if len(usd) == len(rows) else None,
        memory=max((row.memory for row in rows if row.memory is not None), default=None),
        problem=next((row.problem for row in rows if row.problem), ""),
        began=float(np.mean([row.began for row in rows])),
    )


@dataclass(frozen=True, eq=False)
class Table:
    """The codes of one simulation, by name, in the order given."""

    work: Work
    workers: int
    rows: Mapping[str, Row]
    live: tuple[tuple[float, int], ...] = field(default=())  # machines of the market over time

    @property
    def best(self) -> str:
        """The code with the most rounds, and of those the one that took the least time."""
        return min(self.rows, key=lambda n: (-len(self.rows[n].seconds), self._total(n)))

    def _total(self, name: str) -> float:
        return float(self.rows[name].seconds.sum())

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
        job = asdict(self.work)
        return {"work": job, "workers": self.workers, "best": self.best, "codes": codes}

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each code; needs pandas."""
        try:
            import pandas
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
        names = ("mean", "p99", "total", "work", "memory", "exact_share", "usd", "problem")
        rows = [row.summary() for row in self.rows.values()]
        shown = [name for name in names if any(row[name] not in (None, "") for row in rows)]
        title = f"{self.work.kind}, {self.workers} workers; best: {self.best}; seconds"
        cells = zip(self.rows, ([row[name] for name in shown] for row in rows), strict=True)
        heads = ["code", *(name.replace("_", " ") for name in shown)]
        return grid(title, heads, ([name, *values] for name, values in cells))

    def __repr__(self) -> str:
        lines = [f"{self.work.kind}, {self.workers} workers; best: {self.best}"]
        for name, row in self.rows.items():
            s = row.summary()
            lines.append(
                f"  {name}: {s['rounds']} rounds, mean {s['mean']:.4g} s, p99 {s['p99']:.4g} s, "
                f"work {s['work']:.3g}"
                if s["rounds"]
                else f"  {name}: {s['problem']}"
            )
        return "\n".join(lines)
