"""Scenarios of a fleet: each disturbs it while the master multiplies and sums, and measures.

A scenario is told a fleet whose master is connected. Where a host is disturbed it is B; any four of
the six workers are enough. What a scenario promises it asserts; what it measures it returns.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from support import until

from .clusters import EACH, Fleet, MasterFailed

RIGHT = 1e-9  # relative to NumPy's result
STRUCK = 5  # iteration of a fit in which the master ends
CALM = 30  # operations before a disturbance
DURING = 10  # operations while it lasts
NOTICE = 75.0  # seconds in which a loss that is not healed should have been noticed
CLUSTERS_OWN = 20.0  # seconds of silence after which Dask and Ray may give up a host themselves
AGAIN = 90.0  # seconds in which a host that is back should be used again


@dataclass
class Outcome:
    """What a scenario measured; seconds."""

    error: float = 0.0  # the largest, relative to NumPy
    median: float | None = None  # of an operation before the disturbance
    worst: float | None = None  # the longest operation since
    noticed: float | None = None  # until the loss was an event; None: it was none
    again: float | None = None  # from healing until the host's workers had rows; None: not
    note: str = ""
    rounds: int = 0  # operations that were done while it lasted


@dataclass
class Run:
    """A time in which the master does one operation after another."""

    fleet: Fleet
    facts: dict[str, Any] = field(default_factory=dict)

    def until(self, done: Callable[[dict[str, Any]], object], seconds: float) -> float | None:
        return self.fleet.master.until(done, seconds)

    def outcome(self, began: float, mended: float | None, again: float | None) -> Outcome:
        """Put together what was measured of a disturbance."""
        before = [took for start, took, _ in self.facts["rounds"] if start + took < began]
        since = [operation for operation in self.facts["rounds"] if sum(operation[:2]) >= began]
        start, worst, kind = max(since, key=lambda operation: operation[1])
        lost = [at for at, kind, _ in self.facts["events"] if kind == "lost" and at >= began]
        end = time.monotonic() if mended is None else mended
        during = [1 for start, took, _ in self.facts["rounds"] if began < start + took < end]
        assert self.facts["error"] <= RIGHT
        return Outcome(
            error=self.facts["error"],
            median=statistics.median(before),
            worst=worst,
            note=f"the worst was {kind}, {start - began:.1f} s after the disturbance",
            noticed=lost[0] - began if lost else None,
            again=None if again is None or mended is None else max(0.0, again - mended),
            rounds=len(during),
        )


@contextmanager
def running(fleet: Fleet, **options: Any) -> Iterator[Run]:
    """Have the master do operations until the end of the block, some of them beforehand."""
    run = Run(fleet)
    fleet.master.status = {}
    fleet.master.send(do="rounds", **options)
    assert run.until(lambda status: status["rounds"] >= CALM, 120.0)
    yield run
    fleet.master.send()
    run.facts = fleet.master.answer()


def disturbed(
    fleet: Fleet,
    fault: Callable[[], object],
    heal: Callable[[], object] | None = None,
    lasts: float = 0.0,
    lost: int = 0,
) -> Outcome:
    """Disturb for so many seconds, and until so many are lost; heal; wait until all are used."""
    with running(fleet) as run:
        full = fleet.master.status["workers"]
        began = time.monotonic()
        fault()
        fewer = run.until(lambda status: status["used"] < full, NOTICE)
        assert fewer is not None, "nobody was left out"
        if lost:
            run.until(lambda status: status["workers"] <= full - lost, NOTICE)
        time.sleep(max(0.0, began + lasts - time.monotonic()))
        done = fleet.master.status["rounds"]  # how many there are by then is the machine's affair
        more = run.until(lambda status: status["rounds"] > done + DURING, NOTICE)
        assert more is not None, "the rounds waited for the host"
        mended = again = None
        if heal is not None:
            mended = time.monotonic()
            heal()
            mended = mended if lasts else time.monotonic()  # a start takes its time
            again = run.until(lambda status: status["used"] >= full, AGAIN)
    return run.outcome(began, mended, again)


# What is done, by name.


def all_well(fleet: Fleet) -> Outcome:
    """Products both ways, sums, a fit, and shares from a folder that all hosts see."""
    with running(fleet) as run:
        began = time.monotonic()
        run.until(lambda _: False, 2.0)
    outcome = run.outcome(began, None, None)
    fit, store = fleet.master.ask("fit"), fleet.master.ask("store", folder=str(fleet.folder))
    outcome.error = max(outcome.error, fit, store)
    assert outcome.error <= RIGHT
    return outcome


def kill_worker(fleet: Fleet) -> Outcome:
    """Kill -9 one worker of B."""
    b = fleet.hosts["B"]
    kill = partial(b.run, ["kill", "-9", fleet.pids(b)[0]])
    outcome = disturbed(fleet, kill, (lambda: None) if fleet.replaces else None, lost=1)
    assert outcome.noticed is not None
    assert not fleet.replaces or outcome.again is not None, "the replacement is not used"
    return outcome


def kill_host(fleet: Fleet) -> Outcome:
    """Kill all processes of B, then start the workers there again."""
    b = fleet.hosts["B"]
    lost = len(fleet.pids(b))
    outcome = disturbed(fleet, b.kill_all, lambda: fleet.serve(b), lost=lost)
    assert outcome.noticed is not None
    assert outcome.again is not None, "the host that was started again is not used"
    return outcome


def cut_off(fleet: Fleet, seconds: float) -> Outcome:
    """Cut B off, silently; then connect it again."""
    b = fleet.hosts["B"]
    outcome = disturbed(fleet, b.cut, b.heal, lasts=seconds)
    assert outcome.rounds >= DURING, "the rounds waited for the host"
    if seconds < CLUSTERS_OWN and (fleet.rejoins or outcome.noticed is None):
        assert outcome.again is not None, "the host that is back is not used"
    return outcome


def freeze(fleet: Fleet, seconds: float) -> Outcome:
    """Stop all processes of B; then let them go on."""
    b = fleet.hosts["B"]
    outcome = disturbed(fleet, b.freeze, b.thaw, lasts=seconds)
    assert outcome.rounds >= DURING, "the rounds waited for the host"
    if seconds < CLUSTERS_OWN:
        assert outcome.again is not None, "the host that goes on is not used"
    return outcome


def switch_off(fleet: Fleet) -> Outcome:
    """Switch B off for good, silently."""
    outcome = disturbed(fleet, fleet.hosts["B"].off, lost=EACH)
    assert outcome.rounds >= DURING, "the rounds waited for the host"
    assert outcome.noticed is not None, "the host is still counted on"
    return outcome


def told(fleet: Fleet, ahead: float) -> Outcome:
    """Have B's metadata service announce its end, and switch it off then.

    It is silent at its end. Its processes end a second later: of a machine of its own that would
    take nothing, and here it takes cores that all hosts share.
    """
    b = fleet.hosts["B"]
    with running(fleet) as run:
        full = fleet.master.status["workers"]
        with b.fuse() as cut:
            end = fleet.announce(b, ahead)
            time.sleep(max(0.0, end - time.monotonic()))
            cut()
        run.until(lambda _: False, 1.0)
        b.off()
        assert run.until(lambda status: status["workers"] <= full - EACH, NOTICE) is not None
        run.until(lambda _: False, 2.0)
    outcome = run.outcome(end, None, None)
    leaving = [at for at, kind, _ in run.facts["events"] if kind == "leaving"]
    assert len(leaving) >= EACH, "the notice has not come"
    rows = sum(rows for at, rows in run.facts["topped"] if at >= end)
    _, took, kind = next(one for one in run.facts["rounds"] if sum(one[:2]) >= end)
    usual = [t for start, t, k in run.facts["rounds"] if k == kind and start + t < leaving[0]]
    median, *_, slow = statistics.median(usual), *statistics.quantiles(usual, n=10)
    outcome.note = f"told {end - leaving[0]:.1f} s ahead; {rows} rows topped up since the end; the "
    outcome.note += f"round ({kind}) in which it went took {took / median:.2f} times the median of "
    outcome.note += f"{len(usual)} before the notice, of which a tenth took {slow / median:.2f}"
    return outcome


def add_host(fleet: Fleet) -> Outcome:
    """Add a host in mid-run."""
    with running(fleet) as run:
        full = fleet.master.status["workers"]
        host = fleet.hosts.add("D")
        began = time.monotonic()
        fleet.serve(host)
        started = time.monotonic()
        again = run.until(lambda status: status["used"] >= full + EACH, AGAIN)
    assert again is not None, "the host that was added is not used"
    return run.outcome(began, started, again)


def join(fleet: Fleet) -> Outcome:
    """Start a worker in mid-run, by `cluster.join()`."""
    full = len(fleet.signatures())
    with running(fleet, joins=1) as run:
        again = run.until(lambda status: status["used"] > full, AGAIN)
    assert again is not None, "the worker that was started is not used"
    began = run.facts["rounds"][CALM][0]
    return run.outcome(began, began, again)


def in_a_fit(fleet: Fleet) -> float:
    """Have the master fit, and save that; return the time when it is in the middle of it."""
    fleet.master.status = {}
    folder = str(fleet.folder / "checkpoints")
    fleet.master.send(do="saved_fit", folder=folder, hold=STRUCK)
    assert fleet.master.until(lambda status: status["iteration"] > STRUCK, 120.0)
    return time.monotonic()


def resumed(fleet: Fleet) -> float:
    """Start another master, which goes on with the fit; return the largest error of all it does."""
    fleet.master.close()
    fleet.connect()
    fit = fleet.master.ask("saved_fit", folder=str(fleet.folder / "checkpoints"))
    assert fit["first"] >= STRUCK, "the fit has begun anew"
    assert fit["error"] <= RIGHT
    shutil.rmtree(fleet.folder / "checkpoints")
    return max(float(fit["error"]), all_well(fleet).error)


def host_ends_run(fleet: Fleet) -> Outcome:
    """Kill all processes of B: the master ends too; started again, it goes on with its fit."""
    signed = fleet.signatures()
    began = in_a_fit(fleet)
    fleet.hosts["B"].kill_all()
    with pytest.raises(MasterFailed, match="the master has ended") as ended:
        fleet.master.answer()
    after = time.monotonic() - began
    assert "PRTE has lost communication with a remote daemon" in str(ended.value)
    fleet.master.process.wait(NOTICE)  # its exit status is 0 here, with 5.0.11
    until(lambda: not fleet.works(signed), "the end of all ranks")
    return Outcome(error=resumed(fleet), noticed=after)


def kill_master(fleet: Fleet) -> Outcome:
    """Kill -9 the master in a fit: what works for it ends, and another goes on with the fit."""
    signed = fleet.signatures()
    in_a_fit(fleet)
    assert fleet.works(signed)
    fleet.kill_master()
    began = time.monotonic()
    until(lambda: not fleet.works(signed), "the end of what worked for the killed master")
    ended = time.monotonic()
    return Outcome(error=resumed(fleet), noticed=ended - began)


@dataclass(frozen=True)
class Scenario:
    """`what` is the row's title, `short` whether `make test-all` plays it; options: of connect."""

    what: str
    play: Callable[[Fleet], Outcome]
    short: bool = False
    room: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    engines: tuple[str, ...] = ("dask", "ray", "mpi")  # those that it is for


