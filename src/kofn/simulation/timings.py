"""What `timings` and `market` may be: a file, a text, or what was read or made before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from os import PathLike, fspath
from os.path import isfile  # a text may be too long for the name of a file
from typing import Any

from ..checks import number
from ..delays import (
    Delays,
    Exponential,
    ExponentialByLoad,
    Fritchman,
    Lifetimes,
    Pareto,
    PerUnit,
    Recording,
    Slowed,
    SpotTrace,
    fit,
    read_membership,
    read_timings,
)
from ..delays.models import InTwoParts
from ..errors import BadInput
from .calls import parse_call

Timings = str | PathLike[str] | Delays | Recording
Market = str | PathLike[str] | SpotTrace | Lifetimes
LONGEST = 1e100  # of longer ones a simulated clock could come to its end


def _markov(
    unit: float = 1.0, alpha: float = 5.0, enter: float = 0.05, leave: float = 0.5, seed: int = 0
) -> Delays:
    return Slowed(Fritchman(enter, leave, seed=seed), alpha, unit)


def _by_load(full: float = 1.0, rate: float = 1.0) -> Delays:
    return ExponentialByLoad(1.0, number(rate, "rate of byload", "> 0"), full)


# Made-up delays by name. A unit of work is the whole work.
MODELS: Mapping[str, Callable[..., Delays]] = {
    "perunit": PerUnit,
    "exponential": Exponential,
    "byload": _by_load,
    "pareto": Pareto,
    "markov": _markov,
}


def delays_of(
    timings: Timings,
    *,
    grows: float | None = None,
    slope: float | None = None,
    model: str | None = None,
) -> Delays:
    """Timings as a delay model, a unit of which is the whole work.

    timings: a file, "FILE:NAME" where it has several recordings, a Recording, a delay model, or the
    text of one, as "exponential(unit=10, mean=0.5)". The loads of a recording are fractions of the
    whole work. A recording without loads (or with load 1) is taken as one of workers without a
    code: each did its part of the whole work.
    grows: where a single load was recorded, the fraction of a time that grows with the load
    (default 1); several loads tell that themselves. slope: seconds of work in all, in place of what
    was recorded. model: one of kofn.delays.fit, in place of a replay.
    """
    if slope is not None:
        slope = number(slope, "slope", ">= 0", "It is seconds of the whole work on one worker.")
    if grows is not None:
        grows = number(grows, "grows", "in [0, 1]", "So much of a time grows with the load.")
    timings = read(timings)
    if not isinstance(timings, Recording):
        if slope is not None or grows is not None:
            raise BadInput(
                f"slope and grows are of recorded timings; {timings} is a model. Give it another "
                f"unit, the seconds of the whole work on one worker."
            )
        return timings
    single = len(timings.loads) == 1
    known = not single or 0 < timings.loads[0] < 1  # which part of the work was recorded
    whole = 1.0 if known else 1 / (timings.workers * (timings.loads[0] or 1.0))
    if model is not None:
        fits = fit(timings, (1.0 if grows is None else grows) if single else grows)
        if model not in fits:
            raise BadInput(f"a model is one of {', '.join(fits)}; got {model!r}.")
        return _Counted(fits[model].delays, whole) if whole != 1 else fits[model].delays
    if slope is not None:
        return timings.delays(whole, slope=slope * whole)
    if single and timings.loads[0] == 0 and grows != 0:
        raise BadInput(
            f"load 0, the only one of {timings.name}, does not show what grows with the load. "
            f"Give slope, the seconds of the whole work on one worker, or grows=0."
        )
    if single:
        return timings.delays(whole, work=1.0 if grows is None else grows)
    return timings.delays(whole, work="measured" if grows is None else grows)


def read(timings: Timings) -> Delays | Recording:
    """A recording or a model, from whatever names one."""
    if isinstance(timings, Delays):
        return timings
    if not isinstance(timings, Recording):
        text = fspath(timings)
        if not _file(text):
            return _made(text)
        recording: Recording = _named(read_timings, text, "recordings")
        timings = recording
    _countable(max(float(table.max()) for table in timings.timings), f"a time of {timings.name}")
    return timings


def _countable(value: float, name: str) -> None:
    if value > LONGEST:
        raise BadInput(f"{name} must be at most {LONGEST:g}; got {value:g}. Times are seconds.")


def assumed(timings: Delays | Recording, grows: float | None, slope: float | None) -> str:
    """A note on what a recording at one load does not show, and what was assumed."""
    if not isinstance(timings, Recording) or len(timings.loads) > 1 or slope is not None:
        return ""
    return f"one load recorded, grows={1.0 if grows is None else grows:g}"


class _Counted(InTwoParts):
    """Another model, in which so many units are one."""

    def __init__(self, delays: Delays, whole: float) -> None:
        self.delays, self.whole = delays, whole

    def timing(self, rng: Any, worker: int, round: int, cost: float) -> tuple[float, float]:
        return self.delays.timing(rng, worker, round, cost / self.whole)


def market_of(market: Market, workers: int, seed: int) -> SpotTrace:
    """A market as it looks to a user who wants so many workers."""
    if not isinstance(market, SpotTrace | Lifetimes):
        market = _named(read_membership, fspath(market), "traces")
    assert isinstance(market, SpotTrace | Lifetimes)
    if isinstance(market, SpotTrace) and not market.most:
        raise BadInput(f"{market.name} never has any machines. Name another market.")
    return market.offer(workers, seed)


def begun(market: SpotTrace | Lifetimes, workers: int, part: float, seed: int = 0) -> SpotTrace:
    """What a market offers to a run that begins after a `part` of its length.

    The run begins when so many workers are there. If they are there only long after that, it begins
    earlier in the market. Of lifetimes, each part draws others.
    """
    if isinstance(market, Lifetimes):
        return market.offer(workers, seed + round(1000 * part))
    most = max(live for _, live in market.counts())
    for at in (part, part / 2):
        rest = market.since(at * market.seconds)
        if max((live for _, live in rest.counts()), default=0) >= min(workers, most):
            offered = rest.offer(workers, seed)
            if offered.seconds >= rest.seconds / 4:
                return offered
    return market.offer(workers, seed)


def markets_of(market: Market) -> dict[str, SpotTrace | Lifetimes]:
    """A market by its kinds of machines: those of a file, or of it FILE:NAME, where * fits all."""
    if isinstance(market, SpotTrace | Lifetimes):
        return {market.name: market}
    text = fspath(market)
    path, _, name = (text, "", "") if isfile(text) else text.partition(":")
    markets = read_membership(path)
    wanted = {one: markets[one] for one in markets if fnmatchcase(one, name or "*")}
    if not wanted:
        raise BadInput(
            f"FILE:NAME names traces of the file, with * for any letters; {path} has "
            f"{', '.join(markets)}, and got {name!r}."
        )
    return wanted


def _made(text: str) -> Delays:
    name, given = parse_call(text) if "(" in text or text in MODELS else ("", {})
    if name not in MODELS:
        raise BadInput(
            f"timings are a file that is there, or one of {', '.join(MODELS)} with its numbers; "
            f"got {text!r}."
        )
    for key, value in given.items():
        known = number(value, f"{key} of {name}", ">= 0", "Seconds, factors and probabilities are.")
        _countable(known, f"{key} of {name}")
    try:
        return MODELS[name](**given)
    except TypeError as error:
        raise BadInput(f"{text!r} is no model: {error}.") from None


def _file(text: str) -> bool:
    named = "(" not in text and any(end in text for end in (".csv", ".npz"))
    return named or isfile(text) or isfile(text.partition(":")[0])


def _named(read: Callable[[str], Mapping[str, Any]], text: str, what: str) -> Any:
    path, _, name = (text, "", "") if isfile(text) else text.partition(":")
    by_name = read(path)
    if not name and len(by_name) == 1:
        return next(iter(by_name.values()))
    if name not in by_name:
        raise BadInput(
            f"{path} has {len(by_name)} {what}, and one is taken by FILE:NAME; got "
            f"{name or 'no name'!r}. Its names: {', '.join(by_name)}."
        )
    return by_name[name]
