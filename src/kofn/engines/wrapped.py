"""An engine around another: what wraps an engine changes only what it is about."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar

from ..model import Event
from .base import Engine


def _delegated(name: str) -> Any:
    return lambda self, *args: getattr(self.engine, name)(*args)


class Wrapped(Engine):
    """Delegates every call to `engine`; closing it closes `engine`."""

    name: ClassVar[str] = "wrapped"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.capabilities = engine.capabilities

    def events(self, timeout: float) -> list[Event]:
        return self.engine.events(timeout)

    workers = property(attrgetter("engine.workers"))
    traffic = property(attrgetter("engine.traffic"))
    counters = _delegated("counters")
    now = _delegated("now")
    put = _delegated("put")
    forget = _delegated("forget")
    broadcast = _delegated("broadcast")
    submit = _delegated("submit")
    cancel = _delegated("cancel")
    lose = _delegated("lose")
    join = _delegated("join")
    exchange = _delegated("exchange")
    pid = _delegated("pid")
    close = _delegated("close")