# mpiexec has a daemon on every host, and ends all when one of them is gone.
BY_HOST = ("dask", "ray")
GIVE_UP = {"lost_after": 10.0}
SCENARIOS = {
    "well": Scenario("nothing happens", all_well, True),
    "kill-worker": Scenario("kill -9 of one worker", kill_worker, True),
    "kill-host": Scenario(
        "all processes of a host killed, then started again", kill_host, True, engines=BY_HOST
    ),
    "host-ends-run": Scenario(
        "all processes of a host killed: the run ends", host_ends_run, True, engines=("mpi",)
    ),
    "cut-5": Scenario("a host cut off for 5 s", lambda f: cut_off(f, 5.0), True),
    "cut-40": Scenario("cut off for 40 s", lambda f: cut_off(f, 40.0)),
    "cut-40-given-up": Scenario(
        "cut off for 40 s, `lost_after=10`", lambda f: cut_off(f, 40.0), options=GIVE_UP
    ),
    "cut-15-given-up": Scenario(
        "cut off for 15 s, `lost_after=10`", lambda f: cut_off(f, 15.0), options=GIVE_UP
    ),
    "freeze-5": Scenario("frozen for 5 s", lambda f: freeze(f, 5.0)),
    "freeze-40": Scenario("frozen for 40 s", lambda f: freeze(f, 40.0)),
    "off": Scenario("switched off for good", switch_off, engines=BY_HOST),
    "off-given-up": Scenario("switched off, `lost_after=10`", switch_off, options=GIVE_UP),
    "told-30": Scenario(
        'switched off 30 s after a notice, `notices="aws"`',
        lambda f: told(f, 31.0),
        options={"notices": "aws"},
    ),
    "add": Scenario("a host added", add_host, room=EACH, engines=BY_HOST),
    "join": Scenario("a worker started by `cluster.join()`", join, room=1, engines=("mpi",)),
    "kill-master": Scenario("kill -9 of the master", kill_master, True),
}
