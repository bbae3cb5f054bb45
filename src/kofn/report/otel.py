"""Rounds as spans of OpenTelemetry: one more reader of the event log. Needs kofn[otel]."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from ..errors import CannotDo
from ..model import Record
from .logs import Tail

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

EVERY = 1.0  # seconds between two looks at the log
EVENTS = ("lost", "joined", "leaving", "staying", "ordered", "refused", "wrong", "aside")
COUNTS = {"read": "rows.read", "wasted": "rows.wasted", "topped_up": "rows.topped_up"}


class RoundSpans:
    """Makes a span of each round; `take` records in the order of the log.

    `unix`: what to add to the engine's clock for Unix seconds. `provider`: of OpenTelemetry's
    tracers (default: the one that the program has set). Rounds are children of the span that is
    current when this is made, if there is one. What happens between two rounds is an event of the
    next.
    """

    def __init__(self, unix: float, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import context, trace
        except ImportError as error:
            raise CannotDo(
                "spans need OpenTelemetry, which is not installed: pip install 'kofn[otel]'."
            ) from error
        self._unix, self._bad = unix, trace.Status(trace.StatusCode.ERROR)
        self._tracer = trace.get_tracer("kofn", tracer_provider=provider)
        self._parent = context.get_current()
        self._span: Span | None = None
        self._round, self._end = -1, 0.0
        self._between: list[Record] = []

    def take(self, records: Iterable[Record]) -> None:
        """Take records in. A round's span is sent when its result is there, or the next begins."""
        for record in records:
            if record.kind == "round":
                self._end_span()
                self._begin(record)
            elif record.kind in EVENTS:
                self._event(record)
            elif record.kind in ("done", "raised") and record.round == self._round:
                self._end = record.time
                if record.kind == "raised" and self._span is not None:
                    self._span.set_status(self._bad)
            elif record.kind == "result" and record.round == self._round:
                self._result(record)

    def close(self) -> None:
        """Tell of the last round."""
        self._end_span()

    def _begin(self, record: Record) -> None:
        self._round, self._end = record.round, 0.0
        what = record.why.split(":")[0]
        about: dict[str, Any] = {"kofn.round": record.round, "kofn.threshold": record.rows}
        about |= {"kofn.rule": record.why} if record.why else {}
        name, start = f"kofn {what or 'round'}", self._ns(record.time)
        self._span = self._tracer.start_span(name, self._parent, attributes=about, start_time=start)
        between, self._between = self._between, []
        for before in between:
            self._event(before)

    def _event(self, record: Record) -> None:
        if self._span is None or self._end:
            self._between.append(record)
            return
        about: dict[str, Any] = {"kofn.worker": record.worker} if record.worker >= 0 else {}
        about |= {"kofn.why": record.why} if record.why else {}
        self._span.add_event(f"worker {record.kind}", about, self._ns(record.time))

    def _result(self, record: Record) -> None:
        if self._span is None:
            return
        numbers = dict(record.numbers)
        self._span.set_attribute("kofn.rows.used", record.rows)
        for name, to in COUNTS.items():
            self._span.set_attribute(f"kofn.{to}", int(numbers.get(name, 0)))
        if "error_bound" in numbers:
            self._span.set_attribute("kofn.error_bound", numbers["error_bound"])
        self._end_span()

    def _end_span(self) -> None:
        if self._span is not None:
            self._span.end(self._ns(self._end) if self._end else None)
            self._span = None

    def _ns(self, time: float) -> int:
        return round(1e9 * (time + self._unix))


class Telemetry:
    """Tells OpenTelemetry of the rounds of a cluster as they come, from a thread.

    Use it in a `with` statement, or call close. `provider`: see RoundSpans.
    """

    def __init__(self, cluster: Any, provider: TracerProvider | None = None) -> None:
        self._spans = RoundSpans(time.time() - cluster.engine.now(), provider)
        self._tail = Tail(cluster._driver.log.marks)
        self._tail.take()  # what was before is not sent
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="kofn-otel", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._over.wait(EVERY):
            self._spans.take(self._tail.take())

    def close(self) -> None:
        """Tell the rest, and end. Idempotent."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            self._spans.take(self._tail.take())
            self._spans.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
