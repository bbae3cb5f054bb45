"""What kofn chooses by itself, against every fixed choice, on every recorded trace.

Timings that were recorded are played as gradients, markets as products: the real master in
simulated time. Seconds are those of all rounds, with the placing of the data.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..costs import Costs
from ..delays import Exponential, Lifetimes, Recording, SpotTrace, read_membership, read_timings
from ..errors import BadInput
from ..planning import plan
from ..rivals import best, sloped
from ..simulation import Candidate, Stage, Work, delays_of
from ..simulation.timings import begun
from .kept import Kept
from .timing import OnStep

SLOPES = (None, 1.0, 4.0, 16.0, 64.0)  # seconds of a full batch; None: as recorded
RIVALS = ("gc", "m_sgc")
DATA = 80_000_000  # bytes of all gradients' data
MINUTE, WAIT, START_UP = 60.0, 3.0, 60.0  # of a product: work of each machine, mean wait; start-up
MOST = 24  # machines that are wanted of a market
BEGUN = (0.0, 1 / 3, 2 / 3)  # of a market: where a run begins


@dataclass(frozen=True)
class Settings:
    """How much is played. `traces`: so many of the recorded timings and of the markets."""

    rounds: int = 60
    traces: int = 1000
    slopes: tuple[float | None, ...] = SLOPES
    begun: tuple[float, ...] = BEGUN

    @property
    def progress_steps(self) -> None:
        """Nobody knows how many traces there are before they are read."""
        return None


FULL = Settings()
QUICK = Settings(rounds=12, traces=2, slopes=(None, 16.0), begun=(0.0,))


class Case(NamedTuple):
    """Something to be done under every choice: a trace by name, and where it is played."""

    name: str
    kind: str
    stages: tuple[Stage, ...]
    rounds: int

    def seconds(self, candidate: Candidate) -> float:
        """Of all rounds, from every start, with the placing of the data."""
        return sum(_total(stage, candidate, self.rounds) for stage in self.stages)


def _total(stage: Stage, candidate: Candidate, rounds: int) -> float:
    row = stage.play(candidate, rounds)
    done = len(row.seconds)
    if done == rounds:
        return row.began + float(row.ends[-1])
    assert stage.trace is not None  # nothing else ends a run early: what is left goes on so
    return row.began + (stage.trace.seconds - row.began) / max(done, 0.5) * rounds


def gradients(n: int) -> dict[str, Candidate]:
    """Fixed choices for gradients on n workers. Names are the same for every n."""
    candidates = {"uncoded": Candidate("uncoded")}
    for c in (2, 4, 8, 16, 32, 64):
        candidates[f"cyclic(c={c})"] = Candidate("cyclic", (("c", min(c, n)),))
    for c in (4, 16, 64, 256):
        held = max(d for d in range(1, n + 1) if n % d == 0 and d <= c)
        given = (("c", held), ("stream", "whole"))
        candidates[f"fractional(c={c}, whole)"] = Candidate("fractional", given)
    candidates["backup(factor=2)"] = Candidate("backup", (("factor", 2.0),))
    candidates["hedged(quantile=0.95)"] = Candidate("hedged", (("quantile", 0.95),))
    return candidates


def products(n: int) -> dict[str, Candidate]:
    """Fixed choices for products on n workers: k and the margin as parts of n."""
    candidates = {"uncoded": Candidate("uncoded")}
    for part, text in ((7 / 8, "7n/8"), (3 / 4, "3n/4"), (1 / 2, "n/2"), (1 / 4, "n/4")):
        k = max(1, math.ceil(part * n))
        margin = min(n - k, math.ceil(n / 8))
        candidates[f"mds(k={text})"] = Candidate("mds", (("k", k),))
        candidates[f"mds(k={text}, margin=n/8)"] = Candidate("mds", (("k", k), ("margin", margin)))
    return candidates


CHOICES: Mapping[str, Callable[[int], dict[str, Candidate]]] = {
    "gradient": gradients,
    "product": products,
}
AUTO = Candidate("auto")


def _played(recording: Recording, slope: float | None) -> Stage:
    delays = delays_of(recording, slope=slope)
    return Stage(Work("gradient", DATA // 800, 100), recording.workers, delays)


def files(data: Path, folder: str) -> list[Path]:
    """What a folder of the data holds; BadInput where it is not there."""
    if not (data / folder).is_dir():
        raise BadInput(f"--data must hold {folder}/; {data} does not.")
    return sorted(path for path in (data / folder).iterdir() if not path.name.startswith("."))


def recordings(data: Path) -> dict[str, Recording]:
    """All recorded timings by name."""
    paths = files(data, "straggler_traces")
    return {name: one for path in paths for name, one in read_timings(path).items()}


def timings(data: Path, settings: Settings) -> Iterator[Case]:
    """The recorded timings, as gradients."""
    for name, one in recordings(data).items():
        yield Case(name, "gradient", (_played(one, None),), settings.rounds)


def markets(data: Path, settings: Settings) -> Iterator[Case]:
    """The recorded markets, as products of a minute or so."""
    for path in files(data, "spot_traces"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one has a clock that steps back: docs/simulate.md
            traces = read_membership(path)
        for name, one in traces.items():
            stages = tuple(_offered(one, part) for part in settings.begun)
            yield Case(name, "product", stages, settings.rounds)


def _offered(market: SpotTrace | Lifetimes, part: float) -> Stage:
    n = MOST
    if isinstance(market, SpotTrace):
        n = min(MOST, market.most)
    trace = begun(market, n, part)
    work, delays = Work("product", 1_000_000, 1000), Exponential(MINUTE * n, WAIT)
    return Stage(work, n, delays, trace, Costs(start_up=START_UP))


def measure(data: Path, settings: Settings, on_step: OnStep, kept: Kept) -> dict[str, Any]:
    """Play every choice on every trace."""
    some = [*list(timings(data, settings))[: settings.traces]]
    some += [*list(markets(data, settings))[: settings.traces]]
    traces = {}
    for case in some:
        fixed = {}
        for name, candidate in CHOICES[case.kind](case.stages[0].workers).items():
            on_step(f"{case.name}, {name}")
            fixed[name] = kept(f"{case.name}|{name}", partial(case.seconds, candidate))
        on_step(f"{case.name}, auto")
        least = min(fixed, key=fixed.__getitem__)
        traces[case.name] = {
            "work": case.kind,
            "workers": case.stages[0].workers,
            "auto": kept(f"{case.name}|auto", partial(case.seconds, AUTO)),
            "best_fixed": fixed[least],
            "best_fixed_name": least,
            "fixed": fixed,
        }
    lambdas = _lambdas(data, settings, on_step, kept)
    about = {**asdict(settings), "cores": os.cpu_count()}
    return {
        "traces": traces,
        "over_all": over_all(traces),
        "lambda": lambdas,
        "settings": about,
        "stood_in": "Time is simulated, so the machine does not matter.",
    }


def over_all(traces: Mapping[str, Any]) -> dict[str, Any]:
    """Of each kind of work: all traces together, in multiples of the best fixed choice of each."""
    rows: dict[str, Any] = {}
    for kind in CHOICES:
        some = [one for one in traces.values() if one["work"] == kind]
        if not some:
            continue
        auto = [one["auto"] / one["best_fixed"] for one in some]
        names = {
            name: sum(one["fixed"][name] / one["best_fixed"] for one in some) / len(some)
            for name in some[0]["fixed"]
        }
        rows[kind] = {"auto": sum(auto) / len(auto), "worst": max(auto), "fixed": names}
    return rows


def _lambdas(
    data: Path, settings: Settings, on_step: OnStep, kept: Kept
) -> dict[str, dict[str, Any]]:
    """Against exact gradient coding and M-SGC at their best, by seconds of a full batch.

    On recorded timings, of AWS Lambda: hence the name. Where one of those is quicker, `plan` says
    what a plan picks, and what it names as better still.
    """
    entries: dict[str, dict[str, Any]] = {}
    # Those whose work can be set apart from their waits.
    some = {n: r for n, r in recordings(data).items() if len(r.loads) > 1}
    for name in list(some)[: settings.traces]:
        times = some[name]
        for slope in settings.slopes:
            key = f"{name}, {'recorded' if slope is None else f'{slope:g} s'}"
            on_step(f"{key}, auto")
            stage = _played(times, slope)
            row = kept(f"{key}|auto", partial(_row, stage, settings.rounds))
            entry: dict[str, Any] = {"auto": row["seconds"], "auto_placing": row["placing"]}
            entry["auto_memory"] = row["memory"]
            for rival in RIVALS:
                on_step(f"{key}, {rival}")
                replayed = times if slope is None else sloped(times, slope)
                play = partial(_replayed, rival, replayed, settings.rounds)
                entry[rival] = kept(f"{key}|{rival}", play)
            if row["seconds"] >= min(entry[rival]["seconds"] for rival in RIVALS):
                on_step(f"{key}, a plan")
                entry["plan"] = kept(f"{key}|plan", partial(_planned, stage, settings.rounds))
            entries[key] = entry
    return entries


def _row(stage: Stage, rounds: int) -> dict[str, Any]:
    """The rounds, the placing of the data before them, and what of the data a worker keeps."""
    row = stage.play(AUTO, rounds)
    return {"seconds": float(row.seconds.sum()), "placing": row.began, "memory": row.memory}


def _planned(stage: Stage, rounds: int) -> dict[str, Any]:
    """What a plan picks, which runs here; and the best of all that it compared."""
    made = plan(stage.work, stage.workers, stage.delays, rounds=rounds)
    first = made.options[0]
    return {"picks": made.best.code, "seconds": made.best.seconds, "names": first.code}


def _replayed(name: str, times: Recording, rounds: int) -> dict[str, Any]:
    """The same of a rival, with the settings that are best on these times."""
    chosen, n = best(name, times).rival, times.workers
    return {
        "seconds": float(chosen.round_times(times, rounds).seconds.sum()),
        "placing": Costs().transfer(n * chosen.storage(n) * DATA),
        "memory": chosen.storage(n),
        "setting": repr(chosen),
    }
