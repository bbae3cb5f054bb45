"""One run of chaos: two threads at work, strikes from outside, a watch for hangs, and for leaks."""

from __future__ import annotations

import faulthandler
import os
import random
import shlex
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..cluster import Cluster, connect
from ..engines.known import find
from ..errors import KofnError
from .leaks import Footprint, grown, left
from .strikes import KINDS, LOST_AFTER, Interrupts, Striker
from .tally import Tally, Wrong, both_of
from .work import Bench

HANG = 300.0  # seconds without an operation's end: starting a worker of Ray may take a minute
LAST = 60  # records of the log that are shown of a hang
LIMIT = 60.0  # seconds of silence: longer than anything here is frozen for
WAIT = 60.0  # seconds that rounds wait for workers to join
OTHERS_OWN = 16  # descriptors and threads that Ray, Dask and a page keep for themselves
Show = Callable[[float, dict[str, int]], None]


@dataclass(frozen=True)
class Settings:
    """What `kofn chaos` was asked for."""

    engine: str = "local"
    workers: int | None = 6
    minutes: float = 1.0
    seed: int = 0
    only: tuple[str, ...] = KINDS
    address: str | None = None

    @property
    def command(self) -> str:
        """The command that repeats it."""
        words = ["kofn", "chaos", "--engine", self.engine, "--seed", str(self.seed)]
        words += ["--minutes", f"{self.minutes:g}"]
        words += ["--workers", str(self.workers)] if self.workers is not None else []
        words += ["--address", self.address] if self.address is not None else []
        only = self.only if set(self.only) != set(KINDS) else ()
        return shlex.join([*words, *(word for kind in only for word in ("--only", kind))])


class ChaosFailed(KofnError):
    """The first thing that went wrong: `problem`, and the `command` that repeats it."""

    def __init__(self, problem: str, command: str) -> None:
        self.problem, self.command = problem, command
        super().__init__(problem, command)

    def __str__(self) -> str:
        return (
            f"under chaos every result is right, nothing hangs and nothing is left; {self.problem} "
            f"To repeat the operations, not the moments: {self.command}"
        )


def run(
    settings: Settings,
    show: Show,
    log: Path | None = None,
    watch: Callable[[Cluster], bool] = lambda cluster: False,
) -> dict[str, Any]:
    """Run until the time is over; raise ChaosFailed at the first thing that is wrong.

    `log`: where the event log is written. `watch` may show the cluster on a page, and then says so.
    """
    began, before = time.monotonic(), Footprint.now()
    cluster = _open(settings, log)
    try:
        page = watch(cluster)
        with tempfile.TemporaryDirectory(prefix="kofn-") as folder:
            chaos = _Chaos(cluster, settings, show, Path(folder))
            facts = chaos.run(60 * settings.minutes)
    finally:
        cluster.close()
    seen = chaos.striker.seen if settings.address is None else ()
    spare = 0 if settings.engine in ("local", "virtual") and not page else OTHERS_OWN
    if problem := left(seen, before, spare):
        raise ChaosFailed(f"the cluster is closed, and {problem}.", settings.command)
    footprints = {"before": before, **facts.pop("footprints"), "after": Footprint.now()}
    return {
        "command": settings.command,
        "seed": settings.seed,
        **facts,
        "seconds": time.monotonic() - began,
        "footprints": {when: asdict(footprint) for when, footprint in footprints.items()},
    }


def _open(settings: Settings, log: Path | None) -> Cluster:
    given = () if settings.workers is None else (settings.workers,)
    more = {} if settings.address is None else {"address": settings.address}
    engine = find(settings.engine)(*given, **more)
    keep = len(engine.workers) if engine.capabilities.can_join else None
    return connect(engine, wait=WAIT, limit=LIMIT, lost_after=LOST_AFTER, keep=keep, log=log)


