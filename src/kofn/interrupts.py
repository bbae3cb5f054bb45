"""Ctrl-C and other signals whose handlers raise: held back while the master's books are open.

Python runs a signal's handler in the main thread, between any two of its steps, and what the
handler raises (KeyboardInterrupt, or the exception of a user's own timer) comes out there: between
a send and the note that it was sent. Nobody can write code that is right under that, so no handler
runs there. Whoever keeps books does so under `held` (every `RoundDriver.lock` is), and handlers
run at the few points where the books are in order, as tasks of an event loop take turns:

    with held():
        ...                      # handlers wait
        with opened():
            events = wait()      # handlers run; what they raise comes out of here
        due()                    # handlers that waited run now, if there are any
        ...                      # and at the end of the outermost `held`

All of it may be nested, and nothing of it does anything in other threads, where no handler runs.
The outermost `held` takes some 5 µs, as it looks at all handlers; the others a third of one. What
an engine has to do: wait under `opened`, and only where nothing is lost if the wait raises.

A signal that comes again when its handler has waited for ten seconds gets through wherever that is:
better broken books than a process that nobody can stop.
"""

from __future__ import annotations

# What is behind signal: no enums, a tenth of the time.
import _signal  # type: ignore[import-not-found]
import os
import sys
import threading
import time
from _thread import get_ident
from contextlib import suppress
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any

# Handlers run at once; inside of `held`, but it is opened; handlers wait; not in the main thread.
_FREE, _OPEN, _HELD, _ELSEWHERE = range(4)
_AGAIN = 4  # of a lock that its holder takes again, while handlers wait anyway
_SLICE = 0.05  # seconds that a wait for a lock may keep a handler waiting
_ENOUGH = 10.0  # seconds, then a signal that comes again is not held back
_SIGNALS = sorted(int(s) for s in _signal.valid_signals())

# Of the main thread. Python looks for signals at calls, at the start of functions and at jumps
# backwards; the steps in between are not interrupted, and some of the code below counts on that.
_main = threading.main_thread().ident
_level = _FREE
_real: dict[int, Any] = {}  # handlers that `_strike` stands for
_waiting: dict[int, float] = {}  # signals whose handlers wait, and since when
_seen: list[Any] = []  # all handlers, when last looked at
_ours: list[int] = []  # signals with a handler among those


def _strike(signum: int, _: FrameType | None) -> None:
    """Stand for every handler while something is held."""
    global _level
    since = _waiting.setdefault(signum, time.monotonic())
    if _level == _OPEN:
        _level = _HELD  # and so it stays if the handler raises: what cleans up is held again
        _deliver()
        _shield()  # it may have set other handlers
        _level = _OPEN
    elif _level == _FREE or time.monotonic() - since > _ENOUGH:
        _deliver()


def _deliver() -> None:
    """Call the handlers that wait, the others too if one of them raises."""
    while _waiting:
        signum, _ = _waiting.popitem()
        try:
            handler = _real.get(signum)
            if callable(handler):
                handler(signum, sys._getframe())
        except BaseException:
            _deliver()
            raise


def _shield() -> None:
    """Put `_strike` in the place of every handler."""
    global _seen, _ours
    handlers = list(map(_signal.getsignal, _SIGNALS))
    if handlers != _seen:
        both = zip(_SIGNALS, handlers, strict=True)
        _ours = [s for s, handler in both if callable(handler) and handler is not _strike]
        _seen = handlers
    for signum in _ours:
        _real[signum] = _signal.signal(signum, _strike)


def _unshield() -> None:
    """Put the handlers back, but for those that were changed meanwhile."""
    for signum, handler in list(_real.items()):
        if _signal.getsignal(signum) is _strike:
            _signal.signal(signum, handler)


def _hold() -> int:
    """Let handlers wait from now on; returns what is to be given to `_release`."""
    global _level
    if get_ident() != _main:
        return _ELSEWHERE
    before, _level = _level, _HELD
    if before == _FREE:
        try:
            _shield()
        except BaseException:  # of a handler that was not yet replaced
            _level = _FREE
            _unshield()
            raise
    return before


def _release(before: int) -> None:
    global _level
    if before == _ELSEWHERE:
        return
    _level = before
    try:
        if before != _HELD and _waiting:
            if before == _OPEN:
                _level = _HELD  # see _strike
            _deliver()
            _level = before
    finally:
        if before == _FREE:
            _unshield()


def due() -> None:
    """Run the handlers that wait: here the books are in order."""
    if _waiting and get_ident() == _main:
        _deliver()


def from_handler(error: BaseException) -> bool:
    """Whether a handler raised it, and not the code that was interrupted while it was `opened`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not _deliver.__code__:
        trace = trace.tb_next
    return trace is not None


class held:
    """`with held():` no handler of a signal runs inside, but where it is `opened` or `due`."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _hold()

    def __exit__(self, *_: object) -> None:
        _release(self._before)


class opened:
    """`with opened():` inside of `held`, handlers run again: around a wait, or a user's code.

    `foreign`: the code inside may set handlers.
    """

    __slots__ = ("_before", "_foreign")

    def __init__(self, foreign: bool = False) -> None:
        self._foreign = foreign

    def __enter__(self) -> None:
        global _level
        self._before = _ELSEWHERE
        if _level != _FREE and get_ident() == _main:
            if _waiting:
                _deliver()
            self._before, _level = _level, _OPEN

    def __exit__(self, *_: object) -> None:
        global _level
        if self._before != _ELSEWHERE:
            _level = self._before
            if self._foreign:
                _shield()


def imported(name: str, package: str | None = None) -> ModuleType:
    """Import a module, whole: many an extension module cannot be imported a second time.

    Whatever an operation imports when it first needs it is imported by this, or where `held`.
    """
    with held():
        return import_module(name, package)


class Lock:
    """A reentrant lock whose holder is `held`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._before: list[int] = []  # of the holder alone
        self._holder = 0  # the thread

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As of threading.RLock; a wait for it can be interrupted."""
        if self._holder == get_ident() and _level == _HELD:
            self._before.append(_AGAIN)
            return True
        before = _hold()
        try:
            got = self._lock.acquire(blocking=False)
            if not got and blocking:
                got = self._wait(timeout)
        except BaseException:
            _release(before)
            raise
        if got:
            self._before.append(before)
            self._holder = get_ident()
        else:
            _release(before)
        return got

    def _wait(self, timeout: float) -> bool:
        end = time.monotonic() + timeout if timeout >= 0 else float("inf")
        while (left := end - time.monotonic()) > 0:
            if self._lock.acquire(timeout=min(left, _SLICE)):
                return True
            due()
        return False

    def release(self) -> None:
        """As of threading.RLock."""
        before = self._before.pop()
        if before == _AGAIN:
            return
        if not self._before:
            self._holder = 0
        self._lock.release()
        _release(before)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _after_fork() -> None:
    """The thread that forked is the main one of the child."""
    global _main, _level
    if get_ident() != _main:
        _main, _level = get_ident(), _FREE
        _waiting.clear()
        with suppress(ValueError):
            _unshield()


os.register_at_fork(after_in_child=_after_fork)
