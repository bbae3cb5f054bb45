"""The worker's side: one thread that looks at one source, and reports what has changed."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import isnan

from .base import NoAnswer, NotHere, Notice, Source

_TRIES = 3  # times without an answer after which that is reported, once
_SAID = 1000  # characters of a reason that are sent
_LONGEST = 60.0  # seconds between two looks at what does not answer

Emit = Callable[[float, str, str], None]  # seconds (infinity: it stays after all), reason, place


def begin(
    code: bytes, worker: object, emit: Emit, fail: Callable[[str], None], said: Iterable[str]
) -> list[Watcher]:
    """Watch a pickled source for a worker; return the watcher, none where that cannot be."""
    try:
        watcher = Watcher(pickle.loads(code), emit, fail, said)
    except BaseException as error:
        fail(f"it cannot be unpickled there: {error!r}")
        return []
    watcher.start(worker)
    return [watcher]


class Watcher:
    """Looks at a source until it is stopped.

    `said`: places of which an earlier watcher reported a notice: this one confirms it, or takes it
    back. Errors are reported by `fail`, and do not touch the worker.
    """

    def __init__(
        self, source: Source, emit: Emit, fail: Callable[[str], None], said: Iterable[str] = ()
    ) -> None:
        self.source = source
        self._emit, self._fail = emit, fail
        self._emitted: Mapping[str, Notice | None] = dict.fromkeys(said)
        self._notices: Sequence[Notice] | None = None  # at the last look that had an answer
        self._probed = False
        self._failures = 0  # in a row
        self._troubled = False  # that has been reported
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self.run, name=f"kofn-{source.name}", daemon=True)

    def start(self, worker: object) -> None:
        """Begin, in a thread, for a worker (see Source.attach)."""
        try:
            self.source.attach(worker)
        except BaseException as error:  # sys.exit, say: it would end the worker
            self._give_up(error)
        else:
            self.thread.start()

    def stop(self) -> None:
        """Have it end, after the look that it is at."""
        self._stop.set()

    def run(self) -> None:
        """Look, report, wait, and again."""
        try:
            while not self._stop.wait(min(self.turn(), threading.TIMEOUT_MAX)):
                pass
        except BaseException as error:  # sys.exit, say: it would end the thread without a word
            if not self._stop.is_set():
                self._give_up(error)

    def turn(self) -> float:
        """Look once and report what has changed; return the seconds until the next look."""
        source, wait = self.source, self.source.every
        try:
            if not self._probed:
                source.probe()
                self._probed = True
            # Of plain types, whatever a source of the user's own returns: they travel.
            self._notices = tuple(_plain(n) for n in source.look())
            self._failures = 0
        except NoAnswer as error:
            wait = min(max(wait, 1.0) * 2.0 ** min(self._failures, 10), _LONGEST)
            self._failures += 1
            if self._failures == _TRIES and not self._troubled:
                self._troubled = True
                self._fail(f"no answer to {_TRIES} requests, and it is asked again ({error})")
        if self._notices is None:
            return wait  # nothing is known: an earlier watcher's notices stand
        now = time.time()
        standing = {n.place: n for n in self._notices if now < n.at + source.linger}
        for place in {**self._emitted, **standing}:
            notice = standing.get(place)
            if notice is None:
                self._emit(float("inf"), "it stays", place)
            elif notice != self._emitted.get(place):
                self._emit(max(0.0, notice.at - now), notice.reason, place)
        self._emitted = standing
        return min([wait, *(n.at + source.linger - now for n in standing.values())])

    def _give_up(self, error: BaseException) -> None:
        """Report it, if anybody wants to know: tasks go on."""
        if not (self.source.optional and isinstance(error, NotHere)):
            known = isinstance(error, NotHere)
            with suppress(Exception):  # the worker's connection may be at its end
                self._fail(str(error) if known else f"it failed and is not asked again: {error!r}")


def _plain(notice: Notice) -> Notice:
    """The same with floats and text, whatever it was made of. ValueError where the time is NaN."""
    given, reason, *place = notice
    at = float(given)
    if isnan(at):
        raise ValueError("the time of a notice is NaN")
    return Notice(at, str(reason)[:_SAID], *map(str, place))