class _Chaos:
    """A cluster under chaos."""

    def __init__(self, cluster: Cluster, settings: Settings, show: Show, folder: Path) -> None:
        self._cluster, self._settings, self._show = cluster, settings, show
        self._workers, kinds = len(cluster.workers), settings.only
        # Simulated workers run in the thread that asks: one is enough.
        threads = 1 if cluster.engine.capabilities.virtual_time else 2
        self._benches = [
            Bench(cluster, self._workers, (settings.seed, i), kinds, folder / str(i))
            for i in range(threads)
        ]
        dice = random.Random(f"strikes {settings.seed}")
        self.striker = Striker(cluster, self._workers, kinds, dice)
        self._over, self._problem = threading.Event(), ""

    def run(self, seconds: float) -> dict[str, Any]:
        """Work and be struck for so long, then work in peace; return what happened."""
        watch = threading.Thread(target=self._watch, name="kofn-chaos-watch", daemon=True)
        watch.start()
        try:
            calm = self._calm()
            self._strike(time.monotonic() + seconds)
            self._cluster.wait_for(self._workers, WAIT)
            again = self._calm()
        except ChaosFailed:
            raise
        except Exception:
            raise self._failed(self._benches[0]) from None
        finally:
            self._over.set()
            watch.join()
        started = len(self.striker.seen) if self._settings.engine == "mpi" else 0
        if problem := grown(calm, again, len(self._cluster.log), started):
            raise ChaosFailed(f"the master has {problem}.", self._settings.command)
        tally = self._tally()
        return {
            **self._counts(),
            "checked": tally.checked,
            "worst": tally.worst,
            "operations": dict(sorted(tally.operations.items())),
            "interrupted": dict(sorted(tally.interrupted.items())),
            "refused": dict(tally.refused),
            "processes": len(self.striker.seen),
            "footprints": {"calm": calm, "calm_again": again},
        }

    def _calm(self) -> Footprint:
        """Do all there is once, in peace, and look at what is held then."""
        for bench in self._benches:
            bench.run = bench.undisturbed
            bench.each()
        return Footprint.now()

    def _strike(self, end: float) -> None:
        main, *others = self._benches
        threads = [threading.Thread(target=self._work, args=(b,), daemon=True) for b in others]
        struck = Interrupts(main) if "interrupts" in self._settings.only else None
        main.run = struck.run if struck else main.undisturbed
        self._stop = threading.Event()
        try:
            with self.striker:
                for thread in threads:
                    thread.start()
                while (now := time.monotonic()) < end and not (struck and struck.stopped):
                    main.step()
                    self._show(end - now, self._counts())
                    if self._problem:
                        raise ChaosFailed(self._problem, self._settings.command)
                    if (error := self.striker.problem) is not None:
                        raise error
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()  # a hang is found by `_watch`
            if struck:
                struck.close()
        if self._problem:
            raise ChaosFailed(self._problem, self._settings.command)

    def _work(self, bench: Bench) -> None:
        """What another thread does."""
        try:
            while not self._stop.is_set():
                bench.step()
        except Exception:
            if not self._stop.is_set():
                self._problem = self._failed(bench).problem

    def _failed(self, bench: Bench) -> ChaosFailed:
        """One line on the exception that is being handled."""
        error = sys.exception()
        traceback.print_exc()
        what = "" if isinstance(error, Wrong) else f"{bench.doing} raised {type(error).__name__}: "
        return ChaosFailed(f"{what}{error}".rstrip(".") + ".", self._settings.command)

    def _tally(self) -> Tally:
        return sum((bench.tally for bench in self._benches), Tally())

    def _counts(self) -> dict[str, int]:
        """What is shown while it runs."""
        tally = self._tally()
        counts = both_of(self.striker.counts, tally.counts)
        names = ("kills", "freezes", "joins", "notices", "killed for memory", "out of memory")
        return {
            "work": sum(tally.operations.values()),
            "interrupts": sum(tally.interrupted.values()),
            **{name: counts[name] for name in (*names, "raised")},
        }

    def _watch(self) -> None:
        """End the process where nothing ends any more: nobody could end what hangs."""
        before = -1
        while not self._over.wait(HANG):
            ended = sum(self._tally().operations.values())
            if ended == before:
                doing = " and ".join(bench.doing for bench in self._benches)
                faulthandler.dump_traceback(all_threads=True)
                driver = self._cluster._driver
                print(f"live and keeping: {driver.roster.kept}", file=sys.stderr)
                print(f"owing since: {driver.roster.debts.since}", file=sys.stderr)
                for record in list(driver.log)[-LAST:]:
                    print(record, file=sys.stderr)
                problem = f"nothing has ended for {HANG:.0f} s; it is at {doing}."
                print(f"kofn: {ChaosFailed(problem, self._settings.command)}", file=sys.stderr)
                os._exit(3)
            before = ended
