"""Rounds as spans of OpenTelemetry, told to its own exporter in memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from test_report import LOGS

import kofn
from kofn.engines.virtual import VirtualEngine
from kofn.model import Record
from kofn.report.otel import RoundSpans, Telemetry

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs kofn[otel]")
export = pytest.importorskip("opentelemetry.sdk.trace.export", reason="needs kofn[otel]")
memory = pytest.importorskip(
    "opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="needs kofn[otel]"
)


@pytest.fixture
def told() -> tuple[Any, Any]:
    exporter, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    return exporter, provider


def test_every_round_is_a_span_with_what_happened_in_it(told: tuple[Any, Any]) -> None:
    exporter, provider = told
    log = LOGS["changes"]()
    spans = RoundSpans(1e9, provider)
    for i in range(0, len(log), 7):
        spans.take(log[i : i + 7])
    spans.close()
    seen = exporter.get_finished_spans()
    begun = [r for r in log if r.kind == "round"]
    assert [s.attributes["kofn.round"] for s in seen] == [r.round for r in begun]
    assert [s.start_time for s in seen] == [round(1e9 * (r.time + 1e9)) for r in begun]
    ends = {r.round: r.time for r in log if r.kind == "done"}
    assert [s.end_time for s in seen] == [round(1e9 * (ends[r.round] + 1e9)) for r in begun]
    results = [r for r in log if r.kind == "result"]
    assert [s.attributes["kofn.rows.used"] for s in seen] == [r.rows for r in results]
    topped = [dict(r.numbers)["topped_up"] for r in results]
    assert [s.attributes["kofn.rows.topped_up"] for s in seen] == topped
    assert {s.name for s in seen} == {"kofn X @ w"}
    events = [(e.name, e.attributes["kofn.worker"]) for s in seen for e in s.events]
    last = max(i for i, r in enumerate(log) if r.kind == "round")
    happened = [r for r in log[: last + 1] if r.kind in ("lost", "joined", "ordered")]
    assert events[: len(happened)] == [(f"worker {r.kind}", r.worker) for r in happened]


def test_a_round_that_raises_is_an_error(told: tuple[Any, Any]) -> None:
    exporter, provider = told
    spans = RoundSpans(0.0, provider)
    records = [(1.0, "round", 3), (2.0, "raised", 3), (3.0, "round", 4), (4.0, "done", 4)]
    spans.take(Record(time, kind, id, -1, -1, 0) for time, kind, id in records)
    spans.close()
    bad, good = exporter.get_finished_spans()
    assert not bad.status.is_ok
    assert good.status.is_ok
    assert (bad.start_time, bad.end_time) == (10**9, 2 * 10**9)


def test_a_cluster_is_followed_as_a_child_of_the_programs_span(told: tuple[Any, Any]) -> None:
    exporter, provider = told
    with kofn.connect(VirtualEngine(4)) as cluster:
        X = cluster.encode(np.eye(8), k=2)
        X @ np.ones(8)  # before anybody listened
        with (
            provider.get_tracer("program").start_as_current_span("mine") as mine,
            Telemetry(cluster, provider) as telemetry,
        ):
            X @ np.ones(8)
            cluster.lose(1)
            X @ np.ones(8)
            telemetry.close()
    first, second, _ = exporter.get_finished_spans()
    assert first.parent.span_id == second.parent.span_id == mine.get_span_context().span_id
    assert [e.name for e in second.events] == ["worker lost"]


@pytest.mark.engine
def test_without_opentelemetry_it_is_said_what_to_install() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import kofn.report\n"
        "from kofn.report.otel import RoundSpans\n"
        "RoundSpans(0.0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith("pip install 'kofn[otel]'.")
