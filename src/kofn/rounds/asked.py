"""Requests of other threads to the engine: the thread that drives it does them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import get_ident
from typing import Any

from ..interrupts import from_handler


class Asked:
    """Actions in the order in which they were asked for, from any thread."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[], Any], Future[Any], int]] = deque()

    def add(self, action: Callable[[], Any]) -> Future[Any]:
        """Have something done; returns what will have its value, or what it raised."""
        done: Future[Any] = Future()
        self.waiting.append((action, done, get_ident()))
        return done

    def serve(self) -> None:
        """Do all of it, in the thread that drives.

        Ctrl-C in an action of another thread is this thread's. That action is left to be done.
        """
        while self.waiting:
            action, done, thread = asked = self.waiting.popleft()
            try:
                done.set_result(action())
            except BaseException as error:
                if thread != get_ident() and from_handler(error):
                    self.waiting.appendleft(asked)
                    raise
                done.set_exception(error)
